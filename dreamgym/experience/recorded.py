"""What was recorded of this very action in this very state, said again."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.experience.model import Prediction, Query
from dreamgym.experience.structured import completed
from dreamgym.experience.success import accomplished
from dreamgym.replay.buffer import Demonstration
from dreamgym.tools import fault_under
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, Transition


def repeat(query: Query, demonstration: Demonstration, *, model: str | None = None) -> Prediction:
    """The recorded answer to the letter, with its end and its success where the way to this state can be trusted.

    A state that an invented answer led to may be made of the agent's own words to look like a recorded one: it earns
    and ends nothing, unless the task has a check of its own on an explicit state, which decides in the dream.
    It is of the tier `recorded` only where the environment is declared deterministic: elsewhere the real system may
    answer otherwise the next time.

    Args:
        query: what is asked.
        demonstration: the same action recorded in the same state.
        model: the name of the model that repeats; None where none was asked.
    """
    recorded = demonstration.transition
    result = completed(recorded, query.spec).result
    is_trusted = not _is_invented(query.history) or accomplished(query.task, recorded.next_state) is not None
    return Prediction(
        observation=result.observation,
        structured=result.structured,
        content=content_of(result),
        next_state=recorded.next_state,
        success=result.terminated and result.reward > 0 and is_trusted,
        terminated=result.terminated and is_trusted,
        is_error=result.is_error,
        provenance=Provenance(
            tier=Tier.RECORDED if query.spec.deterministic else Tier.MODEL,
            model=model,
            retrieved=(demonstration.id,),
            seed=query.seed,
            exact=True,
        ),
    )


def is_valid(prediction: Prediction, schema: JsonObject | None) -> bool:
    """Whether a tool's output schema, where it has one, allows the answer."""
    if schema is None or prediction.is_error:
        return True
    return prediction.structured is not None and fault_under(schema, prediction.structured) is None


def content_of(result: StepResult) -> tuple[JsonObject, ...] | None:
    """The content blocks, where they are more than the observation as one text."""
    return tuple(result.content) if "content" in result.info else None


def _is_invented(history: Sequence[Transition]) -> bool:
    """An answer that was not recorded of its very state and action has changed the state."""
    return any(
        step.provenance.tier is not Tier.REAL and not step.provenance.exact and step.next_state != step.state
        for step in history
    )
