"""An event loop whose clock jumps over every wait, so that hours of limits and pauses pass in a moment.

Sockets are real. If nothing is ready to be read within GRACE_S, the clock is set to the next timer. Computing takes no
time on this clock, so that runs are repeatable.
"""

from __future__ import annotations

import asyncio
import selectors

GRACE_S = 0.002
"""Real seconds in which a packet to this machine arrives."""


class _Selector(selectors.DefaultSelector):
    skipped_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(GRACE_S if self.has_sockets else 0)
        if not ready:
            self.skipped_s += timeout
        return ready

    @property
    def has_sockets(self) -> bool:
        """True if more is watched than the loop's own wake-up socket."""
        return len(self.get_map()) > 1


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Pass it as `loop_factory`: to `asyncio.Runner`, or in the options of the fixture `anyio_backend`."""

    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made."""
        return self._jumping.skipped_s
