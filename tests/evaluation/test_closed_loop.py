"""The closed loop finds a dream that plays along, and finds no difference in one that equals reality."""

import asyncio
import json
from collections.abc import Callable, Sequence

import desk
import numpy as np
import pytest
from desk import SPEC, START, Desk, DeskModel, believer, call, dream_of, gullible, task, unsure
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import EnvironmentSpec, Source, StepResult, StopReason, Task, ToolCall, Trajectory
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import Behaviour, Environment
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.closed_loop import ClosedLoop, PlayerResult, closed_loop
from dreamgym.evaluation.consistency import Consistency, consistency
from dreamgym.evaluation.episodes import has_succeeded, perform, play_many, repeating
from dreamgym.evaluation.players import ScriptedPlayer, players_of, sessions, tasks_of
from dreamgym.evaluation.rates import by_cluster, rank_correlation, ranks, spearman, wilson
from dreamgym.evaluation.report.tables import player_rows
from dreamgym.evaluation.report.text import loop_notes
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import as_text
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio

ACT: JsonObject = {
    "name": "act",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
TEXT = EnvironmentSpec(name="lamp", tools_list=({"tools": [ACT]},), max_steps=3)


async def looped(
    model: DeskModel,
    real: Callable[[], Environment] = Desk,
    tasks: Sequence[Task] | None = None,
    *,
    checks: bool = True,
) -> ClosedLoop:
    recordings = await desk.recordings()
    tasks = tasks_of(SPEC, recordings) if tasks is None else tasks
    return await closed_loop(SPEC, players_of(SPEC, recordings), tasks, dream_of(model, checks=checks), real)


def of(result: ClosedLoop, name: str) -> PlayerResult:
    (player,) = [player for player in result.players if player.player == name]
    return player


async def test_a_perfect_simulator_shows_no_difference_and_keeps_every_call_and_the_order_of_the_players() -> None:
    result = await looped(DeskModel())
    assert [player.difference.mean for player in result.players if player.difference] == [0.0] * 7
    assert result.replay.valid.mean == result.replay.same.mean == result.replay.kept == 1.0
    assert (result.replay.accepted_wrongly.mean, result.replay.refused_wrongly.mean) == (0.0, 0.0)
    assert result.correlation is not None
    assert result.correlation.mean == pytest.approx(1.0)
    assert result.play_along is not None
    assert result.play_along.difference.mean == 0.0
    assert of(result, "recorded").real.mean == 1.0
    assert of(result, "idle").real.mean == 0.0


async def test_a_dream_that_believes_everything_is_caught_playing_along() -> None:
    def believes(query: Query, right: Prediction) -> Prediction:
        """Do whatever is asked to the order that the task is about."""
        number = query.task.id[-1]
        state = json.loads(query.state.text)
        state["orders"][f"O-{number}"]["status"] = desk.STATUS[query.task.id.partition("-")[0]]
        return right.model_copy(update={"next_state": as_text(state), "is_error": False, "observation": "done"})

    result = await looped(DeskModel(believes), checks=False)
    assert result.play_along is not None
    assert result.play_along.difference.low > 0.3
    assert result.play_along.accepted_wrongly.mean == 1.0
    assert result.replay.kept is not None
    assert result.replay.kept < 0.6
    assert of(result, "wrong_ids").dream.mean == 1.0
    assert of(result, "wrong_ids").real.mean == 0.0


async def test_a_dream_that_refuses_everything_is_found_by_the_calls_that_reality_accepts() -> None:
    def refuses(query: Query, right: Prediction) -> Prediction:
        return right.model_copy(update={"next_state": query.state.text, "is_error": True, "observation": "no"})

    result = await looped(DeskModel(refuses), checks=False)
    assert result.play_along is not None
    assert result.play_along.refused_wrongly.mean == 1.0
    assert result.play_along.difference.mean <= 0
    recorded = of(result, "recorded")
    assert recorded.difference is not None
    assert recorded.difference.mean == -1.0
    assert recorded.replay.success.mean == 1.0  # the calls were good


async def test_an_episode_that_the_dream_does_not_answer_is_reported_separately_and_is_not_a_success() -> None:
    result = await looped(DeskModel(unsure))
    recorded = of(result, "recorded")
    assert recorded.dream_unanswered == 2  # ship-2 and refund-2
    assert recorded.real_unanswered == 0
    assert [one.dream for one in recorded.outcomes if one.task.endswith("-2")] == [None, None]
    assert recorded.dream.n == 6
    assert recorded.real.n == 8


async def test_the_table_of_players_shows_over_how_many_tasks_success_is_known_in_each_world() -> None:
    head, *rows = player_rows(await looped(DeskModel(unsure)))
    row = dict(zip(head, rows[0], strict=True))
    assert (row["player"], row["tasks"], row["known: dream, reality"]) == ("recorded", "8", "6, 8")


async def test_a_real_environment_that_fails_is_reported_separately() -> None:
    result = await looped(DeskModel(), lambda: Desk(fails_at="O-3"))
    recorded = of(result, "recorded")
    assert recorded.real_unanswered == 2
    assert recorded.real.n == 6
    assert recorded.replay.same.mean == 1.0  # what reality did not answer is not compared


async def test_an_environment_that_does_not_even_start_is_an_unanswered_episode() -> None:
    class Closed(Desk):
        async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
            raise EnvironmentUnavailable("closed for the day")

    result = await looped(DeskModel(), Closed)
    assert (result.tasks, result.undecided) == (0, 8)
    assert "The real environment answered no call: closed for the day" in loop_notes(result)
    assert result.play_along is None


async def test_an_episode_that_ends_out_of_support_is_not_answered() -> None:
    class Unsure(Desk):
        async def step(self, action: ToolCall) -> StepResult:
            info: JsonObject = {"stop": StopReason.OUT_OF_SUPPORT.value, "state": as_text(START)}
            return StepResult(observation="", truncated=True, info=info)

    recordings = await desk.recordings()
    result = await closed_loop(SPEC, players_of(SPEC, recordings), [task(1)], Unsure, Desk)
    recorded = of(result, "recorded")
    assert recorded.dream_unanswered == 1
    assert recorded.outcomes[0].dream is None
    assert recorded.replay.calls == 0


async def test_tasks_with_an_undecidable_outcome_are_left_out_and_counted() -> None:
    unchecked = [one.model_copy(update={"metadata": {}}) for one in (task(1), task(2))]
    result = await looped(DeskModel(), tasks=[*unchecked, task(3)])
    assert (result.tasks, result.undecided) == (1, 2)


async def test_outcomes_are_undecided_if_the_real_environment_does_not_show_its_state() -> None:
    result = await looped(DeskModel(), lambda: Desk(tells=False))
    assert (result.tasks, result.undecided) == (0, 8)


async def test_a_task_that_some_player_does_not_know_is_left_out_for_all() -> None:
    result = await looped(DeskModel(), tasks=[task(1), task(7)])
    assert (result.tasks, result.unknown_to_players) == (1, 1)


async def test_without_a_task_that_all_players_know_the_error_says_what_is_needed() -> None:
    with pytest.raises(InvalidInput, match="knows only the recorded tasks"):
        await looped(DeskModel(), tasks=[task(7)])


async def test_the_same_seed_gives_the_same_result() -> None:
    assert await looped(DeskModel(gullible)) == await looped(DeskModel(gullible))


async def test_progress_counts_every_episode() -> None:
    seen: list[tuple[int, int]] = []
    recordings = await desk.recordings()
    await closed_loop(
        SPEC,
        players_of(SPEC, recordings),
        [task(1), task(2)],
        dream_of(DeskModel()),
        Desk,
        on_progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(done, 14) for done in range(1, 15)]


class Lamp:
    """A lamp that is dark or light. `on` ends the episode with a reward; if `easy`, every command does."""

    tools = TEXT.tools

    def __init__(self, *, easy: bool = False) -> None:
        self._easy = easy

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="dark")

    async def step(self, action: ToolCall) -> StepResult:
        if self._easy or action.arguments["command"] == "on":
            return StepResult(observation="light", reward=1.0, terminated=True)
        return StepResult(observation="dark", is_error=True)

    async def close(self) -> None:
        pass


