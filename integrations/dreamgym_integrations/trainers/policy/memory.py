"""An estimate of the memory that training a language model will need, before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dreamgym.training.practice import Settings
from dreamgym_integrations.trainers.policy.model import episode_limit
from dreamgym_integrations.trainers.policy.pointer.model import PointerConfig

PROCESS = 7 * 2**27
"""Bytes of a process that has loaded torch and TRL: 0.9 GiB."""
COPIES = 7
"""Copies of keys and values in memory while a batch is sampled: as found, as the model takes and lengthens them, and as
they are stored. Measured."""
ADAPTED = (7, 3)
"""More vectors that an adapter keeps, of the hidden and of the intermediate size: the inputs of its own matrices."""
WIDE = 10
"""Vectors of the hidden size that a layer keeps for each token until its gradient is computed: the inputs and outputs
of two norms, query, key, value, the output of attention, and both sums."""
GATED = 4
"""Vectors of the intermediate size that a layer keeps for each token: gate, its activation, up, and their product."""
LOGITS = 3
"""Vectors of the vocabulary's size for each token: logits, log-probabilities, and a gradient."""


class Memory(NamedTuple):
    """Bytes on the device of one process; each process needs as much."""

    process: int
    """The libraries, without any model."""
    weights: int
    """The weights, with those of the reference policy if the loss has a KL term."""
    optimiser: int
    """Gradients and the optimiser's two moments."""
    playing: int
    """Keys and values of all episodes of an update, with the copies that sampling makes."""
    learning: int
    """Activations that one forward pass over the longest episodes keeps for the gradient."""

    @property
    def total(self) -> int:
        """The sum. Playing and learning take turns, but on a CPU each thread keeps its memory, so both count there."""
        both = max(self.playing, self.learning) if torch.cuda.is_available() else self.playing + self.learning
        return self.process + self.weights + self.optimiser + both

    def __str__(self) -> str:
        told = ", ".join(f"{name} {size / 2**30:.1f}" for name, size in self._asdict().items())
        return f"about {self.total / 2**30:.1f} GiB ({told})"


def of_practice(base: Path, settings: Settings, *, processes: int = 1) -> Memory | None:
    """The estimate for GRPO or PPO from the checkpoint in `base`, if its episodes have the greatest allowed length.

    On a CPU it was 0.84 to 1.11 times the measured peak: 19 million weights, 4 and 32 episodes of 230 tokens, with and
    without gradient_checkpointing, accumulate and lora. On a GPU it is not measured.

    Returns None for a pointer policy, which is small, and for a model whose config does not tell its sizes.
    """
    config = AutoConfig.from_pretrained(base)
    passes = settings.accumulate * (settings.ppo.mini_batches if settings.algorithm == "ppo" else 1)
    rows = settings.groups * settings.group_size // (processes * passes)
    learned = rows * (settings.episode_tokens or episode_limit(config))
    return _estimate(config, settings, learned=learned, sampled=passes * learned)


def of_imitation(base: Path, settings: Settings, *, tokens: int) -> Memory | None:
    """The estimate for SFT from the checkpoint in `base`. None in the same cases as of practice.

    Args:
        base: the checkpoint folder.
        settings: settings of the training.
        tokens: number of tokens in the largest forward pass, padding included.
    """
    return _estimate(AutoConfig.from_pretrained(base), settings, learned=tokens, sampled=0)


def _estimate(config: Any, settings: Settings, *, learned: int, sampled: int) -> Memory | None:
    """The memory for learning from `learned` tokens at once, and for keeping `sampled` tokens while sampling.

    An adapter has weights of its own: rank * (n + m) for a linear layer of n x m.
    """
    if isinstance(config, PointerConfig):
        return None
    shape = config.get_text_config()
    heads = getattr(shape, "num_attention_heads", None)
    heads_known = getattr(shape, "num_key_value_heads", None) or heads
    wide = getattr(shape, "intermediate_size", None) or 4 * shape.hidden_size
    if not all(isinstance(size, int) for size in (heads, heads_known, wide)):  # no attention, or another in each layer
        return None
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    weights = model.num_parameters()
    linear = [one for name, one in model.named_modules() if isinstance(one, torch.nn.Linear) and name != "lm_head"]
    trained = settings.lora * sum(sum(one.weight.shape) for one in linear) if settings.lora else weights
    size = 2 if settings.bf16 else 4
    width = getattr(shape, "head_dim", None) or shape.hidden_size // heads
    known = 2 * shape.num_hidden_layers * width * heads_known
    hidden, gated = (WIDE + ADAPTED[0], GATED + ADAPTED[1]) if settings.lora else (WIDE, GATED)
    kept = hidden * shape.hidden_size + gated * wide
    layers = 1 if settings.gradient_checkpointing else shape.num_hidden_layers
    held = shape.num_hidden_layers * shape.hidden_size if settings.gradient_checkpointing else 0
    return Memory(
        process=0 if torch.cuda.is_available() else PROCESS,
        weights=4 * weights * (2 if settings.beta and not settings.lora else 1) + 4 * trained * bool(settings.lora),
        optimiser=3 * 4 * trained,
        playing=sampled * 4 * known * COPIES,
        learning=learned * (size * (layers * kept + held) + 4 * LOGITS * shape.vocab_size),
    )


def free() -> int | None:
    """Free bytes on the device of the policy; None if the system does not report them."""
    if torch.cuda.is_available():
        return int(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    told = dict(line.split(":", 1) for line in lines)
    return int(told["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in told else None
