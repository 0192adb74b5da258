"""A tiny experience model from scratch: half a million parameters that read and write any text.

Only its size is unusual: it is a transformers checkpoint with a tokenizer and a chat template, trained by the same
trainer as any other. The tokenizer is a byte-level BPE, learned from the rows, with one token per digit. A JSON key and
the characters around it may become one token, which halves the length of the rows.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from dreamgym_integrations.trainers.experience.rows import Example

PAD, END, *ROLES = ("\x1dpad\x1d", "\x1dend\x1d", "\x1dsystem\x1d", "\x1duser\x1d", "\x1dassistant\x1d")
"""Special tokens. JSON escapes their control characters, so no text of an agent or a recording can be read as one."""

TEMPLATE = (
    "{% for m in messages %}{{ '\x1d' + m.role + '\x1d' + m.content }}"
    "{% if m.role == 'assistant' %}{{ '\x1dend\x1d' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '\x1dassistant\x1d' }}{% endif %}"
)
VOCABULARY = 1024
PIECES = "|".join(
    (
        r'[^A-Za-z0-9 _]{0,16}[A-Za-z_]{1,64}":(?:null|true|false|""|\[\]|[\[{]*"?)',
        r"[^A-Za-z0-9 ]{0,16}/?[a-z]{1,64}>",
        r" ?[A-Za-z]+[.,:;!?]*",
        r"[0-9]",
        r"[^A-Za-z0-9]",
    )
)
"""Pieces that no token crosses: a JSON key or tag with the characters around it, a word, a digit, another character.

The lengths are limited because the search begins anew at each character: without limits, an agent's argument of 2,400
underscores takes ten seconds.
"""
HIDDEN = 96
LAYERS = 3


def create_tiny_model(examples: Iterable[Example], folder: Path, *, max_tokens: int, seed: int) -> None:
    """Write an untrained tiny model whose tokenizer is learned from these examples."""
    tokenizer = _tokenizer(examples)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=HIDDEN,
        intermediate_size=4 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        max_position_embeddings=max_tokens,
        tie_word_embeddings=False,
        # the default of 0.02 cripples a model this narrow: its loss stays 20 % higher at the same cost
        initializer_range=HIDDEN**-0.5,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _tokenizer(examples: Iterable[Example]) -> PreTrainedTokenizerFast:
    texts = (text for example in examples for text in (*(said.content for said in example.messages), example.answer))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[PAD, END, *ROLES],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, additional_special_tokens=ROLES
    )
    fast.chat_template = TEMPLATE
    return fast
