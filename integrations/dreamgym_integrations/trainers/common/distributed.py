"""The processes of a launcher such as torchrun that train one policy: what the first tells the others, how all end.

The first process alone makes, opens and writes; the others learn of it what they need. torch is imported only where a
launcher has started several.
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
"""Prefixes of the environment variables by which a launcher tells a process how to train."""
PLACES = {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME"}
"""Variables by which a process finds the others, besides the numbers of them."""
GONE = ("Connection closed by peer", "Connection reset by peer", "remote process exited")
"""Words in the errors of gloo and NCCL when another process has ended."""


class Processes:
    """The processes of the launcher; a process without a launcher is alone in its group."""

    def __init__(self) -> None:
        try:
            import torch
            from accelerate import PartialState
        except ImportError as error:
            raise MissingPackage("training", "train") from error
        # no limit that matters: the first process may make a warm start, or play, for hours
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
            torch.cuda.set_device(self._state.device)  # a thread starts out on the first device
        everyones: list[T] = gather_object(list(mine))
        return everyones


class FirstFailed(TrainingStopped):
    """The first process of several could not go on; it says why itself."""


@dataclass(frozen=True)
class _Failure:
    """Sent to the others in place of what the first process could not make."""


def of_first(processes: ProcessGroup, make: Callable[[], T]) -> T:
    """Make something in the first process and return it in all; each must call this. An error there ends the others.

    Raises:
        FirstFailed: in the others, if it could not be made.
    """
    if processes.count == 1:
        return make()
    if processes.index:
        nothing: list[T | _Failure] = []
        (told,) = processes.gather(nothing)
        if isinstance(told, _Failure):
            raise FirstFailed("the first process has failed, and says why")
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
    """The processes that a launcher has started for this run; this one alone where there is no launcher.

    Raises:
        InvalidInput: they are on several machines.
        TrainingStopped: another process has ended in the middle.
        SystemExit: the first process has failed; a word of each other one would only hide what it says.
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
    except RuntimeError as error:  # torch has no type for it
        if not any(words in str(error) for words in GONE):
            raise
        raise TrainingStopped(
            f"process {processes.index} of {processes.count} ends because another one has ended, whose output says "
            "why; go on with --resume"
        ) from error


class _LastExitHook:
    """Ends the process when all that was opened in it is closed.

    Otherwise gloo's threads, which torch 2.13 leaves running, may find Python torn down and abort a run that is done.
    """

    code: int | None = None
    """None leaves the end to Python."""

    def __call__(self) -> None:
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


def launched() -> bool:
    """A launcher has started several processes, of which this is one."""
    return "LOCAL_RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def in_one_process(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that trains, in a process that knows nothing of the launcher and waits for no other."""
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
            f"{processes} processes on several machines, {here} of them on the first: the environment's server is "
            "reached from its own machine only, so start all of them on one"
        )


@contextmanager
def _ending_in_order(processes: ProcessGroup) -> Iterator[None]:
    """The first process has a server to end, also when its launcher ends it because another process failed."""
    if processes.index:
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
