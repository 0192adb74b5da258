"""The prompts of the experience model; the texts are the .txt files beside this one.

Order decides the speed: what stays the same for all episodes comes first, then the task, then the history, which only
grows, and what changes with every step comes last. So each step's prompt begins with most of the one before, and a
server that caches prefixes reads it once. Nothing that varies (times, scores, ids) may stand further up.
Everything that the agent or the recordings wrote is JSON on one line between tags, and cannot close its tag.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from string import Template

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.model import Query
from dreamgym.experience.structured import Wording, completed, wording_of
from dreamgym.llm import Message
from dreamgym.tools import output_schema
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Transition

STRUCTURED_ORDER = ("reasoning", "error", "observation", "structured", "state", "terminated", "success")
"""Of the keys of an answer with structured content. Whether the call is refused comes first: it decides which of the
two that follow is null, and a small model that filled in the wrong one contradicts itself."""

STRUCTURED = (
    '"structured": for a tool with an outputSchema, the JSON object under it, or null if the environment refuses the '
    'action; here "error" stands right after "reasoning". Other tools have no such key;\n'
)


def step_messages(query: Query, *, as_turns: bool) -> list[Message]:
    """What a model is asked to predict one step.

    Args:
        query: the step.
        as_turns: show recorded transitions and history as turns of the conversation, which small models copy
            better, instead of as data in one message, which larger ones tell apart better.
    """
    has_structured = any("outputSchema" in tool for tool in query.spec.tools)
    rules = Message(
        role="system",
        content=_filled(
            "rules",
            unless=', or null where "structured" says it all' if has_structured else "",
            structured=STRUCTURED if has_structured else "",
            environment=_card(query.spec),
            tools=_lines(query.spec.tools),
            task=as_data(_task(query.task)),
        ),
    )
    recorded = [
        completed(shown.transition, query.spec) for shown in sorted(query.demonstrations, key=lambda shown: shown.id)
    ]
    if as_turns:
        turns = [message for step in (*recorded, *query.history) for message in _turns(step, query.spec)]
        return [rules, *turns, _asked(query.state, query.action)]
    step = _filled(
        "step",
        history=_lines(_seen(step.action, step.result) for step in query.history),
        state=as_data(query.state),
        recorded=_lines(
            {"state": step.state, "action": _call(step.action), "answer": answer(step, query.spec)} for step in recorded
        ),
        action=as_data(_call(query.action)),
    )
    return [rules, Message(role="user", content=step)]


def judge_messages(
    spec: EnvironmentSpec,
    task: Task,
    steps: Sequence[tuple[ToolCall, StepResult]],
    *,
    final_answer: str | None = None,
) -> list[Message]:
    """What a judge is asked about an episode: calls, answers and the agent's last words as data, nobody's reasoning."""
    episode = _filled(
        "episode" if final_answer is None else "answered_episode",
        environment=_card(spec),
        task=as_data(_task(task)),
        transcript=_lines(_seen(action, result) for action, result in steps),
        **({} if final_answer is None else {"final_answer": as_data(final_answer)}),
    )
    return [Message(role="system", content=_filled("judge")), Message(role="user", content=episode)]


def wording(query: Query) -> Wording | None:
    """How the called tool's text follows from its structured content, where its recordings and this episode show it."""
    steps = (*(completed(shown.transition, query.spec) for shown in query.demonstrations), *query.history)
    return wording_of(step.result for step in steps if step.action.name == query.action.name)


def answer(step: Transition, spec: EnvironmentSpec) -> JsonObject:
    """A recorded step in the form in which a model answers."""
    result = step.result
    unchanged = step.state if result.is_error else result.observation
    parts: JsonObject = {
        "reasoning": step.reasoning,
        "observation": result.observation,
        "state": None if step.next_state == unchanged else step.next_state,
        "error": result.is_error,
        "terminated": result.terminated,
        "success": result.terminated and result.reward > 0,
    }
    if output_schema(spec, step.action.name) is None:
        return parts
    parts |= {"observation": None if wording_of([result]) else result.observation, "structured": result.structured}
    return {name: parts[name] for name in STRUCTURED_ORDER}


def as_data(value: JsonValue) -> str:
    """One line of JSON in which no closing tag can stand."""
    return json.dumps(value, ensure_ascii=False).replace("</", "<\\/")


def _turns(step: Transition, spec: EnvironmentSpec) -> tuple[Message, Message]:
    return _asked(step.state, step.action), Message(role="assistant", content=as_data(answer(step, spec)))


def _asked(state: str, action: ToolCall) -> Message:
    return Message(role="user", content=_filled("turn", state=as_data(state), action=as_data(_call(action))))


def _card(spec: EnvironmentSpec) -> str:
    return as_data({"name": spec.name, "description": spec.description, "rules": spec.rules})


def _task(task: Task) -> JsonObject:
    return {"instruction": task.instruction, "initial_state": task.initial_state}


def _call(action: ToolCall) -> JsonObject:
    return {"tool": action.name, "arguments": dict(sorted(action.arguments.items()))}


def _seen(action: ToolCall, result: StepResult) -> JsonObject:
    hidden: JsonObject = {} if result.state == result.observation else {"state": result.state}
    said: JsonObject = {}
    if result.structured is None or wording_of([result]) is None:
        said["observation"] = result.observation
    if result.structured is not None:
        said["structured"] = result.structured
    return {**_call(action), **said, **hidden, "error": result.is_error}


def _lines(values: Iterable[JsonObject]) -> str:
    return "\n".join(as_data(value) for value in values) or "(none)"


def _filled(name: str, **parts: str) -> str:
    return _template(name).substitute(parts).strip()


@cache
def _template(name: str) -> Template:
    return Template(files("dreamgym.experience").joinpath(f"{name}.txt").read_text(encoding="utf-8"))