def saying(name: str, command: str) -> ScriptedPlayer:
    return ScriptedPlayer(name, lambda task: repeating([ToolCall(name="act", arguments={"command": command})]))


async def test_the_reward_decides_if_the_environment_ends_its_tasks() -> None:
    lamp = Task(id="lamp", env="lamp", instruction="light")
    players = [saying("expert", "on"), saying("random", "off")]
    result = await closed_loop(TEXT, players, [lamp], lambda: Lamp(easy=True), Lamp)
    assert [(player.dream.mean, player.real.mean) for player in result.players] == [(1.0, 1.0), (1.0, 0.0)]
    assert result.play_along is not None
    assert result.play_along.difference.mean == 1.0
    assert result.play_along.accepted_wrongly.mean == 1.0


async def test_more_players_at_the_same_tasks_do_not_make_the_success_of_all_more_certain() -> None:
    def half(task: Task) -> Behaviour:
        return repeating([ToolCall(name="act", arguments={"command": "on" if task.id < "lamp-5" else "look"})])

    lamps = [Task(id=f"lamp-{i}", env="lamp", instruction="light") for i in range(10)]
    alike = [ScriptedPlayer(f"player {i}", half) for i in range(8)]
    one, many = [(await closed_loop(TEXT, alike[:n], lamps, Lamp, Lamp)).replay for n in (1, 8)]
    for few, more in ((one.dream_success, many.dream_success), (one.success, many.success)):
        assert (few.mean, 8 * few.n) == (more.mean, more.n)
        assert (few.low, few.high) == pytest.approx((more.low, more.high))


