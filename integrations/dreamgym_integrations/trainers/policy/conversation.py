"""An agent's conversations with its policy as segments of tokens.

A request that continues a conversation is recognised by its content, in whatever form the client sends it. The segment
then grows by the tokens of the new messages, and nothing in it is encoded twice. A request that continues no
conversation begins a segment. One that goes back to an earlier answer begins a segment with the tokens up to it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.schema import with_whole_numbers
from dreamgym.training.rollout import Generation, Segment
from dreamgym.types import JsonObject
from dreamgym_integrations.models.chat_server import Reply
from dreamgym_integrations.trainers.policy.tool_call_format import (
    calls_nobody_can_run,
    check_tools,
    reply_of,
    without_tool_calls,
)

ROLES = {"developer": "system", "function": "tool"}


class ConversationCodec(Protocol):
    """Turns messages into tokens and tokens into words; `ChatCodec` is one."""

    @property
    def knows_tools(self) -> bool:
        """True if the policy can be shown tools, and calls them as `<tool_call>{JSON}</tool_call>`."""

    def conversation(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> list[int]:
        """The tokens of a whole conversation, up to where the policy speaks next. Raises InvalidInput."""

    def added(self, messages: Sequence[JsonObject], *, ended: bool) -> list[int]:
        """The tokens of the messages since the policy's last turn, which it closed if `ended`. Raises InvalidInput."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the policy's tokens, without special tokens."""

    def ended(self, ids: Sequence[int]) -> bool:
        """True if the policy closed its turn with the end-of-turn token."""


class SpokenCodec(Protocol):
    """The codec of any policy that can be served; it makes the conversations of an episode."""

    @property
    def max_tokens(self) -> int:
        """Number of tokens at which a conversation is over."""

    def conversations(self) -> EpisodeConversations:
        """Begin the conversations of an episode."""

    def ended(self, ids: Sequence[int]) -> bool:
        """True if the policy closed its turn with the end-of-turn token."""


@dataclass(frozen=True)
class _Turn:
    """An answer of the policy, as a place from which a conversation can continue."""

    segment: Segment
    length: int
    """Tokens of the segment up to the end of the answer."""
    ended: bool

    @property
    def last(self) -> bool:
        return len(self.segment.prompt_ids) + len(self.segment.completion_ids) == self.length


@dataclass(frozen=True)
class Prompt:
    """A request as tokens."""

    ids: list[int]
    tools: Sequence[JsonObject]


@dataclass(frozen=True)
class _Placed(Prompt):
    """A request with its place among the conversations."""

    key: bytes
    """Key of the whole conversation up to here."""
    since: _Turn | None
    """The policy's answer that this request continues, if it continues one."""


