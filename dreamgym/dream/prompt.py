"""The prompts of the experience model; the texts are the .txt files beside this one.

The order decides the speed. Text that is the same for all episodes comes first, then the task, then the history, which
only grows. Text that changes with every step comes last. So each step's prompt begins with most of the one before, and
a server that caches prefixes reads that part once. Nothing that varies (times, scores, ids) may come earlier.
All text from the agent or from recordings is JSON on one line between tags, and cannot close its tag.
If a text of the history or of a recording is too long, or the whole history is, its middle is replaced by a note. A
judge reads texts whole unless the whole episode is too long, and never misses a step.

In the .txt files, `{part?…?}` is kept only if the prompt has the part, `{!part?…?}` only if it does not.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Literal

from pydantic import JsonValue

from dreamgym.dream.answer_form import answer_of, history, recordings
from dreamgym.dream.model import Part, Query
from dreamgym.environment import EnvironmentSpec
from dreamgym.llm import Message
from dreamgym.replay.buffer import GROUNDED, Demonstration
from dreamgym.state import State, StateSchema, natural
from dreamgym.state.wording import wording_of
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Transition

PromptForm = Literal["data", "turns", "fitted"]
"""Values of an LLM's attribute `form`; the default is `data`. `data`: everything in one message, which larger models
tell apart better. `turns`: recorded transitions and history as turns of the conversation, which small models copy
better. `fitted`: for a model that was fine-tuned on this environment and needs neither rules, card nor tools. A part
that is left out is then an empty list, because a model is confused by other tags than it has learned."""
TURNS_CHARACTERS = 20_000
"""Most characters of a prompt in turns: 7,000 tokens of JSON, which two cores read in a minute and a half."""
CHARACTERS_PER_TOKEN = 3
"""A cautious estimate for JSON in English."""
TEXT_TOKENS = 1_000
"""Most tokens of one text in the history or in a recorded transition."""
HISTORY_TOKENS = 12_000
"""Most tokens of all steps so far."""
JUDGED_TOKENS = 32_000
"""If the steps of an episode have more tokens, the judge reads long texts without their middle."""
LEAST_CHARACTERS = 100
"""What a judge reads at least of each text, however many steps there are."""
LEFT_OUT_AT_ONCE = 8
"""Steps are left out in groups of this size, so the prompt changes in the middle only once in as many steps. If fewer
of the last steps fit, the groups are smaller, so that the newest step is shown."""
FITTED_STEPS = 12
"""Last steps of the history that a fitted model reads, because it is small. If the state is explicit it reads a third
of them, because the state contains what they did."""


def step_messages(query: Query, form: PromptForm = "data") -> list[Message]:
    """The prompt to predict one step."""
    if form == "fitted":
        return [Message(role="user", content=_fitted(query))]
    if form == "turns":
        return _conversation(_fitting(query))
    rules = Message(role="system", content=_rules(query, form))
    shown = recordings(query)
    step = filled(
        "step",
        {*_parts(query), *(["dreamed"] if any(_is_dreamed(one) for one in shown) else [])},
        history=_earlier(query),
        state=as_data(_shown(query, query.state, query.action)),
        newest=as_data(_newest(query, query.state)),
        recorded=_lines(_example(query, one) for one in shown),
        action=as_data(_call(query.action)),
    )
    return [rules, Message(role="user", content=step)]


def shown_ids(query: Query, form: PromptForm = "data") -> tuple[str, ...]:
    """Ids of the transitions that the prompt to predict one step shows, best first."""
    shown = {one.id for one in recordings(_fitting(query) if form == "turns" else query)}
    return tuple(one.id for one in query.demonstrations if one.id in shown)


def judge_messages(
    spec: EnvironmentSpec,
    task: Task,
    steps: Sequence[tuple[ToolCall, StepResult]],
    *,
    final_answer: str | None = None,
    state: str = "",
) -> list[Message]:
    """The prompt for a judge of an episode: calls, answers and the agent's final answer as data, without any reasoning.

    `state` is the state after the last step. If it is explicit, the judge sees the parts that the task and the calls
    name.
    """
    after = State.of(state, spec.state)
    whole: list[JsonObject] = [*(_seen(spec, *step) for step in steps), {"final answer": final_answer}]
    shown = _within(whole)
    parts = {
        *(["answered"] if final_answer is not None else []),
        *(["state"] if after.is_explicit else []),
        *(["shortened"] if shown is not whole else []),
    }
    named: JsonObject = {"task": task.instruction, "calls": [action.arguments for action, _ in steps]}
    episode = filled(
        "episode",
        parts,
        environment=_card(spec),
        task=as_data(_task(spec, task)),
        transcript=_lines(shown[:-1]),
        state=as_data(after.relevant(named)) if after.is_explicit else "",
        final_answer=as_data(shown[-1]["final answer"]),
    )
    return [Message(role="system", content=filled("judge", parts)), Message(role="user", content=episode)]


def as_data(value: JsonValue, separators: tuple[str, str] = (", ", ": ")) -> str:
    """One line of JSON that cannot contain a closing tag. Half a surrogate, which cannot be sent, is escaped."""
    line = json.dumps(value, ensure_ascii=False, separators=separators).replace("</", "<\\/")
    return line.encode(errors="backslashreplace").decode()


def _conversation(query: Query) -> list[Message]:
    """The prompt in turns."""
    return [
        Message(role="system", content=_rules(query, "turns")),
        *(turn for one in recordings(query) for turn in _turns(query, one.transition, one)),
        *(turn for step in (() if query.is_explicit else history(query)) for turn in _turns(query, step)),
        _asked(query, query.state, query.action),
    ]


def _fitting(query: Query) -> Query:
    """The query without its oldest steps and worst recordings, as far as its prompt in turns is too long with them."""

    def is_short(left_out: int) -> bool:
        shown = _conversation(_without(query, left_out))
        return sum(len(message.content) for message in shown) <= TURNS_CHARACTERS

    most = len(query.history) + len(query.demonstrations)
    return _without(query, bisect_left(range(most), True, key=is_short))


def _without(query: Query, left_out: int) -> Query:
    """The query without some steps and recordings.

    If the state is explicit, the history goes first, because it repeats the state. Otherwise recordings go first, until
    two are left.
    """
    if not left_out:
        return query
    worst = 0 if query.is_explicit else min(left_out, max(0, len(query.demonstrations) - 2))
    oldest = min(left_out - worst, len(query.history))
    kept = len(query.demonstrations) - (left_out - oldest)
    return query.model_copy(
        update={"history": query.history[oldest:], "demonstrations": query.demonstrations[: max(0, kept)]}
    )


def _rules(query: Query, form: PromptForm) -> str:
    """The system message. In turns it lists only the called tool and, if the state is explicit, the history."""
    parts = _parts(query)
    if form == "turns":
        parts.add("one")
        if query.is_explicit and history(query):
            parts.add("earlier")
    called = [tool for tool in query.spec.tools if tool["name"] == query.action.name]
    return filled(
        "rules",
        parts,
        environment=_card(query.spec),
        tools=_lines(query.spec.tools),
        schema=_lines(_outline(query.spec.state)) if query.spec.state is not None else "",
        task=as_data(_task(query.spec, query.task)),
        history=_earlier(query),
        tool=_lines(called),
    )


def _earlier(query: Query) -> str:
    lines = [as_data(_cut(_seen(query.spec, step.action, step.result))) for step in history(query)]
    return "\n".join(_shortened(lines)) or "(none)"


def _shortened(lines: Sequence[str]) -> Sequence[str]:
    """The first and the last lines, within the tokens of a history; a line between them counts the steps left out."""
    room = HISTORY_TOKENS * CHARACTERS_PER_TOKEN
    if sum(map(len, lines)) <= room:
        return lines
    first, used = 0, 0
    while used + len(lines[first]) <= room // 4:
        used += len(lines[first])
        first += 1
    last, used = len(lines), 0
    while last > first and used + len(lines[last - 1]) <= room * 3 // 4:
        last -= 1
        used += len(lines[last])
    group = max(1, min(LEFT_OUT_AT_ONCE, len(lines) - last))
    gone = -(-(last - first) // group) * group
    gone = min(gone, len(lines) - first)
    return [*lines[:first], as_data({"left out": f"{gone} steps"}), *lines[first + gone :]]


def _within(episode: list[JsonObject]) -> list[JsonObject]:
    """What a judge reads of an episode. If it is too long, its long texts are shortened to the same length."""
    shown, room = episode, TEXT_TOKENS * CHARACTERS_PER_TOKEN
    while sum(map(len, map(as_data, shown))) > JUDGED_TOKENS * CHARACTERS_PER_TOKEN and room >= LEAST_CHARACTERS:
        shown = [{name: _cut(value, room) for name, value in part.items()} for part in episode]
        room //= 2
    return shown


def _cut(value: JsonValue, room: int = TEXT_TOKENS * CHARACTERS_PER_TOKEN) -> JsonValue:
    """The value with the middle of each text replaced by a note if the text has more than `room` characters."""
    if isinstance(value, dict):
        return {name: _cut(part, room) for name, part in value.items()}
    if isinstance(value, list):
        return [_cut(part, room) for part in value]
    if not isinstance(value, str) or len(value) <= room:
        return value
    gone = len(value) - room
    return f"{value[: room // 2]} [… {gone:,} characters left out …] {value[len(value) - room // 2 :]}"


def _fitted(query: Query) -> str:
    """The prompt of a fitted model, as short as possible: recordings without reasoning, JSON without spaces."""
    silent = query.model_copy(update={"without": query.without | {Part.REASONING}})
    steps = FITTED_STEPS // 3 if query.is_explicit else FITTED_STEPS
    seen = [_seen(query.spec, step.action, step.result) for step in history(query)[-steps:]]
    values: dict[str, JsonValue] = {
        "task": _task(query.spec, query.task),
        "history": [*seen],
        "state": _shown(query, query.state, query.action),
        "newest": _newest(query, query.state),
        "recorded": [_example(silent, one) for one in recordings(query)],
        "action": _call(query.action),
    }
    return filled("fitted", _parts(query), **{name: as_data(value, (",", ":")) for name, value in values.items()})


def _parts(query: Query) -> set[str]:
    """Names of the conditional passages that apply to this query."""
    parts = {str(part) for part in (Part.HISTORY, Part.RETRIEVAL, Part.REASONING) if part not in query.without}
    if query.is_explicit:
        parts.add("state")
    if any("outputSchema" in tool for tool in query.spec.tools):
        parts.add("structured")
    return parts


def _example(query: Query, one: Demonstration) -> JsonObject:
    step, state = one.transition, State.of(one.transition.state, query.spec.state)
    newest: JsonObject = {"newest": _newest(query, state)} if query.is_explicit else {}
    return {
        **_origin(query, one),
        "state": _cut(_shown(query, state, step.action)),
        **newest,
        "action": _call(step.action),
        "answer": _cut(answer_of(query, step)),
    }


def _origin(query: Query, one: Demonstration) -> JsonObject:
    """The world in which a transition was recorded, the task for which it was, and if it was only dreamed."""
    is_this = (query.spec.deterministic or query.spec.has_views) and one.world == query.task.world
    return {
        "world": "this" if is_this else "another",
        "task": "this" if one.same_goal else one.instruction or "unknown",
        **({"dreamed": True} if _is_dreamed(one) else {}),
    }


def _is_dreamed(one: Demonstration) -> bool:
    """True if no recording contains the transition."""
    return one.source not in GROUNDED


def _turns(query: Query, step: Transition, one: Demonstration | None = None) -> tuple[Message, Message]:
    """A step of the history, or a recorded one, as a question and an answer."""
    answer = Message(role="assistant", content=as_data(_cut(answer_of(query, step))))
    return _asked(query, State.of(step.state, query.spec.state), step.action, one), answer


def _asked(query: Query, state: State, action: ToolCall, one: Demonstration | None = None) -> Message:
    shown = _shown(query, state, action)
    values: dict[str, JsonValue] = {
        "origin": {} if one is None else _origin(query, one),
        "state": shown if one is None else _cut(shown),
        "newest": _newest(query, state),
        "action": _call(action),
    }
    parts = {"explicit"} if query.is_explicit else set()
    if one is not None:
        parts.add("dreamed" if _is_dreamed(one) else "recorded")
    return Message(role="user", content=filled("turn", parts, **{name: as_data(one) for name, one in values.items()}))


def _shown(query: Query, state: State, action: ToolCall) -> JsonValue:
    """The part of an explicit state that the action is about, or the whole text of a text state."""
    return state.relevant(action.arguments) if query.is_explicit and state.is_explicit else state.text


def _newest(query: Query, state: State) -> JsonObject:
    """The highest id of each collection: new ids mostly follow from it, and the shown part may lack it."""
    if state.schema is None or not query.is_explicit:
        return {}
    return {name: max(ids, key=natural) for name in state.schema.collections if (ids := state.collection(name))}


def _outline(schema: StateSchema) -> Iterable[JsonObject]:
    """Yield one line for each collection and value, by its path; a question mark follows a type that may be null."""
    for name, collection in schema.collections.items():
        fields: JsonObject = {collection.key: "its id", **collection.fields}
        note: JsonObject = {} if collection.complete else {"more": "there may be others that are not shown"}
        yield {f"/{name}/{{{collection.key}}}": fields, **note}
    for name, kind in schema.values.items():
        yield {f"/{name}": kind}


def _card(spec: EnvironmentSpec) -> str:
    return as_data({"name": spec.name, "description": spec.description, "rules": spec.rules})


def _task(spec: EnvironmentSpec, task: Task) -> JsonObject:
    """The task, without an explicit initial state: another part of the prompt shows what matters of the state."""
    if State.of(task.initial_state or "", spec.state).is_explicit:
        return {"instruction": task.instruction}
    return {"instruction": task.instruction, "initial_state": task.initial_state}


def _call(action: ToolCall) -> JsonObject:
    """A call, with the client's replies to a question of the tool if there are any."""
    replies: JsonObject = {"answers": action.answers} if action.answers else {}
    return {"tool": action.name, "arguments": dict(sorted(action.arguments.items())), **replies}


