"""Reads ALFWorld's texts as objects: typed commands, structured answers, and the places and things that are known.

Only the wording is known here. From "You pick up the mug 1 from the desk 2." the reader learns that the mug is in hand.
It does not know what a command requires, or what it leads to.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.reading import read_as
from dreamgym.state import StateSchema, natural
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.alfworld.wording import HELP, REFUSAL, listed, start_text
from dreamgym_integrations.environments.text_tools import TextTools

NAME = r"[a-z]+ [0-9]+"
MOST_AT_A_SPOT = 64
"""Most places that can share a spot: a list of more is no answer of the game, and its pairs would be too many."""
FORMS = {
    "go_to": "go to {place}",
    "open": "open {place}",
    "close": "close {place}",
    "take": "take {thing} from {place}",
    "move": "move {thing} to {place}",
    "heat": "heat {thing} with {place}",
    "cool": "cool {thing} with {place}",
    "clean": "clean {thing} with {place}",
    "use": "use {thing}",
    "slice": "slice {thing} with {knife}",
    "examine": "examine {name}",
    "look": "look",
    "inventory": "inventory",
    "help": "help",
}
"""The form of the command of each typed tool."""
SCHEMA = StateSchema.model_validate(
    {
        "places": {
            "key": "place",
            "fields": {
                "kind": "string",  # the name without its number
                "openable": "boolean?",  # null: not known yet
                "open": "boolean?",  # null: not known, or without a door
                "seen": "boolean",  # true once its contents were seen
                "beside": "array",  # the other places that were found to be at the same spot
            },
            "complete": False,
        },
        "things": {
            "key": "thing",
            "fields": {
                "kind": "string",
                "where": "array",  # the places where it lies: maybe several, even for the thing in hand
                "hot": "boolean",
                "cool": "boolean",
                "clean": "boolean",
                "sliced": "boolean",
                "on": "boolean",  # these five are false until they are read
            },
            "complete": False,
        },
        "at": "string?",
        "held": "string?",
    }
)
"""`at` is the place that the agent went to, null at the start; `held` is the thing in hand."""

_START = re.compile(r"You are in the middle of a room\. Looking quickly around you, you see ([^.]*)\.")
_PLACE = re.compile(
    rf"(?:You arrive at {NAME}\. |You open the {NAME}\. )?"
    rf"(?:The (?P<shut>{NAME}) is closed\.|(?:The (?P<open>{NAME}) is open\. In it|On the (?P<on>{NAME})), "
    r"you see (?P<contents>[^.]*)\.)"
)
_DONE = [
    re.compile(pattern)
    for pattern in (
        rf"You close the (?P<place>{NAME})\.",
        rf"You pick up the (?P<thing>{NAME}) from the (?P<place>{NAME})\.",
        rf"You move the (?P<thing>{NAME}) to the (?P<place>{NAME})\.",
        rf"You (?:heat|cool|clean) the (?P<thing>{NAME}) using the (?P<place>{NAME})\.",
        rf"You turn on the (?P<thing>{NAME})\.",
        rf"You sliced the (?P<thing>{NAME}) with the (?P<knife>{NAME})\.",
    )
]
_FACING = re.compile(r"You are facing the ([^.]*)\. Next to it, you see nothing\.")
_CARRIED = re.compile(rf"You are (?:not carrying anything|carrying: a (?P<held>{NAME}))\.")
_CONTAINER = re.compile(rf"This is a normal (?P<thing>{NAME})\. In it, you see (?P<contents>[^.]*)\.")
_LOOKS = re.compile(
    r"(?:This is a (?P<looks>(?:(?:hot|cool|cold|clean|and|sliced) )+)|There's nothing special about )"
    rf"(?P<thing>{NAME})\."
)
_SWITCH = re.compile(rf"This (?P<thing>{NAME}) is (?P<on>on|off)\.")
_NAME = re.compile(NAME)


class AlfworldReader:
    """ALFWorld's reader, see `dreamgym.reading.Reader`.

    Structured answers by kind of command:

    - going to, opening, closing or examining a place: `{place, open, contents}`. `open` is null for a place without a
      door, `contents` is null if its contents could not be seen;
    - taking, moving, heating, cooling or cleaning a thing: `{thing, place}`; switching it on: `{thing, on}`; slicing
      it: `{thing, knife}`;
    - examining a thing: `{thing, hot, cool, clean, sliced}`, `{thing, on}` or `{thing, contents}`;
    - look, inventory and help: `{here}`, `{held}` and `{}`.
    """

    schema = SCHEMA

    def __init__(self) -> None:
        typed = TextTools({tool: [form] for tool, form in FORMS.items()}, NAME)
        self.tools, self.call, self.action = typed.tools, typed.call, typed.action

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        text = result.observation.strip()
        return read_as(result, said_in(text), is_error=text == REFUSAL)

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        return words_of(call, answer)

    def start(self, task: Task, first: StepResult) -> JsonObject:
        found = _START.search(first.observation)
        places: JsonObject = {str(name): _place(str(name)) for name in _names(found[1] if found else "")}
        return {"places": places, "things": {}, "at": None, "held": None}

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        answer = result.structured
        if answer is None or result.is_error:
            return state
        known = _Known(state)
        place, thing = answer.get("place"), answer.get("thing")
        if isinstance(place, str):
            known.see_place(place, answer, is_reached=call.name == "go_to")
        if isinstance(thing, str):
            known.see_thing(thing, answer)
            match call.name:
                case "take":
                    known.lift(thing, str(place))
                case "move":
                    known.put(thing, str(place))
                case "heat" | "cool":
                    known.change_thing(thing, hot=call.name == "heat", cool=call.name == "cool")
                case "clean":
                    known.change_thing(thing, clean=True)
                case "slice":
                    known.change_thing(thing, sliced=True)
        if isinstance(here := answer.get("here"), list):
            known.stand_at([str(name) for name in here])
        if "held" in answer:
            known.values["held"] = answer["held"]
        return known.state()


class _Known:
    """A changeable copy of a state; the original is not changed."""

    def __init__(self, state: JsonObject) -> None:
        self._places, self._things = dict(_object(state["places"])), dict(_object(state["things"]))
        self.values: JsonObject = {"at": state["at"], "held": state["held"]}

    def state(self) -> JsonObject:
        return {"places": self._places, "things": self._things, **self.values}

    def change_place(self, name: str, **fields: JsonValue) -> None:
        self._places[name] = {**_object(self._places.get(name) or _place(name)), **fields}

    def change_thing(self, name: str, **fields: JsonValue) -> None:
        self._things[name] = {**_object(self._things.get(name) or _thing(name)), **fields}

    def see_place(self, name: str, answer: JsonObject, *, is_reached: bool) -> None:
        """Note that the agent is at a place, and what the answer shows of its door and contents."""
        if is_reached:
            self.values["at"] = name
        self.stand_at([name])
        if "open" in answer:
            self.change_place(name, openable=answer["open"] is not None, open=answer["open"])
        contents = answer.get("contents")
        if isinstance(contents, list):
            self.change_place(name, seen=True)
            for thing in contents:
                self.put(str(thing), name, is_let_go=False)
            shown = set(map(str, contents))
            for thing, entity in self._things.items():
                if thing not in shown and name in _texts(_object(entity)["where"]):
                    self._remove(thing, name)

    def see_thing(self, name: str, answer: JsonObject) -> None:
        """Note the condition of a thing that the answer shows."""
        looks = {look: answer[look] for look in ("hot", "cool", "clean", "sliced", "on") if look in answer}
        self.change_thing(name, **looks)

    def stand_at(self, names: Sequence[str]) -> None:
        """Note that these places share a spot with the place that the agent went to."""
        here = {*names, *([str(self.values["at"])] if self.values["at"] is not None else [])}
        if len(here) > MOST_AT_A_SPOT:
            return
        for name in here:
            beside = {*_texts(_object(self._places.get(name) or _place(name))["beside"]), *here} - {name}
            self.change_place(name, beside=[*sorted(beside, key=natural)])

    def lift(self, thing: str, place: str) -> None:
        self._remove(thing, place)
        self.values["held"] = thing

    def put(self, thing: str, place: str, *, is_let_go: bool = True) -> None:
        self.change_thing(thing)
        where = {*_texts(_object(self._things[thing])["where"]), place}
        self.change_thing(thing, where=[*sorted(where, key=natural)])
        if is_let_go:
            self.values["held"] = None

    def _remove(self, thing: str, place: str) -> None:
        where = _texts(_object(self._things.get(thing) or _thing(thing))["where"])
        self.change_thing(thing, where=[name for name in where if name != place])


def said_in(text: str) -> JsonObject | None:
    """Structured answer in an observation; None for a refusal, the first observation, and an unknown text."""
    if found := _PLACE.fullmatch(text):
        place = found["shut"] or found["open"] or found["on"]
        contents: JsonValue = None if found["shut"] else _names(found["contents"])
        return {"place": place, "open": None if found["on"] else found["shut"] is None, "contents": contents}
    for pattern in _DONE:
        if found := pattern.fullmatch(text):
            told: JsonObject = dict(found.groupdict())
            if "thing" not in told:
                return {**told, "open": False, "contents": None}
            return {**told, "on": True} if len(told) == 1 else told
    answer = _said_of_the_agent(text)
    return _said_of_a_thing(text) if answer is None else answer


def _said_of_the_agent(text: str) -> JsonObject | None:
    if found := _FACING.fullmatch(text):
        return {"here": _names(found[1])}
    if found := _CARRIED.fullmatch(text):
        return {"held": found["held"]}
    if text == start_text(()):
        return {"here": []}
    return {} if text == HELP else None


def _said_of_a_thing(text: str) -> JsonObject | None:
    if found := _CONTAINER.fullmatch(text):
        return {"thing": found["thing"], "contents": _names(found["contents"])}
    if found := _SWITCH.fullmatch(text):
        return {"thing": found["thing"], "on": found["on"] == "on"}
    if found := _LOOKS.fullmatch(text):
        looks = (found["looks"] or "").split()
        return {
            "thing": found["thing"],
            "hot": "hot" in looks,
            "cool": "cool" in looks or "cold" in looks,
            "clean": "clean" in looks,
            "sliced": "sliced" in looks,
        }
    return None


def words_of(call: ToolCall, answer: JsonObject) -> str | None:
    """The observation for a structured answer; None if the answer does not fit the call."""
    thing, place = answer.get("thing"), answer.get("place")
    match call.name:
        case "go_to" if "contents" in answer:
            return f"You arrive at {place}. {_place_words(answer)}"
        case "open" if "contents" in answer:
            return f"You open the {place}. {_place_words(answer)}"
        case "close":
            return f"You close the {place}."
        case "take":
            return f"You pick up the {thing} from the {place}."
        case "move":
            return f"You move the {thing} to the {place}."
        case "heat" | "cool" | "clean":
            return f"You {call.name} the {thing} using the {place}."
        case "use":
            return f"You turn on the {thing}."
        case "slice":
            return f"You sliced the {thing} with the {answer.get('knife')}."
        case "examine":
            return _place_words(answer) if place is not None else _thing_words(answer)
        case "look":
            here = listed(_as_listed(answer.get("here")))
            return f"You are facing the {here}. Next to it, you see nothing." if answer.get("here") else start_text(())
        case "inventory":
            held = answer.get("held")
            return f"You are carrying: a {held}." if held else "You are not carrying anything."
    return HELP if call.name == "help" else None


def _place_words(answer: JsonObject) -> str:
    place, contents = answer["place"], answer.get("contents")
    if contents is None:
        return f"The {place} is closed."
    where = f"On the {place}" if answer["open"] is None else f"The {place} is open. In it"
    return f"{where}, you see {listed([f'a {name}' for name in _as_listed(contents)])}."


def _thing_words(answer: JsonObject) -> str:
    thing = answer["thing"]
    if "contents" in answer:
        contents = listed([f"a {name}" for name in _as_listed(answer["contents"])])
        return f"This is a normal {thing}. In it, you see {contents}."
    if "on" in answer:
        return f"This {thing} is {'on' if answer['on'] else 'off'}."
    looks = " and ".join(look for look in ("hot", "cool", "clean") if answer.get(look))
    looks = "cold" if looks == "cool" and not answer.get("sliced") else looks
    words = [word for word in (looks, "sliced" if answer.get("sliced") else "") if word]
    return f"This is a {' '.join(words)} {thing}." if words else f"There's nothing special about {thing}."


def _as_listed(names: JsonValue) -> list[str]:
    """Names in the order of the game's texts: by kind, then by number from high to low."""
    by_number = sorted(_texts(names), key=natural, reverse=True)
    return sorted(by_number, key=lambda name: name.partition(" ")[0])


def _names(text: str) -> list[JsonValue]:
    """The names in a listing of the game, in natural order."""
    names = (part.removeprefix("and ").removeprefix("a ") for part in text.split(", "))
    return [*sorted((name for name in names if _NAME.fullmatch(name)), key=natural)]


def _place(name: str) -> JsonObject:
    fields: JsonObject = {"openable": None, "open": None, "seen": False, "beside": []}
    return {"place": name, "kind": name.partition(" ")[0], **fields}


def _thing(name: str) -> JsonObject:
    looks: JsonObject = dict.fromkeys(("hot", "cool", "clean", "sliced", "on"), False)
    return {"thing": name, "kind": name.partition(" ")[0], "where": [], **looks}


def _object(value: JsonValue) -> JsonObject:
    assert isinstance(value, dict)
    return value


def _texts(value: JsonValue) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else []
