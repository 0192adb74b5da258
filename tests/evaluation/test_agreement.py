"""Agreement of answers with recorded ones, and the queries that a model gets."""

import json
from collections.abc import AsyncGenerator, Collection, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ledger import NOT_SET, ONLY_UP, SECRET, SPEC, add, counted, played

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import ExperienceModel, Part, Prediction, Query
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.calls import Compared, agreement, by_tool, similarity
from dreamgym.evaluation.episodes import perform, repeating
from dreamgym.evaluation.predictions import dream_of, played_again, predict, steps_of
from dreamgym.evaluation.rates import wilson
from dreamgym.evaluation.steps import step_fidelity
from dreamgym.llm import ScriptedLLM
from dreamgym.recordings.folder.server import taught_by
from dreamgym.recordings.splits import split
from dreamgym.redaction import RedactionRules, Redactor
from dreamgym.types import JsonObject, Provenance, Source, StepResult, Task, Tier, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

ONE = played("one", (add(1), counted(1)), (SECRET, NOT_SET))
TWO = played("two", (add(1), counted(1)), (add(2), counted(3)), (add(-1), ONLY_UP), (SECRET, NOT_SET))


async def predicted(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    trajectory: Trajectory,
    *,
    k: int | None = None,
    without: Collection[Part] = (),
) -> list[Compared]:
    """The calls of a trajectory as a dream that knows ONE predicts them."""
    return await predict(spec, model, [ONE], steps_of([trajectory]), TrigramEncoder(), k=k, without=without)


async def all_of(running: AsyncGenerator[Compared, None]) -> list[Compared]:
    return [call async for call in running]


class Asked:
    """A model that keeps its queries and repeats the first demonstration, or answers `count 0`."""

    name = "asked"
    demonstrations = 9
    learns_from_dreams = False

    def __init__(self) -> None:
        self.queries: list[Query] = []

    async def predict(self, query: Query) -> Prediction:
        self.queries.append(query)
        result = query.demonstrations[0].transition.result if query.demonstrations else counted(0)
        return Prediction(
            observation=result.observation,
            structured=result.structured,
            next_state=result.observation,
            is_error=result.is_error,
            provenance=Provenance(tier=Tier.MODEL),
        )

    async def close(self) -> None:
        pass


def answer(observation: str, *, error: bool = False) -> str:
    return json.dumps(
        {
            "reasoning": "",
            "observation": observation,
            "state": None,
            "error": error,
            "terminated": False,
            "success": False,
        }
    )


async def test_every_call_is_asked_with_the_recorded_steps_before_it_and_never_with_predicted_ones() -> None:
    model = Asked()
    await predicted(SPEC, model, TWO, without=[Part.VIEWS])
    assert [query.history for query in model.queries] == [TWO.transitions[:n] for n in range(4)]
    assert [query.state.text for query in model.queries] == ["", "count 1", "count 3", "only up"]


async def test_k_is_how_many_recordings_are_shown_and_0_shows_none() -> None:
    shown = []
    for k in (0, 1, 2):
        model = Asked()
        await predicted(SPEC, model, TWO, k=k)
        shown.append({len(query.demonstrations) for query in model.queries if query.history})
    assert shown[0] == {0}
    assert shown[1] == {1}
    assert max(shown[2]) == 2


async def test_a_recorded_call_is_repeated_and_an_unknown_one_without_recordings_is_not_guessed() -> None:
    known = await predicted(SPEC, NearestModel(), TWO)
    assert known[0].got is not None
    assert known[0].got.observation == "count 1"
    blind = await predicted(SPEC, NearestModel(), TWO, k=0)
    assert [call.got for call in blind] == [None] * 4
    assert "nothing is recorded" in str(blind[0].failure)
    scored = agreement(blind)
    assert (scored.calls, scored.answered.mean, scored.errors.mean, scored.exact.mean) == (4, 0, 0, 0)


