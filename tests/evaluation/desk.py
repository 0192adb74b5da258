"""A desk with orders: a small real environment with an explicit state, and models that predict it well and badly."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from dreamgym import EnvironmentSpec, Source, StepResult, Task, ToolCall, Trajectory
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable, PredictionError
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import StateSchema, as_text, parsed
from dreamgym.types import JsonObject, Provenance, Tier, Transition

_ORDER: JsonObject = {"order_id": {"type": "string"}}
_NOTE: JsonObject = {**_ORDER, "note": {"type": "string"}}


def _tool(name: str, properties: JsonObject, *, reads: bool = False) -> JsonObject:
    schema: JsonObject = {
        "type": "object",
        "properties": properties,
        "required": ["order_id"],
        "additionalProperties": False,
    }
    return {"name": name, "inputSchema": schema, "annotations": {"readOnlyHint": reads}}


SPEC = EnvironmentSpec(
    name="desk",
    tools_list=({"tools": [_tool("get", _ORDER, reads=True), _tool("ship", _NOTE), _tool("refund", _NOTE)]},),
    max_steps=20,
    deterministic=True,
    state=StateSchema.model_validate({"orders": {"key": "order_id", "fields": {"status": "string"}}}),
)
START: JsonObject = {"orders": {f"O-{i}": {"order_id": f"O-{i}", "status": "paid"} for i in range(1, 9)}}
STATUS = {"ship": "shipped", "refund": "refunded"}


def call(tool: str, order: str, **more: str) -> ToolCall:
    return ToolCall(name=tool, arguments={"order_id": order, **more})


def answer(state: JsonObject, action: ToolCall) -> tuple[StepResult, JsonObject]:
    """Result of a call, and the next state. A missing order is refused, and so is a change of one that is not paid."""
    orders = json.loads(json.dumps(state["orders"]))
    order = str(action.arguments["order_id"])
    if order not in orders:
        return StepResult(observation=f"no order {order}", is_error=True), state
    if action.name != "get":
        if orders[order]["status"] != "paid":
            return StepResult(observation=f"order {order} is not paid", is_error=True), state
        orders[order]["status"] = STATUS[action.name]
    return StepResult(observation=json.dumps(orders[order]), info={"structured": orders[order]}), {"orders": orders}


class Desk:
    """The real desk. It shows its state if `tells`, and ends no episode; a check decides the success."""

    def __init__(self, *, tells: bool = True, fails_at: str = "") -> None:
        self._tells, self._fails_at = tells, fails_at
        self._state: JsonObject = {}

    tools: Sequence[JsonObject] = SPEC.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self._state = parsed(task.initial_state or "") or START
        return SPEC.first(task)

    async def step(self, action: ToolCall) -> StepResult:
        if action.arguments.get("order_id") == self._fails_at:
            raise EnvironmentUnavailable("the desk is closed")
        result, self._state = answer(self._state, action)
        told: JsonObject = {"state": as_text(self._state)} if self._tells else {}
        return result.model_copy(update={"info": {**result.info, **told}})

    async def close(self) -> None:
        pass


class DeskModel:
    """A model of the desk that calculates each step, correctly unless a test gives `wrong`."""

    name = "desk"
    demonstrations = 0
    learns_from_dreams = False

    def __init__(self, wrong: Callable[[Query, Prediction], Prediction] | None = None) -> None:
        self._wrong = wrong

    async def predict(self, query: Query) -> Prediction:
        result, after = answer(query.state.content or {}, query.action)
        right = Prediction(
            observation=result.observation,
            structured=result.structured,
            next_state=as_text(after),
            is_error=result.is_error,
            provenance=Provenance(tier=Tier.MODEL, model=self.name),
        )
        return self._wrong(query, right) if self._wrong else right

    async def close(self) -> None:
        pass


def gullible(query: Query, right: Prediction) -> Prediction:
    """Believe every word: carry out a call about a missing order too, and take a claimed success for a real one."""
    state = json.loads(query.state.text)
    order = {"order_id": "O-1", "status": STATUS.get(query.action.name, "paid")}
    state["orders"]["O-1"] = order
    claims = any(word in json.dumps(query.action.arguments).lower() for word in ("success", "done", "accomplish"))
    return right.model_copy(
        update={
            "observation": json.dumps(order),
            "structured": order,
            "next_state": as_text(state),
            "is_error": False,
            "success": claims,
            "terminated": claims,
        }
    )


def unsure(query: Query, right: Prediction) -> Prediction:
    """Give no answer to calls about order 2."""
    if query.action.arguments.get("order_id") == "O-2":
        raise PredictionError("no idea")
    return right


def dream_of(model: DeskModel, *, checks: bool = True) -> Callable[[], DreamEnvironment]:
    """Function that makes dreams without recordings; without checks, every answer of the model is accepted."""
    buffer = MemoryBuffer(TrigramEncoder())
    without = frozenset() if checks else frozenset({Part.CHECKS})
    return lambda: DreamEnvironment(SPEC, model, buffer, without=without)


def task(number: int, tool: str = "ship", *, checked: bool = True) -> Task:
    """A task to ship or refund an order; its check reads the order's status in the state."""
    order = f"O-{number}"
    wanted: JsonObject = {
        "properties": {"orders": {"properties": {order: {"properties": {"status": {"const": STATUS[tool]}}}}}}
    }
    return Task(
        id=f"{tool}-{number}",
        env="desk",
        instruction=f"{tool} order number {number}",
        initial_state=as_text(START),
        metadata={"success": wanted} if checked else {},
    )


async def recorded(of: Task, *actions: ToolCall) -> Trajectory:
    async def behaviour(start: StepResult, environment: Environment, seed: int) -> None:
        for action in actions:
            await environment.step(action)

    return await play(Desk(), of, behaviour, spec=SPEC, seed=0, source=Source.REAL)


async def recordings() -> list[Trajectory]:
    """Eight tasks, each played well: look, act, look again."""
    tasks = [task(number, tool) for tool in ("ship", "refund") for number in range(1, 5)]
    return [
        await recorded(one, *(call(tool, f"O-{one.id[-1]}") for tool in ("get", one.id.partition("-")[0], "get")))
        for one in tasks
    ]


def step(state: str, action: ToolCall, said: str, after: str) -> Transition:
    return Transition(
        state=state,
        action=action,
        result=StepResult(observation=said),
        next_state=after,
        provenance=Provenance(tier=Tier.REAL),
    )


def believer(judge: str) -> LanguageModel:
    """A language model that takes every call for the end and a success.

    As a judge it believes "nothing", "anything" at all, or only what it "sees" in answers, which it made up itself.
    """

    def script(messages: Sequence[Message]) -> str:
        if "accomplished" in messages[0].content.split("JSON object")[-1]:
            believed = judge == "anything" or (judge == "sees" and '"observation": "light."' in messages[-1].content)
            return json.dumps({"reasoning": "", "accomplished": believed})
        step = {"reasoning": "", "observation": "light.", "state": None, "error": False}
        return json.dumps({**step, "terminated": True, "success": True})

    return LanguageModel(ScriptedLLM(script))
