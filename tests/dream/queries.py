"""Queries for tests of experience models: a house, played in text, and a desk with a tool of several arguments."""

from dreamgym.dream.model import Query
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import State
from dreamgym.types import JsonObject, Provenance, Source, StepResult, Task, Tier, ToolCall, Transition

HOUSE = EnvironmentSpec(
    name="house",
    description="A house with rooms.",
    rules="Moving to an exit answers with the room.",
    tools_list=(
        {
            "tools": [
                {
                    "name": "act",
                    "description": "Do one thing.",
                    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}},
                }
            ]
        },
    ),
)
DESK = EnvironmentSpec(
    name="desk",
    tools_list=(
        {
            "tools": [
                {
                    "name": "book",
                    "inputSchema": {
                        "type": "object",
                        "properties": {"name": {"type": "string"}, "seats": {"type": "integer"}},
                    },
                },
                {"name": "cancel", "inputSchema": {"type": "object", "properties": {"name": {"type": "string"}}}},
            ]
        },
    ),
)


def act(command: str) -> ToolCall:
    """The house's only action."""
    return ToolCall(name="act", arguments={"command": command})


def transition(
    state: str,
    action: ToolCall,
    observation: str,
    next_state: str | None = None,
    *,
    reward: float = 0.0,
    terminated: bool = False,
    is_error: bool = False,
) -> Transition:
    """A recorded step; the observation is the next state unless it is given."""
    return Transition(
        state=state,
        action=action,
        result=StepResult(observation=observation, reward=reward, terminated=terminated, is_error=is_error),
        next_state=observation if next_state is None else next_state,
        provenance=Provenance(tier=Tier.REAL),
    )


def query(
    spec: EnvironmentSpec,
    state: str,
    action: ToolCall,
    *recorded: Transition,
    history: tuple[Transition, ...] = (),
    instruction: str = "Find the coin.",
    metadata: JsonObject | None = None,
    same_goal: bool = True,
) -> Query:
    """A query whose demonstrations are ranked as given; `exact` follows from the texts, as in a buffer."""
    return Query(
        spec=spec,
        task=Task(id="t1", env=spec.name, instruction=instruction, initial_state="kitchen.", metadata=metadata or {}),
        history=history,
        state=State.of(state, spec.state),
        action=action,
        demonstrations=tuple(
            Demonstration(
                id=f"d{number}",
                transition=step,
                source=Source.REAL,
                world="w",
                score=1.0,
                exact=(step.state, step.action.canonical()) == (state, action.canonical()),
                instruction=instruction if same_goal else "Find the lamp.",
                same_goal=same_goal,
            )
            for number, step in enumerate(recorded)
        ),
        seed=7,
    )
