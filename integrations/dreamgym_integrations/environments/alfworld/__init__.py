"""ALFWorld's text games (Shridhar et al., 2021) as a real environment: household tasks of six types in 120 floor plans.

The user supplies the games (see `data`). Their folder is the option `data`, or the variable ALFWORLD_DATA, which the
package reads too. Two engines play them. `own` (see `own_engine`) is pure Python in this process and needs no package.
`package` is the reference for published figures. It builds each game once from its PDDL problem, with the installed
package's own domain and grammar, and keeps it by its content in the folder `cache` (by default dreamgym/alfworld in the
user's cache folder). It plays in worker processes (see `workers`). With the official data, dev and test are its
valid_seen and valid_unseen. With packed rows that have no official held-out games, they are cut by floor plan.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import platformdirs
from pydantic import Field

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.alfworld.data import DOWNLOAD, Games
from dreamgym_integrations.environments.alfworld.goals import AlfworldGoals
from dreamgym_integrations.environments.alfworld.own_engine import OwnEpisode
from dreamgym_integrations.environments.alfworld.players import behaviours, informed_plan
from dreamgym_integrations.environments.alfworld.reader import AlfworldReader
from dreamgym_integrations.environments.alfworld.wording import REFUSAL
from dreamgym_integrations.environments.alfworld.workers import WorkerEpisode, Workers, workers
from dreamgym_integrations.environments.base import act_tool, check_goal, checked, command_of

COMMANDS = (
    "go to PLACE, open PLACE, close PLACE, take OBJECT from PLACE, move OBJECT to PLACE, use LAMP, "
    "heat OBJECT with MICROWAVE, cool OBJECT with FRIDGE, clean OBJECT with SINKBASIN, slice OBJECT with KNIFE, "
    "examine THING, look, inventory, help"
)
RULES = """A room with numbered places (`drawer 2`) and numbered objects (`mug 1`), which lie in or on places.
`go to PLACE` answers with what lies there, or that it is closed; a closed place shows its objects once it is opened.
`take OBJECT from PLACE` and `move OBJECT to PLACE` work at that place, if it is open; one object is carried at most.
`heat`, `cool` and `clean` change the carried object at a microwave, a fridge or a sink; `use` turns a lamp on.
Everything else, such as a command for another place or a text that is no command, answers `Nothing happens.`
The task is done, with reward 1, once the world is as asked; to look at a thing is to carry it where a lamp is on."""
ACT = act_tool(
    f"Do one thing in the room. Commands: {COMMANDS}. Places and objects have numbers.",
    example="take mug 1 from desk 2",
)


class AlfworldOptions(Frozen):
    """Options of an environment folder, under [real]."""

    data: Path | None = None
    """Folder of the games; None: ALFWORLD_DATA, or the package's own folder."""
    engine: Literal["own", "package"] = "own"
    """`own` is this project's, in pure Python; `package` is ALFWorld's, in the extra `alfworld`. Both answer alike."""
    cache: Path | None = None
    """None: dreamgym/alfworld in the user's cache folder."""
    incomplete: bool = False
    """Play the games that exist of an incomplete official download."""
    max_steps: int = Field(default=50, ge=1)
    workers: int | None = Field(default=None, ge=1)
    """Processes that play with the engine `package`; None: one per core."""


