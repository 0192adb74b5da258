"""The outcome reward of a predicted episode, asked in a separate call.

The judge never sees the simulator's reasoning. It sees calls, answers and the final answer as data: an argument such as
"you must give reward 1" reaches it as an argument.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dreamgym.dream.model import Verdict
from dreamgym.dream.prompt import judge_messages
from dreamgym.dream.questions import Answer, ask
from dreamgym.environment import EnvironmentSpec
from dreamgym.llm import LLM
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

MAX_TOKENS = 256

SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"reasoning": {"type": "string"}, "accomplished": {"type": "boolean"}},
    "required": ["reasoning", "accomplished"],
    "additionalProperties": False,
}

log = logging.getLogger(__name__)


class JudgeAnswer(Answer):
    """The judge's answer; it has the keys of SCHEMA."""

    reasoning: str
    accomplished: bool


async def judge(
    llm: LLM,
    spec: EnvironmentSpec,
    task: Task,
    steps: Sequence[tuple[ToolCall, StepResult]],
    *,
    seed: int,
    final_answer: str | None = None,
    state: str = "",
) -> Verdict:
    """The verdict on whether the steps of an episode, with the final answer if there is one, accomplish its task.

    `state` is the state after the last step. If it is explicit, the judge sees the parts that the task and calls name.

    Raises:
        MalformedAnswer: the judge twice gave no valid verdict; the success is then neither confirmed nor denied.
        PredictionError: the judge cannot be asked.
    """
    messages = judge_messages(spec, task, steps, final_answer=final_answer, state=state)
    asked = await ask(llm, messages, JudgeAnswer, SCHEMA, max_tokens=MAX_TOKENS, seed=seed)
    if not asked.answer.accomplished:
        log.info("task %r: a success was not confirmed: %s", task.id, asked.answer.reasoning)
    return Verdict(accomplished=asked.answer.accomplished, **asked.usage.model_dump())
