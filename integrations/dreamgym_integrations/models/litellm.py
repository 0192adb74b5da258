"""Providers without an OpenAI-compatible endpoint, through litellm.

Importing litellm takes seconds and 200 MB, and fetches lists over the network. So litellm is set to use the lists in
its package, and is never imported for any other model. Loading a model refuses what cannot work, such as an unknown
provider or one without its key. Retries and limits are ours: litellm's own need a package that it does not install, and
hide the error.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal

from dreamgym.budget import Meter, call_through
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.llm import Completion, Message
from dreamgym.types import JsonObject
from dreamgym_integrations.models.endpoint import (
    REQUEST_S,
    Broken,
    Busy,
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
from dreamgym_integrations.models.openai import UNBILLED, busy, unreachable, unsent
from dreamgym_integrations.models.usage import usage_of

LISTS = ("LITELLM_LOCAL_MODEL_COST_MAP", "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS")
"""Environment variables that make litellm use the lists in its package."""
CACHE: JsonObject = {"type": "ephemeral"}
"""Anthropic's cache mark. The provider keeps everything before it in its cache for five minutes."""


def load(name: str) -> LiteLLMModel:
    """The model that litellm calls `provider/model`.

    Raises:
        InvalidInput: the name is empty, litellm does not know the provider, or the provider's key is not set.
        MissingPackage: litellm is not installed.
    """
    if not name:
        raise InvalidInput("expected litellm:PROVIDER/MODEL")
    if find_spec("litellm") is None:
        raise MissingPackage(f"model {name!r}", "litellm")
    for variable in LISTS:
        os.environ.setdefault(variable, "True")
    import litellm

    litellm.suppress_debug_info = True  # it would print to stdout
    try:
        _, provider, _, _ = litellm.get_llm_provider(model=name)
    except litellm.BadRequestError as error:
        raise InvalidInput(
            f"model {name!r}: litellm does not know the provider {name.partition('/')[0]!r}; "
            "docs.litellm.ai/docs/providers lists all providers"
        ) from error
    missing = litellm.validate_environment(model=name)["missing_keys"]
    # other credentials, such as those of a cloud, may come from files and roles that only the first question finds
    if missing and all(variable.endswith("_API_KEY") for variable in missing):
        raise InvalidInput(f"model {name!r} needs a key of {provider}: set {' or '.join(missing)}")
    return LiteLLMModel(name)


