"""The tables and plots of an experiment: every arm, all comparisons, with paired intervals over seeds and tasks."""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from dreamgym.errors import MissingPackage
from dreamgym.evaluation.rates import ROUNDING, Rate, mean_over_seeds, paired_difference, shares
from dreamgym.runs.experiment.plan import Plan
from dreamgym.runs.experiment.running import SEEDS_TRIED, Result, best_rate, probed
from dreamgym.types import Frozen

Results = Mapping[str, Sequence[Result]]
"""Results by arm: one per seed, in the order of the seeds."""


DREAMS_DRAWN = 3
"""Maximum number of arms for which success in the dream is drawn too. More would make the plot unreadable."""


class Published(Frozen):
    """An experiment with its results: all that its report and its plot are made from."""

    file: str
    """Name of the experiment file, without its ending."""
    command: str = ""
    """The command that made it. Empty in older files, which were made by `dreamgym experiment` with the file."""
    plan: Plan
    results: tuple[Result, ...]

    @property
    def by_arm(self) -> Results:
        """The results of each arm. If an arm was trained at several rates, those at its best rate."""
        trained: dict[str, list[Result]] = defaultdict(list)
        for one in self.results:
            trained[one.arm].append(one)
        chosen = {arm.name: best_rate(arm, trained) for arm in self.plan.arm}
        return {name: trained[arm.name] for name, arm in chosen.items() if trained[arm.name]}


def report(published: Published) -> str:
    """The whole report as Markdown."""
    plan, results = published.plan, published.by_arm
    numbers = ", ".join(map(str, plan.seeds[: min(len(some) for some in results.values())]))
    recorded = mean(one.recorded_steps for some in results.values() for one in some)
    tested = max(len(one.outcomes) for some in results.values() for one in some)
    apart = f"The tasks have `{plan.held_out}` in their id; no recording has one of them. " if plan.held_out else ""
    commits = ", ".join(sorted({one.commit for one in published.results}))
    over = (
        "over seeds and tasks for success, over seeds for the rest (none if all seeds agree)"
        if max(len(some) for some in results.values()) > 1
        else "over tasks alone for success, because a single seed does not show how much seeds differ"
    )
    own = "recordings, warm start and training" if plan.plays else "training, and all have the same recordings"
    lines = [
        f"# {plan.title}",
        "",
        f"Made by `{published.command or command_of(published.file)}` at commit {commits}.",
        "",
        f"Environment `{plan.env}`, seeds {numbers}: each has its own {own}. "
        f"{recorded:,.0f} real steps were recorded per seed. Success is measured in the real environment, on {tested} "
        f"tasks of the split `{plan.test.split}`; each task is played once per seed. {apart}Brackets contain 95 % "
        f"intervals by Student's t: {over}. Differences are paired. "
        "**Bold**: the interval does not contain 0.",
        "",
        "- *Refused*: share of the actions that the real environment refused in the test.",
        "- *Real steps*, *dream steps*: mean number of steps per seed while training. The policy does not learn from "
        "probes, so their steps do not count.",
        "- *Answered by*: share of the dream's steps that each tier answered.",
        "- *Dead groups*: share of the groups whose known rewards are all the same. GRPO learns nothing from them; PPO "
        "does.",
        "- *Area under the curve*: mean success in the real probes, over the updates of the policy.",
        "- *Seconds*: mean time of training per seed.",
        "",
        *_arms(plan, results),
        "",
        *_rates(published),
        *_unjudged(results),
        *_comparisons(plan, results),
    ]
    return "\n".join(lines).rstrip() + "\n"


def command_of(file: str) -> str:
    """The command that makes the result of a published experiment file."""
    return f"dreamgym experiment examples/experiments/{file}.toml"


