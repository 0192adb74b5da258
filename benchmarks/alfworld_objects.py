"""Measure how often a dream of ALFWorld on objects answers as the game does, and which new goals its rooms give.

    python benchmarks/alfworld_objects.py [--data FOLDER] [--games 100] [--nearest 20]
    python benchmarks/alfworld_objects.py --goals 20

Episodes of each game are recorded by the behaviour `mixed`. Other episodes, by `mixed` and by `handcoded`, are replayed
in a dream of them. `one step`: each command is asked in the state that the commands before it led to in the game, as
the reader knows it. `played along`: each command is asked in the state that the dream's own answers led to, so that one
thing that nobody recorded counts in each later step that involves it. Wrongly refused is a share of the commands that
the game accepts. `nearest` answers the same commands without the dream of objects, in fewer games. Times are CPU
seconds of one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dreamgym_integrations.environments.alfworld import Alfworld, alfworld

from dreamgym.curriculum.goal_variation import goal_variation
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.objects import ObjectWorlds
from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import play
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.schema import schema_of
from dreamgym.types import JsonObject, Origin, Source, StepResult, Task, ToolCall, Trajectory

EPISODES = (1, 2, 4, 8)
"""Numbers of recorded episodes per game."""
HELD_OUT = 2
"""Episodes per behaviour and game that are compared."""
STUDY = {1: r"83 / 10 \| 89 / 4", 2: r"88 / 7 \| 96 / 2", 4: r"92 / 5 \| 99 / 0", 8: r"95 / 2 \| 99 / 0"}
"""Figures of the feasibility study's object dream with rules written by hand, on other episodes of other games."""
GOALS_FROM = 4
"""Recorded episodes per game from which new goals are made."""


@dataclass
class Counts:
    """Counts of a dream's answers to commands, compared with the game's answers."""

    steps: int = 0
    right: int = 0
    accepted: int = 0
    refused: int = 0
    """Refused commands among those that the game accepted."""
    false_wins: int = 0
    missed_wins: int = 0
    seconds: float = 0.0

    def see(self, observation: str, is_error: bool, real: StepResult) -> None:
        """Compare one answer with the game's."""
        self.steps += 1
        self.right += observation == real.observation
        self.accepted += not real.is_error
        self.refused += is_error and not real.is_error

    def __str__(self) -> str:
        return f"{100 * self.right / self.steps:.1f} / {100 * self.refused / self.accepted:.1f}"


async def recorded(real: Alfworld, tasks: Sequence[Task], behaviour: str, seeds: range) -> list[Trajectory]:
    """Play episodes of the real game, one for each task and seed."""
    environment, made = real.create(), list[Trajectory]()
    for number, task in enumerate(tasks):
        made += [
            await play(
                environment,
                task,
                real.behaviours[behaviour],
                spec=real.spec,
                seed=len(seeds) * number + seed,  # players of one seed play equally well
                source=Source.REAL,
            )
            for seed in seeds
        ]
    return made


def one_step(known: ObjectWorlds, episodes: Sequence[Trajectory]) -> Counts:
    """Ask each command in the state that the game's own answers led to."""
    counts = Counts()
    for trajectory in episodes:
        episode = known.episode(trajectory.task)
        for step in trajectory.transitions:
            if episode is None:  # the dream of objects leaves the task to other tiers; here there are none
                counts.see("", True, step.result)
                continue
            before = episode.state
            answer = episode.answer(step.action)
            counts.see("" if answer is None else answer.observation, answer is None or answer.is_error, step.result)
            call = known.reader.call(step.action)
            episode.state = known.reader.after(before, call, known.reader.result(call, step.result))
    return counts


async def played_along(dream: DreamEnvironment, episodes: Sequence[Trajectory]) -> Counts:
    """Play the commands one after the other in the dream, until the dream or the commands end."""
    counts = Counts()
    await dream.reset(episodes[0].task)  # the dream learns only once, which is not counted
    begun = time.process_time()
    for trajectory in episodes:
        result = await dream.reset(trajectory.task)
        for step in trajectory.transitions:
            result = await dream.step(step.action)
            counts.see(result.observation, result.is_error, step.result)
            if result.done:
                break
        counts.false_wins += result.reward > 0 and not trajectory.success
        counts.missed_wins += trajectory.success and not result.reward > 0
    counts.seconds = time.process_time() - begun
    return counts


