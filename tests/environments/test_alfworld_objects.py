"""A dream of ALFWorld from recordings alone gives the answers that the game gives."""

import asyncio
import logging
from collections.abc import Sequence

import pytest
from alfworld_rooms import dream_of, played, rooms
from answers import text_of
from dreamgym_client.control import ControlClient
from dreamgym_integrations.environments.base import act
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds
from mcp import Client

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.objects import ObjectWorlds
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.errors import StoreError
from dreamgym.replay.buffer import GROUNDED, Demonstration, Retrieval
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.state import as_object
from dreamgym.synthesis.objects import MissingFact
from dreamgym.types import Provenance, Source, StepResult, StopReason, Task, Tier, Trajectory, Transition

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def recorded() -> list[Trajectory]:
    return [*asyncio.run(played("mixed", 8)), *asyncio.run(played("random", 3))]


@pytest.fixture(scope="module")
def buffer(recorded: list[Trajectory]) -> MemoryBuffer:
    """A buffer of the recordings, shared by the tests so that the dream learns from it only once."""
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
    """Repeat recorded commands in a dream.

    Returns:
        The number of answers, how many of them are as recorded, and the ids of the episodes that ended differently.
    """
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


async def test_a_player_wins_in_the_dream_by_the_check_of_the_task(dream: DreamEnvironment) -> None:
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


async def test_an_episode_of_the_game_goes_on_in_the_dream_of_objects(dream: DreamEnvironment) -> None:
    for whole in await played("mixed", 2, first_seed=300):
        right = 0
        for number, step in enumerate(whole.transitions):
            dream.resume(whole.task, seed=0, transitions=whole.transitions[:number])
            result = await dream.step(step.action)
            assert dream.provenance is not None
            assert dream.provenance.tier is Tier.EFFECTS
            assert (result.reward, result.terminated) == (step.result.reward, step.result.terminated)
            right += result.observation == step.result.observation
        assert right > 0.95 * len(whole.transitions)


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


async def test_a_success_is_open_in_a_room_whose_recordings_contradict_each_other() -> None:
    closed = "go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed."
    opened = "go to drawer 1", "You arrive at drawer 1. The drawer 1 is open. In it, you see nothing."
    won = told("won", TO_DESK, TAKE, TO_SHELF, MOVE)
    dream = await dream_of([won, told("one version", TO_SHELF, closed), told("another version", opened)])
    await dream.reset(HALL)
    for command, _ in (TO_SHELF, MOVE):
        result = await dream.step(act(command))
    last = dream.transitions[-1].provenance
    assert (result.observation, last.tier) == (MOVE[1], Tier.RECORDED)
    assert (result.reward, result.terminated, last.open_end) == (0.0, False, True)


class CountingBuffer(MemoryBuffer):
    """A buffer that counts its queries."""

    asked = 0

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        self.asked += 1
        return await super().nearest(retrieval)

    async def newest_recording(self, env: str) -> int:
        self.asked += 1
        return await super().newest_recording(env)

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        self.asked += 1
        return await super().trajectories(env, sources=sources, limit=limit)


async def test_a_step_asks_no_store_and_an_episode_asks_only_if_something_is_new(recorded: list[Trajectory]) -> None:
    buffer = CountingBuffer(TrigramEncoder())
    await buffer.add(recorded)
    dream, real = DreamEnvironment(rooms().spec, NearestModel(), buffer), rooms()
    for number, task in enumerate(real.tasks("train")):
        before = buffer.asked
        episode = await play(dream, task, real.behaviours["handcoded"], spec=real.spec, seed=3, source=Source.SYNTHETIC)
        assert len(episode.transitions) > 1
        assert buffer.asked - before == (2 if number == 0 else 1)


class FailingOnce(MemoryBuffer):
    """A buffer whose first query fails."""

    has_failed = False

    async def newest_recording(self, env: str) -> int:
        if not self.has_failed:
            self.has_failed = True
            raise StoreError("not reachable")
        return await super().newest_recording(env)


async def test_a_resumed_episode_whose_first_step_failed_goes_on_with_its_objects(recorded: list[Trajectory]) -> None:
    buffer = FailingOnce(TrigramEncoder())
    await buffer.add(recorded)
    dream = DreamEnvironment(rooms().spec, NearestModel(), buffer)
    dream.resume(recorded[0].task, seed=0, transitions=())
    with pytest.raises(StoreError):
        await dream.step(act("look"))
    assert await tier_of_look(dream) is Tier.EFFECTS


