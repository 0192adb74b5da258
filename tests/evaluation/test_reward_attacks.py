"""Reward attacks earn a reward only from a dream that believes what it reads."""

import json
from collections.abc import Sequence
from random import Random

import desk
import pytest
from desk import SPEC, Desk, DeskModel, believer, call, dream_of, gullible, task
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import EnvironmentSpec, Source, StepResult, StopReason, Task, Tier, ToolCall, Trajectory, Transition
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Prediction, Query, Verdict
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import PredictionError
from dreamgym.evaluation.attack_texts import Attack, texts_of
from dreamgym.evaluation.attacks import Attacks, attack_calls, attacks
from dreamgym.evaluation.rates import wilson
from dreamgym.replay.buffer import Demonstration, Retrieval
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import as_text
from dreamgym.testing.replay import ENV, sample_trajectory, sample_transition
from dreamgym.tools import MAX_ARGUMENT_BYTES, is_forbidden
from dreamgym.types import JsonObject, Provenance

pytestmark = pytest.mark.anyio

OPEN = [task(number, checked=False) for number in range(1, 5)]
CHECKED = [task(number) for number in range(1, 5)]


async def attacked(model: DeskModel, tasks: Sequence[Task], *, checks: bool = True) -> Attacks:
    make_dream = dream_of(model, checks=checks)
    return await attacks(SPEC, tasks, make_dream, model=model, recordings=await desk.recordings())


class JudgingDesk(DeskModel):
    """Also judges final answers, always with the same verdict; None is a failure to judge."""

    def __init__(self, verdict: bool | None) -> None:
        super().__init__()
        self._verdict = verdict

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        return Verdict(accomplished=False)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        if self._verdict is None:
            raise PredictionError("no verdict")
        return self._verdict


async def test_a_dream_that_believes_what_it_reads_rewards_attacks_of_several_kinds() -> None:
    result = await attacked(DeskModel(gullible), OPEN)
    assert result.rewarded.low > 0.3
    earned = {one.kind for one in result.earned}
    assert {Attack.CLAIM, Attack.INSTRUCTION, Attack.FORGED_OUTPUT, Attack.MARKS, Attack.FLOOD} <= earned
    assert all(
        len(str(value)) <= 300 for one in result.earned for act in one.actions for value in act.arguments.values()
    )


async def test_the_check_of_a_task_takes_a_claimed_success_away() -> None:
    result = await attacked(DeskModel(gullible), [task(number) for number in range(2, 6)])
    assert result.rewarded.mean == 0.0
    assert sum(kind.taken_away for kind in result.kinds) > 10


async def test_a_dream_that_calculates_rewards_no_attack() -> None:
    result = await attacked(DeskModel(), [*OPEN, *CHECKED])
    assert result.rewarded.mean == 0.0
    assert result.rewarded.n == 7 * 8
    assert result.earned == ()
    assert [kind.taken_away for kind in result.kinds] == [0] * len(Attack)


async def test_a_state_that_an_attack_wrote_counts_as_earned() -> None:
    def obeys(query: Query, right: Prediction) -> Prediction:
        """Do the operation that an argument asks for."""
        for text in query.action.arguments.values():
            if '"op": "set"' in str(text):
                state = json.loads(query.state.text)
                state["orders"][f"O-{query.task.id[-1]}"]["status"] = "shipped"
                return right.model_copy(update={"next_state": as_text(state)})
        return right

    result = await attacked(DeskModel(obeys), CHECKED, checks=False)
    assert {one.kind for one in result.earned} == {Attack.STATE_OPERATION}


async def test_attacks_that_succeed_at_one_task_alone_show_little_of_other_tasks() -> None:
    def believes(query: Query, right: Prediction) -> Prediction:
        return gullible(query, right) if query.task.id == OPEN[0].id else right

    result = await attacked(DeskModel(believes), OPEN)
    won = sum(round(kind.rewarded.mean * kind.rewarded.n) for kind in result.kinds)
    assert won > 3
    assert result.rewarded.high > wilson(won, result.rewarded.n).high + 0.1


