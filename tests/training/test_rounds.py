"""A run that plays some updates ahead learns like one that does not, and can be repeated, stopped and resumed."""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy import rounds
from dreamgym_integrations.trainers.policy.train import train_policy
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import RealWorlds
from lamp import LampEnvironment
from lamp_runs import broken_after, same, trained, weights

from dreamgym import EnvironmentSpec, StepResult, Task, ToolCall, Trajectory
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.replay.postgres import open_store
from dreamgym.runs.train.backing import RealInProcess
from dreamgym.training.early_stop import Seen
from dreamgym.training.practice import PPOSettings, Practice, Settings
from dreamgym.training.record import read_record, real_steps
from dreamgym.training.rollout import Player, Rollout, TokenPlayer
from dreamgym.types import JsonObject

AHEAD = Settings(steps=6, groups=2, group_size=4, staleness=2, save_every=2, probe_every=50)


class Noted:
    """Notes the version of each round."""

    def __init__(self, player: Player, versions: list[int]) -> None:
        self._player, self._versions = player, versions

    async def play(
        self, tasks: Sequence[Task], *, groups: Sequence[str], seeds: Sequence[int], version: int, sampling_seed: int
    ) -> list[Rollout]:
        self._versions.append(version)
        return await self._player.play(tasks, groups=groups, seeds=seeds, version=version, sampling_seed=sampling_seed)


