"""The search for a list that is made of the items of other lists: union, difference, concatenation, sorted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.synthesis.expressions import Combined, gives
from dreamgym.synthesis.paths import Bindings, Path

LISTS = 10
"""Most lists that are combined."""


def combined(
    calls: Sequence[Bindings], paths: Sequence[Path], targets: Sequence[Sequence[JsonValue]]
) -> Combined | None:
    """The plainest combination that gives every target; None if there is none or all targets are equal.

    Args:
        calls: the bindings of each call.
        paths: the paths that are bound in all of them.
        targets: one for each call.
    """
    if all(same(list(target), list(targets[0])) for target in targets):
        return None
    # the calls with the longest targets refute most candidates
    pairs = sorted(zip(calls, targets, strict=True), key=lambda pair: -len(pair[1]))
    hardest, lists = [call for call, _ in pairs], [list(target) for _, target in pairs]
    fields = sorted({field for target in targets for item in target if isinstance(item, dict) for field in item})
    for candidate in _candidates(_lists(calls, paths), fields):
        if gives(candidate, hardest, lists):
            return candidate
    return None


def _lists(calls: Sequence[Bindings], paths: Sequence[Path]) -> list[Path]:
    """The paths that are bound to a list in all calls, and the arguments that are lists if they are given."""
    optional: list[Path] = sorted(
        {path for call in calls for path in call.values if path[0] == "arg" and len(path) == 2}
    )
    found: list[Path] = [path for path in optional if any(isinstance(call.values.get(path), list) for call in calls)]
    found += [path for path in paths if path[0] != "changed" and path not in found]
    return [
        path
        for path in found
        if all(
            isinstance(value := call.values.get(path), list) or (value is None and path in optional) for call in calls
        )
    ][:LISTS]


def _candidates(lists: Sequence[Path], fields: Sequence[str]) -> Iterator[Combined]:
    for count in (1, 2):
        for parts in permutations(lists, count):
            for without in ((), *(path for path in lists if path not in parts)):
                for is_distinct in (True, False):
                    yield Combined(parts, without, is_distinct)
                    if not fields:
                        yield Combined(parts, without, is_distinct, is_sorted=True)
                    yield from (Combined(parts, without, is_distinct, True, field) for field in fields)
