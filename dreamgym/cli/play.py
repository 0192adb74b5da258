"""`dreamgym play`: one episode, printed so that a person can read it."""

from __future__ import annotations

import asyncio
import textwrap
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from dreamgym.cli.wiring import Against, Dsn, EnvName, ModelName, PolicyUrl, Seed, server, tasks_of
from dreamgym.environment import behaviours_of, load_spec
from dreamgym.episode import Agent, load_agent, user_message
from dreamgym.errors import InvalidInput
from dreamgym.types import StepResult, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym_client.control import ControlClient

WIDTH = 100
LOOK_EVERY_S = 1.0
PATIENCE_S = 20.0
"""How long an agent may still think once its episode is over."""


@dataclass(frozen=True)
class Played:
    """One episode of an agent."""

    trajectory: Trajectory
    answer: str


def play(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment, an agent, or file.py:function.")],
    against: Annotated[Against, typer.Option(help="Play the dream, or the real environment.")] = Against.DREAM,
    task: Annotated[str | None, typer.Option(help="Id of the task; default: the first of the split.")] = None,
    split: Annotated[str, typer.Option(help="Whose tasks are meant.")] = "train",
    policy_url: PolicyUrl = None,
    model: ModelName = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Play one episode through the server and print it.

    Example: dreamgym play coin --agent langgraph --against dream --policy-url http://127.0.0.1:8000/v1
    """
    spec = load_spec(env)
    tasks = tasks_of(spec, split)
    chosen = next((t for t in tasks if t.id == task), None) if task else tasks[0]
    if chosen is None:
        raise InvalidInput(f"unknown task {task!r}: the split {split!r} has {tasks[0].id} … {tasks[-1].id}")
    with server(env, against, model=model, dsn=dsn) as url:
        behaviour = behaviours_of(spec).get(agent)
        if behaviour is not None:
            from dreamgym_client.environment import RemoteEnvironment

            async def run() -> Trajectory:
                remote = RemoteEnvironment(url, spec.name)
                await behaviour(await remote.reset(chosen, seed=seed), remote, seed)
                trajectory = await remote.trajectory()
                await remote.close()
                return trajectory

            typer.echo(render(asyncio.run(run())))
            return
        played = asyncio.run(play_agent(url, spec.name, load_agent(agent), policy_url, chosen, seed))
    typer.echo(render(played.trajectory, played.answer))


async def play_agent(url: str, env: str, agent: Agent, policy_url: str | None, task: Task, seed: int) -> Played:
    """Let an agent play one task through the server; it is told the episode's URL and nothing else of ours."""
    from dreamgym_client.control import ControlClient

    if policy_url is None:
        raise InvalidInput("an agent needs a chat model: name its endpoint with --policy-url or OPENAI_BASE_URL")
    async with ControlClient(url) as control:
        episode = await control.create(env, task=task, seed=seed)
        first = StepResult(observation=episode.observation)
        playing = asyncio.ensure_future(agent(user_message(episode.task, first), episode.mcp_url, policy_url))
        answer = await _until_over(playing, control, env, episode.episode)
        ended = await control.finish(env, episode.episode, answer=answer)
        assert ended.trajectory is not None, "a finished episode has a trajectory"
        return Played(ended.trajectory, answer)


async def _until_over(playing: asyncio.Future[str], control: ControlClient, env: str, episode: str) -> str:
    """The agent's answer; an agent that goes on calling an ended episode is stopped after some patience."""
    while not playing.done():
        await asyncio.wait([playing], timeout=LOOK_EVERY_S)
        if not playing.done() and (await control.read(env, episode)).stop_reason is not None:
            await asyncio.wait([playing], timeout=PATIENCE_S)
            break
    if not playing.done():
        playing.cancel()
        with suppress(asyncio.CancelledError):
            await playing
        return ""
    return playing.result()


def render(trajectory: Trajectory, answer: str | None = None) -> str:
    """An episode as a person reads it."""
    lines = [f"task   {trajectory.task.instruction}", f"start  {trajectory.task.initial_state or ''}"]
    for number, transition in enumerate(trajectory.transitions, start=1):
        arguments = ", ".join(f"{k}={v!r}" for k, v in transition.action.arguments.items())
        lines.append(f"{number:>4}.  {transition.action.name}({arguments})")
        shown = textwrap.wrap(transition.result.observation, WIDTH - 7) or [""]
        lines += [f"       {line}" for line in shown]
        lines[-1] += f"   [{transition.provenance.tier}]"
    if answer:
        lines.append(f"answer {answer}")
    lines.append(f"end    {trajectory.stop_reason}, reward {trajectory.total_reward:g}")
    return "\n".join(lines)
