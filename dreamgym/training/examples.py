"""A few whole rollouts of every update, kept in the run folder beside the record; `dreamgym view` shows them.

The store keeps all rollouts, but not for ever, and a run folder is often all that is left of a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from dreamgym.files import open_to_append, write_whole
from dreamgym.replay.grouped import as_line, parted
from dreamgym.types import Trajectory

EXAMPLES = 4
"""Number of rollouts that are kept of one update, each from a different group."""
FILE = "rollouts.jsonl"


class KeptRollouts:
    """The file of a run: one rollout a line, with the name of its group, `RUN-UPDATE-TASK`."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def add(self, rollouts: Sequence[tuple[str, Trajectory]]) -> None:
        """Append rollouts, each with the name of its group."""
        with os.fdopen(open_to_append(self.path), "a", encoding="utf-8") as file:
            for group, trajectory in rollouts:
                file.write(as_line(group, trajectory))

    def rewind(self, iteration: int) -> None:
        """Drop the rollouts of an iteration that is played again, those of later ones, and a line that was cut off."""
        if self.path.is_file():
            lines = self.path.read_bytes().split(b"\n")  # bytes: a line may end within a character
            write_whole(self.path, b"".join(line + b"\n" for line in _before(lines, iteration)))


def _before(lines: Iterable[bytes], iteration: int) -> Iterable[bytes]:
    for line in lines:
        with suppress(ValueError):  # a line that was cut off
            group, _ = parted(line)
            if group is not None and int(group.rsplit("-", 2)[1]) < iteration:
                yield line
