"""Measure how true a dream is by the number of recorded transitions: with retrieval, a fitted model, and both.

    python benchmarks/studies/recordings_curve.py coin --trajectories coin.jsonl --known 250 --known 1000 --out runs/c

A fifth of the trajectories is held out in all rows. Of the rest, `--known` transitions are known, a smaller number
being part of a larger one. `dreamgym fit` makes the fits, and `ablation.py` in this folder the rows. Results are kept.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from dreamgym.environment import read_jsonl
from dreamgym.evaluation.material import first_known
from dreamgym.recordings.splits import split
from dreamgym.types import Trajectory

DREAMGYM = str(Path(sys.executable).with_name("dreamgym"))
ABLATION = Path(__file__).with_name("ablation.py")


def write(file: Path, trajectories: Sequence[Trajectory]) -> None:
    file.write_text("".join(f"{one.model_dump_json()}\n" for one in trajectories), encoding="utf-8")


def fit(env: str, known: Path, out: Path, shown: int, steps: int) -> None:
    """Fit a tiny model that is shown `shown` recorded transitions; keep one that exists."""
    if out.is_dir():
        return
    command = [DREAMGYM, "fit", env, "--base", f"tiny -k {shown}", "--trajectories", str(known)]
    command += ["--steps", str(steps), "--card-steps", "0", "--out", str(out), "--resume"]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("env", help="as `dreamgym fit` takes it")
    parser.add_argument("--trajectories", type=Path, required=True, help="JSONL of recordings")
    parser.add_argument("--known", type=int, action="append", required=True, help="known transitions; repeatable")
    parser.add_argument("--alone-steps", type=int, default=600, help="updates of the model that sees no transitions")
    parser.add_argument("--both-steps", type=int, default=200, help="updates of the model that sees two transitions")
    parser.add_argument("--limit", default="120", help="held-out steps")
    parser.add_argument("--out", type=Path, default=Path("runs") / "curve")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    rest, held_out = split(read_jsonl(given.trajectories, Trajectory), 0.2, 0)
    for count in given.known:
        known, every = given.out / f"known-{count}.jsonl", given.out / f"all-{count}.jsonl"
        chosen = first_known(rest, count, 0)
        write(known, chosen)
        write(every, [*chosen, *held_out])
        alone, both = given.out / f"alone-{count}", given.out / f"both-{count}"
        fit(given.env, known, alone, 0, given.alone_steps)
        fit(given.env, known, both, 2, given.both_steps)
        command = [sys.executable, str(ABLATION), given.env, "--trajectories", str(every), "--limit", given.limit]
        command += ["--setting", "nearest", "--setting", f"{alone} without recorded", "--setting", str(both)]
        print(f"\n{count} transitions known\n", flush=True)
        subprocess.run([*command, "--out", str(given.out / f"predicted-{count}")], check=True)


if __name__ == "__main__":
    main()
