"""Ways to play ALFWorld, good and deliberately bad.

`expert` plays a plan that was made with the whole world known, by the package's planner or by `informed_plan`. All
others read only what an agent reads. So they recover from a slip, and play in a simulation as well as in the real game.
`handcoded` searches the places where the wanted kind of thing is usually found, then the others.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from random import Random

from dreamgym.environment import Behaviour, Environment
from dreamgym.errors import InvalidInput
from dreamgym.types import StepResult, Task
from dreamgym_integrations.environments.alfworld.data import GOALS
from dreamgym_integrations.environments.alfworld.own_engine import HouseholdGame, HouseholdPlay
from dreamgym_integrations.environments.alfworld.wording import REFUSAL
from dreamgym_integrations.environments.base import act, graded, mixed, task_of

Plan = Callable[[Task], Awaitable[Sequence[str]]]

MALFORMED = ("take", "go", "go to", "open", "put it down", "move north", "look at", "use", "wait", ".")
IMPOSSIBLE_SHARE = 0.25
"""Share of impossible or malformed commands among the random commands of bad play."""
PLAN_STEPS = 50
"""A plan stops after this many commands, even if the goal is not reached."""
LONGEST_INSTRUCTION = 1_000
"""A task of ALFWorld has less than 100 characters."""
APPLIANCES = {"heat": "microwave", "cool": "fridge", "clean": "sinkbasin"}

_NAME = r"(\w+)"
_WORDINGS = [
    (task_type, re.compile(re.sub(" (in|on) ", " (?:in|on) ", wording).format(obj=_NAME, recep=_NAME, toggle=_NAME)))
    for task_type, wordings in GOALS.items()
    for wording in wordings
]
_THING = re.compile(r"\ba ([a-z]+ \d+)")


class HouseholdGoal:
    """A task in the original's wording, parsed."""

    def __init__(self, instruction: str) -> None:
        text = instruction.strip().lower().rpartition("your task is to: ")[2].rstrip(".")
        if len(text) > LONGEST_INSTRUCTION:
            raise InvalidInput(f"expected a task of at most {LONGEST_INSTRUCTION} characters, got {len(text)}")
        # the whole text, since "do not put a mug in desk" and "put a cup and a mug in desk" ask for something else
        matches = ((task_type, pattern.fullmatch(text)) for task_type, pattern in _WORDINGS)
        task_type, found = next((match for match in matches if match[1]), ("", None))
        if found is None:
            raise InvalidInput(f"expected a task in ALFWorld's wording, got {instruction!r}")
        self.thing, self.place = found[1], found[2]
        self.is_look = task_type == "look_at_obj_in_light"
        self.count = 2 if "_two_" in task_type else 1
        self.change = next((change for change in APPLIANCES if f"_{change}_" in task_type), None)


