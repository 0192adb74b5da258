"""Any OpenAI-compatible server as a language model, through the openai client alone.

Servers accept different parameters, and some accept a JSON schema but ignore it, so the caller always validates the
answer. `endpoint` finds the accepted parameters and waits. This module turns the errors of the openai client into those
of `endpoint`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from dreamgym.budget import Meter, call_through
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.llm import Completion, Message
from dreamgym.types import JsonObject
from dreamgym_integrations.models.endpoint import (
    REQUEST_S,
    Broken,
    Busy,
    Capabilities,
    Dropped,
    Endpoint,
    EndpointAnswer,
    Refused,
    TooSlow,
    Unreadable,
    endpoint_of,
    is_too_large,
    most_of,
    text_of,
    thinking_tokens,
    without_key,
)
from dreamgym_integrations.models.usage import usage_of

if TYPE_CHECKING:
    import openai
    from openai import AsyncOpenAI
    from openai.types.chat import ChatCompletion

OPENAI_URL = "https://api.openai.com/v1"
BASE_URLS: dict[str, tuple[str | None, str]] = {
    "openai": (None, "OPENAI_API_KEY"),
    "hosted_vllm": ("http://localhost:8000/v1", "HOSTED_VLLM_API_KEY"),
    "ollama": ("http://localhost:11434/v1", "OLLAMA_API_KEY"),
    "lm_studio": ("http://localhost:1234/v1", "LM_STUDIO_API_KEY"),
    "openrouter": ("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
}
"""Default address of a provider's server, and the environment variable with its key.

