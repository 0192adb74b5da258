"""Contract test for replay buffers, to run on your own.

async def test_my_buffer():
    await check_replay_buffer(make_my_buffer)
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence

from dreamgym.errors import DreamGymError, InvalidInput, UnknownName
from dreamgym.replay.buffer import GROUNDED, BufferCounts, Demonstration, ReplayBuffer, Retrieval, Upserted
from dreamgym.types import (
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

MakeBuffer = Callable[[], Awaitable[ReplayBuffer]]
ENV = "contract"


async def check_replay_buffer(make_buffer: MakeBuffer) -> None:
    """Check every promise of the ReplayBuffer protocol; each on a new, empty buffer.

    Args:
        make_buffer: an `async` function without parameters that returns such a buffer.
    """
    for check in (
        _an_empty_buffer_answers,
        _trajectories_come_back_as_they_went_in,
        _an_id_is_stored_once,
        _what_has_changed_takes_the_place_of_what_is_stored,
        _only_what_the_old_content_held_is_forgotten,
        _an_equal_step_is_shown_with_the_reasoning_of_the_change,
        _a_changed_task_keeps_its_outcomes,
        _an_id_of_another_environment_is_refused,
        _a_bad_batch_leaves_nothing,
        _identical_comes_first_and_alone,
        _the_world_that_agrees_comes_first,
        _a_seed_keeps_its_world,
        _the_own_world_breaks_the_tie,
        _a_reward_is_that_of_the_asked_goal,
        _a_similar_step_is_shown_in_its_own_state_with_its_own_score,
        _a_dream_lends_a_recording_neither_its_reward_nor_its_goal,
        _a_recording_comes_before_a_dream_that_agrees_better,
        _recordings_that_differ_in_their_end_alone_are_disputed,
        _withheld_history_draws_anew,
        _the_running_episode_is_never_returned,
        _only_allowed_sources_are_returned,
        _as_of_a_watermark_nothing_later_is_there,
        _what_has_changed_is_found_as_of_its_old_place,
        _a_group_keeps_its_watermark,
        _only_calls_of_one_tool_are_returned,
        _no_outcome_comes_twice,
        _tasks_keep_their_order,
        _outcomes_become_values,
        _the_policy_that_tried_last_is_the_newest_whatever_its_number,
        _dreams_of_tasks_always_solved_are_retired,
        _a_task_that_fails_once_keeps_its_dreams,
        _what_was_seen_in_reality_is_found_after_retiring_as_before,
        _what_was_retired_can_be_dreamt_again,
    ):
        buffer = await make_buffer()
        try:
            await check(buffer)
        finally:
            await buffer.close()


def sample_transition(
    state: str, command: str, next_state: str, *, reward: float = 0.0, terminated: bool = False
) -> Transition:
    """A step of a game with one text command, as recorded in reality."""
    return Transition(
        state=state,
        action=ToolCall(name="act", arguments={"command": command}),
        result=StepResult(observation=next_state, reward=reward, terminated=terminated),
        next_state=next_state,
        provenance=Provenance(tier=Tier.REAL),
    )


INSTRUCTION = "Find the coin."


def sample_trajectory(
    name: str,
    *transitions: Transition,
    world: str = "",
    source: Source = Source.REAL,
    env: str = ENV,
    instruction: str = INSTRUCTION,
) -> Trajectory:
    """A closed trajectory. Without another instruction it has one fixed task."""
    task_id = "go" if instruction == INSTRUCTION else f"go: {instruction}"
    task = Task(id=task_id, env=env, instruction=instruction, initial_state="kitchen")
    return Trajectory(
        id=name, task=task, transitions=transitions, source=source, stop_reason=StopReason.CLOSED, world=world
    )


def sample_retrieval(state: str, command: str, **changes: object) -> Retrieval:
    """A query of an episode that started in the kitchen."""
    action = ToolCall(name="act", arguments={"command": command})
    asked = Retrieval(env=ENV, state=state, action=action, k=3, initial_state="kitchen", goal=INSTRUCTION)
    return asked.model_copy(update=changes)


def _worlds(count: int) -> list[Trajectory]:
    """Houses that differ in what lies north of the kitchen."""
    return [
        sample_trajectory(
            f"walk {number}",
            sample_transition("kitchen", "north", f"hall {number}"),
            sample_transition(f"hall {number}", "south", "kitchen"),
            sample_transition("kitchen", "look", f"kitchen with lamp {number}"),
            world=f"house {number}",
        )
        for number in range(count)
    ]


async def _refused(call: Awaitable[object], error: type[DreamGymError]) -> bool:
    try:
        await call
    except error:
        return True
    return False


async def _found(buffer: ReplayBuffer, **changes: object) -> tuple[Demonstration, ...]:
    return await buffer.nearest(sample_retrieval("kitchen", "north", **changes))


def _where(found: Sequence[Demonstration]) -> list[str]:
    return [demonstration.world for demonstration in found]


async def _an_empty_buffer_answers(buffer: ReplayBuffer) -> None:
    assert await buffer.nearest(sample_retrieval("kitchen", "north")) == ()
    assert await buffer.trajectories(ENV) == ()
    assert await buffer.tasks(ENV) == ()
    assert await buffer.task_values(ENV) == ()
    assert await buffer.counts(ENV) == BufferCounts(tasks=0, trajectories=0, transitions=0, worlds=0)
    assert await buffer.add([]) == 0


async def _trajectories_come_back_as_they_went_in(buffer: ReplayBuffer) -> None:
    first, second = _worlds(2)
    step = first.transitions[0]
    again = step.model_copy(update={"reasoning": "another thought", "provenance": Provenance(tier=Tier.MODEL, seed=3)})
    twin = sample_trajectory("twin", again, again, world="house 0", source=Source.SYNTHETIC)
    empty = sample_trajectory("empty")
    assert await buffer.add([second, first, twin, empty]) == 4
    assert await buffer.trajectories(ENV) == (second, first, empty), "stored trajectories, unchanged, oldest first"
    assert await buffer.trajectories(ENV, limit=1) == (second,)
    assert await buffer.trajectories(ENV, sources=frozenset({Source.SYNTHETIC})) == (twin,)
    assert await buffer.counts(ENV) == BufferCounts(tasks=1, trajectories=4, transitions=6, worlds=3)


async def _an_id_is_stored_once(buffer: ReplayBuffer) -> None:
    first, second = _worlds(2)
    assert await buffer.add([first, first]) == 1
    assert await buffer.add([second.model_copy(update={"id": first.id}), second]) == 1
    assert await buffer.trajectories(ENV) == (first, second), "a stored trajectory must not change"


async def _what_has_changed_takes_the_place_of_what_is_stored(buffer: ReplayBuffer) -> None:
    first, second, third = _worlds(3)
    assert await buffer.upsert([first, second]) == Upserted(new=2)
    assert await buffer.upsert([first, second]) == Upserted(new=0), "equal content changes nothing"
    began = await buffer.watermark(ENV)
    task = first.task.model_copy(update={"id": "named", "instruction": "Leave the house."})
    step = first.transitions[0].model_copy(update={"reasoning": "The hall is north."})
    edited = first.model_copy(update={"task": task, "final_reward": 1.0, "transitions": (step, *first.transitions[1:])})
    assert await buffer.upsert([third, edited, second]) == Upserted(new=1, changed=(first.id,))
    assert await buffer.trajectories(ENV) == (edited, second, third), "it keeps its place"
    asked = sample_retrieval("kitchen", "north", world="house 0", goal=task.goal)
    for as_of in (None, began):  # also as of the watermark of the old content
        best = (await buffer.nearest(asked.model_copy(update={"as_of": as_of})))[0]
        assert (best.transition, best.same_goal) == (step, True)
    assert not any(found.world == "house 0" and found.same_goal for found in await _found(buffer, goal=INSTRUCTION))
    newest = await buffer.newest_recording(ENV)
    assert await buffer.upsert([first]) == Upserted(new=0, changed=(first.id,)), "storing the first again restores it"
    assert await buffer.newest_recording(ENV) != newest, "what was learned from the recordings is learned again"
    assert [found.same_goal for found in await _found(buffer, goal=INSTRUCTION)] == [True, True, True]


async def _only_what_the_old_content_held_is_forgotten(buffer: ReplayBuffer) -> None:
    first, second = _worlds(2)
    dream = second.model_copy(update={"id": "dream", "source": Source.SYNTHETIC})
    twin = second.model_copy(update={"id": "twin", "world": "house 0"})
    await buffer.upsert([first, second, dream, twin])
    shorter = second.model_copy(update={"transitions": second.transitions[:1], "world": "house 9"})
    await buffer.upsert([shorter])
    assert await buffer.trajectories(ENV) == (first, shorter, twin)
    assert await buffer.trajectories(ENV, sources=frozenset({Source.SYNTHETIC})) == (dream,)
    assert await buffer.counts(ENV) == BufferCounts(tasks=1, trajectories=4, transitions=6, worlds=3)
    look = sample_retrieval("kitchen", "look", k=9)
    assert sorted(_where(await buffer.nearest(look))) == ["house 0", "house 0"], "the twin still holds what it held"
    look = look.model_copy(update={"exclude": "twin"})
    assert [found.transition for found in await buffer.nearest(look)] == [first.transitions[2]]
    north = look.model_copy(update={"action": ToolCall(name="act", arguments={"command": "north"}), "world": "house 9"})
    assert _where(await buffer.nearest(north))[0] == "house 9"
    gone = first.model_copy(update={"transitions": ()})
    assert await buffer.upsert([gone, twin.model_copy(update={"transitions": ()})]) == Upserted(
        new=0, changed=(first.id, twin.id)
    )
    assert await buffer.nearest(look.model_copy(update={"tool": "act"})) == await buffer.nearest(
        north.model_copy(update={"action": look.action})
    )
    only = await buffer.nearest(look)
    assert [(found.transition, found.world) for found in only] == [(shorter.transitions[0], "house 9")]


async def _an_equal_step_is_shown_with_the_reasoning_of_the_change(buffer: ReplayBuffer) -> None:
    (walk,) = _worlds(1)
    twin = walk.model_copy(update={"id": "twin"})
    await buffer.upsert([walk, twin])
    steps = tuple(step.model_copy(update={"reasoning": f"thought {n}"}) for n, step in enumerate(walk.transitions))
    annotated = twin.model_copy(update={"transitions": steps})
    assert await buffer.upsert([annotated]) == Upserted(new=0, changed=("twin",))
    assert await buffer.trajectories(ENV) == (walk, annotated), "the other one stays as it was"
    assert (await _found(buffer))[0].transition == steps[0]


async def _a_changed_task_keeps_its_outcomes(buffer: ReplayBuffer) -> None:
    (walk,) = _worlds(1)
    other = Task(id="other", env=ENV, instruction="Look around.")
    await buffer.upsert([walk], [walk.task, other])
    await buffer.record_outcomes(ENV, walk.task.id, 0, [1.0, 0.0])
    before = await buffer.task_values(ENV)
    task = walk.task.model_copy(update={"instruction": "Find the lamp."})
    assert await buffer.upsert([walk], [task]) == Upserted(new=0)
    assert await buffer.tasks(ENV) == (task, other)
    assert await buffer.task_values(ENV) == before


async def _an_id_of_another_environment_is_refused(buffer: ReplayBuffer) -> None:
    (walk,) = _worlds(1)
    await buffer.add([walk])
    task = walk.task.model_copy(update={"env": "other"})
    assert await _refused(buffer.upsert([walk.model_copy(update={"task": task})], [task]), InvalidInput)
    assert await buffer.tasks("other") == (), "all or nothing"
    assert await buffer.trajectories(ENV) == (walk,)


async def _a_bad_batch_leaves_nothing(buffer: ReplayBuffer) -> None:
    (good,) = _worlds(1)
    for text in ("a\x00b", "a\ud800b"):
        bad = sample_trajectory("bad one", sample_transition(text, "north", "hall"))
        refusal = ""
        try:
            await buffer.add([good, bad])
        except InvalidInput as error:
            refusal = str(error)
        assert "bad one" in refusal, f"{text!r} cannot be stored: an InvalidInput names the trajectory"
    assert await buffer.trajectories(ENV) == ()


async def _identical_comes_first_and_alone(buffer: ReplayBuffer) -> None:
    await buffer.add(_worlds(2))
    exact = await buffer.nearest(sample_retrieval("kitchen", "north"))
    assert [found.transition.next_state[:4] for found in exact] == ["hall", "hall"]
    assert all(found.exact and math.isclose(found.score, 1.5) for found in exact)
    similar = await buffer.nearest(sample_retrieval("kitchen", "north!"))
    assert len(similar) == 3, "expected k similar transitions if none is identical"
    assert similar[0].transition.action.arguments == {"command": "north"}
    assert not any(found.exact for found in similar)
    assert all(-1 <= found.score <= 1.5 for found in similar)
    assert await buffer.nearest(sample_retrieval("kitchen", "north", k=0)) == ()


async def _the_world_that_agrees_comes_first(buffer: ReplayBuffer) -> None:
    await buffer.add(_worlds(5))
    for number in range(5):
        seen = (sample_transition("kitchen", "look", f"kitchen with lamp {number}"),)
        for command in ("north", "north!"):
            found = await buffer.nearest(sample_retrieval("kitchen", command, history=seen, world="house 1"))
            assert found[0].world == f"house {number}", "the world that the episode has seen so far"
            assert found[0].transition.next_state == f"hall {number}"


async def _a_seed_keeps_its_world(buffer: ReplayBuffer) -> None:
    await buffer.add(_worlds(8))
    firsts = set()
    for seed in range(20):
        north = await buffer.nearest(sample_retrieval("kitchen", "north", seed=seed, k=8))
        look = await buffer.nearest(sample_retrieval("kitchen", "look", seed=seed, k=8))
        assert _where(north) == _where(look), "one seed, one order of worlds"
        firsts.add(north[0].world)
    assert len(firsts) > 2, "seeds differ"


async def _the_own_world_breaks_the_tie(buffer: ReplayBuffer) -> None:
    await buffer.add(_worlds(5))
    for seed in range(5):
        found = await buffer.nearest(sample_retrieval("kitchen", "north", seed=seed, world="house 3"))
        assert found[0].world == "house 3"


async def _a_reward_is_that_of_the_asked_goal(buffer: ReplayBuffer) -> None:
    lamp = "Find the lamp."
    seen = sample_transition("kitchen", "north", "hall"), sample_transition("hall", "south", "kitchen")
    wins = sample_transition("hall", "take it", "it is yours", reward=1.0, terminated=True)
    loses = sample_transition("hall", "take it", "it is yours")
    await buffer.add(
        [
            sample_trajectory("for the coin", *seen, wins, world="agrees"),
            sample_trajectory("for the lamp", loses, world="agrees less", instruction=lamp),
        ]
    )
    asked = sample_retrieval("hall", "take it", history=seen)
    (for_coin,) = await buffer.nearest(asked)
    assert (for_coin.transition, for_coin.instruction, for_coin.same_goal) == (wins, INSTRUCTION, True)
    (for_lamp,) = await buffer.nearest(asked.model_copy(update={"goal": lamp}))
    assert (for_lamp.transition, for_lamp.instruction, for_lamp.same_goal) == (loses, lamp, True)
    assert for_lamp.world == "agrees", "what happens is still that of the world that agrees best"
    (for_nothing,) = await buffer.nearest(asked.model_copy(update={"goal": "Find the key."}))
    assert (for_nothing.transition, for_nothing.instruction, for_nothing.same_goal) == (wins, INSTRUCTION, False)
    open_task = sample_trajectory("of nobody", wins, world="unnamed", instruction="")
    await buffer.add([open_task])
    for goal, same in ((open_task.task.goal, True), ("", False), ("\nanother", False)):
        (found,) = await buffer.nearest(asked.model_copy(update={"goal": goal, "history": ()}))
        assert found.same_goal is same, f"an open task shares its goal with no other, asked for was {goal!r}"


async def _a_similar_step_is_shown_in_its_own_state_with_its_own_score(buffer: ReplayBuffer) -> None:
    near = sample_trajectory("near", sample_transition("kitchen", "north", "hall"), instruction="Leave the house.")
    far = sample_trajectory("far", sample_transition("a dark cellar under the barn", "north", "hall"))
    await buffer.add([near])
    (alone,) = await buffer.nearest(sample_retrieval("kitchen", "north!"))
    await buffer.add([far])
    (best,) = await buffer.nearest(sample_retrieval("kitchen", "north!"))
    assert best.transition.state == "kitchen", "the same outcome for the asked goal, but in another state"
    assert (best.id, best.same_goal) == (alone.id, False)
    assert math.isclose(best.score, alone.score, abs_tol=1e-3)


async def _a_dream_lends_a_recording_neither_its_reward_nor_its_goal(buffer: ReplayBuffer) -> None:
    stays = sample_transition("hall", "take it", "it is yours")
    wins = sample_transition("hall", "take it", "it is yours", reward=1.0, terminated=True)
    alike = sample_transition("hall", "drop it", "it is gone")
    dream = sample_trajectory("dream", alike, wins, world="b", instruction="Find the lamp.", source=Source.SYNTHETIC)
    await buffer.add([sample_trajectory("recorded", stays, alike, world="a"), dream])
    for command, recorded in (("take it", stays), ("drop it", alike)):
        asked = sample_retrieval("hall", command, world="a", goal="Find the lamp.", sources=frozenset(Source))
        (found,) = await buffer.nearest(asked)
        assert (found.transition, found.source, found.same_goal) == (recorded, Source.REAL, False)


async def _a_recording_comes_before_a_dream_that_agrees_better(buffer: ReplayBuffer) -> None:
    seen = sample_transition("cellar", "look", "hall")
    both = sample_transition("hall", "wait", "still the hall")
    real, invented = (sample_transition("hall", "open", answer) for answer in ("a box", "a treasure"))
    dream = sample_trajectory("dream", seen, both, invented, world="b", source=Source.SYNTHETIC)
    await buffer.add([dream, sample_trajectory("recorded", both, real, world="a")])
    for command, wanted in (("wait", [(both, "a")]), ("open", [(real, "a"), (invented, "b")])):
        asked = sample_retrieval("hall", command, world="b", history=(seen,), sources=frozenset(Source), k=4)
        found = await buffer.nearest(asked)
        assert [(one.transition, one.world) for one in found] == wanted
        assert found[0].source is Source.REAL


async def _recordings_that_differ_in_their_end_alone_are_disputed(buffer: ReplayBuffer) -> None:
    for command, reward, world, goal, source, disputed in (
        ("fail", 0.0, "a", INSTRUCTION, Source.IMPORTED, True),
        ("do half", 0.5, "a", INSTRUCTION, Source.REAL, False),
        ("fail elsewhere", 0.0, "b", INSTRUCTION, Source.REAL, False),
        ("fail another task", 0.0, "a", "Find the lamp.", Source.REAL, False),
        ("dream", 0.0, "a", INSTRUCTION, Source.SYNTHETIC, False),
    ):
        wins = sample_transition("hall", command, "done", reward=1.0, terminated=True)
        other = sample_transition("hall", command, "done", reward=reward, terminated=True)
        await buffer.add(
            [
                sample_trajectory(f"{command} 1", wins, world="a"),
                sample_trajectory(f"{command} 2", other, world=world, instruction=goal, source=source),
            ]
        )
        (found,) = await buffer.nearest(sample_retrieval("hall", command, world="a", sources=frozenset(Source)))
        assert found.disputed is disputed, command


async def _withheld_history_draws_anew(buffer: ReplayBuffer) -> None:
    await buffer.add(_worlds(8))
    asked = sample_retrieval("kitchen", "north", history=None, k=8)
    first = await buffer.nearest(asked)
    assert first == await buffer.nearest(asked), "the same question, the same answer"
    orders = {tuple(_where(await buffer.nearest(asked.model_copy(update={"seed": seed})))) for seed in range(5)}
    assert len(orders) > 1


async def _the_running_episode_is_never_returned(buffer: ReplayBuffer) -> None:
    shared = sample_transition("kitchen", "wait", "kitchen")
    await buffer.add([*_worlds(2), sample_trajectory("own", sample_transition("kitchen", "north", "secret"), shared)])
    await buffer.add([sample_trajectory("other", shared)])
    for command in ("north", "north!"):
        found = await buffer.nearest(sample_retrieval("kitchen", command, exclude="own", k=9))
        assert found
        assert "secret" not in [demonstration.transition.next_state for demonstration in found]
    assert _where(await buffer.nearest(sample_retrieval("kitchen", "wait", exclude="own"))) == ["other"]


async def _only_allowed_sources_are_returned(buffer: ReplayBuffer) -> None:
    dream = sample_trajectory("dream", sample_transition("kitchen", "north", "dreamt"), source=Source.SYNTHETIC)
    await buffer.add([dream])
    assert await buffer.nearest(sample_retrieval("kitchen", "north")) == ()
    everything = frozenset(Source)
    (found,) = await buffer.nearest(sample_retrieval("kitchen", "north", sources=everything))
    assert (found.source, found.world) == (Source.SYNTHETIC, "dream")
    await buffer.add([sample_trajectory("waking", dream.transitions[0])])
    (found,) = await buffer.nearest(sample_retrieval("kitchen", "north"))
    assert (found.source, found.world) == (Source.REAL, "waking"), "seen in reality since"


async def _as_of_a_watermark_nothing_later_is_there(buffer: ReplayBuffer) -> None:
    everything = frozenset(Source)
    assert await buffer.watermark(ENV) == 0
    await buffer.add(_worlds(3))
    then = await buffer.watermark(ENV)
    assert await buffer.newest_recording(ENV) == then
    seen = (sample_transition("kitchen", "look", "kitchen with lamp 2"),)
    questions = [
        sample_retrieval(state, command, history=seen, sources=sources, as_of=then, k=9)
        for state, command in (("kitchen", "north"), ("kitchen", "north!"), ("hall 1", "look up"))
        for sources in (everything, GROUNDED)
    ]
    before = [await buffer.nearest(question) for question in questions]
    for number, source in enumerate(Source):
        later = [
            sample_transition("kitchen", "north", f"dreamt {number}"),
            sample_transition("kitchen with lamp 2", "north!", f"dreamt {number}"),
            sample_transition("hall 1", "look up", "sky"),
            *(sample_transition("hall 1", f"look up {n}", "sky") for n in range(9)),
        ]
        await buffer.add([sample_trajectory(f"later {number}", *later, world="house 0", source=source)])
        assert [await buffer.nearest(question) for question in questions] == before, f"a {source} one came later"
    now = [question.model_copy(update={"as_of": await buffer.watermark(ENV)}) for question in questions]
    assert [await buffer.nearest(question) for question in now] == [
        await buffer.nearest(question.model_copy(update={"as_of": None})) for question in questions
    ]
    assert len(await buffer.nearest(now[0])) > len(before[0])


async def _what_has_changed_is_found_as_of_its_old_place(buffer: ReplayBuffer) -> None:
    south, north = sample_transition("kitchen", "south", "garden"), sample_transition("kitchen", "north", "hall")
    await buffer.add([sample_trajectory("first", south)])
    then = await buffer.watermark(ENV)
    await buffer.add([sample_trajectory("later", sample_transition("kitchen", "north", "cellar"))])
    await buffer.upsert([sample_trajectory("first", north)])
    for command in ("north", "north!"):  # an identical call and a similar one
        found = await buffer.nearest(sample_retrieval("kitchen", command, as_of=then, k=9))
        assert [one.transition for one in found] == [north], "the first has the state and the call of the later one"
    # now with the later one in the same world and with the same outcome
    west, east = sample_transition("attic", "west", "roof"), sample_transition("attic", "east", "loft")
    await buffer.add([sample_trajectory("early", west, world="house")])
    then = await buffer.watermark(ENV)
    await buffer.add([sample_trajectory("late", east, world="house")])
    await buffer.upsert([sample_trajectory("early", east, world="house")])
    for command in ("east", "east!"):
        found = await buffer.nearest(sample_retrieval("attic", command, as_of=then, k=1))
        assert [one.transition for one in found] == [east], "the early one has the step of the late one"


async def _a_group_keeps_its_watermark(buffer: ReplayBuffer) -> None:
    first, second = _worlds(2)
    await buffer.add([first])
    began = await buffer.watermark(ENV, "a group")
    await buffer.add([second])
    assert await buffer.watermark(ENV, "a group") == began
    assert await buffer.watermark(ENV, "another") == await buffer.watermark(ENV) > began
    assert await buffer.watermark("elsewhere", "a group") == 0


async def _only_calls_of_one_tool_are_returned(buffer: ReplayBuffer) -> None:
    steps = [sample_transition(f"hall {n}", "north", f"kitchen {n}") for n in range(3)]
    other = ToolCall(name="actor", arguments={"command": "north"})
    steps += [step.model_copy(update={"action": other}) for step in steps]
    await buffer.add([sample_trajectory(str(n), step) for n, step in enumerate(steps)])
    for tool in ("act", "actor"):
        found = await buffer.nearest(sample_retrieval("hall", "north", tool=tool, k=9))
        assert [demonstration.transition.action.name for demonstration in found] == [tool] * 3


async def _no_outcome_comes_twice(buffer: ReplayBuffer) -> None:
    plain = sample_transition("kitchen", "north", "hall")
    paid = sample_transition("kitchen", "north", "hall", reward=1.0)
    await buffer.add([sample_trajectory("a", plain), sample_trajectory("b", plain), sample_trajectory("c", paid)])
    for command in ("north", "north!"):
        assert len(await buffer.nearest(sample_retrieval("kitchen", command))) == 1


async def _tasks_keep_their_order(buffer: ReplayBuffer) -> None:
    tasks = [Task(id=name, env=ENV, instruction=f"do {name}") for name in ("c", "a", "b")]
    await buffer.add_tasks(tasks[:2])
    await buffer.add_tasks([tasks[0].model_copy(update={"instruction": "changed"}), tasks[2]])
    assert await buffer.tasks(ENV) == tuple(tasks)


async def _outcomes_become_values(buffer: ReplayBuffer) -> None:
    await buffer.add_tasks([Task(id=name, env=ENV, instruction=name) for name in ("tried", "untried")])
    await buffer.record_outcomes(ENV, "tried", 1, [0.0, 0.0])
    await buffer.record_outcomes(ENV, "tried", 2, [1.0, 0.0, 0.0])
    await buffer.record_outcomes(ENV, "tried", 2, [1.0])
    (value,) = await buffer.task_values(ENV)
    assert (value.task_id, value.policy_version, value.attempts) == ("tried", 2, 4)
    assert value.total_attempts == 6
    assert math.isclose(value.total_mean, 1 / 3)
    assert math.isclose(value.mean, 0.5)
    assert math.isclose(value.variance, 0.25), "divided by n"
    assert await _refused(buffer.record_outcomes(ENV, "unheard of", 1, [1.0]), UnknownName)


async def _the_policy_that_tried_last_is_the_newest_whatever_its_number(buffer: ReplayBuffer) -> None:
    await buffer.add_tasks([Task(id=name, env=ENV, instruction=name) for name in ("second", "first")])
    await buffer.record_outcomes(ENV, "first", 0, [1.0, 0.0], run="a")
    for run, version, reward in (("a", 90, 0.0), ("b", 7, 1.0)):
        await buffer.record_outcomes(ENV, "second", version, [reward] * 2, run=run)
    await buffer.record_outcomes(ENV, "second", 90, [0.0], run="b")
    await buffer.record_outcomes(ENV, "second", 7, [1.0], run="b")
    await buffer.record_outcomes(ENV, "second", 8, [], run="b")
    second, first = await buffer.task_values(ENV)
    assert (second.task_id, first.task_id) == ("second", "first"), "in the order of the tasks"
    assert (second.policy_version, second.attempts, second.mean) == (7, 3, 1.0), "version 90 of both runs is older"
    assert second.total_attempts == 6
    assert math.isclose(second.total_mean, 0.5)


async def _solved(buffer: ReplayBuffer, *more: float) -> None:
    for version, rewards in enumerate(([0.0], [1.0] * 8, [1.0] * 8, more)):
        if rewards:
            await buffer.record_outcomes(ENV, "go", version, rewards)


def _dreams(count: int, first: int = 0, stop_reason: StopReason = StopReason.CLOSED) -> list[Trajectory]:
    steps = [[sample_transition("kitchen", f"go {n}", f"dream {n}")] for n in range(first, first + count)]
    dreams = [sample_trajectory(f"d{n}", *step, source=Source.SYNTHETIC) for n, step in enumerate(steps, first)]
    return [dream.model_copy(update={"stop_reason": stop_reason}) for dream in dreams]


async def _dreams_of_tasks_always_solved_are_retired(buffer: ReplayBuffer) -> None:
    synthetic, real = frozenset({Source.SYNTHETIC}), _worlds(2)
    won, lost = _dreams(6), _dreams(3, 6, StopReason.MAX_STEPS)
    imported = sample_trajectory("imported", won[0].transitions[0], source=Source.IMPORTED)
    other = won[0].model_copy(update={"id": "other", "task": won[0].task.model_copy(update={"id": "unsolved"})})
    await buffer.add([*real, imported, *won, *lost, other])
    assert await buffer.retire(ENV) == await buffer.retire("elsewhere") == 0, "nobody has solved anything yet"
    await _solved(buffer)
    assert await buffer.retire(ENV, keep=2) == 5
    assert await buffer.trajectories(ENV, sources=synthetic) == (*won[-2:], *lost[-2:], other)
    assert await buffer.trajectories(ENV) == (*real, imported)
    everything = sample_retrieval("kitchen", "go", sources=frozenset(Source), k=99)
    left = {found.transition.next_state for found in await buffer.nearest(everything)}
    assert left == {step.next_state for kept in (*real, *won[-2:], *lost[-2:], other) for step in kept.transitions}
    assert await buffer.counts(ENV) == BufferCounts(tasks=2, trajectories=8, transitions=11, worlds=8)
    assert await buffer.retire(ENV, keep=2) == 0
    newest_stays = "keep must be at least 1: the newest trajectory marks the position of the buffer"
    assert await _refused(buffer.retire(ENV, keep=0), InvalidInput), newest_stays


async def _a_task_that_fails_once_keeps_its_dreams(buffer: ReplayBuffer) -> None:
    await buffer.add(_dreams(3))
    await _solved(buffer, 1.0, 1.0, 0.0)
    assert await buffer.retire(ENV, keep=1) == 0


async def _what_was_seen_in_reality_is_found_after_retiring_as_before(buffer: ReplayBuffer) -> None:
    """Check this also for steps that were dreamt too, before or after, in the same world or elsewhere."""
    real = _worlds(2)
    first, second = (
        real[n].model_copy(update={"id": f"twin {n}", "source": Source.SYNTHETIC, "world": f"house {n}"})
        for n in (0, 1)
    )
    marks = [await buffer.watermark(ENV)]
    for batch in ([first], [real[0]], [real[1], second], _dreams(2)):
        await buffer.add(batch)
        marks.append(await buffer.watermark(ENV))
    questions = [
        sample_retrieval("kitchen", command, history=(real[1].transitions[2],), as_of=as_of, k=9, world="house 0")
        for command in ("north", "north!")
        for as_of in (*marks, None)
    ]
    before = [await buffer.nearest(question) for question in questions]
    await _solved(buffer)
    assert await buffer.retire(ENV, keep=1) == 3
    assert [await buffer.nearest(question) for question in questions] == before
    assert await buffer.watermark(ENV) == marks[-1]


async def _what_was_retired_can_be_dreamt_again(buffer: ReplayBuffer) -> None:
    dreams = _dreams(2)
    asked = sample_retrieval("kitchen", "go 1", sources=frozenset(Source), k=9)

    async def found(**changes: object) -> list[str]:
        return [shown.transition.next_state for shown in await buffer.nearest(asked.model_copy(update=changes))]

    await buffer.add([*dreams, dreams[1].model_copy(update={"id": "twin", "world": "d1"}), *_dreams(1, 9)])
    await _solved(buffer)
    began = await buffer.watermark(ENV)
    assert await found(exclude="d1") == ["dream 1"], "its twin has seen it too"
    assert await buffer.retire(ENV, keep=1) == 3
    assert await found() == ["dream 9"]
    assert await buffer.add(dreams) == 2
    assert await found() == ["dream 1"]
    assert await found(as_of=began) == ["dream 9"]
    assert set(await found(exclude="d1")) == {"dream 0", "dream 9"}
