"""The words of the house: what an agent is asked, does, sees, and what is remembered of it.

Every type is a frozen pydantic model and is at once the wire format, the database row and the JSONL line.
`terminated` is the task's own end, `truncated` a limit from outside; they are never one flag.
Lists over a group carry the suffix `_G`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

JsonObject = dict[str, JsonValue]


class Frozen(BaseModel):
    """Base of all data types: immutable, and unknown fields are an error instead of a silent loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(StrEnum):
    """Where a task came from."""

    SEED = "seed"
    GENERATED = "generated"
    IMPORTED = "imported"
    PROPOSED = "proposed"
    """A model worded it after a recorded episode that nobody had named a task for."""


class Source(StrEnum):
    """Where a trajectory was played."""

    REAL = "real"
    SYNTHETIC = "synthetic"
    IMPORTED = "imported"


class Tier(StrEnum):
    """How one answer came about."""

    REAL = "real"
    """The real environment gave it."""
    RECORDED = "recorded"
    """This very state and action was seen in reality, and the environment is declared deterministic."""
    CHECK = "check"
    """A check refused the action in recorded words; no model was asked."""
    EFFECTS = "effects"
    """Recordings of the tool show what follows from this explicit state and call; no model was asked."""
    PLUGIN = "plugin"
    """A tier of another package answered, which `Provenance.model` names."""
    CACHE = "cache"
    """A model predicted it before, asked the very same with the same seed."""
    MODEL = "model"
    """A model predicted it."""


class StopReason(StrEnum):
    """Why an episode ended."""

    TERMINATED = "terminated"
    """The task's own end."""
    MAX_STEPS = "max_steps"
    FINISHED = "finished"
    """The agent gave a final answer."""
    OUT_OF_SUPPORT = "out_of_support"
    """The simulator was too unsure to go on; what it would have answered is not known."""
    CLOSED = "closed"
    """Deleted, or expired without a final answer."""
    ERROR = "error"
    """The environment or the agent failed; such a trajectory never enters a gradient."""


class Task(Frozen):
    """What the agent is asked to do."""

    id: str = Field(min_length=1)
    env: str = Field(min_length=1)
    instruction: str
    initial_state: str | None = None
    """The state in which the episode starts, as text, where it is known."""
    origin: Origin = Origin.SEED
    parent_id: str | None = None
    """The task that a generated one was varied from."""
    metadata: JsonObject = Field(default_factory=dict)
    """`world` is the recorded world of a task that was varied from another one. `success` and `answers` are the task's
    own check (dreamgym.dream.task_check)."""

    @property
    def world(self) -> str:
        """The world that a deterministic environment plays this task in: its own, or the one it was varied in."""
        return str(self.metadata.get("world", self.id))

    @property
    def goal(self) -> str:
        """What must be accomplished, as one text: the instruction, and the task's own check if it has one.

        A recorded success counts only for tasks with the same goal. A task without an instruction is open: it shares
        its goal with nothing but the tasks that were varied from it. The database computes the same text.
        """
        if not self.instruction.strip():
            return f"\n{self.world}"
        checks = (self.metadata[key] for key in ("success", "answers") if key in self.metadata)
        told = (json.dumps(check, ensure_ascii=False, separators=(",", ":")) for check in checks)
        return "\n".join([self.instruction, *told])


