"""Training an adapter (LoRA) instead of all weights. What is saved is always a whole policy."""

from __future__ import annotations

import copy
from typing import Any

from dreamgym.errors import MissingPackage


def adapter(rank: int, *, besides: str | None = None) -> Any:
    """What TRL is told of the adapter.

    Args:
        rank: of each pair of matrices, beside every linear layer but the last.
        besides: a module that is trained as a whole.
    """
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingPackage("an adapter (lora)", "train") from error
    return LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        modules_to_save=None if besides is None else [besides],
        task_type="CAUSAL_LM",
    )


def merged(model: Any) -> Any:
    """A copy of the model with its adapter in its weights."""
    return copy.deepcopy(model).merge_and_unload()
