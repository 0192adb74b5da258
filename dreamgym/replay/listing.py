"""Lists of stored episodes for a person: filtered, newest first, one page at a time, without their steps."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import Field

from dreamgym.types import SAYING_NOTHING, Frozen, Source, StopReason, Task, Tier


class EpisodeFilter(Frozen):
    """Conditions on episodes; the default lets all pass."""

    env: str = ""
    source: Source | None = None
    task: str = ""
    """Id of the task."""
    group: str = ""
    """Name of the episode's group. With a `-` or `/` at its end it is the start of the name: `RUN-` is a training run,
    `RUN-7-` one update of it."""
    policy_version: int | None = None
    state: Literal["", "running", "over", "failed"] = ""
    success: bool | None = None
    tier: Tier | None = None
    """Tier that must have answered at least one step."""
    text: str = ""
    """Text that must occur in the episode's id or instruction; case is ignored."""

    @property
    def reads_steps(self) -> bool:
        """True if a condition depends on the steps of an episode. The matching episodes are then not counted."""
        return self.success is not None or self.tier is not None

    @property
    def has_part_of_group(self) -> bool:
        """True if `group` is only the start of a name."""
        return self.group.endswith(("-", "/"))

    def has_group(self, name: str) -> bool:
        """True if an episode of this group meets the condition on it."""
        return not self.group or name == self.group or (self.has_part_of_group and name.startswith(self.group))


class Outcome(Frozen):
    """Totals over the steps of an episode."""

    steps: int = 0
    tiers: dict[str, int] = Field(default_factory=dict)
    """Number of steps that each tier answered."""
    errors: int = 0
    """Number of steps that were answered with an error."""
    total: float = 0.0
    """Sum of the rewards of the steps."""
    terminated: bool = False
    """True if a step ended the task."""
    is_open: bool = False
    """True if it is unknown for some step whether it ended the task."""
    prompt_tokens: int = 0
    completion_tokens: int = 0


class EpisodeSummary(Frozen):
    """An episode in one line of a list."""

    place: str
    """Where the episode is stored: `store`, or a file of a run folder."""
    id: str
    task: Task
    source: Source
    stop_reason: StopReason | None
    """None while the episode runs."""
    policy_version: int | None = None
    group: str | None = None
    world: str = ""
    answer: str | None = None
    final_reward: float | None = None
    error: str | None = None
    at: datetime | None = None
    """When it was stored or last used; None if unknown."""
    outcome: Outcome

    @property
    def reward(self) -> float | None:
        """The reward by the rule of `Trajectory.reward`; None if it is not known."""
        if self.stop_reason is StopReason.ERROR:
            return None
        total = self.outcome.total + (self.final_reward or 0.0)
        if self.outcome.terminated or self.final_reward is not None:
            return total
        return None if self.outcome.is_open or self.stop_reason in SAYING_NOTHING else total

    @property
    def success(self) -> bool | None:
        """The success by the rule of `Trajectory.success`; None while the episode runs, or if nobody judged it."""
        if self.stop_reason is None or self.reward is None:
            return None
        if self.final_reward is not None:
            return self.final_reward > 0
        return self.outcome.terminated and self.outcome.total > 0

    def ends_like(self, other: EpisodeSummary) -> bool:
        """True if both are over and end alike, with the same reward and final answer, or if one still runs."""
        ends = [(one.stop_reason, one.reward, one.success, one.answer) for one in (self, other)]
        return ends[0] == ends[1] or "running" in (self.state, other.state)

    def passes(self, chosen: EpisodeFilter) -> bool:
        """True if the episode meets all conditions."""
        wanted = chosen.text.lower()
        return (
            chosen.env in {"", self.task.env}
            and chosen.source in {None, self.source}
            and chosen.task in {"", self.task.id}
            and chosen.has_group(self.group or "")
            and chosen.policy_version in {None, self.policy_version}
            and (not chosen.state or chosen.state == self.state)
            and (wanted in self.id.lower() or wanted in self.task.instruction.lower())
            and self.passes_by_steps(chosen)
        )

    def passes_by_steps(self, chosen: EpisodeFilter) -> bool:
        """True if the episode meets the conditions on its steps."""
        return chosen.success in {None, self.success} and (
            chosen.tier is None or chosen.tier.value in self.outcome.tiers
        )

    @property
    def state(self) -> Literal["running", "over", "failed"]:
        """How far it is: it runs, it is over, or it failed."""
        if self.stop_reason is None:
            return "running"
        return "failed" if self.stop_reason is StopReason.ERROR else "over"


class EpisodePage(Frozen):
    """One page of a list of episodes."""

    episodes: tuple[EpisodeSummary, ...]
    matching: int | None
    """Number of episodes that meet the conditions; None if they were not counted, because a condition depends on
    steps."""
    looked: int
    """Number of episodes that were looked through for this page."""
    next: str | None
    """Position from which the next page starts; None at the end of the list."""
