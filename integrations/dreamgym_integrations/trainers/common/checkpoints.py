"""Checkpoints on disk: finding the whole ones, and saving a model whole or not at all."""

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
    """The newest whole checkpoint in a run folder, which has the file that is written last. None if there is none."""
    whole = [checkpoint for checkpoint in checkpoints(folder) if (checkpoint / last_file).is_file()]
    return max(whole, key=step_of, default=None)


def step_of(checkpoint: Path) -> int:
    """Number of optimiser steps before the checkpoint was saved."""
    return int(checkpoint.name.rpartition("-")[2])


def save_model(model: Any, tokenizer: Any, folder: Path, weights: dict[str, Any] | None = None) -> None:
    """Save an ordinary checkpoint folder, whole or not at all.

    Args:
        model: a transformers model.
        tokenizer: its tokenizer.
        folder: replaced if it exists.
        weights: weights by name; None saves the model's own.

    Raises:
        TrainingStopped: the folder cannot be written.
    """
    with saving(folder), replaced_folder(folder) as new:
        model.save_pretrained(new, state_dict=weights)
        tokenizer.save_pretrained(new)


@contextmanager
def replaced_folder(folder: Path) -> Iterator[Path]:
    """Yield a path for a new folder, which replaces `folder` if the block ends without an error."""
    new = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.unfinished")
    try:
        yield new
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def unfinished(folder: Path) -> list[Path]:
    """Folders of interrupted saves in `folder`. Call it only while nothing is being saved there."""
    return list(folder.glob(".*.unfinished"))


@contextmanager
def saving(path: Path) -> Iterator[None]:
    """Raise TrainingStopped if the block cannot write `path`. Earlier checkpoints stay whole."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as error:  # torch and safetensors wrap errors of the disk
        raise TrainingStopped(
            f"{path} cannot be saved: {error}; make room and resume from the checkpoint before it"
        ) from error
