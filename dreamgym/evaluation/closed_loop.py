"""Compares players in the dream and in reality: who succeeds where, and whether dreamed calls hold in reality.

Every player plays every task once in each world, with the same seed. Its dreamed calls are then made again in the real
environment, one by one (if its real episode has the very same calls, that episode is the replay). A dream may look
right step by step, and players that fail in reality may still succeed in it; this comparison shows it.

An episode in which the environment failed to answer is reported separately and is never a success. A task is left out
and counted if its success cannot be decided: because it has no check and the real environment ends nothing, or because
the real environment does not report its state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.calls import is_same
from dreamgym.evaluation.episodes import (
    WORKERS,
    Keep,
    Make,
    Progress,
    answered_steps,
    forget,
    has_succeeded,
    is_answered,
    perform,
    play_many,
    repeating,
)
from dreamgym.evaluation.players import ScriptedPlayer
from dreamgym.evaluation.rates import Rate, clustered, clustered_difference, rank_correlation, wilson
from dreamgym.types import Frozen, Source, Task, Trajectory, Transition


class TaskOutcome(Frozen):
    """Success of one player on one task. None: a call was not answered, or success cannot be decided."""

    task: str
    seed: int
    dream: bool | None
    real: bool | None
    replayed: bool | None
    """Success of the dreamed calls when they are made again in reality."""


class Replay(Frozen):
    """Measures of the dreamed calls that are made again in reality."""

    calls: int
    """Number of calls that the dream answered, and that were made in reality or came after its end."""
    valid: Rate
    """Share of the calls accepted in the dream that reality accepts; it accepts none after its end."""
    same: Rate
    """Share of all calls with the same answer, error flag included."""
    accepted_wrongly: Rate
    """Share of the calls refused by reality that the dream accepts."""
    refused_wrongly: Rate
    """Share of the calls accepted by reality that the dream refuses."""
    dream_success: Rate
    success: Rate
    """Success of the same episodes, replayed."""
    kept: float | None
    """Replayed success divided by success in the dream (WM2Real); None if nothing succeeded in the dream."""


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
    outcomes: tuple[TaskOutcome, ...]
    """One per task; the order is the same for every player, and for another model with the same seed."""


class PlayAlong(Frozen):
    """How a dream treats players that are bad on purpose, compared with reality."""

    players: tuple[str, ...]
    difference: Rate
    """Dream minus real success, over all their episodes; bootstrap over tasks."""
    accepted_wrongly: Rate
    """Share of their calls refused by reality that the dream accepts."""
    refused_wrongly: Rate
    """Share of their calls accepted by reality that the dream refuses."""


class ClosedLoop(Frozen):
    """Results of all players."""

    seed: int
    tasks: int
    unknown_to_players: int
    """Tasks left out because some player does not know them."""
    undecided: int
    """Tasks left out because it cannot be decided whether they were accomplished."""
    real_fault: str | None = None
    """Why the first real episode has no answer, if the real environment answered no call of any episode."""
    players: tuple[PlayerResult, ...]
    replay: Replay
    """Over all players."""
    correlation: Rate | None
    """Spearman's correlation of the players' success in the dream and in reality; bootstrap over tasks. None for fewer
    than three players, or if all are equally good in one world."""
    play_along: PlayAlong | None
    """None if no player is bad on purpose, or none of their episodes has an outcome in both worlds."""


@dataclass(frozen=True)
class Bout:
    """One task of one player: dreamed, real, and the dreamed calls made in reality."""

    player: ScriptedPlayer
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


Played = tuple[Bout, TaskOutcome]


async def closed_loop(
    spec: EnvironmentSpec,
    players: Sequence[ScriptedPlayer],
    tasks: Sequence[Task],
    make_dream: Make,
    make_real: Make,
    *,
    seed: int = 0,
    on_progress: Progress | None = None,
    keep: Keep = forget,
) -> ClosedLoop:
    """Let every player play every task in the dream and in reality. Task i is played with seed + i in both.

    `keep` is called with every episode; replays have the measure `replay`, all others `closed loop`.

    Raises:
        InvalidInput: there is no player, or no task that all players know.
    """
    known = [task for task in tasks if all(player.behaviour(task) for player in players)]
    if not players or not known:
        raise InvalidInput(
            f"expected players and tasks that all of them know, got {len(players)} players and {len(known)} such tasks "
            f"of {len(tasks)}: a player made of recordings knows only the recorded tasks"
        )

    async def bout(index: int) -> Bout:
        player, number = players[index // len(known)], index % len(known)
        task, behaviour = known[number], player.behaviour(known[number])
        assert behaviour is not None
        dream = await perform(spec, make_dream, task, behaviour, seed=seed + number, source=Source.SYNTHETIC)
        real = await perform(spec, make_real, task, behaviour, seed=seed + number, source=Source.REAL)
        replayed = real
        actions = [step.action for step in answered_steps(dream)]
        if actions != [step.action for step in real.transitions] or not is_answered(real):
            again = repeating(actions)
            replayed = await perform(spec, make_real, task, again, seed=seed + number, source=Source.REAL)
        return Bout(player, task, seed + number, dream, real, replayed)

    bouts = await play_many([bout] * WORKERS, range(len(players) * len(known)), on_progress)
    for one in bouts:
        name = f"{one.player.name}/{one.task.id}"
        keep(f"closed loop/{name}", one.dream)
        keep(f"closed loop/{name}", one.real)
        if one.replayed is not one.real:
            keep(f"replay/{name}", one.replayed)
    ends_itself = spec.is_over_when_done or (spec.ends_itself is None and any(map(_has_ended, bouts)))
    played = [(one, _outcome(spec, one, ends_itself=ends_itself)) for one in bouts]
    decided = {out.task for _, out in played if out.real is not None or out.replayed is not None}
    counted = [(one, out) for one, out in played if out.task in decided]
    results = tuple(
        _result(player, [pair for pair in counted if pair[0].player is player], seed=seed) for player in players
    )
    return ClosedLoop(
        seed=seed,
        tasks=len(decided),
        unknown_to_players=len(tasks) - len(known),
        undecided=len({out.task for _, out in played} - decided),
        real_fault=None if any(one.real.transitions for one in bouts) else bouts[0].real.error,
        players=results,
        replay=replay_of(counted),
        correlation=rank_correlation(
            [[one.dream for one in result.outcomes] for result in results],
            [[one.real for one in result.outcomes] for result in results],
            seed=seed,
        ),
        play_along=_play_along([pair for pair in counted if pair[0].player.bad], seed=seed),
    )


def _has_ended(bout: Bout) -> bool:
    """True if the real environment ended an episode."""
    return any(step.result.terminated for step in (*bout.real.transitions, *bout.replayed.transitions))


def _outcome(spec: EnvironmentSpec, bout: Bout, *, ends_itself: bool) -> TaskOutcome:
    return TaskOutcome(
        task=bout.task.id,
        seed=bout.seed,
        dream=has_succeeded(spec, bout.dream, ends_itself=ends_itself),
        real=has_succeeded(spec, bout.real, ends_itself=ends_itself),
        replayed=has_succeeded(spec, bout.replayed, ends_itself=ends_itself),
    )


def _result(player: ScriptedPlayer, played: Sequence[Played], *, seed: int) -> PlayerResult:
    outcomes = tuple(outcome for _, outcome in played)
    return PlayerResult(
        player=player.name,
        bad=player.bad,
        dream=_success(one.dream for one in outcomes),
        real=_success(one.real for one in outcomes),
        difference=_difference(outcomes, seed=seed),
        dream_unanswered=sum(not is_answered(bout.dream) for bout, _ in played),
        real_unanswered=sum(not is_answered(bout.real) for bout, _ in played),
        tiers=dict(Counter(step.provenance.tier.value for bout, _ in played for step in answered_steps(bout.dream))),
        replay=replay_of(played),
        outcomes=outcomes,
    )


def replay_of(played: Sequence[Played]) -> Replay:
    """Compare the dreamed calls of some bouts with reality; intervals are over tasks, which all players share."""
    steps = [bout.steps() for bout, _ in played]
    both = [one if one.dream is not None and one.replayed is not None else None for _, one in played]

    def over_tasks(values: Sequence[Sequence[bool]]) -> Rate:
        """The mean of all values, which are given for each bout."""
        pairs = [(float(value), bout.task.id) for (bout, _), some in zip(played, values, strict=True) for value in some]
        return clustered([value for value, _ in pairs], [task for _, task in pairs])

    dreamed = over_tasks([[] if one is None else [one.dream is True] for one in both])
    kept = over_tasks([[] if one is None else [one.replayed is True] for one in both])

    def wrongly(*, accepted_in_reality: bool) -> Rate:
        """Share of the calls that the dream treats the opposite way, of those that reality accepts, or refuses."""
        values = [
            [
                _is_accepted(dream) != accepted_in_reality
                for dream, real in episode
                if real is not None and _is_accepted(real) == accepted_in_reality
            ]
            for episode in steps
        ]
        return over_tasks(values)

    return Replay(
        calls=sum(map(len, steps)),
        valid=over_tasks([[_is_accepted(real) for dream, real in episode if _is_accepted(dream)] for episode in steps]),
        same=over_tasks([[_is_same(*step) for step in episode] for episode in steps]),
        accepted_wrongly=wrongly(accepted_in_reality=False),
        refused_wrongly=wrongly(accepted_in_reality=True),
        dream_success=dreamed,
        success=kept,
        kept=kept.mean / dreamed.mean if dreamed.n and dreamed.mean else None,
    )


def _play_along(played: Sequence[Played], *, seed: int) -> PlayAlong | None:
    difference = _difference([outcome for _, outcome in played], seed=seed)
    if difference is None:
        return None
    replay = replay_of(played)
    return PlayAlong(
        players=tuple(dict.fromkeys(bout.player.name for bout, _ in played)),
        difference=difference,
        accepted_wrongly=replay.accepted_wrongly,
        refused_wrongly=replay.refused_wrongly,
    )


def _difference(outcomes: Sequence[TaskOutcome], *, seed: int) -> Rate | None:
    """Success in the dream minus success in reality; None if no task has both outcomes."""
    both = [(one, float(one.dream) - one.real) for one in outcomes if one.dream is not None and one.real is not None]
    if not both:
        return None
    return clustered_difference([difference for _, difference in both], [one.task for one, _ in both], seed=seed)


def _is_accepted(step: Transition | None) -> bool:
    return step is not None and not step.result.is_error


def _is_same(dream: Transition, real: Transition | None) -> bool:
    return real is not None and dream.result.done == real.result.done and is_same(dream.result, real.result)


def _success(outcomes: Iterable[bool | None]) -> Rate:
    known = [outcome for outcome in outcomes if outcome is not None]
    return wilson(sum(known), len(known))
