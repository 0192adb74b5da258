"""TRL's GRPO trainer, fed with our rollouts: TRL's loss and optimisation, our episodes and advantages.

An episode has as many rows as segments, so the number of rows is known only after it was played. Rows that fill up the
batch contain nothing to learn. With `use_vllm=False` TRL computes the old log-probabilities itself. One update is one
round of play and all optimiser steps that learn from it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from dreamgym.errors import TrainingStopped
from dreamgym.training.advantages import group_advantages, weighted
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.rollout import Rollout, Segment
from dreamgym_integrations.trainers.common.checkpoints import saving
from dreamgym_integrations.trainers.common.trl_setup import norm_of_weights
from dreamgym_integrations.trainers.policy.rounds import Round, Rounds

MOST_WEIGHT = 2.0
"""Highest importance weight of a token that is learned from."""


@dataclass(frozen=True)
class ScoredRollout:
    """An episode with its reward, if it may be learned from."""

    episode: Rollout
    reward: float | None
    """None if the episode may not be learned from."""

    @property
    def rows(self) -> list[Segment]:
        """Its rows of the batch: the conversations in which the policy said something; none without a reward."""
        return [] if self.reward is None else [one for one in self.episode.segments if one.completion_ids]


class RolloutTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """GRPO over segments.

    Args:
        practice: gives the rewards of the episodes.
        settings: see Settings.
        options: options of TRL's trainer.
    """

    rounds: Rounds
    """Source of the rollouts; set once the trainer exists."""
    round: Round
    """The round that the running update learns from."""

    def __init__(self, practice: Practice, settings: Settings, **options: Any) -> None:
        self._practice, self._settings = practice, settings
        self.waited_s = 0.0
        """Seconds that the running update has waited for its rollouts."""
        self.learns = True
        """False if the running update has no row that changes the policy; figures of its tokens then mean nothing."""
        self._rows: list[Segment] = []
        super().__init__(reward_funcs=_unscored, rollout_func=self._rolled_out, **options)

    @property
    def updates(self) -> int:
        """Number of updates that are done."""
        return int(self.state.global_step) // steps_per_update(self._settings)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play, let TRL make tensors of the rows, and put our advantages in.

        Raises:
            EnvironmentUnavailable: every rollout failed, so nothing can be learned.
            TrainingStopped: nothing could be learned from the last updates.
        """
        began = time.monotonic()
        self.round = self.rounds.take(self.updates)
        self.waited_s = time.monotonic() - began
        check_alive(self.round, self._settings)
        scored = scored_groups(self.round, self._practice)
        rows, idle = self._divided(scored)
        self.learns = bool(rows)
        end = self.processing_class.eos_token_id
        self._rows = [*rows, *(Segment([end], [end], [0], [0.0], [0.0], [0]) for _ in range(self._missing(len(rows))))]
        output: dict[str, Any] = super()._generate_and_score_completions([dict(inputs[0]) for _ in self._rows])
        self._score(scored, output)
        # the loss is a mean over all sampled tokens of the update
        output["num_items_in_batch"] += self._sum(sum(sum(row.mask) for row in idle))
        if self._settings.staleness or self._settings.vllm:
            self._weigh(output)
        return output

    def _divided(self, groups: Sequence[Sequence[ScoredRollout]]) -> tuple[list[Segment], list[Segment]]:
        """The rows to learn from, and the other rows."""
        rows = rows_of(groups, self._settings)
        return (
            [row for row, advantage in rows if self._moves(advantage)],
            [row for row, advantage in rows if not self._moves(advantage)],
        )

    def _moves(self, advantage: float) -> bool:
        """True if an episode with this advantage changes the policy; with a KL term, every episode does."""
        return advantage != 0 or self._settings.beta != 0

    def _score(self, groups: Sequence[Sequence[ScoredRollout]], output: dict[str, Any]) -> None:
        """Set `advantages`, shape (B,): each row gets the advantage of its episode within its group."""
        of_rows = [advantage for _, advantage in rows_of(groups, self._settings) if self._moves(advantage)]
        of_rows += [0.0] * (len(self._rows) - len(of_rows))
        output["advantages"] = torch.tensor(of_rows, device=self.accelerator.device)

    def _sum(self, number: int) -> torch.Tensor:
        """The sum over all processes."""
        return self.accelerator.gather(torch.tensor([number], device=self.accelerator.device)).sum()

    def _weigh(self, output: dict[str, Any]) -> None:
        """Let TRL's loss weigh each completion token by w = pi/mu, and leave out the tokens whose w is above 2.

        An older policy mu, or the same policy in another engine, has sampled the tokens, and the policy pi learns from
        them. TRL's loss takes the log-probabilities under mu, shape (B, T), as the old ones. It multiplies by w both
        the advantage and the KL term, which is beta w (r - log r - 1) with r = start policy / pi (DeepSeek-V3.2,
        arXiv:2512.02556) and has no limit. So the mask leaves out the tokens whose w is above 2 before the update, for
        the values of PPO too; the rho of IMPALA would give them the weight 2. For a token whose w gets above 2 between
        the optimiser steps of PPO, only the advantage stops to count (TRL's `delta`). A token that has already moved
        further than the clip range of PPO (Schulman et al. 2017, equation 7) in the direction of its advantage is moved
        by the KL term alone. Without that limit, updates from the same old policy add up.
        """
        sampled_BT = torch.zeros_like(output["completion_ids"], dtype=torch.float32)
        for b, row in enumerate(self._rows):
            sampled_BT[b, : len(row.logprobs)] = torch.tensor(row.logprobs)
        weights_BT = (self._logprobs(output) - sampled_BT).exp()
        weights = weights_BT[(output["completion_mask"] * output["tool_mask"]).bool()]
        if len(weights):
            self._metrics["train"]["importance"].append(weights.mean().item())
            self._metrics["train"]["truncated_share"].append((weights > MOST_WEIGHT).float().mean().item())
        output["old_per_token_logps"] = sampled_BT
        output["tool_mask"] = output["tool_mask"] * (weights_BT <= MOST_WEIGHT)

    def _logprobs(self, output: dict[str, Any]) -> torch.Tensor:
        """Log-probability of each completion token under the current policy, shape (B, T)."""
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        with torch.no_grad():
            found: torch.Tensor = self._get_per_token_logps_and_entropies(
                self.model,
                ids,
                attention,
                output["completion_ids"].shape[1],
                batch_size=self.args.per_device_train_batch_size,
            )[0]
        return found

    def _missing(self, rows: int) -> int:
        """Number of rows that fill up this process's batch.

        All processes fill up to the same size, since they synchronise in every optimiser step.
        """
        # TRL reshapes a batch into groups of `num_generations` for its own advantages, which fails if a row is left
        # over, and cuts it into `steps_per_generation` equal batches, which drops those left over. Episodes have any
        # number of rows, so the batch is filled up to a multiple of both numbers.
        unit = math.lcm(self.num_generations, self.args.steps_per_generation)
        most = self.accelerator.gather(torch.tensor([rows], device=self.accelerator.device)).max().item()
        return math.ceil(max(int(most), 1) / unit) * unit - rows

    def _rolled_out(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        return {
            "prompt_ids": [row.prompt_ids for row in self._rows],
            "completion_ids": [row.completion_ids for row in self._rows],
            "logprobs": None,
            "env_mask": [row.mask for row in self._rows],
        }

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss. Raises TrainingStopped if it is not finite."""
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        self.check_finite("the loss", loss)
        return loss

    def check_weights(self) -> None:
        """Raise TrainingStopped if a trained weight is not finite. Called before each checkpoint is saved."""
        self.check_finite("a weight", norm_of_weights(self.model))

    def check_finite(self, what: str, value: torch.Tensor) -> None:
        """Raise TrainingStopped if a value is not finite; `what` is its name in the message."""
        if not bool(torch.isfinite(value).all()):
            raise TrainingStopped(
                f"{what} is not a finite number in update {self.updates}: start again with a smaller learning_rate "
                f"than {self._settings.learning_rate:g}; the checkpoints in {self.args.output_dir} are from before it"
            )

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Save a checkpoint. Raises TrainingStopped if it cannot be written."""
        with saving(Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}"):
            super()._save_checkpoint(model, trial)


def check_alive(played: Round, settings: Settings) -> None:
    """Raise TrainingStopped if there was nothing to learn for as many updates as the settings allow."""
    dead, limit, least = played.dead_updates, settings.dead_updates, settings.least_confidence
    if limit and dead >= limit:
        sure, lower = (f" with a confidence of at least {least:g}", "lower least_confidence, ") if least else ("", "")
        raise TrainingStopped(
            f"no rollout of the last {dead} updates succeeded{sure}, so there was nothing to learn: {lower}warm-start "
            "the policy on recorded successes, practise easier tasks first, or play larger groups"
        )


def scored_groups(played: Round, practice: Practice) -> list[list[ScoredRollout]]:
    """The episodes of a round with their rewards."""
    return [
        [ScoredRollout(*one) for one in zip(group, practice.rewards(group), strict=True)] for group in played.groups
    ]


def advantages_of(group_G: Sequence[ScoredRollout], settings: Settings) -> list[float]:
    """The advantage of each episode within its group; 0 for one without a reward."""
    return by_confidence(group_advantages([one.reward for one in group_G]), group_G, settings)


def by_confidence(advantages: Sequence[float], episodes: Sequence[ScoredRollout], settings: Settings) -> list[float]:
    """The advantages, multiplied by the confidence in their episodes if the settings ask for it."""
    if not settings.weigh_confidence:
        return list(advantages)
    return weighted(advantages, [one.episode.confidence for one in episodes])


def scored_rows(played: Round, practice: Practice, settings: Settings) -> list[tuple[Segment, float]]:
    """The rows of a round, each with the advantage of its episode."""
    return rows_of(scored_groups(played, practice), settings)


def rows_of(groups: Sequence[Sequence[ScoredRollout]], settings: Settings) -> list[tuple[Segment, float]]:
    """The rows of groups, each with the advantage of its episode."""
    return [
        (row, advantage)
        for group_G in groups
        for one, advantage in zip(group_G, advantages_of(group_G, settings), strict=True)
        for row in one.rows
    ]


def steps_per_update(settings: Settings) -> int:
    """Optimiser steps that learn from one round of play."""
    return settings.ppo.epochs * settings.ppo.mini_batches if settings.algorithm == "ppo" else 1


def _unscored(completions: list[Any], **_: object) -> list[float]:
    """Return zeros: TRL requires a reward function, and the advantages are set afterwards."""
    return [0.0] * len(completions)
