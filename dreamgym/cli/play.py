"""`dreamgym play`: one episode, printed so that a person can read it."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName, ModelName, PolicyUrl, Seed
from dreamgym.environment import load_spec
from dreamgym.episode import load_agent
from dreamgym.errors import InvalidInput
from dreamgym.runs.opening import Against, real_for, tasks_of
from dreamgym.runs.server_process import server
from dreamgym.types import Trajectory

WIDTH = 100


def play(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment, an agent, or file.py:function.")],
    against: Annotated[Against, typer.Option(help="Play the dream, or the real environment.")] = Against.DREAM,
    task: Annotated[str | None, typer.Option(help="Id of the task; default: the first of the split.")] = None,
    split: Annotated[str, typer.Option(help="Split of the tasks: train, dev or test.")] = "train",
    policy_url: PolicyUrl = None,
    model: ModelName = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Play one episode through the server and print it.

    Example: dreamgym play coin --agent langgraph --against dream --policy-url http://127.0.0.1:8000/v1
    """
    spec = load_spec(env)
    real = real_for(spec, against)
    tasks = tasks_of(spec, split, real)
    chosen = next((t for t in tasks if t.id == task), None) if task else tasks[0]
    if chosen is None:
        raise InvalidInput(f"unknown task {task!r}: the split {split!r} has {tasks[0].id} … {tasks[-1].id}")
    with server(env, against, model=model, dsn=dsn) as url:
        behaviour = real.behaviours.get(agent) if real is not None else None
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
        from dreamgym_client.playing import play_agent

        played = asyncio.run(play_agent(url, spec.name, load_agent(agent), policy_url, chosen, seed))
    typer.echo(render(played.trajectory, played.answer))


def render(trajectory: Trajectory, answer: str | None = None) -> str:
    """The text of an episode, for a person to read."""
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
