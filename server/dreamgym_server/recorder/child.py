"""The real server as a child process, for an event loop: lines in, lines out. Its stderr is redacted and printed."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress

from dreamgym_server.recorder.pairing import Ended, Form, Heard, now
from dreamgym_server.recorder.writer import STDERR_PAUSE_S, StderrLine, Tape

MAX_LINE_BYTES = 256 * 1024 * 1024
MAX_STDERR_LINE_BYTES = 2**20
TOO_LONG_LINE = f"(a line of more than {MAX_STDERR_LINE_BYTES:,} bytes is left out)"
GRACE_S = 2.0


class Child:
    """One server process. The tape gets a copy of its input and output."""

    def __init__(self, process: asyncio.subprocess.Process, stderr: int, tape: Tape) -> None:
        self.session = f"stdio-{uuid.uuid4().hex[:12]}"
        self._process, self._tape = process, tape
        self._errors = asyncio.create_task(self._say_errors(stderr))

    @classmethod
    async def start(cls, command: Sequence[str], tape: Tape, environ: Mapping[str, str]) -> Child:
        """Start the server. Raises OSError."""
        stderr, of_server = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=of_server,
                env=dict(environ),
                limit=MAX_LINE_BYTES,
                process_group=0,  # Ctrl-C is for us alone; we end the server when we are done with it
            )
        except BaseException:
            os.close(stderr)
            raise
        finally:
            os.close(of_server)
        return cls(process, stderr, tape)

    def send(self, run: str, line: bytes) -> None:
        """Send a message to the server. Does not wait until the server empties a full pipe."""
        self._tape.put(self._heard(run, line, from_agent=True))
        assert self._process.stdin is not None
        with suppress(OSError, RuntimeError):  # the server has ended, which the reader reports
            self._process.stdin.write(line + b"\n")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the lines that the server writes, until it ends. If one is too long, kill it and raise ValueError."""
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                yield line
        except ValueError as error:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            while await self._process.stdout.read(2**16):  # an unread rest would keep the pipe open
                pass
            raise ValueError(f"the server wrote a line of more than {MAX_LINE_BYTES:,} bytes") from error

    def hear(self, run: str, line: bytes) -> None:
        """Give the tape a line that the server wrote."""
        self._tape.put(self._heard(run, line, from_agent=False))

    async def ended(self, run: str) -> str:
        """Wait for the end of a server that has closed its stdout; return how it ended."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._process.wait(), GRACE_S)
        reason = f"the server ended with exit code {self._process.returncode}"
        self._tape.put(Ended(run, self.session, reason, now()))
        return reason

    async def close(self) -> None:
        """End the server as the protocol demands: close its stdin, wait, terminate, wait, kill."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                await asyncio.wait_for(self._process.wait(), GRACE_S)
                break
            except TimeoutError:
                with suppress(ProcessLookupError):
                    os.killpg(self._process.pid, number)
        await self._process.wait()
        await asyncio.wait({self._errors}, timeout=GRACE_S)  # its last words; a process that it left may hold the pipe
        self._errors.cancel()
        await asyncio.wait({self._errors})

    def _heard(self, run: str, line: bytes, *, from_agent: bool) -> Heard:
        return Heard(run, self.session, self.session, from_agent, Form.JSON, line, now())

    async def _say_errors(self, stderr: int) -> None:
        # a pipe of its own: asyncio would read ahead as far as the long lines of stdout may need
        reader, pipe = asyncio.StreamReader(limit=MAX_STDERR_LINE_BYTES), os.fdopen(stderr, "rb")
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        is_cut = False
        try:
            while True:
                try:
                    line = await reader.readline()
                except ValueError:  # too long: its rest comes next, and an unread rest would block the server
                    is_cut = True
                    continue
                if not line:
                    return
                text = TOO_LONG_LINE if is_cut else line.decode("utf-8", "replace").rstrip("\r\n")
                is_cut = False
                self._tape.put(StderrLine(text, from_server=True))
                while self._tape.is_behind():  # noqa: ASYNC110  # the tape is a thread and knows no event loop
                    await asyncio.sleep(STDERR_PAUSE_S)
        finally:
            transport.close()
