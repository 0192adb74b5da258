"""What every importer speaks: documents in; episodes, and reasons for what could not be used, out.

An importer knows its format and no environment. Whether an environment has the tools that were called is decided in
one place for all formats, in `dreamgym.recordings.importers.assembly`.
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
    """File and line, or place in a list: what a person can look up."""
    value: JsonValue


@dataclass(frozen=True)
class Skipped:
    """Something that could not be used, and why."""

    where: str
    reason: str


@dataclass(frozen=True)
class AgentMessage:
    """The agent spoke to its user instead of calling a tool; the step's observation is the user's reply."""

    text: str


@dataclass(frozen=True)
class Command:
    """An action that is one text, for environments whose only tool takes one text."""

    text: str


@dataclass(frozen=True)
class ImportedStep:
    """One action and its answer, in the words of the format."""

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
    """What the agent saw before its first action, where that is not the instruction alone."""
    answer: str | None = None
    final_reward: float | None = None
    """None where the format has no reward."""
    metadata: JsonObject = field(default_factory=dict)
    """Metadata of the task: what the format contains on it besides the instruction."""
    tools: tuple[JsonObject, ...] = ()
    """MCP tool definitions, where the format carries definitions."""
    left_out: tuple[Skipped, ...] = ()
    """Parts of this episode that could not be used; the rest can."""


Found = ImportedEpisode | Trajectory | Skipped


@dataclass(frozen=True)
class Importer:
    """One format."""

    name: str
    title: str
    """What the format is, in a few words."""
    matches: Callable[[JsonValue], bool]
    """Whether a document is of this format; never raises."""
    read: Callable[[Sequence[Document]], Iterator[Found]]
    """What is in the documents of one file, all of which match or were named to be of this format; never raises."""


def each(read: Callable[[Document], Iterable[Found]]) -> Callable[[Sequence[Document]], Iterator[Found]]:
    """`read` of an importer whose documents do not depend on each other."""

    def read_all(documents: Sequence[Document]) -> Iterator[Found]:
        for document in documents:
            yield from read(document)

    return read_all


MAX_DEPTH = 100
"""Deeper nesting is refused: no record of an agent has it, and what comes after could not hold it."""


def parse_json(content: str) -> JsonValue:
    """A JSON text. Raises ValueError with the reason, also for what JSON allows and nothing here can hold."""
    try:
        value: JsonValue = json.loads(content, parse_constant=refuse_constant)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels") from error
    check_value(value)
    return value


def check_value(value: JsonValue) -> None:
    """Raises ValueError for a value that is nested too deeply or holds text that is not valid Unicode."""
    level: list[JsonValue] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[JsonValue] = []
        for item in level:
            if isinstance(item, str) and not item.isascii():
                item.encode()  # UnicodeEncodeError, a ValueError, on a lone surrogate
            elif isinstance(item, dict):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, list):
                inner += item
        if not inner:
            return
        level = inner
    raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels")


def refuse_constant(name: str) -> JsonValue:
    """NaN and Infinity, which Python reads and JSON has not. Raises ValueError."""
    raise ValueError(f"{name} is no JSON value")


def objects(value: object) -> list[JsonObject]:
    """The objects in a list; nothing where it is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


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
