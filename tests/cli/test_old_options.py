"""An option that a command no longer has is refused with what to do instead."""

from typing import Any

import pytest
import typer
from command_line import Command

from dreamgym.cli.app import app
from dreamgym.cli.old_options import OLD
from dreamgym.cli.serve import main as serve
from dreamgym.embedding import load_encoder
from dreamgym.errors import UnknownName
from dreamgym.runs.settings import names
from dreamgym.runs.train.config import TrainConfig
from dreamgym.training.old_settings import OLD_SETTINGS


def options_of(command: Any, verb: str = "") -> dict[str, list[str]]:
    """The first name of each option, by verb."""
    if hasattr(command, "commands"):
        inner = [options_of(one, f"{verb} {name}".strip()) for name, one in command.commands.items()]
        return {name: options for verbs in inner for name, options in verbs.items()}
    return {verb: [one.opts[0] for one in command.params if one.param_type_name == "option" and one.name != "help"]}


OPTIONS = options_of(typer.main.get_command(app))
SHARED = {"--budget", "--cluster", "--port"}
"""Options that mean the same in many commands: each counts once."""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fidelity", "crm", "--kl", "0.1"), "--kl: it was removed"),
        (("fidelity", "crm", "--gamma=0.9"), "--gamma: it was removed"),
        (("fidelity", "crm", "--compare", "a", "b"), "--compare: give --model twice"),
        (("fidelity", "crm", "--encoder", "trigram"), "--encoder: set the variable DREAMGYM_ENCODER"),
        (("check", "crm", "--against", "dream", "-k", "0"), "-k: it is a part of --model now"),
        (("serve", "crm/", "--dsn", "postgresql://x"), "--dsn: set the variable DREAMGYM_DSN"),
        (("serve", "--env", "crm/"), "--env: write the environment without it"),
        (("db", "prune", "--keep", "2"), "--keep: it was removed: of a task that is always solved, 4 dreams are kept"),
        (("train", "coin", "--vary", "3"), "settings: vary: it was removed: two tasks are varied"),
    ],
)
def test_an_old_option_is_misuse_and_says_what_to_do(dreamgym: Command, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = dreamgym(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"dreamgym: {said}")


def test_an_old_option_is_not_an_option_of_its_command() -> None:
    for verb, option in OLD:
        assert option not in OPTIONS[verb], (verb, option)


def test_an_old_setting_is_not_a_setting_of_train() -> None:
    assert not set(OLD_SETTINGS) & set(names(TrainConfig))


def test_there_are_few_options() -> None:
    own = [option for options in OPTIONS.values() for option in options if option not in SHARED]
    assert len(SHARED) + len(own) + len(names(TrainConfig)) <= 137


def test_a_command_with_a_program_of_its_own_refuses_an_old_option_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["dreamgym-serve", "crm/", "--encoder", "trigram"])
    with pytest.raises(SystemExit) as left:
        serve()
    assert left.value.code == 2
    assert capsys.readouterr().err.startswith("dreamgym: --encoder: set the variable DREAMGYM_ENCODER")


def test_the_variable_names_the_encoder_of_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    assert load_encoder().name == "trigram"
    monkeypatch.setenv("DREAMGYM_ENCODER", "nope")
    with pytest.raises(UnknownName, match="unknown encoder 'nope'"):
        load_encoder()
    assert load_encoder("trigram").name == "trigram"
