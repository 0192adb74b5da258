"""Measures how fast an environment is here, and how often a behaviour succeeds in it.

It plays one episode after another in one environment. On a busy computer, CPU time stays the same and wall time does
not. The CPU time of a step and the transitions per minute include what the behaviour computes.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dreamgym.environment import RealEnvironment
from dreamgym.episode import play
from dreamgym.errors import DreamGymError, InvalidInput, UnknownName
from dreamgym.evaluation.episodes import has_succeeded
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.evaluation.stopwatch import Stopwatch, cpu_s
from dreamgym.types import Frozen, Source, Task, Trajectory


class Timing(Frozen):
    """The success and the times of some episodes."""

    behaviour: str
    success: Rate
    """Share of episodes that succeeded, without those in which the environment failed."""
    steps: int
    first_reset_s: float
    """Wall time of the first reset, which may start a machine."""
    reset_s: float
    """Mean wall time of the other resets, or of the first if it is the only one."""
    step_s: float
    """Mean wall time of a step."""
    reset_cpu_s: float
    """Mean CPU time of the resets without the first, or of the first if it is the only one."""
    step_cpu_s: float
    action_characters: float
    """Mean length of a call's arguments, as text."""
    observation_characters: float
    """Mean length of a step's observation."""
    transitions_a_minute: float
    """Steps per minute of wall time, resets included, without the first episode."""
    failed: int = 0
    fault: str | None = None
    """Message of the first failure."""


async def timed(real: RealEnvironment, behaviour: str, tasks: Sequence[Task], *, seed: int = 0) -> Timing:
    """Play each task once with a behaviour, and measure the times.

    Raises:
        InvalidInput: there is no task.
        UnknownName: the environment has no such behaviour.
        DreamGymError: the first task cannot be started.
    """
    if behaviour not in real.behaviours:
        raise UnknownName("behaviour", behaviour, real.behaviours)
    if not tasks:
        raise InvalidInput(f"environment {real.spec.name!r} has no tasks to play and measure")
    watch = Stopwatch(real.create())
    episodes: list[Trajectory] = []
    failures: list[str] = []
    cpu = began = 0.0
    try:
        for number, task in enumerate(tasks):
            try:
                episode = await play(
                    watch, task, real.behaviours[behaviour], spec=real.spec, seed=seed + number, source=Source.REAL
                )
            except DreamGymError as error:
                if not watch.resets_s:
                    raise
                failures.append(str(error))
                continue
            if episode.error is not None:
                failures.append(episode.error)
            episodes.append(episode)
            if number == 0:
                cpu, began, first_steps = cpu_s(), time.perf_counter(), len(watch.steps_s)
        spent_cpu, spent = cpu_s() - cpu, time.perf_counter() - began
    finally:
        await watch.close()
    later = len(watch.steps_s) - first_steps
    successes = [has_succeeded(real.spec, episode) for episode in episodes]
    steps = [step for episode in episodes for step in episode.transitions]
    actions = ["".join(map(str, step.action.arguments.values())) for step in steps]
    resets_cpu = watch.resets_cpu_s[1:]
    return Timing(
        behaviour=behaviour,
        success=wilson(successes.count(True), len(successes) - successes.count(None)),
        steps=len(steps),
        first_reset_s=watch.resets_s[0],
        reset_s=_mean(watch.resets_s[1:] or watch.resets_s),
        step_s=_mean(watch.steps_s),
        reset_cpu_s=_mean(resets_cpu or watch.resets_cpu_s),
        step_cpu_s=max(0.0, spent_cpu - sum(resets_cpu)) / later if later else 0.0,
        action_characters=_mean([len(text) for text in actions]),
        observation_characters=_mean([len(step.result.observation) for step in steps]),
        transitions_a_minute=60 * later / spent if later else 0.0,
        failed=len(failures),
        fault=failures[0] if failures else None,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
