"""ALFWorld's goals over the states of its reader: the JSON Schema of a task's goal, and proposals of other goals.

The six types of tasks are the original's. `put`, with or without a change, asks for one thing of a kind in a place of a
kind. `put two` asks for two things in one and the same place. `look at` asks for a thing in hand at a place where a
lamp of a kind is on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.goals import ProposedGoal
from dreamgym.types import JsonObject
from dreamgym_integrations.environments.alfworld.data import GOALS
from dreamgym_integrations.environments.alfworld.players import HouseholdGoal

LAMPS = ("desklamp", "floorlamp")
"""Kinds of lamps in the original's `look at` tasks."""
LOOKS = {"heat": "hot", "cool": "cool", "clean": "clean"}


class AlfworldGoals:
    """ALFWorld's goals, see `dreamgym.goals.Goals`."""

    behaviour = "handcoded"

    def check(self, instruction: str, start: JsonObject) -> JsonObject | None:
        try:
            goal = HouseholdGoal(instruction)
        except InvalidInput:
            return None
        if goal.is_look:
            return _looked_at(goal.thing, goal.place, start)
        places = _of_kind(start, "places", goal.place)
        things = _of_kind(start, "things", goal.thing)
        if not places or (goal.count > 1 and len(things) < goal.count):
            return None
        looks: JsonObject = {LOOKS[goal.change]: {"const": True}} if goal.change is not None else {}
        if goal.count == 1:
            return _some_thing(goal.thing, {"where": {"contains": {"enum": [*places]}}, **looks})
        return {"anyOf": [_two_in(place, things) for place in places]}

    def proposals(self, start: JsonObject, shown: Sequence[JsonObject]) -> Iterator[ProposedGoal]:
        things, places = _kinds(start, "things"), _kinds(start, "places")
        lies_in, changed = _facts(shown)
        for task_type, wordings in GOALS.items():
            look = next((look for change, look in LOOKS.items() if f"_{change}_" in task_type), None)
            for thing in things:
                if look is not None and (thing, look) not in changed:
                    continue
                if task_type == "look_at_obj_in_light":
                    targets = [lamp for lamp in LAMPS if lamp in things and lamp != thing]
                else:
                    targets = [place for place in places if (thing, place) in lies_in]
                for target in targets:
                    words = wordings[0].format(obj=thing, recep=target, toggle=target)
                    metadata: JsonObject = {"task_type": task_type, "descriptions": []}
                    yield ProposedGoal(f"Your task is to: {words}.", metadata)


def _facts(shown: Sequence[JsonObject]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Pairs (kind of thing, kind of place it lay in), and pairs (kind of thing, `hot`, `cool` or `clean`)."""
    lies_in, changed = set[tuple[str, str]](), set[tuple[str, str]]()
    for state in shown:
        things = state["things"]
        assert isinstance(things, dict)
        for entity in things.values():
            assert isinstance(entity, dict)
            kind, where = str(entity["kind"]), entity["where"]
            lies_in |= {(kind, str(place).partition(" ")[0]) for place in (where if isinstance(where, list) else [])}
            changed |= {(kind, look) for look in LOOKS.values() if entity[look]}
    return lies_in, changed


def _some_thing(kind: str, fields: JsonObject) -> JsonObject:
    """JSON Schema: at least one thing of a kind has these fields."""
    thing: JsonObject = {"properties": {"kind": {"const": kind}, **fields}, "required": ["kind", *fields]}
    return {
        "properties": {"things": {"not": {"additionalProperties": {"not": thing}}}},
        "required": ["things"],
    }


def _two_in(place: str, things: Sequence[str]) -> JsonObject:
    """JSON Schema: at least two of the things lie in this place."""
    is_there: JsonObject = {"required": ["where"], "properties": {"where": {"contains": {"const": place}}}}

    def lies(thing: str) -> JsonObject:
        return {"required": [thing], "properties": {thing: is_there}}

    pairs: list[JsonValue] = [
        {"allOf": [lies(thing), {"anyOf": [lies(other) for other in things[i + 1 :]]}]}
        for i, thing in enumerate(things[:-1])
    ]
    return {"required": ["things"], "properties": {"things": {"anyOf": pairs}}}


def _looked_at(kind: str, lamp_kind: str, start: JsonObject) -> JsonObject | None:
    """JSON Schema: a thing of a kind is in hand where a lamp is on; None if no such thing or no lamp is known."""
    found: list[JsonValue] = []
    places = start["places"]
    assert isinstance(places, dict)
    for lamp in _of_kind(start, "things", lamp_kind):
        things = start["things"]
        assert isinstance(things, dict)
        entity = things[lamp]
        assert isinstance(entity, dict)
        spots: list[JsonValue] = []
        for name in entity["where"] if isinstance(entity["where"], list) else []:
            place = places.get(str(name))
            beside = place.get("beside") if isinstance(place, dict) else None
            spots += [name, *(beside if isinstance(beside, list) else [])]
        if spots:
            is_on: JsonObject = {"required": ["on"], "properties": {"on": {"const": True}}}
            found.append(
                {
                    "required": ["at", "things"],
                    "properties": {"at": {"enum": spots}, "things": {"required": [lamp], "properties": {lamp: is_on}}},
                }
            )
    if not found or not _of_kind(start, "things", kind):
        return None
    held: JsonObject = {"enum": [*_of_kind(start, "things", kind)]}
    return {"required": ["held"], "properties": {"held": held}, "anyOf": found}


def _kinds(start: JsonObject, collection: str) -> list[str]:
    part = start[collection]
    assert isinstance(part, dict)
    return sorted({name.partition(" ")[0] for name in part})


def _of_kind(start: JsonObject, collection: str, kind: str) -> list[str]:
    part = start[collection]
    assert isinstance(part, dict)
    return [name for name in part if name.partition(" ")[0] == kind]