class HouseholdPlayer:
    """Remembers what was seen so far and suggests good, possible and impossible commands."""

    def __init__(self, goal: HouseholdGoal, random: Random) -> None:
        self.random = random
        self._goal = goal
        self._inside: dict[str, list[str] | None] = {}
        self._closed: set[str] = set()
        self._at = ""
        self._held = ""
        self._changed: set[str] = set()
        self._delivered: set[str] = set()
        self._home = ""  # place of the first of two things, where the second belongs too
        self._refused = False

    def learn_places(self, inside: Mapping[str, Sequence[str]]) -> None:
        """Learn what lies in all places, so that nothing has to be searched for."""
        self._inside = {place: list(things) for place, things in inside.items()}

    def see(self, result: StepResult, command: str) -> None:
        """Learn from the result of a command."""
        text, words = result.observation, command.split()
        self._refused = result.is_error
        if text.startswith("You are in the middle of a room"):
            self._inside = dict.fromkeys(_THING.findall(text)) | self._inside
        elif text.startswith("You arrive at ") and command.startswith("go to "):
            self._at = command.removeprefix("go to ")
            self._notice(text)
        elif text.startswith(("You open ", "On the ", "In it", f"The {self._at} is ")):
            self._notice(text)
        elif text.startswith("You close "):
            self._closed.add(self._at)
        elif text.startswith("You pick up "):
            self._held = " ".join(words[1:3])
            self._inside[self._at] = [thing for thing in self._inside.get(self._at) or [] if thing != self._held]
            self._delivered.discard(self._held)
        elif text.startswith("You move ") and self._held:
            self._inside[self._at] = [*(self._inside.get(self._at) or []), self._held]
            if self._fits(self._held):
                self._deliver(self._held)
            self._held = ""
        elif text.startswith(("You heat ", "You cool ", "You clean ")):
            self._changed = {thing for thing in self._changed if thing != self._held}
            if words[0] == self._goal.change:
                self._changed.add(self._held)

    def command(self) -> str:
        goal, at = self._goal, self._at
        if self._refused and self._inside:
            return self._go(self.random.choice(list(self._inside)))
        if not self._held:
            return self._fetch()
        if kind(self._held) != goal.thing:
            return self._go(next(iter(self._inside))) if not at or at in self._closed else f"move {self._held} to {at}"
        if goal.is_look:
            return self._light()
        if goal.change and self._held not in self._changed:
            appliance = APPLIANCES[goal.change]
            return f"{goal.change} {self._held} with {at}" if kind(at) == appliance else self._go_to_a(appliance)
        if kind(at) == goal.place and at == (self._home or at):
            return f"open {at}" if at in self._closed else f"move {self._held} to {at}"
        return self._go(self._home) if self._home else self._go_to_a(goal.place)

    def possible(self) -> list[str]:
        """Commands that fit what was seen, but only one of the walks, drawn at random."""
        at, here = self._at, self._inside.get(self._at) or []
        commands = ["look", "inventory", "help"]
        if self._inside:
            commands.append(self._go(self.random.choice(list(self._inside))))
        if at:
            commands += [f"examine {at}", f"open {at}" if at in self._closed else f"close {at}"]
        if self._held:
            commands += [f"move {self._held} to {at}", f"examine {self._held}"]
            commands += [f"{do} {self._held} with {at}" for do, place in APPLIANCES.items() if place == kind(at)]
        else:
            commands += [f"take {thing} from {at}" for thing in here]
        return commands + [f"use {thing}" for thing in here if thing.split()[0].endswith("lamp")]

    def impossible(self) -> str:
        """A command that fits another place, or a malformed one."""
        elsewhere = [
            f"take {thing} from {place}"
            for place, inside in self._inside.items()
            for thing in inside or ()
            if place != self._at
        ]
        return self.random.choice(MALFORMED if self.random.random() < 0.5 or not elsewhere else elsewhere)

    def _notice(self, text: str) -> None:
        if text.rstrip(".").endswith("closed"):
            self._closed.add(self._at)
            return
        self._closed.discard(self._at)
        inside = self._inside[self._at] = _THING.findall(text)
        if self._goal.count > 1:
            for thing in inside:
                if self._fits(thing):
                    self._deliver(thing)

    def _fits(self, thing: str) -> bool:
        """True if the thing is in the place and in the condition that the goal asks for."""
        goal, at = self._goal, self._at
        is_there = kind(at) == goal.place and at == (self._home or at)
        return kind(thing) == goal.thing and is_there and (goal.change is None or thing in self._changed)

    def _deliver(self, thing: str) -> None:
        self._delivered.add(thing)
        self._home = self._at

    def _fetch(self) -> str:
        """Command that leads to a wanted thing, or to a place where one may be."""
        at = self._at
        for place, inside in sorted(self._inside.items(), key=lambda held: held[0] != at):
            for thing in inside or ():
                if kind(thing) == self._goal.thing and thing not in self._delivered:
                    if place != at:
                        return self._go(place)
                    return f"open {at}" if at in self._closed else f"take {thing} from {at}"
        return self._search(self._goal.thing)

    def _light(self) -> str:
        """Command with the thing in hand: go to a lamp, or switch it on."""
        lamp, at = self._goal.place, self._at
        for place, inside in sorted(self._inside.items(), key=lambda held: held[0] != at):
            for thing in inside or ():
                if kind(thing) == lamp:
                    return f"use {thing}" if place == at else self._go(place)
        return self._search(lamp)

    def _search(self, wanted: str) -> str:
        """Open a closed place here, or go to the next unseen one: usual places first, drawers and cabinets later."""
        if self._at in self._closed and self._inside.get(self._at) is None:
            return f"open {self._at}"
        usual = homes().get(wanted, frozenset())
        unseen = [place for place, inside in self._inside.items() if inside is None]
        if not unseen:
            return self._go(self.random.choice(list(self._inside))) if self._inside else "look"
        return self._go(min(unseen, key=lambda place: (kind(place) not in usual, kind(place) in ("drawer", "cabinet"))))

    def _go_to_a(self, wanted: str) -> str:
        places = [place for place in self._inside if kind(place) == wanted]
        return self._go(places[-1]) if places else self._search(wanted)

    def _go(self, place: str) -> str:
        return f"go to {place}"


