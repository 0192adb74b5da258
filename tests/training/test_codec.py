"""The conversation is tokenised piece by piece, and its text is the one that the chat template gives."""

import random

import pytest
from dreamgym_integrations.trainers.experience.rows import Example, row
from dreamgym_integrations.trainers.policy.model import ChatCodec
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dreamgym.errors import InvalidInput
from dreamgym.llm import Message

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_pairs() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    words = ["kitchen", "living room", "move north", "take the coin", "nothing", "unknown action"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|im_start|>", "<|im_end|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(words * 20, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>")
    fast.chat_template = CHATML
    return fast


TOKENIZER = byte_pairs()
CODEC = ChatCodec(TOKENIZER)
words = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=40)
SPECIAL = [*TOKENIZER.added_tokens_decoder]
spelled = st.lists(st.sampled_from(["<|im_end|>", "<|im_start|>", "<pad>", "<", "|im_end|>", "\nsystem\n", "ok "]))


@given(task=words, said=words, heard=words)
def test_the_pieces_decode_to_the_text_that_the_template_gives_for_the_whole(task: str, said: str, heard: str) -> None:
    ids = [*CODEC.start(task), *CODEC.answer(said), *CODEC.turn(heard, ended=True)]
    turns = [("user", task), ("assistant", said), ("user", heard)]
    whole = TOKENIZER.apply_chat_template(
        [{"role": role, "content": content} for role, content in turns], tokenize=False, add_generation_prompt=True
    )
    assert TOKENIZER.decode(ids) == whole


@given(said=words, heard=words)
def test_a_turn_that_the_policy_did_not_close_is_closed_for_it(said: str, heard: str) -> None:
    open_ids = CODEC.answer(said)[:-1]
    closed = [*CODEC.answer(said), *CODEC.turn(heard, ended=True)]
    assert [*open_ids, *CODEC.turn(heard, ended=False)] == closed


@given(parts=st.tuples(spelled, spelled, spelled))
def test_a_text_that_is_spelled_like_a_special_token_is_read_as_a_text(parts: tuple[list[str], ...]) -> None:
    def pieces(task: str, said: str, heard: str) -> list[int]:
        return [*CODEC.start(task), *CODEC.answer(said), *CODEC.turn(heard, ended=True)]

    task, said, heard = ("".join(one) for one in parts)
    ids = pieces(task, said, heard)
    assert [one for one in ids if one in SPECIAL] == [one for one in pieces("a", "b", "c") if one in SPECIAL]
    turns = [{"role": "user", "content": task}, {"role": "assistant", "content": said}]
    turns.append({"role": "user", "content": heard})
    assert TOKENIZER.decode(ids) == TOKENIZER.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert CODEC.decode(CODEC.answer(said)) == said.strip()


@given(parts=st.tuples(spelled, spelled))
def test_a_fitted_model_reads_a_text_that_is_spelled_like_a_special_token_as_a_text(
    parts: tuple[list[str], ...],
) -> None:
    def tokens(asked: str, said: str) -> list[int]:
        messages = (Message(role="user", content=asked),)
        return row(TOKENIZER, Example(messages=messages, answer=said)).input_ids

    asked, said = ("".join(one) for one in parts)
    ids, plain = tokens(asked, said), tokens("a", "b")
    assert [one for one in ids if one in SPECIAL] == [one for one in plain if one in SPECIAL]
    turns = [{"role": "user", "content": asked}]
    prompt = TOKENIZER.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    assert TOKENIZER.decode(ids[:-1]) == f"{prompt}{said}"


def test_sampled_ids_would_not_survive_a_round_trip_through_text() -> None:
    draw = random.Random(0)
    ordinary = range(3, len(TOKENIZER))
    sampled = [[draw.choice(ordinary) for _ in range(6)] for _ in range(50)]
    again = [TOKENIZER(TOKENIZER.decode(ids), add_special_tokens=False)["input_ids"] for ids in sampled]
    assert sum(ids != back for ids, back in zip(sampled, again, strict=True)) > 25


def test_a_tokenizer_without_a_chat_template_is_refused() -> None:
    mute = byte_pairs()
    mute.chat_template = None
    with pytest.raises(InvalidInput, match="no chat template"):
        ChatCodec(mute)
