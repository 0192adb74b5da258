"""The replay buffer's protocol.

Retrieval takes the episode's history into account: if a recorded world contains the states that the episode has seen,
its transitions come first. So the dream stays one consistent world, and this consistency decides whether a policy
transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dreamgym.types import Frozen, Source, Task, ToolCall, Trajectory, Transition

GROUNDED = frozenset({Source.REAL, Source.IMPORTED})
"""Sources of trajectories that a real environment produced."""


class Demonstration(Frozen):
    """A stored transition as retrieval returns it."""

    id: str
    transition: Transition
    source: Source
    world: str
    score: float
    """Cosine of the (state, action) keys plus half the trigram cosine, in [-1, 1.5]; 1.5 for an identical key."""
    exact: bool
    """True if state and action are exactly those of the query."""
    instruction: str = ""
    """Instruction of the task that the transition was recorded for."""
    same_goal: bool = False
    """True if the transition was recorded for a task with the running task's goal. Only then do its reward and its end
    count for the running task. The goal of a dream that repeated a recorded transition does not count."""
    disputed: bool = False
    """True if the same step was recorded in the same world and for the same goal with another end or another success.
    Then something decides that the state does not show."""


class Retrieval(Frozen):
    """A query to the buffer: the state and the action of the running episode, and what may be returned for them."""

    env: str
    state: str
    action: ToolCall
    k: int
    history: tuple[Transition, ...] | None = ()
    """The running episode so far. None withholds it; ties between matches are then broken anew at each step."""
    initial_state: str = ""
    """The state in which the running episode started."""
    world: str = ""
    """The world of the running episode's task; preferred among worlds that agree equally. Empty if it was not
    recorded."""
    goal: str = ""
    """`Task.goal` of the running episode's task; empty if nothing was recorded for it."""
    exclude: str = ""
    """Id of the running episode. Transitions that only this episode contains are never returned."""
    sources: frozenset[Source] = GROUNDED
    seed: int = 0
    """Breaks ties: the same seed prefers the same worlds throughout an episode."""
    tool: str = ""
    """If no transition is identical, return only calls of this tool; empty: calls of any tool."""
    as_of: int | None = None
    """A watermark: what was stored after it is not returned. None: everything may be returned."""


KEPT = 4
"""Number of dreams that are kept of a task that is always solved, for each stop reason."""
SATURATED_GROUPS = 2
"""Number of a task's last groups that decide whether it is always solved; groups of one policy count as one."""
SATURATED_VARIANCE = 0.01
"""A task is always solved if in each of these groups the mean reward is above zero and its variance at most this."""


class TaskValue(Frozen):
    """Outcome statistics of one task: for the update that played it last, and for all updates of all runs."""

    task_id: str
    policy_version: int
    """Number of the update that played the task last. With `staleness`, the policy that played is that much older."""
    attempts: int
    """Attempts in that update; `mean` and `variance` are over these attempts too."""
    mean: float
    variance: float
    """V_tau: group variance of the outcome reward (paper, eq. 7); divided by n, as the paper does."""
    total_attempts: int
    """Attempts in all updates of all runs; `total_mean` is over these."""
    total_mean: float


class BufferCounts(Frozen):
    """How much a buffer holds for one environment."""

    tasks: int
    trajectories: int
    transitions: int
    worlds: int


class Upserted(Frozen):
    """The trajectories that an upsert added and replaced."""

    new: int
    """Number of trajectories whose id was not stored before."""
    changed: tuple[str, ...] = ()
    """Ids of trajectories that replaced a stored one with other content."""


class ReplayBuffer(Protocol):
    """Stores trajectories and returns similar transitions. Each method that writes does all or nothing."""

    async def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Store trajectories with their tasks and return how many were new. A stored id is left alone.

        A blank task (`Task.is_blank`) is not one of the stored tasks.
        """

    async def upsert(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task] = ()) -> Upserted:
        """Store trajectories and tasks; replace a stored one of the same id if the content differs.

        A changed trajectory keeps its place in the order. Everything that only its old content contained is deleted:
        its transitions, its task's goal, its world. All other trajectories stay as they are. A task keeps its place and
        its outcome statistics.

        Raises:
            InvalidInput: a trajectory of that id is stored for another environment.
        """

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """At most k transitions, best first, no two with the same action, next state and observation.

        If there are identical ones, only those are returned, even if fewer than k: identical evidence is better than
        similar evidence, and no text needs to be embedded. Transitions that only the excluded episode has seen are not
        returned. A transition that was seen in several worlds is represented by the one that agrees best. Of
        transitions that differ only in reward or end, one that was recorded for the query's goal is returned if there
        is one. The reward and the goal of a dream are never those of a recording.

        Order: identical (state, action) before similar ones; among identical ones, recordings before dreams, then
        worlds that contain more of the states that this episode has seen, then the world of the episode's own task,
        then the query's goal, then a draw that `seed` fixes per world. If the history is withheld, agreement counts
        nothing, and the draw is per transition.
        """

    async def watermark(self, env: str, group: str = "") -> int:
        """Position of the newest stored trajectory: `Retrieval.as_of` for a query that sees the buffer as it is now.

        For a named group, the position at the first call for this group; every process gets the same one.
        """

    async def newest_recording(self, env: str) -> int:
        """Position of the newest trajectory that was not dreamed.

        The number also changes if a recording is replaced or deleted. As long as it is the same, so are the recordings.
        """

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        """Stored trajectories of one environment from these sources, oldest first; at most `limit` of them."""

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        """Store tasks. A task whose id is already stored is left alone."""

    async def tasks(self, env: str) -> tuple[Task, ...]:
        """All tasks of an environment, in the order they were stored."""

    async def record_outcomes(
        self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float], *, run: str = ""
    ) -> None:
        """Add one group's outcome rewards to the statistics of the task. Raises UnknownName for a task not stored.

        `policy_version` is the number of the update that played the group; each run has updates of its own.
        """

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        """Statistics of every task that was attempted, in the order of the tasks."""

    async def retire(self, env: str, *, keep: int = KEPT) -> int:
        """Delete most dreams of the tasks that are always solved; return how many trajectories were deleted.

        For each such task, the newest `keep` synthetic trajectories of each stop reason stay. Real and imported
        trajectories stay, and queries as of any watermark find them as before. Dreams that a running episode of the
        same store may see stay too. A buffer that does not know the episodes must be called while none runs. Raises
        InvalidInput for `keep` < 1.
        """

    async def counts(self, env: str) -> BufferCounts:
        """Numbers of tasks, trajectories, distinct transitions and worlds of one environment."""

    async def close(self) -> None:
        """Release connections."""
