"""The real game `coin`: what the agent reads, how an episode ends, and many games at once."""

import asyncio
import json
import lzma
from pathlib import Path
from random import Random

import pytest
from dreamgym_integrations.environments.base import act
from dreamgym_integrations.environments.textworld_express.coin import COIN, short, view
from dreamgym_integrations.environments.textworld_express.coin import GRAMMAR as COMMANDS
from dreamgym_integrations.environments.textworld_express.engine import GameEnvironment, java_games
from pydantic import JsonValue

from dreamgym.environment import load_real
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, UnknownName
from dreamgym.types import StepResult, Task, ToolCall

pytestmark = pytest.mark.anyio

RECORDED = Path(__file__).parents[3] / "shared/data/textworld_express/gold_trajectories.jsonl.xz"
KITCHEN = (
    "You are in the kitchen. In one part of the room you see a stove. There is also an oven. {coin}\n"
    "To the South you see the corridor. To the East you see the living room. To the West you see the pantry. "
)


def world(seed: int) -> Task:
    return Task(id=f"coin-{seed}", env="coin", instruction="", metadata={"seed": seed})


async def play(environment: GameEnvironment, seed: int, commands: list[str]) -> list[StepResult]:
    results = [await environment.reset(world(seed))]
    for command in commands:
        if results[-1].done:
            break
        results.append(await environment.step(act(command)))
    return results


def test_a_view_shows_the_place_its_exits_clockwise_and_the_coin() -> None:
    assert view(KITCHEN.format(coin="")) == "kitchen. east: living room. south: corridor. west: pantry."
    assert view(KITCHEN.format(coin="You also see a coin. ")).endswith("west: pantry. coin here.")


def test_a_door_hides_the_place_behind_it_until_it_is_open() -> None:
    text = "You are in the pantry. To the North you see a closed frosted-glass door. Through an open screen door, "
    assert view(text + "to the East you see the kitchen. ") == "pantry. north: closed door. east: kitchen."


def test_a_text_that_describes_no_place_is_a_fault_of_the_environment_and_quoted() -> None:
    with pytest.raises(EnvironmentUnavailable, match="Unknown action"):
        view("Unknown action: I'm not sure what you mean.")


def test_replies_that_describe_no_place_become_a_few_words() -> None:
    assert short("Unknown action: I'm not sure what you mean.") == "unknown action."
    assert short("Inventory: \n  Your inventory is currently empty.\n") == "you carry nothing."
    assert short("You take the coin.") == "you take the coin."


@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recorded games at {RECORDED}")
def test_every_recorded_place_of_the_real_game_is_read_completely() -> None:
    places = 0
    for line in lzma.decompress(RECORDED.read_bytes()).decode().splitlines():
        episode = json.loads(line)
        if episode["game"] != "coin":
            continue
        for raw in [episode["initial_observation"], *(step["observation"] for step in episode["steps"])]:
            if not raw.startswith("You are in the "):
                continue
            shown = view(raw)
            sides = {side for side in ("North", "East", "South", "West") if f"o the {side} you see" in raw}
            assert sum(f" {side.lower()}: " in shown for side in sides) == len(sides) == shown.count(": ")
            assert shown.endswith("coin here.") == (" coin" in raw)
            places += 1
    assert places > 100


async def test_the_coin_ends_the_episode_with_reward_one() -> None:
    environment = GameEnvironment(COIN)
    start, won = await play(environment, 1, ["take coin"])
    assert start.observation == "kitchen. north: laundry room. south: living room. west: pantry. coin here."
    assert won == StepResult(observation="you take the coin.", reward=1.0, terminated=True)
    with pytest.raises(EpisodeFinished):
        await environment.step(act("look around"))
    await environment.close()


