"""Questions to a model behind an endpoint: a probe finds the parameters it accepts, and its limits are waited out.

Backends differ only in the function that sends a request. It raises `Refused`, `Busy`, `Broken` or `Unreadable`, whose
messages are reasons without the model's name, or EnvironmentUnavailable if waiting does not help. Everything else is
here: the parameters that the endpoint accepts, room for thoughts, the limiter, and retries.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Literal
from weakref import WeakKeyDictionary

from dreamgym.budget import room_of
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.llm import Completion, Message, is_strict
from dreamgym.types import JsonObject, TokenUsage
from dreamgym_integrations.models.limiter import Limiter, Turn, limit_of, retry_after_s

REQUEST_S = 300.0
"""Longest time for one request. Models that think take minutes."""
PATIENCE_S = 600.0
"""An endpoint that answers nobody for this long is given up. While it answers other questions, a question waits."""
RETRIES = 2
"""Number of retries after the server broke, after an unreadable answer, and for a server that has never answered."""
GIVEN_UP = 6
"""A question is given up after so many requests that took too long or were dropped while others were answered."""
ASKED_ANEW = 2
"""Number of times that one question may find that the endpoint's parameters have changed."""
CHARACTERS_PER_TOKEN = 4
KEY_CHARACTERS = 8
"""A key with fewer characters is likely a stand-in, and may occur in words by chance."""
PROBE_TOKENS = 1_024
THINKING_TOKENS = 8_192
"""Initial room for a model's thoughts. It is doubled when thoughts fill it, and halved when the endpoint refuses it."""
BROKEN_OFF = frozenset({"error", "abort", "insufficient_system_resource"})
"""Values of `finish_reason` if a server failed in mid-answer: OpenRouter's, vLLM's and SGLang's, DeepSeek's."""
EFFORT = "reasoning_effort"
LEAST_THINKING_TOKENS, MOST_THINKING_TOKENS = 512, 65_536
UNLIMITED_TOKENS = MOST_THINKING_TOKENS
"""Assumed maximum of tokens in an answer without a limit, most of which may be thoughts."""
THOUGHTS = re.compile(r"\A\s*(?![{`\s])(.*?)</think>", flags=re.DOTALL)
"""Thoughts before an answer. If the chat template opens them, as DeepSeek's does, the text has only their end."""

_PROBE = Message(role="user", content='Answer {"ok": true}.')
_PROBE_SCHEMA: JsonObject = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


class Dialect(IntEnum):
    """Ways to ask for a schema, from strict to loose."""

    JSON_SCHEMA = 0
    """OpenAI's `json_schema`."""
    JSON_OBJECT = 1
    """llama.cpp's `json_object` with a `schema` beside it. Other servers take it for plain JSON."""
    PROMPT = 2
    """The schema is only in the prompt."""


class Refused(Exception):
    """The endpoint rejects the request as it is. The message is the endpoint's reason."""

    def __init__(self, reason: str, parameter: str | None = None) -> None:
        super().__init__(reason)
        self.parameter = parameter
        """The rejected parameter, if the endpoint reports it separately from its reason."""


class Breaks(Refused):
    """The request broke the endpoint each time it was sent."""


class Busy(Exception):
    """The endpoint does not answer now.

    Args:
        reason: the endpoint's reason, which is the message.
        is_limit: True if a rate limit was exceeded; False if the endpoint is overloaded or cannot be reached.
        headers: headers of its answer.
    """

    def __init__(self, reason: str, *, is_limit: bool = False, headers: Mapping[str, str] = {}) -> None:
        super().__init__(reason)
        self.is_limit, self.headers = is_limit, headers


class TooSlow(Busy):
    """The time for one request ran out, here or at a gateway. Its tokens may be billed."""


class Dropped(Busy):
    """The connection was lost at this request, or a gateway could not pass it on. Its tokens may be billed."""


class Broken(Exception):
    """The endpoint failed at this request. Some servers report an unknown parameter in this way."""


class Unreadable(Exception):
    """The endpoint's answer is not a completion: a page, half a stream, JSON of another kind."""


