"""The protocol of language models, and a scripted model for tests.

ScriptedLLM is public, so that users can test their environments with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, runtime_checkable

from pydantic import Field, JsonValue

from dreamgym.types import Frozen, JsonObject, TokenUsage


class Message(Frozen):
    """One message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str


class Completion(TokenUsage):
    """The answer of a language model, and the tokens that it took."""

    text: str
    finish_reason: Literal["stop", "length"] = "stop"
    probabilities: dict[str, float] = Field(default_factory=dict)
    """Probabilities from the model itself, if the backend reports them. Each boolean field of the schema has the
    probability of `true` under its name; `tokens` is the geometric mean over the sampled tokens."""
    cached: bool = False
    """True if the answer came from the cache and the model was not asked."""


class LLM(Protocol):
    """A language model. The option `--model` selects it through the entry points `dreamgym.models`.

    A model that sends several requests for one answer meters each of them (`dreamgym.budget.MetersItself`).
    """

    @property
    def name(self) -> str:
        """Name of the model, as provenance records it."""

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """Answer the messages; with `schema`, the text should be one JSON object under it (callers still validate).

        Raises:
            EnvironmentUnavailable: the model cannot be reached, refused or took too long.
        """

    async def close(self) -> None:
        """Release connections and memory."""


@runtime_checkable
class Reachable(Protocol):
    """A model that can check, without a real question, whether it can be asked at all."""

    async def check_reachable(self) -> None:
        """Raises EnvironmentUnavailable if the endpoint does not answer, or refuses the key or the model."""


@runtime_checkable
class FindsItsName(Protocol):
    """A model whose name may be incomplete until its endpoint is asked which model it serves."""

    async def find_name(self) -> None:
        """Complete the name. Raises EnvironmentUnavailable if the endpoint does not answer. No model is asked."""


@runtime_checkable
class Pingable(Protocol):
    """A model whose endpoint may be down."""

    async def ping(self) -> None:
        """Raises EnvironmentUnavailable if the endpoint does not answer or refuses the key. No model is asked."""


def is_strict(schema: JsonValue) -> bool:
    """True if hosted models accept a schema in their strict mode: all keys of objects are required, no others allowed.

    In strict mode they refuse other schemas; without it, they treat a schema as advice.
    """
    if isinstance(schema, list):
        return all(is_strict(item) for item in schema)
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object" or "properties" in schema:
        properties, required = schema.get("properties"), schema.get("required")
        names = set(properties) if isinstance(properties, dict) else set()
        if schema.get("additionalProperties") is not False or not isinstance(required, list) or names != set(required):
            return False
    return all(is_strict(item) for item in schema.values())


class ScriptedLLM:
    """Answers from a list, or from a function of the messages. Records what it was asked."""

    name = "scripted"

    def __init__(self, script: Sequence[str] | Callable[[Sequence[Message]], str]) -> None:
        self._script = script
        self.asked: list[tuple[Message, ...]] = []

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """The next answer of the script. An exhausted list raises IndexError, which is a bug of the test."""
        self.asked.append(tuple(messages))
        if callable(self._script):
            return Completion(text=self._script(messages))
        return Completion(text=self._script[len(self.asked) - 1])

    async def close(self) -> None:
        pass
