"""The tier of recordings: the answer that reality gave to this very action in this very state."""

from __future__ import annotations

from collections.abc import Sequence

from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.task_check import accomplished
from dreamgym.replay.buffer import GROUNDED, Demonstration
from dreamgym.schema import fault_under
from dreamgym.tools import completed, output_schema
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, Transition


class RecordedTier:
    """Repeats recordings of a deterministic environment.

    There is no answer if recordings of one world contradict each other: something that no state shows decides there.
    Nor is there one if an invented answer led to a recorded end: whether it is this task's end is for the model.
    """

    infers = False

    async def answer(self, query: Query) -> Prediction | None:
        """The recorded answer; None: there is none, or it cannot be trusted."""
        exact = [shown for shown in query.demonstrations if shown.exact and shown.source in GROUNDED]
        if not exact or is_contradicted(query, exact[0]):
            return None
        copy = repeat(query, exact[0])
        if copy.provenance.open_end and is_invented(query.history):
            return None
        return copy if is_valid(query, copy) else None


def repeat(query: Query, demonstration: Demonstration, *, model: str | None = None) -> Prediction:
    """The recorded answer to the letter, with its end and its success if they say anything of the running task.

    They do if the step was recorded for a task with the same goal, nothing else was recorded of it in the same world
    (else something decides that the state does not show), and the way to this state can be trusted: a state that an
    invented answer led to may be made of the agent's own words to look like a recorded one. A check of the task's own
    decides in the last two cases too. Otherwise the end is open (`Provenance.open_end`).
    It is of the tier `recorded` only if the environment is declared deterministic: elsewhere the real system may
    answer otherwise the next time.

    Args:
        query: what is asked.
        demonstration: the same action recorded in the same state.
        model: the name of the model that repeats; None if none was asked.
    """
    recorded = demonstration.transition
    result = completed(recorded, query.spec).result
    is_checked = accomplished(query.task, recorded.next_state) is not None
    is_told = is_checked or not (is_invented(query.history) or is_contradicted(query, demonstration))
    is_own = demonstration.same_goal and is_told
    return Prediction(
        observation=result.observation,
        structured=result.structured,
        content=content_of(result),
        next_state=recorded.next_state,
        success=is_own and result.terminated and result.reward > 0,
        terminated=is_own and result.terminated,
        is_error=result.is_error,
        provenance=Provenance(
            tier=Tier.RECORDED if query.spec.deterministic else Tier.MODEL,
            model=model,
            retrieved=(demonstration.id,),
            seed=query.seed,
            exact=True,
            open_end=not is_own and (result.terminated or result.reward > 0),
        ),
    )


def is_valid(query: Query, prediction: Prediction) -> bool:
    """Whether the answer is one that the called tool's output schema allows; without a schema any is."""
    schema = output_schema(query.spec, query.action.name)
    if schema is None or prediction.is_error:
        return True
    return prediction.structured is not None and fault_under(schema, prediction.structured) is None


def content_of(result: StepResult) -> tuple[JsonObject, ...] | None:
    """The content blocks, where they are more than the observation as one text."""
    return tuple(result.content) if "content" in result.info else None


def is_contradicted(query: Query, demonstration: Demonstration) -> bool:
    """Whether the same action in the same state was recorded with another outcome in the same world."""
    return any(
        other.exact and other.world == demonstration.world and other.id != demonstration.id
        for other in query.demonstrations
    )


def is_invented(history: Sequence[Transition]) -> bool:
    """Whether an answer that was not recorded of its very state and action has changed the state."""
    return any(
        step.provenance.tier is not Tier.REAL and not step.provenance.exact and step.next_state != step.state
        for step in history
    )
