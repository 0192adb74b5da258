"""The tier of learned effects: what recordings of a tool show to follow from an explicit state and a call of it."""

from __future__ import annotations

from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.recorded import is_valid
from dreamgym.state import as_text, parsed
from dreamgym.synthesis.proposing import propose
from dreamgym.tools import output_schema
from dreamgym.types import Provenance, Tier

RECORDINGS = 48
"""Of the called tool, the nearest first, are learned from."""


def learned_answer(query: Query) -> Prediction | None:
    """What the tool's recorded effects make of this state and call; None where some of it has no explanation.

    A step that was recorded word for word is left to whoever repeats it: only a recording can end an episode.
    """
    if query.spec.state is None or query.without & {Part.STATE, Part.EFFECTS} or parsed(query.state) is None:
        return None
    if any(shown.exact for shown in query.demonstrations):
        return None
    shown = [one for one in query.demonstrations if one.transition.action.name == query.action.name][:RECORDINGS]
    proposal = propose(query.model_copy(update={"demonstrations": tuple(shown)}))
    if proposal is None:
        return None
    answer = Prediction(
        observation=proposal.observation,
        structured=proposal.structured,
        next_state=as_text(proposal.after) if proposal.operations else query.state,
        is_error=proposal.is_error,
        provenance=Provenance(tier=Tier.EFFECTS, retrieved=tuple(one.id for one in shown), seed=query.seed),
    )
    return answer if is_valid(answer, output_schema(query.spec, query.action.name)) else None
