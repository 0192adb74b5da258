"""The replay buffer in memory, for tests, notebooks and comparisons. Nothing survives the process."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dreamgym.embedding import Encoder
from dreamgym.errors import UnknownName
from dreamgym.replay.buffer import GROUNDED, KEPT, BufferCounts, Demonstration, Retrieval, TaskValue, Upserted
from dreamgym.replay.keys import (
    Key,
    KeyEncoder,
    check_kept,
    check_storable,
    check_trajectories,
    stored_elsewhere,
)
from dreamgym.replay.memory.index import EnvironmentIndex
from dreamgym.replay.ranking import EXACT_SCORE, SIMILAR_KEYS, rank, similarity_to
from dreamgym.types import Source, Task, Trajectory

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class MemoryBuffer:
    """A ReplayBuffer in dictionaries; exact search with numpy."""

    def __init__(self, encoder: Encoder) -> None:
        self._encoder = KeyEncoder(encoder)
        self._environments: dict[str, EnvironmentIndex] = defaultdict(EnvironmentIndex)
        self._ids: set[str] = set()
        self._embedding = asyncio.Lock()

    async def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Store trajectories with their tasks and return how many were new."""
        check_trajectories(trajectories)
        before = len(self._ids)
        for trajectory in trajectories:
            if trajectory.id not in self._ids:
                self._ids.add(trajectory.id)
                self._environments[trajectory.task.env].add(trajectory)
        return len(self._ids) - before

    async def upsert(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task] = ()) -> Upserted:
        """Store trajectories and tasks; replace a stored one of the same id if the content differs."""
        check_trajectories(trajectories)
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        for name, environment in self._environments.items():
            for trajectory in trajectories:
                if trajectory.id in environment.trajectories and trajectory.task.env != name:
                    raise stored_elsewhere(trajectory, name)
        for task in tasks:
            self._environments[task.env].tasks[task.id] = task
        changed = []
        for trajectory in trajectories:
            environment = self._environments[trajectory.task.env]
            if environment.trajectories.get(trajectory.id, trajectory) != trajectory:
                environment.replace(trajectory)
                changed.append(trajectory.id)
        return Upserted(new=await self.add(trajectories), changed=tuple(changed))

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """At most k transitions, best first; only identical ones if there are any."""
        environment = self._environments.get(retrieval.env)
        if environment is None or retrieval.k < 1:
            return ()
        key = (retrieval.state, retrieval.action.canonical())
        agreement = environment.agreement(retrieval)
        candidates = list(environment.candidates(key, EXACT_SCORE, retrieval, agreement, exact=True))
        if not candidates:
            for near, score in await self._similar(environment, key, retrieval):
                candidates.extend(environment.candidates(near, score, retrieval, agreement, exact=False))
        return tuple(
            Demonstration(
                id=str(candidate.id),
                transition=environment.transitions[candidate.id].transition,
                source=candidate.source,
                world=candidate.world,
                score=candidate.score,
                exact=candidate.exact,
                instruction=environment.instructions[candidate.goal],
                same_goal=candidate.same_goal,
            )
            for candidate in rank(candidates, retrieval)
        )

    async def _similar(self, environment: EnvironmentIndex, key: Key, retrieval: Retrieval) -> list[tuple[Key, float]]:
        """The stored keys nearest to this key, with their scores. Keys without an allowed transition are left out."""
        import numpy as np

        keys, vectors = await self._vectors(environment)
        asked = _unit(await self._encoder.encode([key]))[0]
        cosines = vectors @ asked
        found: list[tuple[Key, float]] = []
        similarity = similarity_to(key)
        for row in np.argsort(-cosines, kind="stable"):
            if retrieval.tool and not keys[row][1].startswith(f"{retrieval.tool}{{"):
                continue
            if any(True for stored in environment.keys.get(keys[row], ()) for _ in stored.sightings(retrieval)):
                found.append((keys[row], similarity(keys[row], float(cosines[row]))))
            if len(found) == SIMILAR_KEYS:
                break
        return found

    async def _vectors(self, environment: EnvironmentIndex) -> tuple[list[Key], NDArray[np.float32]]:
        """All stored keys, and their unit vectors in the same order, shape (keys, dim)."""
        import numpy as np

        async with self._embedding:
            keys, known = list(environment.keys), environment.vectors
            missing = keys[0 if known is None else len(known) :]
            if known is None or missing:
                fresh = _unit(await self._encoder.encode(missing))
                known = fresh if known is None else np.concatenate([known, fresh])
                if keys == list(environment.keys)[: len(keys)]:  # nothing was retired in the meantime
                    environment.vectors = known
            return keys, known

    async def watermark(self, env: str, group: str = "") -> int:
        """Position of the newest trajectory; for a named group, the position when this was first asked for it."""
        environment = self._environments[env]
        return environment.watermarks.setdefault(group, environment.position) if group else environment.position

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        """Stored trajectories of one environment from these sources, oldest first; at most `limit` of them."""
        environment = self._environments.get(env, EnvironmentIndex())
        return tuple(found for found in environment.trajectories.values() if found.source in sources)[:limit]

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        """Store tasks. A task whose id is already stored is left alone."""
        for task in tasks:
            check_storable(task, f"task {task.id!r}")
        for task in tasks:
            self._environments[task.env].tasks.setdefault(task.id, task)

    async def tasks(self, env: str) -> tuple[Task, ...]:
        """All tasks of an environment, in the order they were stored."""
        return tuple(self._environments.get(env, EnvironmentIndex()).tasks.values())

    async def record_outcomes(
        self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float], *, run: str = ""
    ) -> None:
        """Add one group's outcome rewards to the statistics of the task."""
        environment = self._environments.get(env, EnvironmentIndex())
        if task_id not in environment.tasks:
            raise UnknownName("task", task_id, list(environment.tasks)[:20], f"{len(environment.tasks)} in all")
        environment.record(task_id, run, policy_version, rewards_G)

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        """Statistics of every task that was attempted, in the order of the tasks."""
        return tuple(self._environments.get(env, EnvironmentIndex()).values())

    async def retire(self, env: str, *, keep: int = KEPT) -> int:
        """Delete most dreams of the tasks that are always solved. Call it while no episode runs: it does not check."""
        check_kept(keep)
        gone = self._environments.get(env, EnvironmentIndex()).retire(keep)
        self._ids -= set(gone)
        return len(gone)

    async def counts(self, env: str) -> BufferCounts:
        """Numbers of tasks, trajectories, distinct transitions and worlds of one environment."""
        environment = self._environments.get(env, EnvironmentIndex())
        return BufferCounts(
            tasks=len(environment.tasks),
            trajectories=len(environment.trajectories),
            transitions=len(environment.transitions),
            worlds=len({trajectory.world_id for trajectory in environment.trajectories.values()}),
        )

    async def close(self) -> None:
        pass


def _unit(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    import numpy as np

    exact = vectors.astype(np.float32)
    unit: NDArray[np.float32] = exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-12)
    return unit
