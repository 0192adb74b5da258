"""The experience model without a language model: it copies the nearest recorded transition.

It never invents a reward. A success or an end is copied only where this very action was recorded in this very state:
a success copied for an action that nobody ever took would reward whatever looks like a solution, and a policy
finds that at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

from pydantic import JsonValue

from dreamgym.errors import PredictionError
from dreamgym.experience.model import Prediction, Query
from dreamgym.replay.buffer import Demonstration
from dreamgym.types import Provenance, Tier, ToolCall


class NearestModel:
    """Deterministic, instant, and the honest baseline of every other model.

    1. The same action was recorded in the same state: its answer is repeated.
    2. The whole action is a text: one that was never recorded here is refused, in the words of a recorded refusal.
    3. Else the nearest transition of the same tool answers, with the action's arguments in place of its own.
    """

    name = "nearest"
    demonstrations = 16
    """Refusals recorded in the same state must be among them; retrieval weighs the state most."""
    learns_from_dreams = False

    async def predict(self, query: Query) -> Prediction:
        """Answer from the demonstrations. Raises PredictionError where there are none."""
        if not query.demonstrations:
            raise PredictionError(
                f"nothing is recorded of environment {query.spec.name!r}: "
                "record it with `dreamgym collect` or load recordings with `dreamgym seed`"
            )
        for demonstration in query.demonstrations:
            if demonstration.exact:
                return _repeat(query, demonstration)
        if query.spec.text_argument is not None:
            refusal = _refusal(query)
            if refusal is not None:
                return refusal
        return _substitute(query)

    async def close(self) -> None:
        """Nothing to release."""


def _repeat(query: Query, demonstration: Demonstration) -> Prediction:
    result = demonstration.transition.result
    return Prediction(
        observation=result.observation,
        next_state=demonstration.transition.next_state,
        success=result.terminated and result.reward > 0,
        terminated=result.terminated,
        is_error=result.is_error,
        provenance=_provenance(query, demonstration, Tier.RECORDED),
    )


def _refusal(query: Query) -> Prediction | None:
    """The first recorded refusal that changed nothing, of this state where there is one; None where none is known."""
    refusals = [
        demonstration
        for demonstration in query.demonstrations
        if demonstration.transition.result.is_error
        and not demonstration.transition.result.terminated
        and demonstration.transition.next_state == demonstration.transition.state
    ]
    if not refusals:
        return None
    chosen = min(refusals, key=lambda demonstration: demonstration.transition.state != query.state)
    observation, seen = chosen.transition.result.observation, chosen.transition.state
    return Prediction(
        observation=observation.replace(seen, query.state) if seen else observation,
        next_state=query.state,
        is_error=True,
        provenance=_provenance(query, chosen, Tier.MODEL),
    )


def _substitute(query: Query) -> Prediction:
    same_tool = [shown for shown in query.demonstrations if shown.transition.action.name == query.action.name]
    nearest = (same_tool or query.demonstrations)[0]
    substitution = _Substitution(nearest.transition.action, query.action)
    return Prediction(
        observation=substitution(nearest.transition.result.observation),
        next_state=substitution(nearest.transition.next_state),
        is_error=nearest.transition.result.is_error,
        provenance=_provenance(query, nearest, Tier.MODEL),
    )


class _Substitution:
    """Puts one call's argument values where another's stand as whole words; all at once, longest first."""

    def __init__(self, recorded: ToolCall, asked: ToolCall) -> None:
        asked_values = dict(_leaves(asked.arguments))
        self._replacements: dict[str, str] = {}
        for path, value in _leaves(recorded.arguments):
            if path in asked_values and asked_values[path] != value and (len(value) > 1 or value.isdigit()):
                self._replacements.setdefault(value, asked_values[path])
        values = sorted(self._replacements, key=len, reverse=True)
        # A 2 is no part of 12, of 2.5 or of v2; one letter is more often a word of its own than the argument.
        whole = "|".join(re.escape(value) for value in values)
        self._pattern = re.compile(rf"(?<!\w)(?<!\d\.)(?:{whole})(?!\w)(?!\.\d)") if values else None

    def __call__(self, text: str) -> str:
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._replacements[match[0]], text)


def _leaves(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text and number in some arguments with where it stands; truth values say nothing about wording."""
    if isinstance(value, dict):
        items: Sequence[tuple[str, JsonValue]] = list(value.items())
    elif isinstance(value, list):
        items = [(str(index), item) for index, item in enumerate(value)]
    else:
        if value is not None and not isinstance(value, bool):
            yield path, value if isinstance(value, str) else json.dumps(value)
        return
    for key, item in items:
        yield from _leaves(item, (*path, key))


def _provenance(query: Query, used: Demonstration, tier: Tier) -> Provenance:
    return Provenance(tier=tier, model=NearestModel.name, retrieved=(used.id,), seed=query.seed)