async def test_a_language_model_is_compared_and_its_malformed_answers_are_counted() -> None:
    spec = SPEC.model_copy(update={"tools_list": ({"tools": [{"name": "add"}, {"name": "secret"}]},)})
    said = played("said", (SECRET, NOT_SET), (SECRET, NOT_SET), (SECRET, ONLY_UP))
    llm = ScriptedLLM([answer("not set"), "no JSON", "none either", answer("only up")])
    calls = await predicted(spec, LanguageModel(llm, 2), said, without=[Part.VIEWS])
    assert [call.exact for call in calls] == [True, False, False]
    assert [call.errors_agree for call in calls] == [True, False, False]
    assert "no valid answer" in str(calls[1].failure)
    scored = agreement(calls)
    assert (scored.answered.n, round(scored.answered.mean, 2), round(scored.exact.mean, 2)) == (3, 0.67, 0.33)


async def test_arguments_that_the_schema_forbids_are_refused_without_asking_the_model() -> None:
    model = Asked()
    wrong = played("wrong", (ToolCall(name="add", arguments={"n": "two"}), ONLY_UP), (ToolCall(name="fly"), ONLY_UP))
    calls = await predicted(SPEC, model, wrong)
    assert model.queries == []
    assert [call.errors_agree for call in calls] == [True, True]
    assert ["not of type 'integer'" in call.got.observation for call in calls if call.got] == [True, False]


async def test_a_recorded_refusal_of_forbidden_arguments_is_repeated_if_a_known_recording_shows_it() -> None:
    wrong, words = ToolCall(name="add", arguments={"n": "two"}), StepResult(observation="Which n?", is_error=True)
    mirror = SPEC.mirror.model_copy(update={"refusals": {wrong.canonical(): words.observation}})
    spec = SPEC.model_copy(update={"mirror": mirror})
    steps = steps_of([played("asked", (wrong, words))])
    for known, k, is_known in (([played("known", (wrong, words))], None, True), ([ONE], None, False), ([], 0, False)):
        (answered,) = await predict(spec, Asked(), known, steps, TrigramEncoder(), k=k)
        assert (answered.exact, answered.errors_agree) == (is_known, True)


def with_server_json(*recorded: Trajectory) -> EnvironmentSpec:
    """The counter with the server.json that the recorder makes of these trajectories."""
    calls = [(step.action, step.result) for one in recorded for step in one.transitions]
    return SPEC.model_copy(update={"mirror": taught_by(calls, {str(tool["name"]): tool for tool in SPEC.tools})})


def refused(action: ToolCall, words: str) -> Trajectory:
    """An episode of one call that the server refused."""
    return played(f"refused {action.canonical()}", (action, StepResult(observation=words, is_error=True)))


def add_text(n: str) -> ToolCall:
    """A call that the schema of `add` forbids."""
    return ToolCall(name="add", arguments={"n": n})


TOLD = {
    "invalid arguments": [
        refused(add_text(n), f"Input validation error: {n!r} is not of type 'integer'") for n in ("two", "three")
    ],
    "an unknown tool": [refused(ToolCall(name=name), f"No such tool: {name}, sorry!") for name in ("fly", "swim")],
}


@pytest.mark.parametrize("kind", TOLD)
async def test_a_dream_refuses_as_its_known_recordings_show_and_never_as_held_out_ones_do(kind: str) -> None:
    told, told_alike = TOLD[kind]
    spec, steps = with_server_json(told, told_alike, ONE), steps_of([told])
    for known, k, is_known in (([told_alike, ONE], None, True), ([ONE], None, False), ([told_alike, ONE], 0, False)):
        (answered,) = await predict(spec, NearestModel(), known, steps, TrigramEncoder(), k=k)
        assert answered.exact is is_known


async def test_a_forbidden_call_is_passed_on_only_if_a_known_recording_shows_that_the_server_accepts_it() -> None:
    held_out, alike = (played(name, (add_text("2"), counted(2))) for name in ("held out", "alike"))
    spec, steps = with_server_json(held_out, alike, ONE), steps_of([held_out])
    for known, k, is_known in (([alike, ONE], None, True), ([ONE], None, False), ([alike, ONE], 0, False)):
        model = Asked()
        (answered,) = await predict(spec, model, known, steps, TrigramEncoder(), k=k, without=[Part.VIEWS])
        assert (len(model.queries), answered.errors_agree) == (is_known, is_known)


