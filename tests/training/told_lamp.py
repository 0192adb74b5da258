"""The real lamp in a file that a command can name as its environment, with a behaviour that plays it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamp import COLOURS
from lamp_home import RealLamp

from dreamgym.environment import Behaviour, Environment
from dreamgym.types import JsonObject, StepResult, Task, ToolCall


async def guess(first: StepResult, environment: Environment, seed: int) -> None:
    """Say colours in turn, whatever is shown."""
    result, number = first, seed
    while not result.done:
        colour = COLOURS[number % len(COLOURS)]
        result = await environment.step(ToolCall(name="act", arguments={"command": f"say {colour}"}))
        number += 1


class ToldLamp(RealLamp):
    spec = RealLamp.spec.model_copy(update={"adapter": f"{__file__}:told_lamp"})
    behaviours: Mapping[str, Behaviour] = {"guess": guess}

    def tasks(self, split: str) -> Sequence[Task]:
        """Tasks of a split, with instructions that no other split has."""
        return [
            task.model_copy(update={"instruction": f"{task.instruction} of the {split} lamp"})
            for task in super().tasks(split)
        ]


def told_lamp(options: JsonObject) -> ToldLamp:
    """The function that the command names after the file."""
    return ToldLamp()
