"""Games of ALFWorld in a worker process: built once from the PDDL problem, played through the package's engine.

    python -m dreamgym_integrations.environments.alfworld.engine CACHE

answers one JSON request per line and ends with its input. It is a process of its own because the engine blocks, keeps
global state, and replaces sys.argv. Domain and grammar are the installed package's own, parsed once. The package's own
player generates the text of every possible command anew at each step, which is nine tenths of its time. Here each text
is generated once per game.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import sys
import tempfile
import zlib
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fast_downward
from alfworld.agents.utils.misc import Demangler
from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH
from pydantic import JsonValue
from textworld.envs.pddl import textgen
from textworld.envs.pddl.logic import GameLogic, PddlState
from textworld.generator.game import EntityInfo
from textworld.logic import Placeholder, Proposition, Rule, Signature, Type, Variable

from dreamgym.types import JsonObject
from dreamgym_integrations.environments.alfworld.planner import plan
from dreamgym_integrations.environments.alfworld.wording import REFUSAL

FORM = 2
"""Version of the cached form of a built game: raise it when that form changes."""
PLAYERS = 32
"""Most episodes that one worker holds, 4 MB each. The least recently used one makes room; to go on it is replayed."""

_LOOKS = (("ishot", "hot"), ("iscool", "cool"), ("isclean", "clean"), ("issliced", "sliced"), ("istoggled", "on"))


# The package parses the same few templates and conditions at every step, which is half the cost of a step. The results
# may be cached: they are only read, or get a new context before they are read.
textgen._parse_and_convert = cache(textgen._parse_and_convert)
Rule.parse_conjunctive_query = staticmethod(cache(Rule.parse_conjunctive_query))


class Engine:
    """Answers requests. All games of this process share its domain, grammar and cache."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self.domain = Path(ALFRED_PDDL_PATH).read_text(encoding="utf-8")
        grammar = Path(ALFRED_TWL2_PATH).read_text(encoding="utf-8")
        self.logic = GameLogic(domain=self.domain, grammar=grammar)
        self._salt = json.dumps([FORM, version("fast_downward_textworld"), version("textworld"), self.domain])
        self._players: OrderedDict[int, GamePlayer] = OrderedDict()
        self._free: list[Any] = []

    def answer(self, request: JsonObject) -> JsonObject:
        """Answer one request: start, step, plan or close."""
        number = int(str(request.get("player", 0)))
        match request["do"]:
            case "start":
                player = self._start(number, str(request["problem"]))
                said = request["said"]
                assert isinstance(said, list)
                for command in said:
                    player.step(str(command))
                return player.view(player.start() if not said else "")
            case "step" if number in self._players:
                self._players.move_to_end(number)
                player = self._players[number]
                command = str(request["command"]).strip()
                return player.view(player.step(command))
            case "plan":
                return {"plan": self._plan(str(request["problem"]))}
            case "close":
                self._end(number)
                return {}
        return {"unknown": True}

    def _start(self, number: int, problem: str) -> GamePlayer:
        self._end(number)
        while len(self._players) >= PLAYERS:
            self._end(next(iter(self._players)))
        player = self._players[number] = GamePlayer(self.logic, self._library(), self.built(problem))
        return player

    def _plan(self, problem: str) -> list[JsonValue]:
        """Commands that lead from the start to the goal."""
        library = self._library()
        operators = plan(self.domain, problem, library)
        commands = GamePlayer(self.logic, library, self.built(problem)).commands(operators)
        self._free.append(library)
        return [*commands]

    def _library(self) -> Any:
        return self._free.pop() if self._free else fast_downward.load_lib()

    def _end(self, number: int) -> None:
        player = self._players.pop(number, None)
        if player is not None:
            self._free.append(player.library)

    def built(self, problem: str) -> dict[str, Any]:
        """The game as the planner reads it, from the cache if it was built before."""
        key = hashlib.sha256(f"{self._salt}\0{problem}".encode()).hexdigest()
        file = self._cache / key[:2] / f"{key}.json.z"
        try:
            kept: dict[str, Any] = json.loads(zlib.decompress(file.read_bytes()))
            return kept
        except (OSError, zlib.error, ValueError):
            made = build(self.logic, problem)
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=file.parent, delete=False) as new:
            new.write(zlib.compress(json.dumps(made).encode()))
        Path(new.name).replace(file)
        return made


