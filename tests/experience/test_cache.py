"""A question that was asked before is answered as before, and only such a question."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from queries import DESK, HOUSE, act, query, transition

import dreamgym
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.experience.cache import Remembering, edition, remembering, weights_fingerprint
from dreamgym.experience.language import LanguageModel
from dreamgym.experience.model import Judge, Part, Prediction, Query, Verdict
from dreamgym.experience.nearest import NearestModel
from dreamgym.llm import ScriptedLLM
from dreamgym.replay.postgres import Store
from dreamgym.replay.predictions import MemoryPredictions, Predictions
from dreamgym.state import StateSchema
from dreamgym.types import Provenance, Task, Tier, Transition

pytestmark = pytest.mark.anyio

KITCHEN, HALL = "kitchen.", "hall."
SEEN = transition(KITCHEN, act("east"), HALL)


class Moody:
    """Never answers the same twice; waits where a test wants it, and fails where it says so."""

    demonstrations = 3
    learns_from_dreams = True

    def __init__(self, name: str = "moody") -> None:
        self.name = name
        self.asked = 0
        self.fails = False
        self.began = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.closed = False

    async def predict(self, query: Query) -> Prediction:
        self.asked += 1
        number = self.asked
        self.began.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise PredictionError("out of sorts")
        return Prediction(
            observation=f"{self.name} {number} \u00fc",
            next_state="anywhere",
            probabilities={"error": 0.1 + 0.2},
            provenance=Provenance(tier=Tier.MODEL, model=self.name, seed=query.seed, prompt_tokens=7, exact=True),
        )

    async def close(self) -> None:
        self.closed = True


class MoodyJudge(Moody):
    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        self.asked += 1
        return Verdict(accomplished=self.asked % 2 == 1, prompt_tokens=9)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        self.asked += 1
        return self.asked % 2 == 1


QUESTION = query(HOUSE, KITCHEN, act("north"), SEEN, history=(SEEN,))


@pytest.fixture(params=["memory", "postgres"])
def predictions(request: pytest.FixtureRequest) -> Predictions:
    if request.param == "memory":
        return MemoryPredictions()
    store: Store = request.getfixturevalue("store")
    return store.predictions


async def test_the_first_answer_to_a_question_stays_and_a_repeated_one_costs_nothing(predictions: Predictions) -> None:
    model = Moody()
    first = await Remembering(model, predictions).predict(QUESTION)
    again = await Remembering(model, predictions).predict(QUESTION)
    assert model.asked == 1
    assert first.provenance.tier is Tier.MODEL
    free = {"tier": Tier.CACHE, "prompt_tokens": 0, "completion_tokens": 0}
    assert again == first.model_copy(update={"provenance": first.provenance.model_copy(update=free)})


async def test_of_two_that_remember_at_once_the_first_is_believed(predictions: Predictions) -> None:
    assert await predictions.put(b"k", '"one"') == '"one"'
    assert await predictions.put(b"k", '"two"') == '"one"'
    assert (await predictions.get(b"k"), await predictions.get(b"l")) == ('"one"', None)


async def test_two_processes_that_ask_at_once_give_the_same_answer(predictions: Predictions) -> None:
    models = [Moody(), Moody()]
    models[1].asked = 100
    gate = asyncio.Event()
    for model in models:
        model.gate = gate
    asking = [asyncio.create_task(Remembering(model, predictions).predict(QUESTION)) for model in models]
    for model in models:
        await model.began.wait()
    gate.set()
    answers = await asyncio.gather(*asking)
    assert answers[0].observation == answers[1].observation
    assert {answer.provenance.tier for answer in answers} == {Tier.MODEL, Tier.CACHE}


CHANGES: dict[str, Callable[[Query], Query]] = {
    "seed": lambda q: q.model_copy(update={"seed": q.seed + 1}),
    "state": lambda q: q.model_copy(update={"state": HALL}),
    "action": lambda q: q.model_copy(update={"action": act("south")}),
    "history": lambda q: q.model_copy(update={"history": ()}),
    "demonstrations": lambda q: q.model_copy(update={"demonstrations": ()}),
    "reasoning of a demonstration": lambda q: q.model_copy(
        update={
            "demonstrations": (
                q.demonstrations[0].model_copy(
                    update={"transition": SEEN.model_copy(update={"reasoning": "a door is there"})}
                ),
            )
        }
    ),
    "without": lambda q: q.model_copy(update={"without": frozenset({Part.REASONING})}),
    "instruction": lambda q: q.model_copy(update={"task": q.task.model_copy(update={"instruction": "Rest."})}),
    "initial state": lambda q: q.model_copy(update={"task": q.task.model_copy(update={"initial_state": HALL})}),
    "tools": lambda q: q.model_copy(update={"spec": HOUSE.model_copy(update={"tools_list": DESK.tools_list})}),
    "rules": lambda q: q.model_copy(update={"spec": HOUSE.model_copy(update={"rules": "None."})}),
    "state schema": lambda q: q.model_copy(
        update={"spec": HOUSE.model_copy(update={"state": StateSchema(values={"clock": "integer"})})}
    ),
}


@pytest.mark.parametrize("what", CHANGES)
async def test_whatever_else_a_prediction_depends_on_is_another_question(what: str) -> None:
    model = Moody()
    remembered = Remembering(model, MemoryPredictions())
    answers = [await remembered.predict(asked) for asked in (QUESTION, CHANGES[what](QUESTION), QUESTION)]
    assert model.asked == 2
    assert answers[0].observation == answers[2].observation != answers[1].observation


async def test_another_model_and_the_same_name_with_another_fingerprint_are_asked_anew() -> None:
    predictions = MemoryPredictions()
    models = [Moody(), Moody("other"), Moody()]
    models[2].fingerprint = "weights of today"  # type: ignore[attr-defined]
    for model in models:
        await Remembering(model, predictions).predict(QUESTION)
    assert [model.asked for model in models] == [1, 1, 1]


def test_weights_that_change_in_their_place_are_another_model(tmp_path: Path) -> None:
    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    first = weights_fingerprint(str(weights.parent))
    assert first
    assert first == weights_fingerprint(str(weights.parent)) != weights_fingerprint(str(weights))
    os.utime(weights, ns=(1, 1))
    assert weights_fingerprint(str(weights.parent)) != first
    assert {weights_fingerprint(name) for name in (None, "nearest", "http://host/v1#m", "")} == {""}


async def test_a_fingerprint_makes_another_model() -> None:
    predictions, model = MemoryPredictions(), Moody()
    for fingerprint in ("one", "two", "one"):
        await remembering(model, predictions, fingerprint).predict(QUESTION)
    assert model.asked == 2


async def test_how_earlier_answers_came_about_and_how_near_a_recording_was_make_no_other_question() -> None:
    model = Moody()
    remembered = Remembering(model, MemoryPredictions())
    by_model = SEEN.model_copy(update={"provenance": Provenance(tier=Tier.MODEL, prompt_tokens=5)})
    nearer = QUESTION.demonstrations[0].model_copy(update={"score": 0.2})
    for changes in ({}, {"history": (by_model,)}, {"demonstrations": (nearer,)}):
        await remembered.predict(QUESTION.model_copy(update=changes))
    assert model.asked == 1


async def test_identical_questions_at_once_share_one_prediction_and_who_leaves_takes_it_from_nobody() -> None:
    model = Moody()
    model.gate = asyncio.Event()
    remembered = Remembering(model, MemoryPredictions())
    asking = [asyncio.create_task(remembered.predict(QUESTION)) for _ in range(3)]
    await model.began.wait()
    asking[0].cancel()
    await asyncio.gather(asking[0], return_exceptions=True)
    model.gate.set()
    answers = await asyncio.gather(*asking[1:])
    assert model.asked == 1
    assert {answer.observation for answer in answers} == {"moody 1 \u00fc"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("state.py", True),
        ("tools.py", True),
        ("experience/rules.txt", True),
        ("experience/effects/proposing.py", True),
        ("replay/retrieval.sql", True),
        ("cli/app.py", False),
    ],
)
def test_another_edition_of_the_code_that_an_answer_depends_on_is_another_question(
    name: str, changes: bool, tmp_path: Path
) -> None:
    package = tmp_path / "dreamgym"
    shutil.copytree(Path(dreamgym.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = edition(package)
    edition.cache_clear()
    (package / name).write_text((package / name).read_text() + "\n")
    assert (edition(package) != before) is changes


async def test_a_prediction_that_failed_is_asked_for_again() -> None:
    model = Moody()
    model.fails = True
    remembered = Remembering(model, MemoryPredictions())
    for failed in await asyncio.gather(*(remembered.predict(QUESTION) for _ in range(2)), return_exceptions=True):
        assert isinstance(failed, PredictionError)
    model.fails = False
    assert (await remembered.predict(QUESTION)).provenance.tier is Tier.MODEL


async def test_where_the_tier_is_left_out_every_question_is_asked() -> None:
    model = Moody()
    remembered = Remembering(model, MemoryPredictions())
    asked = QUESTION.model_copy(update={"without": frozenset({Part.CACHE})})
    assert len({(await remembered.predict(asked)).observation for _ in range(3)}) == 3


async def test_a_judge_stays_a_judge_and_gives_each_verdict_once() -> None:
    assert not isinstance(remembering(NearestModel(), MemoryPredictions()), Judge)
    assert isinstance(remembering(LanguageModel(ScriptedLLM([])), MemoryPredictions()), Judge)
    model = MoodyJudge()
    judge = remembering(model, MemoryPredictions())
    assert isinstance(judge, Judge)
    verdicts = [await judge.judge(HOUSE, QUESTION.task, (SEEN,), answer, seed=1) for answer in ("done", "no", "done")]
    assert (verdicts, model.asked) == ([True, False, True], 2)
    said = await Moody().predict(QUESTION)
    other = said.model_copy(update={"observation": "another answer"})
    steps = [await judge.judge_step(QUESTION, one) for one in (said, other, said)]
    assert [(one.accomplished, one.prompt_tokens) for one in steps] == [(True, 9), (False, 9), (True, 0)]
    asked = QUESTION.model_copy(update={"without": frozenset({Part.CACHE})})
    assert (await judge.judge_step(asked, said)).prompt_tokens == 9


async def test_closing_releases_the_model_and_what_is_still_asked() -> None:
    model = Moody()
    model.gate = asyncio.Event()
    remembered = Remembering(model, MemoryPredictions())
    asking = asyncio.create_task(remembered.predict(QUESTION))
    await model.began.wait()
    await remembered.close()
    assert model.closed
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_it_wants_what_its_model_wants() -> None:
    remembered = Remembering(Moody(), MemoryPredictions())
    assert (remembered.name, remembered.demonstrations, remembered.learns_from_dreams) == ("moody", 3, True)
