"""Types of reinforcement learning in DreamGym: Task, ToolCall, StepResult, Transition, Trajectory.

Every type is a frozen pydantic model and is at once the wire format, the database row and the JSONL line.
`terminated` is the task's own end, `truncated` a limit from outside; they are never one flag.
Lists over a group carry the suffix `_G`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

JsonObject = dict[str, JsonValue]


class Frozen(BaseModel):
    """Base of all data types: immutable, and unknown fields are an error instead of a silent loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def has_json_of(self, other: Frozen | None) -> bool:
        """True if the other one has the same JSON, in any order of keys. For `==`, 1, 1.0 and true are the same."""
        if other is None or self is other or self != other:
            return self is other
        mine, others = (json.dumps(row.model_dump(mode="json"), sort_keys=True) for row in (self, other))
        return mine == others


class TokenUsage(Frozen):
    """Tokens of calls to a language model, as its endpoint counts and bills them; zero if they are not known."""

    prompt_tokens: int = 0
    """Tokens that were sent, including `cached_tokens`."""
    cached_tokens: int = 0
    """Prompt tokens that the endpoint had in its own prompt cache, which usually makes them cheaper."""
    completion_tokens: int = 0
    """Tokens that were generated, including `thinking_tokens`."""
    thinking_tokens: int = 0
    """Completion tokens of the model's thinking, which are not part of its answer."""

    @property
    def is_told(self) -> bool:
        """True if the tokens of a call are known. A question and its answer have tokens, so zero means not known."""
        return self.prompt_tokens > 0 and self.completion_tokens > 0

    @staticmethod
    def total(used: Iterable[TokenUsage]) -> TokenUsage:
        """The sums over calls. Fields of subclasses other than the token counts are left out."""
        known = list(used)
        return TokenUsage(**{name: sum(getattr(one, name) for one in known) for name in TokenUsage.model_fields})


class Origin(StrEnum):
    """Where a task came from."""

    SEED = "seed"
    GENERATED = "generated"
    IMPORTED = "imported"
    PROPOSED = "proposed"
    """A model wrote the task for a recorded episode without an instruction."""


class Source(StrEnum):
    """Where a trajectory was played."""

    REAL = "real"
    SYNTHETIC = "synthetic"
    IMPORTED = "imported"


class Tier(StrEnum):
    """The part of the system that gave an answer."""

    REAL = "real"
    """The real environment gave it."""
    RECORDED = "recorded"
    """The recorded answer to an identical state and action; the environment is declared deterministic."""
    CHECK = "check"
    """A check refused the action with a recorded message; no model was asked."""
    EFFECTS = "effects"
    """A rule derived from recordings of the tool gave the answer for this explicit state; no model was asked."""
    VIEWS = "views"
    """Recordings and the session's own calls show the answer of a server that reports no state; no model was asked."""
    PLUGIN = "plugin"
    """A tier of another package answered; `Provenance.model` names it."""
    CACHE = "cache"
    """A model predicted it before, for an identical question with the same seed."""
    MODEL = "model"
    """A model predicted the answer."""


class StopReason(StrEnum):
    """The reason why an episode ended."""

    TERMINATED = "terminated"
    """The environment ended the episode: the task's own end."""
    MAX_STEPS = "max_steps"
    FINISHED = "finished"
    """The agent gave a final answer."""
    OUT_OF_SUPPORT = "out_of_support"
    """The simulator was not confident enough to go on, so the outcome is unknown."""
    CLOSED = "closed"
    """The episode was deleted, or expired without a final answer."""
    ERROR = "error"
    """The environment or the agent failed; such a trajectory never enters a gradient."""


SAYING_NOTHING = frozenset({StopReason.FINISHED, StopReason.CLOSED, StopReason.OUT_OF_SUPPORT})
"""Stop reasons without a known reward: the agent stopped, nobody ended the episode, or the dream could not go on."""


