"""An option that a verb no longer has is answered with what to do instead."""

import pytest
import typer
from command_line import Command

from dreamgym.cli.app import app
from dreamgym.cli.old_options import OLD
from dreamgym.embedding import load_encoder
from dreamgym.errors import UnknownName


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fidelity", "crm", "--kl", "0.1"), "--kl: it is gone"),
        (("fidelity", "crm", "--gamma=0.9"), "--gamma: it is gone"),
        (("fidelity", "crm", "--compare", "a", "b"), "--compare: give --model twice"),
        (("fidelity", "crm", "--encoder", "trigram"), "--encoder: set the variable DREAMGYM_ENCODER"),
        (("check", "crm", "--against", "dream", "-k", "0"), "-k: it is a part of --model now"),
    ],
)
def test_an_old_option_is_misuse_and_says_what_to_do(dreamgym: Command, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = dreamgym(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"dreamgym: {said}")


def test_what_is_listed_as_old_is_no_option_of_its_verb() -> None:
    verbs = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for verb, option in OLD:
        assert option not in [name for parameter in verbs[verb].params for name in parameter.opts], (verb, option)


def test_the_variable_names_the_encoder_of_every_verb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    assert load_encoder().name == "trigram"
    monkeypatch.setenv("DREAMGYM_ENCODER", "nope")
    with pytest.raises(UnknownName, match="unknown encoder 'nope'"):
        load_encoder()
    assert load_encoder("trigram").name == "trigram"
