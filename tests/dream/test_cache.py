"""Only a question that was sent before is answered from the cache, with the same answer."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from queries import HOUSE, act, query, transition

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.questions import CachedLLM, MemoryPredictions, Predictions, weights_fingerprint
from dreamgym.errors import EnvironmentUnavailable, MalformedAnswer
from dreamgym.llm import Completion, Message, ScriptedLLM
from dreamgym.replay.postgres import Store
from dreamgym.types import JsonObject, Provenance, Tier

pytestmark = pytest.mark.anyio

KITCHEN, HALL = "kitchen.", "hall."
SEEN = transition(KITCHEN, act("east"), HALL)
QUESTION = query(HOUSE, KITCHEN, act("north"), SEEN, history=(SEEN,))
SENT = (Message(role="system", content="rules"), Message(role="user", content="go north"))


class Moody:
    """Never gives the same answer twice; a test can make it wait (`gate`) or fail (`fails`)."""

    def __init__(self, name: str = "moody") -> None:
        self.name = name
        self.asked = 0
        self.fails = False
        self.began = asyncio.Event()
        self.gate: asyncio.Event | None = None
        self.closed = False

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        self.asked += 1
        number = self.asked
        self.began.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.fails:
            raise EnvironmentUnavailable("out of sorts")
        return Completion(
            text=f"{self.name} {number} \u00fc",
            prompt_tokens=7,
            completion_tokens=3,
            probabilities={"error": 0.1 + 0.2},
        )

    async def close(self) -> None:
        self.closed = True


@pytest.fixture(params=["memory", "postgres"])
def predictions(request: pytest.FixtureRequest) -> Predictions:
    if request.param == "memory":
        return MemoryPredictions()
    store: Store = request.getfixturevalue("store")
    return store.predictions


async def test_the_first_answer_to_a_question_stays_and_a_repeated_one_costs_nothing(predictions: Predictions) -> None:
    llm = Moody()
    first = await CachedLLM(llm, predictions).complete(SENT)
    again = await CachedLLM(llm, predictions).complete(SENT)
    assert llm.asked == 1
    assert (first.cached, first.prompt_tokens) == (False, 7)
    assert again == first.model_copy(update={"cached": True, "prompt_tokens": 0, "completion_tokens": 0})


async def test_the_first_stored_answer_counts_until_it_is_forgotten(
    predictions: Predictions,
) -> None:
    assert await predictions.put(b"k", '"one"') == '"one"'
    assert await predictions.put(b"k", '"two"') == '"one"'
    assert (await predictions.get(b"k"), await predictions.get(b"l")) == ('"one"', None)
    for key in (b"k", b"l"):
        await predictions.forget(key)
    assert await predictions.get(b"k") is None


async def test_two_processes_that_ask_at_once_give_the_same_answer(predictions: Predictions) -> None:
    models = [Moody(), Moody()]
    models[1].asked = 100
    gate = asyncio.Event()
    for model in models:
        model.gate = gate
    asking = [asyncio.create_task(CachedLLM(model, predictions).complete(SENT)) for model in models]
    for model in models:
        await model.began.wait()
    gate.set()
    answers = await asyncio.gather(*asking)
    assert answers[0].text == answers[1].text
    assert {answer.cached for answer in answers} == {True, False}


CHANGES: dict[str, dict[str, Any]] = {
    "a message": {"messages": SENT[1:]},
    "a role": {"messages": (SENT[0], Message(role="assistant", content=SENT[1].content))},
    "the schema": {"schema": {"type": "object"}},
    "the room": {"max_tokens": 7},
    "the temperature": {"temperature": 0.5},
    "the seed": {"seed": 7},
}


@pytest.mark.parametrize("what", CHANGES)
async def test_every_change_of_the_request_makes_another_question(what: str) -> None:
    llm = Moody()
    cached = CachedLLM(llm, MemoryPredictions())
    answers = [await cached.complete(**{"messages": SENT, **sent}) for sent in ({}, CHANGES[what], {})]
    assert llm.asked == 2
    assert answers[0].text == answers[2].text != answers[1].text


async def test_another_model_and_the_same_name_with_another_fingerprint_are_asked_anew() -> None:
    predictions = MemoryPredictions()
    models = [Moody(), Moody("other"), Moody()]
    models[2].fingerprint = "weights of today"  # type: ignore[attr-defined]
    for model in models:
        await CachedLLM(model, predictions).complete(SENT)
    assert [model.asked for model in models] == [1, 1, 1]
    for weights in ("one", "two", "one"):
        await CachedLLM(models[0], predictions, weights).complete(SENT)
    assert models[0].asked == 3


async def test_another_model_at_the_same_address_is_asked_anew() -> None:
    """The name of an address alone has no model until the endpoint is asked which one it serves."""

    class Served(Moody):
        def __init__(self, model: str) -> None:
            super().__init__("http://gpu:8000/v1")
            self._model = model

        async def find_name(self) -> None:
            self.name = f"http://gpu:8000/v1#{self._model}"

    predictions = MemoryPredictions()
    models = [Served("one"), Served("two"), Served("one")]
    for model in models:
        cached = CachedLLM(model, predictions)
        await cached.complete(SENT)
        if model is models[0]:
            await cached.forget(SENT, schema=None, max_tokens=512, temperature=0.0, seed=0)
            await cached.complete(SENT)
    assert [model.asked for model in models] == [2, 1, 0]


def test_weights_that_change_in_their_place_are_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "model" / "weights.bin"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    first = weights_fingerprint(str(weights.parent))
    assert first
    assert first == weights_fingerprint(str(weights.parent)) != weights_fingerprint(str(weights))
    monkeypatch.setenv("HOME", str(weights.parent.parent))
    assert (
        first == weights_fingerprint(f"~/{weights.parent.name}") == weights_fingerprint(f"checkpoint:{weights.parent}")
    )
    assert weights_fingerprint(str(weights)) == weights_fingerprint(f"local:{weights}")
    os.utime(weights, ns=(1, 1))
    assert weights_fingerprint(str(weights.parent)) != first
    assert {
        weights_fingerprint(name) for name in (None, "nearest", "http://host/v1#m", "", "local:", "local:1.5b")
    } == {""}


async def test_identical_questions_at_once_share_one_answer_even_if_one_of_them_is_cancelled() -> None:
    llm = Moody()
    llm.gate = asyncio.Event()
    cached = CachedLLM(llm, MemoryPredictions())
    asking = [asyncio.create_task(cached.complete(SENT)) for _ in range(3)]
    await llm.began.wait()
    asking[0].cancel()
    await asyncio.gather(asking[0], return_exceptions=True)
    llm.gate.set()
    answers = await asyncio.gather(*asking[1:])
    assert llm.asked == 1
    assert {(answer.text, answer.prompt_tokens) for answer in answers} == {("moody 1 \u00fc", 0)}


async def test_a_question_that_failed_is_asked_again() -> None:
    llm = Moody()
    llm.fails = True
    cached = CachedLLM(llm, MemoryPredictions())
    for failed in await asyncio.gather(*(cached.complete(SENT) for _ in range(2)), return_exceptions=True):
        assert isinstance(failed, EnvironmentUnavailable)
    llm.fails = False
    assert not (await cached.complete(SENT)).cached


async def test_an_answer_that_no_store_can_hold_is_given_but_not_remembered(predictions: Predictions) -> None:
    llm = ScriptedLLM(["a\x00b", "a\ud800b", "ab"])
    cached = CachedLLM(llm, predictions)
    assert [(await cached.complete(SENT)).text for _ in range(4)] == ["a\x00b", "a\ud800b", "ab", "ab"]


def said(**changes: object) -> str:
    answer = {"reasoning": "", "observation": HALL, "state": None, "error": False}
    return json.dumps({**answer, "terminated": False, "success": False, **changes})


async def test_a_remembered_step_has_the_tier_cache_whatever_the_history_came_from() -> None:
    llm = ScriptedLLM([said()])
    model = LanguageModel(CachedLLM(llm, MemoryPredictions()))
    by_model = SEEN.model_copy(update={"provenance": Provenance(tier=Tier.MODEL, prompt_tokens=5)})
    nearer = QUESTION.demonstrations[0].model_copy(update={"score": 0.2})
    asked = [
        QUESTION,
        *(
            QUESTION.model_copy(update={name: (one,)})
            for name, one in (("history", by_model), ("demonstrations", nearer))
        ),
    ]
    steps = [await model.predict(one) for one in asked]
    assert [step.provenance.tier for step in steps] == [Tier.MODEL, Tier.CACHE, Tier.CACHE]
    assert {step.observation for step in steps} == {HALL}


async def test_a_step_that_took_a_second_question_is_remembered_as_a_whole() -> None:
    llm = ScriptedLLM(["rubbish", said()])
    model = LanguageModel(CachedLLM(llm, MemoryPredictions()))
    tiers = [(await model.predict(QUESTION)).provenance.tier for _ in range(2)]
    assert (tiers, len(llm.asked)) == ([Tier.MODEL, Tier.CACHE], 2)


async def test_malformed_answers_are_not_remembered() -> None:
    llm = ScriptedLLM(["rubbish", "more rubbish", said()])
    model = LanguageModel(CachedLLM(llm, MemoryPredictions()))
    with pytest.raises(MalformedAnswer):
        await model.predict(QUESTION)
    assert (await model.predict(QUESTION)).provenance.tier is Tier.MODEL


async def test_a_judge_is_not_asked_again_for_the_same_verdict() -> None:
    verdicts = [json.dumps({"reasoning": "", "accomplished": one}) for one in (True, False, True, False)]
    llm = ScriptedLLM(verdicts)
    judge = LanguageModel(CachedLLM(llm, MemoryPredictions()))
    given = [await judge.judge(HOUSE, QUESTION.task, (SEEN,), answer, seed=1) for answer in ("done", "no", "done")]
    assert (given, len(llm.asked)) == ([True, False, True], 4)


async def test_closing_releases_the_model_and_cancels_open_questions() -> None:
    llm = Moody()
    llm.gate = asyncio.Event()
    cached = CachedLLM(llm, MemoryPredictions())
    asking = asyncio.create_task(cached.complete(SENT))
    await llm.began.wait()
    await cached.close()
    assert llm.closed
    with pytest.raises(asyncio.CancelledError):
        await asking
