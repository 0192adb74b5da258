"""A made-up room in ALFWorld's words: the task is to take a certain thing, which lies on one of three desks."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import anyio
from dreamgym_integrations.environments.base import act_tool
from dreamgym_integrations.trainers.policy.model import PolicyCodec, TransformersPolicy, load_policy
from dreamgym_integrations.trainers.policy.pointer.create import create_pointer_policy

from dreamgym import EnvironmentSpec, Source, StepResult, Task, ToolCall, Trajectory
from dreamgym.environment import Environment
from dreamgym.episode import play
from dreamgym.types import JsonObject

ACT = act_tool("Do one thing.", example="take mug 1 from desk 2")
THINGS = ["mug", "pen", "book"]
START = "You are in the middle of a room. Looking quickly around you, you see a desk 3, a desk 2, and a desk 1."


def task(number: int) -> Task:
    """The task with this number, which determines the wanted thing and the places of all things."""
    order = random.Random(number).sample(THINGS, 3)
    return Task(
        id=f"desks-{number}",
        env="desks",
        instruction=f"Take the {THINGS[number % 3]}.",
        initial_state=START,
        metadata={"order": [*order], "wish": THINGS[number % 3]},
    )


SPEC = EnvironmentSpec(
    name="desks",
    description="three desks",
    tools_list=({"tools": [ACT]},),
    max_steps=5,
    deterministic=True,
    tasks=tuple(map(task, range(12))),
    adapter="alfworld",  # only its reader is used
)


class Desks:
    """The room. An episode ends with reward 1 when the thing that the task names is taken."""

    def __init__(self) -> None:
        self._lies: dict[str, str] = {}
        self._wish, self._at, self._held = "", "", ""

    @property
    def tools(self) -> Sequence[JsonObject]:
        return [ACT]

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        order = task.metadata["order"]
        assert isinstance(order, list)
        self._lies = {f"desk {number}": f"{thing} 1" for number, thing in enumerate(order, start=1)}
        self._wish, self._at, self._held = f"{task.metadata['wish']} 1", "", ""
        return StepResult(observation=START)

    async def step(self, action: ToolCall) -> StepResult:
        command = str(action.arguments["command"])
        place = command.removeprefix("go to ")
        if place in self._lies and place != self._at:
            self._at = place
            there = f"a {self._lies[place]}" if self._lies[place] else "nothing"
            return StepResult(observation=f"You arrive at {place}. On the {place}, you see {there}.")
        thing = self._lies.get(self._at)
        if thing and not self._held and command == f"take {thing} from {self._at}":
            self._held, self._lies[self._at] = thing, ""
            won = thing == self._wish
            said = f"You pick up the {thing} from the {self._at}."
            return StepResult(observation=said, reward=float(won), terminated=won)
        if thing == "" and self._held and command == f"move {self._held} to {self._at}":
            said = f"You move the {self._held} to the {self._at}."
            self._held, self._lies[self._at] = "", self._held
            return StepResult(observation=said)
        return StepResult(observation="Nothing happens.", is_error=True)

    async def close(self) -> None:
        pass


def act(command: str) -> ToolCall:
    return ToolCall(name="act", arguments={"command": command})


async def careless(first: StepResult, environment: Environment, seed: int) -> None:
    """Go to a random desk and take what lies there; a third of the time it is the right thing."""
    draw, result = random.Random(seed), first
    while not result.done:
        place = f"desk {draw.randint(1, 3)}"
        result = await environment.step(act(f"go to {place}"))
        if result.done or result.is_error or "nothing" in result.observation:
            continue
        thing = result.observation.rstrip(".").rpartition(" a ")[2]
        result = await environment.step(act(f"take {thing} from {place}"))
        if not result.done and not result.is_error:
            result = await environment.step(act(f"move {thing} to {place}"))


def recordings(episodes: int = 60) -> list[Trajectory]:
    """Recordings of careless play."""

    async def record() -> list[Trajectory]:
        return [
            await play(Desks(), SPEC.tasks[i % 12], careless, spec=SPEC, seed=i, source=Source.REAL)
            for i in range(episodes)
        ]

    return anyio.run(record)


def untrained(folder: Path, *, marks: bool = True) -> tuple[TransformersPolicy, PolicyCodec]:
    """Create a policy that knows the words of the room, and nothing else."""
    create_pointer_policy(SPEC, recordings(), folder, seed=0, marks=marks)
    return load_policy(folder)
