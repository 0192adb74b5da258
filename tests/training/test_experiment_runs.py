"""`dreamgym experiment` from its file to its table, in the lamp environment."""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lamp_home import Command, called, path_with
from pydantic import JsonValue

from dreamgym.runs.experiment.running import Result
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject

pytestmark = pytest.mark.slow

HEAD = """
title = "lamps"
env = "{env}"
seeds = [0]
recorded = [{{ behaviour = "guess", tasks = 8, episodes = 48, warm = true }}]
warm = {{ steps = 2, batch = 4 }}
test = {{ episodes = 8 }}
"""

FILE = (
    HEAD
    + """
[[arm]]
name = "guessing"
behaviour = "guess"
[[arm]]
name = "warm start"
[[arm]]
name = "dream"
train = {{ model = "nearest", steps = 2, groups = 2, group_size = 2, probe = 4 }}
[[arm]]
name = "dream then real"
train = {{ model = "nearest", steps = 2, groups = 2, group_size = 2, probe = 4, then = "real", real_steps = 24 }}
[[arm]]
name = "more of it"
after = "dream"
train = {{ against = "real", steps = 1, groups = 2, group_size = 2, probe = 4 }}
[[compare]]
arm = "dream then real"
against = "dream"
"""
)

FITTED = """
[[arm]]
name = "fitted dream"
fit = { steps = 30, k = 1 }
train = { steps = 1, groups = 2, group_size = 2, probe = 4 }
"""

LONG = (
    HEAD
    + """
[[arm]]
name = "dream"
train = {{ model = "nearest", steps = 12, groups = 2, group_size = 2, probe = 4 }}
"""
)

MORTAL = """
import os
import signal
from pathlib import Path

from lamp_home import StatedLamp
from told_lamp import ToldLamp

DEATH = Path(__file__).with_name("death")


class MortalLamp(StatedLamp):
    async def reset(self, task, *, seed=None):
        parent = os.getppid()
        is_workers = b"ray::" in Path(f"/proc/{parent}/cmdline").read_bytes()
        if task.id.startswith("dev") and is_workers and not DEATH.exists():
            DEATH.touch()
            os.kill(parent, signal.SIGKILL)
        return await super().reset(task, seed=seed)


class MortalHome(ToldLamp):
    spec = ToldLamp.spec.model_copy(update={"adapter": f"{__file__}:home"})
    create = MortalLamp


def home(options):
    return MortalHome()
"""
"""A lamp whose first probe in training kills the cluster's worker that runs this arm."""


