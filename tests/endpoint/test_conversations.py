"""A conversation that only grows is one segment of the tokens that were sampled; nothing is encoded twice."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from dreamgym_integrations.models.chat_server import Reply
from dreamgym_integrations.trainers.policy.conversation import Conversations, Prompt
from dreamgym_integrations.trainers.policy.model import ChatCodec
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from speakers import ACT, ADD, CODEC, QWEN, TOKENIZER, byte_pairs, call, spelled

from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import Generation
from dreamgym.types import JsonObject

USER: JsonObject = {"role": "user", "content": "Reach 10."}
CODED = "{% for m in messages %}{{ m.content }}{% endfor %}"


def sampled(words: str, *, ended: bool = True) -> Generation:
    ids = spelled(words) if ended else spelled(words)[:-1]
    return Generation(tuple(ids), (-0.5,) * len(ids))


def assistant(reply: Reply, name: str = "1") -> JsonObject:
    """A reply as an agent sends it back."""
    calls: list[JsonValue] = [
        {
            "id": f"{name}{n}",
            "type": "function",
            "function": {"name": one.name, "arguments": json.dumps(one.arguments, indent=2)},
        }
        for n, one in enumerate(reply.tool_calls)
    ]
    return {"role": "assistant", "content": reply.text, "tool_calls": calls or None, "refusal": None}


def tool(content: str) -> JsonObject:
    return {"role": "tool", "tool_call_id": "1", "content": content}


class Talk:
    """An agent's conversation, kept by the agent."""

    def __init__(self, conversations: Conversations, *messages: JsonObject) -> None:
        self.conversations, self.messages = conversations, [*messages]

    def say(self, words: str, *, ended: bool = True) -> None:
        reply = self.conversations.record(self.ask(), sampled(words, ended=ended))
        self.messages.append(assistant(reply))

    def ask(self) -> Prompt:
        return self.conversations.prompt(self.messages, [ADD])

    def hear(self, *messages: JsonObject) -> None:
        self.messages += messages


# U+FDD0 belongs to no text: `PlainText` drops it
turns = st.lists(
    st.tuples(
        st.sampled_from(["", "I add. ", "no call: "]),
        st.booleans(),
        st.lists(st.text(st.characters(codec="utf-8", exclude_characters="<\ufffc\ufdd0"), max_size=10), max_size=2),
        st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@given(turns)
def test_a_growing_conversation_is_one_segment_that_reads_as_the_template_renders_the_whole(
    script: list[tuple[str, bool, list[str], bool]],
) -> None:
    talk = Talk(Conversations(CODEC), USER)
    said = []
    for n, (words, calls, answers, ended) in enumerate(script):
        said.append(words + (call("add", n=n) if calls else "x"))
        talk.say(said[-1], ended=ended)
        talk.hear(*map(tool, answers))
        if not answers:
            talk.hear({"role": "user", "content": f"go on, {n}"})
    prompt = talk.ask()
    (segment,) = talk.conversations.segments
    assert prompt.ids[: len(segment.ids)] == segment.ids
    whole = [{**message, "content": message["content"] or ""} for message in talk.messages]
    for message, words in zip((one for one in whole if one["role"] == "assistant"), said, strict=True):
        message["content"], message["tool_calls"] = words, None
    rendered = TOKENIZER.apply_chat_template(whole, tools=[ADD], tokenize=False, add_generation_prompt=True)
    assert TOKENIZER.decode(prompt.ids) == rendered
    chosen = [id for id, mine in zip(segment.completion_ids, segment.mask, strict=True) if mine]
    assert chosen == [
        id for words, (_, _, _, ended) in zip(said, script, strict=True) for id in sampled(words, ended=ended).ids
    ]
    assert [value for value in segment.logprobs if value] == [-0.5] * len(chosen)


@pytest.mark.parametrize(
    "echo",
    [
        {"content": None},
        {"content": ""},
        {"content": []},
        {"content": [{"type": "text", "text": ""}]},
        {"content": "\n"},
        {"name": "agent", "refusal": None, "audio": None, "function_call": None, "annotations": []},
        {"tool_calls": [{"id": "other", "function": {"name": "add", "arguments": '{"b":[1.0],"n":1}'}, "index": 0}]},
        {"tool_calls": [{"function": {"name": "add", "arguments": {"n": 1, "b": [1]}}}]},
    ],
)
def test_an_answer_is_recognised_in_whatever_form_a_client_sends_it_back(echo: JsonObject) -> None:
    talk = Talk(Conversations(CODEC), USER)
    talk.say(call("add", n=1, b=[1]))
    talk.messages[-1].update(echo)
    talk.hear(tool("count 1"))
    talk.say("done")
    assert len(talk.conversations.segments) == 1


def test_a_developer_message_equals_a_system_message_and_text_parts_equal_a_text() -> None:
    conversations = Conversations(CODEC)
    talk = Talk(conversations, {"role": "system", "content": "Be brief."}, USER)
    talk.say("one")
    parts: JsonObject = {
        "role": "user",
        "content": [{"type": "text", "text": "Reach "}, {"type": "text", "text": "10."}],
    }
    talk.messages[:2] = [{"role": "developer", "content": "Be brief."}, parts]
    talk.hear({"role": "user", "content": "again"})
    talk.say("two")
    assert len(conversations.segments) == 1


def test_an_empty_answer_may_be_left_out_by_the_client() -> None:
    talk = Talk(Conversations(CODEC), USER)
    talk.say("")
    talk.messages.pop()
    talk.hear({"role": "user", "content": "say something"})
    talk.say("yes")
    (segment,) = talk.conversations.segments
    assert segment.mask.count(1) == len(spelled("")) + len(spelled("yes"))


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda messages: messages[2:],
        lambda messages: [{"role": "user", "content": "Summary: count 1."}],
        lambda messages: [messages[0], {**messages[1], "content": "I never said that."}, *messages[2:]],
        lambda messages: [{"role": "system", "content": "It is 12:01."}, *messages],
    ],
)
def test_a_rewritten_history_begins_a_segment(rewrite: Callable[[list[JsonObject]], list[JsonObject]]) -> None:
    talk = Talk(Conversations(CODEC), USER)
    talk.say(call("add", n=1))
    talk.hear(tool("count 1"), {"role": "user", "content": "go on"})
    talk.messages = rewrite(talk.messages)
    talk.say("second")
    first, second = talk.conversations.segments
    assert TOKENIZER.decode(first.completion_ids) == call("add", n=1) + "<|im_end|>"
    assert TOKENIZER.decode(second.completion_ids) == "second<|im_end|>"
    assert talk.conversations.last is second


