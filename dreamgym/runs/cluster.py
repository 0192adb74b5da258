"""Work spread over a cluster: Ray starts the worker processes and brings them back, and this process plans and keeps.

Only plain values travel. A `Job` names what to open, and each worker opens it for itself; a unit of work and its result
are values too. Workers keep nothing: a result counts when this process has it, so a unit whose worker died is done
again, with the same identity and seed, and nothing is there twice. Passwords and keys travel with the job as the
argument of a call, which Ray neither logs nor lists.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import dreamgym
from dreamgym import errors
from dreamgym.budget import current_ledger
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.evaluation.kept import edition
from dreamgym.runs.console import say
from dreamgym.runs.opening import DSN_VARIABLE

if TYPE_CHECKING:
    from types import ModuleType

    from ray.actor import ActorHandle

LOCAL = "local"
"""The address of a cluster that is started on this machine, and ends with the run."""
PROBE_S = 5.0
"""Seconds in which a cluster must answer; Ray itself would wait two minutes."""
START_S = 120.0
"""Seconds in which the first worker must have opened its job, or one come back after all were lost."""
REJOIN_S = 0.5
"""Pause before a lost worker is asked again."""
CLOSE_S = 10.0
ATTEMPTS = 10
"""Workers that a unit may lose before it counts as failed: it may be what kills them."""
STORE_BYTES = 150_000_000
"""Shared memory of a cluster on this machine: results pass through it one at a time."""

One_contra = TypeVar("One_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Job(Protocol[One_contra, Result_co]):
    """What every worker opens for itself. Values alone, so that it can be sent: names, folders, addresses."""

    def open(self) -> AbstractAsyncContextManager[Callable[[One_contra], Awaitable[Result_co]]]:
        """Open it; the result does one unit of work, and may be called several times at once."""


class Doing(Protocol[One_contra, Result_co]):
    """Whoever does units of work."""

    places: int
    """Units that are done at once if every worker is there."""

    async def do(self, one: One_contra) -> Result_co:
        """Do one unit."""


class Crew(Generic[One_contra, Result_co]):
    """The workers of a cluster, which open the same job: a queue of places. Those of a dead one come back with it."""

    def __init__(
        self, ray: ModuleType, address: str, job: Job[One_contra, Result_co], actors: Sequence[ActorHandle], places: int
    ) -> None:
        self.places = len(actors) * places
        """Units that are done at once if every worker is there."""
        self._address, self._actors = address, actors
        self._lost = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError)
        self._orders = ray.put((_version(), pickle.dumps(job), variables(), os.getcwd()))  # sent to each node once
        self._free: asyncio.Queue[ActorHandle] = asyncio.Queue()
        self.present = 0
        """How many of them are there now."""
        self._refused: dict[ActorHandle, Exception] = {}
        self._changed = asyncio.Event()
        self._joining = {asyncio.create_task(self._join(actor)) for actor in actors for _ in range(places)}

    async def ready(self, places: int = 1) -> None:
        """Wait for so many places; the others join when they can. Raises as `workers` does."""
        with suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                while self.present < places and len(self._refused) < len(self._actors):
                    self._changed.clear()
                    await self._changed.wait()
        if self.present >= places:
            return
        if self._refused:
            raise next(iter(self._refused.values()))
        raise EnvironmentUnavailable(f"the cluster at {self._address!r} started no worker within {START_S:g} s")

    async def do(self, one: One_contra) -> Result_co:
        """Do one unit on whichever worker is free, and again on another if that one dies.

        Raises:
            EnvironmentUnavailable: no worker is left, or each one that tried died.
            Exception: what the unit failed with, under its own name.
        """
        unit = pickle.dumps(one)
        for _ in range(ATTEMPTS):
            actor = await self._place()
            try:
                done, kind, answer = await actor.do.remote(unit)
            except self._lost:
                done = None
            if done is None:  # it died, or is a new process that has not opened the job
                self.present -= 1
                joining = asyncio.create_task(self._join(actor))
                self._joining.add(joining)
                joining.add_done_callback(self._joining.discard)
                continue
            self._free.put_nowait(actor)
            if not done:
                raise _error(kind, answer)
            result: Result_co = pickle.loads(answer)  # noqa: S301  Ray's own wire is pickle
            return result
        raise EnvironmentUnavailable(f"{ATTEMPTS} workers were lost while they did it")

    async def close(self) -> None:
        """Let the workers close what they opened."""
        for joining in self._joining:
            joining.cancel()
        closing = [asyncio.wrap_future(actor.close.remote().future()) for actor in self._actors]
        await asyncio.wait(closing, timeout=CLOSE_S)
        for one in closing:
            if one.done() and not one.cancelled():
                one.exception()  # one that is dead has nothing to close

    async def _place(self) -> ActorHandle:
        while True:
            try:
                async with asyncio.timeout(START_S):
                    return await self._free.get()
            except TimeoutError:
                if not self.present:
                    message = f"no worker of the cluster at {self._address!r} is left, and none came back"
                    raise EnvironmentUnavailable(f"{message} within {START_S:g} s") from None

    async def _join(self, actor: ActorHandle) -> None:
        """Have one more place of a worker, as soon as the worker has opened the job."""
        while True:
            try:
                refusal = await actor.begin.remote(self._orders)
                break
            except self._lost:
                await asyncio.sleep(REJOIN_S)
        if refusal is None:
            self.present += 1
            self._free.put_nowait(actor)
        elif actor not in self._refused:
            self._refused[actor] = _error(*refusal)
            if len(self._refused) < len(self._actors):
                say(f"a worker is left out: {self._refused[actor]}")
        self._changed.set()


@asynccontextmanager
async def workers(
    address: str, job: Job[One_contra, Result_co], places: int
) -> AsyncIterator[Crew[One_contra, Result_co]]:
    """A worker process for each CPU of the cluster, each with room for `places` units at once.

    Args:
        address: HOST:PORT of the cluster's head, given on one of its machines; `local` starts one on this machine.
        job: what every worker opens.
        places: of each worker.

    Raises:
        InvalidInput: the address is none, or no worker has this version of dreamgym, or the job cannot be opened there;
            or there is a budget, which nobody could keep on several machines.
        EnvironmentUnavailable: the cluster does not answer, or starts no worker.
        MissingPackage: Ray is not installed.
    """
    ledger = current_ledger()
    if ledger is not None and ledger.limit is not None:
        raise InvalidInput("a budget is kept on one machine: leave out --budget or --cluster")
    with redirect_stdout(sys.stderr):  # Ray tells of dead nodes there, and stdout is the result
        ray = await _connected(address)
        try:
            count = int(ray.cluster_resources().get("CPU", 0))
            if not count:
                raise EnvironmentUnavailable(f"the cluster at {address!r} has no CPU: start a node with `ray start`")
            start = ray.remote(_worker_class()).options(
                num_cpus=1,
                max_concurrency=places + 4,  # asking whether it is there needs room beside the work
                max_restarts=-1,
                max_task_retries=0,
                scheduling_strategy="SPREAD",
            )
            crew = Crew(ray, address, job, [start.remote() for _ in range(count)], places)
            try:
                await crew.ready()
                yield crew
            finally:
                await crew.close()
        finally:
            ray.shutdown()


def variables() -> dict[str, str]:
    """The variables of this process that name a model's endpoint, a key or a setting of dreamgym, for the workers."""
    ours = (DSN_VARIABLE, "DREAMGYM_ENCODER")
    return {
        name: value
        for name, value in os.environ.items()
        if name in ours or name.startswith("OPENAI_") or name.endswith(("_API_KEY", "_API_BASE"))
    }


