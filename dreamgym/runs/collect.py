"""Playing an environment with a behaviour or an agent, and keeping what happened."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.episode import Agent, check_policy_url, load_agent
from dreamgym.evaluation.episodes import WORKERS
from dreamgym.runs.console import say
from dreamgym.runs.estimate import of_episodes, say_estimate
from dreamgym.runs.opening import (
    Against,
    dream_setting,
    open_store,
    open_worlds,
    real_for,
    served,
    tasks_of,
    with_recorded_starts,
)
from dreamgym.runs.play_many import BehaviourPlayer, Collecting, InBuffer, InFile, Kept, Planned, Play, plan
from dreamgym.runs.seed import claim, folder_of
from dreamgym.runs.versions import version_of
from dreamgym.types import Trajectory

if TYPE_CHECKING:
    pass


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
) -> Collecting:
    """Play episodes that are not there yet, and keep each as soon as it is over.

    Args:
        env: the environment, its name, or its folder.
        agent: a behaviour of the real environment, or an agent as `load_agent` takes it.
        episodes: how many in all; tasks are taken in turn, episode i is seeded with seed + i.
        against: the real environment, or a dream of it.
        out: a JSONL file to append to; None: the replay buffer.
        split: whose tasks are played.
        workers: how many episodes are played at once.
        policy_url: the chat completions endpoint behind an agent; a behaviour needs none.
        model: the experience model of a dream.
        dsn: of the store; None: the embedded server.
        seed: of the first episode.

    Returns:
        What was played, won and failed.

    Raises:
        InvalidInput: an agent without a chat model, no tasks, or another collection writes to `out`.
        EnvironmentUnavailable: no episode could be played, or too many failed one after another.
    """
    spec, where = load_spec(env) if isinstance(env, str) else env, Against(against)
    real = real_for(env, spec, where)
    tasks = tasks_of(spec, split, real)
    if where is Against.DREAM:
        tasks = await with_recorded_starts(spec, tasks, dsn)
    behaviour = real.behaviours.get(agent) if real is not None else None
    loaded = load_agent(agent) if behaviour is None else None
    if loaded is not None:
        check_policy_url(loaded, policy_url)
    setting = [str(where), str(spec.options), str(spec.max_steps)]
    setting += [str(model)] if where is Against.DREAM else []
    setting += [str(policy_url)] if loaded is not None else []
    planned = plan(agent, "\0".join(setting), tasks, episodes, seed)
    async with AsyncExitStack() as stack:
        store = None
        if out is None or where is Against.DREAM:
            store = await stack.enter_async_context(open_store(dsn))
            if isinstance(env, str) and (folder := folder_of(env)) is not None:
                await claim([folder], store)
        worlds = await stack.enter_async_context(open_worlds(spec, where, model=model, store=store))
        if where is Against.DREAM and store is not None:
            recorded = await store.buffer.trajectories(spec.name)
            say_estimate(await of_episodes(spec, dream_setting(model), recorded, episodes, seed=seed), say)
        players: Sequence[Play]
        if loaded is not None:
            url = await stack.enter_async_context(served(worlds))
            players = [_agent_player(url, spec.name, loaded, policy_url)] * min(workers, episodes)
        else:
            assert behaviour is not None, "an agent has a model, as was checked"
            own = [BehaviourPlayer(worlds, behaviour) for _ in range(min(workers, episodes))]
            for player in own:
                stack.push_async_callback(player.close)
            players = own
        kept: Kept
        if out is not None:
            kept = InFile(out)
        else:
            assert store is not None, "without a file there is a store"
            kept = await InBuffer.of(store.buffer, spec.name, worlds.source)
        collection = Collecting(planned, kept, version=version_of(spec) if where is Against.REAL else None)
        await collection.run(players)
    return collection


def _agent_player(url: str, env: str, agent: Agent, policy_url: str | None) -> Play:
    from dreamgym_client.playing import play_agent

    async def player(one: Planned) -> Trajectory:
        return (await play_agent(url, env, agent, policy_url, one.task, one.seed, keeps_failures=True)).trajectory

    return player
