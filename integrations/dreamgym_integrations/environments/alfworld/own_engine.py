"""ALFWorld's rules and wording in pure Python: the games of `engine`, without the package and its planner's library.

A problem is parsed once (`HouseholdGame.of`) and played any number of times (`HouseholdPlay`). Answers, possible
commands, state texts and ends are those of the package; the tests compare them step by step. Three rules look like
errors but are the package's: a thing may lie in two places at once, several places may share a spot, and `go to` is
refused for a place where the agent already stands.
"""

from __future__ import annotations

import re
from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject
from dreamgym_integrations.environments.alfworld.data import names_of, require_whole
from dreamgym_integrations.environments.alfworld.wording import HELP, REFUSAL, listed, start_text

KEPT = 512
"""Most parsed games that are kept, about 0.1 MB each. Parsing one takes some milliseconds."""
_FACT = re.compile(r"\(\s*(=|\w+)((?:\s+[^\s()]+)*)\s*\)")
_WORD = re.compile(r"\(\s*([^\s()?]+)")
_CONDITIONS = {"ishot": "hot", "iscool": "cool", "isclean": "clean", "issliced": "sliced", "istoggled": "on"}
_ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
_GOAL = {"objecttype", "receptacletype", "inreceptacle", "holds", "receptacleatlocation", "atlocation", "="}
_FORM = {":goal", "and", "exists", "not"}
_APPLIANCES = {"clean": "sinkbasintype", "cool": "fridgetype", "heat": "microwavetype"}


@dataclass(frozen=True)
class GoalCondition:
    """One condition of a goal: things of a kind that lie together in a place, or that the agent holds."""

    things: frozenset[str]
    """The things that can satisfy the condition."""
    conditions: tuple[str, ...]
    """Conditions that each thing must have: hot, cool, clean, sliced, on."""
    places: tuple[str, ...] | None
    """One of these places must hold the things; None: the agent must hold one of them."""
    is_here: bool
    """True if the agent must stand at that place."""
    count: int


@dataclass(frozen=True)
class HouseholdGame:
    """One game: its constant facts and its start. Names are the numbered ones that the agent reads."""

    spots: Mapping[str, str]
    """The spot of each place, in the order in which places are listed."""
    order: Mapping[str, int]
    """The rank of each thing, in the order in which things are listed."""
    kinds: Mapping[str, str]
    """The type of each place and thing, as the problem calls it."""
    fits: Mapping[str, frozenset[str]]
    """The types of things that a type of place can hold."""
    able: Mapping[str, frozenset[str]]
    """The things that are pickupable, cleanable, heatable, coolable, toggleable, sliceable, isreceptacleobject."""
    openable: frozenset[str]
    parts: Mapping[str, tuple[str, ...]]
    """The contents of things that can hold others, as the game shows them; they cannot be taken out."""
    goal: tuple[GoalCondition, ...]
    start_spot: str
    inside: Mapping[str, tuple[str, ...]]
    """The contents of each place at the start."""
    opened: frozenset[str]
    conditions: Mapping[str, frozenset[str]]
    """The things that are hot, cool, clean, sliced, on at the start."""
    things_at: Mapping[str, frozenset[str]]
    """The things that a knife reaches at each spot, at the start."""

    @staticmethod
    @lru_cache(KEPT)
    def of(problem: str) -> HouseholdGame:
        """The game of a PDDL problem. Raises InvalidInput if it is cut off, or for a goal that cannot be checked."""
        require_whole(problem)
        text = problem.lower()
        init, _, goal = text.partition("(:goal")
        facts: dict[str, list[tuple[str, ...]]] = defaultdict(list)
        names = names_of(problem)
        for name, arguments in _FACT.findall(init[init.find("(:init") :]):
            facts[name].append(tuple(names.get(one, one) for one in arguments.split()))
        order = {name: rank for rank, name in enumerate(names.values())}
        kinds = _pairs([*facts["objecttype"], *facts["receptacletype"]])
        spots = _pairs(sorted(facts["receptacleatlocation"], key=lambda fact: order[fact[0]]))
        fits: dict[str, set[str]] = defaultdict(set)
        for place_type, thing_type in facts["cancontain"]:
            fits[place_type].add(thing_type)
        able = {name: frozenset(fact[0] for fact in facts[name]) for name in (*_ABILITIES, "isreceptacleobject")}
        return HouseholdGame(
            spots=spots,
            order=order,
            kinds=kinds,
            fits={place_type: frozenset(things) for place_type, things in fits.items()},
            able=able,
            openable=frozenset(fact[0] for fact in facts["openable"]),
            parts=_grouped(facts["inreceptacleobject"], order),
            goal=_goal(goal, list(spots), kinds, able),
            start_spot=facts["atlocation"][0][1] if facts["atlocation"] else "",
            inside=dict.fromkeys(spots, ()) | _grouped(facts["inreceptacle"], order),
            opened=frozenset(fact[0] for fact in facts["opened"]),
            conditions={word: frozenset(fact[0] for fact in facts[name]) for name, word in _CONDITIONS.items()},
            things_at={spot: frozenset(things) for spot, things in _grouped(facts["objectatlocation"], order).items()},
        )

    @cached_property
    def start(self) -> str:
        """The first observation, without greeting and task."""
        return start_text(list(self.spots))

    @cached_property
    def at(self) -> Mapping[str, tuple[str, ...]]:
        """The places of each spot."""
        return _grouped(self.spots.items(), {place: rank for rank, place in enumerate(self.spots)})

    @cached_property
    def elsewhere(self) -> Mapping[str, tuple[str, ...]]:
        """The possible `go to` commands at each spot, sorted."""
        spots = {self.start_spot, *self.spots.values()}
        return {
            spot: tuple(sorted(f"go to {place}" for place, where in self.spots.items() if where != spot))
            for spot in spots
        }


