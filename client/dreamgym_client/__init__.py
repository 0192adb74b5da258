"""Clients of the server: the control API, and a remote environment behind the Environment protocol."""