async def test_a_command_that_shows_no_place_is_answered_with_the_reply_and_the_place() -> None:
    environment = GameEnvironment(COIN)
    start, unknown, carried, looked = await play(environment, 0, ["move north", "inventory", "look around"])
    assert unknown.observation == f"unknown action. {start.observation}"
    assert (unknown.is_error, unknown.reward, unknown.done) == (True, 0.0, False)
    assert carried.observation == f"you carry nothing. {start.observation}"
    assert not carried.is_error
    assert {result.state for result in (start, unknown, carried, looked)} == {start.observation}
    await environment.close()


@pytest.mark.parametrize("command", ["", " ", "coin", "take", "MOVE EAST", "north", "x" * 5000, "möve\neast", "help"])
async def test_malformed_text_is_an_unknown_action_and_changes_nothing(command: str) -> None:
    environment = GameEnvironment(COIN)
    start, result = await play(environment, 1, [command])
    assert result.is_error
    assert result.state == start.observation
    await environment.close()


async def test_a_move_leads_to_the_place_that_the_exit_names_and_back() -> None:
    environment = GameEnvironment(COIN)
    start, there, back = await play(environment, 0, ["move east", "move west"])
    assert there.observation.startswith("living room. ")
    assert "west: kitchen." in there.observation
    assert back == start
    await environment.close()


async def test_twenty_games_at_once_play_as_they_do_alone() -> None:
    draw = Random(0)
    commands = {seed: [draw.choice([*COMMANDS, "coin"]) for _ in range(12)] for seed in range(20)}
    alone = GameEnvironment(COIN)
    expected = [await play(alone, seed, commands[seed]) for seed in commands]
    await alone.close()
    environments = [GameEnvironment(COIN) for _ in commands]
    together = await asyncio.gather(*(play(environments[seed], seed, commands[seed]) for seed in commands))
    for environment in environments:
        await environment.close()
    assert list(together) == expected
    assert len({results[0].observation for results in expected}) > 10


async def test_games_are_reused_and_share_one_java_process() -> None:
    first = GameEnvironment(COIN)
    await first.reset(world(0))
    process = java_games.process
    await first.close()
    others = [GameEnvironment(COIN) for _ in range(8)]
    for environment in others:
        await environment.reset(world(0))
    assert process is not None
    assert java_games.process is process
    assert process.poll() is None
    for environment in others:
        await environment.close()


@pytest.mark.parametrize("seed", [None, "1", True, 2**31])
async def test_a_task_without_a_world_is_refused_with_what_was_expected(seed: JsonValue) -> None:
    with pytest.raises(InvalidInput, match=rf"whole number in metadata\.seed, of at most 32 bits, got {seed!r}"):
        await GameEnvironment(COIN).reset(Task(id="t", env="coin", instruction="", metadata={"seed": seed}))


async def test_an_unknown_tool_and_a_wrong_argument_are_refused_by_name() -> None:
    environment = GameEnvironment(COIN)
    await environment.reset(world(0))
    with pytest.raises(UnknownName, match="act"):
        await environment.step(ToolCall(name="jump"))
    with pytest.raises(InvalidInput, match="command"):
        await environment.step(ToolCall(name="act", arguments={"command": 3}))
    await environment.close()


async def test_a_killed_java_process_fails_the_step_and_the_next_game_gets_a_new_one() -> None:
    environment = GameEnvironment(COIN)
    await environment.reset(world(0))
    process = java_games.process
    assert process is not None
    process.kill()
    process.wait(timeout=10)
    with pytest.raises(EnvironmentUnavailable, match="Java process failed"):
        await environment.step(act("look around"))
    with pytest.raises(EpisodeFinished):
        await environment.step(act("look around"))
    assert (await environment.reset(world(1))).observation.endswith("coin here.")
    await environment.close()


def test_options_are_checked_by_name() -> None:
    assert load_real("coin", {"max_steps": 5}).spec.max_steps == 5
    with pytest.raises(InvalidInput, match="rooms"):
        load_real("coin", {"rooms": 4})
