"""What an interrupted update has left in the store is counted and taken back before the update is played again."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from dreamgym_server.archive import trajectory_of
from dreamgym_server.local import LocalEnvironment
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import RealWorlds
from lamp import LampEnvironment

from dreamgym import EnvironmentSpec, StepResult, ToolCall
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import Store
from dreamgym.runs.opening import Against
from dreamgym.runs.train.backing import RealInProcess, in_process
from dreamgym.runs.train.config import TrainConfig
from dreamgym.types import Provenance, StopReason, Tier, Transition

pytestmark = pytest.mark.anyio

RUN = "a" * 16


@pytest.fixture
async def real(lamp_spec: EnvironmentSpec, store: Store) -> AsyncIterator[RealInProcess]:
    """The backing of a training in this process, as it is after a restart."""
    episodes = Episodes({"lamp": RealWorlds(lamp_spec, LampEnvironment)}, store.episodes, store.buffer)
    async with episodes.running():
        yield RealInProcess(lamp_spec, store, episodes)


async def test_real_steps_of_episodes_that_a_killed_process_was_playing_are_counted(
    lamp_spec: EnvironmentSpec, store: Store, real: RealInProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dreamgym.runs.train.backing.real_of", lambda spec: type("Real", (), {"create": LampEnvironment})
    )
    wrong = ToolCall(name="act", arguments={"command": "say nothing"})
    config = TrainConfig(policy="tiny", against=Against.REAL, in_process=True)
    async with in_process(lamp_spec, config, store) as killed:
        assert isinstance(killed, RealInProcess)
        for group in range(3):
            environment: LocalEnvironment = killed.environment(0, f"{RUN}-0-{group}")
            await environment.reset(lamp_spec.tasks[group], seed=0)
            for _ in range(2):
                await environment.step(wrong)
        # the environment has no row in the store yet: nothing was stored of it but running episodes
        assert await real.take_back(RUN, 0) == 6
        assert await real.take_back(RUN, 0) == 0


async def test_dreams_that_were_retired_do_not_come_back_when_the_run_goes_on(
    lamp_spec: EnvironmentSpec, store: Store, real: RealInProcess
) -> None:
    task, said = lamp_spec.tasks[0], ToolCall(name="act", arguments={"command": "say red"})
    won = StepResult(observation="right", reward=1.0, terminated=True)
    await store.buffer.add_tasks([task])
    for update in (23, 24):
        for number in range(8):
            step = Transition.of(f"{update} {number}", said, won, Provenance(tier=Tier.MODEL))
            episode = Episode(
                id=f"{update}-{number}",
                env="lamp",
                task=task,
                seed=0,
                max_steps=5,
                group=f"{RUN}-{update}-0",
                initial=StepResult(observation=""),
                transitions=(step,),
                stop_reason=StopReason.TERMINATED,
                policy_version=update,
                as_of=0,
                expires_at=store.episodes.now() + timedelta(hours=1),
            )
            await store.episodes.create(episode)
            trajectory = trajectory_of(episode, lamp_spec)
            assert trajectory is not None
            await store.buffer.add([trajectory])
        await store.buffer.record_outcomes("lamp", task.id, update, [1.0] * 8, run=RUN)
    assert await store.buffer.retire("lamp") > 0
    left = await store.buffer.counts("lamp")
    await real.take_back(RUN, 25)
    assert await store.buffer.counts("lamp") == left
