"""Measure what each part of the experience model is worth: compare settings with the first, on equal held-out steps.

    python benchmarks/studies/ablation.py shop-folder/ --limit 40 --setting local --setting "local without state"

Every cell comes from `dreamgym fidelity` with two settings. Predictions are kept in `--out`, and a second start
continues from there.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from dreamgym.evaluation.differences import Paired
from dreamgym.evaluation.rates import Rate
from dreamgym.evaluation.report import FidelityReport, SettingReport
from dreamgym.evaluation.setting import setting
from dreamgym.evaluation.steps import Detection
from dreamgym.runs.console import say
from dreamgym.runs.fidelity import fidelity

HEAD = (
    "setting",
    "answered",
    "state right",
    "against the first",
    "answer right",
    "refused as recorded",
    "played along",
    "false rewards",
    "rewards found",
    "false ends",
    "ends found",
    "s per step",
)


def measured(one: str, other: str, given: argparse.Namespace) -> FidelityReport:
    """Measure both settings on the same steps."""
    print(f"{time.strftime('%H:%M:%S')} {other}", file=sys.stderr, flush=True)
    report = fidelity(
        given.env,
        [one, other],
        trajectories=given.trajectories,
        held_out=given.held_out,
        limit=given.limit,
        known=given.known,
        out=given.out,
        seed=given.seed,
        say=say,
    )
    if not report.complete:
        sys.exit("interrupted: run the same command again to continue")
    return report


def table(settings: Sequence[str], given: argparse.Namespace) -> Iterator[str]:
    """Lines of the table, with one row per setting; the first setting has no difference."""
    yield f"| {' | '.join(HEAD)} |"
    yield "|---" * len(HEAD) + "|"
    first, *others = settings
    reports = {other: measured(first, other, given) for other in others}
    base = next(iter(reports.values())).measured[0]
    yield row(base, None)
    for report in reports.values():
        yield row(report.measured[1], next(pair for pair in report.differences if pair.measure == "state exact"))


def row(one: SettingReport, pair: Paired | None) -> str:
    """The row of one setting, with its measures of single steps."""
    steps = one.steps
    difference = "" if pair is None else points(pair.difference)
    in_steps = steps.reward.recall.n > 0  # otherwise the task's own check decides on success
    cells = (
        share(steps.answered),
        share(steps.state["all"].exact),
        difference,
        share(steps.observation),
        share(steps.refusals.refused),
        share(steps.refusals.played_along),
        *foreseen(steps.reward if in_steps else steps.accomplished),
        *foreseen(steps.termination),
        f"{steps.seconds / max(1, steps.steps):.2f}",
    )
    name = str(one.setting).replace(one.setting.model, Path(one.setting.model).name, 1)
    return f"| {name} | {' | '.join(cells)} |"


def foreseen(event: Detection) -> tuple[str, str]:
    """Share of the predicted events that did not happen, and share of the events that were predicted."""
    right = event.precision
    return share(Rate(mean=1 - right.mean, low=1 - right.high, high=1 - right.low, n=right.n)), share(event.recall)


def share(rate: Rate) -> str:
    return f"{100 * rate.mean:.0f} [{100 * rate.low:.0f}, {100 * rate.high:.0f}] ({rate.n})" if rate.n else "-"


def points(rate: Rate) -> str:
    return f"{100 * rate.mean:+.0f} [{100 * rate.low:+.0f}, {100 * rate.high:+.0f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("env", help="as `dreamgym fidelity` takes it")
    parser.add_argument("--setting", action="append", required=True, help='as "MODEL without state,checks -k 0"')
    parser.add_argument("--trajectories", type=Path, help="JSONL of recordings; default: the folder's")
    parser.add_argument("--held-out", type=float, default=0.3, help="share of the trajectories; default: 0.3")
    parser.add_argument("--limit", type=int, help="held-out steps per setting; default: all")
    parser.add_argument("--known", type=int, help="number of known transitions; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs") / "ablation")
    given = parser.parse_args()
    settings = [str(setting(text)) for text in given.setting]
    if len(settings) < 2:
        parser.error("expected at least two settings: the others are compared with the first one")
    lines = list(table(settings, given))
    print("\n".join(lines))
    print("\nShares in percent with 95 % intervals and (n); 'against the first' in points, paired, over trajectories.")


if __name__ == "__main__":
    main()
