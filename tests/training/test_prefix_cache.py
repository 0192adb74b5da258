"""The prefix cache reuses what was computed for a conversation, and does not change the sampled tokens."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest
import torch
from dreamgym_integrations.trainers.policy.model import TransformersPolicy
from dreamgym_integrations.trainers.policy.prefix_cache import PrefixCache
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, PreTrainedModel

from dreamgym.training.rollout import Generation

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EOS = 1


def llama() -> PreTrainedModel:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES))


def policy(model: PreTrainedModel, longest: int = 5) -> TransformersPolicy:
    return TransformersPolicy(model, SimpleNamespace(eos_token_id=EOS, pad_token_id=0), max_new_tokens=longest)


def said(random: Random, longest: int) -> list[int]:
    return [random.randrange(2, 40) for _ in range(random.randrange(1, longest))]


def close(one: list[Generation], other: list[Generation]) -> bool:
    return [a.ids for a in one] == [b.ids for b in other] and all(
        a.logprobs == pytest.approx(b.logprobs, abs=1e-5) for a, b in zip(one, other, strict=True)
    )


class Counting:
    """Counts the tokens that the model computes."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.tokens = 0
        model.register_forward_pre_hook(self._count, with_kwargs=True)

    def _count(self, model: PreTrainedModel, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        self.tokens += kwargs["input_ids"].numel()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), episodes=st.integers(1, 5), turns=st.integers(1, 4))
def test_conversations_that_go_on_end_or_begin_sample_the_same_as_without_a_cache(
    seed: int, episodes: int, turns: int
) -> None:
    random, model = Random(seed), llama()
    remembering = policy(model)
    conversations = [said(random, 12) for _ in range(episodes)]
    for _ in range(turns):
        seeds = [random.randrange(2**32) for _ in conversations]
        sampled = remembering.generate(conversations, seeds_B=seeds)
        assert close(sampled, policy(model).generate(conversations, seeds_B=seeds))
        conversations = [
            [*prompt, *one.ids, *said(random, 6)]
            for prompt, one in zip(conversations, sampled, strict=True)
            if random.random() < 0.8
        ]
        conversations += [said(random, 12) for _ in range(random.randrange(2))] or [said(random, 4)]


def test_only_new_tokens_are_computed() -> None:
    model = llama()
    speaker, counting = policy(model), Counting(model)
    prompt = [2] * 500
    (first,) = speaker.generate([prompt], seeds_B=[0])
    before = counting.tokens
    speaker.generate([[*prompt, *first.ids, 3, 4]], seeds_B=[1])
    assert before >= 500
    assert counting.tokens - before <= 10


def test_a_prefix_that_new_conversations_share_is_computed_once() -> None:
    model, random = llama(), Random(0)
    speaker, counting = policy(model), Counting(model)
    tools = [random.randrange(2, 40) for _ in range(400)]
    prompts = [[*tools, *said(random, 20)] for _ in range(8)]
    sampled = speaker.generate(prompts, seeds_B=range(8))
    assert counting.tokens < 2 * 400
    assert close(sampled, [policy(model).generate([one], seeds_B=[i])[0] for i, one in enumerate(prompts)])


def test_answers_that_have_ended_are_computed_no_further_and_their_conversations_go_on() -> None:
    model, random = llama(), Random(0)
    prompts = [said(random, 5) for _ in range(40)]

    def alone(prompts: list[list[int]], seeds: range) -> list[Generation]:
        speakers = (policy(model, longest=200) for _ in prompts)
        return [
            one
            for speaker, prompt, seed in zip(speakers, prompts, seeds, strict=True)
            for one in speaker.generate([prompt], seeds_B=[seed])
        ]

    answered = alone(prompts, range(40))
    lengths = [len(one.ids) for one in answered]
    assert 40 * max(lengths) > 3 * sum(lengths)
    speaker, counting = policy(model, longest=200), Counting(model)
    assert close(speaker.generate(prompts, seeds_B=range(40)), answered)
    assert counting.tokens <= 40 * 5 + 2 * sum(lengths)
    prompts = [[*prompt, *one.ids, 2, 3] for prompt, one in zip(prompts, answered, strict=True)]
    before, seeds = counting.tokens, range(40, 80)
    sampled = speaker.generate(prompts, seeds_B=seeds)
    assert counting.tokens - before <= 40 * 4 + 2 * sum(len(one.ids) for one in sampled)
    assert close(sampled, alone(prompts, seeds))


def test_two_conversations_that_begin_alike_both_go_on() -> None:
    model = llama()
    speaker = policy(model)
    (first,) = speaker.generate([[2, 3, 4]], seeds_B=[0])
    forks = [[2, 3, 4, *first.ids, 5], [2, 3, 4, *first.ids, 6, 7]]
    assert close(speaker.generate(forks, seeds_B=[1, 2]), policy(model).generate(forks, seeds_B=[1, 2]))


def test_new_weights_are_used_after_the_cache_is_forgotten() -> None:
    model = llama()
    speaker = policy(model)
    (first,) = speaker.generate([[2, 3, 4]], seeds_B=[0])
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    speaker.forget()
    prompts = [[2, 3, 4, *first.ids, 5]]
    assert close(speaker.generate(prompts, seeds_B=[1]), policy(model).generate(prompts, seeds_B=[1]))


def test_a_model_with_a_sliding_window_samples_the_same_as_without_a_cache() -> None:
    torch.manual_seed(0)
    model = MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4))
    speaker = policy(model)
    (first,) = speaker.generate([[2, 3, 4, 5, 6, 7]], seeds_B=[0])
    prompts = [[2, 3, 4, 5, 6, 7, *first.ids, 8, 9]]
    assert close(speaker.generate(prompts, seeds_B=[1]), policy(model).generate(prompts, seeds_B=[1]))


def test_the_cache_does_not_exceed_its_limit() -> None:
    model = llama()
    speaker = policy(model)
    held = PrefixCache(limit=30_000)
    speaker._known = held
    for start in range(20):
        speaker.generate([[2 + start] * 30], seeds_B=[start])
    sizes = [one.nbytes for one in held._held.values()]
    assert 0 < sum(sizes) <= 30_000
    assert len(sizes) < 20
