"""The tier `effects`: what recorded calls of a tool show to follow from an explicit state and a call of it."""

from __future__ import annotations

import asyncio

from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.recorded import is_valid
from dreamgym.replay.buffer import GROUNDED
from dreamgym.state import as_text
from dreamgym.synthesis import learn
from dreamgym.tools import completed
from dreamgym.types import Provenance, Tier

RECORDINGS = 48
"""Most recorded calls of the tool that are learned from, the nearest first."""


class SynthesizedTier:
    """Runs the program that explains all recorded calls of the tool."""

    infers = True

    async def answer(self, query: Query) -> Prediction | None:
        """The result of the program; None: some of it has no explanation."""
        # learning a program takes a tenth of a second, in which a server would answer nobody else
        return await asyncio.to_thread(synthesized, query) if query.is_explicit else None


def synthesized(query: Query) -> Prediction | None:
    """The answer of the tool's learned program; None if some of it has no explanation.

    A step that was recorded word for word is left to the other tiers: only a recording can end an episode.
    """
    schema, state = query.spec.state, query.state.content
    if schema is None or state is None or not query.is_explicit:
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
        next_state=as_text(result.after) if result.operations else query.state.text,
        is_error=result.is_error,
        provenance=Provenance(tier=Tier.EFFECTS, retrieved=tuple(one.id for one in shown), seed=query.seed),
    )
    return answer if is_valid(query, answer) else None
