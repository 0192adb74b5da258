"""Importer for conversations as in AgentGym: the agent writes "Thought: … Action: …", the environment a text.

Turns are {from, value} or {role, content}. Everything before the first action is a prelude: rules, the agent's "OK",
and worked examples if turns have `loss`. The last text that the agent read there is the task and the first state.
Actions are texts, so the environment's only tool must take one text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from dreamgym.recordings.importers.base import (
    Command,
    Document,
    Found,
    ImportedEpisode,
    ImportedStep,
    Importer,
    Skipped,
    each,
    number,
)
from dreamgym.recordings.importers.base import text as string
from dreamgym.recordings.importers.messages import text_of
from dreamgym.state import objects
from dreamgym.types import JsonObject, StepResult, StopReason

_ACTION = re.compile(r"^[ \t]*Action[ \t]*:", re.MULTILINE | re.IGNORECASE)
_OBSERVATION = re.compile(r"^[ \t]*Observation[ \t]*:", re.MULTILINE | re.IGNORECASE)
_AGENT = ("gpt", "assistant")
_WORLD = ("human", "user")


@dataclass(frozen=True)
class _Turn:
    index: int
    by_agent: bool
    text: str
    counts: bool
    """False if the file marks the turn as not part of the episode."""

    @property
    def action(self) -> str | None:
        """The text after the last "Action:", without an observation that the agent itself went on to write."""
        if not self.by_agent or not self.counts:
            return None
        marks = list(_ACTION.finditer(self.text))
        if not marks:
            return None
        behind = self.text[marks[-1].end() :]
        invented = _OBSERVATION.search(behind)
        return behind[: invented.start() if invented else None].strip() or None


def matches(value: JsonValue) -> bool:
    """True for turns without tool calls, if at least one turn of the agent has an action."""
    rows = _rows(value)
    if any(row.get("tool_calls") or row.get("function_call") or row.get("role") == "tool" for row in rows):
        return False
    return any(turn.action is not None for turn in _turns(rows))


def read(document: Document) -> Iterator[Found]:
    """The episode of one conversation."""
    turns = _turns(_rows(document.value))
    first = next((place for place, turn in enumerate(turns) if turn.action is not None), None)
    if first is None:
        yield Skipped(document.where, 'has no turn of the agent with "Action: …"')
        return
    opening = next((turn.text for turn in reversed(turns[:first]) if not turn.by_agent), "")
    steps, left_out = _steps(turns[first:], document.where)
    fields = document.value if isinstance(document.value, dict) else {}
    item, score = fields.get("item_id", fields.get("id")), number(fields.get("success", fields.get("reward")))
    if score not in {None, 0.0, 1.0}:  # any positive reward would count as a success
        left_out.append(Skipped(document.where, "its reward is a score, neither 0 nor 1: add `success`, true or false"))
    yield ImportedEpisode(
        where=document.where,
        instruction=opening,
        opening=opening,
        steps=tuple(steps),
        stop_reason=StopReason.CLOSED,
        final_reward=score if score in {0.0, 1.0} else None,
        metadata={} if item is None else {"agentgym_item": item},
        left_out=tuple(left_out),
    )


def _steps(turns: list[_Turn], where: str) -> tuple[list[ImportedStep], list[Skipped]]:
    steps: list[ImportedStep] = []
    left_out: list[Skipped] = []
    for place, turn in enumerate(turns):
        if not turn.by_agent:
            continue
        answer = turns[place + 1] if place + 1 < len(turns) else None
        if turn.action is None:
            left_out.append(Skipped(f"{where}, turn {turn.index}", "a turn of the agent without an action"))
        elif answer is None or answer.by_agent:
            left_out.append(Skipped(f"{where}, turn {turn.index}", f"the action {turn.action!r} has no observation"))
        else:
            mark = _OBSERVATION.match(answer.text)
            observation = answer.text[mark.end() :].lstrip() if mark else answer.text
            steps.append(ImportedStep(Command(turn.action), StepResult(observation=observation)))
    return steps, left_out


def _turns(rows: list[JsonObject]) -> list[_Turn]:
    marked = any(row.get("loss") is True for row in rows)
    turns = []
    for index, row in enumerate(rows):
        speaker = string(row.get("from")) or string(row.get("role"))
        if speaker in _AGENT or speaker in _WORLD:
            content = text_of(row.get("value", row.get("content")))
            counts = not marked or row.get("loss") is not False
            turns.append(_Turn(index, speaker in _AGENT, content, counts))
    return turns


def _rows(value: JsonValue) -> list[JsonObject]:
    if isinstance(value, dict):
        names = ("conversations", "conversation", "messages")
        value = next((value[name] for name in names if isinstance(value.get(name), list)), None)
    return objects(value)


AGENTGYM = Importer("agentgym", "conversations with Thought, Action and Observation", matches, each(read))
