"""Sampling with vLLM, through TRL's own engine: in this process (colocate) or a `vllm serve` beside it (server).

Written against TRL 1.16 and never run here, where there is no GPU. TRL keeps the engine's weights up to date and
corrects for the difference between its log-probabilities and the trainer's. vLLM draws its own random numbers: a run
with it is not repeatable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dreamgym.training.rollout import Generation


class VllmPolicy:
    """The policy in training, sampled by TRL's vLLM engine."""

    trainer: Any
    """The trainer whose engine it is; set once that exists."""

    def __init__(self) -> None:
        self._loaded_step: int | None = None
        """The update whose weights the engine has."""

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """Sample one answer per prompt; the seeds are not used."""
        trainer = self.trainer
        if trainer.state.global_step != self._loaded_step:
            trainer.vllm_generation.sync_weights()
            self._loaded_step = trainer.state.global_step
        _, ids_BT, logprobs_BTK, _ = trainer.vllm_generation.generate(
            prompts=[list(prompt) for prompt in prompts_B], images=None, num_generations=1
        )
        return [
            Generation(ids=tuple(ids), logprobs=tuple(float(top[0]) for top in logprobs))
            for ids, logprobs in zip(ids_BT, logprobs_BTK, strict=True)
        ]