class ToolCall(Frozen):
    """The action, always. A text environment has one tool with one string argument."""

    name: str = Field(min_length=1)
    arguments: JsonObject = Field(default_factory=dict)
    answers: JsonObject = Field(default_factory=dict, exclude_if=lambda answers: not answers)
    """What the client says to questions of the tool (MCP's `inputResponses` and `requestState`), if it was asked."""

    def canonical(self) -> str:
        """One string per action: equal calls give equal strings whatever the order of their arguments."""
        arguments = json.dumps(self.arguments, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
        answers = json.dumps(self.answers, sort_keys=True, ensure_ascii=False) if self.answers else ""
        return f"{self.name}{arguments}{answers}"


class StepResult(Frozen):
    """Everything that the agent's side may see of a step; never the simulator's reasoning."""

    observation: str
    reward: float = Field(default=0.0, allow_inf_nan=False)
    terminated: bool = False
    truncated: bool = False
    is_error: bool = False
    """The tool refused the call, as the real system would say it."""
    info: JsonObject = Field(default_factory=dict)
    """Known keys: `state` is the state the step led to, where the observation says more or less than that;
    `content` the MCP content blocks, where they are more than the observation as one text; `structured` the
    structured content, where the tool gave one; `asks` what the tool asks the client before it can answer (MCP's
    `inputRequests` and `requestState`); `notices` the MCP notifications that it sent while it ran; `error` the JSON-RPC
    error that it answered with; `open_end` as in Provenance."""

    @property
    def state(self) -> str:
        """The state the step led to: the observation itself, unless `info` says otherwise."""
        return str(self.info.get("state", self.observation))

    @property
    def content(self) -> list[JsonObject]:
        """The MCP content blocks: the observation as one text, unless `info` has them."""
        blocks = self.info.get("content")
        if not isinstance(blocks, list):
            return [{"type": "text", "text": self.observation}]
        return [block for block in blocks if isinstance(block, dict)]

    @property
    def structured(self) -> JsonObject | None:
        """The structured content, None where the tool gave none."""
        value = self.info.get("structured")
        return value if isinstance(value, dict) else None

    @property
    def done(self) -> bool:
        """The episode is over, for whichever reason."""
        return self.terminated or self.truncated


class Provenance(Frozen):
    """How an answer came about; stored with each transition, never shown to the agent."""

    tier: Tier
    model: str | None = None
    retrieved: tuple[str, ...] = ()
    """Ids of the transitions that the model was shown."""
    seed: int | None = None
    exact: bool = False
    """The answer is that of a recorded transition with this very state and action."""
    confidence: float | None = Field(default=None, ge=0.0, le=1.0)
    """Calibrated probability that the answer is right; None where nobody has calibrated the model."""
    judged: bool | None = None
    """What a judge said of a claimed success; None where none was asked."""
    checked: bool | None = None
    """What the task's own check says of the state that a claimed success led to; None where it has none."""
    open_end: bool = False
    """Whether the step ended its task is not known: it ended a task with another goal when it was recorded, or the
    judge gave no usable verdict. The episode goes on, and its reward is unknown unless it ends later."""
    unbounded: bool = False
    """The answer wrote something into the explicit state of which no recording tells whether such a call does that. A
    success of the state alone that comes after it is open: a judge must say so too."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    """Of all questions that this answer took."""


class Transition(Frozen):
    """One step as the house remembers it."""

    state: str
    action: ToolCall
    result: StepResult
    next_state: str
    reasoning: str = ""
    provenance: Provenance

    @classmethod
    def of(cls, state: str, action: ToolCall, result: StepResult, provenance: Provenance | None = None) -> Transition:
        """A step from a state to the one that its result names.

        Args:
            state: before it.
            action: what was called.
            result: what came of it.
            provenance: None: it was taken in the real environment.
        """
        origin = Provenance(tier=Tier.REAL) if provenance is None else provenance
        return cls(state=state, action=action, result=result, next_state=result.state, provenance=origin)

    @classmethod
    def chain(cls, state: str, steps: Iterable[tuple[ToolCall, StepResult]]) -> tuple[Transition, ...]:
        """Steps of the real environment, of which the first begins in this state and each other one after the last."""
        made: list[Transition] = []
        for action, result in steps:
            made.append(cls.of(made[-1].next_state if made else state, action, result))
        return tuple(made)

    def digest(self) -> bytes:
        """Identity for de-duplication: sha256 over state, action, next state, reward and end."""
        parts = [
            self.state,
            self.action.canonical(),
            self.next_state,
            self.result.observation,
            repr(self.result.reward),
            repr(self.result.terminated),
            repr(self.result.is_error),
        ]
        return hashlib.sha256("\x00".join(parts).encode()).digest()


class Trajectory(Frozen):
    """One episode, from its task to its end."""

    id: str = Field(min_length=1)
    task: Task
    transitions: tuple[Transition, ...] = ()
    source: Source
    stop_reason: StopReason
    world: str = ""
    """Trajectories of one world share all hidden facts (the same seed of a deterministic environment).
    Empty means that this episode is a world of its own."""
    policy_version: int | None = None
    answer: str | None = None
    """The agent's final answer, where it gave one."""
    final_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of the final answer; None where nobody judged it, which is not the same as 0."""
    error: str | None = None
    """What failed, where `stop_reason` is `error`."""

    @model_validator(mode="after")
    def _only_the_last_step_ends_the_episode(self) -> Trajectory:
        for step, transition in enumerate(self.transitions[:-1]):
            if transition.result.done:
                raise ValueError(f"step {step} of {len(self.transitions)} already ends the episode")
        return self

    def digest(self) -> bytes:
        """Identity of its content: sha256 over everything in it."""
        return hashlib.sha256(self.model_dump_json().encode()).digest()

    @property
    def world_id(self) -> str:
        """The world this trajectory was played in."""
        return self.world or self.id

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the rewards, that of the final answer included."""
        return sum(transition.result.reward for transition in self.transitions) + (self.final_reward or 0.0)

    @property
    def reward(self) -> float | None:
        """The total reward, or None if it is not known: the episode failed, or nobody could say how it ended.

        An unknown reward is not 0, and nothing is learned from it.
        """
        if self.stop_reason is StopReason.ERROR:
            return None
        has_ended = bool(self.transitions) and self.transitions[-1].result.terminated
        if has_ended or self.final_reward is not None:
            return self.total_reward
        is_open = any(transition.provenance.open_end for transition in self.transitions)
        return None if is_open or self.stop_reason is StopReason.FINISHED else self.total_reward

    @property
    def success(self) -> bool:
        """A final answer that was judged is worth something; without one, the task's own end has a positive reward."""
        if self.final_reward is not None:
            return self.final_reward > 0
        return bool(self.transitions) and self.transitions[-1].result.terminated and self.total_reward > 0
