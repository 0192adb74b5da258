"""Tests if a dream remembers what was written in it: long sessions with reads after writes.

A read is right if reality gives the same answer after the very same calls. It contradicts the dream's own past in two
cases: the same read was answered differently, with nothing written in between; or, if the state is explicit, an entity
that it shows differs from the state that the dream's own writes made.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

from dreamgym.environment import EnvironmentSpec
from dreamgym.evaluation.calls import is_same
from dreamgym.evaluation.episodes import (
    WORKERS,
    Keep,
    Make,
    Progress,
    answered_steps,
    forget,
    is_answered,
    perform,
    play_many,
    repeating,
)
from dreamgym.evaluation.players import ScriptedPlayer
from dreamgym.evaluation.rates import Rate, by_cluster
from dreamgym.evaluation.scripts import Reads
from dreamgym.state import StateSchema, entities, parsed, shown_in
from dreamgym.types import Frozen, Source, StepResult, Task, Trajectory, Transition


class Consistency(Frozen):
    """Measures of the reads in long sessions; intervals are over sessions."""

    sessions: int
    unanswered: int
    """Sessions in which the dream had no answer to some call; such a session goes on, and its answered calls count."""
    unanswered_calls: int
    """Calls without an answer in all sessions; they are not made in reality either."""
    real_unanswered: int
    """Sessions in which reality stopped answering before the end; the calls after that are not compared."""
    steps: int
    """Calls that the dream answered."""
    writes: int
    reads: int
    agree: Rate
    """Share of the reads answered as reality answers them after the same calls."""
    consistent: Rate
    """Share of the reads that do not contradict the dream's own past, among those that could."""
    agree_by_writes: tuple[Rate, ...]
    """`agree` by the number of accepted writes before the read: 0, 1, 2 and so on."""


async def consistency(
    spec: EnvironmentSpec,
    player: ScriptedPlayer,
    tasks: Sequence[Task],
    make_dream: Make,
    make_real: Make,
    *,
    recordings: Sequence[Trajectory] = (),
    seed: int = 0,
    on_progress: Progress | None = None,
    keep: Keep = forget,
) -> Consistency:
    """Play one long session per task in the dream, then the same calls in reality, and compare the reads.

    Args:
        spec: the environment that is played.
        player: plays long sessions, such as `dreamgym.evaluation.players.sessions`; unknown tasks are skipped.
        tasks: the tasks in which the sessions start; task i is played with seed + i.
        make_dream: makes a new dream.
        make_real: makes a new real environment.
        recordings: show which calls only read, if the tools are not annotated.
        seed: fixes the sessions.
        on_progress: called with the number of sessions that are done, and of all.
        keep: called with every session, dreamed and real.
    """
    reads = Reads(spec, recordings)
    long = spec.model_copy(update={"max_steps": max(spec.max_steps, 1000)})  # the player ends the session
    known = [task for task in tasks if player.behaviour(task)]

    async def session(number: int) -> tuple[Trajectory, Trajectory]:
        task, behaviour = known[number], player.behaviour(known[number])
        assert behaviour is not None
        dream = await perform(
            long, make_dream, task, behaviour, seed=seed + number, source=Source.SYNTHETIC, patient=True
        )
        again = repeating([step.action for step in answered_steps(dream)])
        return dream, await perform(long, make_real, task, again, seed=seed + number, source=Source.REAL)

    played = await play_many([session] * WORKERS, range(len(known)), on_progress)
    for one in chain(*played):
        keep(f"reads after writes/{one.task.id}", one)
    agree, consistent = [], []
    by_writes: dict[int, list[list[float]]] = {}
    for dream, real in played:
        steps = answered_steps(dream)
        writes_before = [0, *accumulate(_is_write(step, reads) for step in steps)]
        answers: list[Transition | None] = [*real.transitions]
        if is_answered(real):  # nothing can be read after the real end
            answers += [None] * (len(steps) - len(answers))
        compared = [
            (before, float(theirs is not None and is_same(ours.result, theirs.result)))
            for before, ours, theirs in zip(writes_before, steps, answers, strict=False)
            if reads(ours.action)
        ]
        agree.append([same for _, same in compared])
        for before in {before for before, _ in compared}:
            by_writes.setdefault(before, []).append([same for writes, same in compared if writes == before])
        consistent.append(self_consistent(spec.state, steps, reads))
    all_steps = [step for dream, _ in played for step in answered_steps(dream)]
    return Consistency(
        sessions=len(played),
        unanswered=sum(not is_answered(dream) for dream, _ in played),
        unanswered_calls=sum(len(dream.transitions) for dream, _ in played) - len(all_steps),
        real_unanswered=sum(not is_answered(real) for _, real in played),
        steps=len(all_steps),
        writes=sum(_is_write(step, reads) for step in all_steps),
        reads=sum(reads(step.action) for step in all_steps),
        agree=by_cluster(agree),
        consistent=by_cluster(consistent),
        agree_by_writes=tuple(
            by_cluster(by_writes.get(before, [])) for before in range(max(by_writes, default=-1) + 1)
        ),
    )


def self_consistent(schema: StateSchema | None, steps: Sequence[Transition], reads: Reads) -> list[float]:
    """1.0 for each read that agrees with earlier answers and with the state, 0.0 for each that contradicts them.

    A read that repeats no earlier read and shows no entity of the state is left out.
    """
    found: list[float] = []
    answered: dict[str, StepResult] = {}
    for step in steps:
        if not reads(step.action):
            if _is_write(step, reads):
                answered.clear()
            continue
        key = step.action.canonical()
        verdicts = [is_same(step.result, answered[key])] if key in answered else []
        if schema is not None and not step.result.is_error:
            verdicts += _agrees_with_state(schema, step)
        answered[key] = step.result
        if verdicts:
            found.append(float(all(verdicts)))
    return found


def _agrees_with_state(schema: StateSchema, step: Transition) -> list[bool]:
    """For each entity that an answer shows: True if no field differs from the state's."""
    state = parsed(step.next_state) or {}
    found = []
    for collection, identity, shown in entities(shown_in(step.result), schema):
        part = state.get(collection)
        known = part.get(identity) if isinstance(part, dict) else None
        if isinstance(known, dict):
            found.append(all(known[field] == value for field, value in shown.items() if field in known))
        elif isinstance(part, dict) and schema.collections[collection].complete:
            found.append(False)
    return found


def _is_write(step: Transition, reads: Reads) -> bool:
    return not reads(step.action) and not step.result.is_error
