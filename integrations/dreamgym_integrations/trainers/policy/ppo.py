"""PPO beside GRPO: a value head on the policy's last hidden state, and advantages from it instead of from the group.

TRL no longer has PPO. The head is a part of the model, computed in the same forward pass as the log-probabilities, so
it is saved, resumed and synchronised over processes with the model. It is removed before the policy is saved, which
stays an ordinary language model.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn

from dreamgym.training.advantages import generalised_advantages
from dreamgym.training.rollout import Segment
from dreamgym_integrations.trainers.policy.grpo import RolloutTrainer, ScoredRollout, by_confidence

HEAD = "value_head"
DISCOUNT = 1.0
"""Discount factor gamma, per sampled token."""
DECAY = 0.95
"""Lambda of the generalised advantage estimate (not the curriculum's lambda)."""
VALUE_CLIP = 0.2
"""Clip range of the value loss: how far a value may move from its value at the time of the rollout."""
VALUE_COEFFICIENT = 0.1
"""Weight of the value loss, relative to the policy loss."""


class ValueHead(nn.Module):  # type: ignore[misc]  # torch's modules are not typed
    """The value of a state, from the hidden state of its last token. It starts at zero everywhere."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(hidden))
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, hidden_BTH: torch.Tensor) -> torch.Tensor:
        """Values, shape (B, T)."""
        return hidden_BTH.float() @ self.weight + self.bias


class Values:
    """Puts a value head on a causal language model and keeps its values of each forward pass.

    Args:
        model: the model, before anything wraps it.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        model.add_module(HEAD, ValueHead(model.config.get_text_config().hidden_size).to(model.device))
        self._hook = model.base_model.register_forward_hook(self._heard)
        self._passes_BT: list[torch.Tensor] = []

    def _heard(self, module: nn.Module, inputs: object, output: Any) -> None:
        if not torch.is_inference_mode_enabled():  # nothing is learned from the passes that sample
            head = getattr(self._model, HEAD)  # read each time: an adapter replaces it by its own
            self._passes_BT.append(head(output.last_hidden_state))

    def forget(self) -> None:
        """Drop the values that were kept so far."""
        self._passes_BT = []

    def take(self, completion: int) -> torch.Tensor:
        """Values of the states that each completion token was chosen in, in all passes since the last call."""
        values_BT = torch.cat(self._passes_BT)
        self.forget()
        return values_BT[:, -completion - 1 : -1]

    def remove(self) -> None:
        """Take the value head off the model."""
        self._hook.remove()
        delattr(self._model, HEAD)


class PPOTrainer(RolloutTrainer):
    """PPO over the sampled tokens of whole episodes.

    Args:
        values: the value head on the model.
        options: options of RolloutTrainer.
    """

    def __init__(self, *arguments: Any, values: Values, **options: Any) -> None:
        self._values = values
        super().__init__(*arguments, **options)

    def _divided(self, groups: Sequence[Sequence[ScoredRollout]]) -> tuple[list[Segment], list[Segment]]:
        """Learn from all rows, since each has values to learn."""
        return [row for group in groups for one in group for row in one.rows], []

    def _score(self, groups: Sequence[Sequence[ScoredRollout]], output: dict[str, Any]) -> None:
        """Set `advantages` (whitened), `returns` and `old_values`, all of shape (B, T)."""
        values_BT = self._old_values(output)
        numbers_BT = values_BT.tolist()
        advantages_BT, returns_BT = torch.zeros_like(values_BT), values_BT.clone()
        first, episodes = 0, list(chain(*groups))
        weights = by_confidence([1.0] * len(episodes), episodes, self._settings)
        weights_B1 = torch.ones_like(values_BT[:, :1])
        for one, weight in zip(episodes, weights, strict=True):
            rows = one.rows
            places = [(first + b, t) for b, t in sampled_places(rows)]
            if places:
                rewards_T = token_rewards(rows, one.episode.total_reward)
                values_T = [numbers_BT[b][t] for b, t in places]
                estimated_T = generalised_advantages(rewards_T, values_T, discount=DISCOUNT, decay=DECAY)
                advantages_T = torch.tensor(estimated_T, device=values_BT.device)
                index = tuple(torch.tensor(axis, device=values_BT.device) for axis in zip(*places, strict=True))
                advantages_BT[index] = advantages_T
                returns_BT[index] += advantages_T
            weights_B1[first : first + len(rows)] = weight
            first += len(rows)
        mask_BT = output["completion_mask"] * output["tool_mask"]
        output["advantages"] = self._whitened(advantages_BT, mask_BT) * weights_B1
        output["returns"], output["old_values"] = returns_BT, values_BT

    def _old_values(self, output: dict[str, Any]) -> torch.Tensor:
        input_ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        attention = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        size = self.args.per_device_train_batch_size
        self._values.forget()
        with torch.no_grad():
            for start in range(0, len(input_ids), size):
                rows = slice(start, start + size)
                self.model(input_ids=input_ids[rows], attention_mask=attention[rows], logits_to_keep=1)
        return self._values.take(output["completion_ids"].shape[1])

    def _whitened(self, advantages_BT: torch.Tensor, mask_BT: torch.Tensor) -> torch.Tensor:
        """Advantages scaled to mean 0 and standard deviation 1 over the sampled tokens of all processes."""
        exact_BT = advantages_BT.double()  # in 32 bits, equal advantages would differ from their own mean
        sums = torch.stack([mask_BT.sum(), (exact_BT * mask_BT).sum(), (exact_BT**2 * mask_BT).sum()])
        count, total, squares = self.accelerator.reduce(sums, reduction="sum").tolist()
        mean = total / max(count, 1.0)
        deviation = max(squares / max(count, 1.0) - mean**2, 0.0) ** 0.5
        return (advantages_BT - mean) / (deviation + 1e-8) * mask_BT

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """The clipped loss of the policy and the clipped loss of the values, both per sampled token."""
        self._values.forget()
        loss = super()._compute_loss(model, inputs)
        values_BT = self._values.take(inputs["completion_ids"].shape[1])
        mask_BT = inputs["completion_mask"] * inputs["tool_mask"]
        errors_BT = value_errors(values_BT, inputs["old_values"], inputs["returns"], VALUE_CLIP)
        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        tokens = tokens * self.current_gradient_accumulation_steps / self.args.steps_per_generation
        value_loss = (errors_BT * mask_BT).sum() / tokens
        self._metrics["train"]["value_loss"].append(value_loss.item())
        self.check_finite("the value loss", value_loss)
        return loss + VALUE_COEFFICIENT * value_loss


def value_errors(
    values_BT: torch.Tensor, old_values_BT: torch.Tensor, returns_BT: torch.Tensor, clip: float
) -> torch.Tensor:
    """Half the squared error of each value, or of the value clipped near its old one, whichever is larger."""
    near_BT = old_values_BT + (values_BT - old_values_BT).clamp(-clip, clip)
    return 0.5 * torch.max((values_BT - returns_BT) ** 2, (near_BT - returns_BT) ** 2)


def sampled_places(rows: Sequence[Segment]) -> list[tuple[int, int]]:
    """Row and place of each sampled token of an episode, in the order in which they were sampled."""
    places = [(b, t) for b, row in enumerate(rows) for t, sampled in enumerate(row.mask) if sampled]
    return sorted(places, key=lambda place: rows[place[0]].turns[place[1]])


def token_rewards(rows: Sequence[Segment], total: float) -> list[float]:
    """Reward of each sampled token of an episode, in the order in which they were sampled.

    The last one also gets the reward that was not credited to any action.
    """
    rewards_T = [rows[b].rewards[t] for b, t in sampled_places(rows)]
    if rewards_T:
        rewards_T[-1] += total - sum(rewards_T)
    return rewards_T