class HouseholdPlay:
    """One episode of a game."""

    def __init__(self, game: HouseholdGame) -> None:
        self.game = game
        self.spot = game.start_spot
        self.held: str | None = None
        self.inside = {place: list(things) for place, things in game.inside.items()}
        self.opened = set(game.opened)
        self.conditions = {word: set(things) for word, things in game.conditions.items()}
        self._reached = {spot: set(things) for spot, things in game.things_at.items()}

    @property
    def here(self) -> tuple[str, ...]:
        """The places where the agent stands; none at the start."""
        return self.game.at.get(self.spot, ())

    def is_open(self, place: str) -> bool:
        """True if things can be put into the place and taken out of it."""
        return place not in self.game.openable or place in self.opened

    @property
    def is_won(self) -> bool:
        """True if the goal holds now."""
        return all(map(self._is_met, self.game.goal))

    def step(self, command: str) -> str:
        """Run the command, or do nothing if it is impossible. Returns the answer in the game's words."""
        verb, _, rest = command.partition(" ")
        match verb:
            case "go":
                return self._go(rest.removeprefix("to ") if rest.startswith("to ") else "")
            case "open" | "close" if rest in self.game.openable and rest in self.here:
                return self._open(rest) if verb == "open" else self._close(rest)
            case "take":
                return self._take(*rest.partition(" from ")[::2])
            case "move":
                return self._move(*rest.partition(" to ")[::2])
            case "heat" | "cool" | "clean":
                return self._change(verb, *rest.partition(" with ")[::2])
            case "use" if rest in self._switches():
                self.conditions["on"].add(rest)
                return f"You turn on the {rest}."
            case "slice":
                thing, _, knife = rest.partition(" with ")
                if knife and knife == self.held and thing in self._sliceable():
                    self.conditions["sliced"].add(thing)
                    return f"You sliced the {thing} with the {knife}."
            case "examine":
                return self._examine(rest)
            case "look" if command == "look":
                places = listed(self.here)
                return f"You are facing the {places}. Next to it, you see nothing." if self.here else start_text(())
            case "inventory" if command == "inventory":
                return f"You are carrying: a {self.held}." if self.held else "You are not carrying anything."
            case "help" if command == "help":
                return HELP
        return REFUSAL

    def seen_in(self, place: str) -> str:
        """Text that the agent reads about a place."""
        if not self.is_open(place):
            return f"The {place} is closed."
        things = listed([f"a {thing}" for thing in self.inside[place]])
        is_or_on = f"The {place} is open. In it" if place in self.game.openable else f"On the {place}"
        return f"{is_or_on}, you see {things}."

    def commands(self) -> list[str]:
        """All possible commands, sorted."""
        here, held, able = self.here, self.held, self.game.able
        found = [*self.game.elsewhere[self.spot], "help", "inventory", "look"]
        for place in here:
            found.append(f"examine {place}")
            if place in self.game.openable:
                found.append(f"close {place}" if place in self.opened else f"open {place}")
            if not self.is_open(place):
                continue
            if held is None:
                found += [f"take {thing} from {place}" for thing in self.inside[place] if thing in able["pickupable"]]
            elif self._fits(held, place):
                found.append(f"move {held} to {place}")
        if held is not None:
            found.append(f"examine {held}")
            found += [
                f"{verb} {held} with {place}"
                for place in here
                for verb, kind in _APPLIANCES.items()
                if self.game.kinds.get(place) == kind and held in able[f"{verb}able"]
            ]
            found += [f"slice {thing} with {held}" for thing in self._sliceable()]
        found += [f"use {thing}" for thing in self._switches()]
        return sorted(found)

    def state(self) -> str:
        """All that later answers here depend on: where the agent is, what it sees there, and what it carries."""
        if not self.here:
            return self.game.start
        parts = []
        for place in self.here:
            if not self.is_open(place):
                parts.append(f"You are at {place}, which is closed.")
            else:
                is_open = ", which is open" if place in self.game.openable else ""
                things = ", ".join(map(self._described, self.inside[place])) or "nothing"
                parts.append(f"You are at {place}{is_open}. There: {things}.")
        return " ".join([*parts, f"You carry: {self._described(self.held) if self.held else 'nothing'}."])

    def _is_met(self, wanted: GoalCondition) -> bool:
        if wanted.places is None:
            return self.held is not None and self._does(wanted, self.held)
        return any(
            (not wanted.is_here or self.game.spots[place] == self.spot)
            and sum(self._does(wanted, thing) for thing in self.inside[place]) >= wanted.count
            for place in wanted.places
        )

    def _does(self, wanted: GoalCondition, thing: str) -> bool:
        return thing in wanted.things and all(thing in self.conditions[word] for word in wanted.conditions)

    def _go(self, place: str) -> str:
        spot = self.game.spots.get(place, self.spot)
        if spot == self.spot:
            return REFUSAL
        self.spot = spot
        return f"You arrive at {place}. {self.seen_in(place)}"

    def _open(self, place: str) -> str:
        if place in self.opened:
            return REFUSAL
        self.opened.add(place)
        return f"You open the {place}. {self.seen_in(place)}"

    def _close(self, place: str) -> str:
        if place not in self.opened:
            return REFUSAL
        self.opened.remove(place)
        return f"You close the {place}."

    def _take(self, thing: str, place: str) -> str:
        is_there = place in self.here and self.is_open(place) and thing in self.inside[place]
        if self.held is not None or not is_there or thing not in self.game.able["pickupable"]:
            return REFUSAL
        self.inside[place].remove(thing)
        self._reached.get(self.spot, set()).discard(thing)
        self.held = thing
        return f"You pick up the {thing} from the {place}."

    def _move(self, thing: str, place: str) -> str:
        if thing != self.held or not (place in self.here and self.is_open(place) and self._fits(thing, place)):
            return REFUSAL
        if thing not in self.inside[place]:
            insort(self.inside[place], thing, key=self.game.order.__getitem__)
        self._reached.setdefault(self.spot, set()).add(thing)
        self.held = None
        return f"You move the {thing} to the {place}."

    def _change(self, verb: str, thing: str, place: str) -> str:
        is_right = place in self.here and self.game.kinds.get(place) == _APPLIANCES[verb]
        if not is_right or thing != self.held or thing not in self.game.able[f"{verb}able"]:
            return REFUSAL
        self.conditions["hot" if verb == "heat" else verb].add(thing)
        if verb != "clean":
            self.conditions["cool" if verb == "heat" else "hot"].discard(thing)
        return f"You {verb} the {thing} using the {place}."

    def _fits(self, thing: str, place: str) -> bool:
        return self.game.kinds.get(thing) in self.game.fits.get(self.game.kinds.get(place, ""), frozenset())

    def _switches(self) -> set[str]:
        """The lamps here, including those in closed places."""
        lamps = self.game.able["toggleable"]
        return {thing for place in self.here for thing in self.inside[place] if thing in lamps} if lamps else set()

    def _sliceable(self) -> set[str]:
        """The things that the knife in hand can slice here; empty without a knife."""
        if self.game.kinds.get(self.held or "") not in {"knifetype", "butterknifetype"}:
            return set()
        return self._reached.get(self.spot, set()) & self.game.able["sliceable"]

    def _described(self, thing: str) -> str:
        looks = [word for word in _CONDITIONS.values() if thing in self.conditions[word]]
        return f"{thing} ({', '.join(looks)})" if looks else thing

    def _examine(self, name: str) -> str:
        """Text that the agent reads about a place here, or about the thing in hand."""
        if name in self.here:
            return self.seen_in(name)
        if name != self.held:
            return REFUSAL
        thing = name
        if thing in self.game.able["isreceptacleobject"]:
            inside = listed([f"a {part}" for part in self.game.parts.get(thing, ())])
            return f"This is a normal {thing}. In it, you see {inside}."
        hot, cool, clean, sliced, on = (thing in self.conditions[word] for word in _CONDITIONS.values())
        warmth = "hot" if hot else "cool" if cool else ""
        looks = " and ".join(word for word in (warmth, "clean" if clean else "") if word)
        if looks:
            looks = "cold" if looks == "cool" and not sliced else looks
            return f"This is a {looks} {'sliced ' if sliced else ''}{thing}."
        if thing in self.game.able["toggleable"]:
            return f"This {thing} is {'on' if on else 'off'}."
        return f"This is a sliced {thing}." if sliced else f"There's nothing special about {thing}."


