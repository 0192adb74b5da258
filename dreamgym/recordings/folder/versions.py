"""Compares recordings of several versions of one server, and finds episodes that the newest version would not give.

The newest tool list and the answers of the newest version count. An episode of an older version is kept if all its
calls still fit; otherwise it is left out and reported, so that no dream mixes two versions.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder.listings import ToolLists, tools_on
from dreamgym.recordings.folder.runs import Run, Say
from dreamgym.recordings.folder.server import server_info
from dreamgym.recordings.folder.trajectories import Call
from dreamgym.schema import fault_under
from dreamgym.types import JsonObject, StepResult

FEWEST_ANSWERS = 2
"""Fewest answers of a tool from each version for which their fields are compared."""
FEWEST_UNTOLD = 3
"""Fewest answers of a tool before and after a change if the server has not reported another version."""
DEEPEST = 6
"""Most levels of an answer whose fields are compared; a list is a level."""
SHOWN = 5
NAME_CHARACTERS = 80
"""Most characters of a field's name that are compared, since all fields below a field repeat its name."""

Path = tuple[str, ...]
Fields = frozenset[Path]
"""Paths of the fields of one answer, such as `("items", "[]", "price")`."""


class Change(NamedTuple):
    """A change in the fields of a tool's answers."""

    appeared: Fields
    """Fields of all later answers and of no earlier one."""
    vanished: Fields
    """Fields of all earlier answers and of no later one."""

    def __str__(self) -> str:
        new, gone = (_names(".".join(path) for path in paths) for paths in self)
        return "; ".join([*([f"new {new}"] if new else []), *([f"no longer {gone}"] if gone else [])])


def listed_differences(tools: ToolLists) -> list[str]:
    """The differences between older tool lists and the newest one, each with the names of the tools."""
    newest = tools.definitions
    older = [tools_on(listing.pages) for run in tools.older() for listing in tools.of_runs[run]]
    told = {
        "gone": {name for one in older for name in one.keys() - newest.keys()},
        "new": {name for one in older for name in newest.keys() - one.keys()},
        "other schema": {name for one in older for name in one.keys() & newest.keys() if _differ(one, newest, name)},
    }
    return [f"{what}: {_names(names)}" for what, names in told.items() if names]


def outdated(runs: Sequence[Run], calls: Mapping[str, Sequence[Call]], tools: ToolLists, say: Say) -> frozenset[str]:
    """Ids of the runs whose episodes the newest version of the server would not give.

    Args:
        runs: the recordings, oldest first.
        calls: the calls of each run.
        tools: the newest tool list, and those of the runs.
        say: called with a message for each run that is left out, and for answers that changed in a server that
            reports no new version.
    """
    stale = set()
    for run in runs:
        if reason := _misfit(run, calls[run.id], tools):
            say(f"{run.id}: left out, because the server has changed: {reason}")
            stale.add(run.id)
    told = {run.id: info for run in runs if (info := server_info(run.exchanges))}
    newest = next((told[run.id] for run in reversed(runs) if run.id in told), None)
    is_older = [_is_older(run, tools, told.get(run.id, newest) != newest) for run in runs]
    older, newer = ([run for run, is_one in zip(runs, is_older, strict=True) if is_one is age] for age in (True, False))
    for name in tools.definitions:
        before, since = _answers(name, older, calls), _answers(name, newer, calls)
        change = _change([fields for _, fields in before], [fields for _, fields in since], FEWEST_ANSWERS)
        if change is not None:
            of_tool = [run for run in dict.fromkeys(run for run, _ in before) if run not in stale]
            if of_tool:
                out = ", ".join(of_tool)
                say(f"{out}: left out, because the newest version answers {name!r} differently: {change}")
            stale.update(of_tool)
        elif untold := _changed_at(since):
            first, change = untold
            say(
                f"{name!r} answers differently since {first}: {change}. The server reports no new version, so all "
                "recordings are kept: if it has changed, delete the older ones and forget them (`dreamgym db forget`)"
            )
    return frozenset(stale)


def _is_older(run: Run, tools: ToolLists, is_other_server: bool) -> bool:
    return is_other_server or (bool(tools.of_runs.get(run.id)) and not tools.is_current(run))


