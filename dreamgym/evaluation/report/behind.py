"""The steps behind the numbers of a long report: the value of each predicted step for each cell of the tables.

The name of a cell consists of table, row and column, joined by `cell`. The number in a cell is the mean of the values
of its steps if `is_mean` says so; a count is the number of its steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dreamgym.evaluation.bound import is_outcome, reward_error
from dreamgym.evaluation.calibration import fitted, halves
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.criteria import JudgedStep, exact_scores
from dreamgym.evaluation.final_answers import EpisodeVerdict
from dreamgym.evaluation.report import CheckReport, PredictedStep, in_short
from dreamgym.evaluation.report.text import AGREEMENT
from dreamgym.evaluation.steps import bucket, field_score
from dreamgym.prices import Price
from dreamgym.types import Frozen, Tier

FILE = "behind.jsonl"
"""Name of the file beside `report.json`: one line per predicted step and setting."""


class StepBehind(Frozen):
    """One step, or the end of an episode, and its values."""

    setting: str
    shown: PredictedStep
    """Its `step` is 0 if this is the verdict on a whole episode."""
    values: dict[str, float]
    """Values by cell; the step does not count for cells that are not included."""


def cell(table: str, row: str, column: str) -> str:
    """The name of a cell of the tables of `dreamgym.evaluation.report.text.sections`."""
    return f"{table} | {row} | {column}"


def is_mean(name: str) -> bool:
    """True if the number in a cell is the mean of the values of its steps, and not computed from them otherwise."""
    others = ("AUROC", "Brier score of the base rate", "expected calibration error")
    return not name.endswith(" | kappa") and name not in {cell("confidence", row, "value") for row in others}


def behind(
    setting: str,
    calls: Sequence[Compared],
    *,
    explicit: bool,
    judged: Sequence[JudgedStep] = (),
    verdicts: Sequence[EpisodeVerdict] = (),
    price: Price | None = None,
    max_reward: float = 1.0,
    seed: int = 0,
) -> Iterator[StepBehind]:
    """The lines of one setting.

    Args:
        setting: its name.
        calls: the predicted calls.
        explicit: the environment has an explicit state.
        judged: the judge's scores of some of the steps.
        verdicts: the dream's verdicts on recorded episodes.
        price: price of the model's tokens; None: not known.
        max_reward: largest reward, for the bound.
        seed: seed of the report; it draws the steps that a calibration is fitted on.
    """
    scores = {(one.trajectory, one.step): one.scores for one in judged}
    confidence = _confidences(calls, seed=seed)
    for call in calls:
        key = (call.trajectory, call.step)
        values = {
            **_state(call, explicit=explicit),
            **_compared(call, explicit=explicit),
            **_answer(call),
            **_tool(call),
            **_criteria(call, scores.get(key), explicit=explicit),
            **confidence.get(key, {}),
            **_cost(call, price),
            cell("bound (Theorem 1)", "eps_R", ""): reward_error(call, max_reward) * max_reward,
            cell("bound (Theorem 1)", "eps_P", ""): float(not is_outcome(call)),
        }
        yield StepBehind(setting=setting, shown=in_short(call, explicit=explicit), values=values)
    for verdict in verdicts:
        yield StepBehind(setting=setting, shown=_of_episode(verdict), values=_final(verdict))


def behind_check(report: CheckReport) -> Iterator[StepBehind]:
    """The lines of the table of `dreamgym check`."""
    for call in report.calls:
        values = {
            "answered": call.got is not None,
            "errors": call.errors_agree,
            "exact": call.exact,
            "similarity": call.similarity,
            **({"schema": call.invalid is None} if call.has_schema else {}),
        }
        cells = {
            cell(AGREEMENT, row, column): float(value)
            for row in (call.action.name, "all")
            for column, value in values.items()
        }
        yield StepBehind(setting=report.setting, shown=in_short(call, explicit=False), values=cells)


def _state(call: Compared, *, explicit: bool) -> dict[str, float]:
    rows = [bucket(call, explicit=explicit), "all"]
    if call.predicted is None or not call.predicted.provenance.exact:
        rows.append("not recorded")
    values = {cell("state", row, "state exact"): float(call.state_is_exact) for row in rows}
    if explicit:
        values |= {cell("state", row, "F1 of changes"): field_score(call) for row in rows}
    return values


def _compared(call: Compared, *, explicit: bool) -> dict[str, float]:
    """The values of the table that compares two settings; each setting has its own column."""
    of_bucket = f"fields changed: {bucket(call, explicit=True)}" if explicit else bucket(call, explicit=False)
    values: dict[str, float] = {
        "answered": call.got is not None,
        "state exact": call.state_is_exact,
        "observation exact": call.exact,
        "observation similarity": call.similarity,
        "errors agree": call.errors_agree,
        "all of it right": call.is_right,
        f"state exact, {of_bucket}": call.state_is_exact,
    }
    values |= {"F1 of changes": field_score(call)} if explicit else {}
    return {cell("compared, on the same steps", row, ""): float(value) for row, value in values.items()}


def _answer(call: Compared) -> dict[str, float]:
    """The values of the table `answers`."""
    got, recorded = call.got, call.recorded
    values: dict[str, float] = {
        "answered": got is not None,
        "observation exact": call.exact,
        "observation similarity": call.similarity,
        "errors agree": call.errors_agree,
    }
    if recorded.is_error:
        values["invalid actions: refused"] = call.errors_agree
        values["invalid actions: in the same words"] = call.exact
        values["invalid actions: played along"] = got is not None and not got.is_error
    else:
        values["valid actions: refused"] = got is not None and got.is_error
    if recorded.reward <= 0 and not call.told_by_check:
        values["unrewarded steps: rewarded"] = got is not None and got.reward > 0
    predicted = (got is not None and got.reward > 0, got is not None and got.terminated, call.claimed is True)
    for name, was, is_predicted in zip(
        ("reward", "end", "task accomplished"),
        (recorded.reward > 0, recorded.terminated, call.accomplished is True),
        predicted,
        strict=True,
    ):
        if name == "reward" and call.told_by_check:
            continue
        values |= {f"{name}: precision": was} if is_predicted else {}
        values |= {f"{name}: recall": is_predicted} if was else {}
    if call.predicted is not None:
        origin = call.predicted.provenance
        values["end left open"] = origin.open_end
        if origin.judged is not None and origin.checked is not None:
            values["judge and check disagree"] = origin.judged != origin.checked
    tier = None if call.predicted is None else call.predicted.provenance.tier
    values |= {f"tier {one}": tier is one for one in Tier}
    return {cell("answers", row, "share"): float(value) for row, value in values.items()}


def _tool(call: Compared) -> dict[str, float]:
    values: dict[str, float] = {
        "observation exact": call.exact,
        "similarity": call.similarity,
        "errors agree": call.errors_agree,
        "state exact": call.state_is_exact,
    }
    return {cell("tools", call.action.name, column): float(value) for column, value in values.items()}


def _criteria(call: Compared, judged: dict[str, int] | None, *, explicit: bool) -> dict[str, float]:
    table, values = "the paper's four criteria, 0 to 2", {}
    for name, score in exact_scores(call, explicit=explicit).items():
        row = "freedom from hallucination" if name == "hallucination" else name.replace("_", " ")
        values[cell(table, row, "exact")] = score
        if judged is not None:
            values[cell(table, row, "exact (judged steps)")] = score
            values[cell(table, row, "judge")] = float(judged[name])
            values[cell(table, row, "kappa")] = float(abs(int(score + 0.5) - judged[name]))
    return values


def _confidences(calls: Sequence[Compared], *, seed: int) -> dict[tuple[str, int], dict[str, float]]:
    """The values of the table `confidence`, by trajectory and step."""
    both = halves(calls, seed=seed)
    if both is None:
        return {}
    ours, others = both
    calibration = fitted(ours, model="", env="")
    assert calibration is not None, "there are answers of the model"
    found = {
        (call.trajectory, call.step): {cell("confidence", "fitted on", "of"): float(call.is_right)} for call in ours
    }
    for call in others:
        given, right = calibration.confidence(call.features), float(call.is_right)
        values = {
            "right": right,
            "Brier score": (given - right) ** 2,
            "Brier score of the base rate": right,
            "expected calibration error": given,
            "AUROC": given,
        }
        found[call.trajectory, call.step] = {cell("confidence", row, "value"): value for row, value in values.items()}
    return found


def _cost(call: Compared, price: Price | None) -> dict[str, float]:
    if call.predicted is None:
        return {}
    used = call.predicted.provenance
    values = {
        "seconds": call.seconds,
        "prompt tokens": used.prompt_tokens,
        "of them cached": used.cached_tokens,
        "completion tokens": used.completion_tokens,
        "of them thinking": used.thinking_tokens,
        **({} if price is None else {"dollars": price.of(used)}),
        "asked of the model": used.tier in {Tier.MODEL, Tier.CACHE},
    }
    return {cell("cost of a step", row, "dream"): float(value) for row, value in values.items()}


def _of_episode(verdict: EpisodeVerdict) -> PredictedStep:
    words = {True: "success", False: "no success", None: "no verdict"}
    told = [f"judge: {words[verdict.judged]}"] if verdict.judged is not None else []
    told += [f"check: {words[verdict.checked]}"] if verdict.checked is not None else []
    return PredictedStep(
        trajectory=verdict.trajectory,
        step=0,
        action="the final answer",
        recorded=words[verdict.recorded],
        got=", ".join([words[verdict.rewarded], *told]),
    )


def _final(verdict: EpisodeVerdict) -> dict[str, float]:
    values: dict[str, bool] = {"decided": verdict.rewarded is not None}
    values |= {"rewarded: precision": verdict.recorded} if verdict.rewarded is True else {}
    values |= {"rewarded: recall": verdict.rewarded is True} if verdict.recorded else {}
    if verdict.judged is not None:
        values |= {"judge alone: precision": verdict.recorded} if verdict.judged else {}
        values |= {"judge alone: recall": verdict.judged} if verdict.recorded else {}
        if verdict.checked is not None:
            values["judge and check disagree"] = verdict.judged is not verdict.checked
    return {cell("final answers", row, "share"): float(value) for row, value in values.items()}
