"""The use of a simulator by one environment. Calls run in threads, and no thread can be ended from outside."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from dreamgym.errors import EnvironmentUnavailable

SimulatorT = TypeVar("SimulatorT")
AnswerT = TypeVar("AnswerT")


class Lease(Generic[SimulatorT]):
    """One environment's use of a simulator, which the first call takes.

    A simulator that fails, or whose call is under way when the lease ends, is dropped. Its thread drops it when the
    call has returned. Until then the call may still change the simulator's world, so nobody else may have it.

    Args:
        take: starts a simulator or finds a free one.
        give_back: keeps a simulator for another lease.
        drop: ends a simulator.
    """

    def __init__(
        self,
        take: Callable[[], SimulatorT],
        give_back: Callable[[SimulatorT], None],
        drop: Callable[[SimulatorT], None],
    ) -> None:
        self._take, self._give_back, self._drop = take, give_back, drop
        self._lock = threading.Lock()
        self._calls = 0
        self.simulator: SimulatorT | None = None
        self.ended = False

    async def ask(self, call: Callable[[SimulatorT], AnswerT]) -> AnswerT:
        """What `call` returns, in a thread. Cancelling it ends the lease.

        Raises:
            EnvironmentUnavailable: the simulator failed, or the lease has ended.
        """
        try:
            answer = await asyncio.to_thread(self._run, call)
        except asyncio.CancelledError:
            self.end()
            raise
        self._check()
        return answer

    def renewed(self) -> Lease[SimulatorT]:
        """A lease for another episode. It has this one's simulator, unless a call is under way; this lease ends."""
        lease = Lease(self._take, self._give_back, self._drop)
        with self._lock:
            if not self.ended and not self._calls:
                lease.simulator, self.simulator = self.simulator, None
            self.ended = True
        return lease

    def end(self) -> None:
        """Give the simulator back, unless a call is under way. May be called again."""
        with self._lock:
            is_free, self.ended = not self.ended and not self._calls, True
        if is_free and self.simulator is not None:
            self._give_back(self.simulator)

    def _run(self, call: Callable[[SimulatorT], AnswerT]) -> AnswerT:
        with self._lock:
            self._check()
            self._calls += 1
        try:
            if self.simulator is None:
                self.simulator = self._take()
            return call(self.simulator)
        except EnvironmentUnavailable:
            self.ended = True
            raise
        finally:
            with self._lock:
                self._calls -= 1
                is_left = self.ended and not self._calls
            if is_left and self.simulator is not None:
                self._drop(self.simulator)

    def _check(self) -> None:
        if self.ended:
            raise EnvironmentUnavailable("the environment was closed or reset before the call was answered")