def build(logic: Any, problem: str) -> dict[str, Any]:
    """Translate a problem, which takes 0.4 CPU seconds; loading the result takes 5 ms."""
    state = PddlState(fast_downward.load_lib(), problem, logic)
    facts = [[fact.name, [[thing.name, thing.type] for thing in fact.arguments]] for fact in state.facts]
    actions = {
        name: [[parameter.name, parameter.type_name] for parameter in action.parameters]
        for name, action in state._actions.items()
    }
    return {
        "sas": state.sas,
        "facts": facts,
        "counts": dict(state._var_counts),
        "actions": actions,
        "types": state.name2type,
        "hierarchy": [[kind.name, list(kind.supertype_names)] for kind in state.task.types],
    }


def loaded(logic: Any, library: Any, built: dict[str, Any]) -> Any:
    """A PddlState as its own constructor would leave it, made from a built game without the translation."""
    state = PddlState.__new__(PddlState)
    state._facts, state._vars_by_name, state._vars_by_type = defaultdict(set), {}, defaultdict(set)
    state._var_counts = Counter()
    state._logic, state.downward_lib = logic, library
    state.name2type = built["types"]
    state._actions = {
        name: SimpleNamespace(parameters=[SimpleNamespace(name=one, type_name=kind) for one, kind in parameters])
        for name, parameters in built["actions"].items()
    }
    for name, above in built["hierarchy"]:
        with suppress(ValueError):  # known from another game: all have one domain
            logic.types.add(Type(name, above))
    library.load_sas(built["sas"].encode())
    state.add_facts(Proposition(name, [Variable(*thing) for thing in things]) for name, things in built["facts"])
    state._var_counts = Counter(built["counts"])
    return state


