"""`dreamgym collect`: play an environment with a behaviour or an agent, and keep what happened."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName, ModelName, PolicyUrl, Seed
from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, load_spec
from dreamgym.episode import Agent, load_agent, play
from dreamgym.errors import InvalidInput
from dreamgym.runs.opening import Against, open_store, open_worlds, real_for, served, tasks_of
from dreamgym.runs.play_many import Collection, InBuffer, InFile, Kept, Planned, Play, plan
from dreamgym.runs.versions import version_of
from dreamgym.types import Source, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym_server.worlds import Worlds

    from dreamgym.replay.postgres import Store

WORKERS = 4


def collect(
    env: EnvName,
    agent: Annotated[str, typer.Option(help="A behaviour of the environment (expert, random, …) or an agent.")],
    episodes: Annotated[int, typer.Option(min=1, help="How many episodes; tasks are taken in turn.")],
    against: Annotated[Against, typer.Option(help="Play the real environment, or a dream of it.")] = Against.REAL,
    out: Annotated[Path | None, typer.Option(help="Write JSONL here instead of storing in the buffer.")] = None,
    split: Annotated[str, typer.Option(help="Whose tasks are played.")] = "train",
    workers: Annotated[int, typer.Option(min=1, help="How many episodes are played at once.")] = WORKERS,
    policy_url: PolicyUrl = None,
    model: ModelName = None,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Play an environment and keep what happened. The same command again goes on with what is not there yet.

    Each episode is kept as soon as it is over; one that fails is named, and the others go on.

    Example: dreamgym collect coin --against real --agent mixed --episodes 4000 --workers 8
    """
    spec = load_spec(env)
    real = real_for(spec, against)
    tasks = tasks_of(spec, split, real)
    behaviour = real.behaviours.get(agent) if real is not None else None
    loaded = load_agent(agent) if behaviour is None else None
    if loaded is not None and policy_url is None:
        raise InvalidInput("an agent needs a chat model: name its endpoint with --policy-url or OPENAI_BASE_URL")
    setting = [str(against), str(spec.options), str(spec.max_steps)]
    setting += [str(model)] if against is Against.DREAM else []
    setting += [str(policy_url)] if loaded is not None else []
    planned = plan(agent, "\0".join(setting), tasks, episodes, seed)

    async def run() -> None:
        async with AsyncExitStack() as stack:
            store = None
            if out is None or against is Against.DREAM:
                store = await stack.enter_async_context(open_store(dsn))
            worlds = await stack.enter_async_context(open_worlds(spec, against, model=model, store=store))
            version = version_of(spec) if against is Against.REAL else None
            players: Sequence[Play]
            if loaded is not None and policy_url is not None:
                url = await stack.enter_async_context(served(worlds))
                players = [_agent_player(url, spec.name, loaded, policy_url)] * min(workers, episodes)
            else:
                assert behaviour is not None, "an agent has a model, as was checked"
                own = [BehaviourPlayer(worlds, behaviour) for _ in range(min(workers, episodes))]
                for player in own:
                    stack.push_async_callback(player.close)
                players = own
            kept = await _kept(out, store, spec, against)
            await Collection(planned, kept, version=version).run(players)

    asyncio.run(run())


async def _kept(out: Path | None, store: Store | None, spec: EnvironmentSpec, against: Against) -> Kept:
    if out is not None:
        return InFile(out)
    assert store is not None, "without a file there is a store"
    return await InBuffer.of(store.buffer, spec.name, _source(against))


def _source(against: Against) -> Source:
    return Source.REAL if against is Against.REAL else Source.SYNTHETIC


class BehaviourPlayer:
    """Plays one episode after another in one environment; after a failure in a new one."""

    def __init__(self, worlds: Worlds, behaviour: Behaviour) -> None:
        self._worlds, self._behaviour = worlds, behaviour
        self._environment: Environment | None = None

    async def __call__(self, one: Planned) -> Trajectory:
        """Play it to its end."""
        if self._environment is None:
            self._environment = self._worlds.create("")
        is_whole = False
        try:
            played = await play(
                self._environment,
                one.task,
                self._behaviour,
                spec=self._worlds.spec,
                seed=one.seed,
                source=self._worlds.source,
            )
            is_whole = played.error is None
        finally:
            if not is_whole:
                await self.close()
        return played

    async def close(self) -> None:
        """Close the environment; the next episode gets another."""
        environment, self._environment = self._environment, None
        if environment is not None:
            await environment.close()


def _agent_player(url: str, env: str, agent: Agent, policy_url: str) -> Play:
    from dreamgym_client.playing import play_agent

    async def player(one: Planned) -> Trajectory:
        return (await play_agent(url, env, agent, policy_url, one.task, one.seed, keeps_failures=True)).trajectory

    return player


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