@pytest.fixture
def experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Runs the file; the database is in a folder that its system user can reach if the tests run as root."""
    state = Path(tempfile.mkdtemp(prefix="dreamgym-tests-"))
    state.chmod(0o755)
    monkeypatch.setenv("DREAMGYM_HOME", str(state))
    monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
    file = tmp_path / "lamps.toml"
    file.write_text(FILE.format(env=f"{Path(__file__).with_name('told_lamp.py')}:told_lamp"))
    yield lambda *options: called(monkeypatch, capsys, "experiment", str(file), *options)
    shutil.rmtree(state)


def result(folder: Path) -> Result:
    return Result.model_validate_json((folder / "result.json").read_text())


def played(folder: Path) -> list[JsonValue]:
    """The updates that a training run played, from its record."""
    return [line["step"] for line in read_record(folder / "metrics.jsonl") if "rollout_s" in line]


def test_an_experiment_trains_and_measures_every_arm_and_writes_its_table(experiment: Command, tmp_path: Path) -> None:
    code, said = experiment("--out", str(tmp_path / "run"))
    assert code == 0, said
    table = (tmp_path / "run" / "lamps.md").read_text()
    for name in (
        "guessing",
        "warm start",
        "dream",
        "dream then real",
        "more of it",
        "dream then real − dream",
    ):
        assert f"| {name} |" in table
    assert f"Made by `dreamgym experiment {tmp_path / 'lamps.toml'}` at commit " in table
    assert (tmp_path / "run" / "lamps.png").stat().st_size

    dream, after = (tmp_path / "run" / "seed-0" / name for name in ("dream", "dream_then_real"))
    first: list[JsonObject] = read_record(dream / "metrics.jsonl")
    assert read_record(after / "metrics.jsonl") == first, "a phase that would give identical results is not run again"
    one, other = result(dream), result(after)
    assert one.dream_steps == other.dream_steps > 0
    assert one.real_steps == 0 < other.real_steps <= 24
    assert other.seconds > one.seconds
    assert len(one.outcomes) == 8

    more = result(tmp_path / "run" / "seed-0" / "more_of_it")
    assert more.dream_steps == one.dream_steps
    assert more.real_steps > 0
    assert more.seconds > one.seconds
    begun_with = json.loads((tmp_path / "run" / "seed-0" / "more_of_it" / "settings.json").read_text())["policy"]
    assert begun_with == str(dream / "policy")

    plain = json.loads((dream / "settings.json").read_text())
    assert (plain["stop"], plain["keep"]) == (False, "last"), "reality chooses no result"

    before = (after / "result.json").stat().st_mtime_ns
    attempts = (dream / "attempts.json").read_bytes()
    (dream / "result.json").unlink()
    assert experiment("--out", str(tmp_path / "run"))[0] == 0
    assert (after / "result.json").stat().st_mtime_ns == before, "a finished arm is kept"
    assert result(dream) == one, "a policy whose measuring was cut off is measured again"
    assert (dream / "attempts.json").read_bytes() == attempts, "and not trained again"

    file, copy = (folder / "lamps.toml" for folder in (tmp_path, tmp_path / "run"))
    known = file.read_text()
    file.write_text(known.replace('model = "nearest", steps = 2', 'model = "nearest", steps = 3'))
    code, said = experiment("--out", str(tmp_path / "run"))
    assert (code, copy.read_text()) == (2, known), "a refused file is not kept"
    assert "was made with other settings: train.steps was 2 and is 3 now" in said
    assert "no more arms start" not in said, "it is refused before an arm starts"

    for name in ("result.json", "trained.json"):
        (dream / name).unlink()
    file.write_text(known.replace('name = "dream"\n', 'name = "dream"\nrecordings = 8\n'))
    code, said = experiment("--out", str(tmp_path / "run"))
    assert code == 2, "a training that was cut off does not go on as another arm"
    assert "was made with other settings: recordings was None and is 8 now" in said

    file.write_text(known)
    (tmp_path / "run" / "environment.json").write_text('{"environment": "lamp", "description": "another"}')
    code, said = experiment("--out", str(tmp_path / "run"))
    assert code == 2
    assert "have changed since its results were made" in said


@pytest.mark.long
def test_the_seconds_of_a_training_are_right_if_the_clock_is_set_back_meanwhile(
    experiment: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = f"{Path(__file__).with_name('told_lamp.py')}:told_lamp"
    (tmp_path / "lamps.toml").write_text(LONG.format(env=told).replace("steps = 12", "steps = 1"))
    clock, hours = time.time, itertools.count()
    monkeypatch.setattr(time, "time", lambda: clock() - 3_600 * next(hours))
    assert experiment("--out", str(tmp_path / "run"))[0] == 0
    assert 0 < result(tmp_path / "run" / "seed-0" / "dream").seconds < 600


@pytest.mark.long
def test_an_experiment_that_sigterm_ends_saves_the_running_update_and_goes_on_from_it(
    experiment: Command, tmp_path: Path
) -> None:
    file, dream = tmp_path / "lamps.toml", tmp_path / "run" / "seed-0" / "dream"
    file.write_text(LONG.format(env=f"{Path(__file__).with_name('told_lamp.py')}:told_lamp"))
    command = [sys.executable, "-m", "dreamgym", "experiment", str(file), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "seed 0: dream: update 1 of 12" in line:
            break
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "the same command continues from there" in said
    assert "continue with --resume" in (dream / "train.log").read_text()
    assert 1 <= len(played(dream)) < 12
    assert experiment("--out", str(tmp_path / "run"))[0] == 0
    assert played(dream) == list(range(12))
    assert len(json.loads((dream / "attempts.json").read_text())) == 2


@pytest.mark.long
@pytest.mark.usefixtures("experiment")
def test_an_experiment_that_sigterm_ends_while_it_records_trains_nothing(tmp_path: Path) -> None:
    file = tmp_path / "lamps.toml"
    file.write_text(LONG.format(env=f"{Path(__file__).with_name('told_lamp.py')}:told_lamp"))
    command = [sys.executable, "-m", "dreamgym", "experiment", str(file), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "seed 0: recording" in line:
            break
    process.terminate()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130, said
    assert "no more arms start" in said
    assert not (tmp_path / "run" / "seed-0" / "dream" / "train.log").exists()


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra cluster")
def test_a_cluster_whose_worker_dies_in_an_arm_comes_to_the_same_results(
    experiment: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mortal_lamp.py").write_text(MORTAL)
    file = FILE.format(env=f"{tmp_path / 'mortal_lamp.py'}:home")
    (tmp_path / "lamps.toml").write_text(file.replace("steps = 2, batch = 4", "steps = 6, batch = 16"))
    assert experiment("--out", str(tmp_path / "alone"))[0] == 0
    short = Path(tempfile.mkdtemp(prefix="ray-"))  # Ray's sockets have no room for a long name
    monkeypatch.setenv("RAY_TMPDIR", str(short))
    command = [sys.executable, "-m", "dreamgym", "experiment", str(tmp_path / "lamps.toml"), "--cluster", "local"]
    done = subprocess.run([*command, "--out", str(tmp_path / "spread")], capture_output=True, text=True, check=False)
    shutil.rmtree(short, ignore_errors=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "death").exists(), "a worker was killed"
    arms = {file.parent.name for file in (tmp_path / "alone" / "seed-0").glob("*/result.json")}
    assert len(arms) == 5
    for arm in arms:
        one, other = (tmp_path / out / "seed-0" / arm for out in ("alone", "spread"))
        mine, theirs = (result(arm).model_copy(update={"seconds": 0.0, "commit": ""}) for arm in (one, other))
        assert mine == theirs
        policies = sorted(file.relative_to(one) for file in one.glob("**/policy/model.safetensors"))
        assert policies == sorted(file.relative_to(other) for file in other.glob("**/policy/model.safetensors"))
        assert all((other / file).read_bytes() == (one / file).read_bytes() for file in policies)
    seed = tmp_path / "spread" / "seed-0"
    warm, trained = (seed / name / "model.safetensors" for name in ("warm", "dream_then_real/real/policy"))
    assert warm.read_bytes() != trained.read_bytes(), "something was learned"
    assert not list(Path(os.environ["DREAMGYM_HOME"]).glob("*-spread-spread")), "the workers' database is gone"


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra cluster")
@pytest.mark.usefixtures("experiment")
def test_sigterm_ends_an_experiment_on_a_cluster_without_waiting_for_its_arms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, short = tmp_path / "lamps.toml", Path(tempfile.mkdtemp(prefix="ray-"))
    file.write_text(LONG.format(env=f"{Path(__file__).with_name('told_lamp.py')}:told_lamp"))
    monkeypatch.setenv("RAY_TMPDIR", str(short))
    command = [sys.executable, "-m", "dreamgym", "experiment", str(file), "--out", str(tmp_path / "run")]
    process = subprocess.Popen([*command, "--cluster", "local"], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for line in process.stderr:
        if "seed 0: dream" in line:
            break
    process.terminate()
    _, said = process.communicate(timeout=120)
    shutil.rmtree(short, ignore_errors=True)
    assert process.returncode == 130, said
    assert "running ones begin again; the same command continues from there" in said
    assert "SIGTERM received" not in said, "Ray does not abort it"
    assert not (tmp_path / "run" / "seed-0" / "dream" / "result.json").exists()


@pytest.mark.long
def test_an_arm_may_practise_in_the_dream_of_a_model_that_is_fitted_to_its_recordings(
    experiment: Command, tmp_path: Path
) -> None:
    file = tmp_path / "lamps.toml"
    file.write_text(file.read_text().partition("[[arm]]")[0] + FITTED)
    code, said = experiment("--out", str(tmp_path / "run"))
    assert code == 0, said
    assert "| fitted dream |" in (tmp_path / "run" / "lamps.md").read_text()
    fitted = json.loads((tmp_path / "run" / "seed-0" / "fitted_dream" / "settings.json").read_text())["model"]
    assert json.loads((Path(fitted) / "dreamgym.json").read_text())["demonstrations"] == 1


@pytest.mark.long
def test_an_experiment_may_begin_with_a_file_of_recordings_and_a_policy_of_ones_own(
    experiment: Command, tmp_path: Path
) -> None:
    assert experiment("--out", str(tmp_path / "run"))[0] == 0
    seed, file = tmp_path / "run" / "seed-0", tmp_path / "lamps.toml"
    head = FILE.format(env=f"{Path(__file__).with_name('told_lamp.py')}:told_lamp").partition("recorded = ")[0]
    file.write_text(f"""{head}