class Task(Frozen):
    """A task for an agent in an environment."""

    id: str = Field(min_length=1)
    env: str = Field(min_length=1)
    instruction: str
    initial_state: str | None = None
    """The state in which the episode starts, as text; None if it is not known."""
    origin: Origin = Origin.SEED
    parent_id: str | None = None
    """The task that a generated one was varied from."""
    metadata: JsonObject = Field(default_factory=dict)
    """`world` is the recorded world of a task that was varied from another one. `success` and `answers` are the task's
    own check (dreamgym.dream.task_check)."""

    @property
    def world(self) -> str:
        """Id of the world that a deterministic environment plays this task in: its own, or that of its parent task."""
        return str(self.metadata.get("world", self.id))

    @property
    def goal(self) -> str:
        """The goal as one text: the instruction, and the task's own check if it has one.

        A recorded success counts only for tasks with the same goal. A task without an instruction is open: it shares
        its goal only with the tasks that were varied from it. The database computes the same text.
        """
        if not self.instruction.strip():
            return f"\n{self.world}"
        checks = (self.metadata[key] for key in ("success", "answers") if key in self.metadata)
        told = (json.dumps(check, ensure_ascii=False, separators=(",", ":")) for check in checks)
        return "\n".join([self.instruction, *told])

    @property
    def is_blank(self) -> bool:
        """True if it has no instruction, no start and no metadata, as the task of a recording that names none."""
        return not (self.instruction.strip() or self.initial_state or self.metadata.keys() - {"recorded"})


class ToolCall(Frozen):
    """An action: a call of one tool. A text environment has one tool with one string argument."""

    name: str = Field(min_length=1)
    arguments: JsonObject = Field(default_factory=dict)
    answers: JsonObject = Field(default_factory=dict, exclude_if=lambda answers: not answers)
    """The client's replies to questions of the tool (MCP's `inputResponses` and `requestState`), if there were any."""

    def canonical(self) -> str:
        """The action as one text. Calls that differ only in the order of their arguments give equal texts."""
        arguments = _canonical(self.arguments)
        answers = json.dumps(self.answers, sort_keys=True, ensure_ascii=False) if self.answers else ""
        return f"{self.name}{arguments}{answers}"


_canonical = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode


class StepResult(Frozen):
    """The result of a step as the agent's side may see it, without the simulator's reasoning."""

    observation: str
    reward: float = Field(default=0.0, allow_inf_nan=False)
    terminated: bool = False
    truncated: bool = False
    is_error: bool = False
    """True if the tool answered with an error; the observation is its message."""
    info: JsonObject = Field(default_factory=dict)
    """Known keys:

    - `state`: the state after the step, if it differs from the observation;
    - `content`: the MCP content blocks, if they are more than the observation as one text;
    - `structured`: the structured content, if the tool gave one: an object, or since revision 2026-07-28 any JSON;
    - `fields`: the fields of the tool's answer that MCP does not define;
    - `meta`: the `_meta` of the tool's answer;
    - `asks`: what the tool asks the client before it can answer (MCP's `inputRequests` and `requestState`);
    - `notices`: the MCP notifications that the tool sent while it ran;
    - `error`: the JSON-RPC error that the tool answered with;
    - `open_end`: as in Provenance;
    - `redacted`: True if the call was stored redacted, so that it cannot be played again in the real environment;
    - `objects`: how a dream of objects differs from its recorded start. Agents are never shown this."""

    @property
    def state(self) -> str:
        """The state after the step: the observation itself, unless `info` has a `state`."""
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
        """The structured content if it is an object; else None."""
        value = self.info.get("structured")
        return value if isinstance(value, dict) else None

    @property
    def done(self) -> bool:
        """True if the episode is over: terminated or truncated."""
        return self.terminated or self.truncated


class Provenance(TokenUsage):
    """The origin of an answer: stored with each transition, never shown to the agent.

    The tokens are those of all model calls for this answer; a cached answer costs none.
    """

    tier: Tier
    model: str | None = None
    retrieved: tuple[str, ...] = ()
    """Ids of the retrieved transitions that the model was shown."""
    seed: int | None = None
    exact: bool = False
    """True if the answer is that of a recorded transition with an identical state and action."""
    confidence: float | None = Field(default=None, ge=0.0, le=1.0)
    """Calibrated probability that the answer is right; None if the model is not calibrated."""
    judged: bool | None = None
    """A judge's verdict on a claimed success; None if no judge was asked."""
    checked: bool | None = None
    """The verdict of the task's own check on the state after a claimed success; None if the task has no check."""
    open_end: bool = False
    """True if it is unknown whether the step ended the task: it ended a task with another goal when it was recorded,
    the judge gave no usable verdict, or the real environment itself could not judge its end. The reward is unknown
    unless the episode goes on and ends later."""
    unbounded: bool = False
    """True if the answer changed the explicit state in a way that no recording of such a call shows. A later success by
    the state alone is then open until a judge confirms it."""
    seconds: float | None = Field(default=None, ge=0.0, exclude_if=lambda seconds: seconds is None)
    """Time until the answer, in an episode of a server. Left out of JSON if None, so that the digests of older data do
    not change."""


