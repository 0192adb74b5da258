"""Simulators of ScienceWorld, each with a JVM of its own, since the program keeps its world in global variables.

They are reused: starting one takes two seconds, loading another world a tenth of a second. All objects have a constant
hash code. The JVM's default hash codes are drawn anew in each JVM. With them, equal things such as three wood cups are
listed, and found by the package's gold path, in another order every time.
"""

from __future__ import annotations

import atexit
import threading
from typing import NamedTuple

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym_integrations.environments.java import JavaMachine, java_failures

WHAT = "ScienceWorld"
IDLE = 4
"""Most JVMs that wait for another episode."""
OPTIONS = ("-XX:+UseSerialGC", "-Xmx512m", "-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2")
"""The JVM's second compiler stays on: after some hundred steps a step takes 19 ms of CPU with it, 32 without."""


class Variation(NamedTuple):
    """One variation of one of the thirty tasks, as the package names them."""

    kind: str
    variation: int
    simplifications: str = "easy"


class CommandResult(NamedTuple):
    """The simulator's answer to a command."""

    reply: str
    score: int
    """0 to 100, or -100 if the task was failed."""
    completed: bool

    @property
    def ended(self) -> bool:
        """True if the episode is over: the package ends one that was failed as well as one that is complete."""
        return self.completed or self.score < 0


class Simulator:
    """A JVM with one world at a time."""

    def __init__(self) -> None:
        try:
            from scienceworld.constants import BASEPATH, JAR_PATH

            self._machine = JavaMachine(JAR_PATH, BASEPATH, OPTIONS)
        except ImportError as error:
            raise MissingPackage(WHAT, "scienceworld") from error
        with java_failures(WHAT):
            self._java = self._machine.jvm.scienceworld.runtime.pythonapi.PythonInterface()

    @property
    def is_alive(self) -> bool:
        return self._machine.is_alive

    def load(self, world: Variation) -> CommandResult:
        """Start a world and look around, as the package does. Raises InvalidInput, EnvironmentUnavailable."""
        with java_failures(WHAT):
            if fault := self._java.load(world.kind, world.variation, world.simplifications, False):
                raise InvalidInput(f"{WHAT} cannot load {world.kind!r}, variation {world.variation}: {fault}")
        return self.step("look around")

    def step(self, command: str) -> CommandResult:
        """Give the world a command. Raises EnvironmentUnavailable."""
        with java_failures(WHAT):
            reply = self._java.step(command)
            answer = CommandResult(reply, round(100 * self._java.getScore()), bool(self._java.getCompleted()))
        if answer.completed and answer.score < 0:  # a failed task is not complete: the program itself failed
            raise EnvironmentUnavailable(f"{WHAT} failed at {command[:80]!r}: {reply[:300]}")
        return answer

    def view(self) -> str:
        """Text of the place and of the inventory. Reading it takes no time in the world."""
        with java_failures(WHAT):
            return f"{self._java.freeActionLook().strip()}\n{self._java.freeActionInventory().strip()}"

    def description(self) -> str:
        """The instruction of this world."""
        with java_failures(WHAT):
            return " ".join(self._java.getTaskDescription().split())

    def admissible(self) -> list[str]:
        """All commands that would have an effect here, about a thousand. Listing them is slower than twenty steps."""
        with java_failures(WHAT):
            return self._machine.texts(self._java.getValidActionObjectCombinations())

    def gold(self, world: Variation) -> tuple[str, ...]:
        """The package's own solution. The world that was loaded is lost."""
        with java_failures(WHAT):
            self._java.load(world.kind, world.variation, world.simplifications, True)
            return tuple(self._machine.texts(self._java.getGoldActionSequence()))

    def folds(self, kind: str) -> dict[str, list[int]]:
        """The package's own variations for training, development and test. The world that was loaded is lost."""
        with java_failures(WHAT):
            self._java.load(kind, 0, "easy", False)
            java = self._java
            found = {
                "train": java.getVariationsTrain(),
                "dev": java.getVariationsDev(),
                "test": java.getVariationsTest(),
            }
        return {split: list(map(int, variations)) for split, variations in found.items()}

    def stop(self) -> None:
        self._machine.stop()


class Simulators:
    """All simulators of this process, each lent to one user at a time. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[Simulator] = []
        self._all: list[Simulator] = []

    def take(self) -> Simulator:
        """A simulator that nobody else uses. Raises MissingPackage, EnvironmentUnavailable."""
        with self._lock:
            while self._free:
                if (simulator := self._free.pop()).is_alive:
                    return simulator
        simulator = Simulator()
        with self._lock:
            self._all.append(simulator)
        return simulator

    def give_back(self, simulator: Simulator) -> None:
        """Keep the simulator for the next user, unless its JVM has ended or IDLE others are free."""
        with self._lock:
            if simulator.is_alive and simulator in self._all and len(self._free) < IDLE:
                self._free.append(simulator)
                return
        self.drop(simulator)

    def drop(self, simulator: Simulator) -> None:
        """End the simulator's JVM, unless `stop` has ended it."""
        with self._lock:
            if simulator not in self._all:
                return
            self._all.remove(simulator)
        simulator.stop()  # outside of the lock: it may take seconds

    def stop(self) -> None:
        """End all JVMs, also those in use; the next `take` starts another."""
        with self._lock:
            simulators, self._all, self._free = self._all, [], []
        for simulator in simulators:
            simulator.stop()


simulators = Simulators()
atexit.register(simulators.stop)
