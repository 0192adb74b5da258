"""The experience model that asks a language model: render, complete, parse.

The prediction decides only what happens. Whether that earns a reward is asked in a separate call (`judge_step`),
because the prompt of the prediction contains what the agent wrote.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from dreamgym.dream.answer_form import AnswerForm, StepAnswer, answer_text
from dreamgym.dream.checks import contradiction
from dreamgym.dream.ending import is_unbounded
from dreamgym.dream.judge import judge
from dreamgym.dream.model import Part, Prediction, Query, Verdict
from dreamgym.dream.own_words import without_own_words
from dreamgym.dream.prompt import CHARACTERS_PER_TOKEN, PromptForm, shown_ids, step_messages
from dreamgym.dream.questions import ask
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import MalformedAnswer
from dreamgym.llm import LLM, Pingable, Reachable
from dreamgym.types import JsonObject, StepResult, Task, Tier, TokenUsage, ToolCall, Transition

LEAST_TOKENS = 1_024
"""Smallest token limit of an answer."""
REASONING_TOKENS = 512
"""Tokens for the reasoning, in addition to those for the environment's answer."""

logger = logging.getLogger(__name__)


class LanguageModel:
    """Predicts with any LLM, shown a few recorded transitions.

    Args:
        llm: the LLM; its attribute `form` is the form of the prompts. It is closed together with this model. A fitted
            LLM does not judge: it has only ever seen transitions.
        demonstrations: number of recorded transitions that it is shown. Small models are right in 10 of 12 steps with
            5, in 5 of 12 with 2, and never with none.
    """

    learns_from_dreams = True
    checks_state = True

    def __init__(self, llm: LLM, demonstrations: int = 5) -> None:
        self._llm = llm
        self._form: PromptForm = getattr(llm, "form", "data")
        self.demonstrations = demonstrations

    @property
    def name(self) -> str:
        return self._llm.name

    async def predict(self, query: Query) -> Prediction:
        """Ask for the step. `success` is the model's claim, not confirmed yet. Raises PredictionError."""
        form = AnswerForm(query)
        prediction: Prediction | None = None

        def fault_of(answer: StepAnswer) -> str | None:
            nonlocal prediction
            try:
                prediction = form.prediction(answer, self.name)
            except ValueError as error:
                return str(error)
            return contradiction(query, prediction)

        asked = await ask(
            self._llm,
            step_messages(query, self._form),
            StepAnswer,
            form.conditional_schema() if self._form == "turns" else form.schema,
            max_tokens=_max_tokens(query),
            seed=query.seed,
            fault_of=fault_of,
        )
        assert prediction is not None  # `fault_of` has set it for the accepted answer
        return prediction.model_copy(update={"probabilities": asked.probabilities}).noted(
            tier=Tier.CACHE if asked.cached else Tier.MODEL,
            retrieved=shown_ids(query, self._form),
            **asked.usage.model_dump(),
        )

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        """The verdict on whether the predicted step accomplishes the task. The judge is asked in separate calls.

        Raises:
            MalformedAnswer: the judge gave no valid answer.
            PredictionError: the judge cannot be reached.
        """
        info: JsonObject = {} if prediction.structured is None else {"structured": prediction.structured}
        if query.spec.state is None and prediction.next_state != prediction.observation:
            info["state"] = prediction.next_state  # a text: the judge sees that of every earlier step, too
        predicted = StepResult(observation=prediction.observation, is_error=prediction.is_error, info=info)
        steps = [*((step.action, step.result) for step in query.history), (query.action, predicted)]
        is_known = Part.STATE not in query.without and not is_unbounded(query.history, prediction.provenance)
        state = prediction.next_state if is_known else ""
        return await self._judged(query.spec, query.task, steps, state, seed=query.seed)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        """True if the steps and the final answer accomplish the task. Raises MalformedAnswer, PredictionError.

        An episode without steps accomplishes nothing.
        """
        if not history:
            return False
        steps = [(step.action, step.result) for step in history]
        state = "" if is_unbounded(history) else history[-1].next_state
        return (await self._judged(spec, task, steps, state, seed=seed, answer=answer)).accomplished

    async def _judged(
        self,
        spec: EnvironmentSpec,
        task: Task,
        steps: Sequence[tuple[ToolCall, StepResult]],
        state: str,
        *,
        seed: int,
        answer: str | None = None,
    ) -> Verdict:
        """Ask the judge, and ask again if it sees a success.

        A success counts only if the judge sees it with the agent's own words and without them, and does not see one
        before the first step. So neither the agent's words alone nor a judge that believes everything give a success.
        """
        asking = partial(judge, self._llm, spec, task, seed=seed, final_answer=answer)
        asked: list[Verdict] = []
        try:
            asked.append(await asking(steps, state=state))
            if asked[0].accomplished:
                asked.append(await asking((), state=task.initial_state or ""))
                if asked[1].accomplished:
                    logger.warning(
                        "task %r: the judge calls it accomplished before the first step, so its success does not count",
                        task.id,
                    )
                else:
                    reduced, left = without_own_words(spec, task, steps, state)
                    asked.append(await asking(reduced, state=left))
        except MalformedAnswer as error:
            error.tokens = TokenUsage.total([*asked, TokenUsage(**error.tokens)]).model_dump()
            raise
        return Verdict(
            accomplished=[one.accomplished for one in asked] == [True, False, True],
            **TokenUsage.total(asked).model_dump(),
        )

    async def check_reachable(self) -> None:
        """Raises EnvironmentUnavailable if the language model knows that it cannot be asked."""
        if isinstance(self._llm, Reachable):
            await self._llm.check_reachable()

    async def ping(self) -> None:
        """Raises EnvironmentUnavailable if the language model has an endpoint that does not answer."""
        if isinstance(self._llm, Pingable):
            await self._llm.ping()

    async def close(self) -> None:
        await self._llm.close()


def _max_tokens(query: Query) -> int:
    """Token limit: one and a half times the tool's longest known answer, and room for a state written as a whole."""
    steps = (*(one.transition for one in query.demonstrations), *query.history)
    answers = (len(answer_text(query, step)) for step in steps if step.action.name == query.action.name)
    longest = max(answers, default=0) * 3 // (2 * CHARACTERS_PER_TOKEN)
    is_whole = query.spec.state is not None and not query.is_explicit
    return max(LEAST_TOKENS, REASONING_TOKENS + longest) + (len(query.state.text) // 2 if is_whole else 0)
