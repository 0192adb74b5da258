"""PPO learns from the same rollouts as GRPO, estimates values as defined, and resumes as if never stopped."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy.model import load_policy
from dreamgym_integrations.trainers.policy.ppo import (
    VALUE_COEFFICIENT,
    ValueHead,
    Values,
    sampled_places,
    token_rewards,
    value_errors,
)
from hypothesis import given
from hypothesis import strategies as st
from lamp_runs import broken_after, same, trained, weights
from safetensors.torch import load_file

from dreamgym import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.training.practice import PPOSettings, Settings
from dreamgym.training.record import read_record
from dreamgym.training.rollout import Rollout, Segment
from dreamgym.types import JsonObject, Task

PPO = Settings(algorithm="ppo", groups=4, group_size=4, save_every=2, probe_every=1)


def segment(mask: list[int], rewards: list[float], turns: list[int] | None = None) -> Segment:
    return Segment([0], [1] * len(mask), mask, [0.0] * len(mask), rewards, turns or [0] * len(mask))


def test_ppo_raises_success_and_the_policy_it_saves_is_an_ordinary_one(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    figures: list[JsonObject] = []
    settings = PPO.model_copy(update={"steps": 8, "groups": 8, "group_size": 8, "save_every": 50, "probe_every": 50})
    trained(lamp_spec, lamp_policy, tmp_path / "run", settings, portal, on_learned=figures.append)
    success = [float(str(line["inside_success"])) for line in read_record(tmp_path / "run" / "m.jsonl")]
    assert len(success) == 8
    assert success[-1] > success[0] + 0.1
    losses = [float(str(line["value_loss"])) for line in figures if "value_loss" in line]
    assert losses[-1] < losses[0]
    assert set(weights(tmp_path / "run" / "policy")) == set(weights(lamp_policy)), "no value head is left in it"


@pytest.mark.parametrize("lora", [pytest.param(0, marks=pytest.mark.long), 4])
def test_an_interrupted_ppo_run_ends_with_the_weights_of_an_uninterrupted_one(
    lora: int, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = PPO.model_copy(update={"steps": 4, "lora": lora})
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    trained(lamp_spec, lamp_policy, straight, settings, portal)
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, broken, settings, portal, probe=broken_after(3))
    trained(lamp_spec, lamp_policy, broken, settings, portal, resume=True)
    assert same(weights(straight / "policy"), weights(broken / "policy"))
    assert not same(weights(straight / "policy"), weights(lamp_policy))


class Alike:
    """Every episode is one token long and earns 0.7."""

    async def play(self, tasks: Sequence[Task], **_: object) -> list[Rollout]:
        return [
            Rollout(task, [Segment([5], [6], [1], [-1.0], [0.7], [0])], ["say"], success=True, total_reward=0.7)
            for task in tasks
        ]


def test_episodes_that_are_all_alike_have_no_advantage(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    figures: list[JsonObject] = []
    settings = PPO.model_copy(update={"steps": 1, "group_size": 12, "ppo": PPOSettings(epochs=1, mini_batches=1)})
    trained(
        lamp_spec,
        lamp_policy,
        tmp_path / "run",
        settings,
        portal,
        within=lambda player: Alike(),
        on_learned=figures.append,
    )
    (learned,) = figures
    value_loss = float(str(learned["value_loss"]))
    assert float(str(learned["loss"])) == pytest.approx(VALUE_COEFFICIENT * value_loss, abs=1e-3)


def test_the_value_head_is_in_each_checkpoint(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    trained(lamp_spec, lamp_policy, tmp_path / "run", PPO.model_copy(update={"steps": 2}), portal)
    saved = load_file(tmp_path / "run" / "checkpoints" / "checkpoint-8" / "model.safetensors")
    assert saved["value_head.weight"].abs().sum() > 0


def test_a_value_belongs_to_the_state_before_its_token(lamp_policy: Path) -> None:
    policy, _ = load_policy(lamp_policy)
    values = Values(policy.model)
    head: ValueHead = policy.model.value_head
    torch.nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    with torch.no_grad():
        policy.model(input_ids=ids)
        two_B2 = values.take(2)
        hidden = policy.model.base_model(input_ids=ids[:, :3]).last_hidden_state
    assert two_B2.shape == (1, 2)
    assert two_B2[0, 0].item() == pytest.approx(head(hidden)[0, -1].item(), rel=1e-5)
    values.remove()
    assert not hasattr(policy.model, "value_head")


def test_the_reward_of_an_episode_is_spread_over_its_sampled_tokens() -> None:
    rows = [segment([1, 0, 1], [0.0, 9.0, 0.5]), segment([0, 1, 1], [0.0, 0.25, 0.0])]
    assert token_rewards(rows, 0.75) == [0.0, 0.5, 0.25, 0.0]
    assert token_rewards(rows, 1.75) == [0.0, 0.5, 0.25, 1.0], (
        "reward that no action was credited with goes to the last one"
    )
    assert token_rewards([segment([0], [0.0])], 1.0) == []


def test_tokens_of_two_conversations_are_in_the_order_in_which_they_were_sampled() -> None:
    plan, helper = segment([1, 0, 1, 1], [0.1, 0.0, 0.3, 0.4], [1, 0, 3, 3]), segment([1], [0.2], [2])
    assert sampled_places([plan, helper]) == [(0, 0), (1, 0), (0, 2), (0, 3)]
    assert token_rewards([plan, helper], 1.0) == [0.1, 0.2, 0.3, 0.4]


numbers = st.floats(-10, 10)


@given(value=numbers, old=numbers, goal=numbers, clip=st.floats(0.01, 1))
def test_a_value_gains_nothing_by_moving_further_than_the_clip(
    value: float, old: float, goal: float, clip: float
) -> None:
    def error(v: float) -> float:
        return float(value_errors(torch.tensor([v]), torch.tensor([old]), torch.tensor([goal]), clip)[0])

    edge = min(max(goal, old - clip), old + clip)
    assert error(value) >= 0.5 * (value - goal) ** 2 - 1e-3
    assert error(value) >= error(edge) - 1e-3


def test_epochs_and_mini_batches_are_optimiser_steps_of_one_update(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    ppo = PPOSettings(epochs=3, mini_batches=4)
    settings = PPO.model_copy(update={"steps": 2, "ppo": ppo})
    played = trained(lamp_spec, lamp_policy, tmp_path / "run", settings, portal)
    assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("checkpoint-*")] == ["checkpoint-24"]
    assert len(read_record(tmp_path / "run" / "m.jsonl")) == 2
    assert played.dead_updates == 0
