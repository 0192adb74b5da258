"""The games of TextWorldExpress (Jansen and Cote, 2022) as real environments.

One Java process serves the whole Python process and holds one game per environment, so any number run at once.
The package's own folds share worlds, so tasks are split by seed, and worlds seen in training are left out of the rest.
"""

from __future__ import annotations

import lzma
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from importlib.resources import files

from pydantic import Field, ValidationError

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, first_reason
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.textworld.coin import COIN
from dreamgym_integrations.environments.textworld.game import Game
from dreamgym_integrations.environments.textworld.game_environment import GameEnvironment, act_tool
from dreamgym_integrations.environments.textworld.games import TEXT_GAMES
from dreamgym_integrations.environments.textworld.worlds import World, worlds

SPLITS = ("train", "dev", "test")
GAMES: Mapping[str, Game] = {game.name: game for game in (COIN, *TEXT_GAMES)}


class GameOptions(Frozen):
    """What an environment folder may set under [real]."""

    max_steps: int | None = Field(default=None, ge=1)
    """None: the game's own limit."""
    params: dict[str, int] = Field(default_factory=dict)
    """The package's own generation parameters, such as numLocations."""


class TextWorldExpress:
    """A game as an entry point gives it: what it is, its tasks, ways to play it, and new worlds."""

    def __init__(self, game: Game, options: GameOptions) -> None:
        self._game = game
        self._options = options
        self._name = game.setting(options.params)
        self.behaviours: Mapping[str, Behaviour] = game.behaviours

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The description, with the training tasks."""
        max_steps = self._options.max_steps or self._game.max_steps
        options: JsonObject = {"max_steps": max_steps}
        if self._options.params:
            options["params"] = dict(self._options.params)
        return EnvironmentSpec(
            name=self._name,
            description=self._game.description,
            rules=self._game.rules,
            tools_list=({"tools": [act_tool(self._game)]},),
            max_steps=max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter=self._game.name,
            options=options,
        )

    @cached_property
    def _worlds(self) -> Sequence[World]:
        if self._name != self._game.name:
            return list(worlds(self._game, self._options.params))
        packed = (
            files("dreamgym_integrations.environments.textworld").joinpath(f"{self._name}_worlds.tsv.xz").read_bytes()
        )
        return [World.of_line(line) for line in lzma.decompress(packed).decode().splitlines()]

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for world in self._worlds:
            tasks[world.split].append(
                Task(
                    id=f"{self._name}-{world.split}-{world.seed}",
                    env=self._name,
                    instruction=self._game.instruction or world.instruction,
                    initial_state=world.start,
                    metadata={"seed": world.seed, "split": world.split},
                )
            )
        return tasks

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split; no world occurs twice."""
        if split not in SPLITS:
            raise UnknownName("split", split, SPLITS)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new world that nobody else uses."""
        return GameEnvironment(self._game, self._options.params)


def textworld_express(options: JsonObject) -> TextWorldExpress:
    """The entry point: a game by the option `game`. Raises InvalidInput for an option that it does not know."""
    settings = dict(options)
    name = settings.pop("game", "coin")
    if not isinstance(name, str) or name not in GAMES:
        raise UnknownName("game of TextWorldExpress", str(name), GAMES)
    game = GAMES[name]
    try:
        checked = GameOptions.model_validate(settings)
    except ValidationError as error:
        raise InvalidInput(f"environment {name!r}, its options: {first_reason(error)}") from error
    for parameter in checked.params:
        if parameter not in game.parameters:
            raise UnknownName(f"parameter of {name}", parameter, game.parameters)
    return TextWorldExpress(game, checked)


def _named(name: str, options: JsonObject) -> TextWorldExpress:
    return textworld_express({**options, "game": name})


coin, twc, mapreader, cookingworld, arithmetic, sorting, simonsays, peckingorder = (
    partial(_named, name)
    for name in ("coin", "twc", "mapreader", "cookingworld", "arithmetic", "sorting", "simonsays", "peckingorder")
)
"""The entry points by the games' names."""
