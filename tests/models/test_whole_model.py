"""A model is loaded with all of its weights, or not at all."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
import torch
from dreamgym_integrations.models.whole_model import read_from, whole_model
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from dreamgym.errors import InvalidInput


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose output layer has the same weights as its input embedding."""
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


def test_models_that_are_loaded_at_once_have_the_weights_of_their_folder(folder: Path) -> None:
    together = Barrier(2)

    def load(_: int) -> torch.Tensor:
        together.wait(timeout=60)
        weights: torch.Tensor = whole_model(folder).lm_head.weight.detach()
        return weights

    with ThreadPoolExecutor(2) as pool:
        heads = list(pool.map(load, range(2)))
    saved = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    assert all(torch.equal(head, saved) for head in heads)


def test_a_folder_without_all_weights_is_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    kept = {name: weight for name, weight in load_file(file).items() if name != "model.norm.weight"}
    save_file(kept, file, metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match=r"not a complete model: .* 1 are missing .* such as model\.norm\.weight"):
        whole_model(folder)


@pytest.mark.parametrize("damaged", ["model.safetensors", "config.json"])
def test_a_folder_with_a_file_that_was_copied_in_part_is_refused(folder: Path, damaged: str) -> None:
    content = (folder / damaged).read_bytes()
    (folder / damaged).write_bytes(content[: len(content) // 2])
    with pytest.raises(InvalidInput, match=r"cannot be loaded: .*; copy the folder again, or save the model again"):
        whole_model(folder)


@pytest.mark.parametrize("error", [ImportError("no package"), MemoryError(), torch.OutOfMemoryError("no memory")])
def test_a_lack_of_memory_or_of_a_package_is_not_blamed_on_the_folder(folder: Path, error: Exception) -> None:
    with pytest.raises(type(error)), read_from(folder):
        raise error
