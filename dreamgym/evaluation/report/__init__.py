"""The numbers of the two reports: the short one of `dreamgym check`, the long one of `dreamgym fidelity`.

`text` puts them into words, `page` into an HTML file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from dreamgym.evaluation.attacks import Attacks
from dreamgym.evaluation.bound import Bound
from dreamgym.evaluation.calibration import Calibrated
from dreamgym.evaluation.calls import Agreement, Compared
from dreamgym.evaluation.closed_loop import ClosedLoop
from dreamgym.evaluation.consistency import Consistency
from dreamgym.evaluation.cost import Cost
from dreamgym.evaluation.criteria import Criteria
from dreamgym.evaluation.differences import Paired
from dreamgym.evaluation.final_answers import FinalAnswers
from dreamgym.evaluation.setting import Setting
from dreamgym.evaluation.steps import StepFidelity, changes
from dreamgym.types import Frozen, StepResult

CHECK_FILE = "check.json"
"""Name of the file that `dreamgym check --out` writes."""
SHOWN = 12
"""Number of wrong steps in a report."""
SHOWN_CHARACTERS = 1500
"""Most characters of one answer that are shown."""


class CheckReport(Frozen):
    """The short report: held-out calls compared with the answers of a dream, or of the real system."""

    env: str
    against: str
    model: str | None
    """None for the real system."""
    k: int | None
    """Limit of recorded transitions that the model was shown at a time."""
    seed: int
    known: tuple[str, ...]
    """Ids of the trajectories that the dream was given."""
    known_transitions: int
    """Number of recorded transitions in the known trajectories."""
    held_out: tuple[str, ...]
    complete: bool
    """False if it was interrupted."""
    total: Agreement
    tools: dict[str, Agreement]
    calls: tuple[Compared, ...]

    @property
    def setting(self) -> str:
        """Description of what answered: a dream, or the real system."""
        if self.model is None:
            return "the real system"
        return f"dream of {self.model}, at most {self.k} transitions shown"

    def as_json(self) -> str:
        """The report that `--json` prints: each call with both answers, without states and provenance."""
        left_out = {"before", "after", "accomplished", "fulfilled", "predicted", "features", "claimed"}
        return self.model_dump_json(indent=2, exclude={"calls": {"__all__": left_out}})


class PredictedStep(Frozen):
    """One step as it was recorded and as it was predicted, in short."""

    trajectory: str
    step: int
    action: str
    recorded: str
    got: str
    recorded_changes: tuple[str, ...] = ()
    got_changes: tuple[str, ...] = ()


class SettingReport(Frozen):
    """The report on one setting. A part is None if it was not asked for, or if what it needs is missing."""

    setting: Setting
    model: str
    """The model's name in the provenance of its answers."""
    complete: bool
    """False if it was interrupted."""
    steps: StepFidelity
    calibration: Calibrated | None
    final_answers: FinalAnswers | None
    """None if no held-out episode has a recorded outcome of its own."""
    criteria: Criteria
    bound: Bound
    cost: Cost
    closed_loop: ClosedLoop | None = None
    consistency: Consistency | None = None
    attacks: Attacks | None = None
    worst: tuple[PredictedStep, ...] = ()
    """Wrong predictions, the least similar first, one of each tool before a second one."""


class FidelityReport(Frozen):
    """The long report: the content of `report.json`."""

    env: str
    seed: int
    known_transitions: int
    """Number of transitions that the dream was given; of two settings, the larger one."""
    held_out: tuple[str, ...]
    """Ids of the trajectories whose steps were predicted."""
    contradicted: int
    """Number of held-out steps that were left out because another recording of the same step had another outcome."""
    measured: tuple[SettingReport, ...]
    differences: tuple[Paired, ...] = ()
    """The first two settings side by side."""

    @property
    def complete(self) -> bool:
        """True if nothing was interrupted."""
        return all(one.complete for one in self.measured)


def worst(calls: Iterable[Compared], *, explicit: bool) -> tuple[PredictedStep, ...]:
    """The wrong predictions, the least similar first, one of each tool before a second one."""
    wrong = sorted((call for call in calls if not call.is_right), key=lambda c: (c.similarity, c.trajectory, c.step))
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, Compared]] = []
    for call in wrong:
        ranked.append((seen[call.action.name], call))
        seen[call.action.name] += 1
    ranked.sort(key=lambda one: one[0])
    return tuple(in_short(call, explicit=explicit) for _, call in ranked[:SHOWN])


def in_short(call: Compared, *, explicit: bool) -> PredictedStep:
    """The step with long texts cut, and the changes of an explicit state."""
    got = call.predicted

    def changed(after: str) -> tuple[str, ...]:
        found = sorted(changes(call.before, after), key=lambda change: change[0]) if explicit else ()
        return tuple(f"{path} = {_cut(value)}" if value is not None else f"{path} gone" for path, value in found)

    return PredictedStep(
        trajectory=call.trajectory,
        step=call.step,
        action=_cut(call.action.canonical()),
        recorded=_cut(marked(call.recorded)),
        got=f"no answer: {call.failure}" if call.got is None else _cut(marked(call.got)),
        recorded_changes=changed(call.after),
        got_changes=changed(got.next_state) if got is not None else (),
    )


def marked(result: StepResult) -> str:
    """An answer as text; an error begins with `error: `."""
    return ("error: " if result.is_error else "") + result.observation


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"
