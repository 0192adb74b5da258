"""The tier `effects`: what recorded calls of a tool show to follow from an explicit state and a call of it."""

from __future__ import annotations

from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.recorded import is_valid
from dreamgym.replay.buffer import GROUNDED
from dreamgym.state import as_text, parsed
from dreamgym.synthesis import learn
from dreamgym.tools import completed, output_schema
from dreamgym.types import Provenance, Tier

RECORDINGS = 48
"""Most recorded calls of the tool that are learned from, the nearest first."""


def learned_answer(query: Query) -> Prediction | None:
    """The answer of the tool's learned program; None if some of it has no explanation.

    A step that was recorded word for word is left to the other tiers: only a recording can end an episode.
    """
    schema, state = query.spec.state, parsed(query.state)
    if schema is None or state is None or query.without & {Part.STATE, Part.EFFECTS}:
        return None
    if any(shown.exact for shown in query.demonstrations):
        return None
    shown = [one for one in query.demonstrations if one.transition.action.name == query.action.name][:RECORDINGS]
    program = learn((completed(one.transition, query.spec) for one in shown if one.source in GROUNDED), schema)
    result = None if program is None else program.run(state, query.action.arguments)
    if result is None:
        return None
    answer = Prediction(
        observation=result.observation,
        structured=result.structured,
        next_state=as_text(result.after) if result.operations else query.state,
        is_error=result.is_error,
        provenance=Provenance(tier=Tier.EFFECTS, retrieved=tuple(one.id for one in shown), seed=query.seed),
    )
    return answer if is_valid(answer, output_schema(query.spec, query.action.name)) else None
