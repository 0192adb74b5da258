"""A first look in seconds: an unchanged LangGraph agent at the simulation of a recorded shop, no key needed.

The package contains 80 recorded episodes of the shop, which is an MCP server. A script replaces the agent's chat model.
Its sequence of calls was never recorded: the effects of placing the order are learned from other recordings.
"""

from __future__ import annotations

import json
import lzma
from importlib.resources import files
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dreamgym.environment import load_spec, read_jsonl
from dreamgym.episode import load_agent
from dreamgym.runs.opening import served
from dreamgym.runs.side_by_side import text_of
from dreamgym.types import JsonObject, Task, ToolCall, Trajectory

if TYPE_CHECKING:
    from dreamgym_integrations.models.chat_server import Reply

WANTED = "Order an anchor for Ada Quist (customer C-1) and tell her what she has left."
PLAN = (
    ToolCall(name="get_customer", arguments={"customer_id": "C-1"}),
    ToolCall(name="get_product", arguments={"product_id": "P-5"}),
    ToolCall(name="place_order", arguments={"customer_id": "C-1", "items": [{"product_id": "P-5", "quantity": 1}]}),
    ToolCall(name="get_order", arguments={"order_id": "O-1009"}),
    ToolCall(name="get_product", arguments={"product_id": "P-5"}),
    ToolCall(name="get_customer", arguments={"customer_id": "C-1"}),
)
SUCCESS: JsonObject = {
    "properties": {
        "orders": {"required": ["O-1009"]},
        "customers": {"properties": {"C-1": {"properties": {"balance_cents": {"const": 36_800}}}}},
    },
    "required": ["orders", "customers"],
}
"""The task's own check, a JSON Schema over the state: the order exists, and 5,200 of 42,000 cents are paid."""


async def first_look() -> str:
    """Play the task. Return the episode as text, with the tier that answered each call."""
    from dreamgym_client.playing import play_agent
    from dreamgym_integrations.models.chat_server import chat_server
    from dreamgym_server.sources import DreamWorlds

    from dreamgym.dream.nearest import NearestModel
    from dreamgym.embedding import TrigramEncoder
    from dreamgym.replay.memory import MemoryBuffer

    with TemporaryDirectory() as place:
        folder = Path(place)
        for file in ("env.toml", "tools.json"):
            (folder / file).write_bytes((files("dreamgym.runs") / "shop" / file).read_bytes())
        packed = (files("dreamgym.runs") / "shop" / "trajectories.jsonl.xz").read_bytes()
        (folder / "trajectories.jsonl").write_bytes(lzma.decompress(packed))
        spec, recorded = load_spec(place), read_jsonl(folder / "trajectories.jsonl", Trajectory)
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(recorded)
    start = recorded[0].task.initial_state
    task = Task(id="anchor", env=spec.name, instruction=WANTED, initial_state=start, metadata={"success": SUCCESS})
    async with served(DreamWorlds(spec, NearestModel(), buffer)) as url, chat_server(clerk) as chat:
        played = await play_agent(url, spec.name, load_agent("langgraph"), chat, task, seed=0)
    return "\n".join(_lines(len(recorded), played.trajectory, played.answer))


def clerk(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """The scripted chat model: makes the calls of PLAN in turn, then reports the balance in the last answer."""
    from dreamgym_integrations.models.chat_server import Reply

    answers = [message["content"] for message in messages if message["role"] == "tool"]
    if len(answers) < len(PLAN):
        return Reply(tool_calls=(PLAN[len(answers)],))
    left = json.loads(text_of(answers[-1]))["balance_cents"]
    return Reply(text=f"The anchor is ordered. Ada Quist has {left / 100:.2f} left.")


def _lines(recorded: int, episode: Trajectory, answer: str) -> list[str]:
    lines = [f"a LangGraph agent at a simulated shop, made of {recorded} recorded episodes", f"task  {WANTED}", ""]
    for step in episode.transitions:
        lines += [f"> {step.action.name} {json.dumps(step.action.arguments)}"]
        lines += [f"  {step.result.observation}   [{step.provenance.tier}]"]
    lines += [
        "",
        f"agent  {answer}",
        f"reward {episode.total_reward:g}, by the task's own check of the simulated state",
    ]
    return lines
