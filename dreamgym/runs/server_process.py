"""A server of environments in a process of its own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.request import Request, urlopen

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.runs.opening import DSN_VARIABLE, Against

START_LIMIT_S = 120.0
TIED_VARIABLE = "DREAMGYM_TIED"
"""If this variable is set, a server stops at the end of standard input and stores nothing new from its folders."""
STOP_LIMIT_S = 60.0
"""Seconds before a stopping server is killed. Without its database, it would try longer to store its last episodes."""


def with_dsn(environ: Mapping[str, str], dsn: str | None) -> dict[str, str]:
    """Environment variables of a child process with the DSN. On its command line, anybody could read the password."""
    return {**environ, **({DSN_VARIABLE: dsn} if dsn else {})}


class ServerProcess:
    """`dreamgym-serve` in a process of its own, on a free port of this machine, with a token of its own.

    `url` contains the token, so an agent is given the URL of an episode instead. The server ends with this process,
    however that ends, because the kernel then closes the pipe at the server's standard input.
    """

    def __init__(
        self, env: str, against: Against, *, model: str | None, dsn: str | None, extra: Sequence[str] = ()
    ) -> None:
        from dreamgym_client.connection import with_token

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        self._token = secrets.token_hex(32)
        self._address = f"http://127.0.0.1:{port}"
        self.url = with_token(self._address, self._token)
        self._command = [sys.executable, "-m", "dreamgym.cli.serve", env, "--port", str(port), *extra]
        self._command += ["--real"] if against is Against.REAL else []
        self._command += ["--model", model] if model and against is Against.DREAM else []
        self._dsn = dsn
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers. Raises EnvironmentUnavailable."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={
                **with_dsn(os.environ, self._dsn),
                "OMP_NUM_THREADS": "1",
                "DREAMGYM_TOKEN": self._token,
                TIED_VARIABLE: "1",
            },
            process_group=0,  # Ctrl-C is for us; the server ends when we are done with it
        )
        # with the token, since another command's server may have taken the port meanwhile: it refuses this request
        request = Request(self._address, headers={"Authorization": f"Bearer {self._token}"})  # noqa: S310
        deadline = time.monotonic() + START_LIMIT_S
        while time.monotonic() < deadline:
            if (code := self._process.poll()) is not None:
                raise EnvironmentUnavailable(f"dreamgym-serve ended with exit code {code}; see above")
            try:
                with urlopen(request, timeout=2):  # noqa: S310  # an address of our own making
                    return
            except OSError:
                time.sleep(0.1)
        raise EnvironmentUnavailable(f"dreamgym-serve did not answer within {START_LIMIT_S:.0f} s")

    @property
    def pid(self) -> int | None:
        """Id of the process; None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code of the process; None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """Stop the server and let it store what it holds. If it does not end in time, it is killed."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._process = None


@contextmanager
def server_process(
    env: str, against: Against, *, model: str | None, dsn: str | None, extra: Sequence[str] = ()
) -> Iterator[ServerProcess]:
    """Run a server in a process of its own. Raises EnvironmentUnavailable if it does not start."""
    process = ServerProcess(env, against, model=model, dsn=dsn, extra=extra)
    try:
        process.start()
        yield process
    finally:
        process.stop()


@contextmanager
def server(
    env: str, against: Against, *, model: str | None, dsn: str | None, extra: Sequence[str] = ()
) -> Iterator[str]:
    """Run a server process (see `server_process`) and yield its URL."""
    with server_process(env, against, model=model, dsn=dsn, extra=extra) as process:
        yield process.url
