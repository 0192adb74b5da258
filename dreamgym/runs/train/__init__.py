"""Training of a policy in one environment after another: the run, its server and its progress display."""
