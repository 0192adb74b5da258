"""Measure the time that the policy endpoint adds to a model: many agents against their slowest chain of calls.

The model takes a fixed time for a batch of any size, like a memory-bound model, and each episode has a fixed number of
calls. An episode's chain is the time of the batches that it was in: the time of the same calls if model and agent were
alone. Wall clock / slowest chain should be at most 1.2 for 64 episodes.

The players, in this order: the baseline TokenPlayer, which plays the same policy in the same environment without
endpoint or agent; a minimal agent, which shows what the endpoint costs; and real agents, whose frameworks share
Python's one core with the endpoint. `cpu_s` is that of this process. The environment's server is a separate process.

    python benchmarks/policy_endpoint.py --episodes 64 --seconds 5 --agent react --agent langgraph
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, fields
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
from dreamgym_client.environment import ENVELOPE, PROTOCOL_VERSION, RemoteEnvironment
from dreamgym_server.app import build
from dreamgym_server.running import collect_rarely, running
from dreamgym_server.sources import RealWorlds

from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.episode import Agent, load_agent
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.training.rollout import Codec, Generation, Player, TokenPlayer, draw_seed
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

ENV = "bench"
VIEW = "you are in a room with doors to the north south east and west"
WORDS = "go north"
BASELINE = "TokenPlayer"
TOOL: JsonObject = {
    "name": "act",
    "description": "Do one thing.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    player: str
    episodes: int
    calls: int
    """Calls of the model in each episode."""
    batches: int
    wall_s: float
    chain_s: float
    """Time of the slowest episode's model calls, one after another."""
    ratio: float
    cpu_s: float


class Rooms:
    """An environment in which every step leads to a room that looks the same."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The only tool."""
        return [TOOL]

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Show the room."""
        return StepResult(observation=VIEW)

    async def step(self, action: ToolCall) -> StepResult:
        """Show the next room, which looks the same."""
        return StepResult(observation=VIEW)

    async def close(self) -> None:
        """Nothing to release."""


class SteadyPolicy:
    """Gives the same two words after a fixed time for each batch, and notes which seeds each batch contained."""

    def __init__(self, ids: Sequence[int], seconds: float) -> None:
        self._said = Generation(tuple(ids), (-1.0,) * len(ids))
        self._seconds = seconds
        self.batches: list[tuple[float, list[int]]] = []

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """Wait as for another device, then answer."""
        began = time.monotonic()
        time.sleep(self._seconds)
        self.batches.append((time.monotonic() - began, list(seeds_B)))
        return [self._said for _ in prompts_B]

    def slowest_chain(self, episode_of: dict[int, int]) -> float:
        """The total seconds of an episode's batches, for the slowest episode."""
        chains: defaultdict[int, float] = defaultdict(float)
        for seconds, seeds_B in self.batches:
            for seed in seeds_B:
                chains[episode_of[seed]] += seconds
        return max(chains.values())


def spec(steps: int) -> EnvironmentSpec:
    """An environment whose episodes have a fixed number of steps."""
    task = Task(id="walk", env=ENV, instruction="walk", initial_state=VIEW)
    return EnvironmentSpec(
        name=ENV, tools_list=({"tools": [TOOL]},), max_steps=steps, tasks=(task,), description="rooms"
    )


