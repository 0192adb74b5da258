"""The one tool of a text game, `act(command)`: what is said with it."""

from __future__ import annotations

from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.types import ToolCall


def command_of(action: ToolCall, *, is_playing: bool) -> str:
    """The words of a call.

    Raises:
        UnknownName: it is another tool.
        InvalidInput: it has no command.
        EpisodeFinished: nothing is being played.
    """
    if action.name != "act":
        raise UnknownName("tool", action.name, ["act"])
    command = action.arguments.get("command")
    if not isinstance(command, str):
        raise InvalidInput(f"act expects a string 'command', got {command!r}")
    if not is_playing:
        raise EpisodeFinished("the episode is over or was never started: reset starts one")
    return command
