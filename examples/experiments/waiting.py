"""Print how long the optimiser waits for episodes in the arms of an experiment, as a share of the update time.

    python examples/experiments/waiting.py runs/staleness "GRPO dream" "GRPO dream, 4 updates behind"

The seconds depend on the machine and on its load during the run, so compare only arms of one run.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from dreamgym.evaluation.rates import mean_over_seeds
from dreamgym.runs.experiment.plan import Arm, name_of
from dreamgym.training.record import read_record


def waiting(folder: Path) -> tuple[float, float]:
    """Share of the time of all updates but the first that is waiting for episodes, and mean seconds of an update."""
    lines = [line for line in read_record(folder / "metrics.jsonl") if "waited_s" in line][1:]
    waited, taken = (sum(float(str(line[name])) for line in lines) for name in ("waited_s", "update_s"))
    return waited / taken, taken / len(lines)


def table(run: Path, arms: list[str]) -> Iterator[str]:
    """One row for each arm."""
    yield "| arm | seeds | the optimiser waits | seconds an update |"
    yield "|---|---|---|---|"
    for arm in arms:
        found = [
            waiting(folder) for seed in sorted(run.glob("seed-*")) if (folder := seed / name_of(Arm(name=arm))).exists()
        ]
        share, seconds = (mean_over_seeds(some) for some in zip(*found, strict=True))
        cells = [f"{share.mean:.0%}", f"{seconds.mean:.2f}"]
        if len(found) > 1:  # a single seed has no interval
            cells[0] += f" [{100 * share.low:.0f}, {100 * share.high:.0f}]"
            cells[1] += f" [{seconds.low:.2f}, {seconds.high:.2f}]"
        yield f"| {arm} | {len(found)} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="run folder of an experiment")
    parser.add_argument("arms", nargs="+", help="names of its arms")
    asked = parser.parse_args()
    print("\n".join(table(asked.run, asked.arms)))


if __name__ == "__main__":
    main()
