"""A user's own environment, named by its file: its simulation uses its tasks and behaviours, too."""

import json
import re
from pathlib import Path

import pytest
from command_line import Command

from dreamgym.environment import load_spec

DOORS = f"{Path(__file__).parents[2] / 'benchmarks' / 'newcomer' / 'doors.py'}:doors"


def test_its_loaded_spec_names_the_file_that_it_was_loaded_from() -> None:
    assert load_spec(DOORS).adapter == DOORS


def test_its_dream_has_its_tasks_its_behaviours_and_the_recorded_start(dreamgym: Command, dsn: str) -> None:
    code, _, err = dreamgym("collect", DOORS, "--agent", "random", "--episodes", "6")
    assert code == 0, err
    dream = ("--against", "dream", "--model", "nearest")
    code, out, err = dreamgym("play", DOORS, "--agent", "random", "--task", "train-blue", *dream)
    assert code == 0, err
    assert "start  the sign shows blue\n" in out


@pytest.mark.usefixtures("dsn")
def test_the_start_of_a_real_episode_is_shown_if_only_the_environment_knows_it(dreamgym: Command) -> None:
    code, out, _ = dreamgym("play", DOORS, "--agent", "random", "--against", "real", "--task", "train-green")
    assert code == 0
    assert "start  the sign shows green\n" in out


@pytest.mark.usefixtures("dsn")
def test_a_behaviour_that_goes_on_after_the_end_has_played_its_episode(dreamgym: Command, tmp_path: Path) -> None:
    eager = Path(DOORS.removesuffix(":doors")).read_text().replace("while not result.done:", "while True:")
    (tmp_path / "eager.py").write_text(eager)
    code, out, err = dreamgym("play", f"{tmp_path / 'eager.py'}:doors", "--agent", "random", "--against", "real")
    assert code == 0, err
    assert re.search(r"end    (terminated, reward 1|max_steps, reward 0)\n", out)


def test_a_folder_of_a_recorded_server_is_shown_without_starting_the_server(dreamgym: Command, tmp_path: Path) -> None:
    (tmp_path / "env.toml").write_text('name = "stock"\n[real]\nadapter = "mcp"\ncommand = ["no-such-program"]\n')
    (tmp_path / "tools.json").write_text(json.dumps({"tools": [{"name": "count", "inputSchema": {}}]}))
    (tmp_path / "tasks.jsonl").write_text('{"id": "t", "env": "stock", "instruction": "Count."}\n')
    code, out, _ = dreamgym("env", "show", str(tmp_path))
    assert code == 0
    assert out.startswith("stock: ")
    assert "tasks       without a split 1" in out
    assert "tool count()" in out