class Transition(Frozen):
    """One step as it is stored: state, action, result and next state."""

    state: str
    action: ToolCall
    result: StepResult
    next_state: str
    reasoning: str = ""
    provenance: Provenance

    @classmethod
    def of(cls, state: str, action: ToolCall, result: StepResult, provenance: Provenance | None = None) -> Transition:
        """A step from a state to the state of its result.

        Args:
            state: the state before the step.
            action: the call.
            result: its result.
            provenance: provenance of the result; None for a step of the real environment.
        """
        if provenance is None:
            provenance = Provenance(tier=Tier.REAL, open_end=result.info.get("open_end") is True)
        return cls(state=state, action=action, result=result, next_state=result.state, provenance=provenance)

    @classmethod
    def chain(cls, state: str, steps: Iterable[tuple[ToolCall, StepResult]]) -> tuple[Transition, ...]:
        """Consecutive steps of the real environment. The first begins in `state`, each other where the last ended."""
        made: list[Transition] = []
        for action, result in steps:
            made.append(cls.of(made[-1].next_state if made else state, action, result))
        return tuple(made)

    def digest(self, action: str | None = None) -> bytes:
        """Identity for de-duplication: sha256 over states, action, observation, reward, termination and error flag.

        Args:
            action: `self.action.canonical()`, if the caller has it already.
        """
        parts = [
            self.state,
            self.action.canonical() if action is None else action,
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
    """The agent's final answer; None if it gave none."""
    final_reward: float | None = Field(default=None, allow_inf_nan=False)
    """Reward of the final answer; None if nobody judged it, which is not the same as 0."""
    error: str | None = None
    """The error message if `stop_reason` is `error`."""

    @model_validator(mode="after")
    def _only_the_last_step_ends_the_episode(self) -> Trajectory:
        for step, transition in enumerate(self.transitions[:-1]):
            if transition.result.done:
                raise ValueError(f"step {step} of {len(self.transitions)} already ends the episode")
        return self

    @model_validator(mode="after")
    def _the_rewards_have_a_sum(self) -> Trajectory:
        if not math.isfinite(self.total_reward):
            raise ValueError("expected rewards with a finite sum, got rewards whose sum is beyond any number")
        return self

    def digest(self) -> bytes:
        """sha256 over the whole content of the trajectory."""
        return hashlib.sha256(self.model_dump_json().encode()).digest()

    @property
    def world_id(self) -> str:
        """Id of the world that this trajectory was played in."""
        return self.world or self.id

    @property
    def total_reward(self) -> float:
        """Undiscounted sum of the rewards, that of the final answer included."""
        return sum(transition.result.reward for transition in self.transitions) + (self.final_reward or 0.0)

    @property
    def reward(self) -> float | None:
        """The total reward, or None if it is not known: the episode failed, or nobody judged its end.

        An unknown reward is not 0, and nothing is learned from it.
        """
        if self.stop_reason is StopReason.ERROR:
            return None
        has_ended = bool(self.transitions) and self.transitions[-1].result.terminated
        if has_ended or self.final_reward is not None:
            return self.total_reward
        is_open = any(transition.provenance.open_end for transition in self.transitions)
        return None if is_open or self.stop_reason in SAYING_NOTHING else self.total_reward

    @property
    def end(self) -> str:
        """Stop reason and reward as a text for people: `finished, reward unknown`."""
        return f"{self.stop_reason}, reward {'unknown' if self.reward is None else f'{self.reward:g}'}"

    @property
    def success(self) -> bool:
        """True if the final reward is positive; without one, if the task itself ended with a positive total reward."""
        if self.final_reward is not None:
            return self.final_reward > 0
        return bool(self.transitions) and self.transitions[-1].result.terminated and self.total_reward > 0
