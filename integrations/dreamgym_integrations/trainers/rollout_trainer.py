"""TRL's GRPO trainer, fed with our rollouts: TRL's loss and optimisation, our episodes and advantages.

An episode has as many rows as segments, so the number of rows is known only once it was played. Rows that fill up the
batch have nothing to learn from. With `use_vllm=False` TRL computes the old log-probabilities itself.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

from anyio.from_thread import BlockingPortal

from dreamgym.advantages import group_advantages
from dreamgym.errors import EnvironmentUnavailable, MissingPackage
from dreamgym.rollout import Player, Rollout, Segment
from dreamgym.training import Practice

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # also keeps TRL from calling home
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
try:
    import torch
    from trl import GRPOTrainer
except ImportError as error:
    raise MissingPackage("training", "train") from error


class RolloutTrainer(GRPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """GRPO over segments.

    Args:
        practice: says what is played.
        player: plays it.
        portal: the event loop on which the environments live.
        options: as TRL's trainer takes them.
    """

    def __init__(self, practice: Practice, player: Player, portal: BlockingPortal, **options: Any) -> None:
        self._practice, self._player, self._portal = practice, player, portal
        self._rows: list[Segment] = []
        super().__init__(reward_funcs=_unscored, rollout_func=self._rolled_out, **options)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        """Play, let TRL make tensors of the rows, and put our advantages in.

        Raises:
            EnvironmentUnavailable: every rollout failed; nothing can be learned from that.
        """
        episodes: list[Rollout] = self._portal.call(self._practice.iterate, self._player, self.state.global_step)
        valid = [episode for episode in episodes if episode.reward is not None]
        if not valid:
            errors = {str(episode.error) for episode in episodes}
            raise EnvironmentUnavailable(f"every rollout of an update failed: {'; '.join(sorted(errors))}")
        rows = [segment for episode in valid for segment in episode.segments if segment.completion_ids]
        self._rows = [*rows, *(self._empty() for _ in range(self._missing(len(rows))))]
        output: dict[str, Any] = super()._generate_and_score_completions([dict(inputs[0]) for _ in self._rows])
        self._score(episodes, output)
        return output

    def _score(self, episodes: Sequence[Rollout], output: dict[str, Any]) -> None:
        """Put `advantages` in: those of each episode's group, for all its rows, in the order of the rows."""
        size = self.num_generations
        advantages = []
        for start in range(0, len(episodes), size):
            group = episodes[start : start + size]
            for episode, advantage in zip(group, group_advantages([episode.reward for episode in group]), strict=True):
                if episode.reward is not None:
                    advantages += [advantage for segment in episode.segments if segment.completion_ids]
        advantages += [0.0] * (len(self._rows) - len(advantages))
        output["advantages"] = torch.tensor(advantages, device=self.accelerator.device)

    def _missing(self, rows: int) -> int:
        """So many rows fill up the batch: TRL splits it by group and by mini-batch, alike in all processes."""
        unit = math.lcm(self.num_generations, self.args.steps_per_generation)
        most = self.accelerator.gather(torch.tensor([rows], device=self.accelerator.device)).max().item()
        return math.ceil(max(int(most), 1) / unit) * unit - rows

    def _empty(self) -> Segment:
        """A row without anything to learn from."""
        end = self.processing_class.eos_token_id
        return Segment([end], [end], [0], [0.0], [0.0])

    def _rolled_out(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        return {
            "prompt_ids": [row.prompt_ids for row in self._rows],
            "completion_ids": [row.completion_ids for row in self._rows],
            "logprobs": [row.logprobs for row in self._rows] if self.use_vllm else None,
            "env_mask": [row.mask for row in self._rows],
        }


def _unscored(completions: list[Any], **_: object) -> list[float]:
    """TRL wants a reward function; the advantages are set afterwards."""
    return [0.0] * len(completions)
