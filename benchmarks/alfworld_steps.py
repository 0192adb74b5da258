"""What a step and a start of ALFWorld cost through our adapter, and their ratio to the bare package in the same run.

    python benchmarks/alfworld_steps.py [--data FOLDER] [--games 6]

CPU seconds: of this process and its worker for the adapter, of a process of its own for the package. Both play the same
commands of a hand-coded player on the same games and list all possible commands at each step. Needs dreamgym[alfworld].
Not called alfworld.py: a script's folder is searched first, and the package would be hidden by it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dreamgym_integrations.environments.alfworld import Alfworld, alfworld, game_of

from dreamgym.episode import play
from dreamgym.types import Source, StepResult, Task, ToolCall


def bare(episodes: list[dict[str, Any]]) -> dict[str, float]:
    """The package as its own scripts use it. Gives CPU seconds by what was done, and what was answered."""
    textworld = importlib.import_module("textworld")
    package = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
    info = importlib.import_module("alfworld.info")
    logic = {"pddl_domain": Path(info.ALFRED_PDDL_PATH).read_text(), "grammar": Path(info.ALFRED_TWL2_PATH).read_text()}
    environment = importlib.import_module("textworld.envs").PddlEnv(textworld.EnvInfos(admissible_commands=True))
    game = package.AlfredDemangler(environment, shuffle=False)
    spent = {"start": 0.0, "steps": 0.0, "same": 1.0}
    for episode in episodes:
        begun = time.process_time()
        game.load({**logic, "pddl_problem": episode["problem"]})
        game.reset()
        started = time.process_time()
        answers = []
        for command in episode["commands"]:
            state, _, _ = game.step(command)
            answers.append([state["feedback"].strip(), state["admissible_commands"]])
        spent["start"] += started - begun
        spent["steps"] += time.process_time() - started
        spent["same"] *= answers == episode["answers"]
    return spent


def cpu_s(real: Alfworld) -> float:
    """CPU seconds of this process and of its workers so far."""
    ticks = 0
    for worker in real.workers.all:
        assert worker.process is not None
        stat = Path(f"/proc/{worker.process.pid}/stat").read_text().rpartition(") ")[2].split()
        ticks += int(stat[11]) + int(stat[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


async def adapted(real: Alfworld, tasks: list[Task]) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The adapter: a first episode of each game, then the same commands again."""
    environment = real.create()
    await environment.reset(tasks[0])  # the worker's own start is not counted
    spent = {"build": 0.0, "start": 0.0, "steps": 0.0}
    episodes = []
    for task in tasks[1:]:
        begun = cpu_s(real)
        await environment.reset(task)
        spent["build"] += cpu_s(real) - begun
        walk = await play(environment, task, real.behaviours["handcoded"], spec=real.spec, seed=0, source=Source.REAL)
        commands = [step.action.arguments["command"] for step in walk.transitions]
        begun = cpu_s(real)
        await environment.reset(task)
        started = cpu_s(real)
        results: list[StepResult] = []
        for command in commands:
            results.append(await environment.step(ToolCall(name="act", arguments={"command": command})))  # noqa: PERF401
        spent["start"] += started - begun
        spent["steps"] += cpu_s(real) - started
        answers = [[result.observation, result.info["admissible"]] for result in results]
        episodes.append({"problem": real.games.problem(game_of(task)), "commands": commands, "answers": answers})
    await environment.close()
    return spent, episodes


def main() -> None:
    """Measure both and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", help="Folder with the games. Default: the variable ALFWORLD_DATA.")
    arguments.add_argument("--games", type=int, default=6, help="How many games are played.")
    arguments.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.bare is not None:
        sys.stdout.write(json.dumps(bare(json.loads(options.bare.read_text()))))
        return
    with tempfile.TemporaryDirectory() as folder:
        given = {"data": options.data} if options.data else {}
        real = alfworld({**given, "cache": folder, "workers": 1})
        ours, episodes = asyncio.run(adapted(real, list(real.tasks("train")[: options.games + 1])))
        file = Path(folder, "episodes.json")
        file.write_text(json.dumps(episodes))
        command = [sys.executable, __file__, "--bare", str(file)]
        package = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    steps, games = sum(len(episode["commands"]) for episode in episodes), len(episodes)
    print(f"{games} games, {steps} steps, same answers: {bool(package['same'])}")
    print(f"{'':10}{'first start':>16}{'later start':>16}{'steps per CPU-s':>18}")
    rows = {
        "package": [package["start"], package["start"], package["steps"]],
        "adapter": [ours["build"], ours["start"], ours["steps"]],
    }
    for name, (first, later, played) in rows.items():
        print(f"{name:10}{first / games:14.2f} s{later / games:14.2f} s{steps / played:18.0f}")
    print(f"a step costs {ours['steps'] / package['steps']:.2f} times that of the package")


if __name__ == "__main__":
    main()
