"""What `dreamgym fidelity` has measured, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dreamgym.evaluation import Rate
from dreamgym.fidelity.setting import Setting
from dreamgym.fidelity.steps import StepFidelity
from dreamgym.types import Frozen


class Report(Frozen):
    """One setting on the held-out steps; `--json` prints it."""

    env: str
    setting: Setting
    model: str
    """As the provenance of its answers has it."""
    seed: int
    known_transitions: int
    """That the dream was given."""
    held_out: tuple[str, ...]
    """Ids of the trajectories whose steps were predicted."""
    contradicted: int
    """Held-out steps that were left out, since another recording of the same had another outcome."""
    complete: bool
    """False where it was interrupted."""
    steps: StepFidelity


Row = tuple[str, ...]


def step_table(report: Report) -> list[str]:
    """The step level as lines of text."""
    steps = report.steps
    lines = [
        f"{report.env}, {report.setting}: {steps.steps} held-out steps of {steps.trajectories} trajectories, "
        f"{report.known_transitions} transitions known, seed {report.seed}"
        + ("" if report.complete else "; interrupted, this is what there is"),
    ]
    if report.contradicted:
        lines.append(f"{report.contradicted} more steps are left out: the same was recorded with another outcome.")
    return [*lines, "", *aligned(state_rows(steps)), "", *aligned(measure_rows(steps)), "", *aligned(tool_rows(steps))]


def state_rows(steps: StepFidelity) -> list[Row]:
    """State match by the number of changed fields."""
    explicit = steps.state["all"].fields is not None
    head = (
        "fields changed" if explicit else "the state",
        "steps",
        "state exact",
        *(["F1 of changes"] if explicit else []),
    )
    named = [*steps.state.items(), ("not recorded", steps.unseen)]
    return [
        head,
        *(
            (name, str(match.exact.n), rate(match.exact), *([rate(match.fields)] if match.fields is not None else []))
            for name, match in named
        ),
    ]


def measure_rows(steps: StepFidelity) -> list[Row]:
    """Everything else, one measure a row."""
    refusals = steps.refusals
    rows: list[tuple[str, Rate]] = [
        ("answered", steps.answered),
        ("observation exact", steps.observation),
        ("observation similarity", steps.similarity),
        ("errors agree", steps.errors),
        ("invalid actions: refused", refusals.refused),
        ("invalid actions: in the same words", refusals.same_words),
        ("invalid actions: played along", refusals.played_along),
        ("valid actions: refused", refusals.too_strict),
        ("reward: precision", steps.reward.precision),
        ("reward: recall", steps.reward.recall),
        ("end: precision", steps.termination.precision),
        ("end: recall", steps.termination.recall),
        ("judge and check disagree", steps.claims.disagreed),
        *((f"tier {tier}", part) for tier, part in steps.tiers.items()),
    ]
    return [("measure", "of", "share"), *((name, str(value.n), rate(value)) for name, value in rows)]


def tool_rows(steps: StepFidelity) -> list[Row]:
    """One row per tool."""
    return [
        ("tool", "steps", "state exact", "observation exact", "similarity", "errors agree"),
        *(
            (name, str(one.steps), *map(rate, (one.state, one.observation, one.similarity, one.errors)))
            for name, one in steps.tools.items()
        ),
    ]


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text."""
    table = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def rate(value: Rate) -> str:
    """A share with its interval, a dash where there is nothing to share."""
    if not value.n:
        return "-"
    return f"{100 * value.mean:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]"
