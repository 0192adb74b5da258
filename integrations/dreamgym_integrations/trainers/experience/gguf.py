"""A GGUF file as an ordinary checkpoint folder, which can be trained: its weights, de-quantised once and kept.

Training continues from what the quantised weights say; the precision that was lost stays lost.
"""

from __future__ import annotations

from pathlib import Path

from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym_integrations.models import weights
from dreamgym_integrations.trainers.common.checkpoints import replaced_folder


def dequantised(name: str) -> Path:
    """The folder of a model that `local`, `local:1.5b` or a .gguf file names; made at the first call.

    Raises:
        InvalidInput: there is no such file, or transformers cannot read its architecture.
        MissingPackage: gguf is not installed.
    """
    file = Path(name).expanduser() if name.endswith(".gguf") else weights.path_of(weights.find(name))
    if not file.is_file():
        hint = "" if name.endswith(".gguf") else f": run `dreamgym models pull {name}` first"
        raise InvalidInput(f"--base {name!r}: {file} is not there{hint}")
    folder = file.with_name(f"{file.stem}.dense")
    if not folder.is_dir():
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
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=torch.bfloat16, local_files_only=True
        )
    except (ValueError, KeyError, NotImplementedError) as error:
        raise InvalidInput(f"--base: transformers cannot read {file}: {error}") from error
    # transformers 5.23 refuses to save what it has de-quantised while it remembers that
    model.hf_quantizer = None
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
