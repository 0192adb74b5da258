"""Compares two episodes of one task call by call, and finds where they part."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from dreamgym.evaluation.calls import is_same
from dreamgym.types import Frozen, Transition


class CallPair(Frozen):
    """Two calls of the same number, one of each episode."""

    one: Transition | None
    """The call of the first episode; None if that was already over."""
    other: Transition | None

    @property
    def same_call(self) -> bool:
        """True if both episodes made the same call."""
        return (
            self.one is not None
            and self.other is not None
            and self.one.action.canonical() == self.other.action.canonical()
        )

    @property
    def same_answer(self) -> bool:
        """True if both calls have the same answer, reward and end; answers that are JSON are compared as JSON."""
        if self.one is None or self.other is None:
            return False
        one, other = self.one.result, self.other.result
        ends = [(result.reward, result.terminated) for result in (one, other)]
        return is_same(one, other) and ends[0] == ends[1]


def paired_calls(one: Sequence[Transition], other: Sequence[Transition]) -> list[CallPair]:
    """The calls of two episodes in pairs; after the end of the shorter one, its calls are None."""
    return [CallPair.model_construct(one=a, other=b) for a, b in zip_longest(one, other)]


def parting(pairs: Sequence[CallPair]) -> int | None:
    """Number of the first pair, counted from 1, in which call or answer differ; None: the episodes are the same."""
    for number, pair in enumerate(pairs, start=1):
        if not (pair.same_call and pair.same_answer):
            return number
    return None
