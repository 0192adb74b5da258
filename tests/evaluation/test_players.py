"""Players come from the real environment or from recordings, and the bad ones do what their name says."""

from random import Random

import desk
import pytest
from desk import SPEC, Desk, DeskModel, call, dream_of
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import Source, StepResult, Task, ToolCall, Trajectory
from dreamgym.environment import Environment, load_real
from dreamgym.episode import play
from dreamgym.evaluation.episodes import has_succeeded, perform
from dreamgym.evaluation.players import BAD, ScriptedPlayer, players_of, sessions, tasks_of
from dreamgym.evaluation.scripts import Ids, Reads, Script, is_id, leaves, replaced
from dreamgym.types import JsonObject, StopReason

pytestmark = pytest.mark.anyio


async def named(name: str) -> ScriptedPlayer:
    (player,) = [one for one in players_of(SPEC, await desk.recordings()) if one.name == name]
    return player


async def calls(name: str, task: Task, seed: int = 0) -> tuple[ToolCall, ...]:
    behaviour = (await named(name)).behaviour(task)
    assert behaviour is not None
    played = await perform(SPEC, Desk, task, behaviour, seed=seed, source=Source.REAL)
    return tuple(step.action for step in played.transitions)


SHIP_1 = (call("get", "O-1"), call("ship", "O-1"), call("get", "O-1"))


async def test_recordings_give_one_competent_player_and_six_that_are_bad_on_purpose() -> None:
    players = players_of(SPEC, await desk.recordings())
    assert [player.name for player in players if not player.bad] == ["recorded"]
    assert {player.name for player in players if player.bad} == BAD


async def test_the_recorded_player_makes_the_recorded_calls() -> None:
    assert await calls("recorded", desk.task(1)) == SHIP_1


async def test_a_recording_that_accomplished_its_task_is_played_before_others() -> None:
    poor = await desk.recorded(desk.task(1), call("get", "O-1"))
    (player, *_) = players_of(SPEC, [poor, *await desk.recordings()])
    behaviour = player.behaviour(desk.task(1))
    assert behaviour is not None
    played = await perform(SPEC, Desk, desk.task(1), behaviour, seed=0, source=Source.REAL)
    assert has_succeeded(SPEC, played, ends_itself=False) is True


async def test_an_episode_without_a_call_is_no_success_even_if_its_check_holds_at_the_start() -> None:
    held = desk.task(1).model_copy(update={"metadata": {"success": {"type": "object"}}})
    idle = Trajectory(id="idle", task=held, source=Source.SYNTHETIC, stop_reason=StopReason.FINISHED)
    assert has_succeeded(SPEC, idle, ends_itself=False) is False


async def test_first_half_stops_half_way() -> None:
    assert await calls("first_half", desk.task(1)) == SHIP_1[:1]


async def test_shuffled_makes_the_same_calls_in_another_order_that_the_seed_draws() -> None:
    orders = [await calls("shuffled", desk.task(1), seed) for seed in range(8)]
    assert all(sorted(order, key=str) == sorted(SHIP_1, key=str) for order in orders)
    assert SHIP_1 not in orders
    assert await calls("shuffled", desk.task(1), 3) == orders[3]


async def test_of_another_task_makes_the_calls_of_a_task_that_asks_for_something_else() -> None:
    made = await calls("of_another_task", desk.task(1))
    assert made != SHIP_1
    assert len(made) == 3


async def test_nobody_plays_another_task_if_all_tasks_ask_for_the_same() -> None:
    alike = [
        one.model_copy(update={"task": one.task.model_copy(update={"instruction": "Serve the customer."})})
        for one in await desk.recordings()
    ]
    assert {player.name for player in players_of(SPEC, alike) if player.bad} == BAD - {"of_another_task"}


async def test_wrong_ids_names_no_order_that_the_task_is_about() -> None:
    for seed in range(10):
        assert all(action.arguments["order_id"] != "O-1" for action in await calls("wrong_ids", desk.task(1), seed))


async def test_idle_only_reads() -> None:
    made = await calls("idle", desk.task(1))
    assert {action.name for action in made} == {"get"}
    assert len(made) == 4


async def test_random_draws_from_the_calls_of_all_tasks() -> None:
    made = {str(action) for seed in range(20) for action in await calls("random", desk.task(1), seed)}
    assert made == {str(step.action) for one in await desk.recordings() for step in one.transitions}


async def test_a_player_does_not_know_a_task_that_was_never_recorded() -> None:
    assert all(player.behaviour(desk.task(7)) is None for player in players_of(SPEC, await desk.recordings()))


async def test_a_player_stays_within_the_step_limit() -> None:
    short = SPEC.model_copy(update={"max_steps": 2})
    for player in players_of(short, await desk.recordings()):
        behaviour = player.behaviour(desk.task(1))
        assert behaviour is not None
        counted = Counting()
        await behaviour(await counted.reset(desk.task(1)), counted, 0)
        assert counted.steps <= 2


async def test_a_player_stops_when_the_result_is_done() -> None:
    for player in players_of(SPEC, await desk.recordings()):
        behaviour = player.behaviour(desk.task(1))
        assert behaviour is not None
        counted = Counting(ends=True)
        await behaviour(await counted.reset(desk.task(1)), counted, 0)
        assert counted.steps <= 1


