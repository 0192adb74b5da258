"""The processes of a launcher such as torchrun that train one policy: how they share results, and how they end.

Only the first process makes, opens and writes things; the others receive what they need from it. torch is imported only
if a launcher has started several processes.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

from dreamgym.errors import InvalidInput, MissingPackage, TrainingStopped
from dreamgym.training.practice import Alone, ProcessGroup

T = TypeVar("T")
LAUNCHERS = ("ACCELERATE_", "FSDP_", "TORCHELASTIC_")
"""Prefixes of the environment variables by which a launcher configures the training of a process."""
PLACES = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"}
"""Environment variables by which a process finds the others, besides those with the number of processes."""
GONE = ("Connection closed by peer", "Connection reset by peer", "remote process exited")
"""Parts of the error messages of gloo and NCCL when another process has ended."""


class Processes:
    """The processes of the launcher; a process without a launcher is alone in its group."""

    def __init__(self) -> None:
        try:
            import torch
            from accelerate import PartialState
        except ImportError as error:
            raise MissingPackage("training", "train") from error
        # practically no time limit: the first process may make a warm start, or play, for hours
        self._state: Any = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(days=1))
        self.index: int = self._state.process_index
        self.count: int = self._state.num_processes

    def gather(self, mine: Sequence[T]) -> list[T]:
        """The items of all processes, in the order of the processes."""
        if self.count == 1:
            return list(mine)
        import torch
        from accelerate.utils import gather_object

        if self._state.device.type == "cuda":
            torch.cuda.set_device(self._state.device)  # a new thread uses the first device
        everyones: list[T] = gather_object(list(mine))
        return everyones


class FirstFailed(TrainingStopped):
    """The first of several processes has failed. It reports the reason itself."""


@dataclass(frozen=True)
class _Failure:
    """Sent to the other processes in place of a result that the first one could not make."""


def of_first(processes: ProcessGroup, make: Callable[[], T]) -> T:
    """Call `make` in the first process and return its result in all. Every process must call this.

    Raises:
        FirstFailed: in the other processes, if `make` failed in the first.
    """
    if processes.count == 1:
        return make()
    if processes.index:
        nothing: list[T | _Failure] = []
        (told,) = processes.gather(nothing)
        if isinstance(told, _Failure):
            raise FirstFailed("the first process has failed; its output has the reason")
        return told
    try:
        made = make()
    except BaseException:
        with suppress(RuntimeError):  # the others may have ended before
            processes.gather([_Failure()])
        raise
    processes.gather([made])
    return made


@contextmanager
def joined() -> Iterator[ProcessGroup]:
    """Yield the processes that a launcher has started for this run; without a launcher, this process alone.

    Raises:
        InvalidInput: the processes are on several machines.
        TrainingStopped: another process has ended during training.
        SystemExit: the first process has failed; messages of the others would only hide its own.
    """
    if not launched():
        yield Alone()
        return
    exit_hook = _LastExitHook()
    atexit.register(exit_hook)
    processes = Processes()
    try:
        with _ending_in_order(processes):
            of_first(processes, partial(_check_machine, processes.count))
            yield processes
        exit_hook.code = 0
    except FirstFailed:
        exit_hook.code = 1
        sys.exit(1)
    except RuntimeError as error:  # torch has no type of its own for this error
        if not any(words in str(error) for words in GONE):
            raise
        raise TrainingStopped(
            f"process {processes.index} of {processes.count} ends because another process has ended: see the "
            "reason in the output of that process, then continue with --resume"
        ) from error


class _LastExitHook:
    """Ends the process after everything that was opened in it is closed.

    Otherwise gloo's threads, which torch 2.13 leaves running, may find Python torn down and abort a finished run.
    """

    code: int | None = None
    """Exit status of the process; None lets Python end it."""

    def __call__(self) -> None:
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def launched() -> bool:
    """True if this process is one of several that a launcher has started."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def in_one_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a training function in a process that does not see the launcher and does not wait for other processes."""
    if not launched():
        return function(*arguments)
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=_forget_launcher) as pool:
        return pool.submit(function, *arguments).result()


def _forget_launcher() -> None:
    for name in list(os.environ):
        if name in PLACES or name.endswith("WORLD_SIZE") or name.startswith(LAUNCHERS):
            del os.environ[name]


def _check_machine(processes: int) -> None:
    here = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
    if here < processes:
        raise InvalidInput(
            f"expected all {processes} processes on one machine, {here} are on the first: the environment's server can "
            "be reached only from its own machine"
        )


@contextmanager
def _ending_in_order(processes: ProcessGroup) -> Iterator[None]:
    """Let the first process close its server, even if the launcher ends it because another process failed."""
    if processes.index:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
