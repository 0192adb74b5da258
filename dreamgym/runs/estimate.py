"""Estimates the calls of a language model that a run will make, and their cost, before the run begins.

The recordings show how long episodes are, how many of their steps need the model, and how long its prompts and answers
are. For this, a few recorded steps go through the dream up to the question to the model, which is counted and not
asked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from statistics import mean, stdev
from typing import NamedTuple

from dreamgym.budget import worded
from dreamgym.dream.answer_form import AnswerForm, answer_text
from dreamgym.dream.language_model import REASONING_TOKENS
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.prompt import CHARACTERS_PER_TOKEN, step_messages
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.evaluation.material import drawn
from dreamgym.evaluation.predictions import RecordedStep, dream_of, predictions, steps_of
from dreamgym.evaluation.rates import wilson
from dreamgym.evaluation.setting import Setting
from dreamgym.prices import Price, is_in_process, price_of
from dreamgym.types import TokenUsage, Trajectory

SAMPLED = 24
"""Number of recorded steps that are sampled for an estimate."""
KNOWN = 1000
"""Most recorded trajectories that the sampled steps are answered from; with fewer, more steps would need the model."""
USUAL, MOST = 4, 5
"""Characters per token: usually, and at most. The least is CHARACTERS_PER_TOKEN."""
THOUGHT = 60
"""Tokens of reasoning that a model usually writes before an answer."""
JUDGED = 3
"""Number of questions to the judge about one claimed success."""


class Range(NamedTuple):
    """A lower, a usual and an upper estimate of a number."""

    low: float
    usual: float
    high: float


class Estimate(NamedTuple):
    """Estimated calls of a language model, and the tokens of each call."""

    calls: Range
    prompt: Range
    """Tokens of a prompt."""
    written: Range
    """Tokens of an answer, including its reasoning. A model's thinking outside the answer is not included."""
    basis: str
    price: Price | None

    @property
    def dollars(self) -> Range | None:
        """Cost in dollars; None if the price is not known. At best, half of each prompt is in the endpoint's cache."""
        if self.price is None:
            return None
        told = []
        for calls, prompt, written, cached in zip(self.calls, self.prompt, self.written, (0.5, 0.0, 0.0), strict=True):
            used = TokenUsage(
                prompt_tokens=round(calls * prompt),
                cached_tokens=round(calls * prompt * cached),
                completion_tokens=round(calls * written),
            )
            told.append(self.price.of(used))
        return Range(*told)

    def __str__(self) -> str:
        calls, money = self.calls, self.dollars
        about = f"about {calls.usual:,.0f} calls ({calls.low:,.0f} to {calls.high:,.0f})"
        tokens = f"{self.prompt.usual:,.0f} prompt and {self.written.usual:,.0f} written tokens each"
        cost = (
            "no price is known"
            if money is None
            else f"about {worded(money.usual, 'dollars')} ({worded(money.low, 'dollars')} to "
            f"{worded(money.high, 'dollars')})"
        )
        return f"estimate: {about} with {tokens}, {self.basis}: {cost}"


async def of_steps(
    spec: EnvironmentSpec, chosen: Setting, known: Sequence[Trajectory], steps: Sequence[RecordedStep], *, seed: int = 0
) -> Estimate | None:
    """Estimate the cost of predicting these recorded steps once; None for a model that runs in this process.

    Args:
        spec: the recorded environment.
        chosen: the model, and the parts that are left out.
        known: trajectories that the dream knows.
        steps: steps to predict.
        seed: seed that draws the sampled steps.
    """
    if is_in_process(chosen.model):
        return None
    sample = drawn(steps, SAMPLED, seed)
    counting = _Counting()
    make = await dream_of(
        spec,
        counting,
        list(known)[:KNOWN],
        TrigramEncoder(),
        recorded=(),
        k=chosen.k,
        without=(*chosen.without, Part.CACHE),
    )
    prompts: list[int] = []
    answers: list[int] = []
    async with aclosing(predictions(make, sample, seed=seed)) as predicted:
        at = 0
        async for _ in predicted:
            trajectory, number = sample[at]
            at += 1
            if counting.query is not None:
                query, counting.query = counting.query, None
                form = AnswerForm(query)
                text = sum(len(message.content) for message in step_messages(query, "data"))
                prompts.append(text + len(json.dumps(form.schema)))
                answers.append(len(answer_text(query, trajectory.transitions[number - 1])))
    share = wilson(len(prompts), max(1, len(sample)))
    reasons = Part.REASONING not in chosen.without
    return Estimate(
        calls=Range(share.low * len(steps), share.mean * len(steps), share.high * len(steps)),
        prompt=_tokens(mean(prompts or [0])),
        written=_tokens(mean(answers or [0]), more=Range(0, THOUGHT, REASONING_TOKENS) if reasons else Range(0, 0, 0)),
        basis=f"based on {len(sample)} recorded steps, of which {len(prompts)} need the model",
        price=price_of(chosen.model),
    )


