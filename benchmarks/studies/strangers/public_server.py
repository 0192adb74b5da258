"""A public MCP server under study: how it is started on a fresh copy of its world, and what is played on it.

`plans` are recorded as an agent would play them. `sessions` are played afterwards, and nothing in them was recorded:
their calls are fixed, do not depend on answers, and were written before any simulation had answered one.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from pydantic import JsonValue

from dreamgym.types import ToolCall

PLACE = Path(tempfile.gettempdir()) / "dreamgym-strangers"
"""Folder of the copied worlds, always the same one, because calls and answers contain paths."""
NOT_FOUND = "I could not find it."


class Kind(StrEnum):
    """Kinds of new sessions, by what they test."""

    READ_AFTER_WRITE = "read after write"
    """Something that was never recorded is written, and read back."""
    REPEATED_READS = "repeated reads"
    """A read is repeated, with nothing or with unrelated writes in between."""
    NEW_ARGUMENTS = "new arguments"
    """Valid calls with arguments that were never recorded."""
    REFUSALS = "refusals"


@dataclass(frozen=True)
class Plan:
    """One recorded task and how it is played."""

    id: str
    instruction: str
    calls: tuple[ToolCall, ...]
    finds: str
    """Pattern whose group is the agent's answer, taken from the last text in which it is found."""
    right: str
    """The task is accomplished if this is the answer."""

    def answer(self, said: Sequence[str]) -> str:
        """The agent's answer, extracted from the texts of the tools."""
        found = [match for text in said for match in re.findall(self.finds, text)]
        return found[-1] if found else NOT_FOUND


@dataclass(frozen=True)
class Session:
    """One new session."""

    id: str
    kind: Kind
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True)
class Server:
    """One public server."""

    name: str
    package: str
    """Name and version in its package index."""
    command: Callable[[Path], Sequence[str]]
    """The command that starts it, given the folder in which the servers are installed."""
    plans: tuple[Plan, ...]
    sessions: tuple[Session, ...]
    prepare: Callable[[Path, Path], None] = lambda place, installed: None
    """Makes its world in an empty folder, given also where the servers are installed."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that it is started with."""
    reads: frozenset[str] = frozenset()
    """Tools that change nothing."""
    refuses: str = r"(?!)"
    """Pattern at the beginning of a refusal that the server sends without the error flag."""


def call(tool: str, **arguments: JsonValue) -> ToolCall:
    """One call."""
    return ToolCall(name=tool, arguments=arguments)


def world(name: str) -> Path:
    """The folder of a server's world."""
    return PLACE / name


def prepare(server: Server, installed: Path) -> None:
    """Restore the world of a server."""
    if PLACE.is_symlink() or (PLACE.exists() and PLACE.stat().st_uid != os.geteuid()):
        sys.exit(f"{PLACE} is a link or belongs to another user: remove it, or set TMPDIR to a folder of your own")
    place = world(server.name)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=0o700, parents=True)
    server.prepare(place, installed)
