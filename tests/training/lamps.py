"""A house of lamps with an explicit state, played by a rule. A model can be fitted to it in seconds."""

import json
import random
from pathlib import Path

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import StateSchema, as_text
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

NAMES = ["hall", "desk", "bed", "attic"]
TOOLS: list[JsonObject] = [
    {
        "name": "switch",
        "inputSchema": {"type": "object", "properties": {"lamp": {"type": "string"}}, "required": ["lamp"]},
    },
    {"name": "count", "inputSchema": {"type": "object"}},
]
SPEC = EnvironmentSpec(
    name="lamps",
    tools_list=({"tools": [*TOOLS]},),
    state=StateSchema.model_validate({"lamps": {"key": "id", "fields": {"on": "boolean"}}}),
)


def recorded(episodes: int, *, seed: int = 0, env: str = "lamps") -> list[Trajectory]:
    """Played episodes of four calls each."""
    draw = random.Random(seed)
    return [_played(f"{env}-{i}", env, draw) for i in range(episodes)]


def folder(path: Path, trajectories: list[Trajectory]) -> Path:
    """Write the trajectories into a new environment folder."""
    path.mkdir()
    (path / "env.toml").write_text('name = "lamps"\n[state.lamps]\nkey = "id"\nfields = { on = "boolean" }\n')
    (path / "tools.json").write_text(json.dumps({"tools": TOOLS}))
    (path / "trajectories.jsonl").write_text("".join(one.model_dump_json() + "\n" for one in trajectories))
    return path


def _played(name: str, env: str, draw: random.Random) -> Trajectory:
    on = {lamp: draw.random() < 0.5 for lamp in draw.sample(NAMES, 3)}
    start = _state(on)
    transitions = []
    for _ in range(4):
        before = _state(on)
        action = ToolCall(name="count")
        if draw.random() < 0.8:
            action = ToolCall(name="switch", arguments={"lamp": draw.choice(NAMES)})
        result = _answer(action, on)
        transitions.append(
            Transition(
                state=before,
                action=action,
                result=result,
                next_state=_state(on),
                provenance=Provenance(tier=Tier.REAL),
            )
        )
    return Trajectory(
        id=name,
        task=Task(id=name, env=env, instruction="Make light.", initial_state=start),
        transitions=tuple(transitions),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )


def _answer(action: ToolCall, on: dict[str, bool]) -> StepResult:
    lamp = str(action.arguments.get("lamp"))
    said, is_error = f"{sum(on.values())} are on", False
    if action.name == "switch" and lamp not in on:
        said, is_error = f"no lamp {lamp}", True
    elif action.name == "switch":
        on[lamp] = not on[lamp]
        said = f"{lamp} is {'on' if on[lamp] else 'off'}"
    return StepResult(observation=said, is_error=is_error, info={"state": _state(on)})


def _state(on: dict[str, bool]) -> str:
    return as_text({"lamps": {lamp: {"id": lamp, "on": lit} for lamp, lit in on.items()}})