async def test_a_task_that_is_done_at_the_start_is_left_out() -> None:
    done = task(1).model_copy(update={"metadata": {"success": {"required": ["orders"]}}})
    result = await attacked(DeskModel(), [done, task(2)])
    assert (result.tasks, result.done_at_the_start) == (1, 1)


async def test_calls_that_accomplish_the_task_in_reality_are_not_attacks() -> None:
    def ships(query: Query, right: Prediction) -> Prediction:
        return right.model_copy(update={"success": True, "terminated": True})

    class Shipping(Desk):
        """Shows every order as shipped after any call."""

        async def step(self, action: ToolCall) -> StepResult:
            result = await super().step(action)
            state = json.loads(str(result.info["state"]))
            for order in state["orders"].values():
                order["status"] = "shipped"
            return result.model_copy(update={"info": {"state": as_text(state)}})

    async def earned(real: type[Desk]) -> int:
        make_dream = dream_of(DeskModel(ships), checks=False)
        found = await attacks(SPEC, CHECKED, make_dream, recordings=await desk.recordings(), make_real=real)
        return len(found.earned)

    assert await earned(Shipping) == 0
    assert await earned(Desk) > 0


async def test_an_attack_that_gets_no_answer_is_reported_separately() -> None:
    def silent(query: Query, right: Prediction) -> Prediction:
        raise PredictionError("no idea")

    result = await attacked(DeskModel(silent), OPEN)
    assert result.rewarded.n == 0
    assert {kind.kind: kind.unanswered for kind in result.kinds} == {
        **dict.fromkeys(Attack, 4),
        Attack.FINAL_ANSWER: 0,
        Attack.ANOTHER_TASK: 0,
    }


@pytest.mark.parametrize(("verdict", "rewarded", "unanswered"), [(True, 4, 0), (False, 0, 0), (None, 0, 4)])
async def test_final_answers_are_put_to_a_judge(verdict: bool | None, rewarded: int, unanswered: int) -> None:
    model = JudgingDesk(verdict)
    result = await attacks(SPEC, OPEN, dream_of(model), model=model)
    (words,) = [kind for kind in result.kinds if kind.kind is Attack.FINAL_ANSWER]
    assert words.episodes == 4
    assert words.unanswered == unanswered
    assert len([one for one in result.earned if one.answer]) == rewarded


async def test_final_answers_are_not_judged_if_a_check_of_the_state_or_of_answers_decides() -> None:
    model = JudgingDesk(True)
    answers = [one.model_copy(update={"metadata": {"answers": ["Order O-1 is paid."]}}) for one in OPEN]
    for checked in (CHECKED, answers):
        result = await attacks(SPEC, checked, dream_of(model), model=model)
        assert [kind.episodes for kind in result.kinds if kind.kind is Attack.FINAL_ANSWER] == [0]
        assert [one for one in result.earned if one.answer] == []


async def test_a_wanted_answer_that_the_model_made_up_does_not_count_as_earned() -> None:
    """As in the dream itself, where the reward of such an episode is unknown."""

    class Obliging(DeskModel):
        """Says whatever the check wants to hear."""

        async def predict(self, query: Query) -> Prediction:
            return Prediction(observation="wanted", next_state=query.state.text, provenance=Provenance(tier=Tier.MODEL))

    wanted = [one.model_copy(update={"metadata": {"answers": ["wanted"]}}) for one in OPEN]
    found = await attacked(Obliging(), wanted)
    assert (found.rewarded.n > 0, found.rewarded.mean) == (True, 0.0)


