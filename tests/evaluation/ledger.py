"""Recorded calls of a small counter, and its environment folder with a real MCP server."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dreamgym.environment import EnvironmentSpec
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

COUNTER = Path(__file__).parents[1] / "environments" / "counter_server.py"
TOOLS: list[JsonObject] = [
    {
        "name": "add",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
        "outputSchema": {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]},
    },
    {"name": "secret", "inputSchema": {"type": "object"}},
]
SPEC = EnvironmentSpec(name="counter", tools_list=({"tools": [*TOOLS]},))


def counted(count: int) -> StepResult:
    """Answer of the counter to an `add`."""
    return StepResult(observation=f"count {count}", info={"structured": {"count": count}})


def played(name: str, *steps: tuple[ToolCall, StepResult]) -> Trajectory:
    """A recorded episode."""
    state, transitions = "", []
    for action, result in steps:
        transitions.append(
            Transition(
                state=state,
                action=action,
                result=result,
                next_state=result.state,
                provenance=Provenance(tier=Tier.REAL),
            )
        )
        state = result.state
    return Trajectory(
        id=name,
        task=Task(id=name, env="counter", instruction="Count.", initial_state=""),
        transitions=tuple(transitions),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )


def add(n: int) -> ToolCall:
    """A call of `add`."""
    return ToolCall(name="add", arguments={"n": n})


SECRET = ToolCall(name="secret")
NOT_SET = StepResult(observation="not set")
ONLY_UP = StepResult(observation="only up", is_error=True)


def folder(path: Path, trajectories: Sequence[Trajectory], *, fault: str = "") -> str:
    """Write an environment folder of the counter, as the recorder would, and return its path."""
    command = json.dumps([sys.executable, str(COUNTER), fault])
    (path / "env.toml").write_text(f'name = "counter"\n[real]\nadapter = "mcp"\ntimeout_s = 20\ncommand = {command}\n')
    (path / "tools.json").write_text(json.dumps({"tools": TOOLS}))
    (path / "trajectories.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in trajectories))
    return str(path)
