"""The experience model that asks a language model: render, complete, parse.

What it decides is what happens. Whether that is worth a reward is asked again in a separate call (`reward.judge`),
because this one reads what the agent wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.answer import AnswerForm, StepAnswer, is_explicit
from dreamgym.experience.asking import Answered, ask_counted
from dreamgym.experience.checks import disagreement
from dreamgym.experience.model import Part, Prediction, Query
from dreamgym.experience.prompt import PromptForm, step_messages
from dreamgym.experience.reward import Verdict, judge
from dreamgym.llm import LLM
from dreamgym.types import StepResult, Task, Transition

MAX_TOKENS = 1024

logger = logging.getLogger(__name__)


class LanguageModel:
    """Predicts with any LLM, shown a few recorded transitions.

    Args:
        llm: is asked, in the form of prompt that its attribute `form` names; closed together with this model. A
            fitted one judges nothing: it has only ever seen transitions.
        demonstrations: how many recorded transitions it is shown. Small models are right in 10 of 12 steps with 5,
            in 5 of 12 with 2, and never with none.
    """

    learns_from_dreams = True

    def __init__(self, llm: LLM, demonstrations: int = 5) -> None:
        self._llm = llm
        self._form: PromptForm = getattr(llm, "form", "data")
        self.demonstrations = demonstrations

    @property
    def name(self) -> str:
        """The language model's."""
        return self._llm.name

    async def predict(self, query: Query) -> Prediction:
        """Ask for the step, and where it claims success, ask again whether that is so. Raises PredictionError.

        `success` is what was claimed and confirmed; `provenance.judged` is the verdict, None where none was asked for.
        """
        form = AnswerForm(query)

        def fault_of(answer: StepAnswer) -> str | None:
            fault = form.fault_of(answer)
            if fault is not None or Part.CHECKS in query.without:
                return fault
            return disagreement(query, form.prediction(answer, self.name))

        asked = await ask_counted(
            self._llm,
            step_messages(query, self._form),
            StepAnswer,
            form.conditional_schema() if self._form == "turns" else form.schema,
            max_tokens=_max_tokens(query),
            seed=query.seed,
            fault_of=fault_of,
        )
        prediction = form.prediction(asked.answer, self.name)
        verdict = await self._verdict(query, prediction)
        judged = None if verdict is None else verdict.answer.accomplished
        counted = {
            "judged": judged,
            "prompt_tokens": asked.prompt_tokens + (verdict.prompt_tokens if verdict else 0),
            "completion_tokens": asked.completion_tokens + (verdict.completion_tokens if verdict else 0),
        }
        return prediction.model_copy(
            update={
                "success": prediction.success and judged is not False,
                "probabilities": asked.probabilities,
                "provenance": prediction.provenance.model_copy(update=counted),
            }
        )

    async def _verdict(self, query: Query, prediction: Prediction) -> Answered[Verdict] | None:
        """What a separate call says of a claimed success; None where nothing is claimed or nobody is to be asked."""
        if not prediction.success or Part.CHECKS in query.without or self._form == "fitted":
            return None
        claimed = StepResult(
            observation=prediction.observation,
            terminated=True,
            info={"structured": prediction.structured} if prediction.structured is not None else {},
        )
        steps = [*((step.action, step.result) for step in query.history), (query.action, claimed)]
        state = prediction.next_state if Part.STATE not in query.without else ""
        return await judge(self._llm, query.spec, query.task, steps, seed=query.seed, state=state)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str, *, seed: int
    ) -> bool:
        """Whether the steps and the final answer accomplish the task. Raises PredictionError.

        Nothing done accomplishes nothing. A success is confirmed by a second question, about the same answer after no
        step at all: whom it convinces there too, it convinces by its words, and the success is not given.
        """
        if not history:
            return False
        steps = [(step.action, step.result) for step in history]
        asking = partial(judge, self._llm, spec, task, seed=seed, final_answer=answer)
        if not (await asking(steps, state=history[-1].next_state)).answer.accomplished:
            return False
        unproved = (await asking((), state=task.initial_state or "")).answer.accomplished
        if unproved:
            logger.warning("task %r: the judge believes the final answer whatever was done: no success", task.id)
        return not unproved

    async def close(self) -> None:
        """Release the language model."""
        await self._llm.close()


def _max_tokens(query: Query) -> int:
    """An explicit state that must be written whole, for want of changes, needs room."""
    is_whole = query.spec.state is not None and not is_explicit(query)
    return MAX_TOKENS + (len(query.state) // 2 if is_whole else 0)
