"""An agent, unchanged, at an episode of a server: it is told two URLs, and nothing else of ours.

Agents are other people's code: they may go on calling an ended episode, hang, or take no notice of being cancelled.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from dreamgym.episode import Agent, user_message
from dreamgym.errors import InvalidInput
from dreamgym.types import StepResult, StopReason, Task, Trajectory
from dreamgym_client.control import ControlClient, EpisodeState, Started

LOOK_EVERY_S = 1.0
PATIENCE_S = 20.0
"""How long an agent may still think once its episode is over."""
STOP_S = 10.0
"""How long an agent may take to clean up when it is stopped; then it is left alone."""


@dataclass(frozen=True)
class Played:
    """One episode of an agent."""

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
    """Let an agent play one task through the server. Raises InvalidInput where it has no model to ask.

    What an agent raises is raised; with `keeps_failures` its episode is returned, marked as failed.
    """
    if policy_url is None:
        raise InvalidInput("an agent needs a chat model: name its endpoint with --policy-url or OPENAI_BASE_URL")
    async with ControlClient(url) as control:
        episode = await control.create(env, task=task, seed=seed)
        playing = begin(agent, episode, policy_url)
        try:
            answer = await _until_over(playing, control, env, episode.episode)
        except Exception as error:  # an agent is other people's code: whatever it raises is its episode's end
            if not keeps_failures:
                raise
            ended = await control.finish(env, episode.episode, success=False)
            return Played(_failed(ended, error), "")
        finally:
            await stop(playing)
        ended = await control.finish(env, episode.episode, answer=answer)
        assert ended.trajectory is not None, "a finished episode has a trajectory"
        return Played(ended.trajectory, answer)


def _failed(ended: EpisodeState, cause: BaseException) -> Trajectory:
    while isinstance(cause, BaseExceptionGroup):  # of a task group around the agent's own tasks
        cause = cause.exceptions[0]
    assert ended.trajectory is not None, "a finished episode has a trajectory"
    if ended.stop_reason is not StopReason.FINISHED:  # it was over by itself before the agent failed
        return ended.trajectory
    failed = {"stop_reason": StopReason.ERROR, "final_reward": None, "error": f"{type(cause).__name__}: {cause}"}
    return ended.trajectory.model_copy(update=failed)


def begin(agent: Agent, episode: Started, policy_url: str) -> asyncio.Future[str]:
    """Set an agent to work on an episode that was just started."""
    first = StepResult(observation=episode.observation)

    async def work() -> str:
        try:
            return await agent(user_message(episode.task, first), episode.mcp_url, policy_url)
        except SystemExit as error:  # in a task it would end the whole process
            raise RuntimeError(f"the agent called sys.exit({error.code})") from error

    return asyncio.create_task(work())


async def stop(playing: asyncio.Future[str]) -> None:
    """Make an agent end, if it has not; one that takes no notice is left alone."""
    if not playing.done():
        playing.cancel()
        await asyncio.wait([playing], timeout=STOP_S)
    if playing.done() and not playing.cancelled():
        playing.exception()  # asked for, so that asyncio does not report it as forgotten


async def _until_over(playing: asyncio.Future[str], control: ControlClient, env: str, episode: str) -> str:
    """The agent's answer; an agent that goes on calling an ended episode is stopped after some patience."""
    while not playing.done():
        await asyncio.wait([playing], timeout=LOOK_EVERY_S)
        if not playing.done() and (await control.read(env, episode)).stop_reason is not None:
            await asyncio.wait([playing], timeout=PATIENCE_S)
            break
    return playing.result() if playing.done() else ""
