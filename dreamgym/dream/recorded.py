"""The tier `recorded`: the answer that the real environment gave to this very action in this very state."""

from __future__ import annotations

from dreamgym.dream.ending import is_contradicted, is_invented, recorded_end_counts
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.replay.buffer import GROUNDED, Demonstration
from dreamgym.tools import completed, known_fault, output_schema
from dreamgym.types import JsonObject, Provenance, StepResult, Tier


class RecordedTier:
    """Repeats recordings of a deterministic environment.

    There is no answer if recordings of one world contradict each other: then something that no state shows decides.
    There is also none for a recorded end to whose state an invented answer led: the model decides if it ends this task.
    """

    infers = False

    async def answer(self, query: Query) -> Prediction | None:
        """The recorded answer; None if there is none, or if it cannot be trusted."""
        exact = [shown for shown in query.demonstrations if shown.exact and shown.source in GROUNDED]
        if not exact or is_contradicted(query, exact[0]):
            return None
        copy = repeat(query, exact[0])
        if copy.provenance.open_end and is_invented(query.history):
            return None
        return copy if is_valid(query, copy) else None


def repeat(query: Query, demonstration: Demonstration, *, model: str | None = None) -> Prediction:
    """The recorded answer unchanged, with its end and its success if they count for the running task.

    Its tier is `recorded` only if the same action in the same state always has the same answer; otherwise the real
    system may answer differently the next time. If recordings contradict it, it is not exact either. If the tier
    `recorded` is left out, the answer is the model's.

    Args:
        query: the step to answer.
        demonstration: the same action recorded in the same state.
        model: the name of the model that repeats; None if none was asked.
    """
    recorded = demonstration.transition
    result = completed(recorded, query.spec).result
    is_own = recorded_end_counts(query, demonstration)
    is_own &= not (is_disputed := is_contradicted(query, demonstration))
    is_certain = query.spec.recordings_are_certain and Part.RECORDED not in query.without and not is_disputed
    return Prediction(
        observation=result.observation,
        structured=result.structured,
        content=content_of(result),
        next_state=recorded.next_state,
        success=is_own and result.terminated and result.reward > 0,
        terminated=is_own and result.terminated,
        is_error=result.is_error,
        provenance=Provenance(
            tier=Tier.RECORDED if is_certain else Tier.MODEL,
            model=model,
            retrieved=(demonstration.id,),
            seed=query.seed,
            exact=not is_disputed,
            open_end=recorded.provenance.open_end
            or (not is_own and (result.terminated or result.reward > 0 or demonstration.disputed)),
        ),
    )


def is_valid(query: Query, prediction: Prediction) -> bool:
    """True if the called tool's output schema allows the answer. Refusals and tools without a schema always pass.

    So do tools whose structured content is no object: it is not predicted, but taken from the recording.
    """
    schema = output_schema(query.spec, query.action.name)
    if schema is None or prediction.is_error or schema.get("type", "object") != "object":
        return True
    return prediction.structured is not None and known_fault(schema, prediction.structured) is None


def content_of(result: StepResult) -> tuple[JsonObject, ...] | None:
    """The content blocks; None if they are just the observation as one text."""
    return tuple(result.content) if "content" in result.info else None