@dataclass(frozen=True)
class EndpointAnswer:
    """A completion as the endpoint sent it."""

    completion: Completion
    thinking_tokens: int
    """Tokens of thoughts among those of the completion; 0 if the endpoint shows none."""
    headers: Mapping[str, str]


LimitName = Literal["max_tokens", "max_completion_tokens"]
OTHER_LIMIT: dict[LimitName, LimitName] = {
    "max_tokens": "max_completion_tokens",
    "max_completion_tokens": "max_tokens",
}
Send = Callable[[dict[str, Any]], Awaitable[EndpointAnswer]]


@dataclass(frozen=True)
class Capabilities:
    """The parameters that an endpoint accepts. The defaults are the most that it is ever sent."""

    dialect: Dialect = Dialect.JSON_SCHEMA
    limit: LimitName | None = "max_tokens"
    """Name of the parameter for the most tokens of an answer; None if the endpoint accepts none."""
    temperature: bool = True
    seed: bool = True

    def without(self, parameter: str) -> list[Capabilities]:
        """Alternatives that use less and less of a refused parameter."""
        if parameter == "response_format":
            return [replace(self, dialect=dialect) for dialect in Dialect if dialect > self.dialect]
        if parameter == self.limit:
            return [replace(self, limit=OTHER_LIMIT[self.limit]), replace(self, limit=None)]
        return [replace(self, temperature=False) if parameter == "temperature" else replace(self, seed=False)]

    @property
    def parameters(self) -> list[str]:
        """Names of the sent parameters that an endpoint may refuse."""
        asked = ["response_format"] if self.dialect is not Dialect.PROMPT else []
        asked += [self.limit] if self.limit else []
        return asked + [name for name in ("temperature", "seed") if getattr(self, name)]

    def named_by(self, refusal: Refused) -> str | None:
        """The one parameter that a refusal is about; None if it mentions none, or several."""
        if refusal.parameter in self.parameters:
            return refusal.parameter
        named = [name for name in self.parameters if _names(refusal, name)]
        return named[0] if len(named) == 1 else None

    def request(
        self, messages: Sequence[Message], schema: JsonObject | None, room: int, **how: float
    ) -> dict[str, Any]:
        """The parameters of a request, except the model. `room` is the most tokens of the answer with its thoughts."""
        asked: dict[str, Any] = {name: value for name, value in how.items() if getattr(self, name)}
        if self.limit is not None:
            asked[self.limit] = room
        said = [{"role": message.role, "content": message.content} for message in messages]
        if schema is not None and self.dialect is Dialect.JSON_SCHEMA:
            form = {"name": "answer", "schema": schema, "strict": is_strict(schema)}
            asked["response_format"] = {"type": "json_schema", "json_schema": form}
        elif schema is not None:
            # At the end, so that the cached prefix stays the same.
            wanted = f"Answer with one JSON object and nothing else. Its JSON schema: {json.dumps(schema)}"
            said[-1]["content"] += f"\n\n{wanted}"
            if self.dialect is Dialect.JSON_OBJECT:
                asked["response_format"] = {"type": "json_object", "schema": schema}
        return {"messages": said, **asked}


def most_of(request: Mapping[str, Any]) -> TokenUsage:
    """The most tokens that a request and its answer can have."""
    texts = [str(message["content"]) for message in request["messages"]]
    room = request.get("max_tokens") or request.get("max_completion_tokens") or UNLIMITED_TOKENS
    return room_of([*texts, json.dumps(request.get("response_format", ""))], int(room))


def text_of(found: Any) -> str:
    """The text of a chat completion in OpenAI's format, without thoughts. Raises Unreadable if it has another format.

    The text may come in parts: Mistral's reasoning models put their thoughts into parts of their own.
    """
    choices: Any = getattr(found, "choices", None)
    choice = choices[0] if isinstance(choices, list) and choices else None
    message = getattr(choice, "message", None)
    content = getattr(message, "content", None)
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "text"]
        content = "".join(text for text in texts if isinstance(text, str))
    if not hasattr(message, "content") or not isinstance(content, str | None):
        raise Unreadable(f"failed: expected a chat completion with a message, got {str(choices)[:200]!r}")
    reason = getattr(choice, "finish_reason", None)
    if isinstance(reason, str) and reason in BROKEN_OFF:
        raise Unreadable(f"failed: expected a whole answer, got one that an error ended: {str(content)[:200]!r}")
    return content or ""


