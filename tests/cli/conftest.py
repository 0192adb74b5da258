"""The fixture that runs the command line, for the tests of its commands."""

import sys

import pytest
from command_line import Command

from dreamgym.cli.app import main


@pytest.fixture
def dreamgym(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs one command line; returns exit code, stdout, stderr."""

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dreamgym", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    return command
