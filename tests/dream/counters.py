"""A small shop with an explicit state, for tests of a model's answers about it."""

from dreamgym.dream.model import Part, Query
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import Collection, State, StateSchema, as_text
from dreamgym.types import JsonObject, Provenance, Source, StepResult, Task, Tier, ToolCall, Transition

ORDER: JsonObject = {
    "type": "object",
    "properties": {"order_id": {"type": "string"}, "status": {"type": "string"}, "total": {"type": "integer"}},
    "required": ["order_id", "status", "total"],
}
IDENTITY: JsonObject = {"type": "object", "properties": {"order_id": {"type": "string"}}}
SCHEMA = StateSchema(
    collections={
        "orders": Collection(key="order_id", fields={"status": "string", "total": "integer", "buyer_id": "string"}),
        "buyers": Collection(key="buyer_id", fields={"balance": "integer", "notes": "array"}, complete=False),
    },
    values={"sold": "integer"},
)
SHOP = EnvironmentSpec(
    name="shop",
    rules="Prices are whole.",
    tools_list=(
        {
            "tools": [
                {"name": "get_order", "inputSchema": IDENTITY, "outputSchema": ORDER},
                {"name": "refund", "inputSchema": IDENTITY},
            ]
        },
    ),
    state=SCHEMA,
)


def world(status: str = "paid", balance: int = 10, sold: int = 2) -> JsonObject:
    """Two orders of two buyers; `status` and `balance` belong to the first order and its buyer."""
    return {
        "orders": {
            "O-1": {"order_id": "O-1", "status": status, "total": 30, "buyer_id": "B-1"},
            "O-2": {"order_id": "O-2", "status": "sent", "total": 7, "buyer_id": "B-2"},
        },
        "buyers": {
            "B-1": {"buyer_id": "B-1", "balance": balance, "notes": []},
            "B-2": {"buyer_id": "B-2", "balance": 5, "notes": ["calls on Mondays"]},
        },
        "sold": sold,
    }


def call(tool: str, order: str = "O-1") -> ToolCall:
    """A call of one of the two tools; both take an order."""
    return ToolCall(name=tool, arguments={"order_id": order})


def step(
    action: ToolCall,
    before: JsonObject,
    after: JsonObject,
    observation: str = "done",
    *,
    structured: JsonObject | None = None,
    reasoning: str = "",
    is_error: bool = False,
) -> Transition:
    """A recorded step."""
    info: JsonObject = {"state": as_text(after)} | ({} if structured is None else {"structured": structured})
    return Transition(
        state=as_text(before),
        action=action,
        result=StepResult(observation=observation, is_error=is_error, info=info),
        next_state=as_text(after),
        reasoning=reasoning,
        provenance=Provenance(tier=Tier.REAL),
    )


REFUND = step(call("refund"), world(), world("refunded", 40, 1), "Refunded O-1.", reasoning="It was paid.")


def asked(
    action: ToolCall,
    *recorded: Transition,
    state: JsonObject | str | None = None,
    history: tuple[Transition, ...] = (),
    without: frozenset[Part] = frozenset(),
    spec: EnvironmentSpec = SHOP,
) -> Query:
    """A query in the shop."""
    start = world() if state is None else state
    return Query(
        spec=spec,
        task=Task(id="t", env="shop", instruction="Refund order O-1.", initial_state=as_text(world())),
        history=history,
        state=State.of(start, spec.state),
        action=action,
        demonstrations=tuple(
            Demonstration(id=f"d{n}", transition=one, source=Source.REAL, world="w", score=1.0, exact=False)
            for n, one in enumerate(recorded)
        ),
        without=without,
    )