async def test_words_of_a_server_json_that_no_recording_shows_are_kept() -> None:
    by_hand = SPEC.mirror.model_copy(update={"unknown_tool": "I cannot {tool}.", "invalid_arguments": "No: {reason}"})
    spec = SPEC.model_copy(update={"mirror": by_hand})
    told = refused(ToolCall(name="fly"), "I cannot fly.")
    for known, k in (([ONE], None), ([ONE], 0)):
        (answered,) = await predict(spec, NearestModel(), known, steps_of([told]), TrigramEncoder(), k=k)
        assert answered.exact


async def test_a_player_is_refused_in_the_servers_words_in_reality_and_in_known_words_in_the_dream() -> None:
    told = refused(ToolCall(name="fly"), "No such tool: fly, sorry!")
    spec = with_server_json(told, ONE)
    make_dream = await dream_of(spec, NearestModel(), [ONE], TrigramEncoder(), recorded=[told, ONE])
    said = {}
    for source, make in ((Source.SYNTHETIC, make_dream), (Source.REAL, Counter)):
        episode = await perform(spec, make, told.task, repeating([ToolCall(name="fly")]), seed=0, source=source)
        said[source] = episode.transitions[0].result.observation
    assert said == {
        Source.SYNTHETIC: "MCP error -32602: Tool fly not found",
        Source.REAL: "No such tool: fly, sorry!",
    }


async def test_the_interval_of_a_similarity_is_for_other_trajectories() -> None:
    calls = [
        (await predicted(SPEC, NearestModel(), played(name, *steps)))[0]
        for name, steps in [("a", [(SECRET, NOT_SET)]), ("b", [(SECRET, ONLY_UP)])]
        for _ in range(20)
    ]
    found = agreement(calls).similarity
    assert found == step_fidelity(calls, explicit=False).similarity
    steps = wilson(40 * found.mean, 40)
    assert found.high - found.low > 3 * (steps.high - steps.low)


async def test_an_answer_that_breaks_the_output_schema_is_counted_for_the_tools_that_have_one() -> None:
    class Textual(Asked):
        async def predict(self, query: Query) -> Prediction:
            return (await super().predict(query)).model_copy(update={"structured": None})

    calls = await predicted(SPEC, Textual(), TWO, without=[Part.VIEWS])
    tools = by_tool(calls)
    assert (tools["add"].valid.mean, tools["add"].valid.n) == (0.0, 3)
    assert tools["secret"].valid.n == 0
    assert "requires structured content" in str(calls[0].invalid)


class Counter:
    """The real counter in this process; `dies_at` is the step that has no answer."""

    def __init__(self, dies_at: int = 0) -> None:
        self.tools: Sequence[JsonObject] = ()
        self.dies_at, self.count, self.steps, self.closed = dies_at, 0, 0, False

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        self.count = self.steps = 0
        return StepResult(observation="")

    async def step(self, action: ToolCall) -> StepResult:
        self.steps += 1
        if self.steps == self.dies_at:
            raise EnvironmentUnavailable("the counter has ended")
        if action == SECRET:
            return NOT_SET
        n = action.arguments["n"]
        assert isinstance(n, int)
        if n < 0:
            return ONLY_UP
        self.count += n
        return counted(self.count)

    async def close(self) -> None:
        self.closed = True


async def test_the_real_system_is_played_call_by_call_from_a_fresh_start() -> None:
    counter = Counter()
    calls = await all_of(played_again(SPEC, lambda: counter, [TWO, ONE]))
    assert [(call.trajectory, call.step) for call in calls] == [("two", n) for n in (1, 2, 3, 4)] + [
        ("one", 1),
        ("one", 2),
    ]
    assert all(call.exact for call in calls)
    assert counter.closed


async def test_calls_after_one_without_an_answer_are_not_compared_in_an_unknown_state() -> None:
    counter = Counter(dies_at=3)
    calls = await all_of(played_again(SPEC, lambda: counter, [TWO, ONE]))
    assert [call.got is not None for call in calls] == [True, True, False, False, True, True]
    assert calls[2].failure == calls[3].failure == "the counter has ended"


async def test_the_reason_why_a_call_has_no_answer_is_redacted_like_the_answers() -> None:
    redactor = Redactor(RedactionRules(patterns={"kind": "counter"}), key=b"k" * 32)
    counter = Counter(dies_at=3)
    calls = await all_of(played_again(SPEC, lambda: counter, [TWO], redact=redactor.value))
    assert calls[3].failure == redactor.text("the counter has ended") != "the counter has ended"