The variable NAME_API_BASE, for openai OPENAI_BASE_URL, overrides the address.
"""
NEED_KEYS = frozenset({"openai", "openrouter"})


def load(name: str) -> OpenAIModel:
    """The model for `http://host/v1[#model]`, `provider/model` or a bare name.

    Raises:
        InvalidInput: the name is empty, the address is invalid or may contain a key, or the provider's key is not set
            or contains a character that no header can contain.
        MissingPackage: the openai client is not installed.
    """
    if not name:
        raise InvalidInput("expected a model: http://HOST:PORT/v1, openai/MODEL, or a bare name")
    if name.startswith(("http://", "https://")):
        base_url, _, model = name.partition("#")
        _check(base_url, "OPENAI_API_KEY", name)
        return OpenAIModel(base_url, model or None, _key("OPENAI_API_KEY"))
    provider, _, model = name.partition("/")
    if provider not in BASE_URLS or not model:
        provider, model = "openai", name
    default, variable = BASE_URLS[provider]
    set_url = _set("OPENAI_BASE_URL" if provider == "openai" else f"{provider.upper()}_API_BASE")
    key = _key(variable)
    if key is None and set_url is None and provider in NEED_KEYS:
        raise InvalidInput(f"model {name!r} needs a key: set {variable}")
    if set_url is not None:
        _check(set_url, variable, set_url)
    return OpenAIModel(set_url or default, model, key)


def _set(variable: str) -> str | None:
    """The value of an environment variable; None if it is not set, or empty, as a compose file passes it on."""
    return os.environ.get(variable) or None


def _key(variable: str) -> str | None:
    """The key in an environment variable, without blanks around it; None if there is none.

    Raises:
        InvalidInput: the key contains a character that no header can contain.
    """
    key = (_set(variable) or "").strip()  # a file that a container is given often ends with a line break
    if not (key.isascii() and key.isprintable()):
        raise InvalidInput(f"{variable}: expected a key of printable ASCII characters, got others: copy the key again")
    return key or None


def _check(address: str, key: str, given: str) -> None:
    """Raise InvalidInput if this is not an address, or if it has a part that may be a secret, which is not shown.

    `given` is what the user wrote: a `/` or `#` in a password ends the address before the `@`.
    """
    host, has_more = None, False
    with suppress(ValueError):  # a bracket is not closed, or the port is not a number
        parts = urlsplit(address)
        has_more = "@" in parts.netloc or bool(parts.query)
        host, _ = parts.hostname, parts.port
    if has_more or (not host and "@" in given):
        raise InvalidInput(
            "expected a model's address without a user, a password or a query (?…), since runs and stored steps "
            f"contain the address: put the key into {key}"
        )
    if not host:
        raise InvalidInput(f"model {address!r} is not an address: expected http://HOST:PORT/v1")


ADDRESS = "that the address is that of the API, which usually ends in /v1"
REFUSALS = frozenset({400, 413, 422})
UNBILLED = frozenset({400, 401, 402, 403, 404, 413, 422, 429, 503, 529})
"""Statuses of a server that has not asked its model, so that nothing is billed; with the last two it is overloaded."""
BUSY = frozenset({408, 409, 502, 503, 504, 520, 521, 522, 523, 524, 529})
"""Statuses that waiting may resolve; those from 520 to 524 are of Cloudflare, in front of the endpoint."""
TOO_SLOW = frozenset({408, 504, 524})
DROPPED = frozenset({502, 520, 521, 522, 523})
"""Statuses of a gateway that could not pass the request on."""
LASTING = frozenset({"insufficient_quota", "billing_hard_limit_reached"})
"""Codes of a 429 that waiting does not resolve."""


class OpenAIModel:
    """One model at one endpoint.

    Args:
        base_url: address that ends in `/v1`; None is OpenAI.
        model: name of the model; None takes the only one that the endpoint lists.
        key: sent as bearer token; never shown.
        timeout_s: longest time for one request.
    """

    def __init__(
        self, base_url: str | None, model: str | None, key: str | None = None, *, timeout_s: float = REQUEST_S
    ) -> None:
        try:
            from openai import AsyncOpenAI
        except ImportError as error:
            raise MissingPackage("a model behind a URL", "openai") from error
        self.meter: Meter | None = None
        self._client: AsyncOpenAI = AsyncOpenAI(
            base_url=base_url or OPENAI_URL, api_key=key or "none", timeout=timeout_s, max_retries=0
        )
        self._base_url = base_url
        self._where = base_url or "OpenAI"
        self._key = key
        self._model = model
        self._timeout_s = timeout_s
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
        """Answer the messages, waiting if the endpoint is limited or slow. Raises EnvironmentUnavailable."""
        endpoint = await self._endpoint()
        return await endpoint.complete(
            self.name, self._send, messages, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
        )

    async def find_name(self) -> None:
        """Find the only model that the endpoint lists, if the address names none. Raises EnvironmentUnavailable."""
        if self._model is None:
            await self._endpoint()

    async def check_reachable(self) -> None:
        """Find the model and the parameters it accepts, as the first question would. Raises EnvironmentUnavailable."""
        await (await self._endpoint()).found(self.name, self._send)

    async def seconds_for(self, calls: int, tokens_each: float, at_once: int) -> float:
        """Predicted seconds that `calls` more calls will take, see `Limiter.seconds_for`."""
        return (await self._endpoint()).limiter.seconds_for(calls, tokens_each, at_once)

    async def ping(self) -> None:
        """Ask for the list of models. An endpoint without one answers with an error, which is enough."""
        import openai

        try:
            # the server may just have closed the connection of the question before
            await self._listed(self._client.with_options(max_retries=1))
        except openai.APIStatusError as error:
            if error.status_code in {401, 403} or error.status_code >= 500:
                raise self._unavailable(error) from None
        except (openai.OpenAIError, ValueError) as error:
            raise self._unavailable(error) from None

    async def close(self) -> None:
        await self._client.close()

    async def _endpoint(self) -> Endpoint:
        import openai

        try:
            model = await self._chosen()
        except (openai.OpenAIError, ValueError) as error:  # ValueError: a key that no header can contain
            raise self._unavailable(error) from None
        first = Capabilities() if self._base_url else Capabilities(limit="max_completion_tokens")
        return endpoint_of(self._where, model, self._key, first)

    async def _send(self, request: dict[str, Any]) -> EndpointAnswer:
        """Send one request. The client's errors contain it with its headers, so ours are raised from None."""
        import openai
        from openai.types.chat import ChatCompletion

        async with call_through(self.meter, most_of(request)) as call:
            try:
                async with asyncio.timeout(self._timeout_s):  # the client's own begins anew with each byte
                    raw = await self._client.chat.completions.with_raw_response.create(
                        model=self._model or "", **request
                    )
            except TimeoutError:
                raise TooSlow(self._too_slow) from None
            except openai.APIStatusError as error:
                written = _faulty_answer(error)
                call.is_free = error.status_code in UNBILLED and written is None
                if written is not None:
                    return EndpointAnswer(Completion(text=written), 0, error.response.headers)
                raise self._sorted(error) from None
            except openai.APIConnectionError as error:  # includes timeouts
                call.is_free = unsent(error) is not None
                kind = TooSlow if isinstance(error, openai.APITimeoutError) else Busy if call.is_free else Dropped
                raise kind(self._reason(error)) from None
            except (openai.OpenAIError, ValueError) as error:
                raise Unreadable(self._reason(error)) from None
            try:
                found = raw.parse()
            except (ValueError, RecursionError):  # not JSON, though its type says so, or nested too deeply
                found = None
            if not isinstance(found, ChatCompletion) or not found.choices:  # the client returns a page of text as it is
                if (told := _error_in(raw.text)) is not None:
                    call.is_free = told[0] in UNBILLED
                    raise self._of_status(told[0], f"failed: {self._without_key(told[1])[:500]}", raw.headers)
                raise Unreadable(self._unreadable("a chat completion", raw.text, raw.headers))
            call.answered(usage_of(found.usage))
        return EndpointAnswer(self._completion(found), thinking_tokens(found), raw.headers)

    def _sorted(self, error: openai.APIStatusError) -> Exception:
        """The exception to raise for an error status."""
        reason, headers, status = self._reason(error), error.response.headers, error.status_code
        if status == 500 and headers.get("x-should-retry") == "false":
            return Refused(reason.removeprefix("failed: "), error.param)
        if status not in {*REFUSALS, 500} and (headers.get("x-should-retry") == "false" or error.code in LASTING):
            return EnvironmentUnavailable(f"{self.name} {reason}")
        return self._of_status(status, reason, headers, error.param)

    def _of_status(
        self, status: int, reason: str, headers: Mapping[str, str], parameter: str | None = None
    ) -> Exception:
        if status in REFUSALS or (status == 429 and is_too_large(reason)):
            return Refused(reason.removeprefix("failed: "), parameter)
        if status == 500:
            return Broken(reason.removeprefix("failed: "))
        if status == 429:
            return Busy(reason, is_limit=True, headers=headers)
        return busy(status, reason, headers) or EnvironmentUnavailable(f"{self.name} {reason}")

    async def _chosen(self) -> str:
        async with self._choosing:
            if self._model is None:
                listed = await self._listed(self._client.with_options(max_retries=2))
                if len(listed) != 1:
                    there = ", ".join(sorted(listed)) or "none"
                    raise EnvironmentUnavailable(
                        f"expected a server with one model, {self._where} lists {there}: append #MODEL to the address"
                    )
                self._model = listed[0]
        return self._model

    async def _listed(self, client: AsyncOpenAI) -> list[str]:
        """The models that the endpoint lists. Raises EnvironmentUnavailable, and the errors of the openai client."""
        raw = await client.models.with_raw_response.list()
        try:
            # some servers list names, or objects without id
            found = [getattr(model, "id", None) async for model in raw.parse()]
        except (
            AttributeError,
            RecursionError,
            TypeError,
            ValueError,
        ):  # the client takes any text for a list of models
            reason = self._unreadable("a list of models", raw.text, raw.headers)
            raise EnvironmentUnavailable(f"{self.name} {reason}") from None
        return [name for name in found if isinstance(name, str)]

    def _completion(self, found: ChatCompletion) -> Completion:
        text, choice = text_of(found), found.choices[0]
        if choice.message.refusal or choice.finish_reason == "content_filter":
            raise EnvironmentUnavailable(f"{self.name} refused to answer: {choice.message.refusal or 'content filter'}")
        finish_reason: Literal["stop", "length"] = "length" if choice.finish_reason == "length" else "stop"
        return Completion(
            text=text,
            finish_reason=finish_reason,
            **usage_of(found.usage).model_dump(),
        )

    def _unavailable(self, error: Exception) -> EnvironmentUnavailable:
        return EnvironmentUnavailable(f"{self.name} {self._reason(error)}")

    def _reason(self, error: Exception) -> str:
        """The part of an error message after the model's name."""
        import openai

        if isinstance(error, openai.APITimeoutError):
            return self._too_slow
        if isinstance(error, openai.APIConnectionError):
            return unreachable(unsent(error))
        reason = f"failed: {self._without_key(str(error))[:500]}"
        is_lost = isinstance(error, openai.NotFoundError)
        return f"{reason}: check the name of the model, and {ADDRESS}" if is_lost else reason

    @property
    def _too_slow(self) -> str:
        return f"took longer than {self._timeout_s:.0f} s"

    def _unreadable(self, wanted: str, answer: str, headers: Mapping[str, str]) -> str:
        """The part of an error message after the model's name, for an answer that is something else than wanted."""
        begin = self._without_key(answer).strip()[:200]
        reason = f"failed: expected {wanted}, got {begin!r}"
        if not begin.startswith("<"):
            return reason
        kind = headers.get("content-type", "none")
        return f"{reason}, which is HTML and not JSON (content type: {kind}): check {ADDRESS}, not a proxy's login page"

    def _without_key(self, text: str) -> str:
        return without_key(text, self._key) if self._key else text


