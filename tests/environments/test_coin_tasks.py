"""The task list of `coin`, and its behaviours, which play without a language model."""

import asyncio
import runpy
from pathlib import Path

import pytest
from dreamgym_integrations.environments.base import SPLITS
from dreamgym_integrations.environments.textworld_express.coin import COIN as COIN_GAME
from dreamgym_integrations.environments.textworld_express.coin import GRAMMAR
from dreamgym_integrations.environments.textworld_express.engine import SEEDS, GameEnvironment

from dreamgym.environment import Behaviour, load_real
from dreamgym.errors import EpisodeFinished, UnknownName
from dreamgym.types import StepResult, Task, ToolCall

pytestmark = pytest.mark.anyio
COIN = load_real("coin")
TASK_LISTS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/tasklists/games.py"))
places, coin_lines = TASK_LISTS["places"], TASK_LISTS["coin_lines"]


class Limited:
    """The real game with the limit that the server would set; remembers the commands."""

    tools = (COIN_GAME.tool,)

    def __init__(self) -> None:
        self._game = GameEnvironment(COIN_GAME)
        self.commands: list[str] = []
        self.results: list[StepResult] = []

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self.commands, self.results = [], []
        return await self._game.reset(task, seed=seed)

    async def step(self, action: ToolCall) -> StepResult:
        if self.results and self.results[-1].done:
            raise EpisodeFinished("over")
        self.commands.append(str(action.arguments["command"]))
        result = await self._game.step(action)
        if len(self.commands) == COIN.spec.max_steps and not result.terminated:
            result = result.model_copy(update={"truncated": True})
        self.results.append(result)
        return result

    async def close(self) -> None:
        await self._game.close()


async def won(name: str, episodes: int) -> float:
    async def share(tasks: list[Task]) -> int:
        environment, wins = Limited(), 0
        behaviour: Behaviour = COIN.behaviours[name]
        for task in tasks:
            await behaviour(await environment.reset(task), environment, int(str(task.metadata["seed"])))
            wins += environment.results[-1].terminated
        await environment.close()
        return wins

    tasks = list(COIN.tasks("train")[:episodes])
    return sum(await asyncio.gather(*(share(tasks[part::4]) for part in range(4)))) / episodes


def test_there_are_enough_tasks_and_every_id_is_unique() -> None:
    counts = {split: len(COIN.tasks(split)) for split in SPLITS}
    assert counts["train"] > 1950
    assert counts["dev"] > 950
    assert counts["test"] >= 1000
    ids = [task.id for split in SPLITS for task in COIN.tasks(split)]
    assert len(set(ids)) == len(ids)


def test_each_split_has_its_own_range_of_seeds() -> None:
    for split in SPLITS:
        assert all(task.metadata["seed"] in SEEDS[split] for task in COIN.tasks(split))


def test_an_unknown_split_is_refused_with_the_list_of_splits() -> None:
    with pytest.raises(UnknownName, match="dev, test, train"):
        COIN.tasks("valid")


async def test_tasks_start_as_the_live_game_does() -> None:
    environment = COIN.create()
    for task in [task for split in SPLITS for task in COIN.tasks(split)[::100]]:
        assert (await environment.reset(task)).observation == task.initial_state
    await environment.close()


async def test_no_sampled_test_world_is_a_training_world() -> None:
    environment = COIN.create()

    async def worlds(tasks: list[Task]) -> list[frozenset[str]]:
        return [frozenset(await places(environment, int(str(task.metadata["seed"])))) for task in tasks]

    tested = list(COIN.tasks("test")[::40])
    starts = {task.initial_state for task in tested}
    played = await worlds(tested)
    trained = await worlds([task for task in COIN.tasks("train") if task.initial_state in starts])
    await environment.close()
    assert len(set(played)) == len(tested) >= 25
    assert len(trained) > 25
    assert not set(trained) & set(played)


async def test_a_world_that_came_before_is_left_out_of_the_task_list() -> None:
    listed = [line async for line in coin_lines({"train": [3, 4], "dev": [4, 5], "test": [3, 6]})]
    assert [line.split("\t")[:2] for line in listed] == [["train", "3"], ["train", "4"], ["dev", "5"], ["test", "6"]]


async def test_a_world_has_eight_places_and_one_coin() -> None:
    environment = COIN.create()
    for seed in range(10):
        found = await places(environment, seed)
        assert len(found) == 8
        assert sum(place.endswith("coin here.") for place in found) == 1
    await environment.close()


async def test_the_expert_wins_nine_in_ten_and_random_play_one_in_six() -> None:
    assert 0.8 < await won("expert", 200) < 0.97
    assert 0.08 < await won("random", 200) < 0.25


async def test_noisy_and_mixed_play_lie_between() -> None:
    assert 0.15 < await won("noisy", 200) < 0.4
    assert 0.35 < await won("mixed", 200) < 0.65


async def test_the_more_expertise_the_more_success() -> None:
    shares = [await won(name, 100) for name in ("noisy", "expert_60", "expert_80", "expert")]
    assert shares == sorted(set(shares))


async def test_bad_play_contains_impossible_moves_and_malformed_text() -> None:
    environment, said = Limited(), set()
    refused = 0
    for task in COIN.tasks("train")[:30]:
        await COIN.behaviours["random"](await environment.reset(task), environment, 7)
        said |= set(environment.commands)
        refused += sum(result.is_error for result in environment.results)
    await environment.close()
    assert said > set(GRAMMAR)
    assert refused > 60


async def test_the_same_seed_plays_the_same_game() -> None:
    environment = Limited()
    played = []
    for seed in (3, 3, 4):
        await COIN.behaviours["mixed"](await environment.reset(COIN.tasks("train")[0]), environment, seed)
        played.append(environment.commands)
    await environment.close()
    assert played[0] == played[1] != played[2]
