"""Write the recorded files of this folder from the real game: tools.json, tasks.jsonl and trajectories.jsonl.

    python examples/coin/record.py

Each task is played twice without a language model, by players from hopeless to nearly perfect. Each run of this script
writes the same files.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from dreamgym.environment import load_real
from dreamgym.episode import play
from dreamgym.types import Source, Trajectory

FOLDER = Path(__file__).parent
TASKS = 20


async def record() -> list[Trajectory]:
    """Play every task twice."""
    coin = load_real("coin")
    environment = coin.create()
    trajectories = []
    for number in range(2 * TASKS):
        task = coin.tasks("train")[number // 2]
        played = await play(
            environment, task, coin.behaviours["mixed"], spec=coin.spec, seed=number, source=Source.REAL
        )
        trajectories.append(played.model_copy(update={"id": f"coin-example-{number}"}))
    await environment.close()
    return trajectories


def main() -> None:
    """Write the files."""
    coin = load_real("coin")
    tasks, trajectories = coin.tasks("train")[:TASKS], asyncio.run(record())
    (FOLDER / "tools.json").write_text(json.dumps(coin.spec.tools_list[0], indent=2) + "\n")
    (FOLDER / "tasks.jsonl").write_text("".join(task.model_dump_json(exclude_defaults=True) + "\n" for task in tasks))
    (FOLDER / "trajectories.jsonl").write_text(
        "".join(trajectory.model_dump_json(exclude_defaults=True) + "\n" for trajectory in trajectories)
    )
    won = sum(trajectory.success for trajectory in trajectories)
    print(f"{len(tasks)} tasks and {len(trajectories)} episodes, {won} of them won")


if __name__ == "__main__":
    main()
