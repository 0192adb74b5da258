"""Players in the dream and in reality: who succeeds where, and does what was done in the dream hold in reality.

Every player plays every task once in either world, with the same seed. What it did in the dream is then done again in
the real environment, call by call (where it did the very same there, that episode is the replay). Step by step a dream
may look right and still be won by those who fail in reality; here that shows.

An episode in which the environment failed to answer is reported apart and is never a success. A task whose success
nobody can tell, because it has no check and the real environment ends nothing, or because the real environment does
not tell its state, is left out and counted.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.intervals import by_cluster, rank_correlation
from dreamgym.evaluation.players import Player
from dreamgym.evaluation.playing import Make, answered_steps, has_succeeded, is_answered, is_same, perform, repeating
from dreamgym.evaluation.rates import Rate, clustered_difference, wilson
from dreamgym.types import Frozen, Source, Task, Trajectory, Transition

WORKERS = 4
"""Episodes at a time."""

Progress = Callable[[int, int], None]
"""Is told how many episodes are done, and of how many."""


class Outcome(Frozen):
    """One player on one task. None: not answered, or nobody can tell."""

    task: str
    seed: int
    dream: bool | None
    real: bool | None
    replayed: bool | None
    """Of the calls made in the dream, in reality."""


class Replay(Frozen):
    """What was done in the dream, done again in reality."""

    calls: int
    """Answered in the dream, and made in reality or made too late."""
    valid: Rate
    """Of the calls that the dream accepted: accepted in reality. What comes after the real end is not."""
    same: Rate
    """Of all calls: the same answer, error flag included."""
    accepted_wrongly: Rate
    """Of the calls that reality refuses: accepted in the dream."""
    refused_wrongly: Rate
    """Of the calls that reality accepts: refused in the dream."""
    dream_success: Rate
    success: Rate
    """Of the same episodes, replayed."""
    kept: float | None
    """Replayed success over success in the dream (WM2Real); None where nothing succeeded there."""


class PlayerResult(Frozen):
    """One player in both worlds."""

    player: str
    bad: bool
    dream: Rate
    real: Rate
    difference: Rate | None
    """Dream minus reality over the tasks that have both outcomes; bootstrap over tasks."""
    dream_unanswered: int
    real_unanswered: int
    tiers: dict[str, int]
    """How many dreamed steps each tier answered."""
    replay: Replay
    outcomes: tuple[Outcome, ...]
    """In the order of the tasks; the same for every player, and for another model with the same seed."""


class PlayAlong(Frozen):
    """Whether the dream helps players that are bad on purpose."""

    players: tuple[str, ...]
    difference: Rate
    """Dream minus real success, over all their episodes; bootstrap over tasks."""
    accepted_wrongly: Rate
    """Of their calls that reality refuses: accepted in the dream."""
    refused_wrongly: Rate
    """Of their calls that reality accepts: refused in the dream."""


class ClosedLoop(Frozen):
    """All players."""

    seed: int
    tasks: int
    unknown_to_players: int
    """Tasks left out because some player does not know them."""
    untold: int
    """Tasks left out because nobody can tell whether they were accomplished."""
    players: tuple[PlayerResult, ...]
    replay: Replay
    """Over all players."""
    correlation: Rate | None
    """Spearman's, of the players' success in the dream and in reality; bootstrap over tasks. None for fewer than three
    players, or where all are equally good."""
    play_along: PlayAlong | None
    """None where no player is bad on purpose, or none of their episodes has an outcome in both worlds."""


@dataclass(frozen=True)
class Bout:
    """One task of one player: dreamed, real, and the dreamed calls made in reality."""

    player: Player
    task: Task
    seed: int
    dream: Trajectory
    real: Trajectory
    replayed: Trajectory

    def steps(self) -> list[tuple[Transition, Transition | None]]:
        """Each dreamed step with the same call in reality; None after the real end."""
        dreamed = answered_steps(self.dream)
        real: Sequence[Transition | None] = self.replayed.transitions
        if is_answered(self.replayed):
            real = [*real, *[None] * (len(dreamed) - len(real))]
        return list(zip(dreamed, real, strict=False))


async def closed_loop(
    spec: EnvironmentSpec,
    players: Sequence[Player],
    tasks: Sequence[Task],
    make_dream: Make,
    make_real: Make,
    *,
    seed: int = 0,
    on_progress: Progress | None = None,
) -> ClosedLoop:
    """Let every player play every task in the dream and in reality. Task i is played with seed + i in both.

    Raises:
        InvalidInput: there is no player, or no task that all players know.
    """
    known = [task for task in tasks if all(player.behaviour(task) for player in players)]
    if not players or not known:
        raise InvalidInput(
            f"expected players and tasks that all of them know, got {len(players)} players and {len(known)} such tasks "
            f"of {len(tasks)}: players made of recordings know only the tasks that were recorded"
        )
    slots = asyncio.Semaphore(WORKERS)
    total, done = len(players) * len(known), 0

    async def bout(player: Player, number: int) -> Bout:
        nonlocal done
        async with slots:
            played = await _bout(spec, player, known[number], make_dream, make_real, seed + number)
        done += 1
        if on_progress is not None:
            on_progress(done, total)
        return played

    bouts = await asyncio.gather(*(bout(player, number) for player in players for number in range(len(known))))
    return _summary(spec, players, bouts, seed=seed, unknown=len(tasks) - len(known))


async def _bout(
    spec: EnvironmentSpec, player: Player, task: Task, make_dream: Make, make_real: Make, seed: int
) -> Bout:
    behaviour = player.behaviour(task)
    assert behaviour is not None
    dream = await perform(spec, make_dream, task, behaviour, seed=seed, source=Source.SYNTHETIC)
    real = await perform(spec, make_real, task, behaviour, seed=seed, source=Source.REAL)
    replayed = real
    actions = [step.action for step in answered_steps(dream)]
    if actions != [step.action for step in real.transitions] or not is_answered(real):
        replayed = await perform(spec, make_real, task, repeating(actions), seed=seed, source=Source.REAL)
    return Bout(player, task, seed, dream, real, replayed)


def _summary(
    spec: EnvironmentSpec, players: Sequence[Player], bouts: Sequence[Bout], *, seed: int, unknown: int
) -> ClosedLoop:
    ends_itself = spec.text_argument is not None or any(
        step.result.terminated for bout in bouts for step in (*bout.real.transitions, *bout.replayed.transitions)
    )
    outcomes = {id(bout): _outcome(bout, ends_itself) for bout in bouts}
    told = {one.task for one in outcomes.values() if one.real is not None or one.replayed is not None}
    bouts = [bout for bout in bouts if bout.task.id in told]
    tasks = list(dict.fromkeys(bout.task.id for bout in bouts))
    results = tuple(_result(player, [bout for bout in bouts if bout.player is player], outcomes) for player in players)
    return ClosedLoop(
        seed=seed,
        tasks=len(tasks),
        unknown_to_players=unknown,
        untold=len({one.task for one in outcomes.values()} - told),
        players=results,
        replay=replay_of(bouts, [outcomes[id(bout)] for bout in bouts], seed=seed),
        correlation=rank_correlation(
            [[_number(one.dream) for one in result.outcomes] for result in results],
            [[_number(one.real) for one in result.outcomes] for result in results],
            seed=seed,
        ),
        play_along=_play_along([bout for bout in bouts if bout.player.bad], outcomes, seed=seed),
    )


def _outcome(bout: Bout, ends_itself: bool) -> Outcome:
    return Outcome(
        task=bout.task.id,
        seed=bout.seed,
        dream=has_succeeded(bout.dream, ends_itself=ends_itself),
        real=has_succeeded(bout.real, ends_itself=ends_itself),
        replayed=has_succeeded(bout.replayed, ends_itself=ends_itself),
    )


def _result(player: Player, bouts: Sequence[Bout], outcomes: dict[int, Outcome]) -> PlayerResult:
    mine = [outcomes[id(bout)] for bout in bouts]
    both = _told_in_both(mine)
    return PlayerResult(
        player=player.name,
        bad=player.bad,
        dream=_rate([one.dream for one in mine]),
        real=_rate([one.real for one in mine]),
        difference=clustered_difference([dream - real for _, dream, real in both], [task for task, _, _ in both])
        if both
        else None,
        dream_unanswered=sum(not is_answered(bout.dream) for bout in bouts),
        real_unanswered=sum(not is_answered(bout.real) for bout in bouts),
        tiers=dict(Counter(step.provenance.tier.value for bout in bouts for step in answered_steps(bout.dream))),
        replay=replay_of(bouts, mine),
        outcomes=tuple(mine),
    )


def replay_of(bouts: Sequence[Bout], outcomes: Sequence[Outcome], *, seed: int = 0) -> Replay:
    """What the dreamed calls of some bouts are worth in reality; intervals are over episodes."""
    steps = [bout.steps() for bout in bouts]
    both = [one for one in outcomes if one.dream is not None and one.replayed is not None]
    dreamed, kept = _rate([one.dream for one in both]), _rate([one.replayed for one in both])
    accepted_wrongly, refused_wrongly = _wrongly(steps, seed)
    return Replay(
        calls=sum(map(len, steps)),
        valid=by_cluster(
            [[float(_is_accepted(real)) for dream, real in episode if _is_accepted(dream)] for episode in steps],
            seed=seed,
        ),
        same=by_cluster([[float(_is_same(*step)) for step in episode] for episode in steps], seed=seed),
        accepted_wrongly=accepted_wrongly,
        refused_wrongly=refused_wrongly,
        dream_success=dreamed,
        success=kept,
        kept=kept.mean / dreamed.mean if dreamed.n and dreamed.mean else None,
    )


def _wrongly(steps: Sequence[Sequence[tuple[Transition, Transition | None]]], seed: int) -> tuple[Rate, Rate]:
    """Shares of what reality refuses that the dream accepts, and of what reality accepts that the dream refuses."""

    def share(accepted_in_reality: bool) -> Rate:
        values = [
            [
                float(_is_accepted(dream) != accepted_in_reality)
                for dream, real in episode
                if real is not None and _is_accepted(real) == accepted_in_reality
            ]
            for episode in steps
        ]
        return by_cluster(values, seed=seed)

    return share(False), share(True)


def _play_along(bouts: Sequence[Bout], outcomes: dict[int, Outcome], *, seed: int) -> PlayAlong | None:
    both = _told_in_both([outcomes[id(bout)] for bout in bouts])
    if not both:
        return None
    accepted_wrongly, refused_wrongly = _wrongly([bout.steps() for bout in bouts], seed)
    return PlayAlong(
        players=tuple(dict.fromkeys(bout.player.name for bout in bouts)),
        difference=clustered_difference(
            [dream - real for _, dream, real in both], [task for task, _, _ in both], seed=seed
        ),
        accepted_wrongly=accepted_wrongly,
        refused_wrongly=refused_wrongly,
    )


def _told_in_both(outcomes: Sequence[Outcome]) -> list[tuple[str, float, float]]:
    """Task, success in the dream, success in reality."""
    return [
        (one.task, float(one.dream), float(one.real))
        for one in outcomes
        if one.dream is not None and one.real is not None
    ]


def _is_accepted(step: Transition | None) -> bool:
    return step is not None and not step.result.is_error


def _is_same(dream: Transition, real: Transition | None) -> bool:
    return real is not None and dream.result.done == real.result.done and is_same(dream.result, real.result)


def _rate(outcomes: Sequence[bool | None]) -> Rate:
    known = [outcome for outcome in outcomes if outcome is not None]
    return wilson(sum(known), len(known))


def _number(outcome: bool | None) -> float | None:
    return None if outcome is None else float(outcome)
