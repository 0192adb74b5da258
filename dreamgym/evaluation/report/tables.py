"""The tables of a report as rows of cells, and rows as lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dreamgym.evaluation.attacks import Attacks
from dreamgym.evaluation.calibration import Calibrated
from dreamgym.evaluation.calls import Agreement
from dreamgym.evaluation.closed_loop import ClosedLoop
from dreamgym.evaluation.consistency import Consistency
from dreamgym.evaluation.cost import Cost
from dreamgym.evaluation.criteria import Criteria
from dreamgym.evaluation.differences import Paired
from dreamgym.evaluation.final_answers import FinalAnswers
from dreamgym.evaluation.rates import Rate, shares
from dreamgym.evaluation.steps import StepFidelity

Row = tuple[str, ...]


def agreement_rows(total: Agreement, tools: dict[str, Agreement]) -> list[Row]:
    """One row per tool, and one for all."""
    rows: list[Row] = [("tool", "calls", "answered", "schema", "errors", "exact", "similarity")]
    for name, one in [*tools.items(), ("all", total)]:
        rates = (one.answered, one.valid, one.errors, one.exact, one.similarity)
        rows.append((name, str(one.calls), *(rate(value, digits=0) for value in rates)))
    return rows


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
    """All other measures of single steps, one per row."""
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
        ("unrewarded steps: rewarded", steps.false_rewards),
        ("reward: precision", steps.reward.precision),
        ("reward: recall", steps.reward.recall),
        ("end: precision", steps.termination.precision),
        ("end: recall", steps.termination.recall),
        ("end left open", steps.open_ends),
        ("task accomplished: precision", steps.accomplished.precision),
        ("task accomplished: recall", steps.accomplished.recall),
        ("judge and check disagree", steps.disagreed),
        *((f"tier {tier}", part) for tier, part in steps.tiers.items()),
    ]
    return [("measure", "of", "share"), *((name, str(value.n), rate(value)) for name, value in rows)]


def tool_rows(steps: StepFidelity) -> list[Row]:
    """One row per tool."""
    return [
        ("tool", "steps", "state exact", "observation exact", "similarity", "errors agree"),
        *(
            (name, str(one.calls), *("-" if each is None else rate(each) for each in rates))
            for name, one in steps.tools.items()
            for rates in [(one.state, one.exact, one.similarity, one.errors)]
        ),
    ]


def final_answer_rows(one: FinalAnswers) -> list[Row]:
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
    """Quality of the confidences."""
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
    """The four criteria: exact scores, and those of the judge."""
    names = {"hallucination": "freedom from hallucination"}
    head = ("criterion", "exact", *(["exact (judged steps)", "judge", "kappa"] if one.judge else []))
    rows = [head]
    for name, criterion in one.criteria.items():
        judged = (criterion.exact_of_judged, criterion.judged, criterion.kappa) if one.judge else ()
        cells = ("-" if value is None else points(value) for value in judged)
        rows.append((names.get(name, name.replace("_", " ")), points(criterion.exact), *cells))
    return rows


def cost_rows(one: Cost) -> list[Row]:
    """Cost of a step in dream and reality."""

    def cell(value: float | None, unit: str = "") -> str:
        return "not known" if value is None else f"{value:.4g}{unit}"

    return [
        ("", "dream", "reality"),
        ("seconds", cell(one.seconds), cell(one.prices.real_seconds)),
        ("prompt tokens", cell(one.prompt_tokens), ""),
        *([("of them cached", cell(one.cached_tokens), "")] if one.cached_tokens else []),
        ("completion tokens", cell(one.completion_tokens), ""),
        *([("of them thinking", cell(one.thinking_tokens), "")] if one.thinking_tokens else []),
        ("dollars", cell(one.money), cell(one.prices.real_price)),
        ("asked of the model", f"{one.asked} of {one.steps}", ""),
        (
            "sessions at once",
            "not always the same" if one.at_a_time is None else str(one.at_a_time),
            cell(one.prices.real_parallel),
        ),
    ]


def player_rows(one: ClosedLoop) -> list[Row]:
    """One row per player."""
    head = (
        "player",
        "tasks",
        "known: dream, reality",
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
                str(len(each.outcomes)),
                f"{each.dream.n}, {each.real.n}",
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
    """Measures of the reads in long sessions."""
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
                each.kind.value,
                str(each.episodes),
                rate(each.rewarded),
                str(each.taken_away),
                str(each.unanswered),
            )
            for each in one.kinds
        ),
        ("all", str(sum(each.episodes for each in one.kinds)), rate(one.rewarded), "", ""),
    ]


def difference_rows(one: str, other: str, differences: Sequence[Paired]) -> list[Row]:
    """Two settings side by side."""
    return [
        ("measure", "steps", f"A: {one}", f"B: {other}", "B - A, in points"),
        *(
            (each.measure, str(each.difference.n), rate(each.one), rate(each.other), signed(each.difference))
            for each in differences
        ),
    ]


def aligned(rows: Iterable[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text."""
    table = [list(row) for row in rows]
    if not table:
        return []
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells, the first of them the head, as lines of a Markdown table."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]


def rate(value: Rate, *, digits: int = 1) -> str:
    """A share in percent with its interval; a dash if it has no values."""
    if not value.n:
        return "-"
    mean, low, high = (f"{100 * number:.{digits}f}" for number in (value.mean, value.low, value.high))
    return f"{mean} % [{low}, {high}]"


def signed(value: Rate) -> str:
    """A difference of shares in points, with its sign; a dash if it has no values."""
    return f"{100 * value.mean:+z.1f} [{100 * value.low:+z.1f}, {100 * value.high:+z.1f}]" if value.n else "-"


def points(value: Rate) -> str:
    """A mean that is not a share, with its interval."""
    return f"{value.mean:.2f} [{value.low:.2f}, {value.high:.2f}]" if value.n else "-"
