"""Reports as text: the sections of the long report, for the terminal and for the page, and the whole short report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dreamgym.evaluation.bound import Bound
from dreamgym.evaluation.closed_loop import ClosedLoop
from dreamgym.evaluation.cost import Cost
from dreamgym.evaluation.criteria import Criteria
from dreamgym.evaluation.rates import Rate
from dreamgym.evaluation.report import CheckReport, FidelityReport, SettingReport, marked
from dreamgym.evaluation.report.tables import (
    Row,
    agreement_rows,
    aligned,
    attack_rows,
    calibration_rows,
    consistency_rows,
    cost_rows,
    criteria_rows,
    difference_rows,
    final_answer_rows,
    measure_rows,
    player_rows,
    points,
    rate,
    signed,
    state_rows,
    tool_rows,
)

AGREEMENT = "answers by tool"
LINE = 110
"""Most characters of a line of the short report."""
LINE_WITH_REASON = 500
"""Most characters of a line about a call without an answer: the reason often stands at its end."""
STATE_NOTES = (
    "Exact: the whole state after the call is the recorded one. F1: over the changed fields with their new values. "
    '"not recorded": the steps whose exact call was not recorded in this state.',
)
ANSWER_NOTES = (
    "Exact: error flag, structured content and text are the recorded ones. Similarity: F1 over words. Played along: "
    "accepted although reality refused. A step without an answer counts as wrong.",
)
FINAL_NOTE = "Recorded episodes whose success is known: the dream's verdict on their recorded steps and answer."
CONFIDENCE_NOTES = (
    "Only answers that were inferred, not repeated from a recording. Right: answer, state, reward and end are the "
    "recorded ones. Fitted on one half of the trajectories, measured on the other.",
)


class Number(NamedTuple):
    """A number in a sentence, and the cell of the section that has the steps or episodes behind it."""

    text: str
    row: str
    column: str = ""


Sentence = str | tuple[str | Number, ...]


class Section(NamedTuple):
    """A table and the sentences below it."""

    title: str
    rows: Sequence[Row] = ()
    notes: Sequence[Sentence] = ()


def plain(sentence: Sentence) -> str:
    """A sentence as text, without the cells of its numbers."""
    parts = (sentence,) if isinstance(sentence, str) else sentence
    return "".join(part if isinstance(part, str) else part.text for part in parts)


def as_text(report: FidelityReport) -> str:
    """All tables for a terminal."""
    lines = [headline(report)]
    for one in report.measured:
        lines += ["", f"== {one.setting}", *(line for section in sections(one) for line in _lines(section))]
    return "\n".join([*lines, *(_lines(difference_section(report)) if report.differences else ())])


def check_as_text(report: CheckReport) -> str:
    """The table, and each differing answer in a few lines."""
    lines = [check_headline(report), "", *aligned(agreement_section(report).rows)]
    differing = [call for call in report.calls if not call.exact]
    if differing:
        lines += ["", f"{len(differing)} of {len(report.calls)} answers differ:"]
    for call in differing:
        shown = [
            f"  {call.trajectory} step {call.step}: {call.action.canonical()}",
            f"      recorded  {marked(call.recorded)}",
            f"      got       {marked(call.got) if call.got else 'no answer: ' + str(call.failure)}",
            *([f"      invalid   {call.invalid}"] if call.invalid else ()),
        ]
        in_one_line = (line.replace("\n", " ⏎ ") for line in shown)
        most = LINE if call.got else LINE_WITH_REASON
        lines += [line if len(line) <= most else f"{line[: most - 1]}…" for line in in_one_line]
    return "\n".join(lines)


def check_headline(report: CheckReport) -> str:
    """One line: what answered, and the numbers of held-out and known trajectories."""
    known = f"{len(report.known)} known with {report.known_transitions} transitions"
    return f"{report.env} against {report.setting}: {len(report.held_out)} trajectories held out, {known}" + (
        "" if report.complete else "; interrupted, the results are partial"
    )


def agreement_section(report: CheckReport) -> Section:
    """The table of `dreamgym check`."""
    return Section(AGREEMENT, agreement_rows(report.total, report.tools), ["In brackets 95 % intervals."])


def headline(report: FidelityReport) -> str:
    """One line: the environment, and the numbers of predicted steps and of known transitions."""
    first = report.measured[0].steps
    return (
        f"{report.env}: {first.steps} steps of {first.trajectories} held-out trajectories predicted, each after what "
        f"was recorded before it; {report.known_transitions} transitions known; seed {report.seed}; 95 % intervals."
        + (
            f" {report.contradicted} more held-out steps are left out: the same step was also recorded with another "
            "outcome."
            if report.contradicted
            else ""
        )
        + ("" if report.complete else " Interrupted: the results are partial.")
    )


def sections(one: SettingReport) -> list[Section]:
    """The tables of one setting."""
    found = [
        Section("state", state_rows(one.steps), STATE_NOTES),
        Section("answers", measure_rows(one.steps), ANSWER_NOTES),
        Section("tools", tool_rows(one.steps)),
    ]
    if one.final_answers is not None:
        told = one.final_answers
        is_drawn = told.known is not None and told.episodes < told.known
        drawn = f" {told.episodes} of {told.known}, drawn at random." if is_drawn else ""
        found.append(Section("final answers", final_answer_rows(told), (f"{FINAL_NOTE}{drawn}",)))
    if one.calibration is not None:
        found.append(Section("confidence", calibration_rows(one.calibration), CONFIDENCE_NOTES))
    found += [
        Section("the paper's four criteria, 0 to 2", criteria_rows(one.criteria), criteria_notes(one.criteria)),
        Section("bound (Theorem 1)", (), bound_notes(one.bound)),
        Section("cost of a step", cost_rows(one.cost), cost_notes(one.cost)),
    ]
    if one.closed_loop is not None:
        found.append(
            Section(
                "closed loop",
                player_rows(one.closed_loop) if one.closed_loop.tasks else (),
                loop_notes(one.closed_loop),
            )
        )
    if one.consistency is not None and one.consistency.reads:
        found.append(Section("reads after writes", consistency_rows(one.consistency)))
    if one.attacks is not None:
        found.append(Section("reward attacks", attack_rows(one.attacks)))
    return found


def difference_section(report: FidelityReport) -> Section:
    """The first two settings side by side."""
    one, other = (str(each.setting) for each in report.measured[:2])
    return Section(
        "compared, on the same steps",
        difference_rows(one, other, report.differences),
        ["Intervals are for other trajectories; differences are paired."],
    )


def _lines(section: Section) -> list[str]:
    return ["", section.title, *(f"  {line}" for line in [*aligned(section.rows), *map(plain, section.notes)])]


def criteria_notes(one: Criteria) -> list[Sentence]:
    """How the criteria are measured, and who judged."""
    notes: list[Sentence] = [
        "Exact, in this order: F1 of the changes; as many fields changed as in reality; share of the recorded facts "
        "that the answer has; share of its words that are grounded, 0 if error, reward or end are wrong."
    ]
    if one.distinct is not None:
        notes.append(f"Distinct predicted outcomes over distinct recorded ones: {one.distinct:.2f}.")
    if one.judge:
        judged = Number(f"{one.judged} steps", "causal consistency", "exact (judged steps)")
        notes.append((f"Judge: {one.judge}, ", judged, "; kappa has quadratic weights."))
    return notes


def loop_notes(one: ClosedLoop) -> list[Sentence]:
    """The closed loop over all players."""
    notes: list[Sentence] = [
        (
            f"{one.tasks} tasks; left out: {one.unknown_to_players} that a player does not know, {one.undecided} whose "
            "success cannot be decided. Dreamed calls made again in reality: ",
            Number(rate(one.replay.valid), "all", "dreamed calls valid"),
            " of the accepted ones are valid, success ",
            Number(rate(one.replay.dream_success), "all", "success in the dream"),
            " in the dream, ",
            Number(rate(one.replay.success), "all", "dreamed calls valid"),
            " replayed.",
        ),
        "Known: episodes whose calls were all answered and whose success can be decided; only these count for success.",
    ]
    if one.real_fault is not None:
        notes.append(f"The real environment answered no call: {one.real_fault}")
    if one.correlation is not None:
        notes.append(f"Rank correlation of the players' success, dream and reality: {points(one.correlation)}.")
    if one.play_along is not None:
        notes.append(
            (
                "Play-along: success of players that are bad on purpose, dream minus reality, in points: ",
                Number(signed(one.play_along.difference), "all", "success in the dream"),
                ". Share of the calls refused by reality that the dream accepts: ",
                Number(rate(one.play_along.accepted_wrongly), "all", "dreamed calls valid"),
                ".",
            )
        )
    return notes


def bound_notes(one: Bound) -> list[Sentence]:
    """The bound in sentences."""

    def interval(value: Rate) -> str:
        return f"{value.mean:.4f} [{value.low:.4f}, {value.high:.4f}]"

    lines: list[Sentence] = [
        (
            "eps_R ",
            Number(interval(one.eps_reward), "eps_R"),
            ", eps_P ",
            Number(interval(one.eps_transition), "eps_P"),
            ": averages over the recorded steps. The theorem takes the largest over all states and actions, which "
            "cannot be observed.",
        ),
        f"gamma {one.gamma:g}, R_max {one.max_reward:g}, KL {one.divergence:g}. "
        f"Lemma 1: |J - J_hat| <= {one.at_mean.model_error:.4g} (at the upper ends {one.at_upper.model_error:.4g}). "
        f"Theorem 1: the gain in the dream less {one.at_mean.trust_region:.4g} for the policy step less "
        f"{2 * one.at_mean.model_error:.4g} for the model (at the upper ends {2 * one.at_upper.model_error:.4g}).",
    ]
    if one.vacuous:
        lines.append(
            f"vacuous: the terms taken off, {one.at_mean.lost:.4g}, are no less than the largest possible return, "
            f"{one.largest_return:.4g}. The bound would be informative with eps_P below {one.informative_below:.2g}."
        )
    else:
        lines.append(
            f"not vacuous: the terms taken off, {one.at_mean.lost:.4g}, are less than the largest possible return, "
            f"{one.largest_return:.4g}; but it guarantees nothing, because the errors are averages and not the "
            "largest ones."
        )
    return lines


def cost_notes(one: Cost) -> list[Sentence]:
    """Dream and reality compared in time and money; nothing if nothing was answered."""
    return [_time_note(one), _money_note(one)] if one.steps else []


def _time_note(one: Cost) -> Sentence:
    real, limit = one.prices.real_seconds, one.prices.real_parallel
    if real is None:
        return "Time: the seconds of a real step are not known; give them with --cost real_seconds=SECONDS."
    there = f" in the dream and {real:.3g} s in reality"
    if limit is not None:
        there += f", at most {limit} sessions at once there"
    if one.faster_from_sessions is None:
        verdict = "the dream is never faster, as long as reality runs as many sessions at once."
    elif one.faster_from_sessions == 1:
        verdict = "the dream is faster from the first session on."
    else:
        first = one.faster_from_sessions
        verdict = f"the dream is faster from {first} parallel sessions on, if its steps take no longer then"
        verdict += " and all of reality's are in use."
    return "Time: a step takes ", Number(f"{one.seconds:.3g} s", "seconds", "dream"), f"{there}: {verdict}"


def _money_note(one: Cost) -> Sentence:
    if one.money is None or one.prices.real_price is None:
        return "Money: not compared; give the price of the model (DREAMGYM_PRICE) and --cost real_price=DOLLARS."
    if one.cheaper_from_steps is None:
        verdict = ": the dream is never cheaper."
    else:
        verdict = (
            f". With the {one.known_transitions} real steps that the dream is made of, it is cheaper from "
            f"{one.cheaper_from_steps} dreamed steps on."
        )
    dreamed = Number(f"{one.money:.3g} dollars", "dollars", "dream")
    return "Money: a step costs ", dreamed, f" in the dream and {one.prices.real_price:.3g} in reality{verdict}"
