"""server.json: how the real server presented itself, and the words with which it refuses.

The words are learned from its recorded refusals, with gaps for the tool and for the reason.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from dreamgym.errors import InvalidInput
from dreamgym.fault_words import learned
from dreamgym.mirror import LISTINGS, LOOKUPS, Lookup, Mirror, without_tool
from dreamgym.recordings.folder.listings import ToolLists, listings_of
from dreamgym.recordings.folder.runs import Run
from dreamgym.recordings.folder.trajectories import Call, refused
from dreamgym.recordings.log import Exchange
from dreamgym.schema import fault_under, schema_of
from dreamgym.types import JsonObject, StepResult, ToolCall

SERVER_INFO = "io.modelcontextprotocol/serverInfo"


def mirror_of(runs: Sequence[Run], tools: ToolLists, calls: Mapping[str, Sequence[Call]]) -> Mirror:
    """The content of server.json: first answers of runs with the current tool list; other runs only fill the gaps.

    The server presents itself as in the newest of these runs.
    """
    newest = sorted(runs, key=tools.is_current)[::-1]
    greetings = [exchange for run in newest for exchange in run.exchanges]
    runs = sorted(runs, key=lambda run: not tools.is_current(run))
    exchanges = [exchange for run in runs for exchange in run.exchanges]
    called = [(action, result) for run in runs for action, result, _ in calls[run.id]]
    presented = {
        "initialize": _first(greetings, "initialize"),
        "discover": _first(greetings, "server/discover"),
        "listings": {method: pages for method in LISTINGS if (pages := _pages(runs, method))},
        "lookups": tuple(_lookups(exchanges)),
    }
    return taught_by(called, tools.definitions).model_copy(update=presented)


def taught_by(calls: Sequence[tuple[ToolCall, StepResult]], tools: Mapping[str, JsonObject]) -> Mirror:
    """The part of server.json that calls and their answers teach: which calls the server refuses, and in which words.

    Args:
        calls: recorded calls and their answers.
        tools: tool definitions by name.
    """
    invalid = invalid_arguments(calls, tools)
    words, tells_all = fault_words(calls, tools, invalid)
    return Mirror(
        unknown_tool=unknown_tool(calls, tools),
        invalid_arguments=invalid,
        fault_words=words,
        refusals=exact_refusals(calls, tools),
        accepted=accepted_calls(calls, tools),
        errors=protocol_errors(calls, invalid),
        tells_all_faults=tells_all,
    )


def description_of(mirror: Mirror) -> str:
    """The server's title or name, and its instructions."""
    info = _info(mirror.initialize, mirror.discover)
    named = info.get("title") or info.get("name")
    instructions = mirror.initialize.get("instructions") or mirror.discover.get("instructions")
    return "\n".join(text.strip() for text in (named, instructions) if isinstance(text, str) and text.strip())


def server_info(exchanges: Sequence[Exchange]) -> tuple[str, str] | None:
    """Name and version of the server; None if it reported neither."""
    info = _info(_first(exchanges, "initialize"), _first(exchanges, "server/discover"))
    return (str(info.get("name")), str(info.get("version"))) if info else None


def _info(initialize: JsonObject, discover: JsonObject) -> JsonObject:
    info = initialize.get("serverInfo")
    if not isinstance(info, dict):
        meta = discover.get("_meta")
        info = meta.get(SERVER_INFO) if isinstance(meta, dict) else None
    return info if isinstance(info, dict) else {}


def _first(exchanges: Iterable[Exchange], method: str) -> JsonObject:
    answers = (exchange.result for exchange in exchanges if exchange.method == method)
    return next((answer for answer in answers if answer is not None), {})


def _pages(runs: Sequence[Run], method: str) -> tuple[JsonObject, ...]:
    found = [listing for run in runs for listing in listings_of(run, method)]
    whole = [listing for listing in found if listing.complete]
    return (whole or found)[0].pages if found else ()


def _lookups(exchanges: Iterable[Exchange]) -> Iterator[Lookup]:
    seen = set()
    for exchange in exchanges:
        is_refused_listing = exchange.method in LISTINGS and exchange.error is not None
        is_answered = exchange.result is not None or exchange.error is not None
        if not is_refused_listing and not (exchange.method in LOOKUPS and is_answered):
            continue
        params = {key: value for key, value in exchange.params.items() if key != "_meta"}
        key = (exchange.method, json.dumps(params, sort_keys=True))
        if key not in seen:
            seen.add(key)
            yield Lookup(method=exchange.method, params=params, result=exchange.result, error=exchange.error)


_REFUSES = re.compile(r"invalid|validation|required|expected", re.IGNORECASE)