@pytest.mark.parametrize("lora", [0, 4])
def test_the_policy_that_plays_ahead_has_weights_of_its_own(
    lora: int,
    lamp_spec: EnvironmentSpec,
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    models: list[Any] = []

    def noted(model: Any) -> Any:
        models.extend([model, copied(model)])
        return models[-1]

    copied = rounds._copy
    monkeypatch.setattr(rounds, "_copy", noted)
    settings = AHEAD.model_copy(update={"steps": 2, "staleness": 1, "lora": lora})
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    learning, ahead = (model.eval() for model in models)

    def said() -> torch.Tensor:
        with torch.no_grad():
            return ahead(input_ids=torch.tensor([[5, 6, 7]])).logits.clone()

    before = said()
    for model, changes in ((learning, False), (ahead, True)):
        for weight in model.parameters():
            weight.data.add_(0.5)
        assert bool((said() - before).abs().max() > 1e-3) is changes


@pytest.mark.parametrize(
    "settings",
    [
        AHEAD,
        AHEAD.model_copy(update={"algorithm": "ppo", "ppo": PPOSettings(epochs=2, mini_batches=2)}),
    ],
    ids=["grpo", "ppo"],
)
def test_each_round_is_played_with_the_weights_of_two_updates_before(
    settings: Settings, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    versions: list[int] = []
    figures: list[JsonObject] = []
    trained(
        lamp_spec,
        lamp_policy,
        tmp_path,
        settings,
        portal,
        within=lambda player: Noted(player, versions),
        on_learned=figures.append,
    )
    assert versions == [0, 0, 0, 1, 2, 3]
    assert [line["version"] for line in read_record(tmp_path / "m.jsonl") if "rollout_s" in line] == versions
    importance = [float(str(line["importance"])) for line in figures if "importance" in line]
    assert importance[0] == pytest.approx(1, abs=1e-4), "the first round is played with the weights that learn from it"
    assert all(abs(one - 1) > 1e-4 for one in importance[1:]), "all others with older ones"


def test_a_kl_term_teaches_nothing_about_tokens_that_are_more_than_twice_as_likely(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    class Unlikely(Noted):
        """From the second round on, gives every token a twentieth of its probability."""

        async def play(self, *args: Any, **more: Any) -> list[Rollout]:
            played = await super().play(*args, **more)
            for segment in (segment for one in played for segment in one.segments if len(self._versions) > 1):
                segment.logprobs = [logprob - math.log(20) for logprob in segment.logprobs]
            return played

    def learned(beta: float) -> dict[str, torch.Tensor]:
        settings = AHEAD.model_copy(update={"steps": 3, "beta": beta})
        out, figures = tmp_path / str(beta), list[JsonObject]()
        trained(
            lamp_spec,
            lamp_policy,
            out,
            settings,
            portal,
            within=lambda player: Unlikely(player, []),
            on_learned=figures.append,
        )
        assert [line["truncated_share"] for line in figures if "truncated_share" in line] == [0, 1, 1]
        return weights(out / "policy")

    without, with_kl = learned(0), learned(0.5)
    apart = max(float((with_kl[name] - without[name]).abs().max()) for name in without)
    assert apart < 1e-4, "the first update begins at the start policy, and the others have nothing to learn"


def test_a_run_that_plays_ahead_can_be_repeated(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    for name in ("one", "two"):
        trained(lamp_spec, lamp_policy, tmp_path / name, AHEAD, portal)
    assert same(weights(tmp_path / "one" / "policy"), weights(tmp_path / "two" / "policy"))


@pytest.mark.parametrize("lora", [0, 4])
def test_a_run_that_plays_ahead_goes_on_after_it_was_interrupted(
    lora: int, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = AHEAD.model_copy(update={"lora": lora, "probe_every": 1})
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, probe=broken_after(3))
    record = read_record(tmp_path / "m.jsonl")
    assert sum(int(str(line.get("dropped_episodes", 0))) for line in record) % 8 == 0
    versions: list[int] = []
    trained(
        lamp_spec, lamp_policy, tmp_path, settings, portal, resume=True, within=lambda player: Noted(player, versions)
    )
    assert versions == [2, 2, 2, 3], "nothing is older than the checkpoint after two updates"
    played = [line for line in read_record(tmp_path / "m.jsonl") if "rollout_s" in line]
    assert [line["step"] for line in played] == [0, 1, 2, 3, 4, 5]
    assert not same(weights(tmp_path / "policy"), weights(lamp_policy))


def test_episodes_that_no_update_used_are_counted(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    class Third(Noted):
        """Sets an event when the third round is played."""

        async def play(self, *args: Any, **more: Any) -> list[Rollout]:
            played = await super().play(*args, **more)
            if len(self._versions) == 3:
                third.set()
            return played

    async def broken_when_three_are_played(policy: object, codec: object, update: int) -> Seen:
        if update == 1:
            await third.wait()
            raise EnvironmentUnavailable("gone")
        return Seen(best=False, stop=False)

    third = asyncio.Event()
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(
            lamp_spec,
            lamp_policy,
            tmp_path,
            AHEAD.model_copy(update={"probe_every": 1}),
            portal,
            probe=broken_when_three_are_played,
            within=lambda player: Third(player, []),
        )
    dropped = [line for line in read_record(tmp_path / "m.jsonl") if "dropped_episodes" in line]
    assert [(line["step"], int(str(line["dropped_episodes"])) >= 8) for line in dropped] == [(1, True)]


@pytest.mark.parametrize("in_a_step", [True, False])
def test_real_steps_of_a_round_that_is_cancelled_at_the_end_of_the_run_are_in_the_record(
    in_a_step: bool, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal, dsn: str
) -> None:
    steps: list[int] = []
    """Number of the round of each real step."""
    versions: list[int] = []

    async def stuck() -> None:
        second.set()
        await asyncio.Event().wait()

    class Counted(LampEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            if in_a_step and steps.count(2) == 5:
                await stuck()
            steps.append(len(versions))
            return await super().step(action)

    class Backing(RealInProcess):
        async def examples(self, run: str, iteration: int, most: int) -> list[tuple[str, Trajectory]]:
            if iteration == 1:
                await stuck()
            return await super().examples(run, iteration, most)

    async def broken_in_the_second_round(policy: object, codec: object, update: int) -> Seen:
        if update == 1:
            await second.wait()
            raise EnvironmentUnavailable("gone")
        return Seen(best=False, stop=False)

    @asynccontextmanager
    async def backed() -> AsyncIterator[Backing]:
        store = await open_store(dsn, TrigramEncoder())
        episodes = Episodes({"lamp": RealWorlds(lamp_spec, Counted)}, store.episodes, store.buffer)
        async with episodes.running():
            backing = Backing(lamp_spec, store, episodes)
            await backing.begin()
            yield backing
        await store.close()

    second = asyncio.Event()
    settings = AHEAD.model_copy(update={"staleness": 1, "probe_every": 1})
    record = tmp_path / "m.jsonl"
    with portal.wrap_async_context_manager(backed()) as backing:
        curriculum = Curriculum(lamp_spec.tasks, share=0, seed=0)
        with pytest.raises(EnvironmentUnavailable, match="gone"):
            train_policy(
                Practice(lamp_spec, curriculum, None, settings, record, where="real", backing=backing),
                lamp_policy,
                tmp_path,
                settings,
                portal=portal,
                player=lambda policy, codec: Noted(
                    TokenPlayer(policy, codec, lamp_spec, backing.environment), versions
                ),
                probe=broken_in_the_second_round,
            )
    lost = [line for line in read_record(record) if "lost" in line]
    assert [(line["step"], line["environment_steps"]) for line in lost] == [(1, steps.count(2))]
    assert real_steps(read_record(record)) == len(steps)


@pytest.mark.parametrize("staleness", [0, 1])
def test_an_environment_that_cancels_its_own_step_ends_the_run(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal, staleness: int
) -> None:
    settings = AHEAD.model_copy(update={"staleness": staleness})

    class Cancelled(LampEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            raise asyncio.CancelledError

    with pytest.raises(EnvironmentUnavailable, match="the round of update 0 was cancelled"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, make=lambda version, group: Cancelled())


def test_a_policy_that_plays_ahead_gets_better(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = Settings(steps=30, groups=8, group_size=8, learning_rate=1e-3, save_every=50, staleness=4)
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    success = [float(str(line["inside_success"])) for line in read_record(tmp_path / "m.jsonl") if "rollout_s" in line]
    assert len(success) == 30
    assert sum(success[-5:]) / 5 > sum(success[:5]) / 5 + 0.1
