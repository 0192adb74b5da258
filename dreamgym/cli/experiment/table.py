"""The tables and plots of an experiment: every arm, all comparisons, with paired intervals over seeds and tasks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from dreamgym.cli.experiment.plan import Plan
from dreamgym.cli.experiment.running import Result
from dreamgym.evaluation import Rate, mean_over_seeds, paired_difference

Results = Mapping[str, Sequence[Result]]
"""By arm, one per seed, in the order of the seeds."""


def report(plan: Plan, results: Results) -> str:
    """Everything as Markdown."""
    numbers = ", ".join(map(str, plan.seeds[: min(len(some) for some in results.values())]))
    recorded = mean(one.recorded_steps for some in results.values() for one in some)
    lines = [
        f"# {plan.title}",
        "",
        f"Environment `{plan.env}`, seeds {numbers}: each its own recordings, warm start "
        f"and training. {recorded:,.0f} real steps were recorded per seed. Success in the real environment on "
        f"{plan.test.episodes} tasks of the split `{plan.test.split}`, each played once per seed. Brackets hold 95 % "
        "intervals, paired for differences: for success a bootstrap over seeds and tasks, for areas under the curve of "
        "real probes and for dead groups Student's t over seeds. Probes teach nothing and are not counted as real "
        "steps.",
        "",
        *_arms(plan, results),
        "",
        *_comparisons(plan, results),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _arms(plan: Plan, results: Results) -> Iterator[str]:
    head = ("arm", "success", "refused", "real steps", "dream steps", "dead groups", "area under the curve", "seconds")
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for arm in plan.arm:
        some = results.get(arm.name, ())
        if not some:
            continue
        dead, areas = _known(one.dead_share for one in some), _known(area_under(one.curve) for one in some)
        cells = (
            arm.name,
            _percent(success(some)),
            f"{mean(one.refused_share for one in some):.0%}",
            f"{mean(one.real_steps for one in some):,.0f}",
            f"{mean(one.dream_steps for one in some):,.0f}",
            _percent(mean_over_seeds(dead)) if dead else "",
            _percent(mean_over_seeds(areas)) if areas else "",
            f"{mean(one.seconds for one in some):.0f}",
        )
        yield f"| {' | '.join(cells)} |"


def _comparisons(plan: Plan, results: Results) -> Iterator[str]:
    if not plan.compare:
        return
    yield "| compared | success, points | by seed | area under the curve, points | dead groups, points | goal |"
    yield "|---|---|---|---|---|---|"
    for one in plan.compare:
        after, before = results.get(one.arm, ()), results.get(one.against, ())
        if not after or not before:
            continue
        by_seed = [100 * (mean(a.outcomes) - mean(b.outcomes)) for a, b in zip(after, before, strict=False)]
        cells = (
            f"{one.arm} − {one.against}",
            _points(difference(before, after)),
            ", ".join(f"{value:+.1f}" for value in by_seed),
            _differ(*_areas(before, after)),
            _differ([b.dead_share for b in before], [a.dead_share for a in after]),
            one.goal,
        )
        yield f"| {' | '.join(cells)} |"


def success(some: Sequence[Result]) -> Rate:
    """Mean over seeds and tasks."""
    return paired_difference([[0.0] * len(one.outcomes) for one in some], [one.outcomes for one in some])


def difference(before: Sequence[Result], after: Sequence[Result]) -> Rate:
    """Paired by seed and task; seeds that only one of them has are left out."""
    pairs = list(zip(before, after, strict=False))
    return paired_difference([b.outcomes for b, _ in pairs], [a.outcomes for _, a in pairs])


def _areas(before: Sequence[Result], after: Sequence[Result]) -> tuple[list[float | None], list[float | None]]:
    """The areas of both by seed; none where they did not train for as many updates."""
    pairs = [(b.curve, a.curve) for b, a in zip(before, after, strict=False)]
    alike = [(b, a) if b and a and b[-1][0] == a[-1][0] else ((), ()) for b, a in pairs]
    return [area_under(b) for b, _ in alike], [area_under(a) for _, a in alike]


def _differ(before_S: Sequence[float | None], after_S: Sequence[float | None]) -> str:
    """The mean difference over the seeds that have both; nothing where none has."""
    both_S = _known(None if a is None or b is None else a - b for b, a in zip(before_S, after_S, strict=False))
    return _points(mean_over_seeds(both_S)) if both_S else ""


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def area_under(curve: Sequence[tuple[int, float]]) -> float | None:
    """Mean height of the curve of real probes over updates (trapezoids); None for fewer than two points."""
    if len(curve) < 2:
        return None
    width = curve[-1][0] - curve[0][0]
    steps = itertools.pairwise(curve)
    return sum((right - left) * (a + b) / 2 for (left, a), (right, b) in steps) / width


def plot(plan: Plan, results: Results, file: Path) -> None:
    """Success of every arm, its interval and its seeds; beside it, in the same colours, the curves of real probes."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shown = [arm.name for arm in plan.arm if results.get(arm.name)]
    colours = {name: mpl.colormaps["tab20"](row % 20) for row, name in enumerate(shown)}
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, max(4, 0.34 * len(shown) + 1)), layout="constrained")
    for row, name in enumerate(shown):
        rate, colour = success(results[name]), colours[name]
        left.plot([mean(one.outcomes) for one in results[name]], [row] * len(results[name]), "|", color=colour, ms=9)
        left.plot([rate.low, rate.high], [row, row], color=colour, lw=2)
        left.plot([rate.mean], [row], "o", color=colour)
        _draw([one.curve for one in results[name] if one.curve], right, colour)
    left.set(title=plan.title, xlabel="success in the real environment, by arm", yticks=range(len(shown)))
    left.set_yticklabels(shown)
    left.invert_yaxis()
    right.set(title="real probes while training", xlabel="policy updates", ylabel="success in the real environment")
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _draw(curves: Sequence[Sequence[tuple[int, float]]], axes: Any, colour: object) -> None:
    """The mean of the seeds in front of the single ones."""
    if not curves:
        return
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), color=colour, lw=0.6, alpha=0.4)
    shared = sorted(set.intersection(*({x for x, _ in curve} for curve in curves)))
    axes.plot(shared, [mean(dict(curve)[x] for curve in curves) for x in shared], color=colour, lw=2, marker="o", ms=3)


def _percent(rate: Rate) -> str:
    return f"{100 * rate.mean:.1f} %{_bounds(rate, '.1f')}"


def _points(rate: Rate) -> str:
    return f"{100 * rate.mean:+.1f}{_bounds(rate, '+.1f')}"


def _bounds(rate: Rate, form: str) -> str:
    return f" [{100 * rate.low:{form}}, {100 * rate.high:{form}}]" if math.isfinite(rate.high) else ""
