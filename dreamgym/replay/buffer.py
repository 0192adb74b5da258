"""The replay buffer's protocol.

Retrieval knows the episode's history: while one recorded world agrees with what the episode has seen, its transitions
come first. That keeps the dream one consistent world, which is what decides whether a policy transfers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from dreamgym.types import Frozen, Source, Task, ToolCall, Trajectory, Transition

GROUNDED = frozenset({Source.REAL, Source.IMPORTED})
"""What was seen in reality."""


class Demonstration(Frozen):
    """A stored transition as retrieval returns it."""

    id: str
    transition: Transition
    source: Source
    world: str
    score: float
    """Cosine of the (state, action) keys plus half the trigram cosine, in [-1, 1.5]; 1.5 for an identical key."""
    exact: bool
    """Same state and same action, to the letter."""
    instruction: str = ""
    """Of the task that it was recorded for."""
    same_goal: bool = False
    """It was recorded for a task with the goal of the running one: only then do its reward and its end say anything of
    the running task."""


class Retrieval(Frozen):
    """One question to the buffer."""

    env: str
    state: str
    action: ToolCall
    k: int
    history: tuple[Transition, ...] | None = ()
    """The running episode so far; None withholds it, and matches are then drawn anew at each step."""
    initial_state: str = ""
    """Where the running episode started."""
    world: str = ""
    """The world of the running episode's task, preferred while it agrees; empty where none was recorded."""
    goal: str = ""
    """`Task.goal` of the running episode's task; empty: nothing was recorded for it."""
    exclude: str = ""
    """Id of the running episode, which is never returned."""
    sources: frozenset[Source] = GROUNDED
    seed: int = 0
    """Breaks ties: the same seed prefers the same worlds throughout an episode."""
    tool: str = ""
    """Where none is identical, only calls of this tool; empty: of any."""
    as_of: int | None = None
    """A watermark: what was stored after it is not there. None: everything is."""


KEPT = 4
"""Dreams kept of a task that is always solved, for each way in which they ended."""
SATURATED_GROUPS = 2
"""Last groups that tell whether a task is always solved; those of one policy count as one."""
SATURATED_VARIANCE = 0.01
"""Of the reward in each of them at most, with a mean above zero."""


class TaskValue(Frozen):
    """Outcome statistics of one task, under the policy that tried it last and over all."""

    task_id: str
    policy_version: int
    """Of the policy that tried it last."""
    attempts: int
    """Of that policy; so are mean and variance."""
    mean: float
    variance: float
    """V_tau: group variance of the outcome reward (paper, eq. 7); divided by n, as the paper does."""
    total_attempts: int
    """Of all policies of all runs."""
    total_mean: float


class BufferCounts(Frozen):
    """How much a buffer holds for one environment."""

    tasks: int
    trajectories: int
    transitions: int
    worlds: int


class Upserted(Frozen):
    """What storing changed."""

    new: int
    """Trajectories whose id was not there."""
    changed: tuple[str, ...] = ()
    """Ids of trajectories that took the place of a stored one with other content."""


class ReplayBuffer(Protocol):
    """Trajectories in, similar transitions out. Methods that write do all or nothing."""

    async def add(self, trajectories: Sequence[Trajectory]) -> int:
        """Store trajectories with their tasks and return how many were new; an id already there is left alone."""

    async def upsert(self, trajectories: Sequence[Trajectory], tasks: Sequence[Task] = ()) -> Upserted:
        """Store trajectories and tasks; one whose content differs from the stored one of its id takes its place.

        A changed trajectory keeps its place in the order, and what only its old content held is forgotten: its
        transitions, its task's goal, its world. All other trajectories stay as they are. A task keeps its place and
        its outcome statistics.

        Raises:
            InvalidInput: a trajectory of that id is stored for another environment.
        """

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        """At most k transitions, best first, no two with the same action, next state and observation.

        Where there are identical ones, only those are returned, even if fewer than k: identical evidence is better
        than similar, and no text is embedded. Nothing that only the excluded episode has seen is returned. A
        transition seen in several worlds is represented by the one that agrees best. Of transitions that differ only
        in reward or end, one that was recorded for the asked goal is returned if there is one.

        Order: identical (state, action) before similar ones; among identical ones, worlds that contain more of the
        states this episode has seen, then the episode's own task's world, then the asked goal, then a draw that `seed`
        fixes per world (per transition where the history is withheld; agreement then counts nothing).
        """

    async def watermark(self, env: str, group: str = "") -> int:
        """How far the buffer has got, to be asked about as of then.

        For a named group, how far it had got when this was first asked: the same in every process.
        """

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        """Stored trajectories, oldest first."""

    async def add_tasks(self, tasks: Sequence[Task]) -> None:
        """Store tasks; one with an id already there is left alone."""

    async def tasks(self, env: str) -> tuple[Task, ...]:
        """All tasks of an environment, in the order they were stored."""

    async def record_outcomes(
        self, env: str, task_id: str, policy_version: int, rewards_G: Sequence[float], *, run: str = ""
    ) -> None:
        """Add one group's outcome rewards to the statistics of the task. Raises UnknownName for a task not stored.

        Versions of different runs are different policies.
        """

    async def task_values(self, env: str) -> tuple[TaskValue, ...]:
        """Statistics of every task that was attempted, in the order of the tasks."""

    async def retire(self, env: str, *, keep: int = KEPT) -> int:
        """Forget most dreams of the tasks that are always solved; returns how many trajectories went.

        Of the synthetic trajectories of such a task the newest `keep` of each stop reason stay. What was seen in
        reality stays, and is found as before as of any watermark. Nothing goes that a running episode of the same
        store may see; a buffer that knows of no episodes is asked when none runs. Raises InvalidInput for `keep` < 1.
        """

    async def counts(self, env: str) -> BufferCounts:
        """How much there is."""

    async def close(self) -> None:
        """Release connections."""
