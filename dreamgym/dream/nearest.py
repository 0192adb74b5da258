"""The experience model without a language model: it repeats what was recorded.

Answers that follow from recordings, but are not recorded themselves, come from other tiers of the dream
(dreamgym.dream.synthesized, dreamgym.dream.viewed). A call that no recording explains is not answered.

A success or an end is copied only if this very action was recorded in this very state, for a task with the same goal,
and no state before it was made of the agent's own words. Otherwise whatever looks like a solution would be rewarded (an
action that nobody took, a success of another task, a state that the agent wrote), and a policy finds that at once. A
reward that depends on something that neither state nor goal shows can still be wrong.
"""

from __future__ import annotations

from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.recorded import content_of, is_valid, repeat
from dreamgym.dream.substitution import BYTES, Substitution
from dreamgym.errors import NotRecorded
from dreamgym.replay.buffer import Demonstration
from dreamgym.state.wording import wording_of
from dreamgym.tools import completed
from dreamgym.types import Provenance, Tier

COPIED = 16
"""Number of the nearest transitions whose answer may be adapted to the action. A refusal may come from any of them."""


class NearestModel:
    """Deterministic, instant, and the baseline for every other model.

    1. If the same action was recorded in the same state, its answer is repeated. For a server that reports no state,
       the last answer stands for the state, which shows little: only the end of a task is repeated there.
    2. In a text environment, an action that was not recorded in this state is refused in the words of a recorded
       refusal. If no refusal is recorded, the nearest transition answers, with the action's words in place of its own.

    An answer that the tool's output schema forbids is not given, even if it was recorded.
    """

    name = "nearest"
    demonstrations = 48
    """Most of these are for the tiers before this model; it copies only from the first ones."""
    learns_from_dreams = False
    repeats = True
    """True because it only repeats recordings."""

    async def predict(self, query: Query) -> Prediction:
        """Answer from the demonstrations. Raises NotRecorded if none of them shows the answer."""
        if not query.demonstrations and Part.RETRIEVAL in query.without:
            raise NotRecorded(
                "the model nearest only repeats recordings, and without retrieval it is shown none: leave 'retrieval' "
                "in, or take a language model"
            )
        if not query.demonstrations:
            raise NotRecorded(
                f"nothing is recorded of environment {query.spec.name!r}, or nothing was when this episode began: "
                "record it with `dreamgym record` or `dreamgym collect`, or load recordings with `dreamgym seed`, "
                "and begin another"
            )
        for demonstration in query.demonstrations[:COPIED]:
            if demonstration.exact and (demonstration.transition.result.terminated or not query.spec.has_views):
                copy = repeat(query, demonstration, model=self.name)
                if is_valid(query, copy):
                    return copy
        if query.spec.is_text:
            refusal = _refusal(query)
            if refusal is not None:
                return refusal
            for demonstration in query.demonstrations[:COPIED]:
                if is_valid(query, answer := _substitute(query, demonstration)):
                    return answer
        raise NotRecorded(
            f"the recordings of tool {query.action.name!r} do not show what this call does: record more calls of it"
        )

    async def close(self) -> None:
        pass


def _refusal(query: Query) -> Prediction | None:
    """The first recorded refusal that changed nothing, in this state if there is one; None if there is no refusal."""
    refusals = [
        demonstration
        for demonstration in query.demonstrations
        if demonstration.transition.result.is_error
        and not demonstration.transition.result.terminated
        and demonstration.transition.next_state == demonstration.transition.state
    ]
    if not refusals:
        return None
    chosen = min(refusals, key=lambda demonstration: demonstration.transition.state != query.state.text)
    observation, seen = chosen.transition.result.observation, chosen.transition.state
    return Prediction(
        observation=observation.replace(seen, query.state.text) if seen else observation,
        next_state=query.state.text,
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
    if wording is not None and structured is not None:  # a new value may need JSON escapes
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


def _provenance(query: Query, used: Demonstration) -> Provenance:
    return Provenance(tier=Tier.MODEL, model=NearestModel.name, retrieved=(used.id,), seed=query.seed)