recorded = [{{ file = "{seed / "recorded.jsonl"}" }}]
test = {{ episodes = 8 }}
[[arm]]
name = "SFT"
train = {{ algorithm = "sft", policy = "{seed / "untrained"}", steps = 2, batch = 4 }}
[[arm]]
name = "dream"
after = "SFT"
train = {{ model = "nearest", steps = 1, groups = 2, group_size = 2, probe = 4 }}
""")
    code, said = experiment("--out", str(tmp_path / "own"))
    assert code == 0, said
    assert not (tmp_path / "own" / "seed-0" / "warm").exists()
    own, played = (folder / "recorded.jsonl" for folder in (tmp_path / "own" / "seed-0", seed))
    assert own.read_bytes() == played.read_bytes()
    assert result(tmp_path / "own" / "seed-0" / "dream").dream_steps > 0


@pytest.mark.long
def test_an_imitation_that_was_killed_before_it_was_noted_as_done_begins_anew(
    experiment: Command, tmp_path: Path
) -> None:
    file, arm = tmp_path / "lamps.toml", tmp_path / "run" / "seed-0" / "sft"
    sft = '[[arm]]\nname = "SFT"\ntrain = { algorithm = "sft", steps = 1, batch = 4 }\n'
    file.write_text(file.read_text().partition("[[arm]]")[0] + sft)
    assert experiment("--out", str(tmp_path / "run"))[0] == 0
    for left in ("result.json", "trained.json"):
        (arm / left).unlink()
    (arm / "policy" / "old").touch()
    code, said = experiment("--out", str(tmp_path / "run"))
    assert code == 0, said
    assert not (arm / "policy" / "old").exists()
