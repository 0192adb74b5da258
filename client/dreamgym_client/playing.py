"""Lets an unchanged agent play an episode on a server. The agent gets two URLs: MCP and its policy.

Agents are other people's code. They may go on calling an ended episode, hang, or ignore their cancellation.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from dreamgym.episode import Agent, check_policy_url, user_message
from dreamgym.errors import DreamGymError, EnvironmentUnavailable
from dreamgym.types import StepResult, StopReason, Task, Trajectory
from dreamgym_client.control import ControlClient, EpisodeState, Started

LOOK_EVERY_S = 1.0
PATIENCE_S = 20.0
"""Seconds that an agent may go on after its episode is over."""
STOP_S = 10.0
"""Seconds that a stopped agent may take to clean up; after that it is left to itself."""


@dataclass(frozen=True)
class Played:
    """One episode of an agent: its trajectory and its final answer."""

    trajectory: Trajectory
    answer: str


async def play_agent(
    url: str,
    env: str,
    agent: Agent,
    policy_url: str | None,
    task: Task,
    seed: int,
    *,
    keeps_failures: bool = False,
) -> Played:
    """Let an agent play one task through the server. Raises InvalidInput if it needs a model and there is none.

    After an agent's exception, the episode is finished without success and the exception raised. If the server fails,
    or this call is cancelled, the episode is closed with an unknown reward. With `keeps_failures`, the episode is
    returned instead after a failure, marked as failed.
    """
    model_url = check_policy_url(agent, policy_url)
    async with ControlClient(url) as control:
        episode = await control.create(env, task=task, seed=seed)
        playing = begin(agent, episode, model_url)
        try:
            answer = await _until_over(playing, control, env, episode.episode)
            ended = await control.finish(env, episode.episode, answer=answer)
        except Exception as error:  # an agent is other people's code: any error of it ends its episode
            if isinstance(error, EnvironmentUnavailable) and not keeps_failures:
                with suppress(DreamGymError):  # the server may still fail
                    await control.delete(env, episode.episode)
                raise
            ended = await control.finish(env, episode.episode, success=False)
            if not keeps_failures:
                raise
            return Played(_failed(ended, error), "")
        except asyncio.CancelledError:  # else the episode would count as open until it was idle for long
            with suppress(DreamGymError, TimeoutError):
                async with asyncio.timeout(STOP_S):
                    await control.delete(env, episode.episode)
            raise
        finally:
            await stop(playing)
        assert ended.trajectory is not None, "a finished episode has a trajectory"
        return Played(ended.trajectory, answer)


def _failed(ended: EpisodeState, cause: BaseException) -> Trajectory:
    while isinstance(cause, BaseExceptionGroup):  # raised by a task group around the agent's own tasks
        cause = cause.exceptions[0]
    assert ended.trajectory is not None, "a finished episode has a trajectory"
    if ended.stop_reason is not StopReason.FINISHED:  # it was over by itself before the agent failed
        return ended.trajectory
    failed = {"stop_reason": StopReason.ERROR, "final_reward": None, "error": f"{type(cause).__name__}: {cause}"}
    return ended.trajectory.model_copy(update=failed)


def begin(agent: Agent, episode: Started, policy_url: str) -> asyncio.Task[str]:
    """Start an agent on a new episode, in a task of its own. Its result is the answer as text, empty for None."""
    first = StepResult(observation=episode.observation)

    async def work() -> str:
        try:
            answer: object = await agent(user_message(episode.task, first), episode.mcp_url, policy_url)
        except SystemExit as error:  # in a task it would end the whole process
            raise RuntimeError(f"the agent called sys.exit({error.code})") from error
        return "" if answer is None else str(answer)

    return asyncio.create_task(work())


async def stop(playing: asyncio.Task[str]) -> None:
    """Cancel an agent that has not ended. One that ignores this for STOP_S seconds is left to itself."""
    if not playing.done():
        playing.cancel()
        await asyncio.wait([playing], timeout=STOP_S)
    if not playing.done():
        asyncio.tasks._unregister_task(playing)  # or the end of the event loop would wait for it
    if playing.done() and not playing.cancelled():
        playing.exception()  # retrieved, so that asyncio does not report it as lost


async def _until_over(playing: asyncio.Future[str], control: ControlClient, env: str, episode: str) -> str:
    """The agent's answer. An agent that goes on after the end of its episode is stopped after PATIENCE_S seconds."""
    while not playing.done():
        await asyncio.wait([playing], timeout=LOOK_EVERY_S)
        if not playing.done() and (await control.read(env, episode)).stop_reason is not None:
            await asyncio.wait([playing], timeout=PATIENCE_S)
            break
    if playing.cancelled():  # an agent may raise a cancellation of its own; it must not cancel who plays the episode
        raise RuntimeError("the agent was cancelled before its episode was over")
    return playing.result() if playing.done() else ""
