"""A transformers model from a checkpoint folder, with all of its weights."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dreamgym.errors import InvalidInput

_loading = threading.Lock()
"""Lets one model load at a time. transformers 5.23 sets global state while it loads a model: two that load at once both
lose the weights that their layers share, and get random ones there."""


@contextmanager
def read_from(folder: Path) -> Iterator[None]:
    """Raise InvalidInput with the reason if the block, which loads files of a checkpoint folder, cannot load them.

    A lack of memory or of a package is no fault of the folder: its error stays.
    """
    from torch import OutOfMemoryError

    try:
        yield
    except (ImportError, MemoryError, OutOfMemoryError):
        raise
    except Exception as error:  # transformers, tokenizers and safetensors have no common exception for a damaged file
        reason = (str(error).strip().splitlines() or [""])[0]
        raise InvalidInput(
            f"{folder} cannot be loaded: {type(error).__name__}: {reason}; copy the folder again, or save the model "
            "again"
        ) from error


def whole_model(folder: Path, **options: Any) -> Any:
    """The causal language model in a checkpoint folder.

    Args:
        folder: a folder as training saves it.
        options: options of transformers' `from_pretrained`.

    Raises:
        InvalidInput: a file is damaged, or the folder lacks weights of the model; transformers alone would draw them at
            random.
    """
    from transformers import AutoModelForCausalLM

    with _loading, read_from(folder):
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, local_files_only=True, output_loading_info=True, **options
        )
    if lacking := sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]])):
        raise InvalidInput(
            f"{folder} is not a complete model: of the weights that config.json requires, {len(lacking)} are missing "
            f"or have another shape, such as {lacking[0]}; copy the folder again, or save the model again"
        )
    return model
