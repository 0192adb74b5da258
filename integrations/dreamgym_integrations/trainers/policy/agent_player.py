"""Plays a policy's episodes through the user's own agent, which needs no change.

The agent gets the URLs of its episode and of the policy, as usual. An agent that crashes or hangs ends only its own
episode; one that blocks the event loop, such as by `time.sleep`, stops all of them.

A crash of the agent is blamed on the policy if the policy had answered, and its endpoint and the environment had
answered every request. The episode then keeps the reward that it had earned, and is learned from. Any other failure
leaves it without a reward: a crash before the policy's first answer, a refused request, an unavailable environment, an
agent that hung, a failure of the network or a file.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress

from dreamgym_client.control import ControlClient, EpisodeState, Started
from dreamgym_client.playing import begin, stop

from dreamgym.episode import Agent
from dreamgym.errors import DreamGymError
from dreamgym.redaction import Redact
from dreamgym.training.rollout import Policy, Rollout, draw_seed
from dreamgym.types import StopReason, Task
from dreamgym_integrations.trainers.policy.conversation import SpokenCodec
from dreamgym_integrations.trainers.policy.endpoint import PolicyEndpoint, PolicySession

logger = logging.getLogger(__name__)

LIMIT_S = 3_600.0
"""Seconds after which an agent is stopped."""
FAILED = frozenset({StopReason.ERROR, StopReason.CLOSED})
"""Stop reasons of episodes whose reward is unknown."""
UNAVAILABLE = (
    "The environment is currently unavailable",
    "The environment did not answer",
    "Server returned an error response",
    "Unexpected content type",
    "Connection closed",
)
"""Beginnings of a server's answer to a call that failed, and what the MCP SDK says of an error status, a page of a
proxy or a lost connection. The error of an agent that crashes over it quotes it."""
NETWORK = frozenset({"aiohttp", "httpcore", "httpcore2", "httpx", "httpx2"})
"""Packages whose exceptions are failures of the network."""


class AgentFailed(Exception):
    """An agent crashed or hung; the message is the episode's error."""

    def __init__(self, message: str, steps: int) -> None:
        super().__init__(message)
        self.steps = steps
        """Number of steps that it had taken."""


