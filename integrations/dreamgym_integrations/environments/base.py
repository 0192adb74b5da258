"""Shared by all environments: checked options, splits, the tool of a text game, and play of a given skill."""

from __future__ import annotations

import lzma
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from random import Random
from typing import TypeVar

from pydantic import ValidationError

from dreamgym.environment import Behaviour, Environment, first_reason
from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.types import Frozen, JsonObject, Origin, StepResult, Task, ToolCall

OptionsT = TypeVar("OptionsT", bound=Frozen)

SPLITS = ("train", "dev", "test")
MIXED_SHARES = (0.0, 0.3, 0.6, 0.9)
"""Shares of good actions that `mixed` draws from, once per episode."""

SkilledPlay = Callable[[StepResult, Environment, Random, float, float], Awaitable[None]]
"""Plays an episode to its end, given its start, the environment, a source of randomness, the share of good actions, and
the share of slips (impossible or malformed actions) among the others."""


def checked(options: type[OptionsT], env: str, given: JsonObject) -> OptionsT:
    """Validate the options of an environment folder. Raises InvalidInput with environment, option and reason."""
    try:
        return options.model_validate(given)
    except ValidationError as error:
        raise InvalidInput(f"environment {env!r}, its options: {first_reason(error)}") from error


def check_split(split: str) -> None:
    """Raises UnknownName unless the split is one of SPLITS."""
    if split not in SPLITS:
        raise UnknownName("split", split, SPLITS)


def check_goal(task: Task, instruction: str) -> None:
    """Raises InvalidInput for a generated task that asks for something else than the world, which rewards its own goal.

    Args:
        instruction: the instruction of the world that the task's metadata names.
    """
    if task.origin is Origin.GENERATED and task.instruction.split() != instruction.split():
        raise InvalidInput(
            f"task {task.id!r} was generated with a goal of its own, but the real environment rewards only "
            f"{instruction.strip()!r}: play it in a dream"
        )


def packed_lines(package: str, name: str) -> list[str]:
    """The lines of an xz-compressed text file inside a package."""
    return lzma.decompress(files(package).joinpath(name).read_bytes()).decode().splitlines()


def act_tool(description: str, example: str) -> JsonObject:
    """The one tool of a text game: `act(command)`."""
    return {
        "name": "act",
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": {"command": {"type": "string", "description": f"One command, for example: {example}"}},
            "required": ["command"],
            "additionalProperties": False,
        },
    }


def act(command: str) -> ToolCall:
    """The call of `act` with this command."""
    return ToolCall(name="act", arguments={"command": command})


def command_of(action: ToolCall, *, is_playing: bool) -> str:
    """The command of a call of `act`.

    Raises:
        UnknownName: another tool was called.
        InvalidInput: the call has no command.
        EpisodeFinished: no episode is running.
    """
    if action.name != "act":
        raise UnknownName("tool", action.name, ["act"])
    command = action.arguments.get("command")
    if not isinstance(command, str):
        raise InvalidInput(f"act expects a string 'command', got {command!r}")
    if not is_playing:
        raise EpisodeFinished("the episode is over or was never started: reset starts one")
    return command


def task_of(environment: Environment) -> Task:
    """The task being played. Raises InvalidInput if the environment has no attribute `task`."""
    task = getattr(environment, "task", None)
    if not isinstance(task, Task):
        raise InvalidInput(
            f"this behaviour needs an environment that has its task in an attribute 'task', got {environment!r}: "
            "play it with dreamgym.episode.play"
        )
    return task


def graded(play: SkilledPlay, good: float, slips: float = 0.0) -> Behaviour:
    """Play in which each action is a good one with probability `good`."""

    async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
        await play(start, environment, Random(seed), good, slips)

    return behaviour


def mixed(play: SkilledPlay, slips: float = 0.0, shares: Sequence[float] = MIXED_SHARES) -> Behaviour:
    """Play whose share of good actions is drawn once per episode, to build a simulator from.

    A policy at once exploits a simulator that has never seen failing or malformed actions, so bad play is data too.
    """

    async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
        random = Random(seed)
        await play(start, environment, random, random.choice(shares), slips)

    return behaviour
