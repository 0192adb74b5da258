"""Helpers to record and play sessions of made-up servers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from dreamgym.types import JsonObject, Provenance, StepResult, Tier, ToolCall, Transition
from dreamgym.views.answers import view_of
from dreamgym.views.learn import learn
from dreamgym.views.rules import Rules
from dreamgym.views.session import Call

Step = tuple[str, dict[str, Any], Any]
"""A tool, its arguments and its answer: a text, or JSON. A text that begins with `!` is an error."""


def step(tool: str, arguments: dict[str, Any], said: Any) -> Transition:
    text = said if isinstance(said, str) else json.dumps(said)
    return Transition(
        state="",
        action=ToolCall(name=tool, arguments=arguments),
        result=StepResult(observation=text.removeprefix("!"), is_error=text.startswith("!")),
        next_state=text,
        provenance=Provenance(tier=Tier.REAL),
    )


def learned(*sessions: Sequence[Step], hints: dict[str, bool] | None = None) -> Rules:
    tools: dict[str, JsonObject] = {
        name: {"name": name, "annotations": {"readOnlyHint": hint}} for name, hint in (hints or {}).items()
    }
    return learn([("", [step(*one) for one in session]) for session in sessions], tools)


def played(
    rules: Rules, *calls: tuple[str, dict[str, Any]], before: Sequence[tuple[str, dict[str, Any]]] = ()
) -> list[str | None]:
    """The answers of one new session; None for a call that the recordings do not answer.

    Args:
        rules: what was learned.
        calls: the calls.
        before: earlier calls, which another tier answered.
    """
    done = view_of(StepResult(observation="done"))
    history = [Call(ToolCall(name=tool, arguments=given), done, tool not in rules.reads) for tool, given in before]
    answers: list[str | None] = []
    for tool, arguments in calls:
        action = ToolCall(name=tool, arguments=arguments)
        known = rules.answer(history, action)
        answers.append(None if known is None else ("!" if known.view.is_error else "") + known.view.observation)
        if known is not None:
            history.append(Call(action, known.view, tool not in rules.reads))
    return answers
