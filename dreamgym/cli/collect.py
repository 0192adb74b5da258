"""`dreamgym collect`: play an environment with a behaviour or an agent, and keep what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.wiring import (
    Against,
    Dsn,
    EnvName,
    ModelName,
    PolicyUrl,
    Seed,
    environment_maker,
    opened_store,
    say,
    server,
    tasks_of,
)
from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, behaviours_of, load_spec
from dreamgym.episode import load_agent, play
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.types import Source, Task, Trajectory

WORKERS = 4
BATCH = 500


def collect(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment (expert, random, …) or an agent.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes; tasks are taken in turn.")],
    against: Annotated[Against, typer.Option(help="Play the real environment, or a dream of it.")] = Against.REAL,
    out: Annotated[Path | None, typer.Option(help="Write JSONL here instead of storing in the buffer.")] = None,
    split: Annotated[str, typer.Option(help="Whose tasks are played.")] = "train",
    policy_url: PolicyUrl = None,
    model: ModelName = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Play an environment and store what happened.

    Example: dreamgym collect coin --against real --agent mixed --episodes 4000
    """
    spec = load_spec(env)
    tasks = tasks_of(spec, split)
    source = Source.REAL if against is Against.REAL else Source.SYNTHETIC
    behaviour = behaviours_of(spec).get(agent)

    async def run() -> None:
        from dreamgym.experience.select import load_model

        async with opened_store(dsn) as store:
            if behaviour is None:
                with server(env, against, model=model, dsn=store.dsn) as url:
                    played = play_agents(url, spec.name, agent, policy_url, tasks, episodes, seed)
                    await _keep(played, episodes, out, None)
                return
            chosen = load_model(model, env=spec.name) if against is Against.DREAM else None
            make = environment_maker(spec, against, chosen, store.buffer)
            played = play_behaviour(spec, make, behaviour, tasks, episodes, seed=seed, source=source)
            await _keep(played, episodes, out, store.buffer)

    asyncio.run(run())


async def play_behaviour(
    spec: EnvironmentSpec,
    make_environment: Callable[[], Environment],
    behaviour: Behaviour,
    tasks: Sequence[Task],
    episodes: int,
    *,
    seed: int,
    source: Source,
) -> AsyncIterator[Trajectory]:
    """Play `episodes` episodes, a few at a time, in the order of the tasks; episode i is seeded with seed + i."""
    environments = [make_environment() for _ in range(min(WORKERS, episodes))]
    try:
        for start in range(0, episodes, len(environments)):
            numbers = range(start, min(episodes, start + len(environments)))
            batch = await asyncio.gather(
                *(
                    play(
                        environments[i - start],
                        tasks[i % len(tasks)],
                        behaviour,
                        spec=spec,
                        seed=seed + i,
                        source=source,
                    )
                    for i in numbers
                )
            )
            for trajectory in batch:
                yield trajectory
    finally:
        for environment in environments:
            await environment.close()


async def play_agents(
    url: str, env: str, agent: str, policy_url: str | None, tasks: Sequence[Task], episodes: int, seed: int
) -> AsyncIterator[Trajectory]:
    """Let an agent play through the server, which stores the episodes itself."""
    from dreamgym_client.playing import play_agent

    loaded = load_agent(agent)
    for i in range(episodes):
        yield (await play_agent(url, env, loaded, policy_url, tasks[i % len(tasks)], seed + i)).trajectory


async def _keep(
    played: AsyncIterator[Trajectory], episodes: int, out: Path | None, buffer: ReplayBuffer | None
) -> None:
    """Write batch by batch, so that what was played is kept when the rest fails."""
    batch: list[Trajectory] = []
    done = won = 0
    if out is not None:
        out.write_text("", encoding="utf-8")
    async for trajectory in played:
        batch.append(trajectory)
        done, won = done + 1, won + trajectory.success
        if len(batch) < BATCH and done < episodes:
            continue
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.writelines(line.model_dump_json() + "\n" for line in batch)
        elif buffer is not None:
            await buffer.add(batch)
        batch = []
        say(f"{done} of {episodes} episodes, {won / done:.0%} successful")
