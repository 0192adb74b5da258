"""The experience replay buffer: stores trajectories and finds similar transitions by meaning."""
