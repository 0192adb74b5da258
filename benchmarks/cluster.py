"""Measure a cluster: episodes a second on 1, 2 and 4 workers, overhead per episode, and the effect of killed nodes.

Every node of the cluster is a separate raylet on this machine with one worker. Nodes are killed with SIGKILL while
episodes are played, and a new node replaces each. The environment answers after a wait, as a hosted model does, or at
once. Each table compares with the same episodes played in this process. The digest is that of the written file.

- lost: planned episodes that are not in the file;
- doubled: lines of the file beyond one per episode.

    python benchmarks/cluster.py --episodes 400 --kills 10
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dreamgym.environment import Environment, EnvironmentSpec, read_jsonl
from dreamgym.runs import cluster as clusters
from dreamgym.runs.collect import Playing
from dreamgym.runs.opening import Against
from dreamgym.runs.play_many import Collecting, InFile, Play, plan
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Trajectory

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

WORKERS = (1, 2, 4)
PLACES = 4
"""Episodes at once in each worker."""
WAIT_S = 0.05
"""Wait of a step, as for a hosted model."""
STEPS = 5
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000}
EPISODES_A_KILL = 300
PAUSE_S = (1.0, 4.0)
"""Shortest and longest time of play between two kills."""
TOOL: JsonObject = {"name": "draw", "inputSchema": {"type": "object", "properties": {}}}


class Lots:
    """Draws `STEPS` numbers, which the seed fixes. Each draw waits."""

    tools: Sequence[JsonObject] = (TOOL,)

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._lots, self._left = random.Random(seed), STEPS
        return StepResult(observation="draw")

    async def step(self, action: ToolCall) -> StepResult:
        if self._wait_s:
            await asyncio.sleep(self._wait_s)
        self._left -= 1
        number = self._lots.random()
        return StepResult(observation=str(number), reward=number, terminated=not self._left)

    async def close(self) -> None:
        """Nothing to release."""


async def draw(first: StepResult, environment: Environment, seed: int) -> None:
    """Draw to the end."""
    result = first
    while not result.done:
        result = await environment.step(ToolCall(name="draw", arguments={}))


class RealLots:
    """The real environment that `dreamgym` loads by this file's name."""

    behaviours = {"draw": draw}  # noqa: RUF012  the protocol's

    def __init__(self, options: JsonObject) -> None:
        self._wait_s = float(str(options.get("wait_s", WAIT_S)))
        self.spec = EnvironmentSpec.model_validate(
            {
                "name": "lots",
                "tools_list": {"tools": [TOOL]},
                "adapter": f"{Path(__file__).resolve()}:lots",
                "options": options,
                "max_steps": STEPS + 1,
            }
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The only task; episodes differ by their seeds."""
        return [Task(id="draw", env="lots", instruction="Draw.")]

    def create(self) -> Lots:
        return Lots(self._wait_s)


def lots(options: JsonObject) -> RealLots:
    """Load the environment; `benchmarks/cluster.py:lots` names this function."""
    return RealLots(options)


class Played(NamedTuple):
    """The outcome of some episodes."""

    seconds: float
    lost: int
    doubled: int
    digest: str
    cpu_s: float
    """CPU time of this process."""


@contextmanager
def nodes(count: int) -> Iterator[Cluster]:
    """Start a cluster of `count` nodes on this machine, and a head that plays nothing."""
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": NODE["object_store_memory"], "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(count):
            cluster.add_node(**NODE)
        yield cluster
    finally:
        cluster.shutdown()


async def played(job: Playing, players: Sequence[Play], episodes: int) -> Played:
    """Play the episodes, and check the file."""
    task = RealLots({}).tasks("train")
    planned = plan("draw", "", task, episodes, 0)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "episodes.jsonl"
        began, cpu = time.perf_counter(), time.process_time()
        await Collecting(planned, InFile(file), version=None).run(players)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        ids = [one.id for one in read_jsonl(file, Trajectory)]
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    missing = len({one.id for one in planned} - set(ids))
    return Played(seconds, missing, len(ids) - len(set(ids)), digest, cpu)


def job_of(wait_s: float, places: int) -> Playing:
    """A job whose steps wait `wait_s`, with `places` episodes at once in a process."""
    spec = RealLots({"wait_s": wait_s}).spec
    return Playing(spec, spec, Against.REAL, "draw", places, None, None, None)


async def here(wait_s: float, places: int, episodes: int) -> Played:
    """Play in this process, as without a cluster."""
    job = job_of(wait_s, places)
    async with job.players(None, places) as players:
        return await played(job, players, episodes)


async def there(address: str, wait_s: float, places: int, episodes: int) -> Played:
    """Play on a cluster; the start of its workers is not counted."""
    job = job_of(wait_s, places)
    async with clusters.workers(address, job, places) as crew:
        await crew.ready(crew.places)
        return await played(job, [crew.do] * crew.places, episodes)


async def rates(episodes: int) -> None:
    """Print the tables of episodes a second and of overhead."""
    print(f"{PLACES} episodes at once in each worker, {STEPS} steps of {WAIT_S * 1000:g} ms:\n")
    print("| where | episodes | seconds | episodes a second | lost | doubled | digest |\n|---|---|---|---|---|---|---|")

    def row(where: str, count: int, done: Played) -> None:
        numbers = f"{count} | {done.seconds:.1f} | {count / done.seconds:.1f} | {done.lost} | {done.doubled}"
        print(f"| {where} | {numbers} | {done.digest} |", flush=True)

    row("this process", episodes, await here(WAIT_S, PLACES, episodes))
    quick: list[tuple[str, Played]] = [("this process", await here(0, 1, episodes))]
    for count in WORKERS:
        with nodes(count) as cluster:
            name = f"{count} {'worker' if count == 1 else 'workers'}"
            row(name, episodes, await there(cluster.address, WAIT_S, PLACES, episodes))
            if count == 1:
                quick.append((name, await there(cluster.address, 0, 1, episodes)))
    print(f"\nOne episode at a time, {STEPS} steps without a wait:\n")
    print("| where | ms an episode | CPU ms of this process | digest |\n|---|---|---|---|")
    for where, done in quick:
        print(
            f"| {where} | {1000 * done.seconds / episodes:.2f} | {1000 * done.cpu_s / episodes:.2f} | {done.digest} |"
        )


def kills(wanted: int, seed: int) -> None:
    """Kill nodes while `dreamgym collect` plays on them."""
    random_, made, episodes = random.Random(seed), 0, EPISODES_A_KILL * wanted
    with tempfile.TemporaryDirectory() as folder, nodes(3) as cluster:
        alone, spread = Path(folder) / "alone.jsonl", Path(folder) / "spread.jsonl"
        collect = [sys.executable, "-m", "dreamgym", "collect", f"{__file__}:lots", "--agent", "draw"]
        collect += ["--episodes", str(episodes)]
        subprocess.run([*collect, "--workers", "64", "--out", str(alone)], check=True)
        command = [*collect, "--workers", str(PLACES), "--cluster", cluster.address, "--out", str(spread)]
        began = time.perf_counter()
        with subprocess.Popen(command) as playing:
            while not (spread.exists() and spread.stat().st_size) and playing.poll() is None:
                time.sleep(0.1)
            while made < wanted and playing.poll() is None:
                time.sleep(random_.uniform(*PAUSE_S))
                node = random_.choice(sorted(cluster.worker_nodes, key=lambda one: str(one.unique_id)))
                cluster.remove_node(node, allow_graceful=False)
                made += playing.poll() is None
                print(f"killed {made} nodes", file=sys.stderr, flush=True)
                cluster.add_node(**NODE)
        seconds = time.perf_counter() - began
        if playing.returncode:
            sys.exit(playing.returncode)
        ids = [one.id for one in read_jsonl(spread, Trajectory)]
        digests = [hashlib.sha256(file.read_bytes()).hexdigest()[:12] for file in (alone, spread)]
    print("\nNodes killed by SIGKILL while `dreamgym collect` plays, 3 workers:\n")
    columns = ("killed", "episodes", "seconds", "lost", "doubled", "digest", "digest in one process")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    lost, doubled = episodes - len(set(ids)), len(ids) - len(set(ids))
    print(f"| {made} | {episodes} | {seconds:.0f} | {lost} | {doubled} | {digests[1]} | {digests[0]} |")


async def run(args: argparse.Namespace) -> None:
    """Run the parts that the arguments ask for."""
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores.\n")
    if args.episodes:
        await rates(args.episodes)
    if args.kills:
        kills(args.kills, args.seed)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=400, help="episodes in each row; 0 for none (default 400)")
    parser.add_argument("--kills", type=int, default=10, help="number of nodes to kill (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed for the choice of nodes and the times of the kills")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
