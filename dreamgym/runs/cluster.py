"""Work spread over a Ray cluster: Ray starts and restarts the workers; this process plans and keeps the results.

Only plain values are sent. A `Job` describes what to open, and each worker opens it for itself. Units of work and their
results are values too. Workers store nothing: a result counts once this process has it. If a worker dies, its unit is
done again with the same identity and seed, so nothing is stored twice. Passwords and keys are sent with the job as an
argument of a call, which Ray neither logs nor lists.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, redirect_stdout, suppress
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import dreamgym
from dreamgym import errors
from dreamgym.budget import Ledger, Spent, current_ledger
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.evaluation.kept import edition
from dreamgym.prices import PRICE_VARIABLE
from dreamgym.redaction.placeholder import load_key
from dreamgym.runs.console import say
from dreamgym.runs.opening import DSN_VARIABLE

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from ray.actor import ActorHandle

LOCAL = "local"
"""Address that stands for a cluster on this machine, which starts and ends with the run."""
PROBE_S = 5.0
"""Seconds within which a cluster must answer. Ray itself would wait two minutes."""
START_S = 120.0
"""Seconds within which the first worker must open its job, or one must come back if all are lost."""
REJOIN_S = 0.5
"""Pause in seconds before a lost worker is asked again."""
CLOSE_S = 10.0
ATTEMPTS = 10
"""Number of workers that may die while doing a unit before it counts as failed. The unit may be what kills them."""
STORE_BYTES = 150_000_000
"""Bytes of shared memory of a cluster on this machine. Results pass through it one at a time."""

One_contra = TypeVar("One_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


class Job(Protocol[One_contra, Result_co]):
    """A job that each worker opens for itself. It consists of plain values (names, folders, addresses) to be sent."""

    def open(self) -> AbstractAsyncContextManager[Callable[[One_contra], Awaitable[Result_co]]]:
        """Open the job. The function that it yields does one unit of work and may be called concurrently."""


class Doing(Protocol[One_contra, Result_co]):
    """Something that does units of work, such as the workers of a cluster."""

    places: int
    """Number of units that are done at once if every worker is available."""

    async def do(self, one: One_contra) -> Result_co:
        """Do one unit."""


class Crew(Generic[One_contra, Result_co]):
    """The workers of a cluster, which open the same job, as a queue of free places.

    Each worker has several places. When a dead worker comes back, its places come back too.
    """

    def __init__(
        self, ray: ModuleType, address: str, job: Job[One_contra, Result_co], actors: Sequence[ActorHandle], places: int
    ) -> None:
        self.places = len(actors) * places
        """Number of units that are done at once if every worker is available."""
        self._address, self._actors = address, actors
        self._lost = (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError, ray.exceptions.NodeDiedError)
        orders = _version(), pickle.dumps(job), variables(), _key(), os.getcwd()
        self._orders = ray.put(orders)  # sent to each node once
        self._free: asyncio.Queue[ActorHandle] = asyncio.Queue()
        self.present = 0
        """Number of places that are available now."""
        self._refused: dict[ActorHandle, Exception] = {}
        self._changed = asyncio.Event()
        self._joining = {asyncio.create_task(self._join(actor)) for actor in actors for _ in range(places)}

    async def ready(self, places: int = 1) -> None:
        """Wait until this many places are available; the others join later. Raises the same errors as `workers`."""
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
        """Do one unit on a free worker, and again on another one if that worker dies.

        Raises:
            EnvironmentUnavailable: no worker is left, or each worker that tried the unit died.
            Exception: the error of the unit, with the name of its class.
        """
        unit = pickle.dumps(one)
        lost = 0
        while lost < ATTEMPTS:
            actor = await self._place()
            try:
                done, kind, answer, spent = await actor.do.remote(unit)
            except self._lost:
                done, lost = None, lost + 1
            except Exception:  # of Ray itself: the worker can do other units
                self._free.put_nowait(actor)
                raise
            if done is None:  # it died, or is a new process that has not opened the job
                self._withdraw(actor)
                continue
            _note(spent)
            self._free.put_nowait(actor)
            if not done:
                raise _error(kind, answer)
            result: Result_co = pickle.loads(answer)  # noqa: S301  Ray's own wire is pickle
            return result
        raise EnvironmentUnavailable(f"{ATTEMPTS} workers were lost while they did the same unit of work")

    def _withdraw(self, actor: ActorHandle) -> None:
        """Take back the place where a unit has just been lost, and the idle places of that worker; all join again."""
        free = [self._free.get_nowait() for _ in range(self._free.qsize())]
        for other in free:
            if other is not actor:
                self._free.put_nowait(other)
        for _ in range(1 + sum(other is actor for other in free)):
            self.present -= 1
            joining = asyncio.create_task(self._join(actor))
            self._joining.add(joining)
            joining.add_done_callback(self._joining.discard)

    async def close(self) -> None:
        """Let the workers close what they opened."""
        for joining in self._joining:
            joining.cancel()
        closing = [asyncio.wrap_future(actor.close.remote().future()) for actor in self._actors]
        await asyncio.wait(closing, timeout=CLOSE_S)
        for one in closing:
            if one.done() and not one.cancelled() and one.exception() is None:  # a dead worker has nothing to close
                _note(one.result())

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
        """Add one place of a worker to the queue once the worker has opened the job."""
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
    """Start one worker process for each CPU of the cluster. Each worker does up to `places` units at once.

    Args:
        address: HOST:PORT of the head of a cluster that includes this machine; `local` starts a cluster here.
        job: the job that every worker opens.
        places: number of units that each worker does at once.

    Raises:
        InvalidInput: the address is malformed, no worker has this version of dreamgym, no worker can open the job, or
            there is a budget, which cannot be kept on several machines.
        EnvironmentUnavailable: the cluster does not answer, or starts no worker.
        MissingPackage: Ray is not installed.
    """
    ledger = current_ledger()
    if ledger is not None and ledger.limit is not None:
        raise InvalidInput("a budget cannot be shared by the workers of a cluster: leave out --budget or --cluster")
    sigterm = signal.getsignal(signal.SIGTERM)
    with redirect_stdout(sys.stderr):  # Ray reports dead nodes on stdout, which is for the result
        ray = await _connected(address)
        keep_sigterm(sigterm)
        try:
            count = int(ray.cluster_resources().get("CPU", 0))
            if not count:
                raise EnvironmentUnavailable(f"the cluster at {address!r} has no CPU: start a node with `ray start`")
            start = ray.remote(_worker_class()).options(
                num_cpus=1,
                max_concurrency=places + 4,  # calls of `begin` and `close` need room beside the work
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


def keep_sigterm(handler: Callable[[int, FrameType | None], object] | int | None) -> None:
    """Let SIGTERM call this handler again in the main thread: with Ray's, it aborts the process after three seconds."""
    if handler is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, handler)


