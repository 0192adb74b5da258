"""Plays an environment with a behaviour or an agent, and keeps the episodes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.episode import Agent, load_agent
from dreamgym.evaluation.episodes import WORKERS
from dreamgym.redaction import redact_by
from dreamgym.runs import cluster as clusters
from dreamgym.runs.console import say
from dreamgym.runs.estimate import of_episodes, say_estimate
from dreamgym.runs.opening import (
    Against,
    behaviour_or_agent,
    check_endpoint,
    dream_setting,
    dream_tasks,
    open_store,
    open_worlds,
    real_for,
    recorded_tasks,
    require_at_least,
    seeded,
    served,
    tasks_of,
)
from dreamgym.runs.play_many import BehaviourPlayer, Collecting, InBuffer, InFile, Kept, Planned, Play, plan
from dreamgym.runs.seed import claim, folder_of
from dreamgym.runs.versions import version_of
from dreamgym.types import Source, Trajectory

if TYPE_CHECKING:
    from dreamgym.replay.postgres import Store


async def collect(
    env: EnvironmentSpec | str,
    agent: str,
    episodes: int,
    *,
    against: Against | str = Against.REAL,
    out: Path | None = None,
    split: str = "train",
    workers: int = WORKERS,
    policy_url: str | None = None,
    model: str | None = None,
    dsn: str | None = None,
    seed: int = 0,
    cluster: str | None = None,
) -> Collecting:
    """Play the episodes that are not there yet, and keep each as soon as it is over.

    Args:
        env: the environment, its name, or its folder.
        agent: a behaviour of the real environment, or an agent as `load_agent` takes it.
        episodes: number of episodes in all. They take the tasks in turn; episode i has the seed `seed + i`.
        against: the real environment, or a dream of it.
        out: a JSONL file to append to; None: the replay buffer.
        split: split of the tasks.
        workers: number of episodes that are played at once; on a cluster, by each of its workers.
        policy_url: the chat completions endpoint behind an agent; a behaviour needs none.
        model: the experience model of a dream.
        dsn: DSN of the store; None: the embedded server.
        seed: seed of the first episode.
        cluster: address of the Ray cluster that plays; None: this process.

    Returns:
        The numbers of played and won episodes, and the ids of failed ones.

    Raises:
        InvalidInput: an agent has no chat model, a model is given for the real environment, there are no tasks or the
            dream has no recording of one, `episodes` or `workers` is less than 1, `out` contains something else or
            cannot be written, or another collection writes to it.
        EnvironmentUnavailable: no episode could be played, or too many failed in a row.
    """
    require_at_least(1, episodes=episodes, workers=workers)
    where = Against(against)
    chosen = dream_setting(model, against=where)
    spec = load_spec(env) if isinstance(env, str) else env
    if where is Against.DREAM:
        spec = await seeded(env, dsn)
    real = real_for(env, spec, where)
    if where is Against.DREAM:
        tasks = await dream_tasks(spec, tasks_of(spec, split, real, await recorded_tasks(spec, dsn)), dsn)
    else:
        tasks = tasks_of(spec, split, real)
    behaviour, asked = behaviour_or_agent(agent, real)
    if asked is not None:
        check_endpoint(asked, policy_url)
    setting = [str(where), str(spec.options), str(spec.max_steps)]
    setting += [str(model)] if where is Against.DREAM else []
    setting += [str(policy_url)] if behaviour is None else []
    planned = plan(agent, "\0".join(setting), tasks, episodes, seed)
    async with AsyncExitStack() as stack:
        store = None
        if out is None or where is Against.DREAM:
            store = await stack.enter_async_context(open_store(dsn))
            if isinstance(env, str) and (folder := folder_of(env)) is not None:
                await claim([folder], store)
        playing = Playing(env, spec, where, agent, workers, model, policy_url, store.dsn if store is not None else None)
        players: Sequence[Play]
        if cluster is None:
            players = await stack.enter_async_context(playing.players(store, min(workers, episodes)))
        else:
            if where is Against.DREAM:
                clusters.check_reachable_store(cluster, dsn)
            crew = await stack.enter_async_context(clusters.workers(cluster, playing, workers))
            players = [crew.do] * min(crew.places, episodes)
        kept: Kept
        if out is not None:
            kept = InFile(out)
        else:
            assert store is not None, "without a file there is a store"
            source = Source.REAL if where is Against.REAL else Source.SYNTHETIC
            kept = await InBuffer.of(store, spec.name, source)
        version = version_of(spec) if where is Against.REAL else None
        redact, in_dream = redact_by(spec.redact), where is Against.DREAM
        collection = Collecting(planned, kept, version=version, redact=redact, in_dream=in_dream)
        if where is Against.DREAM and store is not None and (left := episodes - collection.there):
            recorded = await store.buffer.trajectories(spec.name)
            say_estimate(await of_episodes(spec, chosen, recorded, left, seed=seed), say)
        await collection.run(players)
    return collection


@dataclass(frozen=True)
class Playing:
    """All that a process needs to play any episode of a collection."""

    env: EnvironmentSpec | str
    spec: EnvironmentSpec
    against: Against
    agent: str
    workers: int
    model: str | None
    policy_url: str | None = field(repr=False)
    dsn: str | None = field(repr=False)

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Play]:
        """Open the players in a worker of a cluster. All places of the worker share the function that it yields."""
        async with self.players(None, self.workers) as players:
            free = asyncio.Queue[Play]()
            for player in players:
                free.put_nowait(player)

            async def play(one: Planned) -> Trajectory:
                player = await free.get()
                try:
                    return await player(one)
                finally:
                    free.put_nowait(player)

            yield play

    @asynccontextmanager
    async def players(self, store: Store | None, count: int) -> AsyncIterator[Sequence[Play]]:
        """Open players.

        Args:
            store: store with the recordings of a dream; None: the one at `dsn` is opened.
            count: number of players.
        """
        real = real_for(self.env, self.spec, self.against)
        behaviour = real.behaviours.get(self.agent) if real is not None else None
        opened = open_worlds(self.spec, self.against, model=self.model, store=store, dsn=self.dsn)
        async with opened as worlds, AsyncExitStack() as stack:
            if behaviour is None:
                url = await stack.enter_async_context(served(worlds))
                yield [_agent_player(url, self.spec.name, load_agent(self.agent), self.policy_url)] * count
                return
            players = [BehaviourPlayer(worlds, behaviour) for _ in range(count)]
            for player in players:
                stack.push_async_callback(player.close)
            yield players


def _agent_player(url: str, env: str, agent: Agent, policy_url: str | None) -> Play:
    from dreamgym_client.playing import play_agent

    async def player(one: Planned) -> Trajectory:
        return (await play_agent(url, env, agent, policy_url, one.task, one.seed, keeps_failures=True)).trajectory

    return player
