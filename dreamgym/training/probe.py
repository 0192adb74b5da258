"""Evaluates a policy: plays each task of a list once and counts successes."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.training.rollout import Player
from dreamgym.types import Frozen, Task


class Evaluation(Frozen):
    """The result of one policy on a list of tasks."""

    success: Rate
    refused_share: float
    """Share of actions that the environment answered with an error or that were not valid calls, failed episodes left
    out."""
    mean_steps: float
    """Steps per episode, without failed ones."""
    steps: int
    """Total number of environment steps."""
    failed: int
    """Episodes in which the environment failed; they count neither as success nor as failure."""
    fault: str | None = None
    """Error of the first episode that failed; None if none did."""
    unjudged: int = 0
    """Episodes whose reward is unknown, since no check and no judge could decide it; they are not counted either."""
    outcomes: tuple[float | None, ...]
    """1 for success, 0 for failure, None for a failed environment or an unknown reward; in the order of the tasks."""
    tasks: tuple[str, ...] = ()
    """Ids of the tasks, in their order, so that the outcomes of two policies can be paired."""


async def evaluate(player: Player, tasks: Sequence[Task], *, seed: int = 0, batch: int = 128) -> Evaluation:
    """Play each task once by sampling and count successes.

    `seed` fixes the sampled tokens, and the environment of task i is reset with `seed + i`.
    """
    outcomes: list[float | None] = []
    faults: list[str] = []
    refused = steps = unheard = unjudged = played = 0
    for start in range(0, len(tasks), batch):
        chunk = tasks[start : start + batch]
        episodes = await player.play(
            chunk,
            groups=[""] * len(chunk),
            seeds=[seed + start + i for i in range(len(chunk))],
            version=0,
            sampling_seed=seed + start,
        )
        for episode in episodes:
            faults += [] if episode.error is None else [episode.error]
            unjudged += episode.error is None and episode.is_unjudged
            outcomes.append(None if episode.reward is None else float(episode.success))
            steps += len(episode.actions)
            if episode.error is None:
                played += len(episode.actions)
                refused += episode.refused
                unheard += episode.unheard
    valid = [outcome for outcome in outcomes if outcome is not None]
    return Evaluation(
        success=wilson(int(sum(valid)), len(valid)),
        refused_share=(refused + unheard) / max(1, played + unheard),
        mean_steps=played / max(1, len(tasks) - len(faults)),
        steps=steps,
        failed=len(faults),
        fault=faults[0] if faults else None,
        unjudged=unjudged,
        outcomes=tuple(outcomes),
        tasks=tuple(task.id for task in tasks),
    )
