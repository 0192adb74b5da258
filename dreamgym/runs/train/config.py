"""Settings of a training run, in its TOML file or on the command line under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self, get_args

from pydantic import Field, field_validator, model_validator

from dreamgym.dream.model import Part
from dreamgym.evaluation.setting import WITHOUT
from dreamgym.runs.opening import Against, dream_setting
from dreamgym.training.practice import PPOSettings, Settings

NewPolicy = Literal["tiny", "pointer", "pointer without marks"]
"""Policies from scratch, which are made from the recordings."""
NEW = frozenset(get_args(NewPolicy))
POINTERS = NEW - {"tiny"}
RECORDED = {"sft", "dpo"}
"""Algorithms that learn from recordings alone."""
OF_ROLLOUTS = (
    *("then", "real_steps", "beta", "vllm", "tinker", "staleness"),
    *("calibration", "weigh_confidence", "least_confidence"),
)
"""Settings that only an algorithm that learns from rollouts can follow."""
LIMITS = ("turn_tokens", "episode_tokens", "bf16", "gradient_checkpointing")
"""Settings of the length of a language model's answers, and of the memory that its training takes."""
OF_LANGUAGE_MODELS = ("lora", "vllm", "gradient_checkpointing")
"""Settings that a pointer policy cannot follow."""
OF_DREAMS = ("model", "without", "calibration")
"""Settings that only practice in a dream can follow."""
OF_RECORDINGS = ("batch", "mask_refused")
"""Settings that only an algorithm that learns from recordings can follow."""


class TrainConfig(Settings):
    """Settings of where a policy practises, how it is probed and recorded, and (from Settings) how it learns."""

    policy: str = "tiny"
    """Checkpoint folder to start from, or a new policy made from the recordings: `tiny` writes words, `pointer` points
    at entities that the environment's reader knows, `pointer without marks` does not see which ones the task names."""
    against: Against = Against.DREAM
    """Environment to practise in: dream or real."""
    then: Literal[Against.REAL] | None = None
    """`real`: after the dream, the policy continues to practise in the real environment, for `real_steps`."""
    real_steps: int | None = Field(default=None, ge=1)
    """Maximum number of real steps of the practice. If `steps` is not given, the number of updates follows from it."""
    agent: str | None = None
    """An agent by entry point or module:function, with the policy behind it; default: the policy acts by itself."""
    in_process: bool = False
    """Play in the trainer's own process, without a server. The result is the same. Not possible with an agent."""
    probe: int = Field(default=200, ge=0)
    """Number of real dev episodes per probe; 0: no probes."""
    stop: bool = True
    """Stop, and keep the best probe's policy, if success in the real environment has significantly fallen."""
    keep: Literal["last", "best"] = "best"
    """Policy that counts at the end: the last one, or that of the best probe."""
    stored_only: bool = False
    """Know the recordings in the store alone. Otherwise, what is new in the environment's folder is stored first."""
    model: str | None = None
    """Experience model, as in other verbs: nearest, local, a checkpoint folder, http://host/v1, …."""
    without: tuple[Part, ...] = ()
    """Parts of the dream to leave out; `model = "local without history"` does the same."""
    calibration: Path | None = None
    """Calibration of the dream's answers, written by `dreamgym fidelity`, which `weigh_confidence` and
    `least_confidence` use."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Programs that get the metrics besides metrics.jsonl."""
    batch: int = Field(default=32, ge=1)
    """Number of recorded episodes (sft; recorded steps for a pointer policy) or pairs (dpo) per update."""
    mask_refused: bool = False
    """sft without an agent: recorded commands that the environment refused are read but not imitated."""

    def settings(self) -> Settings:
        """The settings that the trainer needs."""
        return Settings.model_validate(self.model_dump(include=set(Settings.model_fields)))

    @model_validator(mode="before")
    @classmethod
    def _parts_of_the_model(cls, given: object) -> object:
        """Split the model as `--model` of other verbs does: `local without history` leaves out the history."""
        if not isinstance(given, Mapping) or not any(part in str(given.get("model")) for part in (WITHOUT, " -k ")):
            return given
        named, parts = dream_setting(str(given["model"])), given.get("without") or ()
        more = parts.split(",") if isinstance(parts, str) else parts
        return {**given, "model": named.model or None, "without": [*more, *named.without]}

    @field_validator("without", "log", mode="before")
    @classmethod
    def _several(cls, value: object) -> object:
        """Split several values that the command line gives as one word with commas."""
        return tuple(value.split(",")) if isinstance(value, str) else value

    @model_validator(mode="after")
    def _goes_together(self) -> Self:
        unused: tuple[str, ...] = OF_ROLLOUTS if self.algorithm in RECORDED else OF_RECORDINGS
        unused += ("mask_refused", "accumulate", "agent", "lora", *LIMITS) if self.algorithm == "dpo" else ()
        given = [name for name in unused if getattr(self, name) != type(self).model_fields[name].default]
        if given:
            raise ValueError(f"{self.algorithm} has no {', '.join(given)}: leave them out, or use another algorithm")
        if self.mask_refused and self.agent is not None:
            raise ValueError("mask_refused is for sft without an agent: leave it out, or agent")
        if self.algorithm == "sft" and self.batch % self.accumulate:
            raise ValueError(f"a batch of {self.batch} does not split into {self.accumulate} equal passes")
        if self.algorithm != "ppo" and self.ppo != PPOSettings():
            raise ValueError("settings of ppo need algorithm = ppo: set it, or leave them out")
        if self.real_steps is not None and self.then is None and self.against is Against.DREAM:
            raise ValueError("real_steps needs then = real or against = real: a dream takes no real steps")
        if self.then is not None and self.against is Against.REAL:
            raise ValueError("then = real comes after the dream, not after against = real")
        if self.then is not None and self.real_steps is None:
            raise ValueError("then = real needs real_steps, the number of real steps it may take")
        if self.policy in POINTERS and (given := [name for name in OF_LANGUAGE_MODELS if getattr(self, name)]):
            raise ValueError(f"a pointer policy has no {', '.join(given)}: leave them out")
        if self.tinker and self.policy in NEW:
            raise ValueError("tinker needs policy, the name of the server's base model")
        if self.against is Against.REAL and (of_dreams := [one for one in OF_DREAMS if getattr(self, one)]):
            raise ValueError(f"settings of dreams: leave out {', '.join(of_dreams)} with against = real")
        if self.in_process and self.agent is not None:
            raise ValueError("in_process has no URL for an agent to play at: leave out in_process, or agent")
        if (self.weigh_confidence or self.least_confidence) and self.calibration is None:
            raise ValueError("weigh_confidence and least_confidence need a calibration: dreamgym fidelity writes one")
        return self
