"""The in-memory state of a running episode: its environment, its lock and the calls under way. It may be lost."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import traceback
from dataclasses import dataclass, field
from typing import Protocol

from dreamgym.environment import Environment
from dreamgym.replay.episode_store import Episode
from dreamgym.types import StepResult, StopReason, Tier, ToolCall, Transition
from dreamgym_server.sources import AdmittedCall, Worlds

logger = logging.getLogger(__name__)

_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""A NUL character in JSON, but not an escaped backslash followed by the letters `u0000`."""


class Client(Protocol):
    """The client that waits for an answer, such as a Starlette request."""

    async def is_disconnected(self) -> bool:
        """True if the client has gone, so that an answer would reach nobody."""


@dataclass(frozen=True)
class EpisodeAnswer:
    """The answer to a tool call, and the progress of the episode."""

    result: StepResult
    step: int
    """Number of steps taken so far."""
    uncounted: str = ""
    """Why the call was not a step: `refused`, `unavailable`, `ended` or `closed`; empty for a step."""
    tier: Tier | None = field(default=None, compare=False)
    """The part of the system that answered; None if the call was not a step, or was the resend of a step."""
    confidence: float | None = field(default=None, compare=False)
    """Calibrated confidence of the answer; None if the call was not a step, or the answer was not calibrated."""

    @classmethod
    def refusal(
        cls, text: str, step: int, uncounted: str, *, terminated: bool = False, truncated: bool = False
    ) -> EpisodeAnswer:
        """The answer to a call that did not become a step."""
        said = StepResult(observation=text, is_error=True, terminated=terminated, truncated=truncated)
        return cls(said, step, uncounted)

    @property
    def text(self) -> str:
        """The observation as text, or the message to the agent."""
        return self.result.observation


@dataclass
class EpisodeCall:
    """A call under way, and the clients that wait for it."""

    admitted: AdmittedCall
    clients: list[Client]
    request_id: str | int | None = None
    cancelled: bool = False
    task: asyncio.Task[EpisodeAnswer] | None = None

    async def abandoned(self) -> bool:
        """True if all clients that waited for this call have gone."""
        if self.cancelled:
            return True
        for client in self.clients:
            if not await client.is_disconnected():
                return False
        return True


@dataclass
class Live:
    """An episode in this process. `episode` is a copy of the stored one, as of the last read."""

    episode: Episode
    environment: Environment | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    calls: dict[str, EpisodeCall] = field(default_factory=dict)
    """Key of a call to the call under way; of several identical calls, the newest."""
    failures: int = 0
    """Number of failed steps in a row."""
    broken_off: str = ""
    """Why the environment failed at the last call; empty if it did not. If the episode ends now, the end says nothing
    about the agent: without a verdict of success, the episode ends with an error and without a reward."""
    is_shared: bool = False
    """True if another process has served the episode too, so this copy may be old."""
    unconfirmed: Transition | None = None
    """A step that may or may not be stored, because the store failed before it answered."""


def unstorable(action: ToolCall, canonical: str) -> str | None:
    """Why a call with this canonical text cannot be stored as a step; None if it can."""
    if "NaN" in canonical or "Infinity" in canonical:
        try:
            json.dumps([action.arguments, action.answers], allow_nan=False)
        except ValueError:
            return "Input validation error: the arguments contain NaN or an infinite number, which JSON does not allow"
    if _NUL.search(canonical):
        return "Input validation error: the arguments contain a NUL character"
    try:
        canonical.encode()
    except UnicodeEncodeError:
        return "Input validation error: the arguments are not valid Unicode (a lone surrogate)"
    return None


def stop_reason_of(result: StepResult) -> StopReason | None:
    """Why the episode ends with this step; None if it goes on."""
    if result.terminated:
        return StopReason.TERMINATED
    if result.info.get("stop") == StopReason.OUT_OF_SUPPORT:
        return StopReason.OUT_OF_SUPPORT
    return StopReason.MAX_STEPS if result.truncated else None


def is_unrewarded(result: StepResult) -> bool:
    """True if the reward of a step is unknown: its end was left open, or a dream could not go on."""
    return result.info.get("open_end") is True or stop_reason_of(result) is StopReason.OUT_OF_SUPPORT


def timed(step: Transition, seconds: float) -> Transition:
    """The step with the time that its answer took."""
    origin = step.provenance.model_copy(update={"seconds": round(seconds, 4)})
    return step.model_copy(update={"provenance": origin})


async def close(environment: Environment, world: Worlds) -> None:
    """Close an environment that is no longer needed; log a failure, redacted by the environment's rules."""
    try:
        await environment.close()
    except Exception:  # noqa: BLE001  # a failure to close must not affect the next episode
        logger.error("an environment could not be closed: %s", world.admission.text(traceback.format_exc()))


def ended(episode: Episode) -> EpisodeAnswer:
    """The answer to a call that comes after the end of the episode."""
    by_limit = episode.stop_reason not in {StopReason.TERMINATED, StopReason.FINISHED}
    uncounted = "closed" if episode.stop_reason is StopReason.CLOSED else "ended"
    return EpisodeAnswer.refusal(
        "The session has ended.", episode.version, uncounted, terminated=not by_limit, truncated=by_limit
    )


def outcome_of(answer: EpisodeAnswer) -> dict[str, str | int | None]:
    """Outcome, tier and step of a call, for traces and metrics.

    The outcome is `step`, the reason why the call was not a step, or `resent` if the step was taken before.
    """
    outcome = answer.uncounted or ("resent" if answer.tier is None else "step")
    return {"outcome": outcome, "tier": answer.tier, "step": answer.step}
