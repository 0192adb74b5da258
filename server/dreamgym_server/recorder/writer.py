"""Writes a recording without delaying the agent: a queue, and a thread that pairs, redacts and appends.

Callers put data on the queue and go on; no error here reaches a call. Whatever cannot be recorded is counted, reported
once on stderr, and written as a loss if that still works. The recorded server's stderr is printed on ours, after the
same redaction.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue

from pydantic import JsonValue

from dreamgym.files import open_to_append, write_whole
from dreamgym.redaction import Redactor
from dreamgym.redaction.encodings import Unescaped
from dreamgym.redaction.redactor import MAX_LEARNED, spellings
from dreamgym.types import JsonObject
from dreamgym_server.recorder.dry_run import Preview
from dreamgym_server.recorder.pairing import Ended, Heard, Tap, loss, now

MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Number of bytes that may wait for the thread; more are lost."""
MAX_WAITING_STDERR = 1024 * 1024
"""Number of characters of the server's stderr that may wait for the thread before its reader should pause."""
MAX_OPEN_FILES = 64
LINE_COST = 100
"""Characters that a waiting line counts for besides its text."""
STDERR_PAUSE_S = 0.05
MAX_KEY_LINES = 200
_OURS = frozenset({"kind", "at", "started_at", "ended_at"})
"""Fields of an event that the recorder wrote itself: a rule may find an account number in a time."""
_NO_FILE_NAME = re.compile(r"[^A-Za-z0-9._-]")


@dataclass(frozen=True, slots=True)
class Known:
    """Secret values, each with the name of the header or variable that holds it."""

    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class StderrLine:
    """A line for stderr: the recorder's own, or the recorded server's."""

    text: str
    from_server: bool = False


@dataclass(frozen=True, slots=True)
class Noted:
    """An event that a person or the control API adds to a run."""

    event: JsonObject
    written: Future[bool]
    """True as soon as it is on disk, False if it could not be written."""


@dataclass(frozen=True, slots=True)
class Waited:
    """A signal that everything before it on the queue has been processed."""

    reached: threading.Event


@dataclass
class Summary:
    """Counts of the calls and losses so far."""

    calls: Counter[str] = field(default_factory=Counter)
    """Number of tool calls by run; 0 for a run without one."""
    losses: Counter[str] = field(default_factory=Counter)
    """Number of losses by reason."""

    @property
    def text(self) -> str:
        """The counts in one paragraph, for the end of a recording."""
        calls, runs = self.calls.total(), len(self.calls)
        said = f"recorded {calls} tool call{'s' * (calls != 1)} in {runs} run{'s' * (runs != 1)}"
        if not self.losses:
            return said
        reasons = "; ".join(f"{count} × {reason}" for reason, count in self.losses.most_common())
        return f"{said}; lost {self.losses.total()}: {reasons}"


