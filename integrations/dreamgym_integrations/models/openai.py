"""Any OpenAI-compatible server as a language model, through the openai client alone.

Servers differ in how they take a JSON schema, and some accept one and ignore it. The dialect is found once per endpoint
by going down a ladder, and remembered; what comes back is validated by the caller in any case.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.llm import Completion, Message, is_strict
from dreamgym.types import JsonObject

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

TIMEOUT_S = 120.0
RETRIES = 2
"""Number of times a request to a busy or broken server is repeated; the client waits in between."""

BASE_URLS: dict[str, tuple[str | None, str]] = {
    "openai": (None, "OPENAI_API_KEY"),
    "hosted_vllm": ("http://localhost:8000/v1", "HOSTED_VLLM_API_KEY"),
    "ollama": ("http://localhost:11434/v1", "OLLAMA_API_KEY"),
    "lm_studio": ("http://localhost:1234/v1", "LM_STUDIO_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
}
"""Where a provider's server is unless its variable NAME_API_BASE says otherwise, and the variable with its key."""
NEED_KEYS = frozenset({"openai", "openrouter"})


class Dialect(IntEnum):
    """How a schema is asked for, from strict to loose."""

    JSON_SCHEMA = 0
    """OpenAI's own."""
    JSON_OBJECT = 1
    """llama.cpp's: `json_object` with a `schema` beside it; others take it for plain JSON."""
    PROMPT = 2
    """In words only."""


def load(name: str) -> OpenAIModel:
    """The model that `http://host/v1[#model]`, `provider/model` or a bare name means.

    Raises:
        InvalidInput: no name, or the key that the provider asks for is not set.
        MissingPackage: the openai client is not installed.
    """
    if not name:
        raise InvalidInput("expected a model: http://HOST:PORT/v1, openai/MODEL, or a bare name")
    if name.startswith(("http://", "https://")):
        base_url, _, model = name.partition("#")
        return OpenAIModel(base_url, model or None, os.environ.get("OPENAI_API_KEY"))
    provider, _, model = name.partition("/")
    if provider not in BASE_URLS or not model:
        provider, model = "openai", name
    default, variable = BASE_URLS[provider]
    set_url = os.environ.get("OPENAI_BASE_URL" if provider == "openai" else f"{provider.upper()}_API_BASE")
    key = os.environ.get(variable)
    if key is None and set_url is None and provider in NEED_KEYS:
        raise InvalidInput(f"model {name!r} needs a key: set {variable}")
    return OpenAIModel(set_url or default, model, key)


REFUSALS = frozenset({400, 422, 500})
"""How servers say that they do not know a dialect; 500 is llama_cpp.server's."""
_PROBE = Message(role="user", content='Answer {"ok": true}.')
_PROBE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


