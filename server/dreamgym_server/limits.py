"""The limits of a server on episodes and steps."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one server."""

    open_episodes: int = 4096
    """Number of episodes that may run at once in one database, over all replicas."""
    max_steps: int = 10_000
    """Highest step limit that a trainer may ask for; an environment's own limit may be higher."""
    episode_s: float = 86_400.0
    """An episode that still runs after this time is closed. A rate-limited model may take minutes for a step."""
    idle_s: float = 1_800.0
    """An episode without a step for this long is closed. It exceeds the time limit of a step."""
    step_s: float = 900.0
    """Time limit of a step. It exceeds the 600 s after which a language model that answers no request fails a step."""
    failures: int = 3
    """Number of failed steps in a row that ends an episode."""
    observation_characters: int = 1_000_000
    """A simulated observation that is longer makes the step fail. A real one may have any length."""
    sweep_s: float = 30.0
