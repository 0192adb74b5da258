"""A dream of ALFWorld from recordings alone: what it answers is what the game answers."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from alfworld_rooms import dream_of, played, rooms
from dreamgym_integrations.environments.base import act

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import Source, StepResult, Tier, Trajectory

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def recorded() -> list[Trajectory]:
    return [*asyncio.run(played("mixed", 8)), *asyncio.run(played("random", 3))]


@pytest.fixture(scope="module")
def buffer(recorded: list[Trajectory]) -> MemoryBuffer:
    """The recordings, from which is learned once."""
    filled = MemoryBuffer(TrigramEncoder())
    asyncio.run(filled.add(recorded))
    return filled


@pytest.fixture
def dream(buffer: MemoryBuffer) -> DreamEnvironment:
    return DreamEnvironment(rooms().spec, NearestModel(), buffer)


async def tier_of_look(dream: DreamEnvironment) -> Tier:
    await dream.step(act("look"))
    assert dream.provenance is not None
    return dream.provenance.tier


async def played_along(dream: DreamEnvironment, trajectories: Sequence[Trajectory]) -> tuple[int, int, list[str]]:
    """(answers, those as in reality, ids of the episodes that ended otherwise) of the same commands in a dream."""
    count, right, otherwise = 0, 0, []
    for trajectory in trajectories:
        result = await dream.reset(trajectory.task)
        for step in trajectory.transitions:
            result = await dream.step(step.action)
            assert dream.provenance is not None
            assert dream.provenance.tier is Tier.EFFECTS
            count, right = count + 1, right + (result.observation == step.result.observation)
            if result.done:
                break
        if (result.reward > 0) != trajectory.success:
            otherwise.append(trajectory.id)
    return count, right, otherwise


async def test_other_play_in_a_dream_of_recorded_rooms_is_answered_as_the_game_answers(
    dream: DreamEnvironment,
) -> None:
    other = await played("mixed", 4, first_seed=100)
    count, right, otherwise = await played_along(dream, other)
    assert count > 300
    assert right > 0.97 * count
    assert otherwise == []


async def test_a_player_wins_in_the_dream_by_the_task_itself(dream: DreamEnvironment) -> None:
    real = rooms()
    for task in real.tasks("train"):
        episode = await play(dream, task, real.behaviours["handcoded"], spec=real.spec, seed=1, source=Source.SYNTHETIC)
        assert episode.success
        told = episode.transitions[-1].provenance
        assert (told.tier, told.checked) == (Tier.EFFECTS, True)
        assert all(not step.result.done for step in episode.transitions[:-1])


async def test_an_episode_goes_on_from_its_stored_steps_alone(dream: DreamEnvironment, buffer: MemoryBuffer) -> None:
    (whole, *_) = await played("handcoded", 1, first_seed=200)

    async def answers(environment: Environment, *, restored: bool) -> list[StepResult]:
        given = [await environment.reset(whole.task)]
        for step in whole.transitions:
            if restored:
                again = DreamEnvironment(rooms().spec, NearestModel(), buffer)
                again.resume(whole.task, seed=0, transitions=dream.transitions[: len(given) - 1])
                assert await again.step(step.action) == await dream.step(step.action)
            given.append(await environment.step(step.action) if not restored else dream.transitions[-1].result)
        return given

    assert await answers(dream, restored=True) == await answers(dream, restored=False)


async def test_a_room_whose_recordings_contradict_each_other_is_named_and_left_out(
    recorded: list[Trajectory], caplog: pytest.LogCaptureFixture
) -> None:
    one, other, *_ = rooms().tasks("train")
    of_other = next(t for t in recorded if t.task.id == other.id and len(t.transitions) > 10)
    moved = of_other.model_copy(update={"task": of_other.task.model_copy(update={"id": one.id}), "world": one.id})
    two_versions = [moved.model_copy(update={"id": "another version"}), *recorded]
    with caplog.at_level(logging.WARNING):
        dream = await dream_of(two_versions)
        await dream.reset(one)
    assert one.id in caplog.text
    assert "contradict" in caplog.text
    assert "another version" in caplog.text or "others as" in caplog.text
    assert await tier_of_look(dream) is not Tier.EFFECTS
    await dream.reset(other)
    assert await tier_of_look(dream) is Tier.EFFECTS
