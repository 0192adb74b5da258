"""Type of the function with which a test runs a command line in its own process."""

from collections.abc import Callable

Command = Callable[..., tuple[int, str, str]]
"""Takes the arguments; returns exit code, stdout, stderr."""
