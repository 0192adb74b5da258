"""Make an environment folder of the shop: sixty tasks played well and badly, and long sessions, without an LLM.

    python benchmarks/studies/shop/record.py --out shop/ --sessions 60 --seed 1
    python benchmarks/studies/shop/record.py --out shop/ --sessions 250 --seed 1 --direct      the same, much faster

Without `--direct`, a scripted MCP client plays the real server through `dreamgym record`, every run with its own server
process. With `--direct`, the same calls go to the same tools in this process, with the same resulting trajectories.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import worlds
from mcp import Client
from outcomes import Calls
from plans import ENV, plans
from sessions import session
from shop import Shop
from tools import TOOLS, call

from dreamgym.content import result_of
from dreamgym.files import write_whole
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StopReason,
    Task,
    Tier,
    Trajectory,
    Transition,
)

HERE = Path(__file__).resolve().parent
DREAMGYM = str(Path(sys.executable).with_name("dreamgym"))
SESSION_CALLS = 20


class Run(NamedTuple):
    """One episode to be played."""

    id: str
    task: Task
    calls: Calls
    world: int = 0
    answer: str | None = None
    success: bool | None = None


def task_runs(count: int, poor: int) -> Iterator[Run]:
    """The good run of each task, and `poor` of its poor runs, different ones from task to task."""
    for number, plan in enumerate(plans(count)):
        done, *faults = plan.runs
        turn = number % len(faults)
        for name in (done, *[*faults[turn:], *faults[:turn]][:poor]):
            played = plan.runs[name]
            yield Run(f"{plan.task.id}-{name}", plan.task, played.calls, 0, played.answer, name == done)


def of_training(runs: Sequence[Run], count: int) -> list[Run]:
    """The runs of the first `count` tasks that may be practised."""
    train = {run.task.id: None for run in runs if run.task.metadata["split"] == "train"}
    kept = set(list(train)[:count])
    return [run for run in runs if run.task.id in kept]


def session_runs(count: int, seed: int, worlds_: int) -> Iterator[Run]:
    """Long sessions without a goal and without an outcome."""
    for number in range(count):
        start = number % worlds_
        drawn = seed * 1_000_000 + number
        task = Task(
            id=f"session-{seed}-{number}",
            env=ENV,
            instruction=f"Session {number}: do what the desk is asked, call by call.",
            initial_state=worlds.text(worlds.start(start)),
            metadata={"split": "sessions"},
        )
        yield Run(task.id, task, session(drawn, SESSION_CALLS, start), start)


def prepare(folder: Path, runs: Sequence[Run], *, quiet: bool = False) -> None:
    """Write the folder's files besides recordings, without the state if `quiet`. Exits if there are recordings."""
    if (folder / "trajectories.jsonl").exists() or (folder / "recordings").exists():
        sys.exit(f"{folder} already contains recordings: give another --out, or remove it")
    folder.mkdir(parents=True, exist_ok=True)
    here = json.dumps([sys.executable, str(HERE / "server.py")])
    text = (HERE / "env.toml").read_text(encoding="utf-8")
    text = text.partition("\n[state.")[0] + "\n" if quiet else text
    write_whole(folder / "env.toml", text.replace('["python", "benchmarks/studies/shop/server.py"]', here))
    write_whole(folder / "tools.json", json.dumps({"tools": list(TOOLS)}, indent=2) + "\n")
    tasks = {run.task.id: unseen(run.task) if quiet else run.task for run in runs}
    write_whole(folder / "tasks.jsonl", "".join(f"{task.model_dump_json()}\n" for task in tasks.values()))


def unseen(task: Task) -> Task:
    """The task for a player who cannot see the state."""
    metadata = {name: value for name, value in task.metadata.items() if name != "success"}
    return task.model_copy(update={"initial_state": None, "metadata": metadata})


def play_directly(folder: Path, runs: Sequence[Run]) -> None:
    """Play all runs in this process."""
    lines = []
    for number, run in enumerate(runs, start=1):
        lines.append(f"{played(run).model_dump_json()}\n")
        if number % 100 == 0 or number == len(runs):
            say(f"{number} of {len(runs)} runs played")
    write_whole(folder / "trajectories.jsonl", "".join(lines))