class OpenAIModel:
    """One model at one endpoint.

    Args:
        base_url: ends in `/v1`; None is OpenAI.
        model: None takes the only one that the endpoint lists.
        key: sent as bearer token; never shown.
        timeout_s: of one request.
    """

    def __init__(
        self, base_url: str | None, model: str | None, key: str | None = None, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise MissingPackage("a model behind a URL", "openai") from error
        self._client: AsyncOpenAI = AsyncOpenAI(
            base_url=base_url, api_key=key or "none", timeout=timeout_s, max_retries=RETRIES
        )
        self._base_url = base_url
        self._where = base_url or "OpenAI"
        self._key = key
        self._model = model
        self._timeout_s = timeout_s
        self._dialect: Dialect | None = None
        self._choosing = asyncio.Lock()

    @property
    def name(self) -> str:
        """The endpoint and, as soon as it is known, the model."""
        return f"{self._where}#{self._model}" if self._model else self._where

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """Answer the messages. Raises EnvironmentUnavailable."""
        import openai

        try:
            model = await self._chosen()
            dialect = await self._spoken(model) if schema is not None else Dialect.PROMPT
            limit = "max_tokens" if self._base_url else "max_completion_tokens"
            settings = {limit: max_tokens, "temperature": temperature, "seed": seed % 2**31}
            found = await self._post({"model": model, **_request(messages, schema, dialect), **settings})
        except (openai.OpenAIError, ValueError) as error:  # ValueError: a body that is no JSON
            raise self._unavailable(error) from None  # the client's own errors carry the request with its headers
        return self._completion(found, bare=schema is not None)

    async def check_reachable(self) -> None:
        """Find the model and the dialect now, as the first question would. Raises EnvironmentUnavailable."""
        import openai

        try:
            await self._spoken(await self._chosen())
        except (openai.OpenAIError, ValueError) as error:
            raise self._unavailable(error) from None

    async def ping(self) -> None:
        """Ask for the list of models. An endpoint that has none answers with an error, but answers."""
        import openai

        try:
            await self._client.with_options(max_retries=0).models.list()
        except openai.APIStatusError as error:
            if error.status_code in {401, 403} or error.status_code >= 500:
                raise self._unavailable(error) from None
        except (openai.OpenAIError, ValueError) as error:
            raise self._unavailable(error) from None

    async def close(self) -> None:
        await self._client.close()

    async def _post(self, request: dict[str, Any]) -> ChatCompletion:
        from openai.types.chat import ChatCompletion

        found = await self._client.chat.completions.create(**request)
        if not isinstance(found, ChatCompletion):  # a page of text comes back as it is
            raise ValueError(f"expected a chat completion, got {str(found)[:200]!r}")
        return found

    async def _chosen(self) -> str:
        async with self._choosing:
            if self._model is None:
                listed = [model.id async for model in self._client.models.list()]
                if len(listed) != 1:
                    there = ", ".join(sorted(listed)) or "none"
                    raise EnvironmentUnavailable(
                        f"{self._where} serves several models or none, say which: #MODEL of {there}"
                    )
                self._model = listed[0]
        return self._model

    async def _spoken(self, model: str) -> Dialect:
        """The strictest dialect that the endpoint takes, found once with a question that any model can answer.

        A real request would not tell a dialect that is unknown from a prompt that is too long.
        """
        import openai

        async with self._choosing:
            for dialect in Dialect:
                if self._dialect is not None:
                    break
                try:
                    await self._post({"model": model, **_request([_PROBE], _PROBE_SCHEMA, dialect)})
                except openai.APIStatusError as error:
                    if error.status_code not in REFUSALS or dialect is Dialect.PROMPT:
                        raise
                else:
                    self._dialect = dialect
        assert self._dialect is not None
        return self._dialect

    def _completion(self, found: ChatCompletion, *, bare: bool) -> Completion:
        choice = found.choices[0] if found.choices else None
        if choice is None:
            raise EnvironmentUnavailable(f"{self.name} answered without a choice")
        if choice.message.refusal or choice.finish_reason == "content_filter":
            raise EnvironmentUnavailable(f"{self.name} refused to answer: {choice.message.refusal or 'content filter'}")
        finish_reason: Literal["stop", "length"] = "length" if choice.finish_reason == "length" else "stop"
        text = choice.message.content or ""
        return Completion(
            text=_bare(text) if bare else text,
            finish_reason=finish_reason,
            prompt_tokens=found.usage.prompt_tokens if found.usage else 0,
            completion_tokens=found.usage.completion_tokens if found.usage else 0,
        )

    def _unavailable(self, error: Exception) -> EnvironmentUnavailable:
        import openai

        if isinstance(error, openai.APITimeoutError):
            return EnvironmentUnavailable(f"{self.name} took longer than {self._timeout_s:.0f} s")
        if isinstance(error, openai.APIConnectionError):
            return EnvironmentUnavailable(f"{self.name} cannot be reached: is the server running?")
        text = f"{self.name} failed: {str(error)[:500]}"
        return EnvironmentUnavailable(text.replace(self._key, "***") if self._key else text)


def _request(messages: Sequence[Message], schema: JsonObject | None, dialect: Dialect) -> dict[str, Any]:
    """The messages and the format of the answer, in one dialect."""
    said = [{"role": message.role, "content": message.content} for message in messages]
    if schema is None:
        return {"messages": said}
    if dialect is Dialect.JSON_SCHEMA:
        form = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
        return {"messages": said, "response_format": {"type": "json_schema", "json_schema": form}}
    # At the end, where it leaves the cached prefix alone.
    said[-1]["content"] += f"\n\nAnswer with one JSON object and nothing else. Its JSON schema: {json.dumps(schema)}"
    if dialect is Dialect.JSON_OBJECT:
        return {"messages": said, "response_format": {"type": "json_object", "schema": schema}}
    return {"messages": said}


def _bare(text: str) -> str:
    """The answer without the thoughts and the fence that unconstrained models put around it."""
    text = re.sub(r"\A\s*<think>.*?</think>", "", text, count=1, flags=re.DOTALL).strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*?)\n?```", text, flags=re.DOTALL)
    return fenced[1] if fenced else text
