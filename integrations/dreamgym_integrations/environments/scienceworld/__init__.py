"""ScienceWorld (Wang et al., 2022) as a real environment: thirty tasks of elementary science in a house of ten places.

Tasks are the package's own variations in its own folds. A split lists one variation of each task, then another of each,
so its first thirty cover all kinds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Literal

from pydantic import Field

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.base import SPLITS, check_split, checked, packed_lines
from dreamgym_integrations.environments.scienceworld.behaviours import BEHAVIOURS
from dreamgym_integrations.environments.scienceworld.environment import ACT, ScienceWorldEnvironment
from dreamgym_integrations.environments.scienceworld.reader import ScienceWorldReader

RULES = """A house with a kitchen, bathroom, living room, bedroom, workshop, art studio, greenhouse, foundry, hallway \
and the outside, full of things that heat, cool, melt, burn, grow, live, mix and conduct. Every command that is \
carried out is one step of time: temperatures move, plants grow, animals walk.
The state is what is seen in the place, then the inventory, then `Score: N.` where it has changed. The score of 100 \
grows with what the task needs, is never told to the agent, and falls to -100 by `focus on` the wrong thing, which \
ends the episode without success. Reaching 100 ends it with success.
Where a name means several things the answer begins with `Ambiguous request` and lists them by number; the next \
command is the number, or anything else to cancel. Text that is no command, and names of things that are not here, \
answer `No known action matches that input.` and take no time."""


class ScienceWorldOptions(Frozen):
    """Options of an environment folder, under [real]."""

    max_steps: int = Field(default=100, ge=1)
    """The default is the package's limit. One in ten of its own solutions is longer (as in genetics); 400 is enough."""
    simplifications: Literal["easy", "none"] = "easy"
    """`easy` is the package's: doors are open, `teleport to` works, plants need no water, wires only if needed."""
    admissible: bool = False
    """Put all commands with an effect in `info["admissible"]`: about a thousand, at twenty times the cost."""


class ScienceWorld:
    """ScienceWorld as a real environment: description, tasks, behaviours and new instances."""

    def __init__(self, options: ScienceWorldOptions) -> None:
        self._options = options
        self._name = "scienceworld" if options.simplifications == "easy" else "scienceworld-hard"
        self.reader = ScienceWorldReader()
        self.behaviours: Mapping[str, Behaviour] = BEHAVIOURS

    @cached_property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(
            name=self._name,
            description="Tasks of elementary science in a house of ten places (ScienceWorld).",
            rules=RULES,
            tools_list=({"tools": [ACT]},),
            max_steps=self._options.max_steps,
            deterministic=True,
            tasks=tuple(self.tasks("train")),
            adapter="scienceworld",
            options=self._options.model_dump(exclude_defaults=True),
        )

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        is_easy = self._options.simplifications == "easy"
        tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for line in packed_lines(__name__, "worlds.tsv.xz"):
            split, kind, variation, instruction, start = line.split("\t")
            metadata: JsonObject = {"task": kind, "variation": int(variation), "split": split}
            tasks[split].append(
                Task(
                    id=f"{self._name}-{split}-{kind}-{variation}",
                    env=self._name,
                    instruction=instruction,
                    initial_state=json.loads(start) if is_easy else None,  # the list was made with open doors
                    metadata=metadata if is_easy else {**metadata, "simplifications": ""},
                )
            )
        return tasks

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of one of the package's folds."""
        check_split(split)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new instance that nobody else uses."""
        return ScienceWorldEnvironment(lists_commands=self._options.admissible)


def scienceworld(options: JsonObject) -> ScienceWorld:
    """The entry point. Raises InvalidInput for an unknown option."""
    return ScienceWorld(checked(ScienceWorldOptions, "scienceworld", options))