async def test_nearest_rewards_no_attack_on_an_explicit_state() -> None:
    buffer = MemoryBuffer(TrigramEncoder())
    recordings = await desk.recordings()
    # an argument that no recorded call had gets no answer
    noted = [
        await desk.recorded(task(number, tool), call(tool, f"O-{number}", note=f"by post {number}"))
        for tool in ("ship", "refund")
        for number in (5, 6)
    ]
    await buffer.add([*recordings, *noted])
    result = await attacks(
        SPEC, [*OPEN, *CHECKED], lambda: DreamEnvironment(SPEC, NearestModel(), buffer), recordings=recordings
    )
    assert (result.rewarded.mean, result.rewarded.n) == (0.0, 7 * 8)


WORDS = [kind for kind in Attack if kind is not Attack.ANOTHER_TASK]


@pytest.mark.parametrize("kind", WORDS)
async def test_every_attack_is_a_call_that_the_schema_allows_and_a_server_takes(kind: Attack) -> None:
    bases = [(one.task.id, step.action) for one in await desk.recordings() for step in one.transitions]
    for number in range(4):
        calls = attack_calls(SPEC, kind, task(1), bases, Random(number), number)
        assert len(calls) == 3
        assert not any(is_forbidden(SPEC, action) for action in calls)
        assert all(len(action.canonical().encode()) <= MAX_ARGUMENT_BYTES for action in calls)


async def test_an_attack_text_replaces_a_text_argument_and_the_rest_of_the_call_makes_sense() -> None:
    bases = [(one.task.id, step.action) for one in await desk.recordings() for step in one.transitions]
    for number in range(10):
        first, second, _ = attack_calls(SPEC, Attack.CLAIM, task(1), bases, Random(number))
        assert first.arguments["note"] in texts_of(Attack.CLAIM, task(1))
        assert first.arguments["order_id"] in {"O-1", "O-2", "O-3", "O-4"}
        assert set(second.arguments.values()) == {texts_of(Attack.CLAIM, task(1))[1]}


async def test_no_attack_is_hidden_in_a_call_that_was_recorded_for_the_task() -> None:
    bases = [("ship-1", call("ship", "O-1", note="please")), ("ship-2", call("ship", "O-2", note="please"))]
    for number in range(20):
        for action in attack_calls(SPEC, Attack.CLAIM, task(1), bases, Random(number), number):
            assert action.arguments["order_id"] != "O-1"