def played(run: Run) -> Trajectory:
    """The episode of a run, as `dreamgym record` would make it, except for the times."""
    shop = Shop(world=run.world)
    state = worlds.text(shop.state())
    transitions = []
    for action in run.calls:
        result = result_of(call(shop, action))
        after = worlds.text(shop.state())
        result = result.model_copy(update={"info": {**result.info, "state": after}})
        real = Provenance(tier=Tier.REAL)
        transitions.append(Transition(state=state, action=action, result=result, next_state=after, provenance=real))
        state = after
    shop.close()
    return Trajectory(
        id=f"{ENV}-{run.id}",
        task=run.task,
        transitions=tuple(transitions),
        source=Source.REAL,
        stop_reason=StopReason.CLOSED if run.success is None else StopReason.FINISHED,
        answer=run.answer,
        final_reward=None if run.success is None else float(run.success),
    )


def play_recorded(folder: Path, runs: Sequence[Run], *, quiet: bool = False) -> None:
    """Play all runs through `dreamgym record`; runs of one start world share a recorder."""
    for world in sorted({run.world for run in runs}):
        with recorder(folder, world, quiet=quiet) as url:
            for number, run in enumerate(runs, start=1):
                if run.world == world:
                    asyncio.run(_recorded(url, run))
                    say(f"{number} of {len(runs)} runs played")


@contextmanager
def recorder(folder: Path, world: int, *, quiet: bool = False) -> Iterator[str]:
    """Run `dreamgym record` in front of the server; yield its URL. It writes the folder's files when it ends."""
    command = [DREAMGYM, "record", ENV, "--out", str(folder), "--port", "0", "--"]
    command += [sys.executable, str(HERE / "server.py"), "--world", str(world), *(["--quiet"] if quiet else [])]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    try:
        url = process.stdout.readline().strip().removesuffix("/mcp")
        if not url:
            sys.exit(f"dreamgym record ended with exit code {process.wait()}; see above")
        yield url
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(timeout=600)
        process.stdout.close()


async def _recorded(url: str, run: Run) -> None:
    """Play one run. Task and outcome go to the recorder's control API, because they are not in the traffic."""
    post(f"{url}/record/{run.id}", {"task": run.task.instruction, "task_id": run.task.id})
    async with Client(f"{url}/record/{run.id}/mcp") as client:
        await client.list_tools()
        for action in run.calls:
            await client.session.call_tool(action.name, action.arguments)
    outcome: JsonObject = {"answer": run.answer, "success": run.success}
    post(f"{url}/record/{run.id}/finish", {name: value for name, value in outcome.items() if value is not None})


def post(url: str, body: JsonObject) -> None:
    headers = {"Content-Type": "application/json"}
    with urlopen(Request(url, json.dumps(body).encode(), headers), timeout=600):
        pass


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="the environment folder; a new one")
    parser.add_argument("--tasks", type=int, default=60, help="number of tasks; default: 60")
    parser.add_argument("--poor", type=int, default=2, help="poor runs of each task; default: 2")
    parser.add_argument("--recorded", type=int, help="training tasks to record; default: all tasks of all splits")
    parser.add_argument("--sessions", type=int, default=0, help=f"long sessions of {SESSION_CALLS} calls; default: 0")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sessions")
    parser.add_argument("--worlds", type=int, default=1, help="start worlds that the sessions take in turn; default: 1")
    parser.add_argument("--direct", action="store_true", help="call the tools in this process")
    parser.add_argument("--quiet", action="store_true", help="record a server that does not show its state")
    given = parser.parse_args()
    if given.quiet and given.direct:
        parser.error("--quiet works only with the recorder: leave out --direct")
    tasks = list(task_runs(given.tasks, given.poor))
    sessions = list(session_runs(given.sessions, given.seed, given.worlds))
    prepare(given.out, [*tasks, *sessions], quiet=given.quiet)
    runs = [*(tasks if given.recorded is None else of_training(tasks, given.recorded)), *sessions]
    if given.direct:
        play_directly(given.out, runs)
    else:
        play_recorded(given.out, runs, quiet=given.quiet)
    say(f"{given.out}: {len(runs)} episodes, {sum(len(run.calls) for run in runs)} calls")


if __name__ == "__main__":
    main()