def _pairs(facts: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """The second argument of each fact, by the first."""
    return {fact[0]: fact[1] for fact in facts}


def _grouped(pairs: Iterable[tuple[str, ...]], order: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
    """The first parts of the pairs, grouped by the second, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for first, second in sorted(set(pairs), key=lambda pair: order[pair[0]]):
        found[second].append(first)
    return {second: tuple(first) for second, first in found.items()}


def _goal(
    text: str, places: Sequence[str], kinds: Mapping[str, str], able: Mapping[str, frozenset[str]]
) -> tuple[GoalCondition, ...]:
    """The conditions of a goal in PDDL. Raises InvalidInput if its form is not ALFWorld's."""
    known = {*_GOAL, *_CONDITIONS, *able}
    unknown = {word for word in _WORD.findall(text) if word not in known | _FORM}
    if unknown or text.count("(not") != len(re.findall(r"\(\s*not\s*\(\s*=", text)):
        raise InvalidInput(f"expected a goal of ALFWorld's six types, got {' '.join(text.split())[:200]!r}")
    atoms: dict[str, list[tuple[str, ...]]] = defaultdict(list)
    for name, arguments in _FACT.findall(text):
        atoms[name].append(tuple(arguments.split()))
    here = {place for place, spot in atoms["receptacleatlocation"] if spot in {one[1] for one in atoms["atlocation"]}}
    place_types, holders = _pairs(atoms["receptacletype"]), _pairs(atoms["inreceptacle"])
    found: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for thing, kind in atoms["objecttype"]:
        traits = sorted(name for name in (*_CONDITIONS, *able) if (thing,) in atoms[name])
        found[kind, holders.get(thing, ""), *traits].append(thing)
    wanted = []
    for (kind, holder, *traits), things in found.items():
        is_held = not holder and any(arguments[-1] in things for arguments in atoms["holds"])
        if (not holder and not is_held) or (len(things) > 1) != bool(atoms["="]):
            raise InvalidInput(f"expected a goal of ALFWorld's six types, got {' '.join(text.split())[:200]!r}")
        able_to = [able[name] for name in traits if name in able]
        of_kind = (name for name, one in kinds.items() if one == kind)
        right = (place for place in places if place_types.get(holder) in (None, kinds[place]))
        wanted.append(
            GoalCondition(
                things=frozenset(name for name in of_kind if all(name in some for some in able_to)),
                conditions=tuple(_CONDITIONS[name] for name in traits if name in _CONDITIONS),
                places=None if is_held else tuple(right),
                is_here=holder in here,
                count=len(things),
            )
        )
    if not wanted:  # every state would be a success
        raise InvalidInput(f"expected a goal of ALFWorld's six types, got {' '.join(text.split())[:200]!r}")
    return tuple(wanted)


class OwnEpisode:
    """One game in this process, with the same three methods as a game in a worker."""

    def __init__(self, problem: str) -> None:
        self._play = HouseholdPlay(HouseholdGame.of(problem))

    async def begin(self) -> JsonObject:
        """The start of the game."""
        return self._view(self._play.game.start)

    async def step(self, command: str) -> JsonObject:
        """Give one command to the game."""
        return self._view(self._play.step(command.strip()))

    def end(self) -> None:
        """Does nothing: there is nothing to release."""

    def _view(self, answer: str) -> JsonObject:
        play = self._play
        return {"answer": answer, "won": play.is_won, "admissible": [*play.commands()], "state": play.state()}
