"""The token limits of a policy, and the memory that its training needs."""

from pathlib import Path

import pytest
import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy import model
from dreamgym_integrations.trainers.policy.memory import Memory, of_imitation, of_practice
from dreamgym_integrations.trainers.policy.model import load_chat_policy, load_codec, load_policy
from dreamgym_integrations.trainers.policy.sft import imitate
from lamp_runs import trained, weights
from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel, MambaConfig
from trl.trainer import utils as trl_utils

from dreamgym import EnvironmentSpec
from dreamgym.training.practice import Settings
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject


def test_a_policy_keeps_the_limits_that_it_was_trained_with(lamp_policy: Path, tmp_path: Path) -> None:
    row = {"input_ids": [3, 4, 5], "labels": [-100, 4, 5]}
    imitate(
        [row],
        lamp_policy,
        tmp_path / "taught",
        steps=1,
        batch=1,
        learning_rate=1e-3,
        seed=0,
        turn_tokens=3,
        episode_tokens=40,
    )
    policy, codec = load_chat_policy(tmp_path / "taught")
    assert (policy.max_new_tokens, codec.max_tokens) == (3, 40)
    ((generation,), again) = policy.generate([[3, 4]], seeds_B=[0]), load_codec(tmp_path / "taught")
    assert len(generation.ids) <= 3
    assert again.max_tokens == 40


def test_only_learned_tokens_are_compared_with_the_vocabulary(
    lamp_policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []

    class Counting:
        @staticmethod
        def apply(hidden_NH: torch.Tensor, *others: object) -> object:
            scored.append(len(hidden_NH))
            return counted(hidden_NH, *others)

    counted = trl_utils._ChunkedLogProbFunction.apply
    monkeypatch.setattr(trl_utils, "_ChunkedLogProbFunction", Counting)
    row = {"input_ids": [3, 4, 5] * 10, "labels": [-100] * 28 + [4, 5]}
    imitate([row], lamp_policy, tmp_path / "taught", steps=1, batch=1, learning_rate=1e-3, seed=0)
    assert scored == [2]


def test_an_episode_is_cut_at_the_limit_of_the_settings(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    lengths = []
    for limit in (4096, 24):
        settings = Settings(steps=1, groups=8, group_size=2, episode_tokens=limit)
        trained(lamp_spec, lamp_policy, tmp_path / str(limit), settings, portal)
        (played,) = (line for line in read_record(tmp_path / str(limit) / "m.jsonl") if "mean_steps" in line)
        lengths.append(float(str(played["mean_steps"])))
    assert lengths[1] < lengths[0]


def test_an_episode_of_a_model_with_a_table_of_positions_ends_within_them(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(lamp_policy)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=48, n_embd=16, n_layer=1, n_head=2, **ends)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    spec = lamp_spec.model_copy(update={"max_steps": 40})
    settings = Settings(steps=1, groups=2, group_size=2, turn_tokens=4)
    trained(spec, tmp_path / "base", tmp_path / "run", settings, portal)
    (played,) = (line for line in read_record(tmp_path / "run" / "m.jsonl") if "mean_steps" in line)
    assert 2 <= float(str(played["mean_steps"])) < 10


def test_a_model_with_a_table_of_positions_learns_from_the_probabilities_with_which_it_played(
    lamp_spec: EnvironmentSpec,
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
) -> None:
    tokenizer = AutoTokenizer.from_pretrained(lamp_policy)
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    sizes = {"n_positions": 128, "n_embd": 16, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), **sizes, **ends)).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    tasks = [
        task.model_copy(update={"instruction": "say the colour " * (1 + number % 4)})  # padded to one length
        for number, task in enumerate(lamp_spec.tasks)
    ]
    spec = lamp_spec.model_copy(update={"tasks": tuple(tasks)})
    figures: list[JsonObject] = []
    settings = Settings(algorithm="ppo", steps=1, groups=4, group_size=4, turn_tokens=4, staleness=1)
    trained(spec, tmp_path / "base", tmp_path / "run", settings, portal, on_learned=figures.append)
    (importance,) = (float(str(line["importance"])) for line in figures if "importance" in line)
    assert importance == pytest.approx(1, abs=1e-4), "neither padding nor dropout changes the probabilities"


