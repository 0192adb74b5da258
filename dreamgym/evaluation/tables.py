"""The tables of a report: one list of sections for the terminal and for the page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dreamgym.evaluation.attacks import Attacks
from dreamgym.evaluation.bound import said
from dreamgym.evaluation.calibrating import Calibrated
from dreamgym.evaluation.closed_loop import ClosedLoop
from dreamgym.evaluation.consistency import Consistency
from dreamgym.evaluation.cost import Cost
from dreamgym.evaluation.criteria import Criteria
from dreamgym.evaluation.finals import Finals
from dreamgym.evaluation.rates import Rate, shares
from dreamgym.evaluation.report import Measured, Report
from dreamgym.evaluation.steps import StepFidelity

Row = tuple[str, ...]

STATE_NOTES = (
    "Exact: the whole state after the call is the recorded one. F1: over the changed fields with their new values. "
    '"not recorded": the steps that no recording answers word for word in this very state.',
)
ANSWER_NOTES = (
    "Exact: error flag, structured content and text are the recorded ones. Similarity: F1 over words. Played along: "
    "accepted although reality refused. A step without an answer agrees with nothing.",
)
FINAL_NOTES = (
    "Recorded episodes whose success is known: what the dream would say of their recorded steps and answer.",
)
CONFIDENCE_NOTES = (
    "Of the model's answers; right: answer, state, reward and end are the recorded ones. Fitted on one half of the "
    "trajectories, measured on the other.",
)


class Section(NamedTuple):
    """A table and what is to be said of it."""

    title: str
    rows: Sequence[Row] = ()
    notes: Sequence[str] = ()


def as_text(report: Report) -> str:
    """All tables for a terminal."""
    lines = [headline(report)]
    for one in report.measured:
        lines += ["", f"== {one.setting}", *(line for section in sections(one) for line in _lines(section))]
    return "\n".join([*lines, *(_lines(difference_section(report)) if report.differences else ())])


def headline(report: Report) -> str:
    """What was measured on what."""
    first = report.measured[0].steps
    return (
        f"{report.env}: {first.steps} steps of {first.trajectories} held-out trajectories predicted, each after what "
        f"was recorded before it; {report.known_transitions} transitions known; seed {report.seed}; 95 % intervals."
        + (
            f" {report.contradicted} more held-out steps are left out: the same was recorded with another outcome."
            if report.contradicted
            else ""
        )
        + ("" if report.complete else " Interrupted: this is what there is.")
    )


def sections(one: Measured) -> list[Section]:
    """The tables of one setting."""
    found = [
        Section("state", state_rows(one.steps), STATE_NOTES),
        Section("answers", measure_rows(one.steps), ANSWER_NOTES),
        Section("tools", tool_rows(one.steps)),
    ]
    if one.finals is not None:
        found.append(Section("final answers", final_rows(one.finals), FINAL_NOTES))
    if one.calibration is not None:
        found.append(Section("confidence", calibration_rows(one.calibration), CONFIDENCE_NOTES))
    found += [
        Section("the paper's four criteria, 0 to 2", criteria_rows(one.criteria), _criteria_notes(one.criteria)),
        Section("bound (Theorem 1)", (), said(one.bound)),
        Section("cost of a step", cost_rows(one.cost), one.cost.said),
    ]
    if one.closed_loop is not None:
        found.append(
            Section(
                "closed loop",
                player_rows(one.closed_loop) if one.closed_loop.tasks else (),
                _loop_notes(one.closed_loop),
            )
        )
    if one.consistency is not None and one.consistency.reads:
        found.append(Section("reads after writes", consistency_rows(one.consistency)))
    if one.attacks is not None:
        found.append(Section("reward attacks", attack_rows(one.attacks)))
    return found


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
    """Everything else of the step level, one measure a row."""
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
        ("end left open", steps.open_ends),
        ("task accomplished: precision", steps.accomplished.precision),
        ("task accomplished: recall", steps.accomplished.recall),
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


def final_rows(one: Finals) -> list[Row]:
    """The verdicts on recorded episodes."""
    rows = [
        ("decided", one.decided),
        ("rewarded: precision", one.reward.precision),
        ("rewarded: recall", one.reward.recall),
        ("judge alone: precision", one.judge.precision),
        ("judge alone: recall", one.judge.recall),
        ("judge and check disagree", one.disagreed),
    ]
    return [("measure", "of", "share"), *((name, str(value.n), rate(value)) for name, value in rows)]


def calibration_rows(one: Calibrated) -> list[Row]:
    """How good the confidences are."""
    return [
        ("measure", "of", "value"),
        ("fitted on", str(one.fitted_on), ""),
        ("right", str(one.measured_on), rate(one.right)),
        ("Brier score", str(one.measured_on), f"{one.brier.mean:.3f} [{one.brier.low:.3f}, {one.brier.high:.3f}]"),
        ("Brier score of the base rate", str(one.measured_on), f"{one.brier_of_base_rate:.3f}"),
        ("expected calibration error", str(one.measured_on), f"{one.ece:.3f}"),
        ("AUROC", str(one.measured_on), "-" if one.auroc is None else f"{one.auroc:.3f}"),
    ]


def criteria_rows(one: Criteria) -> list[Row]:
    """The four criteria, by truth and by the judge."""
    names = {"hallucination": "freedom from hallucination"}
    head = ("criterion", "exact", *(["exact (judged steps)", "judge", "kappa"] if one.judge else []))
    rows = [head]
    for name, criterion in one.criteria.items():
        judged = (criterion.exact_of_judged, criterion.judged, criterion.kappa) if one.judge else ()
        cells = ("-" if value is None else points(value) for value in judged)
        rows.append((names.get(name, name.replace("_", " ")), points(criterion.exact), *cells))
    return rows


def cost_rows(one: Cost) -> list[Row]:
    """Dream and reality."""

    def cell(value: float | None, unit: str = "") -> str:
        return "not known" if value is None else f"{value:.4g}{unit}"

    return [
        ("", "dream", "reality"),
        ("seconds", cell(one.seconds), cell(one.real_seconds)),
        ("prompt tokens", cell(one.prompt_tokens), ""),
        ("completion tokens", cell(one.completion_tokens), ""),
        ("money", cell(one.money), cell(one.real_price)),
        ("asked of the model", f"{one.asked} of {one.steps}", ""),
        ("sessions at once", str(one.at_a_time), cell(one.real_parallel)),
    ]


def player_rows(one: ClosedLoop) -> list[Row]:
    """One row per player."""
    head = (
        "player",
        "tasks",
        "success in the dream",
        "in reality",
        "difference",
        "dreamed calls valid",
        "same answer",
        "answered by",
    )
    return [
        head,
        *(
            (
                f"{each.player} (bad on purpose)" if each.bad else each.player,
                str(each.real.n),
                rate(each.dream),
                rate(each.real),
                "-" if each.difference is None else signed(each.difference),
                rate(each.replay.valid),
                rate(each.replay.same),
                shares(each.tiers),
            )
            for each in one.players
        ),
    ]


def consistency_rows(one: Consistency) -> list[Row]:
    """Long sessions."""
    return [
        ("measure", "of", "share"),
        ("sessions answered to their end", str(one.sessions), f"{one.sessions - one.unanswered}"),
        ("reads as in reality", str(one.agree.n), rate(one.agree)),
        ("reads that contradict nothing", str(one.consistent.n), rate(one.consistent)),
        *(
            (f"reads as in reality after {writes} writes", str(each.n), rate(each))
            for writes, each in enumerate(one.agree_by_writes)
        ),
    ]


def attack_rows(one: Attacks) -> list[Row]:
    """One row per kind of attack."""
    return [
        ("attack", "episodes", "rewarded", "claims taken away", "unanswered"),
        *(
            (
                each.kind.value.replace("_", " "),
                str(each.episodes),
                rate(each.rewarded),
                str(each.taken_away),
                str(each.unanswered),
            )
            for each in one.kinds
        ),
        ("all", str(sum(each.episodes for each in one.kinds)), rate(one.rewarded), "", ""),
    ]


def difference_section(report: Report) -> Section:
    """The first two settings side by side."""
    one, other = (str(each.setting) for each in report.measured[:2])
    rows: list[Row] = [("measure", "steps", f"A: {one}", f"B: {other}", "B - A, in points")]
    rows += [
        (each.measure, str(each.difference.n), rate(each.one), rate(each.other), signed(each.difference))
        for each in report.differences
    ]
    return Section(
        "compared, on the same steps", rows, ["Intervals: bootstrap over trajectories; differences are paired."]
    )


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text."""
    table = [list(row) for row in rows]
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def rate(value: Rate) -> str:
    """A share with its interval, a dash where there is nothing to share."""
    if not value.n:
        return "-"
    return f"{100 * value.mean:.1f} % [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def signed(value: Rate) -> str:
    """A difference of shares in points."""
    return f"{100 * value.mean:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]" if value.n else "-"


