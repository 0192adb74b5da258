"""Which tools only read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from dreamgym.types import JsonObject, Transition
from dreamgym.views.answers import view_of

READS = (
    "check compare convert count describe diff fetch find get head info inspect list lookup ls peek preview query read "
    "retrieve search select show stat stats status summary summarize tail view"
)
"""Words in the names of tools that read."""
WRITES = (
    "add append apply archive assign cancel checkout clear close commit complete copy create delete drop edit execute "
    "import init insert install make mark merge move open patch post pull push put remove rename replace reset restore "
    "run save send set start stop store submit toggle undo unset update upload upsert write"
)
"""Words in the names of tools that write."""
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def reading_tools(sessions: Sequence[Sequence[Transition]], tools: Mapping[str, JsonObject]) -> frozenset[str]:
    """The recorded tools that change nothing.

    A tool's `readOnlyHint` counts. Of the others, one that alone stood between two different answers to the same call
    writes; else its name decides, and a tool whose name says nothing writes.
    """
    names = {step.action.name for session in sessions for step in session} | set(tools)
    hints = {name: hint for name in names if (hint := _hint(tools.get(name, {}))) is not None}
    blamed: Counter[str] = Counter()
    for session in sessions:
        last: dict[str, int] = {}
        for number, step in enumerate(session):
            earlier = last.get(step.action.canonical())
            last[step.action.canonical()] = number
            if earlier is not None and _answer(session[earlier]) != _answer(step):
                between = {one.action.name for one in session[earlier + 1 : number]}
                if len(between) == 1:
                    blamed.update(between)
    return frozenset(name for name in names if hints.get(name, name not in blamed and _is_read_by_name(name)))


def _answer(step: Transition) -> str:
    return view_of(step.result).key()


def _is_read_by_name(name: str) -> bool:
    words = [word.lower() for word in _PARTS.findall(name)]
    for word in words:
        if word in WRITES.split():
            return False
        if word in READS.split():
            return True
    return False


def _hint(tool: JsonObject) -> bool | None:
    annotations = tool.get("annotations")
    hint = annotations.get("readOnlyHint") if isinstance(annotations, dict) else None
    return hint if isinstance(hint, bool) else None