async def fidelity(real: Alfworld, games: int, nearest: int) -> None:
    """Print the table of answers."""
    tasks = real.tasks("train")[:games]
    held_out = {
        name: await recorded(real, tasks, name, range(1_000_000, 1_000_000 + HELD_OUT))
        for name in ("mixed", "handcoded")
    }
    every = await recorded(real, tasks, "mixed", range(max(EPISODES)))
    print(
        f"{games} games; right / wrongly refused in % of mixed play | handcoded play; {HELD_OUT} held-out ones each\n"
    )
    print(
        "| recorded episodes (steps) a game | one step | played along | wins: false, missed | ms a step | learned in |"
    )
    print("|---|---|---|---|---|---|")
    few = {name: [one for one in found if one.task in tasks[:nearest]] for name, found in held_out.items()}
    baseline = list[str]()
    for count in EPISODES:
        train = [one for i, one in enumerate(every) if i % max(EPISODES) < count]
        begun = time.process_time()
        known = ObjectWorlds.of(train, real.reader, real.goals)
        learned = time.process_time() - begun
        buffer = MemoryBuffer(TrigramEncoder())
        await buffer.add(train)
        dream = DreamEnvironment(real.spec, NearestModel(), buffer)
        steps = [one_step(known, found) for found in held_out.values()]
        along = [await played_along(dream, found) for found in held_out.values()]
        wins = sum(one.success for found in held_out.values() for one in found)
        cost = 1000 * sum(one.seconds for one in along) / sum(one.steps for one in along)
        ends = f"{sum(one.false_wins for one in along)}, {sum(one.missed_wins for one in along)} of {wins}"
        per_game = sum(len(one.transitions) for one in train) / games
        print(
            f"| {count} ({per_game:.0f}) | {steps[0]} \\| {steps[1]} | {along[0]} \\| {along[1]} | {ends} | "
            f"{cost:.2f} | {learned:.1f} s |"
        )
        sys.stdout.flush()
        if nearest:
            plain = DreamEnvironment(real.spec, NearestModel(), buffer, without=frozenset({Part.EFFECTS}))
            rows = [await played_along(plain, found) for found in few.values()]
            cost = 1000 * sum(one.seconds for one in rows) / sum(one.steps for one in rows)
            ends = f"{sum(one.false_wins for one in rows)}, {sum(one.missed_wins for one in rows)}"
            baseline.append(f"| {count} | {rows[0]} \\| {rows[1]} | {ends} | {cost:.1f} | {STUDY[count]} |")
    if nearest:
        print(f"\nBeside it `nearest`, without the dream of objects, in {nearest} of the games, and rules by hand.\n")
        print("| recorded episodes a game | nearest, played along | wins: false, missed | ms a step | rules by hand |")
        print("|---|---|---|---|---|")
        print("\n".join(baseline))


async def goals(real: Alfworld, games: int, shown: int) -> None:
    """Print new goals of the rooms, and how often the game agrees."""
    tasks = real.tasks("train")[:games]
    known = ObjectWorlds.of(await recorded(real, tasks, "mixed", range(GOALS_FROM)), real.reader, real.goals)
    variation = goal_variation(real.spec, known)
    assert variation is not None
    begun = time.process_time()
    made = [[task async for task in variation.new_goals(parent, seed=0)] for parent in tasks]
    cost = time.process_time() - begun
    count = sum(map(len, made))
    agreed = [await is_reached(real, known, task) for of_room in made for task in of_room[::8]]
    print(
        f"{games} games with {GOALS_FROM} recorded episodes each give {count} goals that nobody recorded, "
        f"{count / games:.0f} a room, {1000 * cost / count:.0f} ms each; "
        f"{sum(not one for one in made)} rooms give none. "
        f"Of every eighth of them the same player reaches {100 * sum(agreed) / len(agreed):.1f} % in the game as well "
        f"({sum(agreed)} of {len(agreed)}), by the check on the reader's state.\n"
    )
    print(f"{shown} of them, one a room:\n")
    print("| room of | new goal |")
    print("|---|---|")
    for parent, of_room in list(zip(tasks, made, strict=True)):
        if of_room and shown:
            shown -= 1
            print(f"| {parent.instruction.removeprefix('Your task is to: ')} | {of_room[0].instruction} |")


async def is_reached(real: Alfworld, known: ObjectWorlds, task: Task) -> bool:
    """True if a player who is asked for the goal reaches it in the game; the game itself knows another goal."""
    check, reader = schema_of(task.metadata["success"]), real.reader

    class Watched:
        """The game, which ends as soon as the check holds."""

        def __init__(self) -> None:
            self.tools = ()
            self.task = task
            self.state: JsonObject = known.worlds[task.world].start
            self.left = real.spec.max_steps

        async def step(self, action: ToolCall) -> StepResult:
            """One step of the game."""
            call = reader.call(action)
            result = await game.step(action)
            self.state = reader.after(self.state, call, reader.result(call, result))
            self.left -= 1
            return result.model_copy(update={"truncated": self.left <= 0 or check.allows(self.state)})

    game, watched = real.create(), Watched()
    of_game = {name: value for name, value in task.metadata.items() if name != "success"}
    first = await game.reset(task.model_copy(update={"metadata": of_game, "origin": Origin.SEED}))
    await real.behaviours[real.goals.behaviour](first, watched, 0)  # type: ignore[arg-type]
    await game.close()
    return check.allows(watched.state)


def main() -> None:
    """Print one of the tables."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--data", help="Folder with the games. Default: the variable ALFWORLD_DATA.")
    arguments.add_argument("--games", type=int, default=100, help="Number of recorded games.")
    arguments.add_argument("--nearest", type=int, default=20, help="Number of games that `nearest` answers; 0: none.")
    arguments.add_argument("--goals", type=int, default=0, help="Print this number of new goals instead.")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        given: JsonObject = {"cache": str(Path(folder)), **({"data": options.data} if options.data else {})}
        real = alfworld(given)
        asyncio.run(
            goals(real, options.games, options.goals)
            if options.goals
            else fidelity(real, options.games, options.nearest)
        )


if __name__ == "__main__":
    main()