def _arms(plan: Plan, results: Results) -> Iterator[str]:
    head = (
        "arm",
        "success",
        "refused",
        "real steps",
        "dream steps",
        "answered by",
        "dead groups",
        "area under the curve",
        "seconds",
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for arm in plan.arm:
        some = results.get(arm.name, ())
        if not some:
            continue
        dead, areas = _known(one.dead_share for one in some), _known(area_under(one.curve) for one in some)
        cells = (
            arm.name,
            percent(success(some)),
            f"{mean(one.refused_share for one in some):.0%}".replace("%", " %"),
            f"{mean(one.real_steps for one in some):,.0f}",
            f"{mean(one.dream_steps for one in some):,.0f}",
            shares(answered_by(some)),
            percent(mean_over_seeds(dead)) if dead else "",
            percent(mean_over_seeds(areas)) if areas else "",
            f"{mean(one.seconds for one in some):.0f}",
        )
        yield _row(cells)


def _rates(published: Published) -> Iterator[str]:
    """The learning rates at which arms were trained, and their success on dev and test tasks."""
    tried = [arm for arm in published.plan.arm if arm.rates]
    if not tried:
        return
    yield (
        f"Arms that the first {SEEDS_TRIED} seeds trained at several learning rates, and their last real probe on dev "
        "tasks with these seeds. The other seeds trained only at the better rate. Test success is over all seeds "
        "trained at that rate:"
    )
    yield ""
    yield "| arm | rate | dev success | test success |"
    yield "|---|---|---|---|"
    for arm in tried:
        chosen = {one.arm for one in published.by_arm.get(arm.name, ())}
        for one in arm.trained():
            some = [result for result in published.results if result.arm == one.name]
            if some:
                mark = ", taken" if one.name in chosen else ""
                rate = (one.train or {})["learning_rate"]
                known = probed(some[:SEEDS_TRIED])
                dev = "unknown" if known is None else f"{100 * known:.1f} %"
                yield _row((arm.name, f"{rate:g}{mark}", dev, percent(success(some))))
    yield ""


def _unjudged(results: Results) -> Iterator[str]:
    unlearned = "; the policy did not learn from them"
    counts: dict[str, Callable[[Result], int]] = {
        f"Training episodes whose reward could not be determined{unlearned}": lambda one: one.unjudged,
        f"Training episodes that ended because no tier had an answer{unlearned}": lambda one: one.failed or 0,
        "Test episodes whose reward could not be determined; they count as failures": lambda one: one.unjudged_tests,
    }
    for which, count in counts.items():
        by_arm = {name: sum(map(count, some)) for name, some in results.items()}
        told = ", ".join(f"{name} {number:,}" for name, number in by_arm.items() if number)
        if told:
            yield f"{which}: {told}."
            yield ""


def _comparisons(plan: Plan, results: Results) -> Iterator[str]:
    if not plan.compare:
        return
    yield "| compared | success, points | by seed | area under the curve, points | dead groups, points | goal |"
    yield "|---|---|---|---|---|---|"
    for one in plan.compare:
        after, before = results.get(one.arm, ()), results.get(one.against, ())
        if not after or not before:
            continue
        by_seed = [100 * (mean(a.outcomes_N) - mean(b.outcomes_N)) for a, b in zip(after, before, strict=False)]
        cells = (
            f"{one.arm} − {one.against}",
            points(difference(before, after)),
            ", ".join(f"{value:+z.1f}" for value in by_seed),
            _differ(*_areas(before, after)),
            _differ([b.dead_share for b in before], [a.dead_share for a in after]),
            one.goal,
        )
        yield _row(cells)


def answered_by(some: Sequence[Result]) -> Counter[str]:
    """Number of dream steps that each tier answered, over all seeds."""
    return sum((Counter(one.tiers) for one in some), Counter())


def success(some: Sequence[Result]) -> Rate:
    """Mean success over seeds and tasks."""
    rate = paired_difference([[0.0] * len(one.outcomes) for one in some], [one.outcomes_N for one in some])
    return rate.model_copy(update={"low": max(0.0, rate.low), "high": min(1.0, rate.high)})


def difference(before: Sequence[Result], after: Sequence[Result]) -> Rate:
    """Difference of the success, paired by seed and task. Seeds that only one of them has are left out."""
    pairs = list(zip(before, after, strict=False))
    return paired_difference([b.outcomes_N for b, _ in pairs], [a.outcomes_N for _, a in pairs])


def _areas(before: Sequence[Result], after: Sequence[Result]) -> tuple[list[float | None], list[float | None]]:
    """Areas under both curves by seed; None if the two were not trained for the same number of updates."""
    pairs = [(b.curve, a.curve) for b, a in zip(before, after, strict=False)]
    alike = [(b, a) if b and a and b[-1][0] == a[-1][0] else ((), ()) for b, a in pairs]
    return [area_under(b) for b, _ in alike], [area_under(a) for _, a in alike]


def _differ(before_S: Sequence[float | None], after_S: Sequence[float | None]) -> str:
    """Mean difference over the seeds that have both values, as text; empty if there are none."""
    both_S = _known(None if a is None or b is None else a - b for b, a in zip(before_S, after_S, strict=False))
    return points(mean_over_seeds(both_S)) if both_S else ""


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def area_under(curve: Sequence[tuple[int, float]]) -> float | None:
    """Mean height of the curve of real probes over updates (trapezoids); None for fewer than two points."""
    if len(curve) < 2:
        return None
    width = curve[-1][0] - curve[0][0]
    steps = itertools.pairwise(curve)
    return sum((right - left) * (a + b) / 2 for (left, a), (right, b) in steps) / width


def plot(published: Published, file: Path) -> None:
    """Success of every arm, its interval and its seeds; beside it, in the same colours, the curves of real probes.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    plan, results = published.plan, published.by_arm
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPackage("the picture", "report") from error

    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.ticker import MaxNLocator

    shown = [arm.name for arm in plan.arm if results.get(arm.name)]
    colours = {name: mpl.colormaps["tab20"](row % 20) for row, name in enumerate(shown)}
    has_room_for_dreams = sum(bool(results[name][0].inside) for name in shown) <= DREAMS_DRAWN
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, max(4, 0.34 * len(shown) + 1)), layout="constrained")
    for row, name in enumerate(shown):
        rate, colour = success(results[name]), colours[name]
        left.plot([mean(one.outcomes_N) for one in results[name]], [row] * len(results[name]), "|", color=colour, ms=9)
        left.plot([rate.low, rate.high], [row, row], color=colour, lw=2)
        left.plot([rate.mean], [row], "o", color=colour)
        _draw([one.curve for one in results[name] if one.curve], right, colour)
        if has_room_for_dreams:
            _draw([one.inside for one in results[name] if one.inside], right, colour, line="--")
    figure.suptitle(plan.title)
    left.set(xlabel="success in the real environment, by arm", yticks=range(len(shown)))
    left.set_yticklabels(shown)
    left.invert_yaxis()
    title = "real probes, in the arms' colours" + ("; dashed: in the dream" if has_room_for_dreams else "")
    right.set_title(title, fontsize="medium")
    right.set(xlabel="policy updates", ylabel="success")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in (left, right):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def _draw(curves: Sequence[Sequence[tuple[int, float]]], axes: Any, colour: object, line: str = "-") -> None:
    """Draw the mean over the seeds in front of the curves of single seeds."""
    if not curves:
        return
    for curve in curves:
        axes.plot(*zip(*curve, strict=True), line, color=colour, lw=0.6, alpha=0.4)
    shared = sorted(set.intersection(*({x for x, _ in curve} for curve in curves)))
    means = [mean(dict(curve)[x] for curve in curves) for x in shared]
    axes.plot(shared, means, line, color=colour, lw=2, marker="o" if line == "-" else "", ms=3)


def _row(cells: Sequence[str]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def percent(rate: Rate) -> str:
    """A proportion with its interval."""
    return f"{100 * rate.mean:.1f} %{_bounds(rate, 'z.1f', least=0.0)}"


def points(rate: Rate) -> str:
    """A difference of proportions with its interval, bold if that leaves out 0."""
    bounds = _bounds(rate, "+z.1f", least=-1.0)
    mark = "**" if bounds and (rate.low > 0 or rate.high < 0) else ""
    return f"{mark}{100 * rate.mean:+z.1f}{mark}{bounds}"


def _bounds(rate: Rate, form: str, *, least: float) -> str:
    """The interval between `least` and 1; empty for a single seed, and if all seeds agree by chance."""
    if not math.isfinite(rate.high) or rate.high - rate.low < ROUNDING:
        return ""
    return f" [{100 * max(least, rate.low):{form}}, {100 * min(1.0, rate.high):{form}}]"
