"""Reads recordings from disk; faulty lines are left out and reported."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.recordings.log import Event, Exchange, Note

Say = Callable[[str], None]

PROCESS = "stdio-"
"""Beginning of the session id of a server process that the recorder started."""

_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


@dataclass
class Run:
    """One recording file."""

    id: str
    exchanges: list[Exchange] = field(default_factory=list)
    """In the order of the agent's requests."""
    notes: list[Note] = field(default_factory=list)
    """In the order in which they were recorded."""

    @property
    def started_at(self) -> float:
        """Time of the agent's first request, in seconds since the epoch; infinite if there is none."""
        return self.exchanges[0].started_at if self.exchanges else math.inf


def read_runs(folder: Path, say: Say) -> list[Run]:
    """The runs in `recordings/`, oldest first. Raises InvalidInput if a file cannot be read."""
    files = sorted((folder / "recordings").glob("*.jsonl"))
    runs = sorted((_read(file, say) for file in files), key=lambda run: (run.started_at, run.id))
    _name_shared_processes(runs, say)
    return runs


def recorded_runs(folder: Path) -> list[str]:
    """Ids of the runs in `recordings/`."""
    return sorted(file.stem for file in (folder / "recordings").glob("*.jsonl"))


def _read(file: Path, say: Say) -> Run:
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidInput(f"{file}: cannot be read: {error.strerror}") from error
    run, losses = Run(file.stem), Counter[str]()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            event = _parsed(line)
        except ValueError as error:
            what = "was cut off by a crash" if number == len(lines) else f"is not a valid event ({first_reason(error)})"
            say(f"{run.id}: line {number} {what}; it is left out")
            continue
        if isinstance(event, Exchange):
            run.exchanges.append(event)
        elif isinstance(event, Note):
            run.notes.append(event)
        else:
            losses[event.reason] += 1
    for reason, count in losses.items():
        say(f"{run.id}: not recorded{f' ({count} times)' if count > 1 else ''}: {reason}")
    run.exchanges.sort(key=lambda exchange: (exchange.started_at, exchange.ended_at))
    if not run.exchanges:
        say(f"{run.id}: nothing was recorded")
    if (processes := len(_processes(run))) > 1:
        say(
            f"{run.id}: {processes} server processes answered its calls, which count as one episode: if the server "
            f"forgets its world when it ends, delete {file}"
        )
    return run


def _processes(run: Run) -> set[str]:
    """Session ids of the server processes that answered the calls of a run."""
    called = {exchange.session for exchange in run.exchanges if exchange.method == "tools/call"}
    return {session for session in called if session.startswith(PROCESS)}


def _name_shared_processes(runs: list[Run], say: Say) -> None:
    """Name the runs that began in a process that had answered an earlier run: its agent had kept its session."""
    first: dict[str, str] = {}
    for run in runs:
        for process in sorted(_processes(run)):
            if (earlier := first.setdefault(process, run.id)) != run.id:
                say(
                    f"{run.id}: the agent went on in its session of {earlier}, so the same server process answered: if "
                    f"the server keeps its world in memory, this run began in the world that {earlier} had left"
                )


def _parsed(line: bytes) -> Event:
    """Parse one line of a recording. Raises ValueError."""
    event = _EVENT.validate_json(line)
    if isinstance(event, Exchange) and not (math.isfinite(event.started_at) and math.isfinite(event.ended_at)):
        raise ValueError("started_at and ended_at are not finite times")
    return event
