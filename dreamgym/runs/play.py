"""Plays one episode through a server, and shows it as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import suppress

from dreamgym.environment import EnvironmentSpec, RealEnvironment, load_spec
from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.runs.opening import (
    SPLITS,
    Against,
    behaviour_or_agent,
    check_endpoint,
    check_model,
    dream_setting,
    dream_tasks,
    real_for,
    recorded_tasks,
    seeded,
    tasks_of,
)
from dreamgym.runs.server_process import server
from dreamgym.types import Task, Trajectory, Transition

WIDTH = 100


async def play(
    env: str,
    agent: str,
    against: Against = Against.DREAM,
    *,
    task: str | None = None,
    policy_url: str | None = None,
    model: str | None = None,
    dsn: str | None = None,
    seed: int = 0,
    keeps: bool = False,
) -> tuple[Trajectory, str | None]:
    """Play one episode. Return the trajectory and the agent's final answer, None for a behaviour.

    Args:
        env: the environment's name, or its folder. For a dream, new recordings in the folder are stored first.
        agent: a behaviour of the environment, or an agent as `load_agent` takes it.
        against: the dream or the real environment.
        task: id of the task, of any split; None: the first training task.
        policy_url: the chat completions endpoint behind an agent.
        model: the experience model of a dream.
        dsn: DSN of the store; None: the embedded server.
        seed: seed of the episode.
        keeps: store a real episode as a recording, from which dreams are made.

    Raises:
        InvalidInput: the task is unknown, an agent has no model, a model is given for the real environment, or `keeps`
            is set without the real environment.
    """
    if keeps and against is Against.DREAM:
        raise InvalidInput("--store is for --against real: episodes of a dream are never stored as recordings")
    dream_setting(model, against=against)
    # the server in another process takes nothing in
    spec = await seeded(env, dsn) if against is Against.DREAM else load_spec(env)
    real = real_for(env, spec, against)
    recorded = await recorded_tasks(spec, dsn) if against is Against.DREAM else ()
    chosen = tasks_of(spec, SPLITS[0], real, recorded)[0] if task is None else _named(task, spec, real, recorded)
    if against is Against.DREAM:
        (chosen,) = await dream_tasks(spec, [chosen], dsn)
    behaviour, playing = behaviour_or_agent(agent, real)
    if playing is not None:  # an agent that cannot play is refused before a server starts
        check_endpoint(playing, policy_url)
    if against is Against.DREAM:
        await check_model(model, spec)
    with server(env, against, model=model, dsn=dsn, extra=("--store",) if keeps else ()) as url:
        if behaviour is not None:
            from dreamgym_client.environment import RemoteEnvironment

            remote = RemoteEnvironment(url, spec.name)
            try:
                with suppress(EpisodeFinished):  # a step after the end changes nothing, as in `collect`
                    await behaviour(await remote.reset(chosen, seed=seed), remote, seed)
                return await remote.trajectory(), None
            finally:
                await remote.close()
        from dreamgym_client.playing import play_agent

        assert playing is not None
        played = await play_agent(url, spec.name, playing, policy_url, chosen, seed)
        return played.trajectory, played.answer


def _named(task: str, spec: EnvironmentSpec, real: RealEnvironment | None, recorded: Sequence[Task]) -> Task:
    """The task with this id, from any split."""
    seen = []
    for split in SPLITS:
        try:
            tasks = tasks_of(spec, split, real, recorded)
        except (InvalidInput, UnknownName):
            continue
        if (found := next((one for one in tasks if one.id == task), None)) is not None:
            return found
        seen.append(f"{split} has {tasks[0].id} … {tasks[-1].id}")
    raise InvalidInput(f"unknown task {task!r}: {', '.join(seen) or f'{spec.name!r} has none'}")


def render(trajectory: Trajectory, answer: str | None = None) -> str:
    """The text of an episode, for a person to read."""
    lines = rendered_steps(trajectory.task, trajectory.transitions)
    if answer:
        lines.append(f"answer {answer}")
    lines.append(f"end    {trajectory.end}")
    return "\n".join(lines)


def rendered_steps(task: Task, transitions: Sequence[Transition]) -> list[str]:
    """The lines of an episode without its end."""
    first = transitions[0].state if transitions else ""
    lines = [f"task   {task.instruction}", f"start  {task.initial_state or first}"]
    for number, transition in enumerate(transitions, start=1):
        arguments = ", ".join(f"{k}={v!r}" for k, v in transition.action.arguments.items())
        lines.append(f"{number:>4}.  {transition.action.name}({arguments})")
        shown = textwrap.wrap(transition.result.observation, WIDTH - 7) or [""]
        lines += [f"       {line}" for line in shown]
        lines[-1] += f"   [{transition.provenance.tier}]"
    return lines
