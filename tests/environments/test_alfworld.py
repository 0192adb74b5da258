"""The engine of ALFWorld's package in an invented room, and in recorded games if this machine has them."""

import asyncio
import importlib
import json
import lzma
import os
import sys
import zlib
from pathlib import Path

import pytest

pytest.importorskip("alfworld", reason="ALFWorld needs the extra dreamgym[alfworld]")
pytest.importorskip("fast_downward", reason="ALFWorld needs the extra dreamgym[alfworld]")

from alfworld_room import HOT, START, WAY, pack, problem, row, unpack
from dreamgym_integrations.environments.alfworld import Alfworld, alfworld
from dreamgym_integrations.environments.alfworld.data import GOALS
from dreamgym_integrations.environments.alfworld.engine import PLAYERS

from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished
from dreamgym.testing import check_environment
from dreamgym.types import Source, StepResult, StopReason, ToolCall, Trajectory

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Alfworld:
    folder = tmp_path_factory.mktemp("alfworld")
    pack(folder / "data", [row(number, 1, HOT) for number in range(3)])
    return alfworld({"data": str(folder / "data"), "cache": str(folder / "cache"), "workers": 1, "engine": "package"})


async def say(environment: Environment, *commands: str) -> list[StepResult]:
    return [await environment.step(ToolCall(name="act", arguments={"command": command})) for command in commands]


async def played(real: Alfworld, behaviour: str, seed: int = 0) -> Trajectory:
    environment = real.create()
    task = real.tasks("train")[0]
    trajectory = await play(
        environment, task, real.behaviours[behaviour], spec=real.spec, seed=seed, source=Source.REAL
    )
    await environment.close()
    return trajectory


async def test_the_room_keeps_the_contract_of_an_environment(room: Alfworld) -> None:
    await check_environment(room.create, room.tasks("train")[:2], deterministic=True)


async def test_an_episode_shows_where_things_lie_and_ends_with_the_task(room: Alfworld) -> None:
    environment = room.create()
    task = room.tasks("train")[0]
    start = await environment.reset(task)
    assert start.observation == start.state == task.initial_state == START
    assert start.info["admissible"] == [
        *(f"go to {place}" for place in ("desk 1", "drawer 1", "drawer 2", "microwave 1")),
        "help",
        "inventory",
        "look",
    ]
    results = await say(environment, *WAY)
    assert results[0].observation == "You arrive at drawer 2. The drawer 2 is closed."
    assert results[1].state == "You are at drawer 2, which is open. There: mug 1. You carry: nothing."
    assert results[4].state == "You are at microwave 1, which is closed. You carry: mug 1 (hot)."
    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 0, 1]
    assert [result.terminated for result in results] == [False] * 6 + [True]
    with pytest.raises(EpisodeFinished):
        await say(environment, "look")


async def test_an_impossible_command_is_refused_in_the_games_words_and_changes_nothing(room: Alfworld) -> None:
    environment = room.create()
    start = await environment.reset(room.tasks("train")[0])
    for command in ("put mug 1 in/on desk 1", "take book 1 from desk 1", "dance", ""):
        (refused,) = await say(environment, command)
        assert (refused.observation, refused.is_error, refused.state) == ("Nothing happens.", True, start.state)
        assert refused.info["admissible"] == start.info["admissible"]
    await environment.close()


async def test_the_planner_and_the_searcher_win_and_bad_play_seldom_does(room: Alfworld) -> None:
    planned, searched = await played(room, "expert"), await played(room, "handcoded")
    assert [step.action.arguments["command"] for step in planned.transitions] == WAY
    assert searched.success
    assert not any(step.result.is_error for step in searched.transitions)
    bad = [await played(room, "random", seed) for seed in range(3)]
    assert not all(episode.success for episode in bad)
    assert any(step.result.is_error for episode in bad for step in episode.transitions)


async def test_more_episodes_than_a_worker_holds_go_on_side_by_side(room: Alfworld) -> None:
    environments = [room.create() for _ in range(PLAYERS + 4)]
    for environment in environments:
        await environment.reset(room.tasks("train")[0])
    seen = [(await say(environment, *WAY[:2]))[-1].observation for environment in environments]
    assert set(seen) == {"You open the drawer 2. The drawer 2 is open. In it, you see a mug 1."}
    for environment in (environments[0], environments[-1]):
        assert (await say(environment, *WAY[2:]))[-1].reward == 1
    for environment in environments:
        await environment.close()


async def test_an_episode_goes_on_after_its_worker_was_killed_between_two_steps(room: Alfworld) -> None:
    environment = room.create()
    await environment.reset(room.tasks("train")[0])
    await say(environment, *WAY[:3])
    (worker,) = room.workers.all
    assert worker.process is not None
    worker.process.kill()
    worker.process.wait()
    assert (await say(environment, *WAY[3:]))[-1].reward == 1


