"""Training an adapter (LoRA) instead of all weights. The model that is saved in the end is always a whole one."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from dreamgym.errors import MissingPackage
from dreamgym_integrations.models.whole_model import whole_model
from dreamgym_integrations.trainers.common.trl_setup import known_warnings_ignored


def adapter(rank: int, *, besides: str | None = None) -> Any:
    """The configuration of an adapter for TRL's trainers.

    Args:
        rank: rank of the pair of matrices beside every linear layer but the last.
        besides: name of a module that is trained with all its weights.
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
    """A copy of the model with its adapter merged into its weights."""
    return copy.deepcopy(model).merge_and_unload()


def merged_into(base: Path, saved_adapter: Path) -> Any:
    """The model in folder `base`, in the precision that it has there, with a saved adapter merged into its weights.

    The adapter may have been trained beside a copy of lower precision, which is not worth keeping.
    """
    from peft import PeftModel

    model = whole_model(base)
    with known_warnings_ignored():
        return PeftModel.from_pretrained(model, saved_adapter).merge_and_unload()
