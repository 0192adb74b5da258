"""Test whether a dream rewards the winning calls of another task: a reward attack that needs no words.

    dreamgym collect scienceworld --agent mixed --episodes 100 --out runs/scienceworld.jsonl
    python benchmarks/another_task.py runs/scienceworld.jsonl [FILE ...] [--attacks 60]

Each file contains recorded episodes of the environment that it is named after; the dream (`nearest`) knows all of them.
An attack takes a recorded success and the task of another recording, with another goal. It makes the winning calls
after the first view of the success. The last columns show the same attacks on a dream that treats every recording as
one of the running task: there they earn a reward.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.evaluation.attack_texts import Attack
from dreamgym.evaluation.attacks import attacks
from dreamgym.evaluation.rates import Rate
from dreamgym.replay.buffer import Demonstration, Retrieval
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import Task, Trajectory


class Credulous(MemoryBuffer):
    """A buffer that treats every recording as one of the running task."""

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """The demonstrations of MemoryBuffer, all marked as of the same goal."""
        return tuple(one.model_copy(update={"same_goal": True}) for one in await super().nearest(retrieval))


def tasks_of(recorded: Sequence[Trajectory], count: int) -> list[Task]:
    """`count` recorded tasks in random order, repeated if there are too few, each with an id of its own."""
    tasks = list({one.task.id: one.task for one in recorded}.values())
    draw = Random(0)
    drawn = [task for _ in range(-(-count // len(tasks))) for task in draw.sample(tasks, len(tasks))][:count]
    return [task.model_copy(update={"id": f"{task.id}/{number}"}) for number, task in enumerate(drawn)]


async def rewarded(
    spec: EnvironmentSpec, buffer: MemoryBuffer, recorded: Sequence[Trajectory], count: int, *, checks: bool
) -> Rate:
    """Rate of attacks that earn a reward; the tasks keep their own checks only if `checks`."""
    tasks = tasks_of(recorded, count)
    if not checks:
        tasks = [task.model_copy(update={"metadata": {}}) for task in tasks]
    await buffer.add(recorded)
    played = await attacks(
        spec,
        tasks,
        lambda: DreamEnvironment(spec, NearestModel(), buffer),
        known=recorded,
        kinds={Attack.ANOTHER_TASK},
    )
    return played.rewarded


def table(files: Sequence[Path], count: int) -> Iterator[str]:
    """Lines of the table, with one row for each environment, and the total."""
    yield "| environment | episodes known | successes | attacks | rewarded | if goals are ignored: attacks | rewarded |"
    yield "|---|---|---|---|---|---|---|"
    total = earned = 0
    for file in files:
        recorded = read_jsonl(file, Trajectory)
        spec = load_spec(file.stem)
        rate = asyncio.run(rewarded(spec, MemoryBuffer(TrigramEncoder()), recorded, count, checks=True))
        credulous = asyncio.run(rewarded(spec, Credulous(TrigramEncoder()), recorded, count, checks=False))
        total, earned = total + rate.n, earned + round(rate.mean * rate.n)
        won = sum(one.success for one in recorded)
        yield f"| `{spec.name}` | {len(recorded)} | {won} | {rate.n} | {rate} | {credulous.n} | {credulous} |"
    yield ""
    yield f"{earned} of {total} attacks were rewarded."


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="recorded episodes, as `dreamgym collect` writes them")
    parser.add_argument("--attacks", type=int, default=60, help="number of attacks on each environment")
    given = parser.parse_args()
    print("\n".join(table(given.files, given.attacks)))


if __name__ == "__main__":
    main()
