"""Sampling of the policy by a vLLM server and by transformers in this process: the same prompts in the same run.

    python benchmarks/engines.py POLICY http://127.0.0.1:8931 HERE THERE [--rounds 3]

The server is started as docs/training.md says; POLICY is a checkpoint folder. The prompts are beginnings of recorded
episodes of `examples/coin`; transformers starts each round without a cache, and the server's cache is dropped with the
weights that are loaded before. HERE and THERE are run folders of `dreamgym train` with the same settings, without and
with `--vllm`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median

from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.policy.model import TransformersPolicy, load_policy
from dreamgym_integrations.trainers.policy.vllm import VllmPolicy

from dreamgym.environment import read_jsonl
from dreamgym.training.practice import read_record
from dreamgym.types import Trajectory

EPISODES = (1, 8, 32)
TURNS = 3
"""Turns whose observations are in a prompt."""


def prompts(folder: Path) -> list[list[int]]:
    """Token ids of beginnings of recorded episodes."""
    _, codec = load_policy(folder)
    found = []
    for one in islice(read_jsonl(Path("examples/coin/trajectories.jsonl"), Trajectory), max(EPISODES)):
        ids = codec.start(one.task.instruction)
        for transition in one.transitions[:TURNS]:
            ids += codec.turn(transition.result.observation, ended=False)
        found.append(ids)
    return found


def speed(policy: TransformersPolicy | VllmPolicy, asked: list[list[int]], rounds: int) -> float:
    """Median number of answers a second; the weights are loaded before the clock runs."""
    took = []
    for number in range(rounds):
        policy.forget()
        policy.generate([[asked[0][0]]], seeds_B=[0])
        began = time.perf_counter()
        policy.generate(asked, seeds_B=[number * 1000 + i for i in range(len(asked))])
        took.append(time.perf_counter() - began)
    return len(asked) / median(took)


def figures(run: Path) -> str:
    """A run as a row: success, seconds and what the engine says of itself."""
    lines = read_record(run / "metrics.jsonl")

    def values(name: str) -> list[float]:
        return [float(str(line[name])) for line in lines if line.get(name) is not None]

    def shown(name: str, digits: str) -> str:
        return format(mean(values(name)), digits) if values(name) else "-"

    inside, real = values("inside_success"), values("real_success")
    return (
        f"{len(inside)} | {mean(inside[-3:]):.0%} | {real[0]:.0%} | {real[-1]:.0%} | {shown('rollout_s', '.1f')} | "
        f"{shown('importance', '.4f')} | {shown('truncated_share', '.4f')} | {shown('weights_s', '.3f')} | "
        f"{max(values('apart'), default=0):.1e}"
    )


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("policy", type=Path)
    parser.add_argument("url")
    parser.add_argument("here", type=Path)
    parser.add_argument("there", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    policy, _ = load_policy(given.policy)
    asked = prompts(given.policy)
    parameters = sum(one.numel() for one in policy.model.parameters())
    print(f"Answers a second, {parameters:,} parameters, prompts of {round(mean(map(len, asked)))} tokens, no GPU.\n")
    print("| engine |" + "".join(f" {count} episodes |" for count in EPISODES) + "\n|---|" + "---|" * len(EPISODES))
    with tempfile.TemporaryDirectory() as folder:
        save = partial(_saved, policy)
        engines: dict[str, TransformersPolicy | VllmPolicy] = {
            "transformers": policy,
            "vLLM": VllmPolicy(policy.copy(), given.url, Path(folder) / "w", save),
        }
        for name, engine in engines.items():
            cells = (f" {speed(engine, asked[:count], given.rounds):.1f} |" for count in EPISODES)
            print(f"| {name} |" + "".join(cells))
    print("\nGRPO with the same settings and seed, sampled by each. Seconds and weights are means over the updates.\n")
    head = "updates | success in the dream, last 3 | real, first | real, last | rollout, s | importance | truncated"
    print(f"| sampled by | {head} | weights loaded, s | apart, nats |\n|---|" + "---|" * 9)
    for name, run in (("transformers", given.here), ("vLLM", given.there)):
        print(f"| {name} | {figures(run)} |")


def _saved(policy: TransformersPolicy, model: object, folder: Path) -> None:
    save_model(model, policy.tokenizer, folder)


if __name__ == "__main__":
    main()