def thinking_tokens(found: Any) -> int:
    """Tokens of thoughts in a chat completion in OpenAI's format; 0 if it shows none.

    Servers that return thoughts beside the answer, or in it, often do not count them. They are then estimated by their
    length.
    """
    details = getattr(found.usage, "completion_tokens_details", None)
    counted = getattr(details, "reasoning_tokens", None)
    if isinstance(counted, int) and counted > 0:
        return counted
    message = found.choices[0].message
    thought = getattr(message, "reasoning_content", None) or getattr(message, "reasoning", None)
    if not thought and (inside := THOUGHTS.match(text_of(found))):
        thought = inside[1]
    return len(thought) // CHARACTERS_PER_TOKEN + 1 if isinstance(thought, str) and thought else 0


def bare(text: str) -> str:
    """The answer without the thoughts and the code fence that unconstrained models put around it."""
    text = THOUGHTS.sub("", text, count=1).strip()
    fenced = re.fullmatch(r"```(?:json)?[^\S\n]*\n(.*?)\n?```", text, flags=re.DOTALL)
    return fenced[1] if fenced else text


def without_key(text: str, key: str) -> str:
    """The text with `***` in place of a key.

    A short key, such as `x` for a server that needs none, is kept where it is part of a word.
    """
    if len(key) >= KEY_CHARACTERS:
        return text.replace(key, "***")
    return re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "***", text)