def _misfit(run: Run, calls: Sequence[Call], tools: ToolLists) -> str | None:
    """The first reason why a call of the run or its answer does not fit the newest tool list; None if all fit."""
    seen = tools.of_runs.get(run.id, ())
    if not seen or tools.is_current(run):
        return None
    old, new = tools_on(seen[-1].pages), tools.definitions
    for action, result, _ in calls:
        name = action.name
        if name not in old or name not in new or not _differ(old, new, name):
            continue
        was_refused, is_refused = (_fault(listed[name], "inputSchema", action.arguments) for listed in (old, new))
        if (was_refused is None) != (is_refused is None):
            return f"{name!r} now {'accepts' if is_refused is None else 'refuses'} the arguments of a recorded call"
        if not result.is_error and _fault(new[name], "outputSchema", _value(result)) is not None:
            return f"an answer of {name!r} does not fit its current output schema"
    return None


def _differ(old: Mapping[str, JsonObject], new: Mapping[str, JsonObject], name: str) -> bool:
    return any(old[name].get(schema) != new[name].get(schema) for schema in ("inputSchema", "outputSchema"))


def _fault(tool: JsonObject, schema: str, value: JsonValue) -> str | None:
    try:
        return fault_under(tool.get(schema) or {}, value, redacted=True)
    except InvalidInput:  # a schema that cannot be used forbids nothing
        return None


def _value(result: StepResult) -> JsonValue:
    """The answer as JSON, or its text."""
    if result.structured is not None:
        return result.structured
    try:
        value: JsonValue = json.loads(result.observation)
    except (ValueError, RecursionError):
        return result.observation
    return value


def _answers(name: str, runs: Iterable[Run], calls: Mapping[str, Sequence[Call]]) -> list[tuple[str, Fields]]:
    """Run and fields of each answer of a tool that is a JSON object, or a list with objects."""
    found = [
        (run.id, frozenset(_fields(_value(result), ())))
        for run in runs
        for action, result, _ in calls[run.id]
        if action.name == name and not result.is_error
    ]
    return [(run, fields) for run, fields in found if fields]


def _fields(value: JsonValue, path: Path) -> Iterator[Path]:
    if len(path) >= DEEPEST:
        return
    if isinstance(value, list):
        for item in value:
            yield from _fields(item, (*path, "[]"))
    elif isinstance(value, dict):
        for key, inner in value.items():
            below = (*path, key[:NAME_CHARACTERS])
            yield below
            yield from _fields(inner, below)


def _change(before: Sequence[Fields], since: Sequence[Fields], fewest: int) -> Change | None:
    """The change of the fields; None if nothing has changed, or if there are too few answers to know."""
    if min(len(before), len(since)) < fewest:
        return None
    appeared = frozenset.intersection(*since) - frozenset.union(*before)
    vanished = frozenset.intersection(*before) - frozenset.union(*since)
    return Change(appeared, vanished) if appeared or vanished else None


def _changed_at(answers: Sequence[tuple[str, Fields]]) -> tuple[str, Change] | None:
    """The first run from which a tool's answers have new fields in place of old ones; None if there is none."""
    first: dict[Path, int] = {}
    last: dict[Path, int] = {}
    times: Counter[Path] = Counter()
    for at, (_, fields) in enumerate(answers):
        times.update(fields)
        for path in fields:
            first.setdefault(path, at)
            last[path] = at
    appeared: dict[int, set[Path]] = defaultdict(set)
    vanished: dict[int, set[Path]] = defaultdict(set)
    for path, count in times.items():
        if count == len(answers) - first[path]:
            appeared[first[path]].add(path)
        if count == last[path] + 1:
            vanished[count].add(path)
    for at in range(FEWEST_UNTOLD, len(answers) - FEWEST_UNTOLD + 1):
        if at in appeared and at in vanished and answers[at][0] != answers[at - 1][0]:
            return answers[at][0], Change(frozenset(appeared[at]), frozenset(vanished[at]))
    return None


def _names(names: Iterable[str]) -> str:
    found = [repr(name) for name in sorted(names)]
    return ", ".join([*found[:SHOWN], *([f"{len(found) - SHOWN} more"] if len(found) > SHOWN else [])])
