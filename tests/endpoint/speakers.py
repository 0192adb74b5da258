"""A policy that says what a test wants, and a small tokenizer whose chat template knows tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence

from dreamgym_integrations.trainers.policy.model import ChatCodec
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dreamgym.training.rollout import Generation
from dreamgym.types import JsonObject

QWEN = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- set said = message.role == 'assistant' and not message.tool_calls %}
{%- if message.role == 'user' or said %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{%- if message.content %}
{{ message.content }}{% endif %}
{%- for call in message.tool_calls %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'tool' %}
{%- if messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}
<tool_response>
{{ message.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>
{% endif %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

ACT: JsonObject = {
    "type": "function",
    "function": {
        "name": "act",
        "description": "Do one thing.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
    },
}
ADD: JsonObject = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    },
}


def byte_pairs(template: str = QWEN) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer for any text; decoding ids and encoding the text again can give other ids."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=["<|im_start|>", "<|im_end|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["<tool_call>", '{"name": "act", "arguments": {"command": "say red"}}'] * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>")
    fast.chat_template = template
    return fast


TOKENIZER = byte_pairs()
CODEC = ChatCodec(TOKENIZER)


def call(tool: str, /, **arguments: object) -> str:
    """Return a tool call as the template writes it."""
    return f"<tool_call>\n{json.dumps({'name': tool, 'arguments': arguments})}\n</tool_call>"


def spelled(text: str) -> list[int]:
    """Return the ids of a text letter by letter, plus the end token: ids that no tokenizer would choose."""
    return [*(id for letter in text for id in TOKENIZER(letter, add_special_tokens=False)["input_ids"]), 1]


class Speaker:
    """A policy that answers each prompt with `say(prompt)`, letter by letter, and records the batches.

    Each token has a different log-probability, so that a shifted list is noticed.
    """

    def __init__(self, say: Callable[[str], str]) -> None:
        self.say = say
        self.batches: list[list[list[int]]] = []
        self.seeds: list[list[int]] = []
        self.began = threading.Event()
        """Set once a batch has begun."""
        self.open = threading.Event()
        """While it is cleared, no batch ends."""
        self.open.set()

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        self.batches.append([list(prompt) for prompt in prompts_B])
        self.seeds.append(list(seeds_B))
        self.began.set()
        assert self.open.wait(60)
        said = [spelled(self.say(TOKENIZER.decode(list(prompt)))) for prompt in prompts_B]
        return [Generation(tuple(ids), tuple(-0.001 * (n + 1) for n in range(len(ids)))) for ids in said]
