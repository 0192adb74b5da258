"""The experience model without a language model: it copies the nearest recorded transition.

Where the state is explicit it copies no words: what recordings show to follow from state and call is a tier of the
dream (dreamgym.dream.synthesized), and what no recording explains is not answered.

A success or an end is copied only if this very action was recorded in this very state, for a task with the same goal,
and no state before it was made of the agent's own words: a success copied for an action that nobody ever took, for
another task, or in a state that an agent wrote, would reward whatever looks like a solution, and a policy finds that at
once. A reward that depends on something that neither state nor goal shows can still be wrong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Sequence

from pydantic import JsonValue

from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.recorded import content_of, is_valid, repeat
from dreamgym.errors import PredictionError
from dreamgym.replay.buffer import Demonstration
from dreamgym.state import parsed
from dreamgym.state.wording import wording_of
from dreamgym.tools import completed, output_schema
from dreamgym.types import JsonObject, Provenance, Tier, ToolCall

COPIED = 16
"""Of so many of the nearest a textual answer is copied. Refusals recorded in the same state must be among them;
retrieval weighs the state most."""
BYTES = frozenset({"data", "blob"})
"""Where content blocks hold what is no text."""


class NearestModel:
    """Deterministic, instant, and the honest baseline of every other model.

    1. The same action was recorded in the same state: its answer is repeated.
    2. The whole action is a text: one that was never recorded here is refused, in the words of a recorded refusal.
    3. Else the nearest transition of the same tool answers, with the action's arguments in place of its own. Where that
       tool was never recorded there is no answer.

    Where the state is explicit there is no 2 and no 3.
    What a tool's output schema forbids is not given, even where it was recorded: the next nearest answers then.
    """

    name = "nearest"
    demonstrations = 48
    """Most are for the tiers before it; it copies from the first of them."""
    learns_from_dreams = False

    async def predict(self, query: Query) -> Prediction:
        """Answer from the demonstrations. Raises PredictionError where there are none."""
        if not query.demonstrations:
            raise PredictionError(
                f"nothing is recorded of environment {query.spec.name!r}: "
                "record it with `dreamgym collect` or load recordings with `dreamgym seed`"
            )
        schema = output_schema(query.spec, query.action.name)
        for demonstration in query.demonstrations[:COPIED]:
            if demonstration.exact and is_valid(copy := repeat(query, demonstration, model=self.name), schema):
                return copy
        if _is_explicit(query):
            raise PredictionError(
                f"the recordings of tool {query.action.name!r} do not show what this call does: record more calls of it"
            )
        if query.spec.text_argument is not None:
            refusal = _refusal(query)
            if refusal is not None:
                return refusal
        nearest = [
            shown for shown in query.demonstrations[:COPIED] if shown.transition.action.name == query.action.name
        ]
        if not nearest:
            raise PredictionError(f"no call of tool {query.action.name!r} is recorded: record one")
        for demonstration in nearest:
            if is_valid(answer := _substitute(query, demonstration), schema):
                return answer
        raise PredictionError(
            f"no recorded answer of tool {query.action.name!r} fits its output schema: "
            "record the tool with its structured content"
        )

    async def close(self) -> None:
        """Nothing to release."""


def _is_explicit(query: Query) -> bool:
    return query.spec.state is not None and Part.STATE not in query.without and parsed(query.state) is not None


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
        provenance=_provenance(query, chosen),
    )


def _substitute(query: Query, nearest: Demonstration) -> Prediction:
    step = completed(nearest.transition, query.spec)
    result = step.result
    substitution = Substitution(step.action, query.action)
    structured = None if result.structured is None else substitution.within(result.structured)
    observation = substitution(result.observation)
    wording = wording_of([result])
    if wording is not None and structured is not None:  # a new value may need escapes that text does not get
        observation = wording.text(structured)
    content = content_of(result)
    return Prediction(
        observation=observation,
        structured=structured,
        content=None if content is None else tuple(substitution.within(block, BYTES) for block in content),
        next_state=observation if step.next_state == result.observation else substitution(step.next_state),
        is_error=result.is_error,
        provenance=_provenance(query, nearest),
    )


class Substitution:
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
        """The text with the asked values in the place of the recorded ones."""
        if self._pattern is None:
            return text
        return self._pattern.sub(lambda match: self._replacements[match[0]], text)

    def within(self, value: JsonObject, spared: Collection[str] = ()) -> JsonObject:
        """The same in every text of a JSON object; a number changes where it is a recorded argument as a whole.

        Nothing changes under the keys that are `spared`.
        """
        return {key: item if key in spared else self._replaced(item, spared) for key, item in value.items()}

    def _replaced(self, value: JsonValue, spared: Collection[str]) -> JsonValue:
        if isinstance(value, str):
            return self(value)
        if isinstance(value, dict):
            return self.within(value, spared)
        if isinstance(value, list):
            return [self._replaced(item, spared) for item in value]
        if value is None or isinstance(value, bool):
            return value
        try:
            replaced: JsonValue = json.loads(self._replacements.get(json.dumps(value), json.dumps(value)))
        except ValueError:
            return value
        return replaced if isinstance(replaced, int | float) else value


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


def _provenance(query: Query, used: Demonstration) -> Provenance:
    return Provenance(tier=Tier.MODEL, model=NearestModel.name, retrieved=(used.id,), seed=query.seed)
