"""Measure a simulator on vLLM for benchmarks/gpu.sh: play episodes, then send the same requests straight to vLLM.

    python benchmarks/gpu.py play http://127.0.0.1:8941 OUT --episodes 256 --at-once 64
    python benchmarks/gpu.py table OUT

Episodes of `examples/coin` are played through a dreamgym server in this process, as training plays them. Their commands
are drawn at random, and the model answers every step. Then vLLM drops its prefix cache, and a bare HTTP client sends
the same requests again, as many at once. Nothing is stored.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import mean

import httpx
from dreamgym_client.environment import RemoteEnvironment
from dreamgym_integrations.models import openai
from dreamgym_integrations.models.endpoint import Capabilities
from dreamgym_server.sources import DreamWorlds

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Part
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import load_spec, read_jsonl
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.llm import LLM, Completion, Message
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.runs.opening import served
from dreamgym.training.record import read_record
from dreamgym.types import Frozen, JsonObject, Task, ToolCall, Trajectory

COMMANDS = ("move north", "move east", "move south", "move west", "look around", "inventory", "take coin")
GROUNDS = 400
"""Recorded episodes that ground the simulation."""
ASKED_OF_THE_MODEL = frozenset({Part.RECORDED, Part.EFFECTS, Part.VIEWS, Part.CACHE})
"""Parts of the dream that are left out, so that the model answers each step."""
FIGURES = "figures.json"


class Load(Frozen):
    """The load on vLLM in one of the two ways."""

    questions: int
    prompt_tokens: int
    written_tokens: int
    seconds: float
    hits: float
    """Share of the prompt tokens that were in the prefix cache."""


class Figures(Frozen):
    """The figures of both ways."""

    model: str
    at_once: int
    episodes: int
    steps: int
    failed: int
    """Steps without an answer; the episode ends there."""
    dreamgym: Load
    raw: Load


class Recorder:
    """Wraps a language model and keeps the requests as they are sent."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.name = llm.name
        self.sent: list[JsonObject] = []
        self.completions: list[Completion] = []

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        self.sent.append(
            Capabilities().request(messages, schema, max_tokens, temperature=temperature, seed=seed % 2**31)
        )
        completion = await self._llm.complete(
            messages, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
        )
        self.completions.append(completion)
        return completion

    async def close(self) -> None:
        await self._llm.close()


class Server:
    """Client of a vLLM server's own routes."""

    def __init__(self, url: str) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=None))

    async def counted(self) -> tuple[float, float]:
        """Return the tokens looked up in the prefix cache, and those found in it, since the server started."""
        text = (await self._http.get("/metrics")).raise_for_status().text
        asked, had = (
            sum(float(found) for found in re.findall(rf"^vllm:prefix_cache_{name}_total\{{.*\}} (\S+)$", text, re.M))
            for name in ("queries", "hits")
        )
        return asked, had

    async def forget(self) -> None:
        """Drop the prefix cache; the server runs with VLLM_SERVER_DEV_MODE=1."""
        (await self._http.post("/reset_prefix_cache")).raise_for_status()

    async def send(self, model: str, request: JsonObject) -> JsonObject:
        """Send one chat completion; return its `usage`."""
        answer = await self._http.post("/v1/chat/completions", json={"model": model, **request})
        usage: JsonObject = answer.raise_for_status().json()["usage"]
        return usage

    async def close(self) -> None:
        await self._http.aclose()


async def play_episode(environment: RemoteEnvironment, task: Task, seed: int) -> tuple[int, int]:
    """Play an episode; return the numbers of steps with an answer and without one."""
    draw, steps = random.Random(seed), 0
    result = await environment.reset(task, seed=seed)
    try:
        while not result.done:
            command = draw.choice(COMMANDS)
            result = await environment.step(ToolCall(name="act", arguments={"command": command}))
            steps += 1
    except EnvironmentUnavailable:
        return steps, 1
    finally:
        await environment.close()
    return steps, 0


