"""Measure how hard the games are: how often each behaviour wins, and how much text there is.

    python benchmarks/tasklists/survey.py coin twc mapreader --tasks 200

One row per game and behaviour, on tasks of the test split, with Wilson's 95 % interval of the success.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Sequence

from dreamgym_integrations.environments.textworld_express.games import GAMES, textworld_express

from dreamgym.environment import RealEnvironment
from dreamgym.episode import play
from dreamgym.evaluation.rates import wilson
from dreamgym.types import Source, Trajectory

HEAD = (
    "game",
    "limit",
    "play",
    "success",
    "95 %",
    "lost",
    "steps",
    "refused",
    "words/episode",
    "longest",
    "words",
    "/s",
)
KINDS = ("random", "noisy", "mixed", "expert")


def words(text: str) -> list[str]:
    """Words of a text, as a tiny policy's tokenizer splits it."""
    return re.sub(r"[^\w\s]+", " ", text.lower()).split()


def row(real: RealEnvironment, kind: str, episodes: Sequence[Trajectory], seconds: float) -> tuple[str, ...]:
    """Cells of the row for the episodes of one behaviour."""
    steps = [step for episode in episodes for step in episode.transitions]
    commands = [words(str(step.action.arguments["command"])) for step in steps]
    texts = [
        words(
            " ".join(
                [
                    episode.task.instruction,
                    episode.task.initial_state or "",
                    *(f"{step.action.arguments['command']} {step.result.observation}" for step in episode.transitions),
                ]
            )
        )
        for episode in episodes
    ]
    rate = wilson(sum(episode.success for episode in episodes), len(episodes))
    lost = sum(episode.transitions[-1].result.terminated and not episode.success for episode in episodes)
    return (
        real.spec.name,
        str(real.spec.max_steps),
        kind,
        f"{rate.mean:.1%}",
        f"{rate.low:.1%} to {rate.high:.1%}",
        f"{lost / len(episodes):.0%}",
        f"{len(steps) / len(episodes):.1f}",
        f"{sum(step.result.is_error for step in steps) / len(steps):.0%}",
        f"{sum(map(len, texts)) / len(texts):.0f} (max {max(map(len, texts))})",
        str(max(map(len, commands))),
        str(len({word for text in texts for word in text})),
        f"{len(steps) / seconds:.0f}",
    )


async def survey(real: RealEnvironment, kind: str, count: int) -> tuple[str, ...]:
    """Play `count` test tasks with one behaviour; return the cells of the row."""
    environment, start = real.create(), time.perf_counter()
    episodes = [
        await play(environment, task, real.behaviours[kind], spec=real.spec, seed=seed, source=Source.REAL)
        for seed, task in enumerate(real.tasks("test")[:count])
    ]
    seconds = time.perf_counter() - start
    await environment.close()
    return row(real, kind, episodes, seconds)


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("games", nargs="*", default=list(GAMES), metavar="GAME", help="default: all")
    parser.add_argument("--tasks", type=int, default=200)
    arguments = parser.parse_args()
    print("| " + " | ".join(HEAD) + " |")
    print("|" + " --- |" * len(HEAD))
    for name in arguments.games:
        for kind in KINDS:
            cells = asyncio.run(survey(textworld_express({"game": name}), kind, arguments.tasks))
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    _main()