class EpisodeConversations(Protocol):
    """All conversations of one episode with a policy, as its endpoint keeps them."""

    segments: list[Segment]
    """The segments, in the order in which they begin."""
    last: Segment | None
    """The segment that the policy spoke in last."""
    unheard: int
    """Number of calls that could not be run."""

    def prompt(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> Prompt:
        """A request as tokens. Raises InvalidInput if the policy cannot read it."""

    def record(self, prompt: Prompt, sampled: Generation) -> Reply:
        """Keep what the policy sampled, and return it as the reply to the request, which `prompt()` returned."""


class Conversations:
    """The conversations of a policy that reads all messages, see `EpisodeConversations`.

    Args:
        codec: codec of the policy.
    """

    def __init__(self, codec: ConversationCodec) -> None:
        self._codec = codec
        self._turns: dict[bytes, _Turn] = {}
        self._numbers = itertools.count(1)
        self.segments: list[Segment] = []
        self.last: Segment | None = None
        self.unheard = 0

    def prompt(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> Prompt:
        """A request as tokens. Raises InvalidInput if the policy cannot read it."""
        check_tools(tools, knows_tools=self._codec.knows_tools)
        plain = [plain_message(message) for message in messages]
        shown = plain if self._codec.knows_tools else without_tool_calls(plain)
        keys = list(_keys(plain, tools))
        for n in range(len(plain) - 1, 0, -1):
            if plain[n]["role"] == "assistant":
                break
            turn = self._turns.get(keys[n])
            if turn is not None:
                heard = self._codec.added(shown[n:], ended=turn.ended)
                return _Placed(turn.segment.ids[: turn.length] + heard, tools, keys[-1], turn)
        return _Placed(self._codec.conversation(shown, tools), tools, keys[-1], None)

    def record(self, prompt: Prompt, sampled: Generation) -> Reply:
        """Keep what the policy sampled, and return it as the reply to the request."""
        assert isinstance(prompt, _Placed), "these conversations made it"
        turn = prompt.since
        if turn is not None and turn.last:
            segment = turn.segment
            segment.hear(prompt.ids[turn.length :])
        else:
            segment = Segment(prompt.ids)
            self.segments.append(segment)
        segment.say(sampled, next(self._numbers))
        self.last = segment
        words = self._codec.decode(sampled.ids)
        reply = reply_of(words, prompt.tools, knows_tools=self._codec.knows_tools)
        self.unheard += calls_nobody_can_run(words, reply, prompt.tools)
        calls: list[JsonValue] = [
            {"function": {"name": call.name, "arguments": {**call.arguments}}} for call in reply.tool_calls
        ]
        key = _key(prompt.key, plain_message({"role": "assistant", "content": reply.text, "tool_calls": calls}))
        self._turns[key] = _Turn(segment, len(segment.ids), self._codec.ended(sampled.ids))
        return reply


def plain_message(message: JsonObject) -> JsonObject:
    """A message as chat templates expect it: known role, text as content, arguments as an object; nothing else."""
    role = ROLES.get(str(message.get("role")), message.get("role"))
    if not isinstance(role, str) or role not in {"system", "user", "assistant", "tool"}:
        raise InvalidInput(f"expected a message of system, user, assistant or tool, got role {role!r}")
    plain: JsonObject = {"role": role, "content": _text(message.get("content"))}
    calls = message.get("tool_calls")
    if role == "assistant" and isinstance(calls, list) and calls:
        plain["tool_calls"] = [_call(call) for call in calls]
    return plain


def _text(content: JsonValue) -> str:
    """A message's text, which some clients send in parts and some leave out."""
    if not isinstance(content, list):
        return "" if content is None else str(content)
    texts = []
    for part in content:
        text = part.get("text") if isinstance(part, dict) else part
        if not isinstance(text, str):
            kind = part.get("type") if isinstance(part, dict) else part
            raise InvalidInput(f"expected text, got a part of type {kind!r}: the policy reads nothing else")
        texts.append(text)
    return "".join(texts)


def _call(call: JsonValue) -> JsonObject:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise InvalidInput("expected each of 'tool_calls' to have a 'function'")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):  # text that is not JSON is shown to the policy as it is
            value = json.loads(arguments or "{}")
            json.dumps(value, ensure_ascii=False).encode()  # raises for half a surrogate pair, which has no tokens
            arguments = value
    return {"type": "function", "function": {"name": function.get("name"), "arguments": arguments or {}}}


def _keys(messages: Sequence[JsonObject], tools: Sequence[JsonObject]) -> Iterator[bytes]:
    """Yield the key of each beginning of a conversation, from no message to all."""
    key = _digest(json.dumps(tools, sort_keys=True).encode())
    yield key
    for message in messages:
        key = _key(key, message)
        yield key


def _key(before: bytes, message: JsonObject) -> bytes:
    """The key after one more message; equal content has equal keys.

    An empty turn of the assistant, which some clients leave out, does not change the key.
    """
    content = str(message["content"]).strip()
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and not content and not calls:
        return before
    # JavaScript writes 1.0 as 1
    said = json.dumps([message["role"], content, with_whole_numbers(calls)], sort_keys=True)
    return _digest(before + said.encode())


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
