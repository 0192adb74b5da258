"""Finds the tools that only read."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from dreamgym.tools import hints_of
from dreamgym.types import JsonObject, Transition
from dreamgym.views.answers import view_of

READS = (
    "check compare convert count describe diff fetch find get grep head info inspect list lookup ls peek preview query "
    "read retrieve search select show stat stats status summary summarize tail view"
)
"""Words in the names of tools that read."""
WRITES = (
    "add append apply archive assign cancel checkout clear close commit complete copy create delete drop edit execute "
    "import init insert install make mark merge move patch post pull push put remove rename replace reset restore "
    "run save send set start stop store submit toggle undo unset update upload upsert write"
)
"""Words in the names of tools that write."""
MAKES = "add append create import init insert make new post register"
"""Words in the names of tools that make something new."""
ACTS = (
    "accept activate approve block book buy charge confirm deactivate deliver deposit disable dismiss enable "
    "invite join leave lock notify order pause pay publish refund reject reply reserve resume schedule send share "
    "ship sort subscribe swap transfer unlock unsubscribe vote wipe withdraw"
)
"""Further verbs in the names of tools that do something. As a noun, such a word may be in the name of a read."""
_CHECKS_IN = {("check", "in"), ("check", "out"), ("check", "off")}
"""Words in the names of tools that write although they check."""
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def reading_tools(sessions: Sequence[Sequence[Transition]], tools: Mapping[str, JsonObject]) -> frozenset[str]:
    """The recorded tools that change nothing.

    A tool's `readOnlyHint` decides, or a `destructiveHint` that is true. Any other tool writes if it was the only one
    called between two different answers to the same call, or if it took a call and then refused the same call at once.
    What changes by itself, as the answer of a clock, shows no write. Else the words of its name decide, or the first
    word of its description. A tool about which nothing is known writes.
    """
    names = {step.action.name for session in sessions for step in session} | set(tools)
    hints = hints_of(tools)
    blamed: set[str] = set()
    by_itself: set[str] = set()
    changed: list[tuple[str, set[str]]] = []
    for session in sessions:
        last: dict[str, int] = {}
        for number, step in enumerate(session):
            earlier = last.get(step.action.canonical())
            last[step.action.canonical()] = number
            if earlier is None or _answer(session[earlier]) == _answer(step):
                continue
            between = {one.action.name for one in session[earlier + 1 : number]}
            if between:
                changed.append((step.action.name, between))
            elif view_of(step.result).is_refusal and not view_of(session[earlier].result).is_refusal:
                blamed.add(step.action.name)
            else:
                by_itself.add(step.action.name)
    for read, between in changed:
        if read not in by_itself and len(between) == 1:
            blamed |= between
    return frozenset(
        name for name in names if hints.get(name, name not in blamed and _is_read_by_words(name, tools.get(name, {})))
    )


def makes_by_name(name: str) -> bool:
    """True if the name of a tool shows that it makes something new."""
    return any(word.lower() in MAKES.split() for word in _PARTS.findall(name))


def acts_by_name(name: str) -> bool:
    """True if the name of a tool shows that it does something, so that its answer may be a mere confirmation."""
    words = [word.lower() for word in _PARTS.findall(name)]
    verbs = f"{WRITES} {MAKES} {ACTS}".split()
    return any(word in verbs for word in words) or not _CHECKS_IN.isdisjoint(pairwise(words))


def _answer(step: Transition) -> str:
    return view_of(step.result).key()


def _is_read_by_words(name: str, tool: JsonObject) -> bool:
    words = [word.lower() for word in _PARTS.findall(name)]
    joined = [after for word, after in pairwise(words) if word in {"and", "or"}]  # search_and_replace does both
    if not _CHECKS_IN.isdisjoint(pairwise(words)):
        return False
    described = str(tool.get("description") or "").split(maxsplit=1)[:1]
    for word in (*joined, *words, *(word.lower().rstrip("s") for word in described)):
        if word in WRITES.split():
            return False
        if word in READS.split() and word not in joined:
            return True
    return False