def points(value: Rate) -> str:
    """A mean that is no share."""
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]" if value.n else "-"


def _lines(section: Section) -> list[str]:
    return ["", section.title, *(f"  {line}" for line in [*aligned(section.rows), *section.notes])]


def _criteria_notes(one: Criteria) -> list[str]:
    notes = [
        "Exact, in this order: F1 of the changes; as many fields changed as in reality; share of the recorded facts "
        "that the answer has; share of its words that are grounded, none where error, success or end are wrong."
    ]
    if one.distinct is not None:
        notes.append(f"Distinct predicted outcomes over distinct recorded ones: {one.distinct:.2f}.")
    if one.judge:
        notes.append(f"Judge: {one.judge}, {one.judged} steps; kappa has quadratic weights.")
    return notes


def _loop_notes(one: ClosedLoop) -> list[str]:
    notes = [
        f"{one.tasks} tasks; {one.unknown_to_players} left out that a player does not know, {one.untold} of which "
        "nobody can tell whether they succeeded. "
        f"Dreamed calls made again in reality: {rate(one.replay.valid)} of the accepted ones are valid, success "
        f"{rate(one.replay.dream_success)} in the dream, {rate(one.replay.success)} replayed."
    ]
    if one.correlation is not None:
        notes.append(f"Rank correlation of the players' success, dream and reality: {points(one.correlation)}.")
    if one.play_along is not None:
        notes.append(
            f"Play-along: success of players that are bad on purpose, dream minus reality, in points: "
            f"{signed(one.play_along.difference)}. Of the calls that reality refuses the dream accepts "
            f"{rate(one.play_along.accepted_wrongly)}."
        )
    return notes
