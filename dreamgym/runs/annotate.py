"""Writes the reasoning of a teacher model into recorded trajectories, and saves their file as it goes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from dreamgym.dream.annotation import TOKENS, TOKENS_PER_STEP, annotation_messages, is_annotated, with_traces
from dreamgym.dream.annotation import annotate as ask_teacher
from dreamgym.dream.load import load_llm
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.errors import InvalidInput, PredictionError
from dreamgym.files import open_alone, write_whole
from dreamgym.llm import LLM
from dreamgym.runs.console import say
from dreamgym.runs.estimate import Range, of_prompts, say_estimate
from dreamgym.types import Trajectory

OVERVIEW_TOKENS, TRACE_TOKENS = 100, 40
"""Tokens that a teacher usually writes about an episode, and about each of its steps."""
AT_ONCE = 4
"""Number of questions that the teacher is asked at a time."""
SAVE_EVERY_S = 10.0


class AnnotationResult(NamedTuple):
    """The outcome of `annotate`."""

    file: Path
    done: int
    failures: int
    """Trajectories for which the teacher gave nothing usable; they are left as they were."""
    interrupted: bool = False


def annotate(env: str, model: str, trajectories: Path | None = None, seed: int = 0) -> AnnotationResult:
    """Write reasoning traces into recorded trajectories. Ctrl-C ends the call and keeps what is done.

    Annotated trajectories are skipped, so the same call continues an interrupted one.

    Args:
        env: an environment's name or folder.
        model: the teacher, as in `--model`.
        trajectories: JSONL file of trajectories, which is rewritten; None: the file of the folder.
        seed: seed of the teacher's answers.

    Raises:
        InvalidInput: there is no such file, another command is writing to it, or the model is not a language model.
    """
    spec = load_spec(env)
    source = trajectories or Path(env) / "trajectories.jsonl"
    if not source.is_file():
        raise InvalidInput(f"{source}: there is no such file: give the recorded trajectories with --trajectories")
    recorded = read_jsonl(source, Trajectory)
    waiting = {at: one for at, one in enumerate(recorded) if not is_annotated(one)}
    say(f"{source}: {len(waiting)} of {len(recorded)} trajectories are to be annotated")
    llm = load_llm(model)
    if llm is None:
        raise InvalidInput(f"--model {model} cannot write reasoning: expected a language model")
    prompts = ["".join(one.content for one in annotation_messages(spec, trajectory)) for trajectory in waiting.values()]
    most = max((len(one.transitions) for one in waiting.values()), default=0)
    written = Range(OVERVIEW_TOKENS, OVERVIEW_TOKENS + TRACE_TOKENS * most, TOKENS + TOKENS_PER_STEP * most)
    say_estimate(of_prompts(model, prompts, written, "one per trajectory"), say)
    interrupted = False
    with closing(_Work(source, recorded)) as work:
        try:
            asyncio.run(_run(work, llm, spec, waiting, seed))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            work.save()
    return AnnotationResult(source, work.done, work.failures, interrupted)


class _Work:
    """The trajectories of one file while they are annotated. Meanwhile, no collection may write to the file.

    Raises:
        InvalidInput: another command is writing to the file.
    """

    def __init__(self, target: Path, trajectories: Sequence[Trajectory]) -> None:
        self._target = target.resolve()  # only a file can be locked, not a link to it
        self._trajectories = list(trajectories)
        self._file = open_alone(self._target)
        self._before = list(trajectories)
        self._saved = time.monotonic()
        self.failures = 0
        self.done = 0

    def take(self, at: int, trajectory: Trajectory) -> None:
        self._trajectories[at] = trajectory
        self.done += 1
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save()

    def save(self) -> None:
        """Replace the file in one step. If somebody has changed it meanwhile, only put the traces into it."""
        self._hold()
        found = read_jsonl(self._target, Trajectory)
        if not found or found == self._before:
            kept = self._before = list(self._trajectories)
        else:
            kept = with_traces(found, self._trajectories)
        write_whole(self._target, "".join(f"{trajectory.model_dump_json()}\n" for trajectory in kept))
        self._hold()
        self._saved = time.monotonic()

    def close(self) -> None:
        """Let others write to the file again."""
        self._file.close()

    def _hold(self) -> None:
        """Lock the file that has this path now."""
        self._file.close()
        self._file = open_alone(self._target)


async def _run(work: _Work, llm: LLM, spec: EnvironmentSpec, waiting: Mapping[int, Trajectory], seed: int) -> None:
    """Annotate the waiting trajectories, a few at a time, and keep each as soon as it is done."""
    free = asyncio.Semaphore(AT_ONCE)

    async def one(at: int, trajectory: Trajectory) -> None:
        async with free:
            try:
                work.take(at, await ask_teacher(llm, spec, trajectory, seed=seed))
            except PredictionError as error:
                work.failures += 1
                say(f"{trajectory.id}: left as it was: {error}")
        say(f"{work.done + work.failures} of {len(waiting)}")

    try:
        async with asyncio.TaskGroup() as group:
            for at, trajectory in waiting.items():
                group.create_task(one(at, trajectory))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        await llm.close()
