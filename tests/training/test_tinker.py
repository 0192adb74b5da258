"""Training at a server of the Tinker API: the protocol against a double, and SkyRL's server if it is there."""

import gc
import json
import os
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import mean

import pytest
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy.train import train_policy
from lamp_runs import broken_after, lamp, trained
from pydantic import ValidationError
from tinker_double import TinkerDouble, tinker_double

from dreamgym import EnvironmentSpec
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.training.advantages import group_advantages
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.record import read_record
from dreamgym.training.rollout import TokenPlayer
from dreamgym.types import JsonObject

pytestmark = [
    pytest.mark.skipif(find_spec("tinker") is None, reason="needs the extra tinker"),
    # the client leaves its connections open until the process ends
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
SETTINGS = Settings(steps=3, groups=2, group_size=4, probe_every=50, learning_rate=1e-2)


@pytest.fixture(autouse=True)
def _connections() -> Iterator[None]:
    yield
    gc.collect()  # here, where the warnings about them are ignored


@pytest.fixture
def double(lamp_policy: Path) -> Iterator[TinkerDouble]:
    with tinker_double(lamp_policy) as double:
        yield double


def at(url: str, **changes: object) -> Settings:
    return SETTINGS.model_copy(update={"tinker": url, **changes})


def successes(run: Path) -> list[float]:
    return [float(str(line["inside_success"])) for line in read_record(run / "m.jsonl") if "rollout_s" in line]


@pytest.mark.long
def test_updates_at_the_server_raise_success_and_sampler_and_trainer_agree(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    figures: list[JsonObject] = []
    settings = at(double.url, steps=16, groups=4, group_size=8, learning_rate=2e-3)
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal, on_learned=figures.append)
    found = successes(tmp_path)
    assert mean(found[-3:]) > mean(found[:3]) + 0.2
    assert all(float(str(line["apart"])) < 1e-5 for line in figures if "apart" in line)
    assert double.steps == sum("apart" in line for line in figures) > 2, "nothing is sent if nothing is learned"
    first = double.sampled[: 4 * 8]
    assert len({asked["sampling_params"]["seed"] for asked in first}) == 4 * 8, "each prompt has its own seed"
    assert json.loads((tmp_path / "policy" / "tinker.json").read_text())["state"] in double.saved


def test_an_update_at_the_server_is_a_mean_over_all_its_sampled_tokens_as_in_this_process(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    trained(lamp_spec, lamp_policy, tmp_path, at(double.url, steps=6), portal)
    updates = [line for line in read_record(tmp_path / "m.jsonl") if "rollout_s" in line]
    learned = [line for line in updates if line["dead_groups"] != line["groups"]]
    assert any(line["dead_groups"] for line in learned), "a group that teaches nothing has tokens too"
    possible = {one for solved in (1, 2, 3) for one in group_advantages([1.0] * solved + [0.0] * (4 - solved))}
    for line, advantages in zip(learned, double.advantages, strict=True):
        for one in advantages:
            assert min(abs(one * int(str(line["sampled_tokens"])) - other) for other in possible) < 1e-4


def test_a_run_that_was_cut_off_goes_on_with_the_weights_and_the_optimiser_of_its_checkpoint(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    figures: list[JsonObject] = []
    trained(lamp_spec, lamp_policy, tmp_path / "whole", at(double.url), portal, on_learned=figures.append)
    apart = [float(str(line["apart"])) for line in figures if "apart" in line]
    assert apart, "sampler and trainer are compared"
    assert max(apart) < 1e-5
    ended = double.policy.model.state_dict()
    with tinker_double(lamp_policy) as other:
        settings, cut = at(other.url, probe_every=2), tmp_path / "cut"
        with pytest.raises(EnvironmentUnavailable, match="gone"):
            trained(lamp_spec, lamp_policy, cut, settings, portal, probe=broken_after(2))
        other.policy.model.load_state_dict(double.first.state_dict())  # whatever came after the checkpoint is lost
        trained(lamp_spec, lamp_policy, cut, settings, portal, resume=True)
        weights = other.policy.model.state_dict()
    assert successes(cut) == successes(tmp_path / "whole")
    assert all(bool((weights[name] == ended[name]).all()) for name in ended)


def test_a_policy_that_was_trained_at_the_server_can_be_trained_further(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    trained(lamp_spec, lamp_policy, tmp_path / "one", at(double.url), portal)
    first = json.loads((tmp_path / "one" / "policy" / "tinker.json").read_text())
    trained(lamp_spec, tmp_path / "one" / "policy", tmp_path / "two", at(double.url), portal)
    assert double.loaded == [first["state"]]
    second = json.loads((tmp_path / "two" / "policy" / "tinker.json").read_text())
    assert second["base"] == first["base"] == str(lamp_policy)


def test_an_episode_is_cut_at_the_limit_of_the_checkpoint(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    short = tmp_path / "short"
    shutil.copytree(lamp_policy, short)
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps({**config, "max_episode_tokens": 10}))
    trained(lamp_spec, short, tmp_path / "run", at(double.url, steps=1), portal)
    (played,) = (line for line in read_record(tmp_path / "run" / "m.jsonl") if "rollout_s" in line)
    assert played["mean_steps"] == 1.0


def test_real_steps_that_are_too_few_for_an_update_are_reported(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings, curriculum = at(double.url), Curriculum(lamp_spec.tasks, share=0, seed=0)
    played = Practice(lamp_spec, curriculum, None, settings, tmp_path / "m.jsonl", where="real", real_steps=5)
    player = partial(TokenPlayer, spec=lamp_spec, make_environment=lamp)
    with pytest.raises(InvalidInput, match="5 real steps are not enough for another update"):
        train_policy(played, lamp_policy, tmp_path, settings, portal=portal, player=player)
    assert not (tmp_path / "policy").exists()


def test_a_server_whose_sampler_keeps_its_old_weights_is_found_out(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    double.is_deaf = True
    with pytest.raises(InvalidInput, match=r"differ by \d\S+ in the log-probability .* expected at most 0\.15"):
        trained(lamp_spec, lamp_policy, tmp_path, at(double.url, steps=9, learning_rate=0.1), portal)


def test_a_missing_server_is_reported_in_one_sentence(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"no Tinker server answers at http://127\.0\.0\.1:1: "):
        trained(lamp_spec, lamp_policy, tmp_path, at("http://127.0.0.1:1"), portal)


def test_settings_that_the_server_would_not_keep_are_refused(
    double: TinkerDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    with pytest.raises(InvalidInput, match="leave out algorithm, beta"):
        trained(lamp_spec, lamp_policy, tmp_path, at(double.url, algorithm="ppo", beta=0.1), portal)
    with pytest.raises(ValidationError, match="expected the address of a Tinker server"):
        Settings.model_validate({"tinker": "lamp"})


SKYRL = """
import sys
import uvicorn
from skyrl.tinker import api
from skyrl.tinker.config import EngineConfig, config_to_argv

folder, port, scratch = sys.argv[1:]
# its own way to start the engine is uv, which is not needed in an environment that has everything
api._build_uv_run_cmd_engine = lambda parent, config: [
    sys.executable, "-m", "skyrl.tinker.engine", *config_to_argv(config)
]
api.app.state.engine_config = EngineConfig(
    base_model=folder, backend="jax", checkpoints_base=scratch, database_url=f"sqlite:///{scratch}/tinker.db"
)
uvicorn.run(api.app, host="127.0.0.1", port=int(port))
"""


@contextmanager
def skyrl_server(python: str, folder: Path, scratch: Path) -> Iterator[str]:
    """SkyRL's server with its JAX engine on CPUs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (scratch / "serve.py").write_text(SKYRL)
    known = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    environ = {**known, "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}
    log = scratch / "skyrl.log"
    with log.open("w") as said:
        command = [python, str(scratch / "serve.py"), str(folder), str(port), str(scratch)]
        server = subprocess.Popen(command, env=environ, cwd=scratch, stdout=said, stderr=said)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/healthz", timeout=5).close()
                    break
                except OSError:
                    assert server.poll() is None, log.read_text()[-3000:]
                    with pytest.raises(subprocess.TimeoutExpired):
                        server.wait(timeout=1)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(timeout=60)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_skyrls_own_server_samples_and_trains_and_goes_on_from_a_checkpoint(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    python = os.environ.get("DREAMGYM_SKYRL_PYTHON")
    if python is None:
        pytest.skip("DREAMGYM_SKYRL_PYTHON does not name the Python of a virtual environment with skyrl[tinker,jax]")
    figures: list[JsonObject] = []
    with skyrl_server(python, lamp_policy, tmp_path) as url:
        run = tmp_path / "run"
        trained(lamp_spec, lamp_policy, run, at(url, steps=2), portal, on_learned=figures.append)
        trained(lamp_spec, run / "policy", tmp_path / "on", at(url, steps=1), portal, on_learned=figures.append)
    assert [line["step"] for line in figures] == [1, 2, 1]
    apart = [float(str(line["apart"])) for line in figures if "apart" in line]
    assert apart, "something was learned"
    assert max(apart) < 1e-4
