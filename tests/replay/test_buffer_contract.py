from collections.abc import AsyncIterator
from dataclasses import replace
from uuid import UUID, uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.buffer import ReplayBuffer, Retrieval, Upserted
from dreamgym.replay.embedded import EmbeddedServer
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.ranking import Candidate, rank
from dreamgym.testing.replay import ENV, check_replay_buffer, sample_retrieval, sample_trajectory, sample_transition
from dreamgym.types import Source, Task, ToolCall, Trajectory, Transition

pytestmark = pytest.mark.anyio


async def test_the_buffer_in_memory_keeps_every_promise() -> None:
    async def make() -> ReplayBuffer:
        return MemoryBuffer(TrigramEncoder())

    await check_replay_buffer(make)


@pytest.fixture
async def opened() -> AsyncIterator[list[Store]]:
    stores: list[Store] = []
    yield stores
    for store in stores:
        await store.close()


async def test_the_buffer_in_postgres_keeps_every_promise(embedded_server: EmbeddedServer, opened: list[Store]) -> None:
    async def make() -> ReplayBuffer:
        name = f"contract_{uuid4().hex}"
        with psycopg.connect(embedded_server.dsn, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        opened.append(await open_store(embedded_server.dsn.replace("/dreamgym?", f"/{name}?"), TrigramEncoder()))
        return opened[-1].buffer

    await check_replay_buffer(make)


async def test_a_recording_without_a_task_adds_none_to_the_tasks(store: Store) -> None:
    blank = Task(id="unnamed", env=ENV, instruction="", metadata={"recorded": True})
    walk = sample_trajectory("walk", sample_transition("kitchen", "north", "hall"), instruction="")
    recording = walk.model_copy(update={"id": "recording", "task": blank})
    for buffer in (MemoryBuffer(TrigramEncoder()), store.buffer):
        await buffer.add([recording])
        await buffer.upsert([walk, recording])
        assert await buffer.tasks(ENV) == (walk.task,), "a start or more metadata makes it one"


async def test_a_trajectory_is_replaced_by_one_that_differs_by_1_and_true(store: Store) -> None:
    one, true = (
        sample_trajectory("walk", sample_transition("kitchen", "north", "hall").model_copy(update={"action": action}))
        for action in (ToolCall(name="go", arguments={"fast": fast}) for fast in (1, True))
    )
    for buffer in (MemoryBuffer(TrigramEncoder()), store.buffer):
        await buffer.add([one])
        assert await buffer.upsert([one]) == Upserted(new=0, changed=())
        assert await buffer.upsert([true]) == Upserted(new=0, changed=("walk",))
        (stored,) = await buffer.trajectories(ENV)
        assert stored.transitions[0].action.arguments["fast"] is True


async def test_tasks_stand_in_the_order_in_which_they_first_came(store: Store) -> None:
    walks = [sample_trajectory(f"walk {number}", instruction=goal) for number, goal in enumerate(["A", "B", "A", "C"])]
    for buffer in (MemoryBuffer(TrigramEncoder()), store.buffer):
        await buffer.add(walks)
        assert [task.instruction for task in await buffer.tasks(ENV)] == ["A", "B", "C"]


async def test_a_step_recorded_for_two_other_goals_is_shown_with_the_same_one_of_them_by_both_buffers(
    store: Store,
) -> None:
    step = sample_transition("cellar", "north", "kitchen")
    goals = ["Find the lamp.", "", "Find the book.", "Find the key."]
    for order in (goals, goals[::-1]):
        env = f"{ENV}-{uuid4().hex}"
        told = set()
        for buffer in (MemoryBuffer(TrigramEncoder()), store.buffer):
            for number, goal in enumerate(order):
                await buffer.add([sample_trajectory(f"{env}/{number}", step, world="one", env=env, instruction=goal)])
            asked = sample_retrieval("cellar", "north", goal="Find the coin.").model_copy(update={"env": env})
            told.add((await buffer.nearest(asked))[0].instruction)
        assert len(told) == 1


PLACES = st.sampled_from(["kitchen", "hall", "cellar", "hall with a lamp"])
COMMANDS = st.sampled_from(["north", "south", "take the lamp"])
STEPS = st.lists(st.builds(sample_transition, PLACES, COMMANDS, PLACES, reward=st.sampled_from([0.0, 1.0])), max_size=5)
GOALS = st.sampled_from(["Find the coin.", "Find the lamp.", ""])
WORLDS = st.sampled_from(["", "one", "two", "three"])
PLAYS = st.lists(st.tuples(STEPS, WORLDS, st.sampled_from(list(Source)), GOALS), min_size=1, max_size=8)
QUESTIONS = st.builds(
    sample_retrieval,
    PLACES,
    st.sampled_from(["north", "south", "jump"]),
    history=st.none() | STEPS.map(tuple),
    world=WORLDS,
    seed=st.integers(-5, 2**60),
    k=st.integers(1, 5),
    exclude=st.sampled_from(["", "0", "1"]),
    sources=st.frozensets(st.sampled_from(list(Source)), min_size=1),
    tool=st.sampled_from(["", "act", "ac"]),
    goal=GOALS,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plays=PLAYS,
    questions=st.lists(QUESTIONS, min_size=1, max_size=5),
    cut=st.integers(0, 8),
    as_of_cut=st.booleans(),
    keep=st.none() | st.integers(1, 2),
)
async def test_both_buffers_give_the_same_answer_to_any_question(
    store: Store,
    plays: list[tuple[list[Transition], str, Source, str]],
    questions: list[Retrieval],
    cut: int,
    as_of_cut: bool,
    keep: int | None,
) -> None:
    env = f"{ENV}-{uuid4().hex}"
    prefix = f"{env}/"
    trajectories = [
        sample_trajectory(prefix + str(number), *steps, world=world, source=source, env=env, instruction=goal)
        for number, (steps, world, source, goal) in enumerate(plays)
    ]
    memory = MemoryBuffer(TrigramEncoder())
    buffers: tuple[ReplayBuffer, ...] = (memory, store.buffer)
    marks, retired = [], []
    for buffer in buffers:
        await buffer.add(trajectories[:cut])
        marks.append(await buffer.watermark(env))
        await buffer.add(trajectories[cut:])
        for version in range(2 if keep is not None else 0):
            for task in await buffer.tasks(env):
                await buffer.record_outcomes(env, task.id, version, [1.0])
        retired.append(await buffer.retire(env, keep=keep or 1))
    assert retired[0] == retired[1]
    assert await memory.counts(env) == await store.buffer.counts(env)
    for question in questions:
        asked = question.model_copy(update={"env": env, "exclude": question.exclude and prefix + question.exclude})
        expected, found = [
            await buffer.nearest(asked.model_copy(update={"as_of": mark if as_of_cut else None}))
            for buffer, mark in zip(buffers, marks, strict=True)
        ]
        if any(shown.exact for shown in expected):
            assert [d.model_dump(exclude={"transition"}) for d in found] == [
                d.model_dump(exclude={"transition"}) for d in expected
            ]
        # Similar transitions are ordered by a rounded score. PostgreSQL keeps vectors in half precision, so two that
        # lie on either side of a rounding step may change places.
        assert [d.score for d in found] == pytest.approx([d.score for d in expected], abs=0.011)
        assert len(found) <= asked.k


def test_scores_that_differ_by_the_rounding_of_floats_alone_do_not_decide_the_order() -> None:
    one = Candidate(UUID(int=1), UUID(int=1), "one", Source.REAL, 0, 1.304, False, UUID(int=0), True, True)
    two = replace(one, id=UUID(int=2), outcome=UUID(int=2), world="two")
    for seed in range(8):
        asked = sample_retrieval("kitchen", "look", seed=seed)
        orders = {
            tuple(shown.id for shown in rank([replace(one, score=first), replace(two, score=second)], asked))
            for first, second in ((1.304, 1.304), (1.3040001, 1.304), (1.304, 1.3040001))
        }
        assert len(orders) == 1


EDITS = st.dictionaries(st.integers(0, 7), st.tuples(STEPS, WORLDS, st.sampled_from(list(Source)), GOALS), max_size=4)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(plays=PLAYS, edits=EDITS, questions=st.lists(QUESTIONS, min_size=1, max_size=5))
async def test_a_buffer_with_changed_trajectories_answers_as_one_that_was_filled_with_them_at_once(
    store: Store,
    plays: list[tuple[list[Transition], str, Source, str]],
    edits: dict[int, tuple[list[Transition], str, Source, str]],
    questions: list[Retrieval],
) -> None:
    env = f"{ENV}-{uuid4().hex}"

    def made(number: int, play: tuple[list[Transition], str, Source, str]) -> Trajectory:
        steps, world, source, goal = play
        return sample_trajectory(f"{env}/{number}", *steps, world=world, source=source, env=env, instruction=goal)

    old = [made(number, play) for number, play in enumerate(plays)]
    new = [made(number, edits.get(number, play)) for number, play in enumerate(plays)]
    at_once, memory = MemoryBuffer(TrigramEncoder()), MemoryBuffer(TrigramEncoder())
    await at_once.add(new)
    changed = [after.id for before, after in zip(old, new, strict=True) if before.digest() != after.digest()]
    for buffer in (memory, store.buffer):
        await buffer.add(old)
        assert await buffer.upsert(new) == Upserted(new=0, changed=tuple(changed))
        assert await buffer.trajectories(env, sources=frozenset(Source)) == tuple(new)
        counts, expected = await buffer.counts(env), await at_once.counts(env)
        assert (counts.transitions, counts.worlds) == (expected.transitions, expected.worlds)
        for question in questions:
            exclude = question.exclude and f"{env}/{question.exclude}"
            asked = question.model_copy(update={"env": env, "exclude": exclude})
            wanted, found = await at_once.nearest(asked), await buffer.nearest(asked)
            if any(shown.exact for shown in wanted):
                assert found == wanted
            assert [shown.score for shown in found] == pytest.approx([shown.score for shown in wanted], abs=0.011)
