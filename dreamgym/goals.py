"""What the tasks of an environment ask for: the hook that decides and words goals over the states of its reader.

    goals = installed_real(spec).goals  # an attribute of the adapters that have the hook
    check = goals.check("Your task is to: put a clean mug in desk.", start)    # a JSON Schema, as metadata.success
    proposals = goals.proposals(start, shown)                                  # what else could be asked for here

A goal is a fact about the state. What leads to it is nowhere: whether it can be reached, a player finds out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple, Protocol

from dreamgym.types import JsonObject, ToolCall


class ProposedGoal(NamedTuple):
    """Something that could be asked for."""

    instruction: str
    """In the environment's own words."""
    metadata: JsonObject
    """Fields of the task's metadata that this goal has of its own."""


class Goals(Protocol):
    """The hook of an environment, beside its reader."""

    @property
    def behaviour(self) -> str:
        """A behaviour of the environment that knows what an agent reads, and mostly reaches a goal that can be."""

    def check(self, instruction: str, start: JsonObject) -> JsonObject | None:
        """A JSON Schema that the state satisfies once the task is accomplished; None if no state tells that.

        Args:
            instruction: of the task.
            start: all that is known of the world at the start, as the reader gives states.
        """

    def proposals(self, start: JsonObject, shown: Sequence[JsonObject]) -> Iterator[ProposedGoal]:
        """Goals over what is known of a world, each once; some may hold already, others may be impossible.

        Args:
            start: all that is known of the world at the start.
            shown: states of all worlds that recordings show. A goal that is like nothing in them is not worth a trial.
        """


class PageGoal(NamedTuple):
    """Something that could be asked for in an environment of pages."""

    instruction: str
    """In the environment's own words."""
    check: JsonObject
    """A JSON Schema that the state at the end satisfies once it is done."""
    calls: tuple[ToolCall, ...]
    """A way to do it, which is tried out in the dream."""


class PageGoals(Protocol):
    """The hook of an environment of pages, beside its `dreamgym.reading.PageReader`."""

    def proposals(self, instruction: str, state: JsonObject, draw: Random) -> Iterator[PageGoal]:
        """Other goals that are like one that was reached, each once.

        Args:
            instruction: of the task that was accomplished.
            state: before the last step, as the reader gives states.
            draw: gives their order.
        """
