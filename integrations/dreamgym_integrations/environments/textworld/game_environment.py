"""One game of TextWorldExpress as an environment: what is said to it, and what it answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.commands import command_of
from dreamgym_integrations.environments.textworld import java_games
from dreamgym_integrations.environments.textworld.game import REFUSALS, Game
from dreamgym_integrations.environments.textworld.scenes import plain


def act_tool(game: Game) -> JsonObject:
    """The one tool: say a command to the game."""
    return {
        "name": "act",
        "description": f"{game.doing} Commands: {game.commands}.",
        "inputSchema": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": f"One command, for example: {game.example}"}},
            "required": ["command"],
            "additionalProperties": False,
        },
    }


class GameEnvironment:
    """One game at a time. The world is the task's own: the seed of `reset` changes nothing."""

    def __init__(self, game: Game, parameters: Mapping[str, int] | None = None) -> None:
        self.tools: Sequence[JsonObject] = (act_tool(game),)
        self._game = game
        self._loaded = (game.name, java_games.parameters({**game.parameters, **(parameters or {})}))
        self._java: Any = None
        self._playing = False
        self._view = ""
        self._words: dict[str, str] = {}

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the world that `task.metadata["seed"]` names."""
        world = task.metadata.get("seed")
        if not isinstance(world, int):
            raise InvalidInput(f"task {task.id!r}: expected a whole number in metadata.seed, got {world!r}")
        answer = await asyncio.to_thread(self._call, "generateNewGameJSON", world, "train", False)
        self._playing = True
        self._see(answer)
        return StepResult(observation=self._view)

    async def step(self, action: ToolCall) -> StepResult:
        """Say one command to the game."""
        command = command_of(action, is_playing=self._playing)
        answer = await asyncio.to_thread(self._call, "stepJSON", self._words.get(command, command))
        reply = self._game.shorten(answer["observation"])
        if answer["tasksuccess"] or answer["taskfailure"]:
            # Not followed by the place: without what was taken from it, it would be a place of some other world.
            self._playing = False
            return StepResult(observation=reply, reward=float(answer["tasksuccess"]), terminated=True)
        self._see(answer)
        shown = self._view if answer["observation"] == answer["look"] or reply in ("", self._view) else ""
        observation = shown or f"{reply} {self._view}"
        done = f" score: {round(100 * answer['score'])}." if answer["score"] > 0 else ""
        state = f"{self._view}{done}"
        return StepResult(
            observation=observation,
            is_error=not shown and reply.startswith(REFUSALS),
            info={"state": state} if state != observation else {},
        )

    async def close(self) -> None:
        """Hand the game back."""
        java, self._java, self._playing = self._java, None, False
        if java is not None:
            java_games.games.give_back(java, *self._loaded)

    def _see(self, answer: Mapping[str, Any]) -> None:
        self._view = self._game.view(answer) or self._view
        self._words = {plain(command): command for command in answer["validActions"]}

    def _call(self, method: str, *arguments: str | int | bool) -> dict[str, Any]:
        if self._java is None:
            self._java = java_games.games.take(*self._loaded)
        try:
            with java_games.java_failures():
                return cast("dict[str, Any]", json.loads(getattr(self._java, method)(*arguments)))
        except EnvironmentUnavailable:
            self._java, self._playing = None, False
            raise