class Tape:
    """One recording.

    Args:
        folder: folder of the RUN.jsonl files; None writes nothing and previews the redaction.
        redactor: nothing else may use it from now on.
        say: prints a line that is free of secrets.
        server: name of the recorded server; it is printed before each line of the server's stderr.
    """

    def __init__(
        self,
        folder: Path | None,
        redactor: Redactor,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        server: str = "server",
    ) -> None:
        self.summary = Summary()
        self.preview = Preview() if folder is None else None
        self._folder = folder
        self._redactor, self._print, self._server = redactor, say, server
        self._written: set[str] = set()
        """Runs that have been written to."""
        self._mended = 0
        """Number of values in `redactor.told` that have been removed from the written files."""
        self._late: list[str] = []
        """Values of headers that came after lines were written, in which they may still be."""
        self._key: list[str] = []
        """Lines so far of a private key on stderr, which is redacted as one value."""
        self._tap = Tap()
        self._files: dict[str, int] = {}
        self._queue: SimpleQueue[object] = SimpleQueue()
        self._waiting = 0
        self._waiting_stderr = 0
        self._counting = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="dreamgym-tape", daemon=True)
        self._thread.start()

    def put(self, item: Heard | Ended | Known | StderrLine) -> None:
        """Put data on the queue. Returns at once and never raises."""
        if isinstance(item, Heard):
            if self._waiting > MAX_WAITING_BYTES:
                self._queue.put(loss(item.run, "messages came faster than they could be written", item.at))
                return
            with self._counting:
                self._waiting += len(item.payload)
        elif isinstance(item, StderrLine):
            with self._counting:
                self._waiting_stderr += len(item.text) + LINE_COST
        self._queue.put(item)

    def is_behind(self) -> bool:
        """True if so much of the server's stderr waits that its reader should pause, as for a slow terminal."""
        return self._waiting_stderr > MAX_WAITING_STDERR and self._thread.is_alive()

    def lose(self, run: str, reason: str) -> None:
        """Report something that could not be recorded."""
        self._queue.put(loss(run, reason, now()))

    def note(self, run: str, **said: JsonValue) -> Future[bool]:
        """Add a note that is not in the traffic; the result is True when it is on disk, False if it cannot be."""
        written: Future[bool] = Future()
        self._queue.put(Noted({"kind": "note", "run": run, **said, "at": now()}, written))
        return written

    def flush(self) -> bool:
        """Wait until everything so far is on disk; return False if that takes longer than a minute."""
        reached = threading.Event()
        self._queue.put(Waited(reached))
        return not self._thread.is_alive() or reached.wait(60)

    def close(self, limit_s: float = 60) -> Summary:
        """Write the rest of the queue and end. What is not written within `limit_s` is a loss. May be called twice."""
        if self._thread.is_alive():
            self._queue.put(Ended("", "", "the recording was ended", now()))
            self._queue.put(None)
            self._thread.join(limit_s)
            if self._thread.is_alive():
                self.summary.losses[f"{self._waiting:,} bytes of messages were not written within {limit_s:g} s"] += 1
        return self.summary

    def _run(self) -> None:
        # imports what the rules need before the first event; in that half a second a crash would lose whole calls
        self._redactor.text("nothing: +1 415 555 2671, 4111 1111 1111 1111, DE89 3704 0044 0532 0130 00")
        self._redactor.counts.clear()
        while True:
            try:
                item = self._queue.get_nowait()
            except Empty:
                item = self._queue.get()
            if item is None:
                break
            try:
                self._take(item)
            except Exception as error:  # noqa: BLE001  # the boundary: a recording that fails must not fail the agent
                reason = f"the recorder failed with {type(error).__name__}"
                try:
                    self._lost(str(getattr(item, "run", "")), reason)
                except Exception:  # noqa: BLE001  # the redactor fails for every text: the loss is counted, and the thread goes on
                    self.summary.losses[reason] += 1
        self._say_key()
        self._mend()
        self._close_files()

    def _take(self, item: object) -> None:
        if isinstance(item, Heard):
            try:
                self._record(self._tap.hear(item))
            finally:
                with self._counting:
                    self._waiting -= len(item.payload)
        elif isinstance(item, Ended):
            self._record(self._tap.end(item) if item.scope else self._tap.unanswered(item.reason, item.at))
        elif isinstance(item, Known):
            self._late = [*self._late, *self._redactor.know(item.values)][-MAX_LEARNED:]
        elif isinstance(item, StderrLine):
            with self._counting:
                self._waiting_stderr -= len(item.text) + LINE_COST
            if item.from_server:
                self._say_servers(item.text)
            else:
                self._say(self._redactor.text(item.text))
        elif isinstance(item, Noted):
            is_written = False
            try:
                is_written = self._record([item.event])
            finally:
                item.written.set_result(is_written)
        elif isinstance(item, Waited):
            self._mend()
            item.reached.set()
        elif isinstance(item, dict):
            self._record([item])

    def _say(self, line: str) -> None:
        """Print a line. If stderr is closed or its disk is full, the recording goes on without it."""
        with suppress(OSError, ValueError):
            self._print(line)

    def _say_servers(self, line: str) -> None:
        """Print a line of the server's stderr. Lines of a private key wait: alone, none looks like a secret."""
        if self._key or "PRIVATE KEY-----" in line:
            self._key.append(line)
            if "-----END" in line or len(self._key) >= MAX_KEY_LINES:
                self._say_key()
        else:
            self._say(f"{self._server} | {self._redactor.text(line)}")

    def _say_key(self) -> None:
        if self._key:
            for line in self._redactor.text("\n".join(self._key)).split("\n"):
                self._say(f"{self._server} | {line}")
            self._key.clear()

    def _mend(self) -> None:
        """Redact in the written files the values that a later name or header has shown to be secrets."""
        told = list(self._redactor.told)[self._mended :]
        self._mended += len(told)
        told, self._late = [*told, *self._late], []
        if told and self._folder is not None:
            self._close_files()
            for run in self._written:
                try:
                    _rewrite(self._folder, run, told, self._redactor)
                except OSError as error:
                    self._lost("", f"cannot write to {self._folder}: {error.strerror}")

    def _close_files(self) -> None:
        for file in self._files.values():
            os.close(file)
        self._files.clear()

    def _record(self, events: Iterable[JsonObject]) -> bool:
        """Redact and write events; False if one of them could not be written."""
        all_written = True
        for event in events:
            run = str(event["run"])
            if event["kind"] == "loss":
                self._lost(run, str(event["reason"]))
                continue
            clean = {key: self._clean(event, key, value) for key, value in event.items()}
            is_written = self._write(run, clean)
            all_written = all_written and is_written
            if is_written and event["kind"] == "exchange":
                self.summary.calls[run] += event["method"] == "tools/call"
        return all_written

    def _clean(self, event: JsonObject, key: str, value: JsonValue) -> JsonValue:
        if key == "run":
            return self._file_name(str(value))
        if key in _OURS:
            return value
        clean = self._redactor.value(value)
        if self.preview is not None:
            self.preview.compare(event, key, value, clean, self._redactor)
        return clean

    def _file_name(self, run: str) -> str:
        """The name of a run without secrets, in a form that a file may have."""
        return _NO_FILE_NAME.sub("-", self._redactor.text(run))

    def _lost(self, run: str, reason: str) -> None:
        reason = self._redactor.text(reason)
        if reason not in self.summary.losses:
            self._say(f"dreamgym record: {self._file_name(run) + ': ' if run else ''}{reason}")
        self.summary.losses[reason] += 1
        if run:
            self._write(run, loss(self._file_name(run), reason, now()), is_loss=True)

    def _write(self, run: str, event: JsonObject, *, is_loss: bool = False) -> bool:
        if self._folder is None:
            return True
        try:
            _append(self._file(self._folder, str(event["run"])), _line(event))
        except OSError as error:
            if not is_loss:
                self._lost(run, f"cannot write to {self._folder}: {error.strerror}")
            return False
        return True

    def _file(self, folder: Path, run: str) -> int:
        if run in self._files and os.fstat(self._files[run]).st_nlink == 0:  # somebody has removed or replaced the file
            os.close(self._files.pop(run))
        if run not in self._files:
            while len(self._files) >= MAX_OPEN_FILES:
                os.close(self._files.pop(next(iter(self._files))))
            self._files[run] = _open_run(folder, run)
            self._written.add(run)
        return self._files[run]


