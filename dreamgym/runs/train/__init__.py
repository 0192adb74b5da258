"""Training a policy in one environment after another: the run, the server it plays at, what it shows."""
