"""Asks a language model for one JSON object and believes nothing that does not validate.

Backends may accept a schema and ignore it, so every answer is parsed strictly. A malformed one is asked for again once,
with the fault named; then there is no answer. A model that repeats itself without end runs into the token limit, and
that counts as malformed even where the text reads well. In which human language a text is written is nobody's fault
here: where an answer must say what a state holds, the check against the state finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

from dreamgym.dream.cache import CachedLLM
from dreamgym.environment import first_reason
from dreamgym.errors import EnvironmentUnavailable, MalformedAnswer, PredictionError
from dreamgym.llm import LLM, Completion, Message
from dreamgym.types import JsonObject

SHOWN_CHARACTERS = 2_000
"""Most characters of a malformed answer that are quoted when it is asked for again. It may have no end."""


class Answer(BaseModel):
    """Base of the forms that a model fills in: no other keys, no `"true"` for true."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


Form = TypeVar("Form", bound=Answer)


@dataclass(frozen=True)
class StructuredAnswer(Generic[Form]):
    """A valid answer, and what it took."""

    answer: Form
    prompt_tokens: int
    completion_tokens: int
    """Both counts include questions with a malformed answer."""
    probabilities: dict[str, float]
    """`Completion.probabilities` of the valid answer."""
    cached: bool
    """The model was asked nothing: every answer was remembered."""


async def ask(
    llm: LLM,
    messages: Sequence[Message],
    form: type[Form],
    schema: JsonObject,
    *,
    max_tokens: int,
    seed: int,
    fault_of: Callable[[Form], str | None] = lambda answer: None,
) -> Form:
    """Like `ask_counted`, but returns the answer alone."""
    asked = await ask_counted(llm, messages, form, schema, max_tokens=max_tokens, seed=seed, fault_of=fault_of)
    return asked.answer


async def ask_counted(
    llm: LLM,
    messages: Sequence[Message],
    form: type[Form],
    schema: JsonObject,
    *,
    max_tokens: int,
    seed: int,
    fault_of: Callable[[Form], str | None] = lambda answer: None,
) -> StructuredAnswer[Form]:
    """The model's answer under `form`, in which `fault_of` finds nothing wrong either.

    Raises:
        MalformedAnswer: malformed twice.
        PredictionError: the model cannot be reached, refused or took too long.
    """
    asked, completions = [list(messages)], list[Completion]()
    for _ in range(2):
        try:
            completion = await llm.complete(asked[-1], schema=schema, max_tokens=max_tokens, temperature=0.0, seed=seed)
        except EnvironmentUnavailable as error:
            raise PredictionError(str(error)) from error
        completions.append(completion)
        try:
            if completion.finish_reason == "length":
                raise ValueError(f"it was cut off after {completion.completion_tokens} tokens; be shorter")
            answer = form.model_validate_json(completion.text)
        except ValueError as error:
            fault: str | None = first_reason(error)
        else:
            fault = fault_of(answer)
            if fault is None:
                return StructuredAnswer(
                    answer,
                    prompt_tokens=sum(one.prompt_tokens for one in completions),
                    completion_tokens=sum(one.completion_tokens for one in completions),
                    probabilities=completion.probabilities,
                    cached=all(one.cached for one in completions),
                )
        named = f"That is no valid answer: {fault}. Answer again with the JSON object alone."
        said = Message(role="assistant", content=completion.text[:SHOWN_CHARACTERS])
        asked.append([*messages, said, Message(role="user", content=named)])
    if isinstance(llm, CachedLLM):
        for question in asked[:-1]:
            await llm.forget(question, schema=schema, max_tokens=max_tokens, temperature=0.0, seed=seed)
    raise MalformedAnswer(f"model {llm.name!r} gave no valid answer, not even when asked again: {fault}")
