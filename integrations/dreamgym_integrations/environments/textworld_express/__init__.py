"""The games of TextWorldExpress (Jansen and Cote, 2022) as real environments.

The package's own folds share worlds. So tasks are split by seed here, and a split leaves out worlds of earlier splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from pydantic import Field

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.errors import UnknownName
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.base import SPLITS, check_split, checked, packed_lines
from dreamgym_integrations.environments.textworld_express.engine import Game, GameEnvironment, GameSeed, distinct_worlds


class GameOptions(Frozen):
    """Options of an environment folder, under [real]."""

    max_steps: int | None = Field(default=None, ge=1)
    """None: the game's own limit."""
    params: dict[str, int] = Field(default_factory=dict)
    """The package's own generation parameters, such as numLocations."""


class TextWorldExpress:
    """One game as a real environment: its description, tasks, behaviours and new instances.

    Raises:
        InvalidInput, UnknownName: an option or a parameter that the game does not have.
    """

    def __init__(self, game: Game, options: JsonObject) -> None:
        self._game = game
        self._options = checked(GameOptions, game.name, options)
        for parameter in self._options.params:
            if parameter not in game.parameters:
                raise UnknownName(f"parameter of {game.name}", parameter, game.parameters)
        self._name = game.setting(self._options.params)
        self.behaviours: Mapping[str, Behaviour] = game.behaviours

    @cached_property
    def spec(self) -> EnvironmentSpec:
        max_steps = self._options.max_steps or self._game.max_steps
        options: JsonObject = {"max_steps": max_steps}
        if self._options.params:
            options["params"] = dict(self._options.params)
        return EnvironmentSpec(
            name=self._name,
            description=self._game.description,
            rules=self._game.rules,
            tools_list=({"tools": [self._game.tool]},),
            max_steps=max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter=self._game.name,
            options=options,
        )

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        worlds: Iterable[GameSeed]
        if self._name == self._game.name:
            worlds = map(GameSeed.of_line, packed_lines(__name__, f"{self._name}_worlds.tsv.xz"))
        else:
            worlds = distinct_worlds(self._game, self._options.params)
        tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for world in worlds:
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
        check_split(split)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new instance that nobody else uses."""
        return GameEnvironment(self._game, self._options.params)
