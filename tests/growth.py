"""A test of how the time of some work grows with the size of its input."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import TypeVar

Given = TypeVar("Given", str, bytes)

FIRST, LAST = 2**10, 2**16
"""Sizes that are tried, in characters. Four times as much still fits into a processor's cache: beyond it, linear work
can take eight times as long."""
MEASURABLE_S = 0.01
"""The shortest CPU time that can be measured reliably, in seconds."""
TIMES, BOUND = 4, 8.0
"""Four times the input takes four times as long if time is linear, 16 times if it is quadratic."""


def grows_linearly(work: Callable[[Given], object], given: Callable[[int], Given]) -> bool:
    """True if four times the input takes clearly less than 16 times the CPU time.

    The input grows until the time can be measured. Work that is still too quick at the last size is quick enough.

    Args:
        work: the function that is timed. It may raise, because a refusal takes time too.
        given: returns an input of about the given number of characters, or bytes.
    """
    size = FIRST
    while _cpu_s(work, given(size)) < MEASURABLE_S:
        if size >= LAST:
            return True
        size *= 2
    # quadratic work fails every time; a busy machine disturbs one measurement
    return any(_cpu_s(work, given(TIMES * size)) < BOUND * _cpu_s(work, given(size)) for _ in range(4))


def _cpu_s(work: Callable[[Given], object], value: Given) -> float:
    begun = process_time()
    with suppress(Exception):  # a refusal
        work(value)
    return process_time() - begun