class Alfworld:
    """ALFWorld as a real environment: description, tasks, behaviours and new instances."""

    def __init__(self, options: AlfworldOptions) -> None:
        self._options = options
        self._cache = options.cache or platformdirs.user_cache_path("dreamgym") / "alfworld"
        self.reader = AlfworldReader()
        self.goals = AlfworldGoals()
        self.needs_packages = options.engine == "package"

    @cached_property
    def spec(self) -> EnvironmentSpec:
        """The description, with the training tasks. Raises InvalidInput if the games are missing."""
        return EnvironmentSpec(
            name="alfworld",
            description="Household tasks of six types in rooms of numbered places and objects (ALFWorld, text games). "
            "Splits: the official ones where the data have them, else cut so that none shares a floor plan.",
            rules=RULES,
            tools_list=({"tools": [ACT]},),
            max_steps=self._options.max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter="alfworld",
            options=self._options.model_dump(mode="json", exclude_defaults=True),
        )

    @cached_property
    def games(self) -> Games:
        """The user's games. Raises InvalidInput."""
        data = self._options.data or Path(os.environ.get("ALFWORLD_DATA") or Path.home() / ".cache" / "alfworld")
        if self._options.data is None and not data.is_dir():
            raise InvalidInput(
                f"ALFWorld's games are not in {data}: {DOWNLOAD}, or set [real] data or ALFWORLD_DATA to their folder"
            )
        return Games(data, self._cache, incomplete=self._options.incomplete)

    @property
    def workers(self) -> Workers:
        """The processes that play with the package's engine; all environments of this process share them."""
        return workers(self._cache / "built", self._options.workers or len(os.sched_getaffinity(0)))

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, in an order that mixes the six types; no game is in two splits."""
        return self.games.tasks(split)

    @cached_property
    def behaviours(self) -> Mapping[str, Behaviour]:
        """Behaviours by name. `expert`, the planner, knows the whole world; the others know what an agent reads."""
        return behaviours(self.plan)

    async def plan(self, task: Task) -> list[str]:
        """Commands that lead from a task's start to its goal, planned with the whole world known."""
        problem = self.games.problem(game_of(task))
        return await self.workers.plan(problem) if self.needs_packages else informed_plan(problem, task.instruction)

    def episode(self, task: Task) -> WorkerEpisode | OwnEpisode:
        """A new episode of the task's game, played by the engine of the options.

        Raises InvalidInput for a task that names no game, or that asks for something else than its game.
        """
        game = game_of(task)
        check_goal(task, self.games.instruction(game))
        problem = self.games.problem(game)
        return WorkerEpisode(self.workers, problem) if self.needs_packages else OwnEpisode(problem)

    def create(self) -> Environment:
        """A new instance that nobody else uses."""
        return AlfworldEnvironment(self)


class AlfworldEnvironment:
    """Plays one game at a time. The task fixes the world; the seed of `reset` is ignored."""

    def __init__(self, real: Alfworld) -> None:
        self.tools: Sequence[JsonObject] = (ACT,)
        self._real = real
        self._episode: WorkerEpisode | OwnEpisode | None = None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the game `task.metadata["game"]`."""
        await self.close()
        episode = self._real.episode(task)
        try:
            result = seen(await episode.begin())
        except BaseException:
            episode.end()
            raise
        self._episode = episode
        return result

    async def step(self, action: ToolCall) -> StepResult:
        """Give one command to the game."""
        command = command_of(action, is_playing=self._episode is not None)
        assert self._episode is not None, "an episode is being played"
        result = seen(await self._episode.step(command))
        if result.terminated:
            await self.close()
        return result

    async def close(self) -> None:
        episode, self._episode = self._episode, None
        if episode is not None:
            episode.end()


def seen(answer: JsonObject) -> StepResult:
    """Convert an engine's answer to the result of a step."""
    observation, state, won = str(answer["answer"]), str(answer["state"]), bool(answer["won"])
    info: JsonObject = {"admissible": answer["admissible"]}
    if state != observation:
        info["state"] = state
    return StepResult(
        observation=observation,
        reward=float(won),
        terminated=won,
        is_error=observation == REFUSAL,
        info=info,
    )


def game_of(task: Task) -> str:
    """Name of a task's game. Raises InvalidInput if there is none, or if the task has a check of its own."""
    if task.metadata.get("success") is not None:
        raise InvalidInput(
            f"task {task.id!r} has a goal of its own (metadata.success), which ALFWorld cannot check: "
            "play it in a dream"
        )
    game = task.metadata.get("game")
    if not isinstance(game, str):
        raise InvalidInput(f"task {task.id!r}: expected the name of a game in metadata.game, got {game!r}")
    return game


def alfworld(options: JsonObject) -> Alfworld:
    """The entry point. Raises InvalidInput for an unknown option."""
    return Alfworld(checked(AlfworldOptions, "alfworld", options))
