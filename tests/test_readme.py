"""What the README tells people to type exists."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dreamgym.cli.app import app
from dreamgym.cli.serve import app as serve

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```\n(.*?)```", README, flags=re.S)
VERBS = sorted(set(re.findall(r"^dreamgym ([a-z]+)", "\n".join(BLOCKS), flags=re.M)))


def test_the_first_commands_are_targets_of_the_makefile() -> None:
    block = next(block for block in BLOCKS if "make " in block)
    targets = re.findall(r"^make (\w+)", block, flags=re.M)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets == ["demo", "test"]
    assert all(re.search(rf"^{target}:", makefile, flags=re.M) for target in targets)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_readme_is_one_and_shows_an_example(verb: str) -> None:
    result = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"})
    assert result.exit_code == 0
    assert "Example: dreamgym" in result.output or verb in {"models", "db", "env"}


def test_every_option_that_the_readme_gives_a_verb_exists() -> None:
    for block in BLOCKS:
        for verb, rest in re.findall(r"^dreamgym ([a-z]+)(.*)$", block, flags=re.M):
            shown = CliRunner().invoke(app, [verb, "--help"], env={"COLUMNS": "200"}).output
            for option in re.findall(r"--[a-z-]+", rest.split("   ")[0]):
                assert option in shown, f"{verb} {option}"
        for rest in re.findall(r"^dreamgym-serve(.*)$", block, flags=re.M):
            shown = CliRunner().invoke(serve, ["--help"], env={"COLUMNS": "200"}).output
            assert all(option in shown for option in re.findall(r"--[a-z-]+", rest.split("   ")[0]))


def test_the_readme_names_every_verb() -> None:
    assert {command.name for command in app.registered_commands} - set(VERBS) <= {"demo"}
