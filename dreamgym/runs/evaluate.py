"""Measures how often a trained policy succeeds, with an interval."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AsyncExitStack
from pathlib import Path

from dreamgym.budget import check_budget
from dreamgym.dream.model import Part
from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.prices import is_in_process
from dreamgym.runs.cluster import check_reachable_store, workers
from dreamgym.runs.console import say
from dreamgym.runs.estimate import of_episodes, say_estimate
from dreamgym.runs.opening import (
    Against,
    dream_setting,
    dream_tasks,
    open_store,
    open_worlds,
    real_for,
    recorded_tasks,
    require_at_least,
    seeded,
    stored_trajectories,
    tasks_of,
)
from dreamgym.runs.players import PolicyPlaying, SpreadPlayer, player_in
from dreamgym.training import probe
from dreamgym.training.probe import Evaluation
from dreamgym.training.rollout import Player


async def evaluate(
    env: EnvironmentSpec | str,
    policy: Path,
    against: Against | str = Against.REAL,
    *,
    agent: str | None = None,
    split: str = "test",
    episodes: int = 500,
    model: str | None = None,
    without: Collection[Part] = (),
    dsn: str | None = None,
    seed: int = 0,
    cluster: str | None = None,
) -> Evaluation:
    """Play each task once by sampling, and count successes. The episodes are not stored.

    Args:
        env: the environment, its name, or its folder.
        policy: the checkpoint folder.
        against: the real environment, or a dream of it.
        agent: an agent with the policy behind it; None: the policy acts by itself.
        split: split of the tasks.
        episodes: number of tasks, taken from the end of the split; in a dream of a game, of its recorded tasks.
        model: the experience model of a dream.
        without: parts of the dream that are left out.
        dsn: DSN of the store that a dream is grounded in; None: the embedded server.
        seed: fixes the sampled tokens.
        cluster: address of the Ray cluster that plays; each worker must have the policy's folder. None: this process.

    Raises:
        InvalidInput: `episodes` is less than 1, there is no policy, the split has no tasks or the dream no recording of
            one, or a model is given for the real environment.
    """
    from dreamgym_integrations.trainers.policy.model import load_policy

    require_at_least(1, episodes=episodes)
    chosen = dream_setting(model, without, against)
    where = Against(against)
    spec = load_spec(env) if isinstance(env, str) else env
    if where is Against.DREAM:
        spec = await seeded(env, dsn)
    listed = await recorded_tasks(spec, dsn) if where is Against.DREAM else ()
    tasks = tasks_of(spec, split, real_for(env, spec, where), listed)
    described = {task.id for task in spec.tasks or listed if "split" not in task.metadata}
    if split != "train" and (everywhere := sum(task.id in described for task in tasks)):
        say(
            f"{everywhere} of {len(tasks)} tasks have no metadata.split: they belong to every split, so the policy may "
            "have been trained on them"
        )
    if where is Against.DREAM:
        tasks = await dream_tasks(spec, tasks, dsn)
    tasks = tasks[-episodes:]
    if where is Against.DREAM and not is_in_process(chosen.model):
        recorded = await stored_trajectories(spec, dsn)
        say_estimate(await of_episodes(spec, chosen, recorded, len(tasks), seed=seed), say)
    async with AsyncExitStack() as stack:
        player: Player
        if cluster is None:
            loaded, codec = load_policy(policy)
            opened = open_worlds(spec, where, model=model, without=without, dsn=dsn)
            worlds = await stack.enter_async_context(opened)
            player = await stack.enter_async_context(player_in(worlds, loaded, codec, agent=agent))
        else:
            if where is Against.DREAM:
                check_reachable_store(cluster, dsn)
                dsn = (await stack.enter_async_context(open_store(dsn))).dsn
            job = PolicyPlaying(spec, where, policy.resolve(), agent, model, frozenset(map(Part, without)), dsn)
            player = SpreadPlayer(await stack.enter_async_context(workers(cluster, job, 1)))
        result = await probe.evaluate(player, tasks, seed=seed)
        check_budget()  # an agent's episodes that the budget cut off were counted as failed
        return result