def test_learning_in_16_bits_with_recomputed_activations_moves_the_policy_as_in_32(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    whole = Settings(steps=1, groups=4, group_size=4, learning_rate=1e-3)
    less = whole.model_copy(update={"bf16": True, "gradient_checkpointing": True})
    for name, settings in (("whole", whole), ("less", less)):
        trained(lamp_spec, lamp_policy, tmp_path / name, settings, portal)
    before = weights(lamp_policy)
    one, other = ({k: v - before[k] for k, v in weights(tmp_path / n / "policy").items()} for n in ("whole", "less"))
    both = [torch.cat([moved[name].flatten() for name in before]) for moved in (one, other)]
    assert float(both[0].abs().max()) > 0
    assert torch.nn.functional.cosine_similarity(*both, dim=0) > 0.9
    assert {weight.dtype for weight in weights(tmp_path / "less" / "policy").values()} == {torch.float32}


@pytest.mark.parametrize(("small", "threads"), [(10**9, 1), (1, 2)], ids=["small", "large"])
def test_a_small_policy_uses_one_thread_and_a_larger_one_uses_all_cores_and_returns_freed_memory(
    lamp_policy: Path, monkeypatch: pytest.MonkeyPatch, small: int, threads: int
) -> None:
    monkeypatch.setattr(model, "SMALL", small)
    monkeypatch.setattr(model, "THREADS", 2)
    returned: list[int] = []
    monkeypatch.setattr(model, "_trim", returned.append)
    before = torch.get_num_threads()
    try:
        policy, _ = load_policy(lamp_policy)
        torch.set_num_threads(3)  # as another policy in this process may
        policy.generate([[3, 4]], seeds_B=[0])
        assert torch.get_num_threads() == threads
        assert len(returned) == threads - 1
    finally:
        torch.set_num_threads(before)


def memory(base: Path, **settings: object) -> Memory:
    found = of_practice(base, Settings.model_validate({"episode_tokens": 500, **settings}))
    assert found is not None
    return found


def test_the_memory_of_practice_follows_from_the_settings(lamp_policy: Path) -> None:
    policy, _ = load_policy(lamp_policy)
    usual = memory(lamp_policy)
    assert usual.weights == 4 * policy.model.num_parameters()
    assert usual.optimiser == 3 * usual.weights
    assert memory(lamp_policy, groups=16).learning == 2 * usual.learning
    assert memory(lamp_policy, accumulate=4).learning == usual.learning // 4
    assert memory(lamp_policy, accumulate=4).playing == usual.playing
    assert memory(lamp_policy, gradient_checkpointing=True).learning < usual.learning
    assert memory(lamp_policy, bf16=True).learning < usual.learning
    assert memory(lamp_policy, lora=1).optimiser < usual.optimiser
    assert "GiB" in str(usual)


def test_imitation_needs_memory_for_its_largest_pass_and_none_for_sampling(lamp_policy: Path) -> None:
    of_tokens = {n: of_imitation(lamp_policy, Settings(), tokens=n) for n in (1_000, 2_000)}
    assert of_tokens[1_000] is not None
    assert of_tokens[2_000] is not None
    assert of_tokens[2_000].learning == 2 * of_tokens[1_000].learning
    assert of_tokens[1_000].playing == 0


def test_the_memory_of_a_model_that_does_not_tell_its_sizes_as_others_do_stops_no_training(tmp_path: Path) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1}
    for name, config in (("heads", GPT2Config(n_head=2, **small)), ("no_attention", MambaConfig(**small))):
        config.save_pretrained(tmp_path / name)
    assert memory(tmp_path / "heads").learning > 0
    assert of_practice(tmp_path / "no_attention", Settings()) is None
    assert of_imitation(tmp_path / "no_attention", Settings(), tokens=9) is None


@pytest.mark.parametrize("name", ["turn_tokens", "episode_tokens"])
def test_a_limit_of_zero_tokens_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        Settings.model_validate({name: 0})