class AgentPlayer:
    """A `Player` around any `async (task, mcp_url, policy_url) -> answer`.

    Args:
        agent: as `load_agent` finds it.
        policy: the policy; its weights may change from one `play` to the next.
        codec: codec of the policy.
        url: address of the environment's server, with its token; the agent gets only the URL of its episode.
        env: name of the environment on that server.
        limit_s: an agent that takes longer is stopped.
        redact: redacts the texts of the agent's exceptions by the environment's rules; None if it has none.
    """

    def __init__(
        self,
        agent: Agent,
        policy: Policy,
        codec: SpokenCodec,
        *,
        url: str,
        env: str,
        limit_s: float = LIMIT_S,
        redact: Redact | None = None,
    ) -> None:
        self._agent, self._policy, self._codec = agent, policy, codec
        self._url, self._env = url, env
        self._limit_s, self._redact = limit_s, redact
        self._logged: set[str] = set()
        """Kinds of crashes that the policy caused; each is logged once."""

    async def play(
        self,
        tasks: Sequence[Task],
        *,
        groups: Sequence[str],
        seeds: Sequence[int],
        version: int,
        sampling_seed: int,
        first: int = 0,
    ) -> list[Rollout]:
        """Play all episodes at once. Raises the policy's own error; any other failure is in the rollouts.

        `first` is the number of the first episode. Episodes from that number on are sampled as they would be among all.
        """
        endpoint = PolicyEndpoint(self._policy, self._codec)
        async with endpoint, ControlClient(self._url) as control, asyncio.TaskGroup() as playing:
            playing_B = [
                playing.create_task(
                    self._played(control, endpoint, task, (group, seed, version), draw_seed(sampling_seed, i))
                )
                for i, (task, group, seed) in enumerate(zip(tasks, groups, seeds, strict=True), start=first)
            ]
        if endpoint.failure is not None:
            raise endpoint.failure
        return [one.result() for one in playing_B]

    async def _played(
        self,
        control: ControlClient,
        endpoint: PolicyEndpoint,
        task: Task,
        order: tuple[str, int, int],
        sampling_seed: int,
    ) -> Rollout:
        group, seed, version = order
        episode = ""

        async def is_over() -> bool:
            return (await control.read(self._env, episode)).stop_reason is not None

        # all sessions are open before the first agent asks, so that the first batch waits for all of them
        session = endpoint.open(seed=sampling_seed, is_over=is_over)
        rollout = Rollout(task, session.conversations.segments)
        try:
            started = await control.create(self._env, task=task, seed=seed, group=group or None, policy_version=version)
            episode = started.episode
            state = await self._ended(control, started, session)
        except AgentFailed as failure:
            rollout.error = str(failure)
            rollout.actions = [""] * failure.steps
        except DreamGymError as failure:
            rollout.error = f"{type(failure).__name__}: {failure}"
            with suppress(DreamGymError):  # the server may still fail
                if episode:
                    rollout.actions = [""] * (await control.read(self._env, episode)).step
                    await control.delete(self._env, episode)
        else:
            _fill(rollout, state)
            rollout.unheard = session.conversations.unheard
            if session.conversations.last is not None and state.reward is not None:
                session.conversations.last.reward(state.reward)
        finally:
            endpoint.close(session)
        return rollout

    async def _ended(self, control: ControlClient, started: Started, session: PolicySession) -> EpisodeState:
        """Run the agent; return the final state of the episode. Raises AgentFailed if its reward is unknown."""
        playing = begin(self._agent, started, session.url)
        try:
            await asyncio.wait([playing], timeout=self._limit_s)
            failure = self._failure_of(playing)
            crash = playing.exception() if playing.done() and not playing.cancelled() else None
        finally:
            await stop(playing)
        if failure is None:
            return await control.finish(self._env, started.episode, answer=playing.result())
        state = await control.read(self._env, started.episode)
        if state.stop_reason is not None:
            return state  # whatever an agent does after the end of its episode does not change the episode
        if crash is not None and _caused_by_policy(crash, session):
            if (kind := type(crash).__name__) not in self._logged:
                self._logged.add(kind)
                logger.warning(
                    "%s; only the policy's answers can have caused this, so such episodes count as failures and keep "
                    "the rewards of their steps",
                    failure,
                )
            return await control.finish(self._env, started.episode, success=False)
        await control.delete(self._env, started.episode)
        raise AgentFailed(failure, state.step)

    def _failure_of(self, playing: asyncio.Future[str]) -> str | None:
        if not playing.done():
            return f"the agent was stopped after {self._limit_s:g} s, before its episode was over"
        if playing.cancelled():
            return "the agent was cancelled before its episode was over"
        error: BaseException | None = playing.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        if error is None:
            return None
        text = str(error) if self._redact is None else str(self._redact(str(error)))
        reason = (text.strip().splitlines() or [""])[0]
        return f"the agent failed before its episode was over: {type(error).__name__}: {reason}"


def _caused_by_policy(crash: BaseException, session: PolicySession) -> bool:
    """True if only the policy's answers can have crashed the agent."""
    # The reward of such an episode is learned from, so every other cause of the crash must be ruled out, or the policy
    # is punished for it: no answer was given yet, a request was refused, a file or the network failed, or the
    # environment was unavailable. The last is recognised by its text, since clients raise types of their own for it.
    if session.conversations.last is None or session.failed:
        return False
    return not any(
        isinstance(error, OSError | DreamGymError)
        or type(error).__module__.partition(".")[0] in NETWORK
        or any(text in str(error) for text in UNAVAILABLE)
        for error in _with_causes(crash)
    )


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield the exception, those that it was raised from, and those in its group."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def seed_of_answer(sampling_seed: int, episode: int, number: int) -> int:
    """Sampling seed of answer `number` in episode `episode` of those that begin together."""
    return draw_seed(draw_seed(sampling_seed, episode), number)


def _fill(rollout: Rollout, state: EpisodeState) -> None:
    """Copy the server's record of the episode into the rollout."""
    trajectory = state.trajectory
    assert trajectory is not None, "a finished episode has a trajectory"
    rollout.total_reward, rollout.is_unjudged = state.reward or 0.0, state.reward is None
    rollout.success = trajectory.success
    rollout.actions = [transition.action.canonical() for transition in trajectory.transitions]
    rollout.refused = sum(transition.result.is_error for transition in trajectory.transitions)
    known = [transition.provenance.confidence for transition in trajectory.transitions]
    rollout.confidence = min((one for one in known if one is not None), default=None)
    if trajectory.stop_reason in FAILED:
        rollout.error = trajectory.error or "the server closed the episode before the agent was done"
