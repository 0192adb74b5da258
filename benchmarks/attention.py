"""Show at which lengths the gradient of a checkpoint is not a number, by the kernel that computes attention.

    python benchmarks/attention.py FOLDER

Four sequences of random tokens in bfloat16, for each of 41 lengths, without padding and with it. On an H100 or H200,
cuDNN's kernel is wrong under a mask for some lengths (docs/results/gpu.md); elsewhere torch does not use it.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM

NEAR = (192, 448, 704, 960, 1216)
LENGTHS = (*range(64, 1345, 64), *(length + apart for length in NEAR for apart in (-1, 1, 7, 8)))
PADDING = 33
SEQUENCES = 4


def finite(model: torch.nn.Module, vocabulary: int, length: int, padding: int) -> bool:
    """Whether each weight has a finite gradient after the likelihood of random tokens.

    With padding, the first sequence is padded in front, the second at its end, the third in front by half as much.
    """
    torch.manual_seed(length + padding)
    model.zero_grad()
    device = next(model.parameters()).device
    tokens = torch.randint(0, vocabulary, (SEQUENCES, length), device=device)
    attended = torch.ones_like(tokens)
    if padding:
        attended[0, :padding] = 0
        attended[1, -padding:] = 0
        attended[2, : padding // 2 + 1] = 0
    labels = tokens.masked_fill(attended == 0, -100)
    model(input_ids=tokens, attention_mask=attended, labels=labels).loss.backward()
    return all(weight.grad is None or bool(torch.isfinite(weight.grad).all()) for weight in model.parameters())


def main() -> None:
    """Print a line for each kernel, without padding and with it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", help="a checkpoint, e.g. of Qwen2.5-0.5B, whose attention scores are very negative")
    folder = parser.parse_args().folder
    cuda = torch.cuda.is_available()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="sdpa").train()
    model.to("cuda" if cuda else "cpu")
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name() if cuda else 'CPU'}, {len(LENGTHS)} lengths")
    kernels: dict[str, AbstractContextManager[None]] = {"as torch chooses": nullcontext()}
    if cuda:
        without = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
        kernels["cuDNN"] = sdpa_kernel(SDPBackend.CUDNN_ATTENTION)
        kernels["without cuDNN"] = sdpa_kernel(without)
    for name, kernel in kernels.items():
        with kernel:
            for padding in (0, PADDING):
                bad = [n for n in LENGTHS if not finite(model, model.config.vocab_size, n, padding)]
                print(f"{name}, {padding} tokens of padding: not finite at {len(bad)} lengths {bad or ''}", flush=True)


if __name__ == "__main__":
    main()