def test_other_tools_begin_a_segment() -> None:
    conversations = Conversations(CODEC)
    talk = Talk(conversations, USER)
    talk.say("one")
    talk.hear(USER)
    conversations.record(conversations.prompt(talk.messages, [ACT, ADD]), sampled("two"))
    assert len(conversations.segments) == 2


def test_parallel_conversations_of_one_episode_each_go_on_in_their_own_segment() -> None:
    conversations = Conversations(CODEC)
    talks = [Talk(conversations, {"role": "user", "content": name}) for name in ("plan", "act")]
    for n in range(3):
        for talk in talks:
            talk.say(call("add", n=n))
            talk.hear(tool(f"count {n}"))
    assert [segment.mask.count(1) for segment in conversations.segments] == [3 * len(spelled(call("add", n=0)))] * 2


def test_going_back_to_an_earlier_answer_begins_a_segment_with_the_same_tokens_up_to_it() -> None:
    talk = Talk(Conversations(CODEC), USER)
    talk.say(call("add", n=1))
    earlier = Talk(talk.conversations, *talk.messages)
    talk.hear(tool("count 1"))
    talk.say("done")
    earlier.hear(tool("count 2"))
    earlier.say("other")
    first, second = talk.conversations.segments
    begun = len(first.prompt_ids) + len(spelled(call("add", n=1)))
    assert second.prompt_ids[:begun] == first.ids[:begun]
    assert "count 2" in TOKENIZER.decode(second.prompt_ids[begun:])


def test_two_answers_to_one_request_are_two_segments_of_one_prompt() -> None:
    talk = Talk(Conversations(CODEC), USER)
    talk.say("one")
    talk.hear(USER)
    asked = [talk.ask(), talk.ask()]
    for prompt, words in zip(asked, ["two", "three"], strict=True):
        talk.conversations.record(prompt, sampled(words))
    first, second = talk.conversations.segments
    assert first.ids[: len(asked[0].ids)] == second.prompt_ids == asked[0].ids
    assert [TOKENIZER.decode(first.ids[len(asked[0].ids) :]), TOKENIZER.decode(second.completion_ids)] == [
        "two<|im_end|>",
        "three<|im_end|>",
    ]


def test_a_malformed_call_stays_in_the_record_as_it_was_sampled() -> None:
    talk = Talk(Conversations(CODEC), USER)
    words = "<tool_call>{add 1}</tool_call>"
    talk.say(words)
    assert talk.messages[-1]["content"] == words
    talk.hear(USER)
    talk.say("sorry")
    (segment,) = talk.conversations.segments
    assert TOKENIZER.decode(segment.completion_ids).startswith(words + "<|im_end|>")


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([{"role": "narrator", "content": "x"}], "role 'narrator'"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "'image_url'"),
        ([USER, {"role": "assistant", "tool_calls": ["add"]}, tool("1")], "'tool_calls'"),
    ],
)
def test_messages_that_a_policy_cannot_read_are_refused(messages: list[JsonObject], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        Conversations(CODEC).prompt(messages, [ADD])


def test_a_template_that_refuses_a_conversation_says_why() -> None:
    strict = ChatCodec(byte_pairs("{{ raise_exception('roles must alternate') }}"))
    assert not strict.knows_tools
    with pytest.raises(InvalidInput, match="roles must alternate"):
        Conversations(strict).prompt([USER], [])


def test_a_template_knows_tools_if_it_shows_them_and_their_calls() -> None:
    assert CODEC.knows_tools
    assert not ChatCodec(byte_pairs(CODED)).knows_tools
    assert not ChatCodec(byte_pairs(QWEN.replace("tool_call>", "invoke>"))).knows_tools