def kind(name: str) -> str:
    """A thing's or a place's name without its number."""
    return name.rpartition(" ")[0]


@cache
def homes() -> Mapping[str, frozenset[str]]:
    """The usual places of each kind of thing, from the package; empty without it: then all places are alike."""
    if importlib.util.find_spec("alfworld") is None:
        return {}
    known = importlib.import_module("alfworld.gen.constants").VAL_RECEPTACLE_OBJECTS
    things = {thing for inside in known.values() for thing in inside}
    return {thing.lower(): frozenset(place.lower() for place in known if thing in known[place]) for thing in things}


async def play(start: StepResult, environment: Environment, random: Random, good: float, impossible: float) -> None:
    """Play to the end: each command is the good one with probability `good`, else random."""
    player, result, command = HouseholdPlayer(HouseholdGoal(task_of(environment).instruction), random), start, ""
    while not result.done:
        player.see(result, command)
        if random.random() < good:
            command = player.command()
        elif random.random() < impossible:
            command = player.impossible()
        else:
            command = random.choice(player.possible())
        result = await environment.step(act(command))


def informed_plan(problem: str, instruction: str) -> list[str]:
    """Commands from a game's start to its goal, by a player that knows where everything lies; not always the fewest."""
    world, commands = HouseholdPlay(HouseholdGame.of(problem)), list[str]()
    player = HouseholdPlayer(HouseholdGoal(instruction), Random(0))
    player.learn_places(world.inside)
    while not world.is_won and len(commands) < PLAN_STEPS:
        commands.append(player.command())
        answer = world.step(commands[-1])
        player.see(StepResult(observation=answer, is_error=answer == REFUSAL), commands[-1])
    return commands


def behaviours(plan: Plan) -> Mapping[str, Behaviour]:
    """Behaviours by name. `expert` is the planner; a simulator should be built from recordings of `mixed`."""

    async def expert(start: StepResult, environment: Environment, seed: int) -> None:
        result = start
        for command in await plan(task_of(environment)):
            if result.done:
                return
            result = await environment.step(act(command))
        if not result.done:  # in a simulation that went another way
            await play(StepResult(observation=start.observation), environment, Random(seed), 1.0, 0.0)

    return {
        "expert": expert,
        "handcoded": graded(play, 1.0),
        "handcoded_80": graded(play, 0.8),
        "handcoded_50": graded(play, 0.5),
        "handcoded_30": graded(play, 0.3),
        "random": graded(play, 0.0, IMPOSSIBLE_SHARE),
        "mixed": mixed(play, IMPOSSIBLE_SHARE, shares=(0.0, 0.5, 0.8, 1.0)),
    }
