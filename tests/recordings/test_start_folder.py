"""env.toml is written once, readable for people and for the program, and from then on it belongs to the user."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from dreamgym_server.recorder.recording import rules_of
from folder_stage import GET, SERVER, Tape, crm

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder import build_folder, start_folder
from dreamgym.redaction import RedactionRules


def test_env_toml_contains_the_server_command_and_explains_every_redaction_rule(tmp_path: Path) -> None:
    text = (crm(tmp_path) / "env.toml").read_text()
    said = tomllib.loads(text)
    assert said["real"] == {"adapter": "mcp", "command": ["npx", "crm"]}
    assert said["limits"] == {"max_steps": 50}
    assert RedactionRules.model_validate(said["redact"]) == RedactionRules()
    lines = text.splitlines()
    for name in RedactionRules.model_fields:
        at = next(number for number, line in enumerate(lines) if line.startswith(f"{name} ="))
        assert lines[at - 1].startswith("# "), f"{name} has no comment"


def test_a_folder_of_another_environment_is_refused_and_left_alone(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    before = (folder / "env.toml").read_bytes()
    with pytest.raises(InvalidInput, match="is the folder of the environment 'crm', not of 'shop'"):
        start_folder(folder, "shop", {"adapter": "mcp", "url": "http://localhost/mcp"})
    assert (folder / "env.toml").read_bytes() == before


@pytest.mark.parametrize(
    ("value", "reason"), [("[" * 5000 + "]" * 5000, "maximum recursion depth"), ("9" * 5000, "Exceeds the limit")]
)
@pytest.mark.parametrize("read", [lambda folder: start_folder(folder, "crm", {}), EnvironmentSpec.load, rules_of])
def test_an_env_toml_that_python_cannot_hold_is_refused_with_its_path(
    tmp_path: Path, value: str, reason: str, read: Callable[[Path], object]
) -> None:
    folder = crm(tmp_path)
    (folder / "env.toml").write_text(f"name = 'crm'\nx = {value}\n")
    with pytest.raises(InvalidInput, match=rf"env\.toml: {reason}"):
        read(folder)


@pytest.mark.parametrize("name", ["", "CRM", "a b", "../x", "crm\n"])
def test_an_invalid_name_is_refused_before_anything_is_made(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="expected lower-case letters"):
        start_folder(tmp_path / "new", name, {})
    assert not (tmp_path / "new").exists()


def test_a_path_that_is_a_file_gives_one_clear_message(tmp_path: Path) -> None:
    (tmp_path / "crm").write_text("")
    with pytest.raises(InvalidInput, match="cannot be written"):
        start_folder(tmp_path / "crm", "crm", {})


def test_edits_of_env_toml_stay_when_recording_goes_on(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    file = folder / "env.toml"
    edited = file.read_text().replace('rules = ""', 'rules = "ids are letters"  # mine').replace("50", "7")
    edited = edited.replace('description = ""', 'description = "Our customers"')
    file.write_text(edited)
    start_folder(folder, "crm", {"adapter": "mcp", "url": "http://localhost/mcp"})
    Tape(folder, "a").hello().call("get", "Ada", id="x1")
    build_folder(folder)
    assert file.read_text() == edited
    assert EnvironmentSpec.load(folder).max_steps == 7


@pytest.mark.parametrize("instructions", ["One line.", 'Two\nlines "" """ \\ \t', "", "\r\n odd \x07 \u2028"])
def test_an_empty_description_is_filled_with_the_title_and_instructions_of_the_server(
    tmp_path: Path, instructions: str
) -> None:
    folder = crm(tmp_path)
    comments = [line for line in (folder / "env.toml").read_text().splitlines() if line.startswith("#")]
    Tape(folder, "a").hello(GET, server={**SERVER, "instructions": instructions}).call("get", "Ada", id="x1")
    build_folder(folder)
    assert EnvironmentSpec.load(folder).description == f"The CRM\n{instructions.strip()}".strip()
    assert [line for line in (folder / "env.toml").read_text().splitlines() if line.startswith("# ")] == comments


def test_without_env_toml_the_message_has_the_command_that_writes_one(tmp_path: Path) -> None:
    Tape(tmp_path, "a").hello().call("get", id="x1")
    with pytest.raises(InvalidInput, match=r"it has no env.toml. `dreamgym record "):
        build_folder(tmp_path)
