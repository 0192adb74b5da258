"""A tiny policy from scratch: 140 thousand parameters, one token per word. For text environments and two CPU cores.

Only its size is unusual: it is a transformers checkpoint with a tokenizer and a chat template, trained by the same
trainers as any other.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dreamgym.errors import InvalidInput
from dreamgym.types import Trajectory
from dreamgym_integrations.trainers.common.checkpoints import save_model

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}{{ m.content + '<end>' }}"
    "{% else %}{{ '<user> ' + m.content + ' <assistant> ' }}{% endif %}{% endfor %}"
)


def create_tiny_policy(trajectories: Iterable[Trajectory], folder: Path, *, seed: int, heads: int = 4) -> None:
    """Write an untrained tiny policy that knows the words of these trajectories.

    Args:
        trajectories: recorded play; its words are the vocabulary.
        folder: folder to write; replaced if it exists.
        seed: seed of the weights.
        heads: number of attention heads; 2 heads have width 32, the least that vLLM samples on CPUs.

    Raises:
        InvalidInput: an action is not a text; a tiny policy cannot write JSON.
    """
    given = list(trajectories)
    commands = {command for trajectory in given for command in _commands(trajectory)}
    tokenizer = _tokenizer(commands | set(_texts(given)))
    torch.manual_seed(seed)
    hidden = 64
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=2,
        num_attention_heads=heads,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        # the default of 0.02 cripples a model this narrow: 0-8 % success after a warm start instead of 15-28 %
        initializer_range=hidden**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        max_action_tokens=max(4, 1 + max((len(tokenizer(command)["input_ids"]) for command in commands), default=0)),
    )
    save_model(LlamaForCausalLM(config), tokenizer, folder)


def _texts(trajectories: Iterable[Trajectory]) -> Iterable[str]:
    """All texts that the policy reads."""
    for trajectory in trajectories:
        yield trajectory.task.instruction
        yield trajectory.task.initial_state or ""
        yield from (transition.result.observation for transition in trajectory.transitions)


def _commands(trajectory: Trajectory) -> Iterable[str]:
    """All texts that the policy writes."""
    for transition in trajectory.transitions:
        argument = next(iter(transition.action.arguments.values()), None)
        if len(transition.action.arguments) != 1 or not isinstance(argument, str):
            raise InvalidInput(
                "a tiny policy can call only tools with one text argument, not "
                f"{transition.action.canonical()}: use the folder of a language model"
            )
        yield argument


def _tokenizer(texts: set[str]) -> PreTrainedTokenizerFast:
    special = ["<pad>", "<unk>", "<end>", "<user>", "<assistant>"]
    normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(r"[^\w<>\s]+"), " ")])
    words = {word for text in texts for word in normalizer.normalize_str(text).split()}
    vocabulary = {token: i for i, token in enumerate([*special, *sorted(words - set(special))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<end>",
        additional_special_tokens=["<user>", "<assistant>"],
    )
    fast.chat_template = TEMPLATE
    return fast
