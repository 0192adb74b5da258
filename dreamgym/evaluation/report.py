"""What `dreamgym fidelity` has measured."""

from __future__ import annotations

from collections.abc import Iterable

from dreamgym.evaluation.attacks import Attacks
from dreamgym.evaluation.bound import Bound
from dreamgym.evaluation.calibrating import Calibrated, is_right
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.closed_loop import ClosedLoop
from dreamgym.evaluation.comparing import Paired
from dreamgym.evaluation.consistency import Consistency
from dreamgym.evaluation.cost import Cost
from dreamgym.evaluation.criteria import Criteria
from dreamgym.evaluation.finals import Finals
from dreamgym.evaluation.setting import Setting
from dreamgym.evaluation.steps import StepFidelity, changes
from dreamgym.types import Frozen

SHOWN = 12
"""Differences in a report."""
SHOWN_CHARACTERS = 1500
"""Of one answer there."""


class Shown(Frozen):
    """One step that was predicted wrongly."""

    trajectory: str
    step: int
    action: str
    recorded: str
    got: str
    recorded_changes: tuple[str, ...] = ()
    got_changes: tuple[str, ...] = ()


class Measured(Frozen):
    """One setting. None: not asked for, or it needs what there is not."""

    setting: Setting
    model: str
    """As the provenance of its answers has it."""
    complete: bool
    """False where it was interrupted."""
    steps: StepFidelity
    calibration: Calibrated | None
    finals: Finals | None
    """None where no held-out episode has a recorded outcome of its own."""
    criteria: Criteria
    bound: Bound
    cost: Cost
    closed_loop: ClosedLoop | None = None
    consistency: Consistency | None = None
    attacks: Attacks | None = None
    worst: tuple[Shown, ...] = ()
    """Wrong predictions, the least similar first, one of each tool before a second one."""


class Report(Frozen):
    """What `--json` prints, and `report.json` holds."""

    env: str
    seed: int
    known_transitions: int
    """That the dream was given."""
    held_out: tuple[str, ...]
    """Ids of the trajectories whose steps were predicted."""
    contradicted: int
    """Held-out steps that were left out, since another recording of the same had another outcome."""
    measured: tuple[Measured, ...]
    differences: tuple[Paired, ...] = ()
    """Of the first two settings."""

    @property
    def complete(self) -> bool:
        """Nothing was interrupted."""
        return all(one.complete for one in self.measured)


def worst(calls: Iterable[Compared], *, explicit: bool) -> tuple[Shown, ...]:
    """The predictions that are furthest off, one of each tool before a second one."""
    wrong = sorted((call for call in calls if not is_right(call)), key=lambda c: (c.similarity, c.trajectory, c.step))
    turn: dict[str, int] = {}
    ranked: list[tuple[int, int, Compared]] = []
    for call in wrong:
        turn[call.action.name] = turn.get(call.action.name, -1) + 1
        ranked.append((turn[call.action.name], len(ranked), call))
    return tuple(_shown(call, explicit=explicit) for _, _, call in sorted(ranked, key=lambda r: r[:2])[:SHOWN])


def _shown(call: Compared, *, explicit: bool) -> Shown:
    got = call.predicted
    return Shown(
        trajectory=call.trajectory,
        step=call.step,
        action=_cut(call.action.canonical()),
        recorded=_cut(("error: " if call.recorded.is_error else "") + call.recorded.observation),
        got=f"no answer: {call.failure}" if call.got is None else _answer(call),
        recorded_changes=_listed(call.before, call.after) if explicit else (),
        got_changes=_listed(call.before, got.next_state) if explicit and got is not None else (),
    )


def _answer(call: Compared) -> str:
    assert call.got is not None
    return _cut(("error: " if call.got.is_error else "") + call.got.observation)


def _listed(before: str, after: str) -> tuple[str, ...]:
    found = sorted(changes(before, after), key=lambda change: change[0])
    return tuple(f"{path} = {_cut(value)}" if value is not None else f"{path} gone" for path, value in found)


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