def unknown_tool(calls: Iterable[tuple[ToolCall, StepResult]], tools: Mapping[str, JsonObject]) -> str | None:
    """The first refusal of a tool that the server does not have, with `{tool}` for its name.

    If none was recorded, but another error shows that the server is built on the official Python SDK, the words of that
    SDK are returned.
    """
    is_python_sdk = False
    for action, result in calls:
        if action.name not in tools and refused(action, result):
            return without_tool(result.observation, action.name)
        is_python_sdk = is_python_sdk or (
            result.is_error and result.observation.startswith(f"Error executing tool {action.name}")
        )
    return "Unknown tool: {tool}" if is_python_sdk else None


def invalid_arguments(calls: Iterable[tuple[ToolCall, StepResult]], tools: Mapping[str, JsonObject]) -> str | None:
    """The first refusal of arguments that the tool's schema forbids, with `{tool}` and `{reason}`.

    The reason is the message of our schema library if the server uses the same one. Else it is everything after the
    tool's name and a colon, since refusals of the public SDKs begin so.
    """
    for action, result in calls:
        reason = _fault(tools.get(action.name), action) if result.is_error else None
        if reason is None or not _REFUSES.search(result.observation):
            continue
        said = result.observation
        gap = next((end for end in (reason, reason.partition(": ")[2]) if end and end in said), None)
        if gap is None:
            _, name, rest = said.partition(action.name)
            gap = re.sub(r"^['\"]?:\s*", "", rest) if name and re.match(r"['\"]?:", rest) else None
        if gap:
            before, _, after = said.partition(gap)
            return f"{without_tool(before, action.name)}{{reason}}{without_tool(after, action.name)}"
    return None


def fault_words(
    calls: Iterable[tuple[ToolCall, StepResult]], tools: Mapping[str, JsonObject], invalid: str | None
) -> tuple[dict[str, str], bool]:
    """The reasons of recorded refusals by kind of fault, and True if the server reports several faults of a call.

    Args:
        calls: recorded calls and their answers.
        tools: tool definitions by name.
        invalid: the result of `invalid_arguments`.
    """
    refusals = []
    for action, result in calls:
        if not _refuses_arguments(action, result, tools):
            continue
        before, _, after = (invalid or "{reason}").replace("{tool}", action.name).partition("{reason}")
        said = result.observation
        if said.startswith(before) and said.endswith(after) and len(said) > len(before) + len(after):
            schema = schema_of(tools[action.name]["inputSchema"], redacted=True)
            refusals.append((schema, action, said[len(before) : len(said) - len(after)]))
    return learned(refusals)


def exact_refusals(calls: Iterable[tuple[ToolCall, StepResult]], tools: Mapping[str, JsonObject]) -> dict[str, str]:
    """The refusals of calls that a schema forbids, in any words, by the canonical text of the call.

    A call that was answered in two ways is not among them.
    """
    found: dict[str, set[tuple[bool, str]]] = {}
    for action, result in calls:
        if _fault(tools.get(action.name), action) is not None:
            found.setdefault(action.canonical(), set()).add((result.is_error, result.observation))
    once = {call: min(answers) for call, answers in found.items() if len(answers) == 1}
    return {call: said for call, (is_error, said) in once.items() if is_error}


def accepted_calls(calls: Iterable[tuple[ToolCall, StepResult]], tools: Mapping[str, JsonObject]) -> tuple[str, ...]:
    """The canonical texts of calls that a schema forbids, and that the server answered without an error."""
    accepted = (action for action, result in calls if not result.is_error)
    return tuple(sorted({one.canonical() for one in accepted if _fault(tools.get(one.name), one) is not None}))


def protocol_errors(calls: Iterable[tuple[ToolCall, StepResult]], invalid: str | None) -> dict[str, JsonObject]:
    """The JSON-RPC errors of recorded calls, by their message with `{tool}` for the tool's name.

    A message that came with two codes, or that a tool result had too, is not among them.

    Args:
        calls: recorded calls and their answers.
        invalid: the result of `invalid_arguments`.
    """
    found: dict[str, JsonObject] = {}
    unclear = set()
    before, _, after = (invalid or "").partition("{reason}")
    for action, result in calls:
        message, error = without_tool(result.observation, action.name), result.info.get("error")
        if not isinstance(error, dict):
            unclear.add(message)
            continue
        kinds = {message: error}
        if invalid and message.startswith(before) and message.endswith(after):
            kinds[invalid] = {"code": error.get("code")}
        for words, given in kinds.items():
            if found.setdefault(words, given).get("code") != given.get("code"):
                unclear.add(words)
    return {message: error for message, error in found.items() if message not in unclear}


def _refuses_arguments(action: ToolCall, result: StepResult, tools: Mapping[str, JsonObject]) -> bool:
    is_forbidden = result.is_error and _fault(tools.get(action.name), action) is not None
    return is_forbidden and _REFUSES.search(result.observation) is not None


def _fault(tool: JsonObject | None, action: ToolCall) -> str | None:
    schema = (tool or {}).get("inputSchema")
    if not isinstance(schema, dict):
        return None
    try:
        return fault_under(schema, action.arguments, redacted=True)
    except InvalidInput:
        return None
