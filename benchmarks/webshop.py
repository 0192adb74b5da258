"""Measure the shop's steps per CPU-second, compared with those measured for the authors' own engine.

Two players visit the shop, the oracle and the random clicker, as in the measurement of the original. The original took
27 to 33 steps per CPU-second, with most of the time in filling in page templates and tagging nouns. CPU is that of this
process, including the players' own work and the recording of each step. Without --catalogue and
DREAMGYM_WEBSHOP, the small invented catalogue is used.

    python benchmarks/webshop.py --catalogue FOLDER --goals 200
"""

from __future__ import annotations

import argparse
import asyncio
import time

from dreamgym_integrations.environments.webshop import WebShop, webshop

from dreamgym.episode import play
from dreamgym.types import Source, Trajectory

ORIGINAL = (27, 33)
"""Steps per CPU-second of the original engine, with 1,000 products on the same kind of machine."""
WANTED = 20
"""Required speed, as a multiple of the original's best."""


async def visits(shop: WebShop, behaviour: str, goals: int) -> tuple[list[Trajectory], float]:
    """Play episodes on development goals; return them and the CPU-seconds that they took."""
    environment, tasks, spec = shop.create(), shop.tasks("dev")[:goals], shop.spec
    started = time.process_time()
    played = [
        await play(environment, task, shop.behaviours[behaviour], spec=spec, seed=seed, source=Source.REAL)
        for seed, task in enumerate(tasks)
    ]
    return played, time.process_time() - started


def main() -> int:
    """Print a table; return 1 if the shop is slower than required."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--catalogue", help="a folder with the authors' data")
    parser.add_argument("--goals", type=int, default=200)
    given = parser.parse_args()
    started = time.process_time()
    shop = webshop({"catalogue": given.catalogue} if given.catalogue else {})
    tasks = sum(len(shop.tasks(split)) for split in ("train", "dev", "test"))
    print(f"{shop.spec.name}: {tasks} goals, loaded in {time.process_time() - started:.2f} CPU-s\n")
    print("| play | episodes | steps | steps per CPU-s | of the original | characters | mean score | success |")
    print("|---|---|---|---|---|---|---|---|")
    slowest = float("inf")
    for behaviour in ("expert", "random"):
        played, seconds = asyncio.run(visits(shop, behaviour, given.goals))
        steps = [step for episode in played for step in episode.transitions]
        rate = len(steps) / seconds
        slowest = min(slowest, rate)
        size = sum(len(step.result.observation) for step in steps) / len(steps)
        scores = [float(str(episode.transitions[-1].result.info.get("score", 0.0))) for episode in played]
        success = sum(episode.success for episode in played) / len(played)
        print(
            f"| {behaviour} | {len(played)} | {len(steps)} | {rate:.0f} | {rate / ORIGINAL[1]:.0f} times | {size:.0f} "
            f"| {sum(scores) / len(scores):.3f} | {success:.1%} |"
        )
    return 0 if slowest >= WANTED * ORIGINAL[1] else 1


if __name__ == "__main__":
    raise SystemExit(main())