def check_reachable_store(address: str, dsn: str | None) -> None:
    """Raises InvalidInput if the workers could not reach the store."""
    if address != LOCAL and not (dsn or os.environ.get(DSN_VARIABLE)):
        raise InvalidInput(
            f"the workers of {address!r} cannot reach this machine's embedded PostgreSQL: name one that they can reach "
            f"in {DSN_VARIABLE}"
        )


def _error(kind: str, text: str) -> Exception:
    """An error of another process. One_contra that is not ours gets its name there."""
    named: type[Exception] = getattr(errors, kind, None) or type(kind, (Exception,), {})
    return named.__new__(named, text)  # not by `__init__`, which may make the text from its parts


def _version() -> str:
    return f"dreamgym {dreamgym.__version__}, code {edition()[:8]}"


def _worker_class() -> type:
    """The class of the workers. Made here, it is sent as code, and so it runs where dreamgym is another or missing."""

    class DreamGymWorker:
        def __init__(self) -> None:
            self._opened: asyncio.Future[Callable[[object], Awaitable[object]]] | None = None
            self._closing = asyncio.Event()
            self._open: asyncio.Task[None] | None = None

        async def begin(self, orders: tuple[str, bytes, Mapping[str, str], str]) -> tuple[str, str] | None:
            """Open the job, once; the error's name and text if that fails."""
            version, job, variables, folder = orders
            try:
                from dreamgym.runs.cluster import _version
            except ImportError:
                found = "no dreamgym, or one without clusters"
            else:
                found = _version()
            if found != version:
                import socket

                message = f"a worker on {socket.gethostname()} has {found}, and this command is {version}"
                return "InvalidInput", f"{message}: install the same on every machine of the cluster"
            if self._opened is None:
                os.environ.update(variables)
                if os.path.isdir(folder):
                    os.chdir(folder)  # so that a relative path names the same file
                self._opened = asyncio.get_running_loop().create_future()
                self._open = asyncio.create_task(self._keep_open(job, self._opened))
            try:
                await asyncio.shield(self._opened)
            except Exception as error:  # noqa: BLE001  # whatever it is, the driver says it
                return type(error).__name__, str(error)
            return None

        async def _keep_open(self, job: bytes, opened: asyncio.Future[Callable[[object], Awaitable[object]]]) -> None:
            # in one task, for what was entered in a task may have to be left there
            try:
                async with pickle.loads(job).open() as do:  # noqa: S301
                    opened.set_result(do)
                    await self._closing.wait()
            except Exception as error:  # noqa: BLE001  # whatever it is, `begin` says it
                if not opened.done():
                    opened.set_exception(error)

        async def do(self, unit: bytes) -> tuple[bool | None, str, object]:
            """Do a unit: (True, "", result), (False, name and text of the error), or (None, "", "") without a job."""
            if self._opened is None or not self._opened.done():
                return None, "", ""
            from dreamgym.environment import first_reason

            try:
                one = pickle.loads(unit)  # noqa: S301
                return True, "", pickle.dumps(await self._opened.result()(one))
            except Exception as error:  # noqa: BLE001  # other people's agents and environments
                return False, type(error).__name__, first_reason(error)

        async def close(self) -> None:
            self._closing.set()
            if self._open is not None:
                await self._open

    return DreamGymWorker


