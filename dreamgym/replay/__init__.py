"""The experience replay buffer: what really happened, found again by meaning."""
