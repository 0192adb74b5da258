"""Training a policy: rollouts, advantages, the iteration, when to stop."""
