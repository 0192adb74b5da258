"""Training through TRL is exact in its tokens, drops failed episodes, learns, and resumes as if never stopped."""

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.policy.grpo import RolloutTrainer
from dreamgym_integrations.trainers.policy.model import load_chat_policy, load_policy
from dreamgym_integrations.trainers.policy.train import train_policy
from lamp import LampEnvironment
from lamp_runs import broken_after, lamp, practice, same, trained, weights
from pydantic import JsonValue

from dreamgym import EnvironmentSpec
from dreamgym.curriculum.generator import variation
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, PredictionError
from dreamgym.training.practice import Settings
from dreamgym.training.record import read_record
from dreamgym.training.rollout import Rollout, TokenPlayer
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio


def player(spec: EnvironmentSpec, folder: Path) -> TokenPlayer:
    policy, codec = load_chat_policy(folder)
    return TokenPlayer(policy, codec, spec, lambda version, group: LampEnvironment())


async def eight(
    spec: EnvironmentSpec, folder: Path, *, sampling_seed: int, made: list[LampEnvironment] | None = None
) -> list[Rollout]:
    """One episode of each of the first eight tasks; their environments go into `made`."""
    policy, codec = load_chat_policy(folder)
    kept = [] if made is None else made

    def make(version: int, group: str) -> LampEnvironment:
        kept.append(LampEnvironment())
        return kept[-1]

    eight = TokenPlayer(policy, codec, spec, make)
    return await eight.play(spec.tasks[:8], groups=[""] * 8, seeds=[0] * 8, version=0, sampling_seed=sampling_seed)


async def test_the_sampled_log_probabilities_are_those_of_the_model_on_the_whole_sequence(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    policy, _ = load_chat_policy(lamp_policy)
    for episode in await eight(lamp_spec, lamp_policy, sampling_seed=1):
        (segment,) = episode.segments
        with torch.no_grad():
            logprobs = policy.model(torch.tensor([segment.ids])).logits[0].log_softmax(-1)
        start = len(segment.prompt_ids)
        for i, (token, sampled, logprob) in enumerate(
            zip(segment.completion_ids, segment.mask, segment.logprobs, strict=True)
        ):
            if sampled:
                assert logprobs[start + i - 1, token].item() == pytest.approx(logprob, abs=1e-4)


async def test_a_policy_whose_tokenizer_has_no_token_for_padding_samples_the_same(
    lamp_policy: Path, tmp_path: Path
) -> None:
    policy, _ = load_policy(lamp_policy)
    policy.tokenizer.pad_token = None
    save_model(policy.model, policy.tokenizer, tmp_path / "bare")
    prompts_B, seeds_B = [[5, 6, 7], [8]], [1, 2]
    bare, _ = load_policy(tmp_path / "bare")
    whole, _ = load_policy(lamp_policy)
    assert bare.generate(prompts_B, seeds_B=seeds_B) == whole.generate(prompts_B, seeds_B=seeds_B)


@pytest.mark.parametrize("limit", ["many", 0, 2.5, True, None])
def test_a_checkpoint_whose_token_limit_is_no_positive_number_is_refused(
    limit: JsonValue, lamp_policy: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(lamp_policy, tmp_path / "policy")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_action_tokens": limit}))
    with pytest.raises(InvalidInput, match="expected max_action_tokens to be a positive whole number, got"):
        load_policy(folder)


async def test_the_sampled_tokens_decode_to_exactly_the_actions_that_reached_the_environment(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    _, codec = load_chat_policy(lamp_policy)
    environments: list[LampEnvironment] = []
    episodes = await eight(lamp_spec, lamp_policy, sampling_seed=2, made=environments)
    for episode, environment in zip(episodes, environments, strict=True):
        turns: list[list[int]] = []
        previous = 0
        for token, sampled in zip(episode.segments[0].completion_ids, episode.segments[0].mask, strict=True):
            if sampled and not previous:
                turns.append([])
            if sampled:
                turns[-1].append(token)
            previous = sampled
        assert [codec.decode(turn) for turn in turns] == episode.actions == environment.said


async def test_a_failed_episode_has_no_reward_and_leaves_its_group_alone(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    policy, codec = load_chat_policy(lamp_policy)
    environments = iter([LampEnvironment(fails_after=0), LampEnvironment()])
    player = TokenPlayer(policy, codec, lamp_spec, lambda version, group: next(environments))
    failed, fine = await player.play(lamp_spec.tasks[:1] * 2, groups=["", ""], seeds=[0, 0], version=0, sampling_seed=3)
    assert failed.reward is None
    assert failed.error == "EnvironmentUnavailable: the lamp broke"
    assert fine.reward is not None


class Unjudged(LampEnvironment):
    """Its episodes cannot be closed, because their judge fails."""

    async def close(self) -> None:
        raise PredictionError("rate limit")


async def test_an_episode_whose_end_cannot_be_judged_leaves_its_group_alone(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    policy, codec = load_chat_policy(lamp_policy)
    environments = iter([Unjudged(fails_after=0), LampEnvironment()])
    player = TokenPlayer(policy, codec, lamp_spec, lambda version, group: next(environments))
    failed, fine = await player.play(lamp_spec.tasks[:1] * 2, groups=["", ""], seeds=[0, 0], version=0, sampling_seed=3)
    assert failed.error == "EnvironmentUnavailable: the lamp broke"
    assert fine.reward is not None


async def test_the_rollouts_of_a_group_have_the_same_task(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path
) -> None:
    settings = Settings(groups=4, group_size=3)
    groups = await practice(lamp_spec, settings, tmp_path / "m.jsonl").iterate(player(lamp_spec, lamp_policy), 0)
    ids = [[episode.task.id for episode in group] for group in groups]
    assert [len(group) for group in ids] == [3, 3, 3, 3]
    assert [len(set(group)) for group in ids] == [1, 1, 1, 1]
    assert len({group[0] for group in ids}) == 4


async def test_the_same_seed_gives_the_same_rollouts(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path
) -> None:
    settings = Settings(groups=4, group_size=3, seed=5)
    same = player(lamp_spec, lamp_policy)
    runs = [await practice(lamp_spec, settings, tmp_path / f"{i}.jsonl").iterate(same, 7) for i in range(2)]
    assert runs[0] == runs[1]


def test_training_raises_success_and_the_checkpoint_plays_by_itself(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=30, groups=8, group_size=8, learning_rate=1e-3, save_every=50)
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    success = [float(str(line["inside_success"])) for line in read_record(tmp_path / "m.jsonl")]
    assert len(success) == 30
    assert sum(success[-5:]) / 5 > sum(success[:5]) / 5 + 0.1
    rollouts = portal.call(partial(eight, lamp_spec, tmp_path / "policy", sampling_seed=0))
    assert [(rollout.error, rollout.reward in (0, 1)) for rollout in rollouts] == [(None, True)] * 8


def test_an_interrupted_run_ends_with_the_weights_and_the_record_of_an_uninterrupted_one(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=5, groups=2, group_size=4, save_every=2, probe_every=1)
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    trained(lamp_spec, lamp_policy, straight, settings, portal)
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, broken, settings, portal, probe=broken_after(3))
    assert not (broken / "policy").exists()
    trained(lamp_spec, lamp_policy, broken, settings, portal, resume=True)
    assert same(weights(straight / "policy"), weights(broken / "policy"))
    lines = [[line["inside_success"] for line in read_record(folder / "m.jsonl")] for folder in (straight, broken)]
    assert lines[0] == lines[1]
    assert len(lines[0]) == 5


def test_a_run_interrupted_before_its_first_checkpoint_starts_over_with_a_clean_record(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=2, groups=2, group_size=4, save_every=2, probe_every=1)

    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, probe=broken_after(1))
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal, resume=True)
    assert [line["step"] for line in read_record(tmp_path / "m.jsonl")] == [0, 1]


def test_a_run_interrupted_before_its_first_checkpoint_does_not_begin_with_the_tasks_that_it_had_generated(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=2, groups=2, group_size=4, save_every=2, probe_every=1)
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, probe=broken_after(1))
    again = practice(lamp_spec, settings, tmp_path / "m.jsonl")
    again.curriculum.add([variation(lamp_spec.tasks[0], "light another lamp", None)])  # as the store gives it back
    train_policy(
        again,
        lamp_policy,
        tmp_path,
        settings,
        portal=portal,
        player=lambda policy, codec: TokenPlayer(policy, codec, lamp_spec, lamp),
        resume=True,
    )
    assert again.curriculum.generated == ()


def test_the_curriculum_is_saved_with_each_checkpoint(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=2, groups=2, group_size=4, save_every=2)
    played = trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    saved = json.loads((tmp_path / "checkpoints" / "checkpoint-2" / "curriculum.json").read_text())
    assert saved == played.curriculum.state()
    assert saved != practice(lamp_spec, settings, tmp_path / "other.jsonl").curriculum.state()


def test_failed_episodes_are_counted_and_give_no_gradient(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=1, groups=2, group_size=4)
    made: list[LampEnvironment] = []

    def all_but_two_fail(version: int, group: str) -> LampEnvironment:
        made.append(LampEnvironment(fails_after=None if len(made) % 4 == 0 else 0))
        return made[-1]

    learned: list[JsonObject] = []
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal, make=all_but_two_fail, on_learned=learned.append)
    (line,) = read_record(tmp_path / "m.jsonl")
    assert line["failed"] == 6
    (figures,) = learned
    assert figures["loss"] == 0
    assert "entropy" not in figures, "no entropy is reported if nothing was learned"
    # a group with a single valid episode has nothing to compare it with: no advantage, so the weights do not change
    assert same(weights(lamp_policy), weights(tmp_path / "policy"))


