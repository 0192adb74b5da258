"""Types of all importers, which turn documents into episodes, and into reasons for what could not be used.

An importer knows its format but no environment. `dreamgym.recordings.importers.assembly` checks for all formats
whether an environment has the tools that were called.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from dreamgym.types import JsonObject, StepResult, StopReason, ToolCall, Trajectory


@dataclass(frozen=True)
class Document:
    """One JSON value of a file."""

    where: str
    """File and line, or place in a list, so that a person can look it up."""
    value: JsonValue


@dataclass(frozen=True)
class Skipped:
    """Something that could not be used, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class AgentMessage:
    """A message of the agent to its user instead of a tool call; the step's observation is the user's reply."""

    text: str


@dataclass(frozen=True)
class Command:
    """An action that is one text, for environments whose only tool takes one text."""

    text: str


@dataclass(frozen=True)
class ImportedStep:
    """One action and its answer, as recorded."""

    action: ToolCall | AgentMessage | Command
    result: StepResult


@dataclass(frozen=True)
class ImportedEpisode:
    """One recorded episode of an environment that is not known yet."""

    where: str
    instruction: str
    steps: tuple[ImportedStep, ...]
    stop_reason: StopReason
    opening: str | None = None
    """The text that the agent saw before its first action, if it is not the instruction alone."""
    answer: str | None = None
    final_reward: float | None = None
    """Reward of the whole episode, instead of those of its steps; None if the format has none."""
    metadata: JsonObject = field(default_factory=dict)
    """Metadata of the task: facts about it that the format contains besides the instruction."""
    tools: tuple[JsonObject, ...] = ()
    """MCP tool definitions, if the format contains them."""
    left_out: tuple[Skipped, ...] = ()
    """Parts of this episode that could not be used; the rest can."""


Found = ImportedEpisode | Trajectory | Skipped


@dataclass(frozen=True)
class Importer:
    """The importer of one format."""

    name: str
    title: str
    """The format in a few words."""
    matches: Callable[[JsonValue], bool]
    """Returns True if a document is of this format; never raises."""
    read: Callable[[Sequence[Document]], Iterator[Found]]
    """Reads the documents of one file; never raises. All of them match, or the user chose this format."""


def each(read: Callable[[Document], Iterable[Found]]) -> Callable[[Sequence[Document]], Iterator[Found]]:
    """`Importer.read` for a function that reads one document, independent of the others."""

    def read_all(documents: Sequence[Document]) -> Iterator[Found]:
        for document in documents:
            yield from read(document)

    return read_all


MAX_DEPTH = 100
"""Deeper nesting is refused: no record of an agent has it, and later stages could not store it."""


def parse_json(content: str) -> JsonValue:
    """Parse a JSON text. Raises ValueError with the reason, also for valid JSON that `check_value` refuses."""
    try:
        value: JsonValue = json.loads(content, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    check_value(value)
    return value


def check_value(value: JsonValue) -> None:
    """Raise ValueError if a value is nested too deeply or contains text or a number that cannot be stored.

    That is text that is not valid Unicode, and a number such as 1e999, which Python reads as infinite.
    """
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, str) and not item.isascii():
                item.encode()  # UnicodeEncodeError, a ValueError, on a lone surrogate
            elif isinstance(item, float) and not math.isfinite(item):
                raise ValueError("it contains a number that is too large")
            elif isinstance(item, dict):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def refuse_constant(name: str) -> JsonValue:
    """Raise ValueError for NaN and Infinity, which Python's parser accepts and JSON does not have."""
    raise ValueError(f"{name} is not a JSON value")


def keys_of(fields: JsonObject) -> str:
    """The first keys of an object, for a message: as literals and cut, because a stranger's key may be any text."""
    return ", ".join(repr(key[:40]) for key in list(fields)[:5]) or "nothing in it"


def text(value: object) -> str:
    """A string as it is, "" for everything else."""
    return value if isinstance(value, str) else ""


def number(value: object) -> float | None:
    """A finite number, True and False as 1 and 0; None for everything else."""
    try:
        finite = float(value) if isinstance(value, bool | int | float) else math.nan
    except OverflowError:
        return None
    return finite if math.isfinite(finite) else None