def serve(steps: int, pipe: Connection) -> None:
    """Run a server: send its URL, and stop when a message comes."""

    async def until_told() -> None:
        app = build([RealWorlds(spec(steps), Rooms)], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
        collect_rarely()
        async with running(app) as url:
            pipe.send(url)
            await asyncio.to_thread(pipe.recv)

    asyncio.run(until_told())


@asynccontextmanager
async def served(steps: int) -> AsyncIterator[str]:
    """Start a server in a separate process."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=serve, args=(steps, there))
    child.start()
    there.close()
    try:
        yield await asyncio.to_thread(here.recv)
    finally:
        here.send(None)
        await asyncio.to_thread(child.join, 30)


def tiny_codec(folder: Path, steps: int) -> tuple[Codec, list[int]]:
    """A codec that knows the words of the rooms, and the tokens of the policy's answer."""
    from dreamgym_integrations.trainers.policy.model import load_chat_policy
    from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

    step = Transition(
        state=VIEW,
        action=ToolCall(name="act", arguments={"command": WORDS}),
        result=StepResult(observation=VIEW),
        next_state=VIEW,
        provenance=Provenance(tier=Tier.REAL),
    )
    known = Trajectory(
        id="known", task=spec(steps).tasks[0], transitions=(step,), source=Source.REAL, stop_reason=StopReason.FINISHED
    )
    create_tiny_policy([known], folder, seed=0)
    codec = load_chat_policy(folder)[1]
    return codec, codec.answer(WORDS)


async def lean(task: str, mcp_url: str, policy_url: str) -> str:
    """A minimal agent: post the conversation, post the call, until there is no call."""
    messages: list[Any] = [{"role": "user", "content": task}]
    tool = {"type": "function", "function": {"name": "act", "parameters": TOOL["inputSchema"]}}
    headers = {
        "Accept": "application/json, text/event-stream",
        "Mcp-Protocol-Version": PROTOCOL_VERSION,
        "Mcp-Method": "tools/call",
        "Mcp-Name": "act",
    }
    async with aiohttp.ClientSession() as http:
        while True:
            order = {"model": "policy", "messages": messages, "tools": [tool]}
            async with http.post(f"{policy_url}/chat/completions", json=order) as response:
                said = (await response.json())["choices"][0]["message"]
            if not said.get("tool_calls"):
                return str(said["content"])
            (call,) = said["tool_calls"]
            arguments = json.loads(call["function"]["arguments"])
            params = {"name": "act", "arguments": arguments, "_meta": ENVELOPE}
            message = {"jsonrpc": "2.0", "id": len(messages), "method": "tools/call", "params": params}
            async with http.post(mcp_url, json=message, headers=headers) as response:
                seen = (await response.json())["result"]["content"][0]["text"]
            messages += [said, {"role": "tool", "tool_call_id": call["id"], "content": seen}]


AGENTS: dict[str, Agent] = {"lean": lean}


async def measure(name: str, url: str, codec: Codec, policy: SteadyPolicy, episodes: int, steps: int) -> Row:
    """Play all episodes at once; return the row."""
    from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer
    from dreamgym_integrations.trainers.policy.model import ChatCodec

    assert isinstance(codec, ChatCodec)
    player: Player
    if name == BASELINE:
        player = TokenPlayer(policy, codec, spec(steps), lambda version, group: RemoteEnvironment(url, ENV))
        episode_of = {draw_seed(0, i, turn): i for i in range(episodes) for turn in range(steps)}
    else:
        player = AgentPlayer(AGENTS.get(name) or load_agent(name), policy, codec, url=url, env=ENV)
        episode_of = {draw_seed(draw_seed(0, i), call): i for i in range(episodes) for call in range(steps)}
    began, cpu = time.monotonic(), time.process_time()
    rollouts = await player.play(
        [spec(steps).tasks[0]] * episodes, groups=[""] * episodes, seeds=[0] * episodes, version=0, sampling_seed=0
    )
    wall, cpu = time.monotonic() - began, time.process_time() - cpu
    assert all(rollout.error is None and len(rollout.actions) == steps for rollout in rollouts), rollouts[0].error
    chain = policy.slowest_chain(episode_of)
    return Row(
        name,
        episodes,
        steps,
        len(policy.batches),
        round(wall, 2),
        round(chain, 2),
        round(wall / chain, 3),
        round(cpu, 2),
    )


async def main(options: argparse.Namespace) -> int:
    """Measure and print; return 1 if the goal is missed."""
    with tempfile.TemporaryDirectory() as folder:
        codec, said = tiny_codec(Path(folder), options.steps)
    print(f"# {platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; {options.seconds} s a batch")
    print(" ".join(f"{field.name:>13}" for field in fields(Row)))
    rows = []
    async with served(options.steps) as url:
        for name in [BASELINE, "lean", *(options.agent or ["react"])]:
            if name != BASELINE:  # warm up: imports and first uses are not measured
                await measure(name, url, codec, SteadyPolicy(said, 0.0), 2, options.steps)
            policy = SteadyPolicy(said, options.seconds)
            rows.append(await measure(name, url, codec, policy, options.episodes, options.steps))
            print(" ".join(f"{value:>13}" for value in asdict(rows[-1]).values()), flush=True)
    if options.json:
        Path(options.json).write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")
    return int(any(row.ratio > options.goal for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--steps", type=int, default=8, help="model calls per episode")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds that the model takes for a batch")
    parser.add_argument("--agent", action="append", help="react (default), langgraph or openai_agents; repeatable")
    parser.add_argument("--goal", type=float, default=1.2)
    parser.add_argument("--json", help="write the rows here too")
    sys.exit(asyncio.run(main(parser.parse_args())))
