"""Training whose episodes a vLLM server samples: the protocol against a double, and vLLM itself if it is there."""

import os
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from lamp_runs import trained, weights
from pydantic import ValidationError
from vllm_double import VllmDouble, vllm_double

from dreamgym import EnvironmentSpec, Trajectory
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.training.practice import PPOSettings, Settings, read_record
from dreamgym.types import JsonObject

SETTINGS = Settings(steps=3, groups=2, group_size=4, probe_every=50)


@pytest.fixture
def double(lamp_policy: Path) -> Iterator[VllmDouble]:
    with vllm_double(lamp_policy) as double:
        yield double


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"algorithm": "ppo", "ppo": PPOSettings(epochs=2, mini_batches=2)},
        {"lora": 4},
        {"staleness": 1},
    ],
    ids=["grpo", "ppo", "lora", "ahead"],
)
def test_a_run_that_is_sampled_by_a_server_learns_what_one_sampled_here_learns(
    changes: dict[str, object],
    double: VllmDouble,
    lamp_spec: EnvironmentSpec,
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
) -> None:
    settings = SETTINGS.model_copy(update=changes)
    figures: list[JsonObject] = []
    trained(lamp_spec, lamp_policy, tmp_path / "here", settings, portal)
    there = settings.model_copy(update={"vllm": double.url})
    trained(lamp_spec, lamp_policy, tmp_path / "there", there, portal, on_learned=figures.append)
    here, sampled = (
        [line["inside_success"] for line in read_record(tmp_path / name / "m.jsonl") if "rollout_s" in line]
        for name in ("here", "there")
    )
    assert sampled == here
    one, other = weights(tmp_path / "here" / "policy"), weights(tmp_path / "there" / "policy")
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-3
    assert double.loads == (2 if settings.staleness else 3), "the weights of each update are loaded once"
    assert all(float(str(line["apart"])) < 1e-4 for line in figures)
    assert len(double.asked) == len({request["seed"] for request in double.asked}), "each prompt has its own seed"


def test_a_server_in_another_place_goes_on_with_a_run(
    double: VllmDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"vllm": double.url})
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    with vllm_double(lamp_policy) as other:
        trained(lamp_spec, lamp_policy, tmp_path, settings.model_copy(update={"vllm": other.url}), portal, resume=True)
    with pytest.raises(InvalidInput, match="vllm was True and is None now"):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS, portal, resume=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"has_dev_mode": False}, "has no /collective_rpc, .*: start it with VLLM_SERVER_DEV_MODE=1"),
        ({"has_token_ids": False}, "answered without token_ids and log-probabilities"),
        ({"refuses": "maximum context length is 64"}, "refused /v1/completions: .*maximum context length is 64"),
    ],
)
def test_a_server_that_cannot_sample_for_training_is_refused_with_what_to_do(
    changes: dict[str, object],
    why: str,
    double: VllmDouble,
    lamp_spec: EnvironmentSpec,
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
) -> None:
    for name, value in changes.items():
        setattr(double, name, value)
    with pytest.raises(InvalidInput, match=why):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS.model_copy(update={"vllm": double.url}), portal)


def test_a_server_that_keeps_its_old_weights_is_found_out(
    double: VllmDouble, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    double.policy.model.lm_head.weight.data.mul_(1.5)
    double.is_deaf = True
    with pytest.raises(
        InvalidInput, match=r"differ by 0\.\d+ in the log-probability of a token, and 0\.05 is the most"
    ):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS.model_copy(update={"vllm": double.url}), portal)


def test_a_server_that_is_not_there_is_named_with_the_command_that_starts_it(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"127\.0\.0\.1:1 does not answer .*vllm serve FOLDER"):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS.model_copy(update={"vllm": "http://127.0.0.1:1"}), portal)


@pytest.mark.parametrize("old", ["server", "colocate"])
def test_the_engines_of_trl_are_refused_with_what_to_give_instead(old: str) -> None:
    with pytest.raises(ValidationError, match=r"expected the address of a vLLM server.*are gone"):
        Settings.model_validate({"vllm": old})


@contextmanager
def vllm_server(python: str, folder: Path, scratch: Path) -> Iterator[str]:
    """A vLLM server on CPUs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--logprobs-mode", "processed_logprobs"]
    command += ["--no-enable-chunked-prefill"]
    known = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in os.environ}
    settings = {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_CACHE_ROOT": str(scratch / "cache"),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    log = scratch / "vllm.log"
    with log.open("w") as said:
        server = subprocess.Popen(command, env=known | settings, cwd=scratch, stdout=said, stderr=said)
        try:
            while True:
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
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
@pytest.mark.timeout(600)
def test_vllm_itself_samples_with_the_weights_of_each_update(
    lamp_spec: EnvironmentSpec, lamp_recordings: list[Trajectory], tmp_path: Path, portal: BlockingPortal
) -> None:
    from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

    python = os.environ.get("DREAMGYM_VLLM_PYTHON")
    if python is None:
        pytest.skip("DREAMGYM_VLLM_PYTHON does not name the Python of a virtual environment with vLLM")
    create_tiny_policy(lamp_recordings, tmp_path / "base", seed=0, heads=2)
    figures: list[JsonObject] = []
    with vllm_server(python, tmp_path / "base", tmp_path) as url:
        settings = SETTINGS.model_copy(update={"vllm": url, "learning_rate": 1e-2})
        trained(lamp_spec, tmp_path / "base", tmp_path / "run", settings, portal, on_learned=figures.append)
    assert len(figures) == 3
    assert all(float(str(line["apart"])) < 1e-4 for line in figures)
    assert all(abs(float(str(line["importance"])) - 1) < 1e-3 for line in figures)
