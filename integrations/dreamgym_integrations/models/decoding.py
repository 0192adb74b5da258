"""Batched decoding with a transformers model. An answer that has ended leaves the batch and costs no more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dreamgym_integrations.models.certainty import Certainty

if TYPE_CHECKING:
    import torch

CPU_CHUNK = 128
"""Tokens of a prompt that a CPU processes at a time: the activations of a whole prompt would not fit its cache."""


@dataclass(frozen=True)
class Decoding:
    """One question: the tokens of its prompt, and how to sample the answer."""

    tokens: Sequence[int]
    most: int
    """Most tokens of the answer."""
    temperature: float
    """0 takes the likeliest token at each step."""
    seed: int


def decoded(
    model: Any, prompts_B: Sequence[Decoding], *, pad: int, ends: Collection[int], certainty: Certainty
) -> list[list[int]]:
    """The tokens of each answer, including the one that ends it. `certainty` watches the greedy answers.

    Raises:
        ValueError: the model does not cache keys and values.
    """
    import torch

    device = model.device
    written_B: list[list[int]] = [[] for _ in prompts_B]
    draws = {b: torch.Generator(device).manual_seed(one.seed) for b, one in enumerate(prompts_B) if one.temperature > 0}
    width = max(len(one.tokens) for one in prompts_B)
    ids = torch.tensor([[pad] * (width - len(one.tokens)) + [*one.tokens] for one in prompts_B], device=device)
    mask = torch.tensor([[0] * (width - len(one.tokens)) + [1] * len(one.tokens) for one in prompts_B], device=device)
    going, cache = list(range(len(prompts_B))), None
    with torch.inference_mode():
        while True:
            logits, cache = _read(model, ids, mask, cache)
            chosen = logits.argmax(-1).tolist()
            for row, b in enumerate(going):
                if b in draws:
                    probabilities = (logits[row] / prompts_B[b].temperature).softmax(-1)
                    chosen[row] = int(torch.multinomial(probabilities, 1, generator=draws[b]))
                written_B[b].append(chosen[row])
            certainty.watch({b: row for row, b in enumerate(going) if b not in draws}, logits)
            rows = [
                row for row, b in enumerate(going) if chosen[row] not in ends and len(written_B[b]) < prompts_B[b].most
            ]
            if not rows:
                return written_B
            if len(rows) < len(going):
                kept = torch.tensor(rows, device=device)
                cache.reorder_cache(kept)
                mask, going = mask[kept], [going[row] for row in rows]
            ids = torch.tensor([[chosen[row]] for row in rows], device=device)
            mask = torch.cat([mask, torch.ones_like(ids)], dim=1)


def _read(model: Any, ids_BT: torch.Tensor, mask_BP: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
    """Logits after the last token, of shape (batch, vocabulary), and the keys and values of all tokens so far.

    Prompts are padded on the left: `mask_BP` is 0 for padding, and 1 for each token that is or was read.
    """
    positions_BP = (mask_BP.cumsum(-1) - 1).clamp(min=0)
    tokens, before = ids_BT.shape[1], mask_BP.shape[1] - ids_BT.shape[1]
    chunk = CPU_CHUNK if model.device.type == "cpu" else tokens
    for start in range(0, tokens, chunk):
        end = min(start + chunk, tokens)
        output = model(
            input_ids=ids_BT[:, start:end],
            attention_mask=mask_BP[:, : before + end],
            position_ids=positions_BP[:, before + start : before + end],
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        cache = getattr(output, "past_key_values", None)
        if cache is None:
            raise ValueError(
                f"{type(model).__name__} does not cache keys and values: run it on a model server, and give its address"
            )
    return output.logits[:, -1].float(), cache
