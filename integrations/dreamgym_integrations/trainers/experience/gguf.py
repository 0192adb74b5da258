"""Turns a GGUF file into an ordinary checkpoint folder, which can be trained: its weights are de-quantised and kept.

Training starts from the quantised values; the precision that quantisation lost does not come back.
"""

from __future__ import annotations

import struct
from pathlib import Path

from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym_integrations.models import weights
from dreamgym_integrations.trainers.common.checkpoints import replaced_folder


def dequantised(name: str) -> Path:
    """The checkpoint folder of `local`, `local:1.5b` or a .gguf file. It is made if it is not there or is older.

    Raises:
        InvalidInput: the file does not exist, or transformers cannot read its architecture.
        MissingPackage: gguf is not installed.
    """
    file = Path(name).expanduser() if name.endswith(".gguf") else weights.path_of(weights.find(name))
    if not file.is_file():
        hint = "" if name.endswith(".gguf") else f": run `dreamgym models pull {name}` first"
        raise InvalidInput(f"--base {name!r}: {file} does not exist{hint}")
    folder = file.with_name(f"{file.stem}.dense")
    if not folder.is_dir() or folder.stat().st_mtime < file.stat().st_mtime:
        with replaced_folder(folder) as new:
            _write(file, new)
    return folder


def _write(file: Path, folder: Path) -> None:
    try:
        import gguf  # noqa: F401
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise MissingPackage("a .gguf file as --base", "train") from error
    try:
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name, local_files_only=True)
        model, found = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.bfloat16, local_files_only=True, output_loading_info=True
        )
    except (ValueError, KeyError, NotImplementedError, struct.error) as error:  # struct.error: the file is cut off
        raise InvalidInput(f"--base: transformers cannot read {file}: {error}") from error
    if lacking := sorted(map(str, found["missing_keys"])):  # transformers has drawn them at random
        raise InvalidInput(
            f"--base: {file} lacks {len(lacking)} weights of its model, such as {lacking[0]}: join the files of a "
            "split model first (`llama-gguf-split --merge`), or download the file again"
        )
    # transformers 5.23 refuses to save a de-quantised model that has these attributes
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
