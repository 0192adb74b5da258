"""Compare vLLM, transformers and llama.cpp on the same prompts in one run, and training with and without vLLM.

    python benchmarks/engines.py --experience FOLDER FILE.gguf http://127.0.0.1:8932 \
        --policy POLICY http://127.0.0.1:8931 --runs HERE THERE

Start the servers as docs/training.md and docs/models.md describe, with VLLM_SERVER_DEV_MODE=1, because caches are
dropped before each round. The engines take turns in each round, so that other load on the machine slows all of them.

- `--experience`: the prompts of a dream of `examples/coin` to the experience model, in the first step of each episode.
  FOLDER is the checkpoint that the server serves, FILE.gguf the file that it was made from.
- `--policy`: beginnings of recorded episodes as prompts to the policy of a checkpoint folder.
- `--runs`: run folders of `dreamgym train` with the same settings, without and with `--vllm`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import mean, median

import httpx
from dreamgym_integrations.models import checkpoint, local, openai
from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.policy.model import TransformersPolicy, load_chat_policy
from dreamgym_integrations.trainers.policy.vllm import VllmPolicy

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Part
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import load_spec, read_jsonl
from dreamgym.errors import EnvironmentUnavailable, PredictionError
from dreamgym.llm import LLM, Completion, Message
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject, Trajectory

EPISODES = (1, 8, 32)
RECORDED = Path("examples/coin/trajectories.jsonl")
TURNS = 3
"""Turns whose observations are in a prompt of the policy."""
SHOWN = 1
"""Recorded transitions in a prompt of the experience model. Two cores read only 200 tokens a second."""
GROUNDS = 200
"""Recorded episodes that these transitions are chosen from."""
WRITTEN = 16
"""Tokens of each answer of the experience model. The length is fixed, so that the engines do the same work."""
ASKED_OF_THE_MODEL = frozenset({Part.RECORDED, Part.EFFECTS, Part.VIEWS, Part.CACHE, Part.CHECKS})
"""Parts of the dream that are left out, so that the model answers each step."""

Sampler = TransformersPolicy | VllmPolicy


@dataclass(frozen=True)
class Engine:
    """An engine to measure."""

    forget: Callable[[], None]
    """Drops its caches of earlier rounds."""
    play: Callable[[int, int], None]
    """Plays a round, given its number and the number of episodes at once."""


class Listener:
    """A fake language model that keeps the prompts and answers none."""

    name = "listener"

    def __init__(self) -> None:
        self.asked: list[Sequence[Message]] = []

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        self.asked.append(messages)
        raise EnvironmentUnavailable("nobody answers")

    async def close(self) -> None:
        pass


async def questions() -> list[Sequence[Message]]:
    """The prompts of a dream to its model in the first step of each episode."""
    recorded = [*islice(read_jsonl(RECORDED, Trajectory), GROUNDS)]
    buffer, listener = MemoryBuffer(TrigramEncoder()), Listener()
    await buffer.add(recorded)
    spec, model = load_spec("examples/coin"), LanguageModel(listener, SHOWN)
    for one in recorded[: max(EPISODES)]:
        dream = DreamEnvironment(spec, model, buffer, episode_id=one.id, without=ASKED_OF_THE_MODEL)
        await dream.reset(one.task, seed=0)
        with suppress(PredictionError):
            await dream.step(one.transitions[0].action)
    return listener.asked


def prompts(folder: Path) -> list[list[int]]:
    """Token ids of beginnings of recorded episodes."""
    _, codec = load_chat_policy(folder)
    found = []
    for one in islice(read_jsonl(RECORDED, Trajectory), max(EPISODES)):
        ids = codec.start(one.task.instruction)
        for transition in one.transitions[:TURNS]:
            ids += codec.turn(transition.result.observation, ended=False)
        found.append(ids)
    return found


def compare(engines: Mapping[str, Engine], rounds: int) -> None:
    """Print the answers a second of each engine and, in brackets, how many times as fast as the first one it is.

    Both are medians over the rounds. The engines take turns within each round.

    Args:
        engines: by name.
        rounds: how often each plays.
    """
    took: dict[tuple[str, int], list[float]] = {(name, count): [] for name in engines for count in EPISODES}
    for number in range(rounds):
        for count in EPISODES:
            for name, engine in engines.items():
                engine.forget()
                began = time.perf_counter()
                engine.play(number, count)
                took[name, count].append(time.perf_counter() - began)
    print("| engine |" + "".join(f" {count} episodes |" for count in EPISODES) + "\n|---|" + "---|" * len(EPISODES))
    first, *_ = engines
    for name in engines:
        cells = []
        for count in EPISODES:
            times = took[name, count]
            ratio = median(other / own for own, other in zip(times, took[first, count], strict=True))
            cells.append(f" {count / median(times):.3g} ({ratio:.1f}) |")
        print(f"| {name} |" + "".join(cells))


def compare_experience_models(folder: Path, file: Path, url: str, rounds: int) -> None:
    """Print the table of the experience model."""
    read: list[int] = []
    with asyncio.Runner() as runner:
        asked = runner.run(questions())

        async def ask(model: LLM, messages: Sequence[Message]) -> None:
            read.append((await model.complete(messages, max_tokens=WRITTEN)).prompt_tokens)

        async def ask_all(model: LLM, count: int) -> None:
            await asyncio.gather(*(ask(model, messages) for messages in asked[:count]))

        def play(model: LLM, number: int, count: int) -> None:
            runner.run(ask_all(model, count))

        def forget(model: LLM) -> None:
            runner.run(model.complete([Message(role="user", content="Hello.")], max_tokens=1))
            if model.name.startswith(url):
                httpx.post(f"{url}/reset_prefix_cache").raise_for_status()

        models: dict[str, LLM] = {
            "transformers": checkpoint.load(str(folder)),
            "llama.cpp, 4 bits": local.load(str(file)),
            "vLLM": openai.load(f"{url}/v1"),
        }
        engines = {name: Engine(partial(forget, model), partial(play, model)) for name, model in models.items()}
        print(f"Experience model: answers a second to the first step of each episode, {WRITTEN} tokens each.\n")
        compare(engines, rounds)
        print(f"\nThe prompts have {round(mean(read))} tokens in the mean.\n")
        for model in models.values():
            runner.run(model.close())


def compare_policies(folder: Path, url: str, rounds: int) -> None:
    """Print the table of the policy."""
    policy, _ = load_chat_policy(folder)
    asked = prompts(folder)
    parameters = sum(one.numel() for one in policy.model.parameters())
    print(
        f"Policy of {parameters:,} parameters: answers a second to prompts of {round(mean(map(len, asked)))} tokens.\n"
    )

    def forget(sampler: Sampler) -> None:
        sampler.forget()
        sampler.generate([asked[0][:1]], seeds_B=[0])  # loads the weights before the clock runs

    def play(sampler: Sampler, number: int, count: int) -> None:
        sampler.generate(asked[:count], seeds_B=[number * 1000 + i for i in range(count)])

    def save(model: object, to: Path) -> None:
        save_model(model, policy.tokenizer, to)

    with tempfile.TemporaryDirectory() as weights:
        samplers: dict[str, Sampler] = {
            "transformers": policy,
            "vLLM": VllmPolicy(policy.copy(), url, Path(weights) / "w", save),
        }
        compare({name: Engine(partial(forget, one), partial(play, one)) for name, one in samplers.items()}, rounds)


def figures(run: Path) -> str:
    """A run as a row of the table: success, seconds and the engine's own figures."""
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


def compare_runs(here: Path, there: Path) -> None:
    """Print the table of two training runs."""
    print("GRPO with the same settings and seed, sampled by each. Seconds and weights are means over the updates.\n")
    head = "updates | success in the dream, last 3 | real, first | real, last | rollout, s | importance | truncated"
    print(f"| sampled by | {head} | weights loaded, s | apart, nats |\n|---|" + "---|" * 9)
    for name, run in (("transformers", here), ("vLLM", there)):
        print(f"| {name} | {figures(run)} |")


def main() -> None:
    """Print the tables that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--experience", nargs=3, metavar=("FOLDER", "GGUF", "URL"))
    parser.add_argument("--policy", nargs=2, metavar=("FOLDER", "URL"))
    parser.add_argument("--runs", nargs=2, metavar=("HERE", "THERE"), type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print("In brackets: times as fast as transformers. One thread each, no GPU.\n")
    if given.experience:
        folder, file, url = given.experience
        compare_experience_models(Path(folder), Path(file), url, given.rounds)
    if given.policy:
        folder, url = given.policy
        compare_policies(Path(folder), url, given.rounds)
        print()
    if given.runs:
        compare_runs(*given.runs)


if __name__ == "__main__":
    main()