def append_event(folder: Path, event: JsonObject) -> None:
    """Add one event, already redacted, to its run's file. Raises OSError."""
    file = _open_alone(folder, str(event["run"]))
    try:
        _append(file, _line(event))
    finally:
        os.close(file)


def _rewrite(folder: Path, run: str, told: Iterable[str], redactor: Redactor) -> None:
    """Redact again the lines of a run that contain one of these values, also behind escapes. Raises OSError."""
    values = list(told)
    forms = [form for value in values for form in spellings(value)]

    def holds(line: str) -> bool:
        if any(form in line for form in forms):
            return True
        plain = Unescaped(Unescaped(line).text).text
        return plain != line and any(value in plain for value in values)

    file = _open_alone(folder, run)
    try:
        before = os.pread(file, os.fstat(file).st_size, 0).decode("utf-8", "replace")
        lines = before.splitlines(keepends=True)
        after = "".join(_again(line, redactor) if holds(line) else line for line in lines)
        if after != before:
            write_whole(folder / f"{run}.jsonl", after)
    finally:
        os.close(file)


def _again(line: str, redactor: Redactor) -> str:
    try:
        event = json.loads(line)
    except ValueError:  # a line that a crash left unfinished
        return redactor.text(line)
    return _line(
        {name: item if name in {"run", *_OURS} else redactor.value(item) for name, item in event.items()}
    ).decode()


def _open_alone(folder: Path, run: str) -> int:
    """Open the file of a run, locked against others that append to it or rewrite it, until it is closed."""
    while True:
        file = _open_run(folder, run)
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file).st_ino == os.stat(folder / f"{run}.jsonl").st_ino:
            return file
        os.close(file)  # another process has replaced the file


def _line(event: JsonObject) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    for separator in ("\x85", "\u2028", "\u2029"):  # many programs take them for ends of lines
        text = text.replace(separator, f"\\u{ord(separator):04x}")
    return text.encode("utf-8", "replace") + b"\n"


def _open_run(folder: Path, run: str) -> int:
    """Open the file of a run for appending. A line that a crash left unfinished is ended first."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = open_to_append(folder / f"{run}.jsonl")
    size = os.fstat(file).st_size
    if size and os.pread(file, 1, size - 1) != b"\n":
        os.write(file, b"\n")
    return file


def _append(file: int, line: bytes) -> None:
    """Append a whole line or nothing: if a full disk cuts the line off, its beginning is removed."""
    before = os.fstat(file).st_size
    try:
        written = os.write(file, line)
        if written == len(line):
            return
        written += os.write(file, line[written:])
    finally:
        after = os.fstat(file).st_size
        if before < after < before + len(line):
            os.ftruncate(file, before)
