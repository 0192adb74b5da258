"""Make the table of docs/results/environments.md: costs of the real environments, success of players, sizes of texts.

    python benchmarks/environments.py [NAME ...] [--tasks 50] [--out table.md]

Every environment is played in a separate process, one episode after another: `random` for the speeds and sizes,
`random` and `expert` for the success on the first dev tasks, with Wilson's 95 % interval. Steps per core-second use the
CPU time of that process and of all its children (Java, a browser), which a busy machine hardly changes. Resets and
transitions per minute use wall time, so measure them on a quiet machine. Environments that are not installed are listed
with what they need. Without names, all registered environments are played.
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

from dreamgym.environment import load_real
from dreamgym.errors import DreamGymError
from dreamgym.runs.environments import listed
from dreamgym.runs.timing import Timing, timed
from dreamgym.runs.versions import GROUP
from dreamgym.types import Frozen

HEAD = (
    "environment",
    "steps per core-second",
    "reset",
    "first reset",
    "action",
    "observation",
    "expert",
    "random",
    "transitions a minute",
)
ALIASES = ("mcp", "textworld_express")
"""Registered names that are not an environment by themselves, or are a second name of one."""


class Row(Frozen):
    """The measurements of one environment."""

    name: str
    max_steps: int
    random: Timing
    expert: Timing | None


def measured(name: str, tasks: int, seed: int) -> Row:
    """Play the first dev tasks of an environment, at random and well."""
    real = load_real(name, {"engine": "package"} if name == "alfworld" else None)  # the judge of published figures
    chosen = real.tasks("dev")[:tasks]
    random = asyncio.run(timed(real, "random", chosen, seed=seed))
    expert = asyncio.run(timed(real, "expert", chosen, seed=seed)) if "expert" in real.behaviours else None
    return Row(name=name, max_steps=real.spec.max_steps, random=random, expert=expert)


def in_a_process_of_its_own(name: str, tasks: int, seed: int) -> Row | str:
    """Call `measured` in a new process, so that environments do not affect each other; an error text if it failed."""
    command = [sys.executable, __file__, name, "--tasks", str(tasks), "--seed", str(seed), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return (done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"])[-1]
    return Row.model_validate_json(done.stdout.splitlines()[-1])


def cells(row: Row) -> tuple[str, ...]:
    """The cells of one row."""
    random, expert = row.random, row.expert
    rate = 1 / random.step_cpu_s if random.step_cpu_s else None
    return (
        f"`{row.name}` ({row.max_steps} steps)",
        f"{rate:,.0f}" if rate else "more than can be taken",
        _time(random.reset_s),
        _time(random.first_reset_s),
        f"{random.action_characters:.0f}",
        f"{random.observation_characters:,.0f}",
        _success(expert) if expert is not None else "-",
        _success(random),
        f"{random.transitions_a_minute:,.0f}",
    )


def table(rows: Sequence[Row], absent: Sequence[tuple[str, str]], tasks: int) -> str:
    """The table in Markdown, and the environments that are not in it."""
    head = [f"| {' | '.join(HEAD)} |", f"|{'---|' * len(HEAD)}"]
    body = [f"| {' | '.join(cells(row))} |" for row in rows]
    note = (
        f"First {tasks} dev tasks, or all if there are fewer, 95 % intervals; speeds, sizes and transitions are of"
        " random play, one episode at a time; sizes in characters, as means."
    )
    missing = [f"- `{name}` is not in the table: {why}" for name, why in absent]
    return "\n".join([*head, *body, "", note, *([""] if missing else []), *missing, ""])


def _success(timing: Timing) -> str:
    failed = f" ({timing.failed} failed with the environment)" if timing.failed else ""
    return f"{timing.success}{failed}"


def _time(seconds: float) -> str:
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


def main() -> None:
    """Play the named environments, or all registered ones, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="registered names, or module:function")
    parser.add_argument("--tasks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write the table here as well")
    parser.add_argument("--json", action="store_true", help="measure one environment in this process; print JSON")
    options = parser.parse_args()
    if options.json:
        try:
            print(measured(options.names[0], options.tasks, options.seed).model_dump_json())
        except DreamGymError as error:
            sys.exit(f"{error}")
        return
    registered = {point.name: point for point in entry_points(group=GROUP) if point.name not in ALIASES}
    rows: list[Row] = []
    absent: list[tuple[str, str]] = []
    for name in options.names or sorted(registered):
        print(f"{name} …", file=sys.stderr, flush=True)
        found = listed(registered[name]) if name in registered else None
        if found is not None and not found.is_playable:
            absent.append((name, str(found.missing)))
            continue
        row = in_a_process_of_its_own(name, options.tasks, options.seed)
        if isinstance(row, Row):
            rows.append(row)
        else:
            absent.append((name, row))
    text = table(rows, absent, options.tasks)
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
