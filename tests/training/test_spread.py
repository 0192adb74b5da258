"""Jobs for a cluster's workers: they are opened there, and a chunk gets the tokens that it gets in one batch."""

import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from dreamgym_integrations.trainers.policy.model import load_policy
from lamp import LampEnvironment

from dreamgym.environment import EnvironmentSpec
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.material import material
from dreamgym.evaluation.setting import setting
from dreamgym.runs.fidelity import Predicting
from dreamgym.runs.opening import Against
from dreamgym.runs.players import CHUNK, Chunk, PolicyPlaying, SpreadPlayer
from dreamgym.training.rollout import Rollout, TokenPlayer
from dreamgym.types import Trajectory

pytestmark = pytest.mark.anyio


class InThisProcess:
    """Workers in this process; chunks and rollouts are pickled, as on the way to a real worker."""

    places = 2

    def __init__(self, do: Callable[[Chunk], Awaitable[list[Rollout]]]) -> None:
        self.done: list[int] = []
        self._do = do

    async def do(self, one: Chunk) -> list[Rollout]:
        self.done.append(len(one.tasks))
        rollouts: list[Rollout] = pickle.loads(pickle.dumps(await self._do(pickle.loads(pickle.dumps(one)))))
        return rollouts


async def test_episodes_in_chunks_have_the_tokens_that_they_have_in_one_batch(
    lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    policy, codec = load_policy(lamp_policy)
    player = TokenPlayer(policy, codec, lamp_spec, lambda version, group: LampEnvironment())

    async def play(chunk: Chunk) -> list[Rollout]:
        first, tasks, groups, seeds, version, sampling_seed = chunk
        return await player.play(
            tasks, groups=groups, seeds=seeds, version=version, sampling_seed=sampling_seed, first=first
        )

    workers = InThisProcess(play)
    tasks = (lamp_spec.tasks * 2)[: 2 * CHUNK + 3]
    groups, seeds = [""] * len(tasks), list(range(len(tasks)))
    together = await player.play(tasks, groups=groups, seeds=seeds, version=0, sampling_seed=5)
    spread = await SpreadPlayer(workers).play(tasks, groups=groups, seeds=seeds, version=0, sampling_seed=5)
    assert sorted(workers.done) == [3, CHUNK, CHUNK]
    assert [one.segments[0].ids for one in spread] == [one.segments[0].ids for one in together]
    assert [one.task for one in spread] == list(tasks)


async def test_a_held_out_step_is_predicted_from_the_job_alone(
    lamp_spec: EnvironmentSpec, lamp_recordings: list[Trajectory]
) -> None:
    given = material(lamp_spec, lamp_recordings, held_out=0.3, limit=6)
    job: Predicting = pickle.loads(pickle.dumps(Predicting(given, setting("nearest"))))

    async def predicted(order: list[int]) -> list[Compared]:
        async with job.open() as predict:
            return [(await predict(number)).model_copy(update={"seconds": 0.0}) for number in order]

    one_way, other_way = await predicted([0, 1, 2, 3, 4, 5]), await predicted([5, 4, 3, 2, 1, 0])
    assert one_way == other_way[::-1]
    assert [(one.trajectory, one.step) for one in one_way] == [step.key for step in given.steps]


async def test_the_password_in_a_job_is_not_shown(lamp_spec: EnvironmentSpec, tmp_path: Path) -> None:
    dsn = "postgresql://user:opensesame@db/dreams"
    job = PolicyPlaying(lamp_spec, Against.DREAM, tmp_path, None, None, frozenset(), dsn)
    assert "opensesame" not in repr(job)