@pytest.mark.parametrize("tier", [Tier.MODEL, Tier.REAL])
async def test_words_of_a_model_from_before_the_dream_of_objects_win_nothing(
    dream: DreamEnvironment, tier: Tier
) -> None:
    (whole, *_) = await played("handcoded", 1, first_seed=200)
    assert "put a hot mug in desk" in whole.task.instruction
    told = (
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a book 1, and a desklamp 1."),
        ("take mug 1 from desk 1", "You pick up the mug 1 from the desk 1."),
        ("heat mug 1 with microwave 1", "You heat the mug 1 using the microwave 1."),
    )
    steps = [(act(command), StepResult(observation=words)) for command, words in told]
    begun = Transition.chain(whole.task.initial_state or "", steps)
    told_by = [step.model_copy(update={"provenance": Provenance(tier=tier)}) for step in begun]
    dream.resume(whole.task, seed=0, transitions=told_by)
    result = await dream.step(act("move mug 1 to desk 1"))
    assert dream.provenance is not None
    assert dream.provenance.tier is Tier.EFFECTS
    assert (result.reward, dream.provenance.open_end) == ((1.0, False) if tier is Tier.REAL else (0.0, True))


async def test_an_action_without_a_rule_is_answered_by_the_next_tier_and_read_into_the_state(
    dream: DreamEnvironment,
) -> None:
    (task, *_) = rooms().tasks("train")
    await dream.reset(task)
    there = await dream.step(act("go to desk 1"))
    refused = await dream.step(act("slice book 1 with mug 1"))  # nobody has sliced anything in any recording
    assert dream.provenance is not None
    assert dream.provenance.tier is Tier.MODEL
    assert (refused.observation, refused.is_error) == ("Nothing happens.", True)
    assert refused.state == there.state
    await dream.step(act("take book 1 from desk 1"))
    assert (await dream.step(act("inventory"))).observation == "You are carrying: a book 1."


async def test_a_task_whose_goal_no_state_can_decide_is_named_and_has_no_reward(
    dream: DreamEnvironment, caplog: pytest.LogCaptureFixture
) -> None:
    real, (task, *_) = rooms(), rooms().tasks("train")
    undecided = task.model_copy(update={"instruction": "Your task is to: look at mug under the floorlamp."})
    with caplog.at_level(logging.WARNING):
        episode = await play(
            dream, undecided, real.behaviours["handcoded"], spec=real.spec, seed=0, source=Source.SYNTHETIC
        )
    assert task.id in caplog.text
    assert "no reward" in caplog.text
    assert {step.provenance.tier for step in episode.transitions} == {Tier.EFFECTS}
    assert episode.reward is None


async def test_a_refused_walk_shows_that_two_places_are_at_one_spot(recorded: list[Trajectory]) -> None:
    known = ObjectWorlds.of(recorded, rooms().reader, rooms().goals)
    crowded = rooms().tasks("train")
    beside = {task.id: known.worlds[task.id].start["places"]["drawer 1"]["beside"] for task in crowded}  # type: ignore[index,call-overload]
    shared = [task for task in crowded if "6" in str(task.metadata["floor_plan"])]
    assert [task.id for task in crowded if beside[task.id]] == [task.id for task in shared]


