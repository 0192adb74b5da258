"""Measure the cost of a query to the replay buffer in milliseconds, and its ratio to the buffer in memory.

    python benchmarks/replay_nearest.py [--dsn postgresql://...] [--worlds 400] [--questions 500]

CPU is that of this process and of all PostgreSQL processes of the machine. Other load on the machine raises the wall
time. What was stored is deleted afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import time
from pathlib import Path

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.buffer import ReplayBuffer, Retrieval
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.replay.postgres import open_store
from dreamgym.replay.postgres.forget import forget
from dreamgym.testing.replay import sample_trajectory, sample_transition
from dreamgym.types import ToolCall, Trajectory

ENV = f"benchmark-{os.getpid()}"
COMMANDS = ("move north", "move south", "move east", "move west", "look around", "take coin")
ROOMS = ("kitchen", "pantry", "hall", "backyard", "laundry", "bedroom", "study", "corridor")
STEPS = 10


def play(world: int, number: int) -> Trajectory:
    """A random walk through rooms whose exits depend on the world."""
    house, walk = random.Random(world), random.Random(f"{world}/{number}")
    names = {room: f"{room} exits {' '.join(house.sample(COMMANDS[:4], 2))} to {house.choice(ROOMS)}" for room in ROOMS}
    doors = {(room, command): house.choice(ROOMS) for room in ROOMS for command in COMMANDS}
    room, steps = ROOMS[0], []
    for _ in range(STEPS):
        command = walk.choice(COMMANDS)
        following = doors[room, command]
        steps.append(sample_transition(names[room], command, names[following]))
        room = following
    return sample_trajectory(f"{ENV}/{world}/{number}", *steps, world=f"world {world}", env=ENV)


def questions(trajectories: list[Trajectory], count: int, command: str | None) -> list[Retrieval]:
    """Queries in the middle of recorded episodes; with a command that was never recorded, nothing is identical."""
    draw = random.Random(0)
    asked = []
    for _ in range(count):
        trajectory, step = draw.choice(trajectories), draw.randrange(STEPS)
        transition = trajectory.transitions[step]
        action = transition.action if command is None else ToolCall(name="act", arguments={"command": command})
        history = trajectory.transitions[:step]
        start = trajectory.transitions[0].state
        asked.append(
            Retrieval(env=ENV, state=transition.state, action=action, k=1, history=history, initial_state=start)
        )
    return asked


def database_cpu_ms() -> float:
    """CPU time of every PostgreSQL process of the machine."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(") ")
        except OSError:
            continue
        if name.startswith("postgres"):
            ticks += sum(int(part) for part in rest.split()[11:13])
    return 1000 * ticks / os.sysconf("SC_CLK_TCK")


async def measure(buffer: ReplayBuffer, asked: list[Retrieval]) -> tuple[float, float, float]:
    """CPU per query, and median and 95th percentile of the wall time, in milliseconds."""
    for retrieval in asked[:20]:
        await buffer.nearest(retrieval)
    # reading the database's CPU takes milliseconds of our own, which are not counted
    walls, before, own = [], database_cpu_ms(), time.process_time()
    for retrieval in asked:
        started = time.perf_counter()
        await buffer.nearest(retrieval)
        walls.append(1000 * (time.perf_counter() - started))
    own = 1000 * (time.process_time() - own)
    cpu = own + database_cpu_ms() - before
    return cpu / len(asked), statistics.median(walls), statistics.quantiles(walls, n=20)[-1]


async def main() -> None:
    """Fill both buffers with the same trajectories and send both the same queries."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dsn")
    parser.add_argument("--worlds", type=int, default=400)
    parser.add_argument("--questions", type=int, default=500)
    options = parser.parse_args()
    trajectories = [play(world, number) for world in range(options.worlds) for number in range(10)]
    store, memory = await open_store(options.dsn, TrigramEncoder()), MemoryBuffer(TrigramEncoder())
    started = time.perf_counter()
    await store.buffer.add(trajectories)
    try:
        print(f"{len(trajectories) * STEPS} steps stored in {time.perf_counter() - started:.1f} s")
        await memory.add(trajectories)
        print(await store.buffer.counts(ENV))
        for name, command in (("identical", None), ("similar", "crawl north")):
            asked = questions(trajectories, options.questions, command)
            ours, floor = await measure(store.buffer, asked), await measure(memory, asked)
            print(f"{name:<10} postgres CPU {ours[0]:.2f}  median {ours[1]:.2f}  p95 {ours[2]:.2f} ms")
            print(f"{'':<10} memory   CPU {floor[0]:.2f}  median {floor[1]:.2f}  p95 {floor[2]:.2f} ms")
            print(f"{'':<10} ratio of CPU {ours[0] / floor[0]:.1f}")
    finally:
        await forget(store.database, ENV)
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
