"""The numbered examples run unchanged, as a newcomer runs them."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NUMBERED = sorted((ROOT / "examples").glob("0*.py"))


def ran(name: str, *arguments: str, place: Path, dsn: str = "") -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    environ = {**os.environ, "DREAMGYM_DSN": dsn, "DREAMGYM_ENCODER": "trigram"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=place, env=environ, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("file", NUMBERED, ids=lambda file: file.name)
def test_an_example_is_short(file: Path) -> None:
    lines = len(file.read_text().splitlines())
    assert lines < (200 if "grpo" in file.name else 80)


@pytest.mark.long  # the quickstart's blocks play a dream, and tests of agents play an unchanged agent
@pytest.mark.slow
def test_a_dream_is_played_by_hand_and_by_an_unchanged_agent(dsn: str, tmp_path: Path) -> None:
    assert ran("01_play_a_dream.py", place=tmp_path, dsn=dsn).endswith("you take the coin.\nreward 1\n")
    assert "take coin\nyou take the coin.   [recorded]" in ran("03_an_agent_in_a_dream.py", place=tmp_path, dsn=dsn)


def test_an_environment_of_ones_own_keeps_the_contract(tmp_path: Path) -> None:
    assert ran("02_an_environment.py", place=tmp_path) == "passes all checks of an environment\n"


def test_how_far_to_trust_a_dream_is_measured_on_held_out_trajectories(tmp_path: Path) -> None:
    text = ran("04_how_far_to_trust.py", place=tmp_path)
    assert text.count("12 trajectories held out, 28 known") == 2


@pytest.mark.slow
@pytest.mark.long
def test_a_recorded_server_is_simulated_by_two_commands(dsn: str, tmp_path: Path) -> None:
    text = ran("05_record_and_simulate.py", str(tmp_path / "notes"), place=tmp_path, dsn=dsn)
    real, simulated = text.split("its simulation\n")
    assert "read_note {'name': 'shopping'}: milk, bread" in real
    assert simulated == real.removeprefix("the real server, recorded\n")


@pytest.mark.slow
@pytest.mark.long
def test_grpo_in_one_file_learns_from_rollouts_in_the_dream(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = str(ROOT / "examples" / "06_grpo_in_one_file.py")
    monkeypatch.setattr(sys, "argv", [program, "2"])
    runpy.run_path(program, run_name="__main__")  # in this process, which has imported torch already
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:2]] == ["update   1", "update   2"]
    assert "loss +0.000" not in lines[0], "some rollouts were better than their group"


@pytest.mark.slow
@pytest.mark.long
def test_the_policy_behind_an_unchanged_agent_is_trained_without_a_download(dsn: str, tmp_path: Path) -> None:
    assert ran("07_train_your_agent.py", "run", place=tmp_path, dsn=dsn).strip().endswith("run/policy")
    updates = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in updates if "loss" in line] == [1, 2]
    assert all(line["failed"] == 0 and line["sampled_tokens"] > 0 for line in updates if "where" in line)
