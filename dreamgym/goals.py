"""Goals of an environment's tasks: the hook that checks and proposes goals over the states of its reader.

    goals = installed_real(spec).goals  # an attribute of the adapters that have the hook
    check = goals.check("Your task is to: put a clean mug in desk.", start)    # a JSON Schema, as metadata.success
    proposals = goals.proposals(start, shown)                                  # other goals for this start

A goal is a condition on the state, without a way to reach it. Only a play shows whether it can be reached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple, Protocol

from dreamgym.types import JsonObject, ToolCall


class ProposedGoal(NamedTuple):
    """A goal that a new task could have."""

    instruction: str
    """Instruction of the task, in the environment's own words."""
    metadata: JsonObject
    """Fields that this goal adds to the task's metadata."""


class Goals(Protocol):
    """Hook of an environment that also has a reader."""

    @property
    def behaviour(self) -> str:
        """Name of a behaviour that knows only what an agent reads, and reaches most goals that can be reached."""

    def check(self, instruction: str, start: JsonObject) -> JsonObject | None:
        """A JSON Schema that the state satisfies once the task is accomplished; None if the state cannot show that.

        Args:
            instruction: instruction of the task.
            start: state of the reader with everything that is known of the world at the start.
        """

    def proposals(self, start: JsonObject, shown: Sequence[JsonObject]) -> Iterator[ProposedGoal]:
        """Goals over the known part of a world, each once. Some may hold already, others may be impossible.

        Args:
            start: state of the reader with everything that is known of the world at the start.
            shown: states of all recorded worlds. A goal that resembles nothing in them is not worth a trial.
        """


class PageGoal(NamedTuple):
    """A goal that a new task in an environment of pages could have."""

    instruction: str
    """Instruction of the task, in the environment's own words."""
    check: JsonObject
    """A JSON Schema that the state at the end satisfies if the goal is reached."""
    calls: tuple[ToolCall, ...]
    """Calls that should reach the goal. They are tried out in the dream."""


class PageGoals(Protocol):
    """Hook of an environment of pages that also has a `dreamgym.reading.PageReader`."""

    def proposals(self, instruction: str, state: JsonObject, draw: Random) -> Iterator[PageGoal]:
        """Goals that are similar to one that was reached, each once.

        Args:
            instruction: instruction of the task that was accomplished.
            state: state of the reader before the last step.
            draw: random generator that decides the order of the goals.
        """