async def test_a_recorded_success_counts_also_where_other_rooms_show_what_a_place_is_like(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beside = MissingFact(world=HALL.world, collection="places", entity="desk 1", field="beside", item="drawer 1")
    monkeypatch.setattr("dreamgym.dream.objects.missing_facts", lambda *known: [beside])
    dream = await dream_of([told("won", TO_DESK, TAKE, TO_SHELF, MOVE), told("looked around", TO_SHELF, TO_DESK)])
    await dream.reset(HALL)
    for command, _ in (TO_DESK, TAKE, TO_SHELF, MOVE):
        result = await dream.step(act(command))
    assert (result.reward, result.terminated) == (1.0, True)


async def test_an_mcp_client_reads_the_words_of_the_game_and_is_rewarded_by_the_control_api(
    buffer: MemoryBuffer,
) -> None:
    real = rooms()
    (whole, *_) = await played("handcoded", 1, first_seed=300)
    worlds = DreamWorlds(real.spec, NearestModel(), buffer)
    async with running(build([worlds], buffer, MemoryEpisodeStore())) as url, ControlClient(url) as control:
        opened = await control.create("alfworld", task=whole.task, seed=0)
        async with Client(opened.mcp_url) as client:
            for step in whole.transitions:
                said = await client.call_tool("act", dict(step.action.arguments))
                assert text_of(said) == step.result.observation
        told = await control.read("alfworld", opened.episode)
    assert (told.terminated, told.reward) == (True, 1.0)


async def test_a_drawer_contains_only_what_a_recording_showed_in_this_room_even_after_one_recording_of_each() -> None:
    real = rooms()
    known = ObjectWorlds.of(await played("expert", 1), real.reader, real.goals)
    opened = 0
    for task in real.tasks("train"):
        for drawer in ("drawer 1", "drawer 2"):
            episode = known.episode(task)
            assert episode is not None
            things = as_object(known.worlds[task.world].start["things"])
            inside = [name for name, thing in things.items() if drawer in str(as_object(thing)["where"])]
            answers = [episode.answer(act(f"{verb} {drawer}")) for verb in ("go to", "open")]
            if (answer := answers[-1]) is not None and not answer.is_error:
                shown = answer.observation.partition("you see ")[2]
                assert shown == (f"a {inside[0]}." if inside else "nothing.")
                opened += 1
    assert opened > 6


async def test_a_door_that_was_opened_before_it_was_seen_closed_is_closed_at_the_start(
    recorded: list[Trajectory],
) -> None:
    real = rooms()
    task = next(task for task in real.tasks("train") if "trial_5" in task.id)  # its drawers are at one spot

    async def opens_the_other_drawer(first: StepResult, environment: Environment, seed: int) -> None:
        for command in ("go to drawer 1", "look", "open drawer 2"):
            await environment.step(act(command))

    opened = await play(real.create(), task, opens_the_other_drawer, spec=real.spec, seed=0, source=Source.REAL)
    assert "You open the drawer 2." in opened.transitions[-1].result.observation
    world = ObjectWorlds.of([opened, *recorded], real.reader, real.goals).worlds[task.world]
    assert world.fault is None
    assert as_object(as_object(world.start["places"])["drawer 2"])["open"] is False


HALL = Task(
    id="hall",
    env="alfworld",
    instruction="Your task is to: put a mug in shelf.",
    initial_state=(
        "You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 1, and a shelf 1."
    ),
)
TO_DESK = "go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 1."
TAKE = "take mug 1 from desk 1", "You pick up the mug 1 from the desk 1."
TO_SHELF = "go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see nothing."
MOVE = "move mug 1 to shelf 1", "You move the mug 1 to the shelf 1."


def told(identity: str, *steps: tuple[str, str]) -> Trajectory:
    """A recording of the hall; the task is accomplished by the move."""
    results = [
        (act(command), StepResult(observation=words, reward=float(is_over), terminated=is_over))
        for command, words in steps
        for is_over in [command == MOVE[0]]
    ]
    assert HALL.initial_state is not None
    return Trajectory(
        id=identity,
        task=HALL,
        world=HALL.world,
        transitions=Transition.chain(HALL.initial_state, results),
        source=Source.REAL,
        stop_reason=StopReason.TERMINATED if results[-1][1].terminated else StopReason.FINISHED,
    )


@pytest.mark.parametrize(
    ("commands", "is_won"),
    [((TO_DESK, TAKE, TO_SHELF, MOVE), True), ((TO_SHELF, MOVE), False)],
    ids=["the thing is held", "the thing is still on the desk"],
)
async def test_a_success_that_was_recorded_once_is_one_only_from_the_state_in_which_it_was_recorded(
    commands: Sequence[tuple[str, str]], is_won: bool
) -> None:
    dream = await dream_of([told("won", TO_DESK, TAKE, TO_SHELF, MOVE), told("looked around", TO_SHELF, TO_DESK)])
    await dream.reset(HALL)
    for command, _ in commands:
        result = await dream.step(act(command))
    assert (result.observation, dream.transitions[-1].provenance.tier) == (MOVE[1], Tier.RECORDED)
    assert (result.reward, result.terminated) == (float(is_won), is_won)
    assert dream.transitions[-1].provenance.open_end is not is_won
