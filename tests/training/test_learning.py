"""Behaviour that GRPO and PPO share: adapters, the pull of the start policy, and trust in the dream."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from lamp_runs import same, trained, weights
from safetensors.torch import load_file

from dreamgym import EnvironmentSpec, Task
from dreamgym.errors import TrainingStopped
from dreamgym.training.practice import Settings
from dreamgym.training.rollout import Player, Rollout
from dreamgym.types import JsonObject

SETTINGS = Settings(steps=3, groups=4, group_size=4)


class Changed:
    """A player whose episodes are changed after they were played."""

    def __init__(self, player: Player, change: Callable[[Rollout], None]) -> None:
        self._player, self._change = player, change

    async def play(
        self, tasks: Sequence[Task], *, groups: Sequence[str], seeds: Sequence[int], version: int, sampling_seed: int
    ) -> list[Rollout]:
        rollouts = await self._player.play(
            tasks, groups=groups, seeds=seeds, version=version, sampling_seed=sampling_seed
        )
        for rollout in rollouts:
            self._change(rollout)
        return rollouts


def sure(confidence: float | None) -> Callable[[Player], Player]:
    """A wrapper that sets the confidence of every episode."""

    def change(rollout: Rollout) -> None:
        rollout.confidence = confidence

    return lambda player: Changed(player, change)


def test_an_adapter_is_merged_into_the_policy_that_is_saved(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"lora": 4, "learning_rate": 1e-2})
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    before, after = weights(lamp_policy), weights(tmp_path / "policy")
    assert before.keys() == after.keys()
    assert not same(before, after)
    assert same({"embedding": before["model.embed_tokens.weight"]}, {"embedding": after["model.embed_tokens.weight"]})
    adapter = load_file(tmp_path / "checkpoints" / "checkpoint-3" / "adapter_model.safetensors")
    assert all("lora_" in name for name in adapter), "a checkpoint holds the adapter alone"


@pytest.mark.parametrize(
    ("algorithm", "lora"), [("grpo", 0), ("grpo", 4), pytest.param("ppo", 4, marks=pytest.mark.long)]
)
def test_beta_keeps_the_policy_near_the_one_it_started_from(
    algorithm: str, lora: int, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    def divergence(beta: float) -> list[float]:
        figures: list[JsonObject] = []
        settings = SETTINGS.model_copy(
            update={"steps": 6, "beta": beta, "lora": lora, "learning_rate": 5e-3, "algorithm": algorithm}
        )
        trained(lamp_spec, lamp_policy, tmp_path / str(beta), settings, portal, on_learned=figures.append)
        return [float(str(line["kl"])) for line in figures if "kl" in line]

    free, held = divergence(1e-6), divergence(3.0)
    if algorithm == "grpo":  # one step per update: the first compares the start policy with itself
        assert free[0] == held[0] == pytest.approx(0, abs=1e-6)
    assert max(held) < max(free)


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_episodes_that_the_dream_was_unsure_of_teach_nothing(
    algorithm: str, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"algorithm": algorithm, "least_confidence": 0.5})
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal, within=sure(0.4))
    assert same(weights(lamp_policy), weights(tmp_path / "policy"))


def test_a_run_that_trusts_no_success_says_so_when_it_stops(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"least_confidence": 0.5, "dead_updates": 1})
    with pytest.raises(TrainingStopped, match=r"with a confidence of at least 0\.5, .*: lower least_confidence"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, within=sure(0.4))


def test_confidence_weighs_an_episode_only_if_the_settings_say_so(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    def after(name: str, confidence: float | None, **changes: object) -> Path:
        settings = SETTINGS.model_copy(update=changes)
        folder = tmp_path / name
        trained(lamp_spec, lamp_policy, folder, settings, portal, within=sure(confidence))
        return folder / "policy"

    off = weights(after("off", 0.0))
    assert same(off, weights(after("uncalibrated", None, weigh_confidence=True)))
    assert not same(off, weights(lamp_policy))
    assert same(weights(after("on", 0.0, weigh_confidence=True)), weights(lamp_policy))


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_accumulating_forward_passes_changes_memory_and_not_the_update(
    algorithm: str, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"steps": 1, "algorithm": algorithm})
    settings = settings.model_copy(update={"ppo": settings.ppo.model_copy(update={"mini_batches": 1})})
    trained(lamp_spec, lamp_policy, tmp_path / "one", settings, portal)
    trained(lamp_spec, lamp_policy, tmp_path / "four", settings.model_copy(update={"accumulate": 4}), portal)
    one, four = weights(tmp_path / "one" / "policy"), weights(tmp_path / "four" / "policy")
    start = weights(lamp_policy)
    moved = sum(float((one[name] - start[name]).abs().sum()) for name in one)
    apart = sum(float((one[name] - four[name]).abs().sum()) for name in one)
    assert moved > 0
    assert apart < 0.01 * moved
