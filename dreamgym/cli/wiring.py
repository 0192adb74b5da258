"""What several verbs need: their common options, the store, environments, and a server in a process of its own."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.request import urlopen

import typer

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import Environment, EnvironmentSpec, RealEnvironment, installed_real, real_of
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.predictions import Predictions
from dreamgym.types import Task

if TYPE_CHECKING:
    from dreamgym.replay.postgres import Store


class Against(StrEnum):
    """Where an episode is played."""

    DREAM = "dream"
    REAL = "real"


DSN_VARIABLE = "DREAMGYM_DSN"

EnvName = Annotated[str, typer.Argument(metavar="ENV", help="An environment's name, or a folder with an env.toml.")]
Dsn = Annotated[
    str | None, typer.Option(envvar=DSN_VARIABLE, help="PostgreSQL with pgvector. Default: the embedded server.")
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="Experience model: nearest, local, a checkpoint folder, http://host/v1, …."),
]
Without = Annotated[
    list[Part] | None,
    typer.Option("--without", help="Leave out a part of the method, to show what it is worth; several times for more."),
]
CalibrationFile = Annotated[
    Path | None, typer.Option("--calibration", help="What the model's answers are worth, as `dreamgym fidelity` wrote.")
]
MinConfidence = Annotated[
    float,
    typer.Option(min=0.0, max=1.0, help="End an episode where an answer is less likely right; needs a calibration."),
]
PolicyUrl = Annotated[
    str | None,
    typer.Option(envvar="OPENAI_BASE_URL", help="Chat completions endpoint of the model behind the agent."),
]
Host = Annotated[str, typer.Option(help="Address to listen on; one that others can reach needs a token.")]
TokenFile = Annotated[
    Path | None, typer.Option(help="File with the bearer token. Default: the variable DREAMGYM_TOKEN.")
]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option("--allowed-host", help="A host name to be addressed by, besides localhost; * allows all."),
]
Seed = Annotated[int, typer.Option(help="Fixes every random draw.")]

STOP_LIMIT_S = 60.0
"""A server whose database is gone tries for longer to store its last episodes."""


def say(text: str) -> None:
    """Talk to the person; results go to stdout."""
    typer.echo(text, err=True)


@asynccontextmanager
async def opened_store(dsn: str | None) -> AsyncIterator[Store]:
    """The store at a DSN, or on the embedded server."""
    from dreamgym.replay.postgres import open_store

    store = await open_store(dsn, load_encoder(None))
    try:
        yield store
    finally:
        await store.close()


def environment_maker(
    spec: EnvironmentSpec,
    against: Against,
    model: ExperienceModel | None,
    buffer: ReplayBuffer,
    *,
    without: frozenset[Part] = frozenset(),
) -> Callable[[], Environment]:
    """Make environments in this process: the real one, or a dream of it."""
    if against is Against.REAL:
        return real_of(spec).create
    if model is None:
        raise InvalidInput("a dream needs an experience model")
    return lambda: DreamEnvironment(spec, model, buffer, without=without)


def memory(store: Store, without: frozenset[Part] = frozenset()) -> Predictions | None:
    """Where a model's answers are remembered; None if that tier is left out."""
    return None if Part.CACHE in without else store.predictions


def left_out(without: Sequence[Part] | None, against: Against) -> frozenset[Part]:
    """What `--without` names. Raises InvalidInput for the real environment, of which nothing can be left out."""
    if without and against is Against.REAL:
        raise InvalidInput("--without is for dreams: leave it out with --against real")
    return frozenset(without or ())


def without_flags(without: Iterable[Part]) -> tuple[str, ...]:
    """The same for another process."""
    return tuple(flag for part in sorted(without) for flag in ("--without", part.value))


@cache
def commit() -> str:
    """The commit of the code that runs, with a + if code was changed since; the version if there is no checkout."""
    import dreamgym

    def git(*words: str) -> str:
        folder = str(Path(dreamgym.__file__).parents[1])
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
        return git("rev-parse", "--short=7", "HEAD") + ("+" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return f"v{dreamgym.__version__}"


def real_for(spec: EnvironmentSpec, against: Against) -> RealEnvironment | None:
    """The real environment, for its tasks and behaviours. Code that a folder names is run only to play it."""
    if against is Against.REAL:
        return real_of(spec) if spec.adapter is not None else None
    return installed_real(spec)


def tasks_of(spec: EnvironmentSpec, split: str, real: RealEnvironment | None) -> Sequence[Task]:
    """The tasks of a split of the real environment, or of the folder where that one has no tasks of its own."""
    if real is not None and (own := real.tasks(split)):
        return own
    tasks = [task for task in spec.tasks if task.metadata.get("split", split) == split]
    if not tasks:
        raise InvalidInput(f"environment {spec.name!r} has no tasks of split {split!r}")
    return tasks


def with_dsn(environ: Mapping[str, str], dsn: str | None) -> dict[str, str]:
    """Variables of a child process with a database: its command line, password and all, anybody could read."""
    return {**environ, **({DSN_VARIABLE: dsn} if dsn else {})}


class ServerProcess:
    """`dreamgym-serve` in a process of its own, on a free port of this machine, with a token of its own.

    Whoever has `url` has the token, which is a part of it; an agent is given the URL of an episode instead. The server
    ends with this process, however that ends: the kernel then closes the pipe that is its standard input.
    """

    def __init__(
        self, env: str, against: Against, *, model: str | None, dsn: str | None, extra: Sequence[str] = ()
    ) -> None:
        from dreamgym_client.connection import with_token

        port = _free_port()
        self._token = secrets.token_hex(32)
        self._address = f"http://127.0.0.1:{port}"
        self.url = with_token(self._address, self._token)
        self._command = [sys.executable, "-m", "dreamgym.cli.serve", "--env", env, "--port", str(port), *extra]
        self._command += ["--real"] if against is Against.REAL else []
        self._command += ["--model", model] if model and against is Against.DREAM else []
        self._command += ["--tied"]
        self._dsn = dsn
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers. Raises EnvironmentUnavailable."""
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={**with_dsn(os.environ, self._dsn), "OMP_NUM_THREADS": "1", "DREAMGYM_TOKEN": self._token},
            process_group=0,  # Ctrl-C is for us; the server ends when we are done with it
        )
        _wait_for(self._address, self._process)

    @property
    def pid(self) -> int | None:
        """None before it was started."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return None if self._process is None else self._process.poll()

    def stop(self) -> None:
        """End it in order, so that it stores what it holds; one that does not end in time is killed."""
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
    """A running server. Raises EnvironmentUnavailable where it does not come up."""
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
    """The same where nothing but its URL is needed."""
    with server_process(env, against, model=model, dsn=dsn, extra=extra) as process:
        yield process.url


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise EnvironmentUnavailable(f"dreamgym-serve ended with exit code {process.returncode}; see above")
        try:
            with urlopen(f"{url}/healthz", timeout=2):  # noqa: S310  # an address of our own making
                return
        except OSError:
            time.sleep(0.1)
    raise EnvironmentUnavailable(f"dreamgym-serve did not answer within {limit_s:.0f} s")