class Endpoint:
    """One model at one endpoint, with what is known of it; shared by all callers in one event loop."""

    def __init__(self, first: Capabilities) -> None:
        self.limiter = Limiter()
        self.capabilities: Capabilities | None = None
        """The accepted parameters; None until a probe has found them."""
        self._first = first
        self._asking = asyncio.Lock()
        self._thinking_tokens = 0
        """Room for thoughts; 0 for a model that does not think."""
        self._most_thinking_tokens = MOST_THINKING_TOKENS
        self._effort: Literal["low"] | None = None
        """Value of `reasoning_effort` that is sent once thoughts have filled the widest room."""
        self._refused: set[str] = set()
        """What is not sent again: `reasoning_effort`, and schemas, which are put into the prompt."""
        self._doubted: set[str] = set()
        """What a question was answered without after a refusal that did not name it, until it is accepted again."""
        self._outages = 0
        """Number of times that even the simplest question broke an endpoint that had answered before."""

    async def complete(
        self,
        name: str,
        send: Send,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None,
        max_tokens: int,
        temperature: float,
        seed: int,
    ) -> Completion:
        """Answer the messages. The token counts include discarded answers. Raises EnvironmentUnavailable.

        With a schema, thoughts and a code fence around the answer are taken off.

        Args:
            name: name of the model, for errors.
            send: sends one request.
            messages: the question.
            schema: schema of the answer, or None.
            max_tokens: most tokens of the answer without thoughts.
            temperature: sampling temperature, sent if the endpoint accepts it.
            seed: sampling seed, sent if the endpoint accepts it.
        """
        taken = await self.found(name, send) if schema is not None else self.capabilities or self._first
        asked_anew, used, form = 0, TokenUsage(), json.dumps(schema)
        most_thinking, is_about_prompt = MOST_THINKING_TOKENS, False
        doubted = frozenset(self._doubted)
        dropped: dict[str, bool] = {}  # what this question does without, and if a refusal named it
        while True:
            without = self._refused | dropped.keys()
            thinking = min(self._thinking_tokens, most_thinking)
            effort = None if EFFORT in without else self._effort
            known = replace(taken, dialect=Dialect.PROMPT) if form in without else taken
            request = known.request(messages, schema, max_tokens + thinking, temperature=temperature, seed=seed % 2**31)
            if effort is not None:
                request[EFFORT] = effort
            try:
                reply = await self._answer(name, send, request)
            except Refused as refusal:
                if effort is not None and _names(refusal, EFFORT):
                    dropped[EFFORT] = True
                elif _is_too_long(refusal) and thinking >= 2 * LEAST_THINKING_TOKENS:
                    most_thinking = thinking // 2
                    is_about_prompt |= "context" in str(refusal).lower()
                else:
                    outages = self._outages
                    before, taken = taken, await self.found(name, send, instead_of=taken)
                    is_same = taken == before and self._outages == outages  # an outage was not this question's fault
                    is_schema = schema is not None and known.dialect is not Dialect.PROMPT
                    if is_same and effort is not None:  # the only parameter that no probe has sent
                        dropped[EFFORT] = False
                    elif is_same and is_schema and _may_be_about_schema(refusal):
                        dropped[form] = _names_schema(refusal)
                    elif is_same or asked_anew == ASKED_ANEW:
                        raise _failed(name, refusal) from None
                    else:
                        asked_anew += 1
                continue
            own = reply.completion
            self._keep(MOST_THINKING_TOKENS if is_about_prompt else most_thinking)
            used = TokenUsage.total([used, own])
            if not (own.finish_reason == "length" and self._makes_room(reply, thinking, most_thinking, max_tokens)):
                self._doubted -= {EFFORT, form} - without
                self._give_up(dropped, doubted)
                text = own.text if schema is None else bare(own.text)
                return own.model_copy(update={"text": text, **used.model_dump()})

    def _keep(self, most_thinking: int) -> None:
        """Keep the room for thoughts that refusals left a question. Call this only once it has been answered.

        Else the reason may have been the question itself, such as a prompt that is too long with any room for thoughts.
        """
        self._most_thinking_tokens = min(self._most_thinking_tokens, most_thinking)
        self._thinking_tokens = min(self._thinking_tokens, most_thinking)

    def _give_up(self, dropped: Mapping[str, bool], doubted: Collection[str]) -> None:
        """Keep what a question was answered without. After one refusal that named nothing, it is only doubted.

        Args:
            dropped: what the question did without, and True if a refusal named it.
            doubted: what was doubted when the question began.
        """
        self._refused |= {name for name, is_named in dropped.items() if is_named or name in doubted}
        self._doubted |= dropped.keys()

    async def found(self, name: str, send: Send, *, instead_of: Capabilities | None = None) -> Capabilities:
        """The parameters that the endpoint accepts. The first call probes it with a question that any model can answer.

        A real request would not show whether a parameter was refused or the prompt was too long.

        Args:
            name: name of the model, for errors.
            send: sends one request.
            instead_of: parameters of a refused request; the endpoint is probed again if they are still the known ones.
        """
        async with self._asking:
            if self.capabilities is None or self.capabilities == instead_of:
                try:
                    self.capabilities = await self._asked(name, send)
                except Refused as refusal:
                    raise _failed(name, refusal) from None
            return self.capabilities

    async def _asked(self, name: str, send: Send) -> Capabilities:
        """Drop the parameter that a refusal is about; if it mentions none, try each parameter by itself."""
        tried = self._first
        while True:
            try:
                return await self._probe(name, send, tried)
            except Refused as refusal:
                parameter = tried.named_by(refusal)
                if parameter is None:
                    return await self._asked_one_by_one(name, send)
                weaker = tried.without(parameter)
                if parameter == tried.limit and parameter != self._first.limit:
                    weaker = weaker[1:]  # the other name was refused before
                tried = weaker[0]

    async def _asked_one_by_one(self, name: str, send: Send) -> Capabilities:
        simplest = Capabilities(Dialect.PROMPT, None, temperature=False, seed=False)
        taken = await self._probe(name, send, simplest, is_simplest=True)
        first = self._first
        choices: list[list[dict[str, Any]]] = [
            [{"limit": first.limit}, {"limit": OTHER_LIMIT[first.limit or "max_tokens"]}],
            [{"temperature": True}],
            [{"seed": True}],
            [{"dialect": Dialect.JSON_SCHEMA}, {"dialect": Dialect.JSON_OBJECT}],
        ]
        for ladder in choices:
            for choice in ladder:
                try:
                    taken = await self._probe(name, send, replace(taken, **choice))
                except Refused:
                    continue
                break
        return taken

    async def _probe(self, name: str, send: Send, tried: Capabilities, *, is_simplest: bool = False) -> Capabilities:
        request = tried.request([_PROBE], _PROBE_SCHEMA, PROBE_TOKENS, temperature=0.0, seed=0)
        reply = await self._answer(name, send, request, is_simplest=is_simplest)
        if reply.completion.finish_reason == "length":
            self._makes_room(reply, 0, MOST_THINKING_TOKENS, PROBE_TOKENS)
        return tried

    async def _answer(
        self, name: str, send: Send, request: dict[str, Any], *, is_simplest: bool = False
    ) -> EndpointAnswer:
        """Send a request until it is answered or refused. Raises Refused, EnvironmentUnavailable.

        If the simplest question breaks an endpoint that has answered before, that is an outage, which is waited out.
        """
        began = asyncio.get_running_loop().time()
        characters = sum(len(str(message["content"])) for message in request["messages"])
        retries, own, reason, failed_at = 0, 0, "took too long", -math.inf
        while True:
            has_answered = self.limiter.answered_at > -math.inf
            try:
                async with self.limiter.turn(characters / CHARACTERS_PER_TOKEN, PATIENCE_S, began) as turn:
                    reply = await send(request)
                    counted = reply.completion
                    self.limiter.answered(turn, counted.prompt_tokens, counted.completion_tokens, reply.headers)
            except TimeoutError as error:
                silent = f"has not answered any question for {PATIENCE_S / 60:.0f} minutes: it {reason}"
                raise EnvironmentUnavailable(f"{name} {str(error) or silent}") from None
            except Refused:
                self.limiter.rejected(turn)
                raise
            except Busy as busy:
                reason = str(busy)
                since = failed_at if failed_at > -math.inf else turn.sent_at
                is_own = isinstance(busy, TooSlow | Dropped) and self.limiter.answered_at > since
                own, failed_at = own + is_own, asyncio.get_running_loop().time()
                times = own if is_own else 0
                if await self._hold_back(name, busy, turn, has_answered=has_answered, retries=retries, own=times):
                    retries += 1
            except (Broken, Unreadable) as failure:
                if retries == RETRIES and isinstance(failure, Broken) and not (is_simplest and has_answered):
                    raise Breaks(str(failure)) from None
                if retries == RETRIES and isinstance(failure, Broken):
                    reason = str(failure)
                    self._outages += 1
                    self.limiter.overloaded(turn, None)
                    continue
                if retries == RETRIES or (not has_answered and isinstance(failure, Unreadable)):
                    raise EnvironmentUnavailable(f"{name} {failure}") from None
                await asyncio.sleep(2**retries)
                retries += 1
            else:
                if reply.thinking_tokens and not self._thinking_tokens:
                    self._thinking_tokens = THINKING_TOKENS
                return reply

    async def _hold_back(
        self, name: str, busy: Busy, turn: Turn, *, has_answered: bool, retries: int, own: int
    ) -> bool:
        """Slow down for an endpoint that is busy. Raises EnvironmentUnavailable if waiting does not help.

        Args:
            name: the endpoint and its model, for messages.
            busy: how the endpoint failed.
            turn: the turn of the request.
            has_answered: True if it has answered any question.
            retries: number of RETRIES that were made.
            own: number of failures of this question that seem to be its own, since others were answered meanwhile; 0 if
                this one does not.

        Returns:
            True if the next request is one of the RETRIES; False if it may be repeated as long as patience lasts.
        """
        if own == GIVEN_UP:
            raise EnvironmentUnavailable(f"{name} {busy}, {own} times, and answered other questions meanwhile")
        if own and isinstance(busy, Dropped):
            await asyncio.sleep(2**own)  # the others need not wait for it
            return False
        # 0, or a time that has passed, is no waiting time: requests would follow one another at once
        wait_s = retry_after_s(busy.headers) or None
        if (wait_s or 0.0) > PATIENCE_S:
            raise EnvironmentUnavailable(f"{name} asks to wait {wait_s:.0f} s: it {busy}") from None
        if busy.is_limit:
            self.limiter.refused(turn, limit_of(str(busy)), wait_s, busy.headers)
        elif has_answered or busy.headers:
            self.limiter.overloaded(turn, wait_s)
        elif retries == RETRIES:
            raise EnvironmentUnavailable(f"{name} {busy}") from None
        else:
            await asyncio.sleep(2**retries)  # it has never answered: other questions need not wait for it
            return True
        return False

    def _makes_room(self, reply: EndpointAnswer, thinking: int, most_thinking: int, max_tokens: int) -> bool:
        """True if thoughts left no room for the answer, and a retry can have more room or shorter thoughts.

        Args:
            reply: the answer that was cut off.
            thinking: room for thoughts that its question had.
            most_thinking: most room for thoughts that the endpoint accepts with this prompt.
            max_tokens: most tokens of the answer without thoughts.
        """
        said = reply.completion.text.strip()
        if said and not reply.thinking_tokens and not _is_thought(said, thinking):
            return False
        if reply.thinking_tokens and reply.completion.completion_tokens - reply.thinking_tokens >= max_tokens:
            return False  # the answer itself is too long
        if thinking < min(self._thinking_tokens, most_thinking):
            return True  # another question has made room meanwhile
        wider = min(max(2 * thinking, THINKING_TOKENS), self._most_thinking_tokens, most_thinking)
        if wider > thinking:
            self._thinking_tokens = wider
            return True
        if self._effort is None:
            self._effort = "low"
            return True
        return False


