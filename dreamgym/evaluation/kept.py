"""Keeps answers of models in files, so that none is asked for twice.

A step without an answer is not kept: a model that could not be reached is not a result.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Generic

from pydantic import ValidationError

from dreamgym.environment import EnvironmentSpec, Row, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.calls import Compared, compared
from dreamgym.files import open_to_append
from dreamgym.plugins import plugins
from dreamgym.tools import Tools
from dreamgym.types import Frozen, Trajectory, Transition

CODE = {".py", ".txt", ".sql"}
"""Suffixes of the files that an answer depends on."""


class KeptStep(Frozen):
    """A prediction as it is kept, without the recorded data, which the recordings contain."""

    trajectory: str
    step: int
    predicted: Transition
    """The predicted step; its state is left empty, because it is the recorded one."""
    features: tuple[float, ...]
    seconds: float
    at_a_time: int
    """Number of steps that were asked for together."""

    @classmethod
    def of(cls, call: Compared, at_a_time: int) -> KeptStep | None:
        """The row of a predicted call; None without an answer."""
        if call.predicted is None:
            return None
        bare = call.predicted.model_copy(update={"state": ""})
        return cls(
            trajectory=call.trajectory,
            step=call.step,
            predicted=bare,
            features=call.features,
            seconds=call.seconds,
            at_a_time=at_a_time,
        )

    def restored(self, spec: EnvironmentSpec, tools: Tools, trajectory: Trajectory) -> Compared:
        """The prediction compared with the recording."""
        state = trajectory.transitions[self.step - 1].state
        whole = self.predicted.model_copy(update={"state": state})
        return compared(
            spec,
            tools,
            trajectory,
            self.step,
            whole.result,
            predicted=whole,
            features=self.features,
            seconds=self.seconds,
        )


@cache
def edition(package: Path = Path(__file__).parents[1]) -> str:
    """Digest of the core's code: kept predictions are made again after any change of it.

    Only the command line and the runs are left out: they decide nothing about a prediction.
    """
    files = (file for file in package.rglob("*") if file.suffix in CODE)
    return _digest(file for file in files if file.relative_to(package).parts[0] not in {"cli", "runs"})


def other_editions(spec: EnvironmentSpec) -> list[str]:
    """Place, version and digest of the code that other packages add to a dream: their tiers, and the reader and goals.

    A digest is of the whole package, because an entry point may use all of it.
    """
    adapters = plugins("dreamgym.environments")
    points = [*plugins("dreamgym.tiers").values(), *(adapters[name] for name in adapters if name == spec.adapter)]
    found = []
    for point in points:
        version = point.dist.version if point.dist is not None else ""
        package = find_spec(point.module.partition(".")[0])
        places = [] if package is None else package.submodule_search_locations or [str(package.origin)]
        files = (file for place in map(Path, places) for file in (place, *place.rglob("*")))
        code = _digest(file for file in files if file.suffix in CODE and file.is_file())
        found.append(" ".join([point.name, point.value, version, code]))
    return sorted(found)


def _digest(files: Iterable[Path]) -> str:
    return hashlib.sha256(b"\x00".join(file.read_bytes() for file in sorted(files))).hexdigest()


class KeptRows(Generic[Row]):
    """Rows that a model was asked for, in a file of JSON lines, so that none is made twice.

    Args:
        row: type of a line.
        folder: folder of the file; it is created if it is missing.
        basis: everything that the rows depend on; another basis gives another file.
    """

    def __init__(self, row: type[Row], folder: Path, name: str, basis: Sequence[str]) -> None:
        self._row = row
        digest = hashlib.sha256("\x00".join(basis).encode()).hexdigest()[:12]
        safe = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name)
        self.path = folder / f"{safe[:60]}-{digest}.jsonl"

    def read(self) -> list[Row]:
        """The rows that were made before. A last line that was cut off is dropped.

        Raises:
            InvalidInput: another line is broken.
        """
        if not self.path.is_file():
            return []
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            self.path.write_bytes(whole)
        rows = []
        for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
            try:
                rows.append(self._row.model_validate_json(line))
            except ValidationError as error:
                raise InvalidInput(
                    f"{self.path}, line {number}: {first_reason(error)}; delete the file, and its lines are made again"
                ) from error
        return rows

    def add(self, row: Row) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_to_append(self.path), "a", encoding="utf-8") as file:
            file.write(row.model_dump_json() + "\n")
