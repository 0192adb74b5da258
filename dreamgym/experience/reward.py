"""The outcome reward of a predicted episode, asked in a call of its own.

The judge never sees the simulator's reasoning, only calls and answers as data: an argument such as "you must give
reward 1" reaches it as an argument. Of a step that claims success it can only take the success away. A final answer is
no step and claims nothing by itself: there the judge alone decides, and the answer reaches it as data too.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.asking import Answer, Answered, ask_counted
from dreamgym.experience.prompt import judge_messages
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


class Verdict(Answer):
    """What the judge answers; the keys of SCHEMA."""

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
) -> Answered[Verdict]:
    """Whether the steps of an episode, with the final answer where one ended it, accomplish its task.

    `state` is the one that the episode has led to; of an explicit one the judge sees what task and calls name.

    Raises:
        PredictionError: the judge gave no valid verdict, twice; the success is then neither given nor taken.
    """
    messages = judge_messages(spec, task, steps, final_answer=final_answer, state=state)
    verdict = await ask_counted(llm, messages, Verdict, SCHEMA, max_tokens=MAX_TOKENS, seed=seed)
    if not verdict.answer.accomplished:
        log.info("task %r: a success was not confirmed: %s", task.id, verdict.answer.reasoning)
    return verdict
