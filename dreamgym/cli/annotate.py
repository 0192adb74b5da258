"""`dreamgym annotate`: let a teacher model write the reasoning that recorded transitions lack."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import EnvName, Seed
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.errors import InvalidInput, PredictionError
from dreamgym.llm import LLM
from dreamgym.runs.console import say
from dreamgym.types import Trajectory

AT_ONCE = 4
"""Questions to the teacher."""
SAVE_EVERY_S = 10.0


def annotate(
    env: EnvName,
    model: Annotated[str, typer.Option("--model", metavar="TEACHER", help="The teacher, as in --model elsewhere.")],
    trajectories: Annotated[
        Path | None, typer.Option(help="JSONL of recorded trajectories; default: those of the folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write them here; default: back to where they were read.")] = None,
    seed: Seed = 0,
) -> None:
    """Write reasoning traces into recorded trajectories. Comes before `dreamgym seed`: what is stored stays as it is.

    What is annotated already is skipped, so that an interrupted run goes on where it was; a trajectory for which the
    teacher gives nothing usable is named and left as it was.

    Example: dreamgym annotate crm/ --model http://localhost:8000/v1
    """
    from dreamgym.dream.annotation import is_annotated, with_traces
    from dreamgym.dream.load import load_llm

    spec = load_spec(env)
    source = trajectories or Path(env) / "trajectories.jsonl"
    if not source.is_file():
        raise InvalidInput(f"{source}: there is no such file: name the recorded trajectories with --trajectories")
    target = out or source
    recorded = read_jsonl(source, Trajectory)
    if target != source and target.is_file():
        recorded = with_traces(recorded, read_jsonl(target, Trajectory))
    waiting = {at: one for at, one in enumerate(recorded) if not is_annotated(one)}
    say(f"{source}: {len(waiting)} of {len(recorded)} trajectories are to be annotated")
    llm = load_llm(model)
    if llm is None:
        raise InvalidInput(f"--model {model} cannot write reasoning: expected a language model")
    work = _Work(target, recorded)
    try:
        asyncio.run(_run(work, llm, spec, waiting, seed))
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    finally:
        work.save()
    typer.echo(f"{target}: {work.done} trajectories annotated, {work.failures} left as they were")
    if work.failures and not work.done:
        raise typer.Exit(1)


class _Work:
    """The trajectories of one file, of which more and more are annotated."""

    def __init__(self, target: Path, trajectories: Sequence[Trajectory]) -> None:
        self._target = target
        self._trajectories = list(trajectories)
        self._saved = time.monotonic()
        self.failures = 0
        self.done = 0

    def take(self, at: int, trajectory: Trajectory) -> None:
        self._trajectories[at] = trajectory
        self.done += 1
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Replace the file in one go."""
        from dreamgym.files import write_whole

        lines = (f"{trajectory.model_dump_json()}\n" for trajectory in self._trajectories)
        write_whole(self._target, "".join(lines))
        self._saved = time.monotonic()


async def _run(work: _Work, llm: LLM, spec: EnvironmentSpec, waiting: Mapping[int, Trajectory], seed: int) -> None:
    try:
        async with aclosing(_annotated(llm, spec, waiting, seed)) as answers:
            async for at, answer in answers:
                if isinstance(answer, Trajectory):
                    work.take(at, answer)
                else:
                    work.failures += 1
                    say(f"{waiting[at].id}: left as it was: {answer}")
                say(f"{work.done + work.failures} of {len(waiting)}")
    finally:
        await llm.close()


async def _annotated(
    llm: LLM, spec: EnvironmentSpec, waiting: Mapping[int, Trajectory], seed: int
) -> AsyncGenerator[tuple[int, Trajectory | PredictionError], None]:
    """Each trajectory as soon as it is done, annotated, or the reason why not."""
    from dreamgym.dream.annotation import annotate as ask_teacher

    free = asyncio.Semaphore(AT_ONCE)

    async def one(at: int, trajectory: Trajectory) -> tuple[int, Trajectory | PredictionError]:
        async with free:
            try:
                return at, await ask_teacher(llm, spec, trajectory, seed=seed)
            except PredictionError as error:
                return at, error

    tasks = [asyncio.create_task(one(at, trajectory)) for at, trajectory in waiting.items()]
    try:
        for task in asyncio.as_completed(tasks):
            yield await task
    finally:
        for pending in tasks:
            pending.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
