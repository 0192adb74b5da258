"""A shop with explicit state, for the tests of checks and of the dream: orders, notes, and tools for them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import Collection, State, StateSchema, as_text
from dreamgym.types import JsonObject, Provenance, Source, StepResult, Task, Tier, ToolCall, Transition

SCHEMA = StateSchema(
    collections={
        "orders": Collection(key="order_id", fields={"status": "string", "total": "number", "item": "string"}),
        "notes": Collection(key="note_id", fields={"text": "string"}, complete=False),
    }
)
TOOLS: list[JsonObject] = [
    {"name": name, "inputSchema": {"type": "object", "properties": {"order_id": {"type": "string"}}}}
    for name in ("get_order", "cancel_order", "create_order", "get_note")
]
SHOP = EnvironmentSpec(name="shop", tools_list=({"tools": [*TOOLS]},), state=SCHEMA)


def shop(deterministic: bool = False) -> EnvironmentSpec:
    """The shop, declared deterministic or not."""
    return SHOP.model_copy(update={"deterministic": deterministic})


def order(number: int, status: str = "paid", **fields: JsonValue) -> JsonObject:
    """One order."""
    return {"order_id": f"O-{number}", "status": status, "total": 10.0 * number, **fields}


def state(*orders: JsonObject, notes: Sequence[JsonObject] = ()) -> str:
    """The text of a state with these orders."""
    return as_text(
        {
            "orders": {str(one["order_id"]): one for one in orders},
            "notes": {str(one["note_id"]): one for one in notes},
        }
    )


def call(tool: str, number: int | str, **arguments: object) -> ToolCall:
    """A call about one order."""
    name = f"O-{number}" if isinstance(number, int) else number
    return ToolCall.model_validate({"name": tool, "arguments": {"order_id": name, **arguments}})


def step(
    before: str, action: ToolCall, shown: object, after: str | None = None, *, refused: bool = False
) -> Transition:
    """A recorded step; `shown` is a text, or a value that is shown as JSON."""
    said = shown if isinstance(shown, str) else json.dumps(shown)
    after = before if after is None else after
    return Transition(
        state=before,
        action=action,
        result=StepResult(observation=said, is_error=refused, info={"state": after}),
        next_state=after,
        provenance=Provenance(tier=Tier.REAL),
    )


def asked(
    before: str,
    action: ToolCall,
    *recorded: Transition,
    source: Source = Source.REAL,
    without: frozenset[Part] = frozenset(),
    spec: EnvironmentSpec = SHOP,
) -> Query:
    """A query with these recordings as demonstrations."""
    return Query(
        spec=spec,
        task=Task(id="t", env="shop", instruction="Cancel order O-1.", initial_state=before),
        history=(),
        state=State.of(before, spec.state),
        action=action,
        demonstrations=tuple(
            Demonstration(id=f"d{n}", transition=one, source=source, world=f"w{n}", score=1.0, exact=False)
            for n, one in enumerate(recorded)
        ),
        without=without,
    )


def predicted(shown: object, after: str, *, refused: bool = False, **fields: object) -> Prediction:
    """The prediction of a model."""
    said = shown if isinstance(shown, str) else json.dumps(shown)
    known = {"observation": said, "next_state": after, "is_error": refused}
    provenance = Provenance(tier=Tier.MODEL, model="m")
    return Prediction.model_validate({**known, "provenance": provenance, **fields})
