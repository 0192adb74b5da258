"""Predicts recorded calls with a dream, or plays them again on the real system.

Every call is predicted given what was recorded before it (teacher forcing), so one mistake is counted once. The
recordings are split by trajectory: no call is predicted from its own episode.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Iterable, Sequence
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from dreamgym.dream import confidence
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.embedding import Encoder
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished
from dreamgym.evaluation.calls import Compared, compared
from dreamgym.mirror import Mirror
from dreamgym.recordings.folder.server import taught_by
from dreamgym.redaction import Redact
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.tools import Tools
from dreamgym.types import Provenance, StepResult, Tier, Trajectory, Transition

MakeDream = Callable[[], DreamEnvironment]
One = TypeVar("One")


class RecordedStep(NamedTuple):
    """One call of a recorded trajectory, counted from 1."""

    trajectory: Trajectory
    number: int

    @property
    def key(self) -> tuple[str, int]:
        """The trajectory's id and the number of the call."""
        return self.trajectory.id, self.number


Predict = Callable[[Iterable[RecordedStep]], AsyncGenerator[Compared, None]]
"""Predicts steps and yields each as soon as it is done, in any order."""


def steps_of(trajectories: Iterable[Trajectory]) -> list[RecordedStep]:
    """Every recorded call."""
    return [RecordedStep(one, number) for one in trajectories for number in range(1, len(one.transitions) + 1)]


async def dream_of(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    known: Sequence[Trajectory],
    encoder: Encoder,
    *,
    recorded: Iterable[Trajectory],
    k: int | None = None,
    without: Collection[Part] = (),
) -> MakeDream:
    """Return a function that makes dreams which know only these trajectories; with k = 0, none of them.

    Args:
        spec: the recorded environment.
        model: the model of the dreams.
        known: the trajectories that the dreams know.
        encoder: encoder of the retrieval keys.
        recorded: all trajectories, known or not: what they teach about refusals is learned again from the known ones.
        k: number of recorded transitions that the model is shown; None: as many as it wants.
        without: parts of the method that are left out.
    """
    buffer, left_out = MemoryBuffer(encoder), frozenset(without)
    shown = () if k == 0 else known
    await buffer.add(shown)
    own = _as_known(spec, shown, recorded)
    return lambda: DreamEnvironment(own, model, buffer, without=left_out, k=k)


def _as_known(spec: EnvironmentSpec, known: Iterable[Trajectory], recorded: Iterable[Trajectory]) -> EnvironmentSpec:
    """The environment with a server.json that no other recorded calls than the known ones have taught.

    A part of server.json that recorded calls teach is learned again from the known ones. A part that none of them
    teaches is kept: it was written by hand, or comes from requests that are no calls.
    """
    if spec.mirror == Mirror():
        return spec
    tools = {str(tool["name"]): tool for tool in spec.tools}

    def taught(some: Iterable[Trajectory]) -> Mirror:
        return taught_by([(step.action, step.result) for one in some for step in one.transitions], tools)

    by_all, by_known = taught(recorded), taught(known)
    parts = spec.mirror.model_dump(exclude_defaults=True).keys() & by_all.model_dump(exclude_defaults=True).keys()
    learned = {part: getattr(by_known, part) for part in parts}
    return spec.model_copy(update={"mirror": spec.mirror.model_copy(update=learned)})


