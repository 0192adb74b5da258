"""One episode of an unchanged LangGraph agent in the dream, and the same task in the real game, side by side.

The agent is given two URLs. Between the two episodes only one of them changes.
"""

from __future__ import annotations

import asyncio
import textwrap
from itertools import zip_longest
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from pydantic import JsonValue

from dreamgym.episode import load_agent
from dreamgym.files import write_whole
from dreamgym.runs.console import say
from dreamgym.runs.opening import Against
from dreamgym.runs.server_process import server
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Trajectory

if TYPE_CHECKING:
    from dreamgym_integrations.models.chat_server import Reply

COLUMN = 58


def side_by_side(file: Path, env: str, task: Task, dsn: str) -> str:
    """Play both episodes and keep them as text in `file`. The next call reads the file instead."""
    if not file.exists():
        say("an unchanged LangGraph agent plays one task, first in the dream, then in the real environment")
        played = [asyncio.run(_played(env, against, task, dsn)) for against in (Against.DREAM, Against.REAL)]
        both = "".join(episode.model_dump_json() + "\n" for episode in played)
        write_whole(file.with_suffix(".jsonl"), both)  # for `dreamgym view`
        described = f"chat model: scripted ({SCRIPTS[env]})"
        write_whole(file, f"{described}\n{columns(*played)}\n")
    return file.read_text(encoding="utf-8")


async def _played(env: str, against: Against, task: Task, dsn: str) -> Trajectory:
    from dreamgym_client.playing import play_agent
    from dreamgym_integrations.models.chat_server import chat_server

    with server(env, against, model="nearest", dsn=dsn) as url:
        async with chat_server(SCRIPTED[env]) as policy_url:
            return (await play_agent(url, env, load_agent("langgraph"), policy_url, task, 0)).trajectory


def explore(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """A scripted chat model for coin: reads the places from the conversation and continues the search."""
    from dreamgym_integrations.environments.textworld_express.coin import Explorer
    from dreamgym_integrations.models.chat_server import Reply

    explorer, command = Explorer(Random(0)), "look around"
    for message in messages:
        text = text_of(message["content"])
        if message["role"] == "user":
            command = explorer.look(text.splitlines()[-1])
        elif message["role"] == "tool":
            if text in {"you take the coin.", "The session has ended."}:
                return Reply(text="I have the coin." if text.startswith("you") else "I did not find the coin.")
            command = explorer.look(text.removeprefix("unknown action. "))
    return Reply(tool_calls=(ToolCall(name="act", arguments={"command": command}),))


def keep_house(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """A scripted chat model for ALFWorld: searches for the task's object where it usually lies, and fetches it."""
    from dreamgym_integrations.environments.alfworld.players import HouseholdGoal, HouseholdPlayer
    from dreamgym_integrations.environments.alfworld.wording import REFUSAL
    from dreamgym_integrations.models.chat_server import Reply

    player, command = None, "look"
    for message in messages:
        text = text_of(message["content"])
        if message["role"] == "user":
            goal = next(line for line in text.splitlines() if line.startswith("Your task is to: "))
            player = HouseholdPlayer(HouseholdGoal(goal), Random(0))
            text, command = text[text.index("You are in the middle of a room") :], "look"
        elif message["role"] != "tool":
            continue
        if text == "The session has ended.":
            return Reply(text="The session has ended.")
        assert player is not None, "the task comes first"
        player.see(StepResult(observation=text, is_error=text == REFUSAL), command)
        command = player.command()
    return Reply(tool_calls=(ToolCall(name="act", arguments={"command": command}),))


SCRIPTED = {"coin": explore, "alfworld": keep_house}
"""Scripted chat model of each environment."""
SCRIPTS = {"coin": "a depth-first search", "alfworld": "a search in the usual places of the object"}


def text_of(content: JsonValue) -> str:
    """A message's text, which some frameworks send in parts."""
    if isinstance(content, list):
        return "".join(str(part["text"]) for part in content if isinstance(part, dict))
    return str(content)


def columns(dream: Trajectory, real: Trajectory) -> str:
    """Two episodes in two columns."""
    left, right = _told("DREAM", dream), _told("REAL", real)
    return "\n".join(f"{a:<{COLUMN}} | {b}" for a, b in zip_longest(left, right, fillvalue=""))


def _told(title: str, trajectory: Trajectory) -> list[str]:
    lines = [title, *textwrap.wrap(trajectory.task.initial_state or "", COLUMN)]
    for transition in trajectory.transitions:
        lines.append(f"> {' '.join(str(value) for value in transition.action.arguments.values())}")
        lines += textwrap.wrap(transition.result.observation, COLUMN)
    return [*lines, f"[{trajectory.end}]"]