async def test_a_worker_that_dies_in_mid_step_fails_that_episode_and_no_other(tmp_path: Path) -> None:
    data = pack(tmp_path / "data", [row(1, 1, HOT), row(2, 1)])
    real = alfworld({"data": str(data), "cache": str(tmp_path / "cache"), "workers": 1, "engine": "package"})
    good, bad = sorted(real.tasks("train"), key=lambda task: str(task.metadata["task_type"]), reverse=True)
    environment, other = real.create(), real.create()
    await other.reset(bad)
    (built,) = (tmp_path / "cache" / "built").rglob("*.z")
    await environment.reset(good)
    await say(environment, *WAY[:3])
    content = json.loads(zlib.decompress(built.read_bytes()))
    built.write_bytes(zlib.compress(json.dumps({**content, "sas": "damaged"}).encode()))
    with pytest.raises(EnvironmentUnavailable, match="ended during a step"):
        await real.create().reset(bad)
    assert (await say(environment, *WAY[3:]))[-1].reward == 1


async def test_episodes_of_several_loops_share_the_workers(room: Alfworld) -> None:
    first = await asyncio.to_thread(lambda: asyncio.run(played(room, "handcoded")))
    assert first.transitions == (await played(room, "handcoded")).transitions
    assert first.stop_reason is StopReason.TERMINATED


async def test_a_game_file_of_the_old_grammar_is_played_by_the_installed_one(tmp_path: Path) -> None:
    unpack(tmp_path / "data", "train", 1, 1)
    real = alfworld(
        {"data": str(tmp_path / "data"), "cache": str(tmp_path / "cache"), "workers": 1, "engine": "package"}
    )
    environment = real.create()
    await environment.reset(real.tasks("train")[0])
    results = await say(environment, *WAY[:3], "go to desk 1", "put mug 1 in/on desk 1", "move mug 1 to desk 1")
    assert [result.is_error for result in results] == [False] * 4 + [True, False]
    assert results[-1].reward == 1


async def test_answers_and_commands_are_those_of_the_bare_package(
    room: Alfworld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", list(sys.argv))  # the translator replaces it
    package = importlib.import_module("alfworld.agents.environment.alfred_tw_env")
    info = importlib.import_module("alfworld.info")
    textworld = importlib.import_module("textworld")
    bare = package.AlfredDemangler(importlib.import_module("textworld.envs").PddlEnv(textworld.EnvInfos()))
    files = {"pddl_domain": info.ALFRED_PDDL_PATH, "grammar": info.ALFRED_TWL2_PATH}
    bare.load({**{name: Path(file).read_text() for name, file in files.items()}, "pddl_problem": problem(HOT)})
    state, environment = bare.reset(), room.create()
    result = await environment.reset(room.tasks("train")[0])
    extra = ["look", "inventory", "examine drawer 2", "nonsense", "close drawer 2", "examine mug 1", "help"]
    for command in (*WAY[:3], *extra, *WAY[3:]):
        assert result.info["admissible"] == state["admissible_commands"]
        state, _, won = bare.step(command)
        (result,) = await say(environment, command)
        assert (result.observation, result.terminated) == (state["feedback"].strip(), won)
    assert result.terminated


def test_the_wordings_of_tasks_are_those_of_the_package() -> None:
    known = importlib.import_module("alfworld.gen.goal_library").gdict
    assert {task_type: tuple(known[task_type]["templates"]) for task_type in GOALS} == GOALS


async def test_recorded_episodes_of_the_real_games_are_answered_word_for_word(tmp_path: Path) -> None:
    data = Path(os.environ.get("ALFWORLD_DATA", "nowhere"))
    recorded = data / "trajectories_planner.jsonl.xz"
    if not recorded.is_file():
        pytest.skip("ALFWORLD_DATA is not a folder with trajectories_planner.jsonl.xz")
    with lzma.open(recorded, "rt") as lines:
        episode = json.loads(next(lines))
    with lzma.open(data / f"{episode['split']}.jsonl.xz", "rt") as lines:
        (game,) = (line for line in lines if f'"{episode["game"]}"' in line)
    real = alfworld(
        {
            "data": str(pack(tmp_path / "data", [json.loads(game)])),
            "cache": str(tmp_path),
            "workers": 1,
            "engine": "package",
        }
    )
    environment = real.create()
    start = await environment.reset(real.tasks("train")[0])
    assert start.observation == episode["initial_observation"].split("\n\n")[1]
    for step in episode["steps"]:
        (result,) = await say(environment, step["action"])
        assert (result.observation, result.reward, result.terminated, result.info["admissible"]) == (
            step["observation"],
            step["reward"],
            step["done"],
            step["admissible"],
        )
