"""The real tokenizer of a small Qwen model, if it is installed: its own template and special tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dreamgym_integrations.models import weights
from dreamgym_integrations.trainers.policy.conversation import Conversations
from dreamgym_integrations.trainers.policy.model import ChatCodec
from pydantic import JsonValue
from speakers import ADD, call
from transformers import AutoTokenizer

from dreamgym.training.rollout import Generation
from dreamgym.types import JsonObject

FILE = weights.path_of(weights.find("local"))
FOLDER = FILE.with_name(f"{FILE.stem}.dense")
pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs `dreamgym models pull local` and `dreamgym fit` once"
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(Path(FOLDER))


def test_a_conversation_with_calls_and_answers_reads_as_qwens_template_renders_the_whole(tokenizer: Any) -> None:
    codec = ChatCodec(tokenizer)
    assert codec.knows_tools
    conversations = Conversations(codec)
    user: JsonObject = {"role": "user", "content": "Reach 10."}
    words = [f"I add.\n{call('add', n=5)}", f"{call('add', n=2)}\n{call('add', n=3)}", "Done."]
    messages: list[JsonObject] = [{"role": "system", "content": "Be brief."}, user]
    said: list[tuple[int, ...]] = []
    for number, text in enumerate(words):
        ids = (*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id)
        said.append(ids)
        reply = conversations.record(conversations.prompt(messages, [ADD]), Generation(ids, (-1.0,) * len(ids)))
        assert len(reply.tool_calls) == (1, 2, 0)[number]
        calls: list[JsonValue] = [
            {"function": {"name": one.name, "arguments": dict(one.arguments)}} for one in reply.tool_calls
        ]
        messages.append({"role": "assistant", "content": reply.text or "", "tool_calls": calls or None})
        messages += [{"role": "tool", "content": f"count {number} {n}"} for n in range(len(calls))]
    messages.append({"role": "user", "content": "Thank you."})
    prompt = conversations.prompt(messages, [ADD])
    (segment,) = conversations.segments
    assert prompt.ids[: len(segment.ids)] == segment.ids
    rendered = tokenizer.apply_chat_template(messages, tools=[ADD], tokenize=False, add_generation_prompt=True)
    assert tokenizer.decode(prompt.ids) == rendered
    chosen = [id for id, mine in zip(segment.completion_ids, segment.mask, strict=True) if mine]
    assert chosen == [id for ids in said for id in ids]