async def test_a_language_model_that_believes_everything_is_caught_playing_along() -> None:
    lamps = [Task(id=f"lamp-{i}", env="lamp", instruction="light", initial_state="dark") for i in range(10)]
    players = [saying("expert", "on"), saying("random", "off"), saying("idle", "look")]

    def dream() -> DreamEnvironment:
        return DreamEnvironment(TEXT, believer("sees"), MemoryBuffer(TrigramEncoder()))

    result = await closed_loop(TEXT, players, lamps, dream, Lamp)
    assert result.play_along is not None
    assert result.play_along.difference.low > 0.5
    assert [player.replay.kept for player in result.players] == [1.0, 0.0, 0.0]
    assert result.correlation is None  # the dream takes all three for equally good


async def test_calls_after_the_real_end_are_not_valid() -> None:
    player = ScriptedPlayer("expert", lambda task: repeating([ToolCall(name="act", arguments={"command": "on"})] * 2))

    class Slow(Lamp):
        async def step(self, action: ToolCall) -> StepResult:
            return StepResult(observation="light")

    result = await closed_loop(TEXT, [player], [Task(id="lamp", env="lamp", instruction="")], Slow, Lamp)
    assert result.replay.calls == 2
    assert result.replay.valid.mean == 0.5


async def test_a_call_that_the_schema_forbids_is_refused_in_the_dream_and_in_reality() -> None:
    wrong = ScriptedPlayer("expert", lambda task: repeating([ToolCall(name="act", arguments={"word": "on"})]))
    result = await closed_loop(TEXT, [wrong], [Task(id="lamp", env="lamp", instruction="")], Lamp, Lamp)
    assert result.replay.same.mean == 1.0
    assert result.replay.valid.n == 0
    assert result.players[0].real.mean == 0.0


class OpenLamp(Lamp):
    """A lamp that goes on, but does not know whether that was the task."""

    async def step(self, action: ToolCall) -> StepResult:
        return StepResult(observation="light", truncated=True, info={"open_end": True})


@pytest.mark.parametrize(("dream", "real"), [(OpenLamp, Lamp), (Lamp, OpenLamp)])
async def test_an_episode_whose_end_is_open_is_no_failure_in_dream_or_reality(
    dream: type[Lamp], real: type[Lamp]
) -> None:
    tasks = [Task(id=f"{number}", env="lamp", instruction="") for number in range(3)]
    result = await closed_loop(TEXT, [saying("expert", "on")], tasks, dream, real)
    (player,) = result.players
    told = {OpenLamp: (0, 3, 0), Lamp: (0, 0, 3)}  # a task that reality does not decide is left out
    assert (player.dream.n, player.real.n, result.undecided) == told[dream]
    assert player.difference is None


async def test_a_real_episode_that_ended_without_a_reward_is_a_failure_whatever_the_check_says() -> None:
    class Strict(Desk):
        async def step(self, action: ToolCall) -> StepResult:
            return (await super().step(action)).model_copy(update={"terminated": True})

    ship = repeating([call("ship", "O-1")])
    for real, verdict in ((Desk, True), (Strict, False)):
        played = await perform(SPEC, real, task(1), ship, seed=0, source=Source.REAL)
        assert has_succeeded(SPEC, played, ends_itself=True) is verdict