def _error_in(body: str) -> tuple[int, str] | None:
    """Status and message of an error in the body of an answer with status 200, as OpenRouter sends it; None without."""
    try:
        error = json.loads(body)["error"]
        status, message = error["code"], error["message"]
    except (ValueError, RecursionError, TypeError, KeyError):
        return None
    return (status, str(message)) if isinstance(status, int) and 400 <= status < 600 else None


def _faulty_answer(error: openai.APIStatusError) -> str | None:
    """The answer in the error with which Groq refuses what the model itself wrote; None if it is another error."""
    written = error.body.get("failed_generation") if isinstance(error.body, dict) else None
    return written if error.code == "json_validate_failed" and isinstance(written, str) else None


def busy(status: int | None, reason: str, headers: Mapping[str, str]) -> Busy | None:
    """The kind of `Busy` of a status; None for a status that waiting does not resolve."""
    if status not in BUSY:
        return None
    kind = TooSlow if status in TOO_SLOW else Dropped if status in DROPPED else Busy
    return kind(reason, headers=headers)


def unsent(error: BaseException) -> BaseException | None:
    """The failure to connect behind an error; None if there is none, so that the server may have answered."""
    below: BaseException | None = error
    while below is not None and type(below).__name__ != "ConnectError":  # httpx's, or httpx2's from openai 3 on
        below = below.__cause__ or (None if below.__suppress_context__ else below.__context__)
    return below


def unreachable(failure: BaseException | None) -> str:
    """The part of an error message after the model's name, with the failure to connect if that is known."""
    told = "" if failure is None else f" ({str(failure)[:200]})"  # such as an unknown name, or a certificate
    return f"cannot be reached: is the server running?{told}"