def _is_thought(said: str, thinking: int) -> bool:
    """True if a text consists only of thoughts that were cut off.

    The template of a model that thinks, so that its question had room for thoughts, may have opened them.
    """
    is_open = said.startswith("<think>") or (thinking > 0 and not said.startswith(("{", "`")))
    return is_open and "</think>" not in said


def is_too_large(reason: str) -> bool:
    """True if a rate limit refuses a request because it alone exceeds the limit, so that waiting does not help."""
    return re.search(r"request too large|must be reduced", reason, re.IGNORECASE) is not None


def _names(refusal: Refused, parameter: str) -> bool:
    return refusal.parameter == parameter or re.search(rf"\b{parameter}\b", str(refusal)) is not None


def _is_too_long(refusal: Refused) -> bool:
    """True if a refusal may be about the requested number of tokens, and not about the parameter itself."""
    said = str(refusal)
    if re.search(r"unsupported|unrecognized|unknown|not supported|not permitted|extra", said, re.IGNORECASE):
        return False
    return re.search(r"token|context", said, re.IGNORECASE) is not None


def _names_schema(refusal: Refused) -> bool:
    is_named = re.search(r"schema|grammar", str(refusal), re.IGNORECASE) is not None
    return is_named or _names(refusal, "response_format")


def _may_be_about_schema(refusal: Refused) -> bool:
    """True if a refusal is about a schema, or has another reason than a length: some endpoints name none."""
    is_length = re.search(r"token|context|length|too (?:long|large)", str(refusal), re.IGNORECASE) is not None
    return _names_schema(refusal) or not (is_length or isinstance(refusal, Breaks))


def _failed(name: str, refusal: Refused) -> EnvironmentUnavailable:
    return EnvironmentUnavailable(f"{name} failed: {refusal}")


_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str, int], Endpoint]] = WeakKeyDictionary()


def endpoint_of(where: str, model: str, key: str | None, first: Capabilities = Capabilities()) -> Endpoint:
    """The endpoint that all callers with this model and key share in the running event loop."""
    endpoints = _shared.setdefault(asyncio.get_running_loop(), {})
    name = (where, model, hash(key))
    if name not in endpoints:
        endpoints[name] = Endpoint(first)
    return endpoints[name]
