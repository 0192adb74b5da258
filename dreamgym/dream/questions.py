"""Questions to a language model: each is asked once, and only a valid answer is accepted.

The key of a stored answer is made of the model and of everything that is sent to it. So nothing has to be deleted when
a prompt, a recording or a seed changes: that is another question.

Backends may accept a schema and ignore it, so every answer is parsed strictly. After a malformed answer the question is
asked once more, with the fault named; then there is no answer. A model that repeats itself without end runs into the
token limit. That counts as malformed even if the text is valid; the second answer is then sampled. The human language
of a text is not checked: if an answer must show what a state contains, the check against the state finds the fault.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from dreamgym.environment import first_reason
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MalformedAnswer, PredictionError
from dreamgym.llm import LLM, Completion, FindsItsName, Message, Pingable
from dreamgym.replay.keys import check_storable
from dreamgym.spans import TimedSpan
from dreamgym.types import JsonObject, TokenUsage

SHOWN_CHARACTERS = 2_000
"""Most characters of a malformed answer that are quoted when it is asked for again."""
OUT_OF_REPETITION = 0.7
"""Temperature at which the next answer is sampled after one that was cut off."""


def weights_fingerprint(model: str | None) -> str:
    """Fingerprint of the files that the string `--model` names; empty if it names no file or folder.

    It tells apart models in files of the same name: a folder that is trained into once more is another model. It is
    made of sizes and times, because weights are large.
    """
    name = (model or "").removeprefix("local:").removeprefix("checkpoint:")
    path = Path(name).expanduser()
    files = sorted(path.rglob("*")) if name and path.is_dir() else [path] if path.is_file() else []
    stats = [(str(file.relative_to(path)), file.stat()) for file in files if file.is_file()]
    if not stats:
        return ""
    told = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
    return hashlib.sha256(told.encode()).hexdigest()


class Predictions(Protocol):
    """Store of models' answers, as texts by their keys. Every method may be called from any replica."""

    async def get(self, key: bytes) -> str | None:
        """The stored prediction; None if there is none under this key."""

    async def put(self, key: bytes, prediction: str) -> str:
        """Store a prediction unless the key has one already; return the one that is stored."""

    async def forget(self, key: bytes) -> None:
        """Delete the prediction under this key, if there is one."""


class MemoryPredictions:
    """A Predictions store in a dictionary, for tests and notebooks."""

    def __init__(self) -> None:
        self._predictions: dict[bytes, str] = {}

    async def get(self, key: bytes) -> str | None:
        return self._predictions.get(key)

    async def put(self, key: bytes, prediction: str) -> str:
        return self._predictions.setdefault(key, prediction)

    async def forget(self, key: bytes) -> None:
        self._predictions.pop(key, None)


class CachedLLM:
    """Asks another language model each question only once.

    Two identical questions at the same time share one answer. A question that failed is asked again.

    Args:
        llm: answers the questions that have no stored answer; closed together with this one.
        predictions: store of the answers.
        weights: tells apart models of one name, as the model's own attribute `fingerprint` does.
    """

    def __init__(self, llm: LLM, predictions: Predictions, weights: str = "") -> None:
        self._llm = llm
        self._predictions = predictions
        self._asking: dict[bytes, asyncio.Task[Completion]] = {}
        self._weights = [weights, str(getattr(llm, "fingerprint", ""))]
        self.form = getattr(llm, "form", "data")
        """The form of prompt that the model is asked in."""

    @property
    def name(self) -> str:
        return self._llm.name

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """The model's answer; a stored one has `cached` set and costs no tokens.

        Raises:
            EnvironmentUnavailable: the model cannot be reached, refused or took too long.
            StoreError: the store cannot be reached.
        """
        key = await self._key(messages, schema, max_tokens, temperature, seed)
        task = self._asking.get(key)
        if task is not None:
            return _free(await asyncio.shield(task))  # a caller that is cancelled does not stop the others

        async def found_or_asked() -> Completion:
            if (known := await self._predictions.get(key)) is not None:
                return _free(Completion.model_validate_json(known))
            own = await self._llm.complete(
                messages, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
            )
            try:
                text = check_storable(own, "completion")
            except InvalidInput:  # no store can hold it, and its reader will refuse it too
                return own
            stays = await self._predictions.put(key, text)
            return own if stays == text else _free(Completion.model_validate_json(stays))

        task = self._asking[key] = asyncio.create_task(found_or_asked())
        task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    async def forget(
        self, messages: Sequence[Message], *, schema: JsonObject | None, max_tokens: int, temperature: float, seed: int
    ) -> None:
        """Delete the stored answer, so that this question is asked again: the answer was of no use."""
        await self._predictions.forget(await self._key(messages, schema, max_tokens, temperature, seed))

    async def ping(self) -> None:
        """Raises EnvironmentUnavailable if the model has an endpoint that does not answer."""
        if isinstance(self._llm, Pingable):
            await self._llm.ping()

    async def close(self) -> None:
        """Cancel the questions that are still running, and release the model."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._llm.close()

    async def _key(
        self, messages: Sequence[Message], schema: JsonObject | None, max_tokens: int, temperature: float, seed: int
    ) -> bytes:
        if isinstance(self._llm, FindsItsName):
            await self._llm.find_name()
        sent = [[message.role, message.content] for message in messages]
        question = [[self._llm.name, *self._weights], sent, schema, max_tokens, temperature, seed]
        return hashlib.sha256(json.dumps(question, separators=(",", ":")).encode()).digest()

    def _answered(self, key: bytes, done: asyncio.Task[Completion]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # marks it as seen: asyncio would log an exception that nobody waited for


def _free(completion: Completion) -> Completion:
    return completion.model_copy(update={"cached": True, **TokenUsage().model_dump()})


class Answer(BaseModel):
    """Base of the forms that a model fills in: other keys, or `"true"` for true, are errors."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


