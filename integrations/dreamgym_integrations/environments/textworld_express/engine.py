"""Runs a game of TextWorldExpress: its description (`Game`), its Java object (`JavaGames`), and an episode of it.

The package starts a JVM per game. Here all games of a process share one JVM, and each game is one object in it. A game
then takes 30 ms instead of 300, and next to no memory instead of 170 MB.
"""

from __future__ import annotations

import atexit
import json
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

from dreamgym.environment import Behaviour
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.types import JsonObject, Origin, StepResult, Task, ToolCall
from dreamgym_integrations.environments.base import act_tool, check_goal, command_of
from dreamgym_integrations.environments.java import JavaMachine, java_failures
from dreamgym_integrations.environments.lease import Lease

SIDES = ("north", "east", "south", "west")
CLOSED_DOOR = "closed door"
REFUSALS = ("unknown action.", "you can't", "that is already", "your inventory currently has")
SEEDS = {"train": range(2000), "dev": range(2000, 3000), "test": range(500_000, 501_100)}
"""The seeds of each split."""

_PLACE = re.compile(r"You are in the ([a-z ]+)\.")
EXIT = re.compile(r"[Tt]o the (North|East|South|West) you see (?:the ([a-z ]+)|a (closed) [a-z -]*door)\.")
_WALK = re.compile(r"(move|look|task|inventory|put|open|close) ")


def plain(text: str) -> str:
    """The text on one line, in lower case and without hyphens."""
    return " ".join(text.lower().replace("-", " ").split())


def place_name(look: str) -> str:
    """The name of the place that the game describes. Raises EnvironmentUnavailable if it describes none."""
    place = _PLACE.search(look)
    if place is None:
        raise EnvironmentUnavailable(f"expected the description of a place from the game, got {look[:200]!r}")
    return place[1]


def exits(look: str) -> dict[str, str]:
    """The exits by side, clockwise from the north: the place behind each, or CLOSED_DOOR."""
    found = {side.lower(): there or CLOSED_DOOR for side, there, _ in EXIT.findall(look)}
    return {side: found[side] for side in SIDES if side in found}


@dataclass(frozen=True)
class Game:
    """Description of one game: its name in the package, and how it is played here."""

    name: str
    description: str
    rules: str
    """How the game answers, written for the experience model."""
    commands: str
    """The commands, in one line."""
    example: str
    """One command, as an example."""
    parameters: Mapping[str, int]
    """The package's own generation parameters, with the values that we play by default."""
    max_steps: int
    behaviours: Mapping[str, Behaviour]
    view: Callable[[Mapping[str, Any]], str]
    """Makes the agent's view from an answer of the game; empty if the answer does not show it."""
    shorten: Callable[[str], str]
    """Shortens a reply that does not describe a place."""
    doing: str = "Do one thing."
    """Purpose of the tool, in one sentence."""
    instruction: str | None = None
    """None: the game's own instruction."""

    @property
    def tool(self) -> JsonObject:
        """The one tool: a command to the game."""
        return act_tool(f"{self.doing} Commands: {self.commands}.", self.example)

    def setting(self, parameters: Mapping[str, int]) -> str:
        """Name of the environment: the game's name, followed by the values unless all are the defaults."""
        played = {**self.parameters, **parameters}
        if played == self.parameters:
            return self.name
        return "-".join([self.name, *map(str, played.values())])

    def java_name(self, parameters: Mapping[str, int]) -> tuple[str, str]:
        """The game's name and its generation parameters as the package reads them."""
        return self.name, ",".join(f"{name}={value}" for name, value in {**self.parameters, **parameters}.items())


class JavaGames:
    """The Java objects of all games, each lent to one player at a time. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple[str, str], list[Any]] = {}
        self._machine: JavaMachine | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The process of the JVM; None if it was not started."""
        return None if self._machine is None else self._machine.process

    def take(self, name: str, parameters: str = "") -> Any:
        """A game that nobody else uses.

        Raises:
            InvalidInput: the game cannot be played with these parameters.
            MissingPackage, EnvironmentUnavailable: Java or the package is missing or failed.
        """
        with self._lock:
            if self._machine is None or not self._machine.is_alive:
                self.stop()
                try:
                    from textworld_express.constants import BASEPATH, JAR_PATH

                    self._machine = JavaMachine(JAR_PATH, BASEPATH)
                except ImportError as error:
                    raise MissingPackage("a game of TextWorldExpress", "textworld-express") from error
            if free := self._free.get((name, parameters)):
                return free.pop()
            with java_failures():
                game = self._machine.jvm.textworldexpress.runtime.PythonInterface()
                fault = game.load(name, parameters)
            if fault:
                raise InvalidInput(f"TextWorldExpress cannot load {name!r} with {parameters!r}: {fault.strip()}")
            return game

    def give_back(self, game: Any, name: str, parameters: str = "") -> None:
        """Keep the game for its next player, unless its JVM has ended."""
        with self._lock:
            if self._machine is not None and self._machine.holds(game):
                self._free.setdefault((name, parameters), []).append(game)

    def stop(self) -> None:
        """End the JVM; the next `take` starts another."""
        machine, self._machine = self._machine, None
        self._free.clear()
        if machine is not None:
            machine.stop()