@pytest.mark.parametrize("ends_itself", [True, None, False])
async def test_a_failure_is_one_if_the_environment_says_that_it_ends_its_tasks(ends_itself: bool | None) -> None:
    spec = TEXT.model_copy(update={"ends_itself": ends_itself})
    result = await closed_loop(spec, [saying("idle", "off")], [Task(id="1", env="lamp", instruction="")], Lamp, Lamp)
    assert (result.tasks, result.undecided) == ((0, 1) if ends_itself is False else (1, 0)), (
        "lamp is a text environment"
    )


async def remembered(model: DeskModel, *, checks: bool = True) -> Consistency:
    recordings = await desk.recordings()
    player = sessions(SPEC, recordings)
    make_dream = dream_of(model, checks=checks)
    return await consistency(SPEC, player, tasks_of(SPEC, recordings), make_dream, Desk, recordings=recordings)


async def test_a_dream_that_remembers_agrees_with_reality_in_every_read() -> None:
    result = await remembered(DeskModel())
    assert (result.sessions, result.steps, result.unanswered) == (8, 160, 0)
    assert result.agree.mean == result.consistent.mean == 1.0
    assert result.agree.n == result.reads > 80
    assert sum(rate.n for rate in result.agree_by_writes) == result.reads


async def test_a_dream_that_forgets_what_was_written_is_found_in_the_reads_after_it() -> None:
    def forgets(query: Query, right: Prediction) -> Prediction:
        return right if query.action.name == "get" else right.model_copy(update={"next_state": query.state.text})

    result = await remembered(DeskModel(forgets), checks=False)
    assert result.agree_by_writes[0].mean == 1.0
    assert result.agree.mean < 0.7


class Ending(Desk):
    """A desk that is closed by the first order that is shipped."""

    async def step(self, action: ToolCall) -> StepResult:
        result = await super().step(action)
        return result.model_copy(update={"terminated": action.name == "ship"})


async def test_what_is_read_after_reality_has_ended_does_not_agree_with_it() -> None:
    get, ship = call("get", "O-2"), call("ship", "O-1")
    player = ScriptedPlayer("sessions", lambda task: repeating([get, ship, get, get, get]))
    result = await consistency(SPEC, player, [task(1)], dream_of(DeskModel()), Ending)
    assert (result.reads, result.agree.n, result.agree.mean) == (4, 4, 0.25)


async def test_a_dream_that_says_something_else_each_time_contradicts_itself() -> None:
    def moody(query: Query, right: Prediction) -> Prediction:
        return right.model_copy(update={"structured": None, "observation": f"{len(query.history)} orders"})

    result = await remembered(DeskModel(moody), checks=False)
    assert result.consistent.n > 0
    assert result.consistent.mean == 0.0


async def test_a_session_goes_on_after_a_call_that_the_dream_does_not_answer() -> None:
    result = await remembered(DeskModel(unsure))
    assert result.unanswered == 8
    assert result.unanswered_calls > 8
    assert result.steps == 160 - result.unanswered_calls
    assert result.agree.mean == 1.0  # what has no answer is not done in reality either


async def test_many_episodes_come_back_in_their_order_and_the_first_error_ends_the_others() -> None:
    last = asyncio.Event()

    async def slow_at_first(number: int) -> int:
        if number == 0:
            await last.wait()
        if number == 3:
            last.set()
        return number

    async def broken_at_once(number: int) -> None:
        if number == 1:
            raise EnvironmentUnavailable("it is gone")
        await asyncio.Event().wait()

    told: list[tuple[int, int]] = []
    assert await play_many([slow_at_first] * 2, range(4), lambda done, total: told.append((done, total))) == [
        0,
        1,
        2,
        3,
    ]
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with pytest.raises(EnvironmentUnavailable, match="it is gone"):
        await play_many([broken_at_once] * 2, range(4))


async def test_an_answer_that_looks_like_a_state_is_not_taken_for_one() -> None:
    said = StepResult(observation=as_text({"orders": {"O-1": {"order_id": "O-1", "status": "shipped"}}}))

    class Echo(Desk):
        async def step(self, action: ToolCall) -> StepResult:
            return said

    played: Trajectory = await perform(SPEC, Echo, task(1), repeating([call("get", "O-1")]), seed=0, source=Source.REAL)
    assert has_succeeded(SPEC, played, ends_itself=False) is None


