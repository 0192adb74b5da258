"""A conversation of the benchmark as a task: its instruction, its initial state, its split, and its check."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from pydantic import JsonValue

from dreamgym.state import as_text
from dreamgym.types import JsonObject, Task
from dreamgym_integrations.environments.bfcl.state import System
from dreamgym_integrations.environments.bfcl.suite import MAIN, Conversation, Suite
from dreamgym_integrations.environments.bfcl.tools import NEXT
from dreamgym_integrations.environments.bfcl.world import ApiInstances, FunctionResult

PLACES = ("train", "train", "dev", "train", "test")
"""The splits of each five successive worlds, in the benchmark's order."""


def instruction_of(conversation: Conversation) -> str:
    """The agent's instruction: how the conversation goes, which tools work in it, and the first message."""
    lacking = f", except for {', '.join(sorted(conversation.excluded))}" if conversation.excluded else ""
    return (
        f"You serve a user with tools. In this conversation only those of {' and '.join(conversation.classes)} work"
        f"{lacking}. When a request is done, call {NEXT}: it answers with the user's next message, and ends the "
        f"conversation after the last one. Do not ask back: the user gives no other answers.\n\n"
        f"The user says: {conversation.messages[0]}"
    )


def state_of(
    conversation: Conversation, request: int, world: ApiInstances, systems: Mapping[str, System]
) -> JsonObject:
    """The state in which the user waits for a request.

    `request` counts from 1. At the end it is one more than the number of requests.
    """
    texts: JsonObject = {
        str(number): {"number": str(number), "text": text} for number, text in enumerate(conversation.messages, start=1)
    }
    return {
        "conversation": conversation.id,
        "request": request,
        "requests": texts,
        **world.state(systems),
    }


def task_of(conversation: Conversation, suite: Suite, systems: Mapping[str, System], *, env: str, split: str) -> Task:
    """The task. Its check asks for the last state of the ground truth, and for the answers that the ground truth got.

    The check is for simulations. The real reward also compares the state after each single request.
    """
    world = ApiInstances(conversation, suite.make)
    start = state_of(conversation, 1, world, systems)
    answers: list[JsonValue] = [
        text_of(world.call(suite.owners[call.name], call)) for calls in conversation.calls for call in calls
    ]
    goal = goal_of(conversation, state_of(conversation, 1, world, systems), systems)
    return Task(
        id=f"{env}-{split}-{conversation.id.removeprefix('multi_turn_base_')}",
        env=env,
        instruction=instruction_of(conversation),
        initial_state=as_text(start),
        metadata={"conversation": conversation.id, "split": split, "success": goal, "answers": answers},
    )


def text_of(answer: FunctionResult) -> str:
    """A function's result as the agent reads it."""
    return json.dumps(answer.structured, ensure_ascii=False)


def goal_of(conversation: Conversation, state: JsonObject, systems: Mapping[str, System]) -> JsonObject:
    """JSON Schema: the last request has been reached, and the systems are as in `state`."""
    properties: JsonObject = {"request": {"minimum": len(conversation.messages)}}
    for name in conversation.classes:
        properties.update(systems[name].goal(state))
    return {"type": "object", "properties": properties, "required": list(properties)}


def split_by_world(conversations: Sequence[Conversation]) -> list[tuple[Conversation, str]]:
    """Each conversation with its split. Those whose main class starts alike share a world, and so a split."""
    worlds: dict[str, str] = {}
    split = []
    for conversation in conversations:
        main = next(name for name in conversation.classes if name in MAIN)
        world = json.dumps([main, conversation.config.get(main)], sort_keys=True)
        split.append((conversation, worlds.setdefault(world, PLACES[len(worlds) % len(PLACES)])))
    return split
