"""Readers: they turn an environment's words into typed calls, structured answers and an explicit state.

This is the paper's state mapping. A reader is a pure function of the task, the observations and the agent's own calls,
so that the same texts give the same state in reality and in a simulation. It knows how an environment words things, but
not what a command leads to.

    reader = reader_of(spec)
    state = reader.start(task, first)                    # after `reset`
    call = reader.call(action)                           # act("take mug 1 from desk 2") is take(thing, place)
    result = reader.result(call, environment_result)     # the answer as `structured`, and whether it was refused
    state = reader.after(state, call, result)            # after the step
    action = reader.action(call)                         # the action in words, for the environment

`with_readings` does this with a whole recorded trajectory. The adapter of a text environment contains its reader. A
server whose tools are typed already has `ServerReader`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from dreamgym.environment import EnvironmentSpec, installed_real
from dreamgym.state import StateSchema, as_text, entities, parsed, shown_in
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Trajectory, Transition


class Reader(Protocol):
    """Hook of an environment that reads its words."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Definitions of the typed tools, as in `tools/list`."""

    @property
    def schema(self) -> StateSchema:
        """Schema of the states. Its entities are what a policy can point at; their ids are arguments of calls."""

    def call(self, action: ToolCall) -> ToolCall:
        """The typed call that an action expresses; the action itself if it expresses none."""

    def action(self, call: ToolCall) -> ToolCall:
        """The action that expresses a typed call, the inverse of `call`. Any other call is returned unchanged."""

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        """The result with its content as `structured`, none if it cannot be read, and with `is_error` for a refusal.

        Lists are in natural order, not in the order of the words.

        Args:
            call: the typed call.
            result: result of the environment.
        """

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        """The words of a structured answer, the inverse of `result`; None if they do not follow from the answer.

        Args:
            call: the typed call.
            answer: the structured content.
            instruction: instruction of the task.
        """

    def start(self, task: Task, first: StepResult) -> JsonObject:
        """The state that is known after `reset`."""

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        """The state that is known after a step; the given one is not changed.

        Args:
            state: the state that was known before.
            call: the typed call.
            result: the result, as the method `result` returns it.
        """


class PageContent(NamedTuple):
    """A page: its address and its content."""

    address: JsonObject
    content: JsonObject
    """The content in structured form."""


@runtime_checkable
class PageReader(Reader, Protocol):
    """The reader of an environment that shows one page after another, see `dreamgym.dream.pages`."""

    @property
    def address(self) -> str:
        """Name of the state's value with the address of the open page: an object with a `kind` and other parts."""

    @property
    def counts(self) -> Sequence[str]:
        """Names of the state's values that decide the reward at the end of an episode."""

    def words(self, observation: str, state: JsonObject) -> str:
        """The state in the environment's words: the observation, and what else the environment reports with it."""

    def previews(self, content: JsonObject) -> Iterator[PageContent]:
        """Other pages, as far as this page shows their content."""


class ServerReader:
    """The reader of an environment whose tools are typed: calls and answers are read as they are.

    The state is the one that the server reports. If it reports none, the state has the newest value of every field that
    an answer showed, under the schema that was inferred from recordings. Without a schema the state is empty, and all
    that is known of the world is in the views of `dreamgym.views`.

    Args:
        spec: spec of the server.
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
    """The adapter's `reader`, else a ServerReader for typed tools; None for a text environment without a reader."""
    reader: Reader | None = getattr(installed_real(spec), "reader", None)
    if reader is not None:
        return reader
    return ServerReader(spec) if spec.text_argument is None else None


def read_as(result: StepResult, answer: JsonObject | None, *, is_error: bool | None = None) -> StepResult:
    """A copy of a result with another structured content, and with another `is_error` unless that is None."""
    info = {name: value for name, value in result.info.items() if name != "structured"}
    if answer is not None:
        info["structured"] = answer
    return result.model_copy(update={"info": info, "is_error": result.is_error if is_error is None else is_error})


def shown(result: StepResult) -> StepResult:
    """What an agent sees of a result: no state, and no reward."""
    told: JsonObject = {} if result.structured is None else {"structured": result.structured}
    return StepResult(observation=result.observation, is_error=result.is_error, info=told)


def with_readings(trajectory: Trajectory, reader: Reader, spec: EnvironmentSpec) -> Trajectory:
    """The trajectory with typed calls, structured answers and explicit states: those that the agent could know."""
    task = trajectory.task
    state = reader.start(task, shown(spec.first(task)))
    start = as_text(state)
    steps: list[Transition] = []
    for step in trajectory.transitions:
        call = reader.call(step.action)
        result = reader.result(call, step.result)
        known = reader.after(state, call, reader.result(call, shown(step.result)))
        result = result.model_copy(update={"info": {**result.info, "state": as_text(known)}})
        steps.append(Transition.of(as_text(state), call, result, step.provenance))
        state = known
    return trajectory.model_copy(
        update={"task": task.model_copy(update={"initial_state": start}), "transitions": tuple(steps)}
    )
