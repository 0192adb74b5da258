"""What one process holds of a running episode: its world, its lock and the calls under way. All of it can be lost."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from dataclasses import dataclass, field
from typing import Protocol

from dreamgym.environment import Environment
from dreamgym.replay.episode_store import Episode
from dreamgym.types import StepResult, StopReason, ToolCall, Transition

logger = logging.getLogger(__name__)

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""In JSON; what an agent spelled out as a backslash and more is text like any other."""


class Client(Protocol):
    """Whoever waits for an answer; a Starlette request is one."""

    async def is_disconnected(self) -> bool:
        """The answer would reach nobody."""


@dataclass(frozen=True)
class EpisodeAnswer:
    """What a call is answered with."""

    result: StepResult
    step: int
    """Steps taken so far."""
    uncounted: str = ""
    """Why this is no step: `refused`, `unavailable`, `ended` or `closed`; empty for a step."""

    @classmethod
    def refusal(
        cls, text: str, step: int, uncounted: str, *, terminated: bool = False, truncated: bool = False
    ) -> EpisodeAnswer:
        """The answer to a call that is no step."""
        said = StepResult(observation=text, is_error=True, terminated=terminated, truncated=truncated)
        return cls(said, step, uncounted)

    @property
    def text(self) -> str:
        """What the agent reads."""
        return self.result.observation


@dataclass
class EpisodeCall:
    """A call under way, and the clients that wait for it."""

    clients: list[Client]
    request_id: str | int | None = None
    cancelled: bool = False
    task: asyncio.Task[EpisodeAnswer] | None = None

    async def abandoned(self) -> bool:
        """No client is left to answer."""
        if self.cancelled:
            return True
        for client in self.clients:
            if not await client.is_disconnected():
                return False
        return True


@dataclass
class Live:
    """An episode in this process. `episode` is what the store held when we last looked."""

    episode: Episode
    environment: Environment | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: dict[str, EpisodeCall] = field(default_factory=dict)
    """By canonical action; the newest of several identical ones."""
    failures: int = 0
    """In a row."""
    is_shared: bool = False
    """Another process has served it too: what we hold may be old."""
    unconfirmed: Transition | None = None
    """A step that the store may have taken: it went away before it said so."""


def unstorable(action: ToolCall, canonical: str) -> str | None:
    """Why no step can be made of a call with this canonical text, whatever the tool would say; or None."""
    try:
        json.dumps(action.arguments, allow_nan=False)
    except ValueError:
        return "Input validation error: the arguments contain NaN or an infinite number, which are no JSON"
    if _NUL.search(canonical):
        return "Input validation error: the arguments contain a NUL character"
    try:
        canonical.encode()
    except UnicodeEncodeError:
        return "Input validation error: the arguments are no valid Unicode (a lone surrogate)"
    return None


def stop_reason_of(result: StepResult) -> StopReason | None:
    """Why the episode ends with this step, None where it goes on."""
    if result.terminated:
        return StopReason.TERMINATED
    if result.info.get("stop") == StopReason.OUT_OF_SUPPORT:
        return StopReason.OUT_OF_SUPPORT
    return StopReason.MAX_STEPS if result.truncated else None


async def close(environment: Environment) -> None:
    """Close a world that is not needed any more."""
    try:
        await environment.close()
    except Exception:  # a world that cannot be closed must not take the next episode with it
        logger.exception("an environment could not be closed")


def ended(episode: Episode) -> EpisodeAnswer:
    """The answer to a call that comes after the end."""
    by_limit = episode.stop_reason not in {StopReason.TERMINATED, StopReason.FINISHED}
    uncounted = "closed" if episode.stop_reason is StopReason.CLOSED else "ended"
    return EpisodeAnswer.refusal(
        "The session has ended.", episode.version, uncounted, terminated=not by_limit, truncated=by_limit
    )
