"""stdio in front of a stdio server: two pipes, byte for byte, as if the recorder were not there.

Only an answer that contains the state of the server's environment is changed: the agent gets it without the state.

Blocking threads are used, not an event loop: this is the shortest path, and any kind of file may be on either side.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import IO

from dreamgym_server.recorder.child import MAX_STDERR_LINE_BYTES, TOO_LONG_LINE
from dreamgym_server.recorder.pairing import Ended, Form, Heard, now
from dreamgym_server.recorder.strip_state import Lines
from dreamgym_server.recorder.writer import STDERR_PAUSE_S, StderrLine, Tape

CHUNK = 1024 * 1024
GRACE_S = 1.0
"""Seconds that the server may take to end once its stdin is closed. Clients give us two seconds in all."""


def pump(
    command: Sequence[str], tape: Tape, run: str, *, environ: Mapping[str, str], stdin: int = 0, stdout: int = 1
) -> int:
    """Carry bytes between our stdin and stdout and the server's until either side ends.

    Returns:
        The server's exit code, as a shell reports it; 0 if the agent ended first.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        env=dict(environ),
        process_group=0,  # so that its children end with it (npx starts a node)
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    session = f"stdio-{uuid.uuid4().hex[:12]}"
    agent_left = threading.Event()

    def heard(payload: bytes, *, from_agent: bool) -> Heard:
        return Heard(run, session, session, from_agent, Form.LINES, payload, now())

    def to_server(pipe: IO[bytes] = process.stdin) -> None:
        while payload := os.read(stdin, CHUNK):
            tape.put(heard(payload, from_agent=True))  # before it is sent, so that no answer comes before its request
            if not write_all(pipe.fileno(), payload):
                return
        agent_left.set()
        _end(process, pipe)

    def stop(number: int, frame: object) -> None:
        agent_left.set()
        _signal(process, signal.SIGTERM)

    errors = threading.Thread(target=say_all, args=(process.stderr, tape), daemon=True)
    errors.start()
    threading.Thread(target=to_server, daemon=True).start()
    woken = handle_signals(stop)
    lines = Lines()
    while payload := read_or_wake(process.stdout.fileno(), woken):
        answer = heard(payload, from_agent=False)
        has_reader = write_all(stdout, lines.pass_on(payload))
        tape.put(answer)
        if not has_reader:
            agent_left.set()
            _end(process, process.stdin)
    write_all(stdout, lines.end())
    code = process.wait()
    errors.join(GRACE_S)
    reason = "the agent left" if agent_left.is_set() else f"the server ended with exit code {code}"
    if not agent_left.is_set():
        tape.lose(run, reason)
    tape.put(Ended(run, session, reason, now()))
    return 0 if agent_left.is_set() else code if code >= 0 else 128 - code


def handle_signals(stop: Callable[[int, object], None]) -> int:
    """Call `stop` at SIGTERM and SIGINT. Return a pipe to which each signal writes a byte, for `read_or_wake`."""
    woken, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    return woken


def read_or_wake(file: int, woken: int) -> bytes:
    """Read from a pipe. A signal that comes just before would not interrupt a mere read, so its handler would wait."""
    while file not in select.select([file, woken], [], [])[0]:
        os.read(woken, CHUNK)
    return os.read(file, CHUNK)


def say_all(stream: IO[bytes], tape: Tape) -> None:
    """Print the lines of the server's stderr on ours, each after the server's name. A line that is too long is not."""
    is_cut = False
    with stream:
        while line := stream.readline(MAX_STDERR_LINE_BYTES):
            if len(line) == MAX_STDERR_LINE_BYTES and not line.endswith(b"\n"):
                is_cut = True
                continue
            text = TOO_LONG_LINE if is_cut else line.decode("utf-8", "replace").rstrip("\r\n")
            is_cut = False
            tape.put(StderrLine(text, from_server=True))
            while tape.is_behind():
                time.sleep(STDERR_PAUSE_S)


def write_all(file: int, payload: bytes) -> bool:
    """Write the whole payload; return False if nobody reads any more."""
    try:
        written = os.write(file, payload)
        while written < len(payload):
            written += os.write(file, payload[written:])
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[bytes], pipe: IO[bytes]) -> None:
    """End the server as the protocol demands: close its stdin, wait, terminate, wait, kill."""
    with suppress(OSError):
        pipe.close()
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            _signal(process, number)
        else:
            return


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)
