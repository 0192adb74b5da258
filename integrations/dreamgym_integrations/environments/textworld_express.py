"""The game `coin` of TextWorldExpress (Jansen and Cote, 2022) as a real environment: find the coin and take it.

The agent sees the abstract state of a place, not the game's prose: its name, its exits and whether the coin lies there
(`kitchen. north: backyard. west: pantry. coin here.`). Furniture depends on the place alone, so nothing is lost.
One Java process serves the whole Python process and holds one game per environment, so any number run at once.
The package's own folds share worlds, so tasks are split by seed, and worlds seen in training are left out of the rest.
"""

from __future__ import annotations

import asyncio
import json
import lzma
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from typing import Any, cast

from pydantic import Field, ValidationError

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, first_reason
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, UnknownName
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.coin_behaviours import BEHAVIOURS
from dreamgym_integrations.environments.java_games import games, java_failures

COMMANDS = ("move north", "move east", "move south", "move west", "take coin", "look around", "inventory")
SPLITS = ("train", "dev", "test")
INSTRUCTION = "Search the house for the coin and take it."
RULES = f"""A house of eight places. The commands are: {", ".join(COMMANDS)}.
Moving to an exit, or looking around, answers with the place: its name, its exits, and `coin here.` if it is there.
Exits lead both ways, nothing but the coin ever changes, and a place looks the same each time it is entered.
`inventory` answers `you carry nothing.` and then the place.
`take coin` where the coin is answers `you take the coin.`: this is success and the end.
Everything else, such as a move where there is no exit or a text that is no command, answers `unknown action.` as an \
error and then the place."""
ACT: JsonObject = {
    "name": "act",
    "description": f"Do one thing in the house. Commands: {', '.join(COMMANDS)}.",
    "inputSchema": {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "One command, for example: move north"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}

_PLACE = re.compile(r"You are in the ([a-z ]+)\.")
_EXIT = re.compile(r"[Tt]o the (North|East|South|West) you see (?:the ([a-z ]+)|a (closed) [a-z -]*door)\.")
_SHORT = {
    "Unknown action: I'm not sure what you mean.": "unknown action.",
    "Inventory: Your inventory is currently empty.": "you carry nothing.",
}


def view(look: str) -> str:
    """The game's description of a place, shortened to its name, its exits clockwise from the north, and the coin."""
    place = _PLACE.search(look)
    if place is None:
        raise EnvironmentUnavailable(f"expected the description of a place from the game, got {look[:200]!r}")
    exits = {side.lower(): there or "closed door" for side, there, _ in _EXIT.findall(look)}
    parts = [place[1], *(f"{side}: {exits[side]}" for side in ("north", "east", "south", "west") if side in exits)]
    return ". ".join([*parts, *(["coin here"] if re.search(r"\bcoin\b", look) else [])]) + "."


def short(reply: str) -> str:
    """A reply that describes no place, in few words."""
    line = " ".join(reply.split())
    return _SHORT.get(line, line.lower())


class CoinOptions(Frozen):
    """What an environment folder may set under [real]."""

    max_steps: int = Field(default=12, ge=1)
    """At 12 an expert solves about nine tasks in ten, and random play one in six."""


class CoinEnvironment:
    """One game at a time. The world is the task's own: the seed of `reset` changes nothing."""

    tools: Sequence[JsonObject] = (ACT,)

    def __init__(self) -> None:
        self._game: Any = None
        self._playing = False

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the world that `task.metadata["seed"]` names."""
        world = task.metadata.get("seed")
        if not isinstance(world, int):
            raise InvalidInput(f"task {task.id!r}: expected a whole number in metadata.seed, got {world!r}")
        answer = await asyncio.to_thread(self._call, "generateNewGameJSON", world, "train", False)
        self._playing = True
        return StepResult(observation=view(answer["look"]))

    async def step(self, action: ToolCall) -> StepResult:
        """Say one command to the game."""
        command = action.arguments.get("command")
        if action.name != "act":
            raise UnknownName("tool", action.name, ["act"])
        if not isinstance(command, str):
            raise InvalidInput(f"act expects a string 'command', got {command!r}")
        if not self._playing:
            raise EpisodeFinished("the episode is over or was never started: reset starts one")
        answer = await asyncio.to_thread(self._call, "stepJSON", command)
        reply, place = short(answer["observation"]), view(answer["look"])
        if answer["tasksuccess"]:
            # Not followed by the place: without its coin it would be a place of some other world.
            self._playing = False
            return StepResult(observation=reply, reward=1.0, terminated=True)
        if answer["observation"] == answer["look"]:
            return StepResult(observation=place)
        refused = reply == "unknown action."
        return StepResult(observation=f"{reply} {place}", is_error=refused, info={"state": place})

    async def close(self) -> None:
        """Hand the game back."""
        game, self._game, self._playing = self._game, None, False
        if game is not None:
            games.give_back(game)

    def _call(self, method: str, *arguments: str | int | bool) -> dict[str, Any]:
        if self._game is None:
            self._game = games.take()
        try:
            with java_failures():
                return cast("dict[str, Any]", json.loads(getattr(self._game, method)(*arguments)))
        except EnvironmentUnavailable:
            self._game, self._playing = None, False
            raise


class Coin:
    """The game as the entry point `coin` gives it: what it is, its tasks, ways to play it, and new worlds."""

    behaviours: Mapping[str, Behaviour] = BEHAVIOURS

    def __init__(self, options: CoinOptions) -> None:
        self._options = options

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The description, with the training tasks."""
        return EnvironmentSpec(
            name="coin",
            description="Find the coin in a house of eight places and take it (TextWorldExpress, game coin).",
            rules=RULES,
            tools_list=({"tools": [ACT]},),
            max_steps=self._options.max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter="coin",
            options=self._options.model_dump(),
        )

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        packed = files("dreamgym_integrations.environments").joinpath("coin_worlds.tsv.xz").read_bytes()
        tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for line in lzma.decompress(packed).decode().splitlines():
            split, seed, start = line.split("\t")
            tasks[split].append(
                Task(
                    id=f"coin-{split}-{seed}",
                    env="coin",
                    instruction=INSTRUCTION,
                    initial_state=start,
                    metadata={"seed": int(seed), "split": split},
                )
            )
        return tasks

    def tasks(self, split: str) -> Sequence[Task]:
        """About 2,000 train, 1,000 dev and 1,000 test tasks; no world occurs twice."""
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new world that nobody else uses."""
        return CoinEnvironment()


def coin(options: JsonObject) -> Coin:
    """The entry point `coin`. Raises InvalidInput for an option that it does not know."""
    try:
        return Coin(CoinOptions.model_validate(options))
    except ValidationError as error:
        raise InvalidInput(f"environment 'coin', its options: {first_reason(error)}") from error