java_games = JavaGames()
"""The games of this process."""
atexit.register(java_games.stop)


class GameEnvironment:
    """Plays one game at a time. The task fixes the world; the seed of `reset` is ignored."""

    def __init__(self, game: Game, parameters: Mapping[str, int] | None = None) -> None:
        self.tools: Sequence[JsonObject] = (game.tool,)
        self._game = game
        loaded = game.java_name(parameters or {})
        self._lease: Lease[Any] = Lease(
            take=lambda: java_games.take(*loaded),
            give_back=lambda java: java_games.give_back(java, *loaded),
            drop=lambda java: None,  # all games share one JVM
        )
        self._playing = False
        self._view = ""
        self._commands: dict[str, str] = {}

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the world with the seed `task.metadata["seed"]`."""
        world = task.metadata.get("seed")
        if not isinstance(world, int) or isinstance(world, bool) or not -(2**31) <= world < 2**31:
            raise InvalidInput(
                f"task {task.id!r}: expected a whole number in metadata.seed, of at most 32 bits, got {world!r}"
            )
        self._playing = False
        self._lease = self._lease.renewed()

        def start(java: Any) -> tuple[dict[str, Any], str]:
            with java_failures():
                answer = json.loads(java.generateNewGameJSON(world, "train", False))
                return answer, self._game.instruction or str(java.getTaskDescription())

        answer, instruction = await self._lease.ask(start)
        check_goal(task, instruction)
        self._see(answer)
        if task.origin is not Origin.GENERATED and task.initial_state not in (None, self._view):
            raise InvalidInput(
                f"task {task.id!r} starts elsewhere than the game with these params and this seed: expected "
                f"{self._view!r}, got {task.initial_state!r}"
            )
        self._playing = True
        return StepResult(observation=self._view)

    async def step(self, action: ToolCall) -> StepResult:
        """Give the game one command."""
        command = command_of(action, is_playing=self._playing and not self._lease.ended)

        def give(java: Any) -> dict[str, Any]:
            with java_failures():
                return cast("dict[str, Any]", json.loads(java.stepJSON(self._commands.get(command, command))))

        answer = await self._lease.ask(give)
        reply = self._game.shorten(answer["observation"])
        if answer["tasksuccess"] or answer["taskfailure"]:
            # The place does not follow: without the thing that was taken, it would look like a place of another world.
            self._playing = False
            return StepResult(observation=reply, reward=float(answer["tasksuccess"]), terminated=True)
        self._see(answer)
        shown = self._view if answer["observation"] == answer["look"] or reply in ("", self._view) else ""
        observation = shown or f"{reply} {self._view}"
        done = f" score: {round(100 * answer['score'])}." if answer["score"] > 0 else ""
        state = f"{self._view}{done}"
        return StepResult(
            observation=observation,
            is_error=not shown and reply.startswith(REFUSALS),
            info={"state": state} if state != observation else {},
        )

    async def close(self) -> None:
        self._lease.end()

    def _see(self, answer: Mapping[str, Any]) -> None:
        self._view = self._game.view(answer) or self._view
        self._commands = {plain(command): command for command in answer["validActions"]}


class GameSeed(NamedTuple):
    """One line of a task list: a seed with its split, and the instruction and first view of its world."""

    split: str
    seed: int
    instruction: str
    start: str

    @classmethod
    def of_line(cls, line: str) -> GameSeed:
        """Parse a line of a packed list; lines of the game `coin` have no instruction."""
        split, seed, *texts = line.split("\t")
        return cls(split, int(seed), texts[0] if len(texts) > 1 else "", texts[-1])


def distinct_worlds(
    game: Game, parameters: Mapping[str, int], seeds: Mapping[str, range] = SEEDS
) -> Iterator[GameSeed]:
    """Yield each distinct world once, at its first seed, so that no test world occurs in training.

    Two worlds count as one if their task, their first view and the commands of the package's own solution agree. Moves,
    looks and placements of the solution do not count: the order in which it walks is drawn anew each time.

    Raises:
        InvalidInput: the game cannot be played with these parameters.
        MissingPackage, EnvironmentUnavailable: Java or the package is missing or failed.
    """
    loaded = game.java_name(parameters)
    java = java_games.take(*loaded)
    seen: set[object] = set()
    try:
        for split, numbers in seeds.items():
            for seed in numbers:
                with java_failures():
                    start = game.view(json.loads(java.generateNewGameJSON(seed, "train", True)))
                    instruction = " ".join(java.getTaskDescription().split())
                    solution = frozenset(
                        command for command in java.getGoldActionSequence() if not _WALK.match(command)
                    )
                if (fingerprint := (instruction, start, solution)) not in seen:
                    seen.add(fingerprint)
                    yield GameSeed(split, seed, instruction, start)
    finally:
        java_games.give_back(java, *loaded)