def variables() -> dict[str, str]:
    """Environment variables to pass to the workers: endpoints, keys and prices of models, and settings of dreamgym."""
    ours = (DSN_VARIABLE, "DREAMGYM_ENCODER", PRICE_VARIABLE)
    return {
        name: value
        for name, value in os.environ.items()
        if name in ours or name.startswith("OPENAI_") or name.endswith(("_API_KEY", "_API_BASE"))
    }


def check_reachable_store(address: str, dsn: str | None) -> None:
    """Raises InvalidInput if the workers could not reach the store."""
    if address != LOCAL and not (dsn or os.environ.get(DSN_VARIABLE)):
        raise InvalidInput(
            f"the workers of {address!r} cannot reach this machine's embedded PostgreSQL: set {DSN_VARIABLE} to one "
            "that they can reach"
        )


def _key() -> bytes | None:
    """The key of this user's placeholders; None if there is none and it cannot be made."""
    with suppress(InvalidInput):
        return load_key()
    return None


def _note(spent: str | None) -> None:
    """Write in the ledger of this command what a worker has spent since it last said so."""
    ledger = current_ledger()
    if spent is not None and ledger is not None:
        ledger.settle(0.0, Spent.model_validate_json(spent))


def _error(kind: str, text: str) -> Exception:
    """Rebuild an error of another process. If its class is not ours, a new class gets the same name."""
    named: type[Exception] = getattr(errors, kind, None) or type(kind, (Exception,), {})
    return named.__new__(named, text)  # without `__init__`, which may expect the parts of the text


def _version() -> str:
    return f"dreamgym {dreamgym.__version__}, code {edition()[:8]}"


