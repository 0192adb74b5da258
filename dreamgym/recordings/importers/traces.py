"""Turns traces into episodes: tool calls and model calls, as every tracing format records them.

The tool calls are the steps. The messages of the model calls give the instruction and the answer. They also give the
steps if the trace has no tool calls of its own, or has not recorded their arguments and results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from dreamgym.recordings.importers.base import ImportedEpisode, ImportedStep, Skipped
from dreamgym.recordings.importers.messages import ChatMessage, ToolRequest, action_of, episode_of, result_from
from dreamgym.types import JsonObject, StepResult, StopReason, ToolCall


@dataclass(frozen=True)
class TracedCall:
    """A call of a tool."""

    where: str
    request: ToolRequest
    result: StepResult | None
    """None if the trace does not have it."""
    exception: str = ""
    """The exception that the trace has instead of a result. The agent read what its framework made of it."""
    is_inner: bool = False
    """True if another tool made the call, not the agent."""

    @property
    def fault(self) -> str | None:
        """The reason why the call cannot be a step; None if it can."""
        if self.is_inner:
            return f"the call of {self.request.name!r} cannot be used: another tool made it, not the agent"
        action = action_of(self.request)
        if isinstance(action, str):
            return action
        has_result = self.result is not None or self.exception
        return None if has_result else f"the call of {self.request.name!r} has no result"


@dataclass(frozen=True)
class ModelCall:
    """A call of a language model."""

    given: tuple[ChatMessage, ...]
    said: tuple[ChatMessage, ...]

    @property
    def conversation(self) -> tuple[ChatMessage, ...]:
        """All messages: `given`, then `said`; only `said` if it repeats `given`, as a graph's state does."""
        repeats = any(message.role == "user" for message in self.said)
        return self.said if repeats else (*self.given, *self.said)


def episode_of_trace(
    where: str, calls: Sequence[TracedCall], models: Sequence[ModelCall], tools: tuple[JsonObject, ...] = ()
) -> ImportedEpisode:
    """Turn a trace into an episode.

    Args:
        where: place of the trace, for a person to look it up.
        calls: the calls of tools, in the order in which they were made.
        models: the first model call with words of the user, and the last one, which contains the conversation.
        tools: MCP tool definitions.
    """
    told = episode_of(models[-1].conversation if models else (), where)
    usable = [call for call in calls if call.fault is None]
    named = {call.request.name for call in calls}
    called = [step.action.name for step in told.steps if isinstance(step.action, ToolCall)]
    made = sum(not call.is_inner for call in calls)
    are_fewer = len(usable) < made and len(usable) < len(called)
    if not calls or are_fewer or not named.issuperset(called):
        return replace(told, instruction=told.instruction or _asked(models), tools=tools)
    read = _read_by_agent(usable, models[-1].conversation if models else (), told)
    return ImportedEpisode(
        where=where,
        instruction=_asked(models),
        steps=tuple(map(_step, usable, read)),
        stop_reason=StopReason.CLOSED if told.answer is None else StopReason.FINISHED,
        answer=told.answer,
        tools=tools,
        left_out=tuple(Skipped(call.where, call.fault) for call in calls if call.fault is not None),
    )


def _read_by_agent(
    calls: Sequence[TracedCall], conversation: Sequence[ChatMessage], told: ImportedEpisode
) -> Iterator[StepResult | None]:
    """For each call, the result in the conversation; None if there is none, or if it is not certain which one it is.

    Results are found by the id of the call. Without an id, or with one that is used again, they are found in order, if
    the trace and the conversation have the same call equally often.
    """
    answers = [answer for message in conversation for answer in message.answers if answer.id]
    used = Counter(answer.id for answer in answers)
    by_id = {answer.id: answer.result for answer in answers if used[answer.id] == 1}
    alike: dict[str, list[StepResult]] = {}
    for step in told.steps:
        if isinstance(step.action, ToolCall):
            alike.setdefault(step.action.canonical(), []).append(step.result)
    names = [_action(call).canonical() for call in calls]
    made = Counter(names)
    in_order = {name: iter(results) for name, results in alike.items() if len(results) == made[name]}
    for call, name in zip(calls, names, strict=True):
        next_alike = next(in_order.get(name, iter(())), None)
        yield by_id.get(call.request.id or "", next_alike)


def _step(call: TracedCall, read: StepResult | None) -> ImportedStep:
    failed = result_from(call.exception, is_error=True) if read is None else read.model_copy(update={"is_error": True})
    return ImportedStep(_action(call), failed if call.result is None else call.result)


def _action(call: TracedCall) -> ToolCall:
    action = action_of(call.request)
    assert isinstance(action, ToolCall)
    return action


def _asked(models: Sequence[ModelCall]) -> str:
    """The user's last words to the first model call: the instruction of this run, not of an earlier one."""
    words = [message.text for model in models[:1] for message in model.given if message.role == "user" and message.text]
    return words[-1] if words else ""
