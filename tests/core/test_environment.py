"""An environment folder is read whole or not at all, and every error names the place of the fault."""

import json
from pathlib import Path

import pytest
from pydantic import JsonValue

from dreamgym import EnvironmentSpec, Task
from dreamgym.environment import load_real, load_spec, read_jsonl, real_of
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import JsonObject

TOOL: JsonObject = {
    "name": "act",
    "x-vendor": {"kept": [1, 2]},
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}},
}
TOOLS: JsonObject = {
    "tools": [TOOL],
    "nextCursor": None,
}
TASK = {"id": "t1", "env": "rooms", "instruction": "find it"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "env.toml").write_text('name = "rooms"\nrules = "walk"\n[limits]\nmax_steps = 7\n')
    (tmp_path / "tools.json").write_text(json.dumps(TOOLS))
    (tmp_path / "tasks.jsonl").write_text(json.dumps(TASK) + "\n\n" + json.dumps({**TASK, "id": "t2"}) + "\n")
    return tmp_path


def test_a_folder_gives_its_tools_unchanged_and_its_tasks_in_order(folder: Path) -> None:
    spec = load_spec(str(folder))
    assert spec.tools_list == (TOOLS,)
    assert [task.id for task in spec.tasks] == ["t1", "t2"]
    assert (spec.name, spec.max_steps, spec.text_argument) == ("rooms", 7, ("act", "command"))


def test_a_malformed_line_is_named_with_its_file_and_number(folder: Path) -> None:
    (folder / "tasks.jsonl").write_text(json.dumps(TASK) + '\n{"id": "t2", "env": "rooms"}\n')
    with pytest.raises(InvalidInput, match=r"tasks\.jsonl, line 2: instruction: Field required"):
        load_spec(str(folder))


def test_a_line_that_is_not_json_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("{")
    with pytest.raises(InvalidInput, match=r"t\.jsonl, line 1: Invalid JSON"):
        read_jsonl(tmp_path / "t.jsonl", Task)


def test_an_unknown_setting_is_refused_instead_of_ignored(folder: Path) -> None:
    (folder / "env.toml").write_text('name = "rooms"\nmax_step = 7\n')
    with pytest.raises(InvalidInput, match=r"env\.toml: max_step: unknown key; the keys are .* max_steps"):
        load_spec(str(folder))


@pytest.mark.parametrize(
    ("tools", "reason"),
    [({}, "non-empty list"), ({"tools": [{}]}, "needs a name"), ({"tools": [{"name": "a"}] * 2}, "not unique")],
)
def test_a_malformed_tools_list_is_refused(folder: Path, tools: object, reason: str) -> None:
    (folder / "tools.json").write_text(json.dumps(tools))
    with pytest.raises(InvalidInput, match=reason):
        load_spec(str(folder))


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("env.toml", 'name = "rooms"\nreal = "mcp"\n', r"env\.toml: expected a table \[real\]"),
        ("env.toml", 'name = "rooms"\nlimits = 5\n', r"env\.toml: expected a table \[limits\]"),
        ("env.toml", "name = " + "[" * 100_000, r"env\.toml: maximum recursion depth"),
        ("tools.json", "[" * 100_000, r"tools\.json: maximum recursion depth"),
        ("tools.json", '[{"name": "act"}]', r"tools\.json: expected a tools/list result"),
        ("server.json", '{"initialize": 3}', r"server\.json: initialize: Input should be a valid dictionary"),
        ("server.json", "[]", r"server\.json: Input should be"),
        ("env.toml", 'name = "rooms"\nmirrored = 3\n', r"env\.toml: mirrored: unknown key"),
    ],
)
def test_a_file_of_the_wrong_shape_is_refused_with_its_name(folder: Path, file: str, text: str, reason: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(InvalidInput, match=reason):
        load_spec(str(folder))


@pytest.mark.parametrize("place", ["./mine", "", ".mine", "a..b"])
def test_a_place_that_is_not_a_module_or_a_python_file_is_refused(place: str) -> None:
    with pytest.raises(InvalidInput, match=r"expected module:function or path/to/file\.py:function"):
        load_real(f"{place}:make")


def test_a_file_with_a_syntax_error_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make(:\n")
    with pytest.raises(InvalidInput, match=r"cannot be loaded: .*mine\.py, line 1"):
        load_real(f"{tmp_path}/mine.py:make")


def test_a_function_that_returns_no_environment_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def make(options):\n    return options\n")
    with pytest.raises(InvalidInput, match=r"expected a function that returns a RealEnvironment, .*, got dict"):
        load_spec(f"{tmp_path}/mine.py:make")


def test_an_unknown_environment_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        UnknownName, match=r"unknown environment 'chess': expected one of .*coin, .*\. There is no folder chess"
    ):
        load_spec("chess")


def test_a_folder_without_env_toml_is_not_an_environment(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"has no env\.toml"):
        load_spec(str(tmp_path))


def test_a_folder_with_the_name_of_a_registered_environment_is_refused_with_the_way_to_that_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "coin").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"no env\.toml\. For the registered environment 'coin', run this in a"):
        load_spec("coin")


def test_the_error_for_a_folder_without_a_real_environment_says_how_to_name_one(folder: Path) -> None:
    with pytest.raises(InvalidInput, match=r"add \[real\] adapter"):
        real_of(load_spec(str(folder)))


def test_a_registered_environment_is_found_by_name() -> None:
    assert load_real("coin").spec.adapter == "coin"


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("textworld_express:coin", "textworld_express.coin:coin"),
        ("browser:miniwob", "browser.miniwob:miniwob"),
        ("browser:webarena_lite", "browser.sites:webarena_lite"),
        ("mcp_server:mcp", "mcp:mcp"),
    ],
)
def test_the_error_for_an_adapter_that_moved_gives_its_new_name(old: str, now: str) -> None:
    place = "dreamgym_integrations.environments."
    with pytest.raises(InvalidInput) as refused:
        load_real(place + old)
    assert str(refused.value).startswith(f"environment {place + old!r} cannot be loaded: ")
    assert str(refused.value).endswith(f'It moved: write adapter = "{old.partition(":")[2]}" (now {place}{now})')


def test_an_adapter_that_never_existed_is_not_reported_as_moved() -> None:
    for unknown in ("somebody.else:coin", "dreamgym_integrations.environments:chess"):
        with pytest.raises(InvalidInput, match="cannot be loaded") as refused:
            load_real(unknown)
        assert "moved" not in str(refused.value)


@pytest.mark.parametrize("name", ["alfworld", "bfcl", "mcp", "scienceworld", "webshop"])
def test_an_adapter_may_still_be_named_by_its_package(name: str) -> None:
    assert callable(load_real(f"dreamgym_integrations.environments.{name}:{name}").create)


def test_an_environment_with_two_tools_is_not_a_text_environment() -> None:
    two: list[JsonValue] = [{**TOOL, "name": name} for name in ("a", "b")]
    assert EnvironmentSpec(name="x", tools_list=({"tools": two},)).text_argument is None


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    task = Task(id="t", env="e", instruction="one\u2028two\u0085three")
    (tmp_path / "tasks.jsonl").write_text(task.model_dump_json() + "\r\n" + task.model_dump_json() + "\n")
    assert read_jsonl(tmp_path / "tasks.jsonl", Task) == [task, task]