class LiteLLMModel:
    """One model of one provider; keys come from the environment variables that litellm documents."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.meter: Meter | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """Answer the messages, waiting if the provider is limited or slow. Raises EnvironmentUnavailable."""
        return await self._endpoint().complete(
            self.name, self._send, messages, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
        )

    async def seconds_for(self, calls: int, tokens_each: float, at_once: int) -> float:
        """Predicted seconds that `calls` more calls will take, see `Limiter.seconds_for`."""
        return self._endpoint().limiter.seconds_for(calls, tokens_each, at_once)

    def _endpoint(self) -> Endpoint:
        return endpoint_of("litellm", self.name, None)

    async def _send(self, request: dict[str, Any]) -> EndpointAnswer:
        """Send one request. litellm's errors have only Exception as a common base, and contain the request."""
        import litellm

        room = most_of(request)
        if "claude" in self.name:
            request = {**request, "messages": with_cache_marks(request["messages"])}
        async with call_through(self.meter, room) as call:
            try:
                async with asyncio.timeout(REQUEST_S):  # the client's own begins anew with each byte
                    found = await litellm.acompletion(
                        model=self.name, timeout=REQUEST_S, num_retries=0, max_retries=0, **request
                    )
            except Exception as error:  # noqa: BLE001
                is_refused = getattr(error, "status_code", None) in UNBILLED or _is_overload(error)
                call.is_free = is_refused or unsent(error) is not None
                raise self._sorted(error) from None
            if not getattr(found, "choices", None):
                raise Unreadable("failed: it answered without a choice")
            call.answered(usage_of(getattr(found, "usage", None)))
        told = found._hidden_params.get("additional_headers") or {}
        headers = {name.removeprefix("llm_provider-"): str(value) for name, value in told.items()}
        return EndpointAnswer(self._completion(found), thinking_tokens(found), headers)

    def _completion(self, found: Any) -> Completion:
        text, choice = text_of(found), found.choices[0]
        if choice.finish_reason == "content_filter":
            raise EnvironmentUnavailable(f"{self.name} refused to answer")
        finish_reason: Literal["stop", "length"] = "length" if choice.finish_reason == "length" else "stop"
        return Completion(
            text=text,
            finish_reason=finish_reason,
            **usage_of(getattr(found, "usage", None)).model_dump(),
        )

    async def close(self) -> None:
        pass

    def _sorted(self, error: Exception) -> Exception:
        """The exception to raise for an error of litellm."""
        import litellm

        if (failure := unsent(error)) is not None:
            return Busy(unreachable(failure))
        reason, headers = self._reason(error), getattr(error, "litellm_response_headers", None) or {}
        if isinstance(error, litellm.ContentPolicyViolationError):
            return EnvironmentUnavailable(f"{self.name} {reason}")
        if isinstance(error, (litellm.BadRequestError, litellm.UnprocessableEntityError)):
            return Refused(reason.removeprefix("failed: "))
        if isinstance(error, litellm.RateLimitError) and is_too_large(reason):
            return Refused(reason.removeprefix("failed: "))
        if isinstance(error, litellm.RateLimitError) and "insufficient_quota" not in str(error):
            return Busy(reason, is_limit=True, headers=headers)
        if isinstance(error, (litellm.Timeout, TimeoutError)):
            return TooSlow(f"took longer than {REQUEST_S:.0f} s")
        if isinstance(error, litellm.APIConnectionError):  # it also stands for whatever litellm cannot parse
            return (Dropped if _is_of_network(error) else Unreadable)(reason)
        if isinstance(error, litellm.BadGatewayError):
            return Dropped(reason, headers=headers)
        if isinstance(error, litellm.ServiceUnavailableError) or _is_overload(error):
            return Busy(reason, headers=headers)
        if isinstance(error, litellm.InternalServerError):
            return Broken(reason.removeprefix("failed: "))
        of_status = busy(getattr(error, "status_code", None), reason, headers)
        return of_status or EnvironmentUnavailable(f"{self.name} {reason}")

    def _reason(self, error: Exception) -> str:
        """The kind of error, and what it says, in which every key of this process's environment is masked."""
        line = _said_in(str(error))
        for variable, value in os.environ.items():
            if (value := value.strip()) and re.search(r"(?:^|_)(?:API_?KEY|TOKEN|SECRET|PASSWORD)(?:_|$)", variable):
                line = without_key(line, value)
        return f"failed: {type(error).__name__}: {line[:500]}"


def _is_of_network(error: BaseException) -> bool:
    """True if a failure of the connection is behind an error."""
    import aiohttp
    import httpx

    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, (OSError, aiohttp.ClientError, httpx.TransportError)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False


def _is_overload(error: Exception) -> bool:
    """True if a provider is overloaded: litellm gives Anthropic's 529 and Gemini's 503 the status 500."""
    return getattr(error, "status_code", None) == 500 and "overloaded" in str(error).lower()


def _said_in(text: str) -> str:
    """The first line of an error, or the message in its JSON, which Gemini spreads over several lines."""
    before, brace, _ = text.partition("{")
    try:
        told, _ = json.JSONDecoder().raw_decode(text, len(before))
        message = str(told["error"]["message"])
    except (ValueError, RecursionError, TypeError, KeyError):
        return (text.splitlines() or [""])[0]
    return " ".join(f"{before}{message}".split()) if brace else text


def with_cache_marks(messages: Sequence[dict[str, str]]) -> list[dict[str, Any]]:
    """The messages with marks for Anthropic's prompt cache: one after the rules, one after the history.

    The cache matches a prompt up to the end of a block that an earlier prompt contained. The history grows by a line
    with each step, so each of its lines is a block.
    """
    marked: list[dict[str, Any]] = []
    for message in messages:
        content, (before, closing, after) = message["content"], message["content"].partition("\n</history>")
        if message["role"] == "system":
            blocks: list[dict[str, Any]] = [{"type": "text", "text": content, "cache_control": CACHE}]
        elif closing:
            blocks = [{"type": "text", "text": line} for line in before.splitlines(keepends=True)]
            blocks[-1]["cache_control"] = CACHE
            blocks.append({"type": "text", "text": closing + after})
        else:
            blocks = [{"type": "text", "text": content}]
        marked.append({"role": message["role"], "content": blocks})
    return marked