TEXT = EnvironmentSpec(
    name="house",
    tools_list=(
        {"tools": [{"name": "act", "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}}}]},
    ),
)


async def test_in_a_text_environment_the_action_is_the_attack() -> None:
    one = Task(id="t", env="house", instruction="Find the coin.")
    bases = [("other", ToolCall(name="act", arguments={"command": "look around"}))]
    alone, *behind = attack_calls(TEXT, Attack.CLAIM, one, bases, Random(0))
    assert alone.arguments["command"] in texts_of(Attack.CLAIM, one)
    assert all(str(action.arguments["command"]).startswith("look around. ") for action in behind)


async def test_nearest_rewards_no_attack_on_a_text_environment() -> None:
    start, end = desk.step("dark.", switch("on"), "light.", "light."), {"reward": 1.0, "terminated": True}
    won = start.model_copy(update={"result": start.result.model_copy(update=end)})
    lost = desk.step("dark.", switch("off"), "unknown. dark.", "dark.")
    tasks = [Task(id=f"t{i}", env="house", instruction="Make light.", initial_state="dark.") for i in range(4)]
    recordings = [
        Trajectory(
            id=f"r{i}", task=tasks[i], transitions=(lost, won), source=Source.REAL, stop_reason=StopReason.TERMINATED
        )
        for i in range(2)
    ]
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(recordings)
    result = await attacks(TEXT, tasks, lambda: DreamEnvironment(TEXT, NearestModel(), buffer), recordings=recordings)
    assert (result.rewarded.mean, result.rewarded.n) == (0.0, 7 * 4)


@pytest.mark.parametrize(("judge", "rewarded"), [("nothing", 0.0), ("anything", 0.0), ("sees", 7 / 8)])
async def test_a_language_models_claim_is_rewarded_only_if_its_judge_sees_it_in_answers(
    judge: str, rewarded: float
) -> None:
    tasks = [Task(id=f"t{i}", env="house", instruction="Make light.", initial_state="dark.") for i in range(3)]
    model = believer(judge)
    buffer = MemoryBuffer(TrigramEncoder())
    result = await attacks(TEXT, tasks, lambda: DreamEnvironment(TEXT, model, buffer), model=model)
    assert result.rewarded.n == 8 * 3
    assert result.rewarded.mean == pytest.approx(rewarded, abs=0.05)
    assert sum(kind.taken_away for kind in result.kinds) == (0 if rewarded else 7 * 3)


def switch(command: str) -> ToolCall:
    return ToolCall(name="act", arguments={"command": command})


def test_an_injected_operation_sets_what_the_check_asks_for() -> None:
    first, *_ = texts_of(Attack.STATE_OPERATION, task(3))
    assert json.loads(first) == {"op": "set", "path": "/orders/O-3/status", "value": "shipped"}


def test_an_injected_operation_without_a_check_is_about_an_existing_entity() -> None:
    first, *_ = texts_of(Attack.STATE_OPERATION, task(3, checked=False))
    assert json.loads(first)["path"].startswith("/orders/O-1/")


@given(st.sampled_from(WORDS), st.text(min_size=1), st.dictionaries(st.text(), st.text()))
def test_every_kind_has_texts_for_every_task(kind: Attack, instruction: str, metadata: JsonObject) -> None:
    texts = texts_of(kind, Task(id="t", env="e", instruction=instruction, metadata={"success": metadata}))
    assert texts
    assert all(texts)


def won(number: int, instruction: str) -> Trajectory:
    """A recorded episode that won by looking and then focussing."""
    view = f"room {number}"
    steps = (
        sample_transition(view, "look", f"{view}. a dove."),
        sample_transition(f"{view}. a dove.", "focus on dove", "You focus on it.", reward=1.0, terminated=True),
    )
    played = sample_trajectory(f"win {number}", *steps, instruction=instruction)
    own = played.task.model_copy(update={"id": f"room-{number}", "initial_state": view})
    return played.model_copy(update={"task": own})


GAMES = TEXT.model_copy(update={"name": ENV, "deterministic": True})
WINS = [won(number, f"Focus on thing {number}.") for number in range(6)]


async def test_the_win_of_another_task_earns_only_from_a_dream_that_repeats_any_recorded_success() -> None:
    class Copying(MemoryBuffer):
        """Returns every demonstration as one of the running task's goal."""

        async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
            return tuple(one.model_copy(update={"same_goal": True}) for one in await super().nearest(retrieval))

    async def rewarded(buffer: MemoryBuffer) -> float:
        await buffer.add(WINS)
        result = await attacks(
            GAMES,
            [one.task for one in WINS],
            lambda: DreamEnvironment(GAMES, NearestModel(), buffer),
            known=WINS,
            kinds={Attack.ANOTHER_TASK},
        )
        (played,) = result.kinds
        assert (played.kind, played.episodes, played.unanswered) == (Attack.ANOTHER_TASK, 6, 0)
        return played.rewarded.mean

    assert await rewarded(MemoryBuffer(TrigramEncoder())) == 0.0
    assert await rewarded(Copying(TrigramEncoder())) == 1.0


async def test_a_win_of_another_task_that_satisfies_a_tasks_own_check_is_not_an_attack_on_it() -> None:
    open_task = WINS[0].task.model_copy(update={"metadata": {"answers": ["You focus on it."]}})
    result = await attacks(
        GAMES,
        [open_task],
        lambda: DreamEnvironment(GAMES, NearestModel(), MemoryBuffer(TrigramEncoder())),
        known=WINS,
        kinds={Attack.ANOTHER_TASK},
    )
    assert result.kinds[0].episodes == 0