async def test_the_tasks_of_recordings_begin_with_checked_ones_that_were_accomplished() -> None:
    recorded = [await desk.recorded(desk.task(i, checked=i % 2 == 0), call("get", "O-1")) for i in (1, 2, 3, 4, 4)]
    recorded.append(await desk.recorded(desk.task(6), call("ship", "O-6")))
    assert [task.id for task in tasks_of(SPEC, recorded)] == ["ship-6", "ship-2", "ship-4", "ship-1", "ship-3"]
    by_answers = desk.task(3).model_copy(update={"metadata": {"answers": ["shipped"]}})
    recorded[2] = await desk.recorded(by_answers, call("get", "O-1"))
    assert [task.id for task in tasks_of(SPEC, recorded)] == ["ship-6", "ship-2", "ship-3", "ship-4", "ship-1"]


async def test_the_behaviours_of_a_real_environment_are_players_that_know_every_task() -> None:
    coin = load_real("coin")
    players = {player.name: player for player in players_of(coin.spec, behaviours=coin.behaviours)}
    assert players.keys() == coin.behaviours.keys()
    assert players["random"].bad
    assert not players["expert"].bad
    assert players["expert"].behaviour(coin.spec.tasks[0]) is coin.behaviours["expert"]


async def test_an_id_that_came_from_a_recorded_answer_is_taken_from_the_live_answer() -> None:
    task = Task(id="t", env="desk", instruction="book a room")
    script = Script(await play(Numbering(7), task, Numbering.play, spec=SPEC, seed=0, source=Source.REAL))
    live = StepResult(observation="", info={"structured": {"order_id": "O-93"}})
    assert script.actions[1] == call("get", "O-7")
    assert script.call(1, {0: live}) == call("get", "O-93")
    assert script.call(1, {}) == call("get", "O-7")


async def test_a_tool_counts_as_a_read_if_it_says_so_or_never_changed_a_recorded_state() -> None:
    silent = [{key: part for key, part in tool.items() if key != "annotations"} for tool in SPEC.tools]
    spec = SPEC.model_copy(update={"tools_list": ({"tools": silent},)})
    for known in (Reads(SPEC, []), Reads(spec, await desk.recordings())):
        assert [known(call(tool, "O-1")) for tool in ("get", "ship", "refund")] == [True, False, False]
    assert not Reads(spec, [])(call("get", "O-1"))


async def test_sessions_are_as_long_as_asked_and_read_after_they_wrote() -> None:
    recordings = await desk.recordings()
    behaviour = sessions(SPEC, recordings).behaviour(desk.task(1))
    assert behaviour is not None
    played = await perform(SPEC, dream_of(DeskModel()), desk.task(1), behaviour, seed=0, source=Source.SYNTHETIC)
    made = [step.action for step in played.transitions]
    assert len(made) == 20
    writes = [i for i, action in enumerate(made[:-1]) if action.name != "get"]
    assert writes
    assert all(made[i + 1] == call("get", str(made[i].arguments["order_id"])) for i in writes)


@pytest.mark.parametrize("value", ["O-1001", "B_7", "user12", "3f2504e0-4f89-41d3-9a0c-0305e82c3301"])
def test_an_id_is_known_by_its_form(value: str) -> None:
    assert is_id(("anything",), value)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("customer_id", "ada", True),
        ("id", 7, True),
        ("day", 7, False),
        ("name", "ada", False),
        ("date", "2026-01-02", False),
    ],
)
def test_an_id_is_known_by_its_name(name: str, value: str | int, expected: bool) -> None:
    assert is_id((name,), value) is expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(min_size=1, max_size=3), json_values, max_size=3))
def test_putting_every_value_where_it_was_found_changes_nothing(arguments: JsonObject) -> None:
    action = ToolCall(name="any", arguments=arguments)
    assert replaced(action, dict(leaves(arguments))) == action


@given(st.from_regex(r"[A-Z]-[0-9]{1,4}", fullmatch=True), st.integers())
def test_a_spoiled_id_is_another_one_of_the_same_kind(identity: str, seed: int) -> None:
    steps = (desk.step("", call("get", identity), "", ""),)
    ids = Ids([Trajectory.model_validate({**_TRAJECTORY, "transitions": steps})])
    wrong = str(ids.spoiled(call("get", identity), Random(seed)).arguments["order_id"])
    assert wrong != identity
    assert wrong.startswith(identity[:2])
    assert wrong[2:].isdecimal()


_TRAJECTORY = {
    "id": "t",
    "task": Task(id="t", env="desk", instruction=""),
    "source": Source.REAL,
    "stop_reason": "finished",
}


class Counting(Desk):
    """Counts its steps, and may end with the first."""

    def __init__(self, *, ends: bool = False) -> None:
        super().__init__()
        self.steps, self._ends = 0, ends

    async def step(self, action: ToolCall) -> StepResult:
        self.steps += 1
        return (await super().step(action)).model_copy(update={"terminated": self._ends})


class Numbering:
    """Gives out a number that the next call needs."""

    tools = SPEC.tools

    def __init__(self, number: int) -> None:
        self._number = number

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="")

    async def step(self, action: ToolCall) -> StepResult:
        return StepResult(observation="", info={"structured": {"order_id": f"O-{self._number}"}})

    async def close(self) -> None:
        pass

    @staticmethod
    async def play(start: StepResult, environment: Environment, seed: int) -> None:
        first = await environment.step(ToolCall(name="ship"))
        structured = first.structured
        assert isinstance(structured, dict)
        await environment.step(call("get", str(structured["order_id"])))