Form = TypeVar("Form", bound=Answer)


@dataclass(frozen=True)
class StructuredAnswer(Generic[Form]):
    """A valid answer, and what it cost."""

    answer: Form
    usage: TokenUsage
    """Tokens of all questions, those with a malformed answer included."""
    probabilities: dict[str, float]
    """`Completion.probabilities` of the valid answer."""
    cached: bool
    """True if the model was not asked: every answer was stored."""


async def ask(
    llm: LLM,
    messages: Sequence[Message],
    form: type[Form],
    schema: JsonObject,
    *,
    max_tokens: int,
    seed: int,
    fault_of: Callable[[Form], str | None] = lambda answer: None,
) -> StructuredAnswer[Form]:
    """The model's answer, valid under `form` and without a fault that `fault_of` finds.

    Raises:
        MalformedAnswer: the answer was malformed twice.
        PredictionError: the model cannot be reached, refused or took too long.
    """
    asked, completions = [(list(messages), 0.0)], list[Completion]()
    for _ in range(2):
        question, temperature = asked[-1]
        try:
            with TimedSpan("model_call", model=_shown_name(llm)) as calling:
                completion = await llm.complete(
                    question, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
                )
                calling.note(
                    cached=completion.cached,
                    prompt_tokens=completion.prompt_tokens,
                    completion_tokens=completion.completion_tokens,
                )
        except EnvironmentUnavailable as error:
            raise PredictionError(str(error)) from error
        completions.append(completion)
        try:
            if completion.finish_reason == "length":
                raise ValueError(f"it was cut off after {completion.completion_tokens} tokens; be shorter")
            answer = form.model_validate_json(completion.text)
            json.loads(completion.text, object_pairs_hook=_with_own_names)
            if (found := fault_of(answer)) is not None:
                raise ValueError(found)
        except ValueError as error:
            fault = first_reason(error)
        else:
            return StructuredAnswer(
                answer,
                usage=TokenUsage.total(completions),
                probabilities=completion.probabilities,
                cached=all(one.cached for one in completions),
            )
        asked.append(_again(messages, completion, fault))
    if isinstance(llm, CachedLLM):
        for question, temperature in asked[:-1]:
            await llm.forget(question, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed)
    used = TokenUsage.total(completions).model_dump()
    raise MalformedAnswer(f"model {llm.name!r} gave no valid answer, not even when asked again: {fault}", used)


def _with_own_names(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    """The object of these pairs. Raises ValueError if a key occurs twice: nobody knows which value is meant."""
    made: JsonObject = {}
    for name, value in pairs:
        if name in made:
            raise ValueError(f'"{name}" is given twice: give each key once')
        made[name] = value
    return made


def _again(messages: Sequence[Message], malformed: Completion, fault: str) -> tuple[list[Message], float]:
    """The question after a malformed answer, and the temperature at which it is asked.

    An answer that was cut off is not shown: a small model that repeats itself goes on when it sees its answer. With
    Qwen2.5-Coder-0.5B, showing it mended one of four such answers, and sampling without it mended twelve of twelve.
    An empty answer is not shown either: endpoints refuse empty messages.
    """
    is_cut = malformed.finish_reason == "length"
    if is_cut or not malformed.text.strip():
        *before, last = messages
        shorter = f"{last.content}\n\nThere was no valid answer: {fault}."
        return [*before, Message(role=last.role, content=shorter)], OUT_OF_REPETITION if is_cut else 0.0
    named = f"That is no valid answer: {fault}. Answer again with the JSON object alone."
    text = malformed.text[:SHOWN_CHARACTERS].encode(errors="backslashreplace").decode()  # half a surrogate
    return [*messages, Message(role="assistant", content=text), Message(role="user", content=named)], 0.0


def _shown_name(llm: LLM) -> str | None:
    """The model's name for traces; None if that is the URL of an endpoint, because it may contain a password."""
    name = llm.name.rpartition("#")[2]
    return None if "://" in name else name
