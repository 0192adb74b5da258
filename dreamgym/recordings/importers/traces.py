"""Turns traces into episodes: tool calls and model calls, as every tracing format records them.

The tool calls are the steps. The messages of the model calls give the instruction and the answer. They also give the
steps if the trace has no tool calls of its own, or has not recorded their arguments and results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dreamgym.recordings.importers.base import ImportedEpisode, ImportedStep, Skipped
from dreamgym.recordings.importers.messages import ChatMessage, ToolRequest, action_of, episode_of
from dreamgym.types import JsonObject, StepResult, StopReason, ToolCall


@dataclass(frozen=True)
class TracedCall:
    """A call of a tool."""

    where: str
    request: ToolRequest
    result: StepResult | None
    """None if the trace does not have it."""

    @property
    def fault(self) -> str | None:
        """The reason why the call cannot be a step; None if it can."""
        action = action_of(self.request)
        if isinstance(action, str):
            return action
        return f"the call of {self.request.name!r} has no result" if self.result is None else None


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
    are_fewer = len(usable) < len(calls) and len(usable) < len(called)
    if not calls or are_fewer or not named.issuperset(called):
        return replace(told, instruction=told.instruction or _asked(models), tools=tools)
    seen = {
        answer.id: answer.result
        for model in models[-1:]
        for message in model.conversation
        for answer in message.answers
    }
    return ImportedEpisode(
        where=where,
        instruction=_asked(models),
        steps=tuple(_step(call, seen.get(call.request.id)) for call in usable),
        stop_reason=StopReason.CLOSED if told.answer is None else StopReason.FINISHED,
        answer=told.answer,
        tools=tools,
        left_out=tuple(Skipped(call.where, call.fault) for call in calls if call.fault is not None),
    )


def _step(call: TracedCall, seen: StepResult | None) -> ImportedStep:
    action, result = action_of(call.request), call.result
    assert isinstance(action, ToolCall)
    assert result is not None
    if result.is_error and seen is not None and call.request.id is not None:
        # the trace contains the exception, but the agent read the text that the framework made of it
        result = seen.model_copy(update={"is_error": True})
    return ImportedStep(action, result)


def _asked(models: Sequence[ModelCall]) -> str:
    """The user's last words to the first model call: the instruction of this run, not of an earlier one."""
    words = [message.text for model in models[:1] for message in model.given if message.role == "user" and message.text]
    return words[-1] if words else ""
