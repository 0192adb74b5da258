"""Which tier answers a step of a dream, when its answer is accepted, and what happens if confidence is too low."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from importlib.metadata import EntryPoint

import pytest
from shop_state import SHOP, call, order, predicted, shop, state, step

from dreamgym.dream import environment
from dreamgym.dream.confidence import FEATURES, Calibration, calibrate, features
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.fitted import FittedModel, Fitting
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished, InvalidInput, PredictionError
from dreamgym.llm import ScriptedLLM
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import JsonObject, Provenance, Source, StopReason, Task, Tier, Trajectory, Transition

pytestmark = pytest.mark.anyio

START = state(order(1), order(2))
CANCELLED = state(order(1, "cancelled"), order(2))
DONE: JsonObject = {
    "properties": {"orders": {"properties": {"O-1": {"properties": {"status": {"const": "cancelled"}}}}}}
}
TASK = Task(id="t", env="shop", instruction="Cancel order O-1.", initial_state=START, metadata={"success": DONE})


class Told:
    """A model that returns the prediction of the test, and keeps the queries."""

    name = "told"
    demonstrations = 2
    learns_from_dreams = True

    def __init__(self, says: Prediction | Callable[[Query], Prediction]) -> None:
        self._says = says
        self.asked: list[Query] = []

    async def predict(self, query: Query) -> Prediction:
        self.asked.append(query)
        return self._says(query) if callable(self._says) else self._says

    async def close(self) -> None:
        pass


async def recorded(*steps: Transition, world: str = "", source: Source = Source.REAL) -> MemoryBuffer:
    """A buffer in which each step is an episode of its own."""
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(
        [
            Trajectory(
                id=f"e{number}",
                task=TASK,
                transitions=(one,),
                source=source,
                stop_reason=StopReason.CLOSED,
                world=world,
            )
            for number, one in enumerate(steps)
        ]
    )
    return buffer


async def dream(
    says: Prediction | Callable[[Query], Prediction],
    *steps: Transition,
    spec: EnvironmentSpec = SHOP,
    buffer: MemoryBuffer | None = None,
    task: Task = TASK,
    **options: object,
) -> tuple[DreamEnvironment, Told]:
    """A dream at the start of the task."""
    model = Told(says)
    made = DreamEnvironment(spec, model, buffer or await recorded(*steps), **options)  # type: ignore[arg-type]
    await made.reset(task, seed=3)
    return made, model


MANY = state(*(order(n) for n in (1, 2, 3, 4)))
GET = call("get_order", 1)
GOT = step(START, GET, order(1))
MISSED = step(START, call("get_order", 9), "There is no order O-9.", refused=True)
BY_MODEL = predicted(order(1), START)


async def test_the_first_observation_of_an_explicit_state_is_empty() -> None:
    made, _ = await dream(BY_MODEL)
    first = await made.reset(TASK)
    assert (first.observation, first.state) == ("", START)


async def test_a_recorded_step_of_a_deterministic_environment_is_repeated_without_the_model() -> None:
    made, model = await dream(BY_MODEL, GOT, spec=shop(deterministic=True))
    result = await made.step(GET)
    assert (result.observation, model.asked, made.asked) == (GOT.result.observation, [], None)
    assert made.transitions[0].provenance.tier is Tier.RECORDED
    assert made.transitions[0].provenance.exact


async def test_a_recording_that_the_model_repeats_is_not_credited_to_a_tier_that_is_left_out() -> None:
    made = DreamEnvironment(
        shop(deterministic=True), NearestModel(), await recorded(GOT), without=frozenset({Part.RECORDED})
    )
    await made.reset(TASK)
    result = await made.step(GET)
    used = made.transitions[0].provenance
    assert (result.observation, used.tier, used.model, used.exact) == (
        GOT.result.observation,
        Tier.MODEL,
        "nearest",
        True,
    )


@pytest.mark.parametrize(
    ("deterministic", "without", "source"),
    [
        (False, frozenset(), Source.REAL),
        (True, frozenset({Part.RECORDED}), Source.REAL),
        (True, frozenset(), Source.SYNTHETIC),
    ],
)
async def test_a_recorded_step_that_may_not_be_repeated_is_shown_to_the_model(
    deterministic: bool, without: frozenset[Part], source: Source
) -> None:
    buffer = await recorded(GOT, source=source)
    made, model = await dream(BY_MODEL, buffer=buffer, spec=shop(deterministic), without=without)
    await made.step(GET)
    assert [shown.transition for shown in model.asked[0].demonstrations] == [GOT]
    assert made.transitions[0].provenance.tier is Tier.MODEL


async def test_what_a_dream_made_up_hides_no_recording_from_the_model() -> None:
    buffer = await recorded(step(START, GET, "There is no such order.", refused=True), source=Source.SYNTHETIC)
    real = Trajectory(id="real", task=TASK, transitions=(MISSED,), source=Source.REAL, stop_reason=StopReason.CLOSED)
    await buffer.add([real])
    made, model = await dream(BY_MODEL, buffer=buffer, without=frozenset({Part.EFFECTS}))
    await made.step(GET)
    sources = [shown.source for shown in model.asked[0].demonstrations]
    assert sources == [Source.SYNTHETIC, Source.REAL]


async def test_recordings_of_one_world_that_contradict_each_other_are_left_to_the_model() -> None:
    other = step(START, GET, "Try again later.", refused=True)
    buffer = await recorded(GOT, other, world="w")
    made, model = await dream(BY_MODEL, buffer=buffer, spec=shop(deterministic=True))
    await made.step(GET)
    assert len(model.asked[0].demonstrations) == 2
    buffer = await recorded(GOT, other)  # of two worlds; this episode belongs to one of them
    made, model = await dream(BY_MODEL, buffer=buffer, spec=shop(deterministic=True))
    await made.step(GET)
    assert model.asked == []


async def test_a_call_about_a_missing_entity_is_refused_without_asking_the_model() -> None:
    made, model = await dream(BY_MODEL, GOT, MISSED)
    result = await made.step(call("get_order", 44))
    assert (result.observation, result.is_error, result.state) == ("There is no order O-44.", True, START)
    assert (model.asked, made.transitions[0].provenance.tier) == ([], Tier.CHECK)


async def test_a_refusal_is_found_among_many_steps_of_other_tools() -> None:
    crowd = [step(START, call("cancel_order", f"O-{n}"), f"cancelled {n}") for n in range(100)]
    far = [step(state(order(70 + n)), call("get_order", 70 + n), order(70 + n)) for n in range(3)]
    missed = step(state(order(6, "lost")), call("get_order", 66), "O-66?", refused=True)
    made, model = await dream(BY_MODEL, *crowd, *far, missed)
    assert (await made.step(call("get_order", 5))).observation == "O-5?"
    assert model.asked == []


@pytest.mark.parametrize("spec", [SHOP, shop(deterministic=True)], ids=["", "deterministic"])
async def test_without_retrieval_recordings_neither_answer_nor_are_shown(spec: EnvironmentSpec) -> None:
    many = [step(MANY, call("get_order", n), order(n)) for n in (1, 2, 3)]
    made, model = await dream(BY_MODEL, GOT, MISSED, *many, spec=spec, without=frozenset({Part.RETRIEVAL}))
    for action in (call("get_order", 44), GET, call("get_order", 2)):
        await made.step(action)
    assert [(asked.demonstrations, asked.without) for asked in model.asked] == [((), frozenset({Part.RETRIEVAL}))] * 3
    assert {one.provenance.tier for one in made.transitions} == {Tier.MODEL}


async def test_an_answer_that_contradicts_the_state_is_an_error_and_adds_no_step() -> None:
    made, _ = await dream(predicted(order(1, "lost"), START))
    with pytest.raises(PredictionError, match=r"model 'told': the answer shows 'status' of 'O-1'"):
        await made.step(GET)
    assert (made.transitions, made.asked) == ((), None)
    made, _ = await dream(predicted(order(1, "lost"), START), without=frozenset({Part.CHECKS}))
    assert not (await made.step(GET)).is_error


def claimed(after: str, *, success: bool, judged: bool | None = None) -> Prediction:
    said = predicted("Done.", after, terminated=True, success=success)
    return said.model_copy(update={"provenance": Provenance(tier=Tier.MODEL, judged=judged)})


@pytest.mark.parametrize(
    ("prediction", "reward", "is_logged"),
    [
        (claimed(CANCELLED, success=True), 1, False),
        (claimed(START, success=True), 0, False),
        (claimed(START, success=True, judged=True), 0, True),
        (claimed(CANCELLED, success=False, judged=False), 1, True),
        (claimed(START, success=False, judged=False), 0, False),
    ],
)
async def test_the_check_of_the_state_decides_whether_a_step_is_a_success(
    prediction: Prediction, reward: int, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    made, _ = await dream(prediction)
    with caplog.at_level(logging.WARNING):
        result = await made.step(call("cancel_order", 1))
    assert (result.reward, result.terminated) == (reward, True)
    provenance = made.transitions[0].provenance
    assert (provenance.checked, provenance.judged) == (bool(reward), prediction.provenance.judged)
    assert ("the judge says" in caplog.text) is is_logged


async def test_without_a_check_the_models_claim_that_its_judge_confirmed_counts() -> None:
    claim = claimed(START, success=True, judged=True)
    for task, without in (
        (TASK.model_copy(update={"metadata": {}}), frozenset()),
        (TASK, frozenset({Part.CHECKS})),
    ):
        made, _ = await dream(claim, task=task, without=without)
        assert (await made.step(call("cancel_order", 1))).reward == 1
        assert made.transitions[0].provenance.checked is None


async def test_a_recorded_success_is_checked_too() -> None:
    won = step(START, call("cancel_order", 1), "Done.", START)
    won = won.model_copy(update={"result": won.result.model_copy(update={"reward": 1.0, "terminated": True})})
    made, _ = await dream(BY_MODEL, won, spec=shop(deterministic=True))
    result = await made.step(call("cancel_order", 1))
    assert (result.terminated, result.reward) == (True, 0)
    assert made.transitions[0].provenance.tier is Tier.RECORDED


async def test_entities_of_an_incomplete_collection_are_known_once_an_answer_has_shown_them() -> None:
    note: JsonObject = {"note_id": "N-1", "text": "fragile"}
    made, _ = await dream(lambda query: predicted([note, order(2)], query.state.text))
    result = await made.step(call("get_note", "N-1"))
    assert result.state == state(order(1), order(2), notes=[note])
    assert made.transitions[0].next_state == result.state
    note["text"] = "heavy"
    with pytest.raises(PredictionError, match="'text' of 'N-1'"):
        await made.step(call("get_note", "N-1"))


def sure(probability: float, model: str = "told", env: str = "shop") -> Calibration:
    """A calibration by which every answer has about this probability."""
    rows = [((0.0,) * len(FEATURES), k < probability * 100) for k in range(100)]
    fitted = calibrate(rows, model=model, env=env)
    return fitted.model_copy(update={"weights": (0.0,) * len(FEATURES)})


async def test_the_confidence_of_an_answer_is_stored_with_it() -> None:
    made, model = await dream(BY_MODEL, GOT, calibration=sure(0.9), min_confidence=0.5)
    result = await made.step(GET)
    assert not result.done
    assert made.transitions[0].provenance.confidence == pytest.approx(0.9, abs=0.02)
    assert made.asked is not None
    assert made.asked[0].demonstrations == model.asked[0].demonstrations
    assert len(features(*made.asked)) == len(FEATURES)
    made, _ = await dream(BY_MODEL, GOT)
    await made.step(GET)
    assert made.transitions[0].provenance.confidence is None


async def test_an_episode_ends_without_an_answer_if_confidence_is_below_the_limit() -> None:
    won = claimed(CANCELLED, success=True)
    made, _ = await dream(won, calibration=sure(0.1), min_confidence=0.5)
    result = await made.step(call("cancel_order", 1))
    assert (result.observation, result.is_error) == ("The session has ended.", True)
    assert (result.truncated, result.terminated, result.reward) == (True, False, 0)
    assert (result.info["stop"], result.state) == ("out_of_support", START)
    kept = made.transitions[0]
    assert (kept.state, kept.next_state) == (START, START)
    assert kept.provenance.confidence == pytest.approx(0.1, abs=0.02)
    with pytest.raises(EpisodeFinished):
        await made.step(GET)


async def test_answers_of_recordings_and_checks_need_no_confidence() -> None:
    spec = shop(deterministic=True)
    made, _ = await dream(BY_MODEL, GOT, MISSED, spec=spec, calibration=sure(0.1), min_confidence=0.5)
    assert not (await made.step(GET)).done
    assert not (await made.step(call("get_order", 44))).done
    assert [one.provenance.confidence for one in made.transitions] == [None, None]


async def test_a_limit_without_a_calibration_and_a_calibration_of_another_model_are_refused() -> None:
    with pytest.raises(InvalidInput, match="min_confidence needs a calibration of 'told'"):
        await dream(BY_MODEL, min_confidence=0.5)
    with pytest.raises(InvalidInput, match="the calibration belongs to model 'other'"):
        await dream(BY_MODEL, calibration=sure(0.5, model="other"))


async def test_the_model_is_not_shown_transitions_that_were_stored_after_the_watermark() -> None:
    buffer = await recorded(step(START, call("get_order", 2), order(2)))
    then = await buffer.watermark("shop")
    later = GOT.model_copy(update={"provenance": Provenance(tier=Tier.MODEL)})
    episode = Trajectory(
        id="later", task=TASK, transitions=(later,), source=Source.SYNTHETIC, stop_reason=StopReason.CLOSED
    )
    await buffer.add([episode])
    shown = []
    for as_of in (then, None):
        made, model = await dream(BY_MODEL, buffer=buffer, as_of=as_of, without=frozenset({Part.EFFECTS}))
        await made.step(GET)
        shown.append([one.transition.action for one in model.asked[0].demonstrations])
    assert shown == [[call("get_order", 2)], [GET, call("get_order", 2)]]


RECORDED = tuple(step(MANY, call("get_order", n), order(n)) for n in (1, 2, 3))


async def test_an_answer_that_follows_from_recordings_of_the_tool_is_given_without_asking_the_model() -> None:
    made, model = await dream(BY_MODEL, *RECORDED, task=TASK.model_copy(update={"initial_state": MANY}))
    result = await made.step(call("get_order", 4))
    assert json.loads(result.observation) == order(4)
    assert made.transitions[0].provenance.tier is Tier.EFFECTS
    assert not model.asked


async def test_without_the_learned_effects_the_model_is_asked() -> None:
    start = TASK.model_copy(update={"initial_state": MANY})
    says = predicted(order(4), MANY)
    made, model = await dream(says, *RECORDED, task=start, without=frozenset({Part.EFFECTS}))
    await made.step(call("get_order", 4))
    assert len(model.asked) == 1


async def test_a_fact_that_a_fitted_model_tells_is_not_believed_by_a_check() -> None:
    """A fitted model is a language model, which can be talked into facts, although it is not a judge."""
    note = json.dumps({"note_id": "N-1", "text": "Order O-1 is cancelled."})
    told = {"reasoning": "", "error": False, "changes": [], "observation": note}

    class Fitted(ScriptedLLM):
        form = "fitted"

    llm = Fitted(lambda messages: json.dumps({**told, "terminated": False, "success": False}))
    fitting = Fitting(
        env="shop", demonstrations=2, base="b", tokenizer="t", seed=0, rows=1, steps=1, learned=(), versions={}
    )
    made = DreamEnvironment(SHOP, FittedModel(llm, fitting), await recorded())
    await made.reset(TASK, seed=3)
    assert "N-1" in (await made.step(call("get_note", "N-1"))).state
    assert made.transitions[0].provenance.unbounded


class Foreign:
    """A tier of another package: it answers each call of one tool."""

    infers = True

    def __init__(self, tool: str, says: Prediction) -> None:
        self._tool = tool
        self._says = says

    async def answer(self, query: Query) -> Prediction | None:
        return self._says if query.action.name == self._tool else None


Install = Callable[[dict[str, Foreign]], None]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Install:
    """A function that registers tiers by name, as packages do with entry points."""

    def install(made: dict[str, Foreign]) -> None:
        points = {name: EntryPoint(name, f"another.package:{name}", "dreamgym.tiers") for name in made}
        monkeypatch.setattr(environment, "plugins", lambda group: points)
        monkeypatch.setattr(EntryPoint, "load", lambda self: lambda spec: made[self.name])

    return install


async def test_the_tier_of_another_package_answers_before_the_model(installed: Install) -> None:
    installed({"b": Foreign("get_order", predicted(order(2), START)), "a": Foreign("cancel_order", BY_MODEL)})
    made, model = await dream(BY_MODEL, calibration=sure(0.9))
    assert (await made.step(call("get_order", 2))).observation == json.dumps(order(2))
    assert model.asked == []
    provenance = made.transitions[0].provenance
    assert (provenance.tier, provenance.model) == (Tier.PLUGIN, "m")
    assert provenance.confidence == pytest.approx(0.9, abs=0.02)
    assert made.asked is not None


async def test_answers_of_another_packages_tier_that_infers_nothing_get_no_confidence(installed: Install) -> None:
    tier = Foreign("get_order", predicted(order(2), START))
    tier.infers = False
    installed({"a": tier})
    made, _ = await dream(BY_MODEL, calibration=sure(0.1))
    await made.step(call("get_order", 2))
    assert (made.transitions[0].provenance.confidence, made.asked) == (None, None)


@pytest.mark.parametrize("exact", [False, True])
async def test_a_success_that_a_tier_of_another_package_claims_is_open_without_a_check_or_a_judge(
    installed: Install, exact: bool
) -> None:
    claim = predicted(order(1), START, success=True, terminated=True).noted(exact=exact)
    installed({"a": Foreign("get_order", claim)})
    made, _ = await dream(BY_MODEL, task=TASK.model_copy(update={"metadata": {}}))
    result = await made.step(call("get_order", 1))
    assert (result.reward, result.terminated, result.info["open_end"]) == (0.0, False, True)


async def test_tiers_of_other_packages_are_asked_in_the_order_of_their_names(installed: Install) -> None:
    installed({name: Foreign("get_order", predicted(f"by {name}", START)) for name in ("b", "a")})
    made, _ = await dream(BY_MODEL)
    assert (await made.step(GET)).observation == "by a"


async def test_an_answer_of_another_packages_tier_that_contradicts_the_state_is_not_used(installed: Install) -> None:
    installed({"a": Foreign("get_order", predicted(order(1, "lost"), START))})
    made, model = await dream(BY_MODEL)
    assert (await made.step(GET)).observation == json.dumps(order(1))
    assert len(model.asked) == 1
    assert made.transitions[0].provenance.tier is Tier.MODEL


async def test_a_recording_of_the_same_step_answers_before_any_other_tier(installed: Install) -> None:
    installed({"a": Foreign("get_order", predicted("by a", START))})
    made, _ = await dream(BY_MODEL, GOT, spec=shop(deterministic=True))
    assert (await made.step(GET)).observation == GOT.result.observation
