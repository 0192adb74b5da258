"""An experiment on a cluster: each worker trains and measures whole arms in a folder of its own, and sends them back.

The start of an arm (recordings, warm start, the arm before it) is sent with it, and its results are sent back. So
machines share no folder and no database: on each machine, the workers have an embedded PostgreSQL of their own. If a
worker dies, its arm is done again from the beginning.
"""

from __future__ import annotations

import asyncio
import io
import signal
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from dreamgym.errors import StoreError
from dreamgym.replay import embedded
from dreamgym.runs.cluster import keep_sigterm, workers
from dreamgym.runs.experiment.plan import Arm, Fit, Plan, name_of
from dreamgym.runs.experiment.prepared import Prepared, alone, database_folder, prepared_seeds
from dreamgym.runs.experiment.process import check_interrupted, interrupt
from dreamgym.runs.experiment.running import RESULT, Make, Result, begins_with, fitted, result

LEFT = {"checkpoints", "best", ".lock"}
"""Names in a run folder that nobody needs once the run is done."""
PAUSE_S = 0.5
"""Seconds between two looks at whether the experiment was interrupted while the cluster does a unit."""


class Unit(NamedTuple):
    """One arm of a seed, or one experience model of its recordings."""

    seed: int
    what: Arm | Fit
    given: bytes
    """Archive of the files in the seed's folder that the unit begins with."""


class Made(NamedTuple):
    """The result of a unit."""

    result: Result | None
    """None for an experience model."""
    files: bytes
    """Archive of the unit's folder, with paths relative to the seed's folder."""


@dataclass(frozen=True)
class Experimenting:
    """The job of making the arms of an experiment, for the workers of a cluster."""

    plan: Plan
    name: str
    """Name of the run folder."""

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[Unit], Awaitable[Made]]]:
        """Start the machine's database server, or share it with the other workers there; the last removes it."""
        with TemporaryDirectory(prefix="dreamgym-") as scratch:
            folder = Path(scratch) / f"{self.name}-spread"
            try:
                with prepared_seeds(self.plan, folder) as given, ThreadPoolExecutor(1) as thread:
                    seeds, loop = {one.seed: one for one in given}, asyncio.get_running_loop()
                    try:
                        yield lambda unit: loop.run_in_executor(thread, _made, seeds[unit.seed], unit)
                    finally:
                        interrupt()  # nobody waits for a unit that still runs
            finally:
                with suppress(StoreError):  # another worker uses it
                    embedded.remove(database_folder(folder))


def _made(prepared: Prepared, unit: Unit) -> Made:
    """Train and measure an arm, or fit a model, in a worker."""
    unpack(unit.given, prepared.folder)
    if isinstance(unit.what, Fit):
        fitted(prepared, unit.what)
        return Made(None, packed(prepared.folder, [unit.what.name]))
    came = result(prepared, unit.what)
    children = (prepared.folder / name_of(unit.what)).iterdir()
    files = [str(one.relative_to(prepared.folder)) for one in children if one.name not in {RESULT, *LEFT}]
    return Made(came, packed(prepared.folder, files))


@contextmanager
def spread(address: str, plan: Plan, folder: Path) -> Iterator[tuple[Make, int]]:
    """Yield a function that makes an arm on the cluster, and the number of arms at once: one in each worker.

    The function blocks, so it is called in a thread. Raises the same errors as `workers`.

    Args:
        address: see `workers`.
        plan: the experiment.
        folder: its run folder.
    """
    from anyio.from_thread import start_blocking_portal

    crew_of = workers(address, Experimenting(plan, folder.name), 1)
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(crew_of) as crew:
        keep_sigterm(signal.getsignal(signal.SIGTERM))  # Ray was started in another thread

        def make(prepared: Prepared, arm: Arm) -> Result:
            files = ["recorded.jsonl", *(["warm"] if arm.begins_warm else [])]
            for earlier in begins_with(plan, arm):
                result(prepared, earlier, make)
                files.append(name_of(earlier))
            if arm.fit is not None:
                files.append(arm.fit.name)
                with alone(prepared.folder / arm.fit.name):
                    if not (prepared.folder / arm.fit.name / "model").exists():
                        do(prepared, arm.fit, ["recorded.jsonl"])
            came = do(prepared, arm, files)
            assert came is not None, "an arm has a result"
            return came

        def do(prepared: Prepared, what: Arm | Fit, files: Sequence[str]) -> Result | None:
            unit = Unit(prepared.seed, what, packed(prepared.folder, files))
            pending = portal.start_task_soon(partial(crew.do, unit))
            try:
                while not wait([pending], PAUSE_S).done:
                    check_interrupted()
            finally:
                pending.cancel()
            made: Made = pending.result()
            unpack(made.files, prepared.folder)
            return made.result

        yield make, crew.places


def packed(folder: Path, names: Sequence[str]) -> bytes:
    """An archive of files and folders in a folder."""

    def kept(one: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if one.name not in names and Path(one.name).name in LEFT else one

    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
        for name in names:
            tar.add(folder / name, name, filter=kept)
    return archive.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Put the files of an archive into a folder; those of the same name are replaced."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
        tar.extractall(folder, filter="data")