@pytest.mark.parametrize(
    ("recorded", "got", "exact"),
    [
        ('{"a": 1, "b": [2]}', '{"b":[2],\n"a":1}', True),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ("Echo: hi", "Echo: hi ", False),
        ("true", "True", False),
        ('{"price": 5.0}', '{"price": 5}', True),
        ('{"open": true}', '{"open": 1}', False),
    ],
)
def test_json_is_compared_as_json_and_text_to_the_letter(recorded: str, got: str, exact: bool) -> None:
    assert compared(StepResult(observation=recorded), StepResult(observation=got)).exact is exact


def test_answers_too_deep_for_a_json_parser_are_compared_as_text() -> None:
    deep = StepResult(observation="[" * 3000)
    assert compared(deep, deep).exact
    assert not compared(deep, StepResult(observation="[" * 3001)).exact


def test_an_error_and_an_answer_of_the_same_words_are_not_the_same() -> None:
    one = compared(StepResult(observation="no"), StepResult(observation="no", is_error=True))
    assert not one.exact
    assert not one.errors_agree
    assert one.similarity == 1.0


def test_structured_content_counts_besides_the_text() -> None:
    assert compared(counted(1), counted(1)).exact
    assert not compared(counted(1), StepResult(observation="count 1")).exact
    other = StepResult(observation="count 1", info={"structured": {"count": 2}})
    assert not compared(counted(1), other).exact


@pytest.mark.parametrize(
    ("recorded", "got", "score"),
    [
        ("a b c d", "a b x y", 0.5),
        ("", "", 1.0),
        ("a", "", 0.0),
        ('{"name": "Ada", "age": 36}', '{"age": 36, "name": "Ada"}', 1.0),
        ('{"name": "Ada", "age": 36}', '{"name": "Ada", "age": 37}', 0.5),
        ('{"name": "Ada"}', '{"title": "Ada"}', 0.0),
        ('[{"a": 1}, {"a": 2}]', '[{"a": 0}, {"a": 1}, {"a": 2}]', 6 / 7),
        ('{"price": 5.0}', '{"price": 5}', 1.0),
    ],
)
def test_the_similarity_is_the_share_of_words_in_their_places(recorded: str, got: str, score: float) -> None:
    assert similarity(StepResult(observation=recorded), StepResult(observation=got)) == pytest.approx(score)


texts = st.text('ab{}[]":,1 \n', max_size=20)


@given(texts, texts)
def test_the_similarity_is_symmetric_within_bounds_and_1_for_the_same(one: str, other: str) -> None:
    ours, theirs = StepResult(observation=one), StepResult(observation=other)
    assert similarity(ours, ours) == 1.0
    assert 0.0 <= similarity(ours, theirs) == similarity(theirs, ours) <= 1.0


def test_a_split_is_by_trajectory_and_fixed_by_its_seed() -> None:
    recorded = [played(str(i), (add(1), counted(1))) for i in range(10)]
    known, held_out = split(recorded, 0.3, seed=4)
    assert (len(known), len(held_out)) == (7, 3)
    assert sorted([*known, *held_out], key=lambda one: one.id) == recorded
    assert split(recorded, 0.3, seed=4) == (known, held_out)
    assert len({split(recorded, 0.3, seed=seed)[1][0].id for seed in range(20)}) > 1


@pytest.mark.parametrize(("share", "held_out"), [(0.0, 1), (1.0, 9)])
def test_each_side_of_a_split_has_at_least_one_trajectory(share: float, held_out: int) -> None:
    recorded = [played(str(i), (add(1), counted(1))) for i in range(10)]
    assert len(split(recorded, share, seed=0)[1]) == held_out


def test_a_single_trajectory_cannot_be_split() -> None:
    with pytest.raises(InvalidInput, match=r"at least two trajectories with calls .* got 1"):
        split([ONE, played("empty")], 0.3, seed=0)


def compared(recorded: StepResult, got: StepResult) -> Compared:
    return Compared(trajectory="t", step=1, action=add(1), recorded=recorded, got=got)
