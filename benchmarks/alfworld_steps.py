"""Measure what a step and a start of ALFWorld cost in its package, through our adapter, and in our own engine.

    python benchmarks/alfworld_steps.py [--data FOLDER] [--games 6]

All play the same commands of a hand-coded player on the same games. CPU seconds are those of this process and its
worker for the adapter, of a separate process for the package, and of this process for the own engine. The own engine is
measured as an environment, and as rules alone with and without the list of all possible commands at each step. Without
dreamgym[alfworld], only these three are measured. This file must not be called alfworld.py: Python searches the
script's folder first, and the file would hide the package.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dreamgym_integrations.environments.alfworld import Alfworld, alfworld, game_of
from dreamgym_integrations.environments.alfworld.own_engine import HouseholdGame, HouseholdPlay
from dreamgym_integrations.environments.base import act

from dreamgym.episode import play
from dreamgym.types import JsonObject, Source, StepResult, Task, ToolCall

REPEATS = 50
"""How often the own engine plays each game; a single play is too short for the clock."""
Episode = dict[str, Any]
"""The PDDL problem of a game, the commands, and the answers with the possible commands."""
Rows = dict[str, tuple[float, float, float]]
"""CPU seconds of all first starts, of all later starts and of all steps, by the name of the row."""


def bare(episodes: list[Episode]) -> dict[str, float]:
    """Run the package as its own scripts do; return CPU seconds of starts and steps, and `same`: 1 if answers agree."""
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


async def adapted(real: Alfworld, tasks: list[Task]) -> tuple[dict[str, float], list[Episode]]:
    """Run the adapter: a first episode of each game, then the same commands again."""
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


async def own(data: JsonObject, tasks: list[Task], *, repeats: int) -> tuple[Rows, list[Episode]]:
    """Run the own engine as an environment, and its rules with and without the lists of commands."""
    real = alfworld(data)
    rows: Rows = {}
    environment, episodes, spent = real.create(), list[Episode](), {"start": 0.0, "steps": 0.0, "first": 0.0}
    for task in tasks:
        begun = time.process_time()
        await environment.reset(task)
        spent["first"] += time.process_time() - begun
        walk = await play(environment, task, real.behaviours["handcoded"], spec=real.spec, seed=0, source=Source.REAL)
        answers = [[step.result.observation, step.result.info["admissible"]] for step in walk.transitions]
        commands = [step.action.arguments["command"] for step in walk.transitions]
        episodes.append({"problem": real.games.problem(game_of(task)), "commands": commands, "answers": answers})
    for task, episode in zip(tasks * repeats, episodes * repeats, strict=True):
        begun = time.process_time()
        await environment.reset(task)
        started = time.process_time()
        for command in episode["commands"]:
            await environment.step(act(command))
        spent["start"] += (started - begun) / repeats
        spent["steps"] += (time.process_time() - started) / repeats
    rows["own, as an environment"] = (spent["first"], spent["start"], spent["steps"])
    for name, lists in (("own, with commands", True), ("own, answers alone", False)):
        starts = steps = 0.0
        for episode in episodes * repeats:  # one game after another, as in training: the caches of the CPU matter
            begun = time.process_time()
            playing = HouseholdPlay(HouseholdGame.of(episode["problem"]))
            started = time.process_time()
            for command in episode["commands"]:
                playing.step(command)
                if lists:
                    playing.commands()
            starts += (started - begun) / repeats
            steps += (time.process_time() - started) / repeats
        rows[name] = (spent["first"], starts, steps)
    return rows, episodes


def main() -> None:
    """Measure all that is installed and print."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", help="Folder with the games. Default: the variable ALFWORLD_DATA.")
    arguments.add_argument("--games", type=int, default=6, help="Number of games to play.")
    arguments.add_argument("--bare", type=Path, help=argparse.SUPPRESS)
    options = arguments.parse_args()
    if options.bare is not None:
        sys.stdout.write(json.dumps(bare(json.loads(options.bare.read_text()))))
        return
    rows: Rows = {}
    with tempfile.TemporaryDirectory() as folder:
        given: JsonObject = {"cache": folder, **({"data": options.data} if options.data else {})}
        tasks = list(alfworld(given).tasks("train")[: options.games + 1])
        rows_own, walks = asyncio.run(own(given, tasks[1:], repeats=REPEATS))
        if importlib.util.find_spec("alfworld") is None:
            print("the package and its adapter are not measured: they need dreamgym[alfworld]")
        else:
            real = alfworld({**given, "workers": 1, "engine": "package"})
            ours, episodes = asyncio.run(adapted(real, tasks))
            file = Path(folder, "episodes.json")
            file.write_text(json.dumps(episodes))
            command = [sys.executable, __file__, "--bare", str(file)]
            package = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            print(f"same answers in all: {bool(package['same']) and episodes == walks}")
            rows["package"] = (package["start"], package["start"], package["steps"])
            rows["adapter of the package"] = (ours["build"], ours["start"], ours["steps"])
    steps, games = sum(len(episode["commands"]) for episode in walks), len(walks)
    print(f"{games} games, {steps} steps")
    print(f"{'':24}{'first start':>16}{'later start':>16}{'steps per CPU-s':>18}")
    for name, (first, later, played) in {**rows, **rows_own}.items():
        print(f"{name:24}{1000 * first / games:13.1f} ms{1000 * later / games:13.2f} ms{steps / played:18,.0f}")


if __name__ == "__main__":
    main()