async def predictions(
    make_dream: MakeDream, steps: Iterable[RecordedStep], *, seed: int = 0, parallel: int = 1
) -> AsyncGenerator[Compared, None]:
    """Predict the steps, at most `parallel` at a time; yield each as soon as it is done.

    A call that its tool's schema forbids is refused without asking the dream, as in a server that knows what the dream
    knows.
    """
    spec = make_dream().spec
    tools = Tools(spec)

    async def predicted(step: RecordedStep) -> Compared:
        trajectory, number = step
        recorded = trajectory.transitions[number - 1]
        canonical = recorded.action.canonical()
        if refusal := tools.refusal(recorded.action, canonical):
            result = StepResult(observation=refusal, is_error=True)
            refused = Transition(
                state=recorded.state,
                action=recorded.action,
                result=result,
                next_state=recorded.state,
                provenance=Provenance(tier=Tier.CHECK, seed=seed, exact=canonical in spec.mirror.refusals),
            )
            return compared(spec, tools, trajectory, number, result, predicted=refused)
        dream = make_dream()
        dream.resume(trajectory.task, seed=seed, transitions=trajectory.transitions[: number - 1])
        started = time.perf_counter()
        try:
            result = await dream.step(recorded.action)
        except (EnvironmentUnavailable, EpisodeFinished) as error:
            seconds = time.perf_counter() - started
            return compared(spec, tools, trajectory, number, None, failure=str(error), seconds=seconds)
        return compared(
            spec,
            tools,
            trajectory,
            number,
            result,
            predicted=dream.transitions[-1],
            features=confidence.features(*dream.asked) if dream.asked else (),
            seconds=time.perf_counter() - started,
        )

    async with aclosing(as_done(predicted, steps, parallel)) as calls:
        async for call in calls:
            yield call


async def as_done(
    predict: Callable[[One], Coroutine[None, None, Compared]], units: Iterable[One], parallel: int
) -> AsyncGenerator[Compared, None]:
    """Predict the units, at most `parallel` at a time; yield each as soon as it is done."""
    todo, running = iter(units), set[asyncio.Task[Compared]]()

    try:
        while True:
            while len(running) < parallel and (unit := next(todo, None)) is not None:
                running.add(asyncio.create_task(predict(unit)))
            if not running:
                return
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def predict(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    known: Sequence[Trajectory],
    steps: Sequence[RecordedStep],
    encoder: Encoder,
    *,
    k: int | None = None,
    without: Collection[Part] = (),
    seed: int = 0,
    parallel: int = 1,
    on_step: Callable[[Compared], None] = lambda call: None,
) -> list[Compared]:
    """Predict the steps from the known trajectories alone (with k = 0, from none); return them in the given order."""
    recorded = {one.id: one for one in (*known, *(step.trajectory for step in steps))}.values()
    make_dream = await dream_of(spec, model, known, encoder, recorded=recorded, k=k, without=without)
    calls = []
    async with aclosing(predictions(make_dream, steps, seed=seed, parallel=parallel)) as running:
        async for call in running:
            on_step(call)
            calls.append(call)
    return in_order(calls, steps)


def in_order(calls: Iterable[Compared], steps: Iterable[RecordedStep]) -> list[Compared]:
    """The calls in the order of the steps."""
    order = {step.key: i for i, step in enumerate(steps)}
    return sorted(calls, key=lambda call: order[call.trajectory, call.step])


async def played_again(
    spec: EnvironmentSpec,
    make: Callable[[], Environment],
    trajectories: Sequence[Trajectory],
    *,
    redact: Redact | None = None,
) -> AsyncGenerator[Compared, None]:
    """Play the calls of each trajectory in their order. After a call without an answer, the rest has no answer either.

    Args:
        spec: the recorded environment.
        make: makes the real environment.
        trajectories: the trajectories whose calls are played.
        redact: redacts answers and errors as the recordings were redacted; otherwise answers could not be equal.
    """
    tools = Tools(spec)
    environment = make()
    try:
        for trajectory in trajectories:
            step, failure = 1, ""
            try:
                await environment.reset(trajectory.task)
                for transition in trajectory.transitions:
                    got = await environment.step(transition.action)
                    if redact is not None:
                        clean = {"observation": redact(got.observation), "info": redact(got.info)}
                        got = StepResult.model_validate({**got.model_dump(), **clean})
                    yield compared(spec, tools, trajectory, step, got)
                    step += 1
            except (EnvironmentUnavailable, EpisodeFinished) as error:
                failure = str(error) if redact is None else str(redact(str(error)))
            for missed in range(step, len(trajectory.transitions) + 1):
                yield compared(spec, tools, trajectory, missed, None, failure=failure)
    finally:
        await environment.close()