async def of_episodes(
    spec: EnvironmentSpec,
    chosen: Setting,
    recorded: Sequence[Trajectory],
    episodes: int,
    *,
    alike: int = 1,
    seed: int = 0,
) -> Estimate | None:
    """Estimate the cost of playing episodes in a dream of these recordings.

    Returns None for a model that runs in this process, and if nothing is recorded.

    Args:
        spec: the recorded environment.
        chosen: the model, and the parts that are left out.
        recorded: all recorded trajectories.
        episodes: number of episodes to play.
        alike: number of episodes with the same task and seed. At best all of them do the same, so that each question
            is asked only once.
        seed: seed that draws the sampled steps.
    """
    played = [one for one in recorded if one.transitions]
    if is_in_process(chosen.model) or not played:
        return None
    known, apart = played[1:], played[:1]
    if len(played) > 1:  # sample steps of many episodes, with the other episodes as examples
        apart = played[:: max(2, len(played) // SAMPLED)]
        ids = {one.id for one in apart}
        known = [one for one in played if one.id not in ids]
    one_each = await of_steps(spec, chosen, known, steps_of(apart), seed=seed)
    if one_each is None:
        return None
    lengths = [min(spec.max_steps, len(one.transitions)) for one in played]
    length = mean(lengths)
    off = 2 * stdev(lengths) / len(lengths) ** 0.5 if len(lengths) > 1 else length / 2
    counted = max(1, len(steps_of(apart)))
    shares = [calls / counted for calls in one_each.calls]
    calls = Range(
        episodes / alike * max(1.0, length - off) * shares[0],
        episodes * length * shares[1],
        episodes * (min(float(spec.max_steps), length + off) * shares[2] + JUDGED),
    )
    return one_each._replace(calls=calls, basis=f"{one_each.basis}; {length:.1f} steps an episode")


def of_prompts(model: str, prompts: Sequence[str], written: Range, basis: str) -> Estimate | None:
    """Estimate the cost of asking these questions once; None for a model that runs in this process.

    Args:
        model: as in `--model`.
        prompts: the whole text of each question.
        written: tokens of an answer.
        basis: where the numbers come from, for the printed text.
    """
    if is_in_process(model) or not prompts:
        return None
    n = len(prompts)
    return Estimate(
        calls=Range(n, n, 2 * n),
        prompt=_tokens(mean(map(len, prompts))),
        written=written,
        basis=basis,
        price=price_of(model),
    )


def say_estimate(estimate: Estimate | None, speak: Callable[[str], None]) -> None:
    """Pass the text of the estimate to `speak`, if there is an estimate."""
    if estimate is not None:
        speak(str(estimate))


def _tokens(characters: float, more: Range = Range(0, 0, 0)) -> Range:  # noqa: B008  it is a tuple
    least, usual, most = (characters / one for one in (MOST, USUAL, CHARACTERS_PER_TOKEN))
    return Range(least + more.low, usual + more.usual, most + more.high)


class _Counting:
    """An experience model that answers nothing and keeps the last query."""

    name = "counting"
    demonstrations = 5
    learns_from_dreams = True
    checks_state = True

    def __init__(self) -> None:
        self.query: Query | None = None

    async def predict(self, query: Query) -> Prediction:
        self.query = query
        raise PredictionError("it was counted")

    async def close(self) -> None:
        pass