def test_episodes_without_an_advantage_are_not_computed_and_that_changes_nothing(
    lamp_spec: EnvironmentSpec,
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(steps=1, groups=8, group_size=4, learning_rate=1e-3)
    rows: dict[str, int] = {}
    summed = RolloutTrainer._score

    def counting(name: str) -> Callable[..., None]:
        def score(trainer: RolloutTrainer, groups: Any, output: dict[str, Any]) -> None:
            summed(trainer, groups, output)
            rows[name] = len(output["advantages"])

        return score

    monkeypatch.setattr(RolloutTrainer, "_score", counting("few"))
    trained(lamp_spec, lamp_policy, tmp_path / "few", settings, portal)
    monkeypatch.setattr(RolloutTrainer, "_score", counting("all"))
    monkeypatch.setattr(RolloutTrainer, "_moves", lambda trainer, advantage: True)
    trained(lamp_spec, lamp_policy, tmp_path / "all", settings, portal)
    assert rows["few"] < rows["all"] == 32
    before = weights(lamp_policy)
    few, every = ({k: v - before[k] for k, v in weights(tmp_path / n / "policy").items()} for n in rows)
    moved = [torch.cat([one[name].flatten() for name in before]) for one in (few, every)]
    assert float(moved[0].abs().max()) > 0
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.99


def test_an_update_whose_rollouts_all_fail_stops_the_training(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=2, groups=2, group_size=4)
    with pytest.raises(
        EnvironmentUnavailable, match=r"every rollout of an update failed: .*the lamp broke; if recordings"
    ):
        trained(
            lamp_spec,
            lamp_policy,
            tmp_path,
            settings,
            portal,
            make=lambda version, group: LampEnvironment(fails_after=0),
        )