async def _connected(address: str) -> ModuleType:
    """Ray, connected. Raises as `workers` does."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # before it is imported: it would report its use over the network
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # what it warns of
    if address == LOCAL:
        # Ray listens on every interface and runs what it is sent: only who has this run's token may send it something.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads it once a process
    try:
        import ray
    except ImportError as error:
        raise MissingPackage("a cluster", "cluster") from error
    if address != LOCAL:
        await _probe(address)
    options = {"num_cpus": os.cpu_count(), "object_store_memory": STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(
            address=address,
            namespace="dreamgym",
            log_to_driver=False,
            logging_level="ERROR",
            **(options if address == LOCAL else {}),
        )
    except (Exception, SystemExit) as error:  # its own way to say that nobody answers, versions included
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if "AuthenticationError" in f"{error!r} {error.__cause__}":
            reason = "it wants its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        raise EnvironmentUnavailable(f"the cluster at {address!r} cannot be joined: {reason}") from error
    module: ModuleType = ray
    return module


async def _probe(address: str) -> None:
    """Raises InvalidInput if it is no address, EnvironmentUnavailable if no head of a Ray cluster answers there.

    Ray ends the process if nobody answers, after two minutes.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"cluster {address!r}: expected `local`, or HOST:PORT of the head of a Ray cluster")
    silent = f"no Ray cluster answers at {address!r}: start its head with `ray start --head`, or name `local`"
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            # The head speaks gRPC, that is HTTP/2: a greeting and empty settings are answered by settings, type 4.
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            try:
                is_grpc = os.environ.get("RAY_USE_TLS", "0") != "0" or (await reader.readexactly(9))[3] == 4
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise EnvironmentUnavailable(silent) from error
    if not is_grpc:
        raise EnvironmentUnavailable(silent)