def _seen(spec: EnvironmentSpec, action: ToolCall, result: StepResult) -> JsonObject:
    """A call and its answer, with the state after it if that is a text and the answer does not show it."""
    is_said = result.state == result.observation or State.of(result.state, spec.state).is_explicit
    hidden: JsonObject = {} if is_said else {"state": result.state}
    said: JsonObject = {}
    if result.structured is None or wording_of([result]) is None:
        said["observation"] = result.observation
    if result.structured is not None:
        said["structured"] = result.structured
    return {**_call(action), **said, **hidden, "error": result.is_error}


def _lines(values: Iterable[JsonObject]) -> str:
    return "\n".join(as_data(value) for value in values) or "(none)"


def filled(name: str, parts: set[str], **values: str) -> str:
    """The text of `name`.txt with the values filled in, and with those conditional passages that `parts` allow."""
    return _template(name, frozenset(parts)).substitute(values).strip()


@cache
def _template(name: str, parts: frozenset[str]) -> Template:
    def kept(found: re.Match[str]) -> str:
        conditions = found[1].split("&")
        return found[2] if all((word.lstrip("!") in parts) != word.startswith("!") for word in conditions) else ""

    text = files("dreamgym.dream").joinpath(f"{name}.txt").read_text(encoding="utf-8")
    return Template(re.sub(r"\{([!\w&]+)\?(.*?)\?\}", kept, text, flags=re.DOTALL))
