"""Checkpoints on disk: which of them are whole, and how a model is saved whole or not at all."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from dreamgym.errors import TrainingStopped


def checkpoints(folder: Path) -> list[Path]:
    """The trainer's checkpoints in a run folder, whole or not, in no order."""
    return list((folder / "checkpoints").glob("checkpoint-*"))


def newest_with(folder: Path, last_file: str) -> Path | None:
    """The newest whole checkpoint in a run folder: one that has the file which is written last. None without one."""
    whole = [checkpoint for checkpoint in checkpoints(folder) if (checkpoint / last_file).is_file()]
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Optimiser steps before it was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def save_model(model: Any, tokenizer: Any, folder: Path, weights: dict[str, Any] | None = None) -> None:
    """Save an ordinary checkpoint folder, whole or not at all.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        folder: replaced if it exists.
        weights: by name; None saves the model's own.

    Raises:
        TrainingStopped: it cannot be written.
    """
    with saving(folder), replaced_folder(folder) as new:
        model.save_pretrained(new, state_dict=weights)
        tokenizer.save_pretrained(new)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """A path to make a new folder at, which takes the place of `folder` if the block ends without an error."""
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.unfinished")
    try:
        yield new
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def unfinished(folder: Path) -> list[Path]:
    """New folders in `folder` that were cut off before they took their place; nobody may be making one."""
    return list(folder.glob(".*.unfinished"))


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Raises TrainingStopped if the block cannot write `path`; what was saved before is whole."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors wrap what the disk says
        raise TrainingStopped(
            f"{path} cannot be saved: {error}; make room and resume from the checkpoint before it"
        ) from error