class GamePlayer:
    """One episode of one game."""

    def __init__(self, logic: Any, library: Any, built: dict[str, Any]) -> None:
        self.library = library
        self._logic = logic
        self._state = loaded(logic, library, built)
        kinds = {thing.name: thing.type for fact in self._state.facts for thing in fact.arguments}
        self._infos = {name: EntityInfo(name, kind) for name, kind in kinds.items()}
        names = Demangler(game_infos=self._infos, shuffle=False)
        for info in self._infos.values():
            info.name, info.definite, info.indefinite = names.demangle_alfred_name(info.id), "the", "a"
        self._worded: dict[str, tuple[str, Any]] = {}
        self._commands: dict[tuple[str, ...], str] = {}
        self._possible: dict[str, tuple[Any, Any]] = {}
        self._start = ""
        self._look()

    def start(self) -> str:
        """The first observation, without greeting and task."""
        if not self._start:
            self._start = str(self._logic.grammar.derive("#look.feedback#", self._context({})))
        return self._start

    def step(self, command: str) -> str:
        """Run the command, or do nothing if it is impossible. Returns the answer in the game's words."""
        operator, action = self._possible.get(command, (None, None))
        if operator is None:
            return REFUSAL
        self._state._operators = {operator.id: operator}
        self._state.apply(SimpleNamespace(id=operator.id))
        answer = str(self._logic.grammar.derive(action.feedback_rule, self._context(action.mapping)))
        self._look()
        return answer.strip()

    def view(self, answer: str) -> JsonObject:
        """The answer, with the state, the possible commands, and whether the game is won."""
        return {
            "answer": answer,
            "won": bool(self._state.check_goal()),
            "admissible": [*sorted(self._possible)],
            "state": self.describe(),
        }

    def commands(self, operators: list[str]) -> list[str]:
        """The operators as commands."""
        return [self._word(operator)[0] for operator in operators]

    def describe(self) -> str:
        """All that later answers here depend on: where the agent is, what it sees there, and what it carries."""
        here = {fact.arguments[1].name for fact in self._facts("atlocation", "agent", "location")}
        parts = []
        for fact in sorted(self._facts("receptacleatlocation", "receptacle", "location")):
            place, location = (thing.name for thing in fact.arguments)
            if location in here:
                parts.append(self._place(place))
        held = [fact.arguments[1].name for fact in self._facts("holds", "agent", "object")]
        parts.append(f"You carry: {self._list(held)}.")
        return " ".join(parts) if len(parts) > 1 else self.start()

    def _place(self, place: str) -> str:
        name = self._infos[place].name.strip()
        if self._facts_of("openable", place) and not self._facts_of("opened", place):
            return f"You are at {name}, which is closed."
        inside = [
            fact.arguments[0].name
            for fact in self._facts("inreceptacle", "object", "receptacle")
            if fact.arguments[1].name == place
        ]
        is_open = ", which is open" if self._facts_of("openable", place) else ""
        return f"You are at {name}{is_open}. There: {self._list(inside)}."

    def _list(self, things: Iterable[str]) -> str:
        listed = []
        for thing in sorted(things):
            looks = [word for fact, word in _LOOKS if self._facts_of(fact, thing)]
            listed.append(self._infos[thing].name.strip() + (f" ({', '.join(looks)})" if looks else ""))
        return ", ".join(listed) or "nothing"

    def _facts(self, name: str, *kinds: str) -> Iterable[Any]:
        facts: Iterable[Any] = self._state.facts_with_signature(Signature(name, kinds))
        return facts

    def _facts_of(self, name: str, thing: str) -> bool:
        kind = self._infos[thing].type
        return bool(self._state.is_fact(Proposition(name, [Variable(thing, kind)])))

    def _look(self) -> None:
        """Update the commands that are possible now."""
        operators = (fast_downward.Operator * self.library.get_applicable_operators_count())()
        self.library.get_applicable_operators(operators)
        self._possible = {}
        for operator in operators:
            name = operator.name
            if name not in self._worded:
                self._worded[name] = self._word(name)
            command, action = self._worded[name]
            self._possible.setdefault(command, (operator, action))

    def _word(self, operator: str) -> tuple[str, Any]:
        """The command of an operator. It depends only on what never changes, so it is generated once."""
        kind, *things = operator.split()
        parameters = self._state._actions[kind].parameters
        action = self._logic.actions[kind]
        mapping = {
            Placeholder(one.name.strip("?"), one.type_name): Variable(thing, one.type_name)
            for one, thing in zip(parameters, things, strict=False)
        }
        named = set(re.findall(r"\w+", action.template))
        key = (kind, *(thing.name for one, thing in mapping.items() if one.name in named))
        if key not in self._commands:
            self._commands[key] = str(self._logic.grammar.derive(action.template, self._context(mapping)))
        return self._commands[key], SimpleNamespace(mapping=mapping, feedback_rule=action.feedback_rule)

    def _context(self, mapping: dict[Any, Any]) -> dict[str, Any]:
        return {
            "state": self._state,
            "facts": [],
            "variables": {one.name: self._infos[thing.name] for one, thing in mapping.items()},
            "mapping": mapping,
            "entity_infos": self._infos,
        }


def main() -> None:
    """Answer requests until the input ends."""
    engine = Engine(Path(sys.argv[1]))
    with os.fdopen(os.dup(1), "w") as replies:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the planner prints, and would break into the answers
        random.seed(0)
        for line in sys.stdin:
            try:
                reply = engine.answer(json.loads(line))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - any failure of the engine is this episode's
                reply = {"error": f"{type(error).__name__}: {error}"}
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


if __name__ == "__main__":
    main()
