"""Clients of the server: the control API, and an environment on a server behind the Environment protocol."""
