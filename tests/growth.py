"""How the time of some work grows with the size of what it is given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import process_time
from typing import TypeVar

Given = TypeVar("Given", str, bytes)

FIRST, LAST = 2**10, 2**17
"""Sizes that are tried, in characters."""
MEASURABLE_S = 0.01
"""CPU seconds that a clock can be believed to have measured."""
TIMES, BOUND = 4, 8.0
"""Four times the input takes four times as long where time is linear, 16 times where it is quadratic."""


def grows_linearly(work: Callable[[Given], object], given: Callable[[int], Given]) -> bool:
    """Whether four times the input takes clearly less than 16 times the CPU time.

    The input grows until the time can be measured; work that is too quick for that at the last size is quick enough.

    Args:
        work: what is timed. It may raise: a refusal takes time too.
        given: an input of about so many characters, or bytes.
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
