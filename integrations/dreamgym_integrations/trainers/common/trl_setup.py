"""Configuration that all uses of TRL here share."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback
from trl.trainer import utils as trl_utils

from dreamgym.errors import TrainingStopped


def base_options(
    folder: Path,
    *,
    steps: int,
    learning_rate: float,
    seed: int,
    bf16: bool = False,
    gradient_checkpointing: bool = False,
) -> dict[str, Any]:
    """Arguments of every trainer's config: CPU or GPU, no reports, no progress bar.

    Args:
        folder: folder for the trainer's own files.
        steps: number of optimiser steps.
        learning_rate: highest learning rate.
        seed: fixes every random draw of the trainer.
        bf16: compute in 16-bit floats; the weights keep 32 bits.
        gradient_checkpointing: compute activations again instead of keeping them.
    """
    return {
        "output_dir": str(folder),
        "max_steps": steps,
        "learning_rate": learning_rate,
        "seed": seed,
        "use_cpu": not torch.cuda.is_available(),
        "bf16": bf16,
        "activation_checkpointing": gradient_checkpointing,
        "report_to": "none",
        "disable_tqdm": True,
    }


def run_trainer(trainer: Any, checkpoint: Path | None = None) -> None:
    """Train, from a checkpoint if one is given, without printing a line per log.

    Raises:
        TrainingStopped: a weight is not finite at the end.
    """
    trainer.remove_callback(PrinterCallback)
    with known_warnings_ignored(), _labels_alone_scored(), _no_cudnn_attention():
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    if not bool(norm_of_weights(trainer.model).isfinite()):
        raise TrainingStopped(
            f"a weight is not a finite number after {trainer.state.global_step} updates: start again with a smaller "
            f"learning_rate than {trainer.args.learning_rate:g}"
        )


def norm_of_weights(model: torch.nn.Module) -> torch.Tensor:
    """Norm of the weights that are trained. It is not finite if one of them is not."""
    return torch.nn.utils.get_total_norm([one.detach() for one in model.parameters() if one.requires_grad])


@contextmanager
def known_warnings_ignored() -> Iterator[None]:
    """Ignore known warnings while a trainer with an adapter is made, and during training."""
    with warnings.catch_warnings():
        # TRL 1.16 and peft 0.21 still ask transformers for this by its old name
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        yield


@contextmanager
def _labels_alone_scored() -> Iterator[None]:
    """Compute logits only at the positions that are learned, which are few compared with prompts and tools' answers.

    TRL 1.16 does so on a GPU. Elsewhere it computes them at all positions, for devices that compile again for each
    number of positions. A CPU does not.
    """
    kept = trl_utils._use_triton
    trl_utils._use_triton = lambda device: True
    try:
        yield
    finally:
        trl_utils._use_triton = kept


@contextmanager
def _no_cudnn_attention() -> Iterator[None]:
    """Turn off cuDNN's attention kernel.

    On an H100 or H200, from torch 2.11 on, its gradient under a mask is NaN if a sequence is 64 longer than a multiple
    of 128 and the attention scores are very negative, as in Qwen2.5 (pytorch issue 196678).
    """
    kept = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(kept)
