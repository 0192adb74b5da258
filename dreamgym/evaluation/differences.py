"""Compares two settings on the same held-out steps: paired differences, with a bootstrap over trajectories."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.rates import Rate, clustered, clustered_difference
from dreamgym.evaluation.steps import BUCKETS, WORDS, bucket, field_score
from dreamgym.types import Frozen


class Paired(Frozen):
    """One measure of two settings."""

    measure: str
    one: Rate
    other: Rate
    difference: Rate
    """`other` minus `one`, paired by step."""


def paired(one: Sequence[Compared], other: Sequence[Compared], *, explicit: bool, seed: int = 0) -> tuple[Paired, ...]:
    """The measures on the steps that both settings have predicted."""
    theirs = {(call.trajectory, call.step): call for call in other}
    both = [(call, theirs[key]) for call in one if (key := (call.trajectory, call.step)) in theirs]
    measures: list[tuple[str, Callable[[Compared], float]]] = [
        ("answered", lambda call: float(call.got is not None)),
        ("state exact", lambda call: float(call.state_is_exact)),
        *([("F1 of changes", field_score)] if explicit else []),
        ("observation exact", lambda call: float(call.exact)),
        ("observation similarity", lambda call: call.similarity),
        ("errors agree", lambda call: float(call.errors_agree)),
        ("all of it right", lambda call: float(call.is_right)),
    ]
    found = [_paired(name, both, score, seed) for name, score in measures]
    for name in BUCKETS if explicit else WORDS:
        some = [pair for pair in both if bucket(pair[0], explicit=explicit) == name]
        label = f"state exact, fields changed: {name}" if explicit else f"state exact, {name}"
        found.append(_paired(label, some, lambda call: float(call.state_is_exact), seed))
    return tuple(found)


def _paired(
    name: str, pairs: Sequence[tuple[Compared, Compared]], score: Callable[[Compared], float], seed: int
) -> Paired:
    clusters = [call.trajectory for call, _ in pairs]
    ours, theirs = [score(call) for call, _ in pairs], [score(call) for _, call in pairs]
    return Paired(
        measure=name,
        one=clustered(ours, clusters),
        other=clustered(theirs, clusters),
        difference=clustered_difference([b - a for a, b in zip(ours, theirs, strict=True)], clusters, seed=seed),
    )
