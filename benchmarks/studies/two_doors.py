"""One episode of an unchanged LangGraph agent in a real environment and in a dream of it, side by side.

    dreamgym collect webshop --agent mixed --episodes 200 --out runs.jsonl
    python benchmarks/studies/two_doors.py webshop --recorded runs.jsonl --model local

Only the URL changes between the two episodes. The chat model is a script: it makes the moves with which the
environment's expert wins the task in reality, so that each answer of the dream stands beside the real answer to the
same call. The task is the first of the split that was not recorded and that the expert wins within `--steps`.
"""

from __future__ import annotations

import argparse
import asyncio
import textwrap
from itertools import zip_longest
from pathlib import Path

from dreamgym_client.playing import play_agent
from dreamgym_integrations.models.chat_server import Reply, chat_server
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds

from dreamgym.dream.load import load_model
from dreamgym.embedding import load_encoder
from dreamgym.environment import RealEnvironment, load_real, read_jsonl
from dreamgym.episode import load_agent, play
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import JsonObject, Source, Trajectory

COLUMN = 76
SHOWN = 12
"""Most lines shown of an answer; a page of a shop or a browser has hundreds."""


async def won(real: RealEnvironment, split: str, recorded: set[str], steps: int) -> Trajectory:
    """The first short episode of the split that the expert wins, of a task that was not recorded."""
    for task in real.tasks(split):
        if task.id in recorded:
            continue
        environment = real.create()
        try:
            episode = await play(
                environment, task, real.behaviours["expert"], spec=real.spec, seed=0, source=Source.REAL
            )
        finally:
            await environment.close()
        if episode.success and len(episode.transitions) <= steps:
            return episode
    raise SystemExit(f"the expert of {real.spec.name} wins no task of {split!r} within {steps} steps: raise --steps")


async def played(worlds: Worlds, script: Trajectory) -> Trajectory:
    """Let the agent play one episode in these worlds; its chat model makes the moves of the script.

    The episode is stored apart: a dream that had seen the real one would only repeat it.
    """

    def says(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        done = sum(message["role"] == "tool" for message in messages)
        moves = script.transitions
        return Reply(tool_calls=(moves[done].action,)) if done < len(moves) else Reply("Done.")

    door = build([worlds], MemoryBuffer(load_encoder(None)), MemoryEpisodeStore())
    async with running(door) as url, chat_server(says) as policy_url:
        agent = load_agent("langgraph")
        return (await play_agent(url, worlds.spec.name, agent, policy_url, script.task, 0)).trajectory


def told(title: str, episode: Trajectory) -> list[str]:
    """The lines of an episode in one column."""
    lines = [title, *shown(episode.task.initial_state or "")]
    for step in episode.transitions:
        arguments = ", ".join(str(value) for value in step.action.arguments.values())
        lines += ["", *textwrap.wrap(f"> {step.action.name}({arguments})", COLUMN), *shown(step.result.observation)]
        lines[-1] += f"  [{step.provenance.tier}]"
    return [*lines, "", f"[{episode.end}]"]


def shown(text: str) -> list[str]:
    """The first lines of a text, in the width of a column."""
    lines = [part for line in text.splitlines() for part in textwrap.wrap(line, COLUMN - 12)]
    return lines if len(lines) <= SHOWN else [*lines[: SHOWN - 1], f"... {len(lines) - SHOWN + 1} lines more"]


async def main() -> None:
    """Play both episodes and print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env")
    parser.add_argument("--recorded", type=Path, required=True, help="JSONL, as `dreamgym collect --out` writes it")
    parser.add_argument("--model", default="nearest", help="as in dreamgym-serve")
    parser.add_argument("--split", default="dev")
    parser.add_argument("--steps", type=int, default=12, help="most steps of the expert's episode")
    options = parser.parse_args()
    real = load_real(options.env)
    recorded = read_jsonl(options.recorded, Trajectory)
    script = await won(real, options.split, {one.task.id for one in recorded}, options.steps)
    buffer = MemoryBuffer(load_encoder(None))
    await buffer.add(recorded)
    dream = DreamWorlds(real.spec, load_model(options.model, env=real.spec.name), buffer)
    episodes = [await played(worlds, script) for worlds in (RealWorlds(real.spec, real.create), dream)]
    print(f"{options.env}: {script.task.instruction}\nthe dream: {options.model}, {len(recorded)} recorded episodes\n")
    columns = (told("REAL", episodes[0]), told("DREAM", episodes[1]))
    for left, right in zip_longest(*columns, fillvalue=""):
        print(f"{left:<{COLUMN}} | {right}".rstrip())


if __name__ == "__main__":
    asyncio.run(main())