def _worker_class() -> type:
    """The class of the workers.

    Ray sends a class that is made in a function as code. So it runs even where dreamgym is another version or missing.
    """

    class DreamGymWorker:
        def __init__(self) -> None:
            self._opened: asyncio.Future[Callable[[object], Awaitable[object]]] | None = None
            self._closing = asyncio.Event()
            self._open: asyncio.Task[None] | None = None
            self._ledger: Ledger | None = None
            self._said: Spent | None = None
            self._rest: str | None = None

        async def begin(
            self, orders: tuple[str, bytes, Mapping[str, str], bytes | None, str]
        ) -> tuple[str, str] | None:
            """Open the job once. Return the class name and text of the error if that fails, else None."""
            version, job, variables, key, folder = orders
            try:
                from dreamgym.runs.cluster import _version
            except ImportError:
                found = "no dreamgym, or a version without clusters"
            else:
                found = _version()
            if found != version:
                import socket

                message = f"a worker on {socket.gethostname()} has {found}, and this command is {version}"
                return "InvalidInput", f"{message}: install the same on every machine of the cluster"
            if self._opened is None:
                from dreamgym.redaction.placeholder import use_key

                os.environ.update(variables)
                if key is not None:
                    use_key(key)
                with suppress(OSError):  # it is not there, or closed to this user
                    os.chdir(folder)  # so that a relative path names the same file
                self._opened = asyncio.get_running_loop().create_future()
                self._open = asyncio.create_task(self._keep_open(job, self._opened))
            try:
                await asyncio.shield(self._opened)
            except Exception as error:  # noqa: BLE001  # whatever it is, the driver says it
                return type(error).__name__, str(error)
            return None

        async def _keep_open(self, job: bytes, opened: asyncio.Future[Callable[[object], Awaitable[object]]]) -> None:
            # one task opens and closes the job: some contexts must be left by the task that entered them
            from dreamgym.budget import open_ledger

            try:
                with open_ledger(None) as ledger:
                    self._ledger = ledger if ledger.is_own else None  # else the command itself counts in it
                    async with pickle.loads(job).open() as do:  # noqa: S301
                        opened.set_result(do)
                        await self._closing.wait()
                    self._rest = self._spent()
            except Exception as error:  # noqa: BLE001  # whatever it is, `begin` says it
                if not opened.done():
                    opened.set_exception(error)

        def _spent(self) -> str | None:
            """What this worker has spent since it last said so; None if nothing."""
            if self._ledger is None:
                return None
            now = self._ledger.spent
            new, self._said = now if self._said is None else now.since(self._said), now
            return new.model_dump_json() if new.calls or new.untold else None

        async def do(self, unit: bytes) -> tuple[bool | None, str, object, str | None]:
            """Do a unit. Return (True, "", result), (False, class and text of the error), or (None, "", ""): no job.

            The last value is what was spent since the last unit.
            """
            if self._opened is None or not self._opened.done():
                return None, "", "", None
            from dreamgym.environment import first_reason

            try:
                one = pickle.loads(unit)  # noqa: S301
                answer = pickle.dumps(await self._opened.result()(one))
                return True, "", answer, self._spent()
            # other people's agents and environments; some end the process, or cancel their own tasks
            except (Exception, SystemExit, asyncio.CancelledError) as error:  # noqa: BLE001
                said = first_reason(error) if isinstance(error, Exception) else str(error)
                return False, type(error).__name__, said, self._spent()

        async def close(self) -> str | None:
            """Close the job. Return what was spent since the last unit."""
            self._closing.set()
            if self._open is not None:
                await self._open
            return self._rest

    return DreamGymWorker


async def _connected(address: str) -> ModuleType:
    """Connect to the cluster and return the module `ray`. Raises the same errors as `workers`."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # set before the import: Ray would report its use over the network
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # avoids a warning of Ray
    if address == LOCAL:
        # Ray listens on every interface and runs any code sent to it. Only holders of this run's token may send some.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))  # Ray reads it once per process
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
    except (Exception, SystemExit) as error:  # Ray's ways to report that nobody answers, or another version
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        if "AuthenticationError" in f"{error!r} {error.__cause__}":
            reason = "it requires its token: set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH"
        raise EnvironmentUnavailable(f"the cluster at {address!r} cannot be joined: {reason}") from error
    module: ModuleType = ray
    return module


async def _probe(address: str) -> None:
    """Raises InvalidInput if it is not an address, EnvironmentUnavailable if no head of a Ray cluster answers there.

    Without this check, Ray would end the process after two minutes if nobody answers.
    """
    host, _, port = address.rpartition(":")
    if not host or "/" in address or not port.isdecimal() or not 0 < int(port) < 65536:
        raise InvalidInput(f"cluster {address!r}: expected `local`, or HOST:PORT of the head of a Ray cluster")
    silent = f"no Ray cluster answers at {address!r}: start its head with `ray start --head`, or give `local`"
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host.strip("[]"), int(port))
            # The head speaks gRPC, that is HTTP/2: it answers a preface and empty settings with settings, type 4.
            writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
            try:
                is_grpc = os.environ.get("RAY_USE_TLS", "0") != "0" or (await reader.readexactly(9))[3] == 4
            finally:
                writer.close()
    except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
        raise EnvironmentUnavailable(silent) from error
    if not is_grpc:
        raise EnvironmentUnavailable(silent)
