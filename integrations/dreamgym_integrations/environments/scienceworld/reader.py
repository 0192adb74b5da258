"""Reads ScienceWorld's texts as objects: typed commands, structured answers, and the places and things that are known.

The name of a thing is the one in listings, without the article. Equal things are one entity that is in several places.
A place in `where` is a path: `kitchen/counter/bowl` is a bowl on the counter of the kitchen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from dreamgym.reading import read_as
from dreamgym.state import StateSchema, natural
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.scienceworld.environment import is_refusal
from dreamgym_integrations.environments.text_tools import TextTools

FORMS = {
    "look_around": ["look around"],
    "inventory": ["inventory"],
    "task": ["task"],
    "wait": ["wait"],
    "wait1": ["wait1"],
    "objects": ["objects"],
    "look_at": ["look at {thing}", "examine {thing}"],
    "look_in": ["look in {thing}"],
    "read": ["read {thing}"],
    "open": ["open {thing}"],
    "close": ["close {thing}"],
    "activate": ["activate {thing}"],
    "deactivate": ["deactivate {thing}"],
    "pick_up": ["pick up {thing}"],
    "put_down": ["put down {thing}", "drop {thing}"],
    "move": ["move {thing} to {place}"],
    "pour": ["pour {thing} into {place}", "pour {thing} in {place}"],
    "dunk": ["dunk {thing} into {place}", "dunk {thing} in {place}"],
    "mix": ["mix {thing}"],
    "use": ["use {tool} on {thing}"],
    "eat": ["eat {thing}"],
    "flush": ["flush {thing}"],
    "connect": ["connect {thing} to {place}"],
    "disconnect": ["disconnect {thing}"],
    "teleport": ["teleport to {place}"],
    "focus_on": ["focus on {thing}"],
    "go": ["go to {place}", "go {place}"],
}
"""The forms of the command of each typed tool."""
SCHEMA = StateSchema.model_validate(
    {
        "places": {
            "key": "place",
            "fields": {"seen": "boolean", "doors": "object"},  # doors: by the place behind, true if open
            "complete": False,
        },
        "things": {
            "key": "thing",
            "fields": {
                "where": "array",  # paths from a place or from `inventory`
                "open": "boolean?",
                "active": "boolean?",  # null: not known
            },
            "complete": False,
        },
        "at": "string?",
    }
)
INVENTORY = "inventory"
DEPTH = 6
"""Deepest nesting of things in things that is read."""

_ROOM = re.compile(r"This (?:room|outside location) is called (?:the )?([^.]*)\. ")
_DOOR = re.compile(r"A door to (?:the )?([^(]*) \(that is (open|closed)\)")
_ARTICLE = re.compile(r"(?:(?:an?|A|the|The) )?(?:substance called )?")
_APART = re.compile(r"[(),]")
_IN_IT = re.compile(r"(?:On|In) the [^.:]{1,200} is: ")
_OPEN = re.compile(r"door is (open|closed)")
_ACTIVE = re.compile(r"which is (turned on|turned off|activated|deactivated)")
_REPLIES = [
    re.compile(pattern)
    for pattern in (
        r"You move to (?:the )?(?P<place>[^.]{1,200})\.",
        r"You move the (?P<thing>[^.]{1,200}?) to the (?P<place>[^.]{1,200})\.",
        r"The (?P<thing>[^.]{1,200}?) is now (?P<open>open|closed)\.",
        r"The (?P<thing>[^.]{1,200}?) is now (?P<active>activated|deactivated)\.",
        r"You focus on the (?P<thing>[^.]{1,200})\.",
    )
]


class ScienceWorldReader:
    """ScienceWorld's reader, see `dreamgym.reading.Reader`.

    Structured answers:

    - a view of the place or of the inventory: `{places, doors, things}`. `places` are the roots of the paths that the
      view shows completely, `doors` are by the place behind, each thing has `where`, `open` and `active`;
    - a walk: `{place}`; a move of a thing: `{thing, place}`;
    - a thing that was opened or closed: `{thing, open}`; switched: `{thing, active}`; focused on: `{thing}`.

    If the `info` of a result has a view as its state, `after` reads that.
    """

    schema = SCHEMA

    def __init__(self) -> None:
        typed = TextTools(FORMS, r"[^\n]{1,200}")
        self.tools, self.call, self.action = typed.tools, typed.call, typed.action

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        answer = view_in(result.observation) or _replied(result.observation)
        return read_as(result, answer, is_error=is_refusal(result.observation))

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        """None: the words do not follow from the structured view, since the game lists things in its own order."""
        return None

    def start(self, task: Task, first: StepResult) -> JsonObject:
        empty: JsonObject = {"places": {}, "things": {}, "at": None}
        view = view_in(first.observation)
        return empty if view is None else _with_view(empty, view)

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        view = view_in(str(result.info.get("state", "")))
        answer = result.structured or {}
        if view is not None or "places" in answer:
            return _with_view(state, view or answer)
        if result.is_error:
            return state
        thing, place = answer.get("thing"), answer.get("place")
        if isinstance(thing, str):
            known = _object(_object(state["things"]).get(thing) or _thing(thing))
            told: JsonObject = {name: answer[name] for name in ("open", "active") if name in answer}
            if isinstance(place, str):
                told["where"] = [_path(state, place)]
            return {**state, "things": {**_object(state["things"]), thing: {**known, **told}}}
        return {**state, "at": place} if isinstance(place, str) else state


def view_in(text: str) -> JsonObject | None:
    """The content of a view of a place or of the inventory; None for another text."""
    roots: list[str] = []
    doors: JsonObject = {}
    things: list[JsonObject] = []
    for line in text.split("\n"):
        if found := _ROOM.match(line):
            roots.append(found[1])
        elif line.startswith("In your inventory, you see"):
            roots.append(INVENTORY)
        elif line.startswith("\t") and roots:
            if found := _DOOR.match(line.strip()):
                doors[found[1]] = found[2] == "open"
            else:
                things += _things_in(line.strip(), roots[-1], DEPTH)
    things.sort(key=lambda thing: (str(thing["where"]), natural(str(thing["thing"]))))
    return {"places": [*roots], "doors": doors, "things": [*things]} if roots else None


def _things_in(text: str, where: str, depth: int) -> Iterator[JsonObject]:
    """The thing that a text describes, and the things in it."""
    article = _ARTICLE.match(text)
    name, rest = _cut(text[article.end() if article else 0 :])
    if not name or name == "nothing" or not depth:
        return
    head, inside = _parted(rest)
    is_open, is_active = _OPEN.search(head), _ACTIVE.search(head)
    yield {
        "thing": name,
        "where": where,
        "open": is_open[1] == "open" if is_open else None,
        "active": is_active[1] in ("turned on", "activated") if is_active else None,
    }
    if rest.startswith("(containing "):
        inside = rest.removeprefix("(containing ").rstrip(".").removesuffix(")")
    for part in _listed_in(inside):
        yield from _things_in(part, f"{where}/{name}", depth - 1)


def _cut(text: str) -> tuple[str, str]:
    """Split a text into the name of a thing and its description."""
    ends = [place for mark in (" (", ", ", ". ") if (place := text.find(mark)) >= 0]
    end = min(ends, default=len(text))
    return text[:end].rstrip(". "), text[end:].strip(" ")


def _parted(text: str) -> tuple[str, str]:
    """Split a description into that of the thing itself and the list of its contents."""
    found = _IN_IT.search(text)
    if found is None:
        return text, ""
    return text[: found.start()], text[found.end() :].rstrip(" ").removesuffix(".")


def _listed_in(text: str) -> Iterator[str]:
    """The parts of a list. Commas in brackets, and before `which` and `currently`, do not separate parts."""
    depth = begin = 0
    for found in _APART.finditer(text):
        if found[0] == "(":
            depth += 1
        elif found[0] == ")":
            depth -= 1
        elif depth == 0 and not text.startswith((", which ", ", currently "), found.start()):
            yield text[begin : found.start()].strip()
            begin = found.end()
    if text[begin:].strip():
        yield text[begin:].strip()


def _replied(text: str) -> JsonObject | None:
    """Structured answer in a reply of one sentence; None if its form is unknown."""
    for pattern in _REPLIES:
        if found := pattern.fullmatch(text.strip()):
            answer: JsonObject = dict(found.groupdict())
            if "open" in answer:
                answer["open"] = answer["open"] == "open"
            if "active" in answer:
                answer["active"] = answer["active"] == "activated"
            return answer
    return None


def _with_view(state: JsonObject, view: JsonObject) -> JsonObject:
    """The state after a view. Things that the view does not show are removed from its places."""
    roots = cast("list[str]", view["places"])
    places, at = _object(state["places"]), state["at"]
    for root in roots:
        if root != INVENTORY:
            at = root
            places = {**places, root: {"place": root, "seen": True, "doors": view["doors"]}}
    things: JsonObject = {}
    for name, known in _object(state["things"]).items():
        where = [path for path in cast("list[str]", _object(known)["where"]) if path.partition("/")[0] not in roots]
        things[name] = {**_object(known), "where": [*where]}
    for shown in cast("list[JsonObject]", view["things"]):
        name = str(shown["thing"])
        known = _object(things.get(name) or _thing(name))
        where = sorted({*cast("list[str]", known["where"]), str(shown["where"])}, key=natural)
        things[name] = {**known, "where": [*where], "open": shown["open"], "active": shown["active"]}
    return {"places": places, "things": things, "at": at}


def _path(state: JsonObject, place: str) -> str:
    """The path of a thing's new place: a container here or in the inventory, else a root."""
    known = _object(_object(state["things"]).get(place) or _thing(place))
    near = (path for path in cast("list[str]", known["where"]) if path.partition("/")[0] in (state["at"], INVENTORY))
    return next((f"{path}/{place}" for path in near), place)


def _thing(name: str) -> JsonObject:
    return {"thing": name, "where": [], "open": None, "active": None}


def _object(value: object) -> JsonObject:
    assert isinstance(value, dict)
    return value