values = st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=12)


@given(values)
def test_ranks_keep_the_order_and_sum_as_if_there_were_no_ties(numbers: list[float]) -> None:
    ranked = ranks(np.array([numbers]))[0].tolist()
    assert sum(ranked) == len(numbers) * (len(numbers) + 1) / 2
    assert all(
        (a < b) == (x < y) for a, x in zip(numbers, ranked, strict=True) for b, y in zip(numbers, ranked, strict=True)
    )


@given(values, st.integers(1, 5), st.integers(-5, 5))
def test_a_rank_correlation_depends_only_on_the_order(numbers: list[float], factor: int, shift: int) -> None:
    found = spearman(numbers, [factor * number**3 + shift for number in numbers])
    if len(set(numbers)) == 1:
        assert found is None
    else:
        assert found == pytest.approx(1.0)
        assert spearman(numbers, [-number for number in numbers]) == pytest.approx(-1.0)


@given(values.flatmap(lambda one: st.tuples(st.just(one), st.permutations(one))))
def test_a_rank_correlation_is_symmetric_and_between_minus_one_and_one(pair: tuple[list[float], list[float]]) -> None:
    one, other = pair
    found = spearman(one, other)
    assert found is None or (-1 <= found <= 1 and found == pytest.approx(spearman(other, one)))


def test_the_rank_correlation_agrees_with_a_textbook_value() -> None:
    # Kendall's example as in the Wikipedia article: IQ against hours of television, rho = -29/165
    iq = [106, 100, 86, 101, 99, 103, 97, 113, 112, 110]
    hours = [7, 27, 2, 50, 28, 29, 20, 12, 6, 17]
    assert spearman(iq, hours) == pytest.approx(-29 / 165)


def test_two_players_have_no_rank_correlation() -> None:
    assert rank_correlation([[1.0], [0.0]], [[1.0], [0.0]]) is None


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=6), min_size=3, max_size=3))
def test_the_interval_of_a_rank_correlation_holds_it(outcomes: list[list[float]]) -> None:
    n = min(map(len, outcomes))
    one_PN = [row[:n] for row in outcomes]
    other_PN = [list(reversed(row[:n])) for row in outcomes]
    rate = rank_correlation(one_PN, other_PN)
    assert rate is None or -1 <= rate.low <= rate.mean <= rate.high <= 1
    assert rate is None or rate.low < rate.high, "no interval is a single point"


def test_players_that_rank_alike_in_every_draw_have_the_interval_of_an_event_that_no_task_shows() -> None:
    outcomes = [[1.0] * 10, [0.0, 1.0] * 5, [0.0] * 10]
    rate = rank_correlation(outcomes, outcomes)
    assert rate is not None
    assert (rate.low, rate.mean, rate.high) == pytest.approx((1 - wilson(0, 10).high, 1, 1))


def test_the_interval_of_a_rank_correlation_that_rests_on_one_task_contains_0() -> None:
    dreamed = [[1.0] + [0.0] * 7] * 3 + [[0.0] * 8] * 3
    real = [[1.0] * 8, [1.0] * 7 + [0.0], [1.0] * 6 + [0.0] * 2, [1.0] * 3 + [0.0] * 5, [1.0] + [0.0] * 7, [0.0] * 8]
    rate = rank_correlation(dreamed, real)
    assert rate is not None
    assert rate.mean == pytest.approx(0.878, abs=0.001)
    assert rate.low < 0, "without that task there is no order"


def test_the_interval_of_a_rank_correlation_over_few_tasks_is_wider_than_that_over_copies_of_them() -> None:
    dreamed, real = [[1.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0]], [[1.0, 1.0, 1.0], [0.0, 1.0, 0.0], [0.0] * 3]
    few = rank_correlation(dreamed, real)
    many = rank_correlation([row * 20 for row in dreamed], [row * 20 for row in real])
    assert few is not None
    assert many is not None
    assert few.mean == many.mean
    assert few.low < many.low < many.mean


@given(st.lists(st.lists(st.sampled_from([0.0, 1.0]), max_size=5), max_size=5))
def test_the_interval_of_clustered_values_holds_their_mean(values_CN: list[list[float]]) -> None:
    rate = by_cluster(values_CN)
    assert 0 <= rate.low <= rate.mean <= rate.high <= 1
    assert rate.n == sum(map(len, values_CN))
