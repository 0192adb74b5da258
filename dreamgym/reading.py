"""Reads what an environment says as objects: typed calls, structured answers and an explicit state.

This is the paper's state mapping. A reader is a pure function of the task, the observations and the agent's own calls,
so that the same texts give the same state in reality and in a simulation. It knows how an environment words things, and
nothing of what a command leads to.

    reader = reader_of(spec)
    state = reader.start(task, first)                    # after `reset`
    call = reader.call(action)                           # act("take mug 1 from desk 2") is take(thing, place)
    result = reader.result(call, environment_result)     # the answer as `structured`, and whether it was refused
    state = reader.after(state, call, result)            # after the step
    action = reader.action(call)                         # what the environment is told for a typed call

`with_readings` does this with a whole recorded trajectory. Text environments bring their own reader with the adapter.
A server whose tools are typed already has `ServerReader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from dreamgym.environment import EnvironmentSpec, installed_real
from dreamgym.state import StateSchema, as_text, entities, parsed, shown_in
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Trajectory, Transition


class Reader(Protocol):
    """The hook of an environment: what its words say."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Definitions of the typed tools, as in `tools/list`."""

    @property
    def schema(self) -> StateSchema:
        """Schema of the states. Its entities are what a policy can point at; their ids are arguments of calls."""

    def call(self, action: ToolCall) -> ToolCall:
        """The typed call that an action words; the action itself if it words none."""

    def action(self, call: ToolCall) -> ToolCall:
        """The action that words a typed call; `call` gives the call again. Any other call is returned as it is."""

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        """The result with what it says as `structured`, nothing if it cannot be read, and `is_error` for a refusal.

        Lists are in natural order, whatever the order of the words.

        Args:
            call: the typed call.
            result: of the environment.
        """

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        """The words of a structured answer, the inverse of `result`; None if they do not follow from the answer.

        Args:
            call: the typed call.
            answer: the structured content.
            instruction: of the task.
        """

    def start(self, task: Task, first: StepResult) -> JsonObject:
        """The state that is known after `reset`."""

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        """The state that is known after a step; the given one is not changed.

        Args:
            state: what was known before.
            call: the typed call.
            result: as `result` returns it.
        """


class PageContent(NamedTuple):
    """What a page shows."""

    address: JsonObject
    content: JsonObject
    """As structured content."""


@runtime_checkable
class PageReader(Reader, Protocol):
    """The reader of an environment that shows one page after another, see `dreamgym.dream.pages`."""

    @property
    def address(self) -> str:
        """The value of the state that is the address of the open page: an object, with its `kind` and other parts."""

    @property
    def counts(self) -> Sequence[str]:
        """The values of the state that decide what an end of the episode is worth."""

    def words(self, observation: str, state: JsonObject) -> str:
        """The state as the environment words it beside an observation; the observation if it tells no more."""

    def previews(self, content: JsonObject) -> Iterator[PageContent]:
        """What a page tells of others, as far as it does."""


class ServerReader:
    """The reader of an environment whose tools are typed: calls and answers are read as they are.

    The state is what the server tells. If it tells none, the state holds the newest value of every field that an answer
    showed, under the schema that was inferred from recordings; without a schema it is empty, and what is known of the
    world are the views of `dreamgym.views`.

    Args:
        spec: of the server.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        self.tools: Sequence[JsonObject] = spec.tools
        self.schema = spec.state or StateSchema()

    def call(self, action: ToolCall) -> ToolCall:
        return action

    def action(self, call: ToolCall) -> ToolCall:
        return call

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        answer = None if result.is_error else shown_in(result)
        return read_as(result, answer) if isinstance(answer, dict) else result

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        return None

    def start(self, task: Task, first: StepResult) -> JsonObject:
        return parsed(first.state) or {}

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        told = parsed(str(result.info.get("state", "")))
        if told is not None or result.is_error:
            return state if told is None else told
        for name, identity, shown in entities(shown_in(result), self.schema):
            known = state.get(name, {})
            entity = known.get(identity, {}) if isinstance(known, dict) else {}
            if isinstance(known, dict) and isinstance(entity, dict):
                newer: JsonObject = {**state, name: {**known, identity: {**entity, **shown}}}
                state = newer if self.schema.fault_of(newer) is None else state
        return state


def reader_of(spec: EnvironmentSpec) -> Reader | None:
    """The reader of an environment: its adapter's `reader`, else that of typed tools; None for words nobody reads."""
    reader: Reader | None = getattr(installed_real(spec), "reader", None)
    if reader is not None:
        return reader
    return ServerReader(spec) if spec.text_argument is None else None


def read_as(result: StepResult, answer: JsonObject | None, *, is_error: bool | None = None) -> StepResult:
    """A result with another structured content, and another flag of errors unless that is None."""
    info = {name: value for name, value in result.info.items() if name != "structured"}
    if answer is not None:
        info["structured"] = answer
    return result.model_copy(update={"info": info, "is_error": result.is_error if is_error is None else is_error})


def with_readings(trajectory: Trajectory, reader: Reader) -> Trajectory:
    """The trajectory with typed calls, structured answers and explicit states: those that the agent could know."""
    task = trajectory.task
    state = reader.start(task, StepResult(observation=task.initial_state or ""))
    start = as_text(state)
    steps: list[Transition] = []
    for step in trajectory.transitions:
        call = reader.call(step.action)
        result = reader.result(call, step.result)
        known = reader.after(state, call, result)
        result = result.model_copy(update={"info": {**result.info, "state": as_text(known)}})
        steps.append(Transition.of(as_text(state), call, result, step.provenance))
        state = known
    return trajectory.model_copy(
        update={"task": task.model_copy(update={"initial_state": start}), "transitions": tuple(steps)}
    )
