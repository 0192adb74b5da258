"""Compare sampling in episodes of many turns with and without the cached computation of the earlier turns.

    python benchmarks/prefix_cache.py [--policy FOLDER] [--episodes 64] [--turns 10] [--heard 60]

Every episode begins with a prompt of `--heard` tokens and receives as many after each of its answers. Both columns
sample the same answers in the same process with one thread. Without a folder the policy is a Llama with random weights,
of the tiny policy's size.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from types import SimpleNamespace

import torch
from dreamgym_integrations.trainers.policy.model import TransformersPolicy, load_policy
from transformers import LlamaConfig, LlamaForCausalLM


def tiny() -> TransformersPolicy:
    """A policy of about 110 thousand parameters with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
    )
    return TransformersPolicy(
        LlamaForCausalLM(config), SimpleNamespace(eos_token_id=1, pad_token_id=0), max_new_tokens=6
    )


def seconds(policy: TransformersPolicy, episodes: int, turns: int, heard: int, *, forgets: bool) -> float:
    """Wall time of all turns of all episodes."""
    words = policy.model.config.vocab_size
    spoken = torch.randint(2, words, (turns, episodes, heard), generator=torch.Generator().manual_seed(0)).tolist()
    conversations: list[list[int]] = [[] for _ in range(episodes)]
    policy.forget()
    began = time.perf_counter()
    for turn in range(turns):
        conversations = [[*before, *heard] for before, heard in zip(conversations, spoken[turn], strict=True)]
        if forgets:
            policy.forget()
        seeds = [turn * episodes + i for i in range(episodes)]
        sampled = policy.generate(conversations, seeds_B=seeds)
        conversations = [[*before, *one.ids] for before, one in zip(conversations, sampled, strict=True)]
    return time.perf_counter() - began


def main() -> None:
    """Measure both, and print them with their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--heard", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    policy = load_policy(given.policy)[0] if given.policy else tiny()
    print("| every turn anew, s | what is new alone, s | ratio |\n|---|---|---|")
    for _ in range(given.rounds):
        anew, new = (
            seconds(policy, given.episodes, given.turns, given.heard, forgets=forgets) for forgets in (True, False)
        )
        print(f"| {anew:.2f} | {new:.2f} | {anew / new:.1f} |")


if __name__ == "__main__":
    main()
