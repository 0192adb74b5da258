"""The search for a choice: an entity that comes first in an order, or a value that stands in a table."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import combinations

from pydantic import JsonValue

from dreamgym.synthesis.expressions import Entities, Filter, First, Larger, Table, gives
from dreamgym.synthesis.paths import Bindings, Path, is_argument
from dreamgym.synthesis.search.sources import fields_of, filters_of

VALUES = 8
"""A path with more values than this is not a key of a table."""
KEYS = 16
"""Most paths that are tried as the keys of a table."""
CALLS_PER_ROW = 2.5
"""Fewest recorded calls per row of a table. With fewer, the table would only list what was recorded."""


def first_entity(calls: Sequence[Bindings], targets: Sequence[JsonValue]) -> First | None:
    """The choice of an entity whose id is the target in every call; None if there is none.

    Args:
        calls: the bindings of each call.
        targets: one for each call, of which at least two must differ.
    """
    ids = [target for target in targets if isinstance(target, str)]
    if len(ids) < len(targets) or len(set(ids)) < 2:
        return None
    for name in sorted(calls[0].state.collections):
        collections = [call.state.collections[name] for call in calls]
        if not all(identity in collection for identity, collection in zip(ids, collections, strict=True)):
            continue
        fields = fields_of(collections)
        orders = [("", False), ("", True), *((field, down) for field in fields for down in (False, True))]
        filters = list(filters_of(collections, calls))
        every: list[tuple[Filter, ...]] = [()]
        passing = [
            one
            for one in filters
            if all(one.passes(part[i], call) for i, part, call in zip(ids, collections, calls, strict=True))
        ]
        every += [(one,) for one in passing]
        every += combinations(passing[:KEYS], 2)
        candidates = [First(Entities(name, part, *order)) for part in every for order in orders]
        candidates += [
            First(Entities(name, (one,), *order), or_any=True)
            for one in filters
            if one not in passing and one.kind in {"has", "shares", "is"}
            for order in orders
        ]
        for candidate in candidates:
            if gives(candidate, calls, ids):
                return candidate
    return None


def larger(calls: Sequence[Bindings], paths: Sequence[Path], targets: Sequence[JsonValue], name: str) -> Larger | None:
    """The choice between two values by their numbers; None if there is none.

    Args:
        calls: the bindings of each call.
        paths: the paths that are bound in all of them.
        targets: one for each call.
        name: the field that the value stands in; both values stand in fields of this name, or are arguments.
    """
    likely = [path for path in paths if path[-1] == name or is_argument(path)]
    for pair in combinations(likely, 2):
        if not all(t in (c.values[pair[0]], c.values[pair[1]]) for c, t in zip(calls, targets, strict=True)):
            continue
        ends = [path[len(pair[0]) :] for path in paths if path[: len(pair[0])] == pair[0]]
        for end in ends:
            for is_smaller in (False, True):
                candidate = Larger(pair, end, is_smaller)
                if gives(candidate, calls, targets):
                    return candidate
    return None


def table(calls: Sequence[Bindings], paths: Sequence[Path], targets: Sequence[JsonValue], name: str) -> Table | None:
    """The table that gives every call its target; None if there is none, or if it has too many rows for the calls.

    Args:
        calls: the bindings of each call.
        paths: the paths that are bound in all of them.
        targets: one for each call.
        name: the field that the value stands in; a path of this name is a likely key.
    """
    if not all(isinstance(target, str | int | float | bool | None) for target in targets):
        return None
    keys = sorted(
        (path for path in paths if _is_category([call.values[path] for call in calls])),
        key=lambda path: path[-1] != name,
    )
    values = [json.dumps(target) for target in targets]
    for of in _keys(keys, name):
        rows: dict[str, str] = {}
        seen: Counter[str] = Counter()
        for call, value in zip(calls, values, strict=True):
            key = json.dumps([call.values[path] for path in of])
            if rows.setdefault(key, value) != value:
                break
            seen[key] += 1
        else:
            is_shown = all(any(seen[key] > 1 for key, one in rows.items() if one == value) for value in rows.values())
            if is_shown and len(calls) >= CALLS_PER_ROW * len(rows):
                return Table(of, tuple(sorted(rows.items())))
    return None


def _keys(paths: Sequence[Path], name: str) -> Iterator[tuple[Path, ...]]:
    """Keys to try: single paths, then pairs of paths with the field's own name, then other pairs."""
    yield from ((path,) for path in paths[:KEYS])
    yield from combinations([path for path in paths if path[-1] == name], 2)
    yield from combinations(paths[:KEYS], 2)


def _is_category(values: Sequence[JsonValue]) -> bool:
    return all(isinstance(value, str | bool | None) for value in values) and 1 < len(set(values)) <= VALUES
