"""Contract tests for your own implementations; a broken promise raises an AssertionError that names it."""

from dreamgym.testing.environment import check_environment
from dreamgym.testing.replay import check_replay_buffer

__all__ = ["check_environment", "check_replay_buffer"]