async def play(url: str, episodes: int, at_once: int, steps: int) -> Figures:
    """Play the episodes, then send their requests again."""
    recorded = [*islice(read_jsonl(Path("examples/coin/trajectories.jsonl"), Trajectory), GROUNDS)]
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(recorded)
    spec = load_spec("examples/coin")
    endpoint, server, free = openai.load(f"{url}/v1"), Server(url), asyncio.Semaphore(at_once)
    await endpoint.check_reachable()
    model = endpoint.name.partition("#")[2]
    recorder = Recorder(endpoint)
    worlds = DreamWorlds(spec, LanguageModel(recorder), buffer, without=ASKED_OF_THE_MODEL)

    async def one(at: str, number: int) -> tuple[int, int]:
        async with free:
            task = recorded[number % len(recorded)].task
            return await play_episode(RemoteEnvironment(at, spec.name, max_steps=steps), task, number)

    async def sent(request: JsonObject) -> JsonObject:
        async with free:
            return await server.send(model, request)

    async with served(worlds) as at:
        await server.forget()
        before, began = await server.counted(), time.perf_counter()
        played = await asyncio.gather(*(one(at, number) for number in range(episodes)))
        took, after = time.perf_counter() - began, await server.counted()
    through = Load(
        questions=len(recorder.completions),
        prompt_tokens=sum(one.prompt_tokens for one in recorder.completions),
        written_tokens=sum(one.completion_tokens for one in recorder.completions),
        seconds=took,
        hits=(after[1] - before[1]) / max(1, after[0] - before[0]),
    )
    await server.forget()
    before, began = await server.counted(), time.perf_counter()
    usages = await asyncio.gather(*map(sent, recorder.sent))
    took, after = time.perf_counter() - began, await server.counted()
    raw = Load(
        questions=len(usages),
        prompt_tokens=sum(int(str(usage["prompt_tokens"])) for usage in usages),
        written_tokens=sum(int(str(usage["completion_tokens"])) for usage in usages),
        seconds=took,
        hits=(after[1] - before[1]) / max(1, after[0] - before[0]),
    )
    await server.close()
    return Figures(
        model=model,
        at_once=at_once,
        episodes=episodes,
        steps=sum(steps for steps, _ in played),
        failed=sum(failed for _, failed in played),
        dreamgym=through,
        raw=raw,
    )


def table(out: Path) -> None:
    """Print the table of the figures in a folder."""
    found = Figures.model_validate_json((out / FIGURES).read_text(encoding="utf-8"))
    one, other = found.dreamgym, found.raw

    def row(what: str, mine: float, raw: float, digits: str) -> None:
        print(f"| {what} | {mine:{digits}} | {raw:{digits}} | {mine / raw if raw else 0:.2f} |")

    print("| figure | dreamgym | raw vLLM | ratio |\n|---|---|---|---|")
    print(f"| episodes, at once | {found.episodes}, {found.at_once} | | |")
    print(f"| steps, without an answer | {found.steps}, {found.failed} | | |")
    print(f"| steps a second | {found.steps / one.seconds:.3g} | | |")
    row("questions a second", one.questions / one.seconds, other.questions / other.seconds, ".4g")
    row("prompt tokens a second", one.prompt_tokens / one.seconds, other.prompt_tokens / other.seconds, ".4g")
    row("written tokens a second", one.written_tokens / one.seconds, other.written_tokens / other.seconds, ".4g")
    row("prompt tokens in the prefix cache", one.hits, other.hits, ".1%")
    lines = read_record(out / "policy" / "metrics.jsonl")

    def values(name: str) -> list[float]:
        return [float(str(line[name])) for line in lines if line.get(name) is not None]

    inside, real = values("inside_success"), values("real_success")
    print(f"| GRPO, updates | {len(inside)} | | |")
    print(f"| GRPO, success in the simulation, first and last update | {inside[0]:.0%}, {inside[-1]:.0%} | | |")
    print(f"| GRPO, real success, before and after | {real[0]:.0%}, {real[-1]:.0%} | | |")
    print(f"| GRPO, seconds an update | {mean(values('update_s')):.1f} | | |")
    print(f"| GRPO, seconds to load the weights | {mean(values('weights_s')):.2f} | | |")
    print(f"| GRPO, server and trainer apart, nats a token | {max(values('apart')):.1e} | | |")


def main() -> None:
    """Measure into a folder, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    playing = verbs.add_parser("play")
    playing.add_argument("url")
    playing.add_argument("out", type=Path)
    playing.add_argument("--episodes", type=int, default=256)
    playing.add_argument("--at-once", type=int, default=64)
    playing.add_argument("--steps", type=int, default=10)
    printing = verbs.add_parser("table")
    printing.add_argument("out", type=Path)
    given = parser.parse_args()
    if given.verb == "table":
        table(given.out)
        return
    found = asyncio.run(play(given.url, given.episodes, given.at_once, given.steps))
    (given.out / FIGURES).write_text(json.dumps(found.model_dump(), indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
