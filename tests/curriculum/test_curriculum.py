"""The curriculum practises tasks that are solved only sometimes, covers the given tasks, and can be continued."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import (
    EnvironmentSpec,
    Origin,
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
from dreamgym.curriculum.evidence import Evidence
from dreamgym.curriculum.generator import LanguageVariation, RecordedWorlds, StartVariation, variation
from dreamgym.curriculum.sampler import KEPT_GENERATED, Curriculum
from dreamgym.curriculum.value import group_variance
from dreamgym.errors import InvalidInput
from dreamgym.llm import ScriptedLLM

rewards = st.lists(st.one_of(st.none(), st.sampled_from([0.0, 1.0])), max_size=12)


def tasks(n: int) -> list[Task]:
    return [Task(id=f"t{i}", env="rooms", instruction="find it", initial_state="hall") for i in range(n)]


@given(rewards)
def test_the_value_of_a_task_is_p_times_one_minus_p(rewards_G: list[float | None]) -> None:
    valid = [reward for reward in rewards_G if reward is not None]
    value = group_variance(rewards_G)
    if len(valid) < 2:
        assert value is None
    else:
        p = sum(valid) / len(valid)
        assert value is not None
        assert value == pytest.approx(p * (1 - p))
        assert value <= 0.25


@given(share=st.floats(0, 1), n=st.integers(1, 20), generated=st.integers(0, 30), iteration=st.integers(0, 50))
def test_at_most_the_share_of_an_iteration_is_generated(share: float, n: int, generated: int, iteration: int) -> None:
    curriculum = Curriculum(tasks(5), share=share, seed=1)
    curriculum.add(variation(task, "find it", f"room {i}") for i, task in enumerate(tasks(generated)))
    sampled = curriculum.sample(n, iteration)
    assert len(sampled) == n
    assert sum(task.origin is Origin.GENERATED for task in sampled) <= share * n


def test_a_generated_task_that_is_held_out_for_a_test_is_not_practised() -> None:
    seed, test = (
        Task(id="t", env="rooms", instruction="find it", initial_state="hall", metadata={"world": "w"}),
        "attic",
    )
    held_out = seed.model_copy(update={"id": "test", "initial_state": test})
    curriculum = Curriculum([seed], share=0.5, seed=0, held_out=lambda: [held_out])
    curriculum.add([variation(seed, "find it", test), variation(seed, "find it", "cellar")])
    assert [task.initial_state for task in curriculum.generated] == ["cellar"]


def test_the_same_iteration_draws_the_same_tasks_and_another_one_others() -> None:
    curriculum = Curriculum(tasks(50), share=0, seed=3)
    assert curriculum.sample(8, 4) == curriculum.sample(8, 4)
    assert curriculum.sample(8, 4) != curriculum.sample(8, 5)


def test_half_solved_tasks_are_the_most_valuable_and_solved_ones_are_left_out() -> None:
    curriculum = Curriculum(tasks(3), share=0.5, seed=0)
    easy, half, rare = tasks(3)
    curriculum.record(easy, [1.0, 1.0, 1.0, 1.0])
    curriculum.record(half, [1.0, 0.0, 1.0, 0.0])
    curriculum.record(rare, [1.0, 0.0, 0.0, 0.0])
    assert [task.id for task in curriculum.most_valuable(5)] == [half.id, rare.id]


def test_a_generated_task_that_is_always_solved_is_dropped_and_does_not_come_back() -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0)
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    curriculum.record(new, [1.0, 1.0, 1.0])
    assert curriculum.generated == ()
    restored = Curriculum(tasks(2), share=1, seed=0)
    restored.restore(json.loads(json.dumps(curriculum.state())))
    for known in (curriculum, restored):
        known.add([new])
        assert known.generated == ()


def test_a_generated_task_that_always_fails_is_dropped_after_sixteen_attempts() -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0)
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    curriculum.sample(2, 0)
    curriculum.record(new, [0.0] * 8)
    assert [*curriculum.generated] == [new]
    curriculum.sample(2, 1)
    curriculum.record(new, [0.0] * 8)
    assert curriculum.generated == ()


@pytest.mark.parametrize("rewards_G", [[0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0, None]])
def test_small_groups_drop_a_generated_task_after_sixteen_failed_attempts_too(rewards_G: list[float | None]) -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0)
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    attempts = sum(reward is not None for reward in rewards_G)
    groups = -(-16 // attempts)
    for iteration in range(groups):
        assert curriculum.generated == (new,)
        curriculum.restore(json.loads(json.dumps(curriculum.state())))
        curriculum.sample(2, iteration)
        curriculum.record(new, rewards_G)
    assert curriculum.generated == ()


def test_a_generated_task_without_a_valid_reward_stays_although_its_cluster_was_solved() -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0, groups=lambda task: "rooms")
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.record(tasks(1)[0], [1.0, 1.0])
    curriculum.add([new])
    curriculum.record(new, [None, None])
    assert curriculum.generated == (new,)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_generated_task_is_dropped_only_if_all_outcomes_of_its_cluster_in_an_update_teach_nothing(
    is_first: bool,
) -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0, groups=lambda task: "rooms")
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    curriculum.sample(2, 0)
    outcomes = [(new, [1.0, 1.0]), (tasks(1)[0], [0.0, 0.0])]
    for task, rewards_G in outcomes if is_first else reversed(outcomes):
        curriculum.record(task, rewards_G)
    assert curriculum.generated == (new,)
    curriculum.sample(2, 1)
    curriculum.record(new, [1.0, 1.0])
    curriculum.sample(2, 2)
    curriculum.record(tasks(1)[0], [0.0, 1.0])
    assert [*curriculum.generated] == [], "a task that was dropped in an earlier update stays dropped"


@pytest.mark.parametrize("is_solved_first", [True, False])
def test_failed_attempts_count_from_the_last_update_with_a_success_in_whatever_order_its_groups_are_recorded(
    is_solved_first: bool,
) -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0, groups=lambda task: "rooms")
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    groups = [[1.0, 0.0], [0.0] * 8]
    for rewards_G in groups if is_solved_first else reversed(groups):
        curriculum.record(new, rewards_G)
    for iteration in range(1, 9):
        assert curriculum.generated == (new,)
        curriculum.sample(2, iteration)
        curriculum.record(new, [0.0, 0.0])
    assert curriculum.generated == ()


def test_a_generated_task_is_dropped_after_sixteen_failures_even_if_each_group_has_one_valid_reward() -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0)
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    for iteration in range(16):
        assert curriculum.generated == (new,)
        curriculum.sample(2, iteration)
        curriculum.record(new, [0.0, None])
    assert curriculum.generated == ()


def test_the_valuable_and_the_newest_of_too_many_generated_tasks_stay() -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0)
    made = [variation(tasks(1)[0], "find it", f"room {i}") for i in range(KEPT_GENERATED + 1)]
    curriculum.add(made[:2])
    curriculum.record(made[0], [1.0, 0.0, 1.0, 0.0])
    curriculum.record(tasks(1)[0], [0.0, 0.0, 0.0, 0.0])
    curriculum.add(made[2:])
    assert curriculum.generated == (made[0], *made[2:])


def test_tasks_of_one_group_share_a_value_that_their_single_rollouts_give() -> None:
    two_halls = {"t0": "east", "t1": "east", "t2": "west", "t3": "west"}
    curriculum = Curriculum(tasks(4), share=0, seed=0, groups=lambda task: two_halls[task.id])
    curriculum.sample(4, 0)
    for task, reward in zip(tasks(4), [1.0, 0.0, 1.0, 1.0], strict=True):
        assert curriculum.record(task, [reward]) is None, "one rollout gives no value"
    assert {task.id for task in curriculum.most_valuable(4)} == {"t0", "t1"}


def test_a_group_with_one_valid_reward_gives_no_value_and_keeps_its_task() -> None:
    curriculum = Curriculum(tasks(2), share=1, seed=0)
    new = variation(tasks(1)[0], "find it", "cellar")
    curriculum.add([new])
    assert curriculum.record(new, [None, None, 1.0]) is None
    assert curriculum.generated == (new,)


def test_a_restored_curriculum_goes_on_as_the_saved_one_would() -> None:
    saved = Curriculum(tasks(20), share=0.5, seed=2)
    saved.add(variation(task, "find it", "cellar") for task in tasks(4))
    saved.record(tasks(1)[0], [1.0, 0.0])
    restored = Curriculum(tasks(20), share=0.5, seed=2)
    restored.restore(json.loads(json.dumps(saved.state())))
    assert restored.sample(8, 9) == saved.sample(8, 9)
    assert restored.most_valuable(3) == saved.most_valuable(3)


def test_a_restored_curriculum_values_tasks_exactly_as_the_saved_one() -> None:
    saved, restored = Evidence(), Evidence()
    names = [f"t{number * 7 % 23}" for number in range(23)]
    for update in range(40):
        for name in names[update % 5 :: 3]:
            for evidence in (saved, restored):
                evidence.record(name, [1.0, 1.0, 0.0, 0.0], update)
        restored = Evidence.of(json.loads(json.dumps(restored.state())))
        assert saved.values(names, update) == restored.values(names, update)


def test_a_curriculum_without_tasks_is_refused_with_the_command_to_run() -> None:
    with pytest.raises(InvalidInput, match="dreamgym collect"):
        Curriculum([], share=0, seed=0)


def rooms(*steps: tuple[str, str, float]) -> Trajectory:
    """One recorded episode in world t0; each step is (state, next state, reward)."""
    return Trajectory(
        id="-".join(state for state, _, _ in steps),
        task=tasks(1)[0],
        transitions=tuple(
            Transition(
                state=state,
                action=ToolCall(name="act", arguments={"command": f"to {there}"}),
                result=StepResult(observation=there, reward=reward, terminated=reward > 0),
                next_state=there,
                provenance=Provenance(tier=Tier.REAL),
            )
            for state, there, reward in steps
        ),
        source=Source.REAL,
        stop_reason=StopReason.TERMINATED,
        world="t0",
    )


@pytest.fixture
def recorded() -> RecordedWorlds:
    return RecordedWorlds(
        [
            rooms(("hall", "kitchen", 0), ("kitchen", "cellar", 0), ("cellar", "won", 1)),
            rooms(("hall", "attic", 0), ("attic", "roof", 0)),
        ]
    )


@pytest.fixture
def spec() -> EnvironmentSpec:
    return EnvironmentSpec(name="rooms", tools_list=({"tools": [{"name": "act"}]},), max_steps=5, deterministic=True)


def test_only_states_from_which_recorded_steps_lead_to_success_are_starts(recorded: RecordedWorlds) -> None:
    known, unknown = tasks(2)
    assert recorded.starts(known, 5) == {"cellar": 1, "kitchen": 2, "hall": 3}
    assert recorded.starts(known, 2) == {"cellar": 1, "kitchen": 2}
    assert recorded.starts(unknown, 5) == {}


@pytest.mark.anyio
async def test_a_variation_of_a_recorded_task_starts_elsewhere_in_its_world_and_can_be_solved(
    spec: EnvironmentSpec, recorded: RecordedWorlds
) -> None:
    (varied,) = await StartVariation(spec, recorded).vary(tasks(1), seed=0)
    assert varied.initial_state in {"kitchen", "cellar"}
    assert (varied.world, varied.parent_id, varied.origin) == ("t0", "t0", Origin.GENERATED)


@pytest.mark.anyio
async def test_a_task_is_not_varied_to_a_start_from_which_only_another_goal_was_reached(spec: EnvironmentSpec) -> None:
    lamp = tasks(1)[0].model_copy(update={"instruction": "find the lamp"})
    won = rooms(("attic", "won", 1)).model_copy(update={"task": lamp})
    worlds = RecordedWorlds([won, rooms(("hall", "attic", 0))])
    assert [task.initial_state for task in await StartVariation(spec, worlds).vary([lamp], seed=0)] == ["attic"]
    assert await StartVariation(spec, worlds).vary(tasks(1), seed=0) == []


@pytest.mark.anyio
async def test_a_task_starts_neither_where_its_check_holds_nor_after_answers_that_it_wants(
    spec: EnvironmentSpec,
) -> None:
    hall, attic, won = (json.dumps({"at": place}) for place in ("hall", "attic", "roof"))
    lit = {"properties": {"at": {"const": "attic"}}, "required": ["at"]}
    starts = {}
    for name, check in {"none": {}, "state": {"success": lit}, "answers": {"answers": [attic]}}.items():
        task = tasks(1)[0].model_copy(update={"initial_state": hall, "metadata": check})
        recorded = rooms((hall, attic, 0), (attic, won, 1)).model_copy(update={"task": task})
        varied = await StartVariation(spec, RecordedWorlds([recorded])).vary([task], seed=0)
        starts[name] = [one.initial_state for one in varied]
    assert starts == {"none": [attic], "state": [], "answers": []}


@pytest.mark.anyio
async def test_a_task_whose_world_was_never_solved_is_not_varied(spec: EnvironmentSpec) -> None:
    unsolved = RecordedWorlds([rooms(("hall", "attic", 0))])
    assert await StartVariation(spec, unsolved).vary(tasks(1), seed=0) == []


def proposals(*pairs: tuple[str, str | None]) -> str:
    return json.dumps({"variations": [{"instruction": i, "initial_state": s} for i, s in pairs]})


SELECT_FIRST = json.dumps({"reasoning": "hard but feasible", "selection": 1})


@pytest.mark.anyio
async def test_the_model_proposes_and_selects_and_only_playable_proposals_reach_the_selection(
    spec: EnvironmentSpec, recorded: RecordedWorlds
) -> None:
    llm = ScriptedLLM([proposals(("find it", "roof"), ("win at once", "cellar"), ("find it", "kitchen")), SELECT_FIRST])
    (varied,) = await LanguageVariation(spec, llm, recorded).vary(tasks(1), seed=0)
    assert (varied.instruction, varied.initial_state) == ("find it", "kitchen")
    assert '"roof"' not in llm.asked[1][0].content


@pytest.mark.anyio
async def test_without_a_recorded_world_the_instruction_is_varied(spec: EnvironmentSpec) -> None:
    llm = ScriptedLLM([proposals(("book two rooms", None), ("find it", "hall")), SELECT_FIRST])
    (varied,) = await LanguageVariation(spec, llm, RecordedWorlds([])).vary(tasks(1), seed=0)
    assert varied.instruction == "book two rooms"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answers",
    [
        ["no JSON", "still none"],
        [proposals(("book two rooms", None)), *['{"selection": 1}'] * 2],
        [proposals(("book two rooms", None)), '{"reasoning": "", "selection": 7}'],
    ],
)
async def test_invalid_answers_of_the_model_yield_no_task(spec: EnvironmentSpec, answers: list[str]) -> None:
    assert await LanguageVariation(spec, ScriptedLLM(answers), RecordedWorlds([])).vary(tasks(1), seed=0) == []


@pytest.mark.anyio
async def test_malformed_and_repeated_proposals_do_not_reach_the_selection(spec: EnvironmentSpec) -> None:
    bad = [" ", "a\x00b", "long " * 500, " FIND  it", "book  two Rooms"]
    llm = ScriptedLLM([proposals(*((text, None) for text in bad), ("book two rooms", "roof")), SELECT_FIRST])
    (varied,) = await LanguageVariation(spec, llm, RecordedWorlds([])).vary(tasks(1), seed=0)
    assert varied.instruction == "book two rooms"
    assert varied.initial_state == "hall", "the start is that of the parent, not that of the model"
    assert '"candidates": [{"instruction": "book two rooms", "initial_state": "hall"}]' in llm.asked[1][0].content


@pytest.mark.anyio
@pytest.mark.parametrize("start", ["hall", None])
async def test_a_proposal_in_the_words_of_another_task_even_one_of_the_test_does_not_reach_the_selection(
    spec: EnvironmentSpec, start: str | None
) -> None:
    parent, other = tasks(2)
    described = other.model_copy(
        update={"instruction": "book two rooms", "initial_state": start, "metadata": {"split": "test"}}
    )
    lost = rooms(("hall", "attic", 0))
    lost = lost.model_copy(update={"task": other.model_copy(update={"instruction": "leave"}), "world": "t1"})
    held_out = described.model_copy(update={"id": "test", "instruction": "book three rooms"})
    texts = ["Book  two rooms", "leave", "book Three rooms", "book one room"]
    llm = ScriptedLLM([proposals(*((text, None) for text in texts)), SELECT_FIRST])
    judged = spec.model_copy(update={"deterministic": False, "tasks": (described,)})
    generator = LanguageVariation(judged, llm, RecordedWorlds([lost]), held_out=lambda: [held_out])
    (varied,) = await generator.vary([parent], seed=0)
    assert varied.instruction == "book one room"


@pytest.mark.anyio
async def test_a_task_without_a_known_start_is_not_varied_to_the_start_of_its_own_recordings(
    spec: EnvironmentSpec,
) -> None:
    parent = tasks(1)[0].model_copy(update={"initial_state": None})
    worlds = RecordedWorlds([rooms(("", "hall", 0), ("hall", "won", 1)).model_copy(update={"task": parent})])
    made = [await StartVariation(spec, worlds).vary([parent], seed=seed) for seed in range(8)]
    assert {task.initial_state for varied in made for task in varied} == {"hall"}
    llm = ScriptedLLM([proposals(("find it", ""), ("find it", "hall")), SELECT_FIRST])
    assert [task.initial_state for task in await LanguageVariation(spec, llm, worlds).vary([parent], seed=0)] == [
        "hall"
    ]


@pytest.mark.anyio
async def test_if_success_is_judged_the_instruction_of_a_recorded_task_is_varied(recorded: RecordedWorlds) -> None:
    judged = EnvironmentSpec(name="rooms", tools_list=({"tools": [{"name": "act"}]},), max_steps=5)
    unsolved = RecordedWorlds([rooms(("hall", "attic", 0))])
    llm = ScriptedLLM([proposals(("book two rooms", None)), SELECT_FIRST])
    (varied,) = await LanguageVariation(judged, llm, unsolved).vary(tasks(1), seed=0)
    assert varied.instruction == "book two rooms"


@pytest.mark.anyio
async def test_a_recorded_game_that_was_never_won_is_not_varied_and_no_model_is_asked(spec: EnvironmentSpec) -> None:
    llm = ScriptedLLM([])
    unsolved = RecordedWorlds([rooms(("hall", "attic", 0))])
    assert await LanguageVariation(spec, llm, unsolved).vary(tasks(1), seed=0) == []
    assert llm.asked == []


def test_a_variation_keeps_the_checks_of_success_only_with_the_same_instruction() -> None:
    checks = {"success": {"const": 1}, "answers": ["booked"]}
    parent = tasks(1)[0].model_copy(update={"metadata": {**checks, "split": "train"}})
    assert variation(parent, "find it", "cellar").metadata == {**parent.metadata, "world": "t0"}
    assert variation(parent, "book two rooms", "hall").metadata == {"split": "train", "world": "t0"}


def test_the_same_variation_of_two_tasks_is_one_task_and_a_given_task_is_not_added() -> None:
    hall = tasks(1)[0]
    cellar = variation(hall, "find it", "cellar")
    assert variation(variation(hall, "find it", "attic"), "find it", "cellar").id == cellar.id
    curriculum = Curriculum([hall], share=1, seed=0)
    curriculum.add([cellar, variation(cellar, "find it", "hall")])
    assert curriculum.generated == (cellar,)
