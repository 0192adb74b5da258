"""What the installed packages register as entry points: environments, models, encoders, agents, tiers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points


def plugins(group: str) -> Mapping[str, EntryPoint]:
    """The entry points of a group, such as `dreamgym.environments`, by name."""
    return _read(group, tuple(sys.path))


@cache
def _read(group: str, path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Read them once for each path, because this opens a file of every installed package."""
    return {point.name: point for point in entry_points(group=group)}
