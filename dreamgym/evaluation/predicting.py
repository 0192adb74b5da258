"""Which recorded steps are predicted, and the predictions, kept so that none is made twice.

Steps whose recordings contradict each other are left out: no prediction could be right. What has no answer is asked
again at the next start, since a model that could not be reached is no result.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from contextlib import aclosing
from functools import cache
from pathlib import Path
from typing import Generic, NamedTuple

from pydantic import ValidationError

from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.embedding import Encoder
from dreamgym.environment import EnvironmentSpec, Row, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.calls import Compared, compared, predicted
from dreamgym.recordings.folder.files import open_to_append
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.tools import Tools
from dreamgym.types import Frozen, Trajectory, Transition

CODE = {".py", ".txt", ".sql"}
"""Kinds of files that an answer depends on."""


class Step(NamedTuple):
    """One recorded call that is to be predicted; counted from 1."""

    trajectory: Trajectory
    number: int


class KeptStep(Frozen):
    """A prediction as it is kept: what was recorded is with the recordings."""

    trajectory: str
    step: int
    predicted: Transition
    """With an empty state: the recorded one."""
    features: tuple[float, ...]
    seconds: float

    @classmethod
    def of(cls, call: Compared) -> KeptStep | None:
        """None without an answer."""
        if call.predicted is None:
            return None
        bare = call.predicted.model_copy(update={"state": ""})
        return cls(
            trajectory=call.trajectory, step=call.step, predicted=bare, features=call.features, seconds=call.seconds
        )

    def restored(self, spec: EnvironmentSpec, tools: Tools, trajectory: Trajectory) -> Compared:
        """Beside what was recorded."""
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


Done = Callable[[Compared], None]
"""Called with every step as soon as it is predicted."""


async def compare(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    known: Sequence[Trajectory],
    steps: Sequence[Step],
    encoder: Encoder,
    *,
    k: int | None = None,
    without: Collection[Part] = (),
    seed: int = 0,
    parallel: int = 1,
    on_step: Done = lambda call: None,
) -> list[Compared]:
    """Predict the steps from the known trajectories alone, in the order of the steps; with k = 0 from none of them."""
    buffer = MemoryBuffer(encoder)
    await buffer.add(() if k == 0 else known)
    calls = []
    running = predictions(spec, model, buffer, steps, k=k, without=without, seed=seed, parallel=parallel)
    async with aclosing(running) as answers:
        async for call in answers:
            on_step(call)
            calls.append(call)
    order = {(step.trajectory.id, step.number): i for i, step in enumerate(steps)}
    return sorted(calls, key=lambda call: order[call.trajectory, call.step])


async def predictions(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    buffer: ReplayBuffer,
    steps: Iterable[Step],
    *,
    k: int | None = None,
    without: Collection[Part] = (),
    seed: int = 0,
    parallel: int = 1,
) -> AsyncGenerator[Compared, None]:
    """Predict the steps, at most `parallel` at a time, each as soon as it is there."""
    tools, todo = Tools(spec), iter(steps)
    running: set[asyncio.Task[Compared]] = set()
    left_out = frozenset(without)

    def start(step: Step) -> asyncio.Task[Compared]:
        one = predicted(spec, tools, model, buffer, step.trajectory, step.number, k=k, seed=seed, without=left_out)
        return asyncio.create_task(one)

    try:
        while True:
            while len(running) < parallel and (step := next(todo, None)) is not None:
                running.add(start(step))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def steps_of(trajectories: Iterable[Trajectory]) -> list[Step]:
    """Every recorded call."""
    return [Step(one, number) for one in trajectories for number in range(1, len(one.transitions) + 1)]


def drawn(steps: Sequence[Step], limit: int | None, seed: int) -> list[Step]:
    """As many steps as the limit, drawn by the seed and in their order; a smaller draw is part of a larger one."""
    if limit is None or limit >= len(steps):
        return list(steps)
    order = list(range(len(steps)))
    random.Random(seed).shuffle(order)
    return [steps[i] for i in sorted(order[:limit])]


def first_known(trajectories: Sequence[Trajectory], transitions: int, seed: int) -> tuple[Trajectory, ...]:
    """Trajectories with so many transitions in all, drawn by the seed; a smaller draw is part of a larger one.

    Raises:
        InvalidInput: there are not so many.
    """
    there = sum(len(one.transitions) for one in trajectories)
    if transitions > there:
        raise InvalidInput(f"--known {transitions}: there are {there} recorded transitions that are not held out")
    order = list(trajectories)
    random.Random(seed).shuffle(order)
    chosen = []
    for one in order:
        if transitions <= 0:
            break
        chosen.append(one.model_copy(update={"transitions": one.transitions[:transitions]}))
        transitions -= len(one.transitions)
    return tuple(chosen)


@cache
def edition(package: Path = Path(__file__).parents[1]) -> str:
    """Digest of the core's code: kept predictions are made again after any change of it.

    Only the command line and the runs are left out: they decide nothing about a prediction.
    """
    files = (file for file in package.rglob("*") if file.suffix in CODE)
    decides = sorted(file for file in files if file.relative_to(package).parts[0] not in {"cli", "runs"})
    return hashlib.sha256(b"\x00".join(file.read_bytes() for file in decides)).hexdigest()


class Kept(Generic[Row]):
    """Rows that took a model to make, in a file of JSON lines: none is made twice.

    Args:
        row: what a line is.
        folder: where the file is; it is made with its folders.
        basis: everything that the rows depend on; other words, another file.
    """

    def __init__(self, row: type[Row], folder: Path, name: str, basis: Sequence[str]) -> None:
        self._row = row
        digest = hashlib.sha256("\x00".join(basis).encode()).hexdigest()[:12]
        safe = "".join(letter if letter.isalnum() or letter in ".-" else "_" for letter in name)
        self.path = folder / f"{safe[:60]}-{digest}.jsonl"

    def read(self) -> list[Row]:
        """What was made before. A last line that was cut off is dropped.

        Raises:
            InvalidInput: another line is broken.
        """
        if not self.path.is_file():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        rows = []
        for number, line in enumerate(whole.split("\n")[:-1], start=1):
            try:
                rows.append(self._row.model_validate_json(line))
            except ValidationError as error:
                raise InvalidInput(
                    f"{self.path}, line {number}: {first_reason(error)}; delete the file to have its lines made again"
                ) from error
        return rows

    def add(self, row: Row) -> None:
        """Keep one more."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(open_to_append(self.path), "a", encoding="utf-8") as file:
            file.write(row.model_dump_json() + "\n")
