"""Preferences come from recordings in the same state of the same world, and the policy learns to follow them."""

from pathlib import Path

import anyio
import pytest
import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy.dpo import prefer, preferences
from dreamgym_integrations.trainers.policy.model import load_chat_policy
from dreamgym_integrations.trainers.policy.sft import rows_of
from lamp import LampEnvironment
from lamp_runs import trained, weights

from dreamgym import EnvironmentSpec, Source, StepResult, ToolCall, Trajectory
from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.errors import InvalidInput
from dreamgym.training.practice import Settings
from dreamgym.training.record import read_record


def said(spec: EnvironmentSpec, *words: str, task: int = 0, seed: int = 0) -> Trajectory:
    """An episode in which the agent says these words."""

    async def speak(first: StepResult, environment: Environment, seed: int) -> None:
        for word in words:
            await environment.step(ToolCall(name="act", arguments={"command": word}))

    async def record() -> Trajectory:
        return await play(LampEnvironment(), spec.tasks[task], speak, spec=spec, seed=seed, source=Source.REAL)

    return anyio.run(record)


def words(spec: EnvironmentSpec, folder: Path, *trajectories: Trajectory) -> set[tuple[str, str]]:
    """Chosen and rejected words of all preferences."""
    _, codec = load_chat_policy(folder)
    return {
        (codec.decode(pair["chosen_ids"]), codec.decode(pair["rejected_ids"]))
        for pair in preferences(spec, codec, trajectories)
    }


def test_an_action_that_succeeded_is_preferred_to_a_failed_or_refused_one_in_the_same_state(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    won, lost = said(lamp_spec, "say red"), said(lamp_spec, "say blue", "say blue", "say blue")
    assert words(lamp_spec, lamp_policy, won, lost) == {("say red", "say blue")}
    slowly = said(lamp_spec, "say green", "say red")
    assert words(lamp_spec, lamp_policy, won, slowly) == {("say red", "say green")}


def test_the_prompt_of_a_preference_is_that_of_the_successful_episode_token_by_token(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    _, codec = load_chat_policy(lamp_policy)
    won = said(lamp_spec, "say green", "say red")
    lost = said(lamp_spec, "say green", "say blue", "say blue")
    (pair,) = preferences(lamp_spec, codec, [won, lost])
    (row,) = rows_of(lamp_spec, codec, [won])
    assert pair["prompt_ids"] + pair["chosen_ids"] == row["input_ids"]
    assert codec.decode(pair["rejected_ids"]) == "say blue"


def test_other_worlds_and_failed_environments_give_no_preferences(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    won, elsewhere = said(lamp_spec, "say red"), said(lamp_spec, "say blue", "say blue", "say blue", task=4)
    with pytest.raises(InvalidInput, match="no preference in the 2 recorded episodes of 'lamp', of which 1 succeeded"):
        words(lamp_spec, lamp_policy, won, elsewhere)
    lost = said(lamp_spec, "say blue", "say blue", "say blue")
    broken = Trajectory.model_validate({**lost.model_dump(), "stop_reason": "error", "error": "gone"})
    with pytest.raises(InvalidInput, match="record successes and failures of the same tasks"):
        words(lamp_spec, lamp_policy, won, broken)


def test_an_unjudged_episode_counts_only_if_the_environment_ends_an_accomplished_task(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    won, unjudged = said(lamp_spec, "say red"), said(lamp_spec, "say blue")
    assert unjudged.reward is None
    open_ended = lamp_spec.model_copy(update={"ends_itself": False})
    with pytest.raises(InvalidInput, match="no preference in the 1 recorded episodes"):
        words(open_ended, lamp_policy, won, unjudged)
    assert words(lamp_spec, lamp_policy, won, unjudged) == {("say red", "say blue")}, (
        "the environment would have ended an accomplished task"
    )
    (last,) = unjudged.transitions
    undecided = last.model_copy(update={"provenance": last.provenance.model_copy(update={"open_end": True})})
    with pytest.raises(InvalidInput, match="no preference in the 1 recorded episodes"):
        words(lamp_spec, lamp_policy, won, unjudged.model_copy(update={"transitions": (undecided,)}))


def test_a_policy_follows_its_preferences_and_serves_reinforcement_learning_as_a_start(
    lamp_spec: EnvironmentSpec,
    lamp_recordings: list[Trajectory],
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
) -> None:
    def margin(folder: Path) -> float:
        """Mean log-probability of the preferred answers minus that of the rejected ones."""
        policy, codec = load_chat_policy(folder)
        pairs = preferences(lamp_spec, codec, lamp_recordings)[:40]
        return sum(
            logprob(policy.model, pair["prompt_ids"], pair["chosen_ids"])
            - logprob(policy.model, pair["prompt_ids"], pair["rejected_ids"])
            for pair in pairs
        ) / len(pairs)

    def logprob(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> float:
        with torch.no_grad():
            logprobs = model(torch.tensor([prompt + answer])).logits[0].log_softmax(-1)
        return sum(float(logprobs[len(prompt) + i - 1, token]) for i, token in enumerate(answer))

    prefer(lamp_spec, lamp_recordings, lamp_policy, tmp_path / "dpo", steps=20, batch=16, learning_rate=1e-3, seed=0)
    assert margin(tmp_path / "dpo") > margin(lamp_policy) + 0.5
    assert weights(tmp_path / "dpo").keys() == weights(lamp_policy).keys()
    trained(lamp_spec, tmp_path / "dpo", tmp_path / "grpo", Settings(steps=1, groups=2, group_size=4), portal)
    assert len(read_record(tmp_path / "grpo" / "m.jsonl")) == 1
