"""Predict success over wall-clock if a real step takes seconds: the dream against the real environment, from a run.

    dreamgym experiment examples/experiments/coin.toml --out runs/coin
    dreamgym experiment examples/experiments/cost-coin.toml --out runs/cost-coin
    python examples/experiments/cost.py runs/coin --slowed runs/cost-coin

A slow environment is predicted and not run, because that would take days. The run measured how often each policy
succeeds after so many real steps and so many seconds of compute on this machine. `--slowed` compares the prediction
with a run in an environment that was really slow. Writes cost.md and cost.png into the run folder.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

from dreamgym.environment import load_spec, read_jsonl
from dreamgym.runs.experiment.plan import Arm, name_of, read_plan
from dreamgym.runs.experiment.running import Result, phases_of
from dreamgym.runs.train.config import RECORDED
from dreamgym.types import JsonObject, Trajectory

FORMULA = "wall-clock = compute + real steps * seconds a step / sessions"
MOST = 3600.0
"""The highest number of seconds per step that is considered."""


@dataclass(frozen=True)
class Point:
    """One probe of the policy of a run."""

    compute: float
    """Seconds of compute on this machine until then, for real and dream steps alike."""
    steps: int
    """Real steps until then."""
    success: float


Course = tuple[Point, ...]
"""The probes of one seed, in order."""
Clock = list[tuple[float, float]]
"""Seconds, and success in reality at that time."""


def number(line: JsonObject, name: str) -> float:
    return float(str(line.get(name, 0)))


def practice(folder: Path) -> list[JsonObject]:
    """The lines of an arm's record, in the order in which they were written."""
    return list(itertools.chain.from_iterable(phases_of(folder)))


def result_of(folder: Path) -> Result:
    """The result of an arm with one seed."""
    return Result.model_validate_json((folder / "result.json").read_text(encoding="utf-8"))


def folder_before(folder: Path) -> Path | None:
    """Folder of the arm that this one comes `after`; None if it begins with another policy."""
    after = result_of(folder).made_by.after
    return None if after is None else folder.with_name(name_of(Arm(name=after)))


def needs_all_recordings(folder: Path) -> bool:
    """True if the arm, or one that it comes after, dreams or learns from the recordings themselves."""
    is_dreaming = any(line.get("where") == "dream" for line in practice(folder))
    if is_dreaming or (result_of(folder).made_by.train or {}).get("algorithm") in RECORDED:
        return True
    earlier = folder_before(folder)
    return earlier is not None and needs_all_recordings(earlier)


def beside_rollouts(folder: Path) -> float:
    """Seconds per update outside its rollouts: learning, saving, probes and the start, spread over all updates."""
    earlier = folder_before(folder)
    seconds = result_of(folder).seconds - (0.0 if earlier is None else result_of(earlier).seconds)
    rollouts = [number(line, "rollout_s") for line in practice(folder) if "rollout_s" in line]
    return max(0.0, seconds - sum(rollouts)) / max(1, len(rollouts))


def course(folder: Path, recorded: int, update_s: float) -> Course:
    """The probes of one arm with one seed; `recorded` is the number of real steps taken before its training.

    An arm that comes after another begins with the seconds and the real steps of that one.
    """
    earlier = folder_before(folder)
    compute, steps, points = 0.0, recorded, []
    if earlier is not None:
        before = result_of(earlier)
        compute, steps = before.seconds, recorded + before.real_steps
    for line in practice(folder):
        if line.get("real_success") is not None:
            points.append(Point(compute, steps, number(line, "real_success")))
            continue
        compute += number(line, "rollout_s") + (update_s if "rollout_s" in line else 0.0)
        steps += int(number(line, "environment_steps")) if line.get("where") == "real" else 0
    return tuple(points)


def courses(run: Path, arm: str, seeds: Sequence[Path], *, charged: bool) -> list[Course]:
    """The probes of all seeds. If `charged`, the recordings count: all if the arm needs them, else the warm start's."""
    plan = read_plan(sorted(run.glob("*.toml"))[0])
    folders = [seed / name_of(Arm(name=arm)) for seed in seeds]
    update_s = median(beside_rollouts(folder) for folder in folders)
    given = []
    for seed, folder in zip(seeds, folders, strict=True):
        lengths = [len(one.transitions) for one in read_jsonl(seed / "recorded.jsonl", Trajectory)]
        warm = [play.warm for play in plan.plays for _ in range(play.episodes)]
        warm += [False] * (len(lengths) - len(warm))  # files of recordings come last
        needs_all = needs_all_recordings(folder)
        needed = sum(length for length, is_warm in zip(lengths, warm, strict=True) if needs_all or is_warm)
        given.append(course(folder, needed if charged else 0, update_s))
    return given


def clock(one: Course, seconds: float, sessions: int) -> Clock:
    """The success of the policy over wall-clock, if a real step took `seconds`."""
    return [(point.compute + point.steps * seconds / sessions, point.success) for point in one]


def success_at(clocks: Sequence[Clock], moment: float) -> float:
    """Mean success over the seeds: linear between probes, constant before the first and after the last."""
    return mean(_at(one, moment) for one in clocks)


def _at(one: Clock, moment: float) -> float:
    if moment <= one[0][0]:
        return one[0][1]
    for (t, a), (u, b) in itertools.pairwise(one):
        if moment <= u:
            return b if u == t else a + (b - a) * (moment - t) / (u - t)
    return one[-1][1]


def first_at(clocks: Sequence[Clock], level: float) -> float | None:
    """Seconds until the mean success reaches a level; None if it never does."""
    moments = sorted({moment for one in clocks for moment, _ in one})
    heights = [success_at(clocks, moment) for moment in moments]
    if heights[0] >= level:
        return moments[0]
    for (t, a), (u, b) in itertools.pairwise(zip(moments, heights, strict=True)):
        if b >= level:
            return t + (u - t) * (level - a) / (b - a)
    return None


def ahead_between(
    dream: Sequence[Course], real: Sequence[Course], level: float, sessions: int
) -> tuple[float, float] | None:
    """The range of seconds per step in which the dream reaches a level of success first.

    It begins at 0 if the dream is first with steps of 0 s, and ends at infinity if the dream is first with steps of
    MOST seconds. A dream that reaches a level that reality never reaches is first. None if it is first with neither.
    """

    def ahead(seconds: float) -> bool:
        mine, theirs = (first_at([clock(one, seconds, sessions) for one in some], level) for some in (dream, real))
        return mine is not None and (theirs is None or mine <= theirs)

    at_once, at_last = ahead(0.0), ahead(MOST)
    if at_once == at_last:
        return (0.0, math.inf) if at_once else None
    low, high = 0.0, MOST
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ahead(middle) == at_once else (low, middle)
    return (0.0, low) if at_once else (high, math.inf)


def table(
    given: dict[str, list[Course]], speeds: Sequence[float], levels: Sequence[float], sessions: int
) -> Iterator[str]:
    """Lines of a table: hours to each level of success, by seconds per step."""
    head = ["seconds a step", "arm", *(f"hours to {level:.0%}" for level in levels), "hours in all", "success then"]
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for seconds in speeds:
        for name, some in given.items():
            clocks = [clock(one, seconds, sessions) for one in some]
            first = [first_at(clocks, level) for level in levels]
            cells = [f"{seconds:g}", name, *("never" if t is None else f"{t / 3600:.3g}" for t in first)]
            cells += [f"{mean(one[-1][0] for one in clocks) / 3600:.3g}", f"{mean(one[-1][1] for one in clocks):.1%}"]
            yield f"| {' | '.join(cells)} |"


def even_table(
    dreams: dict[str, list[Course]], real: list[Course], levels: Sequence[float], sessions: int
) -> Iterator[str]:
    """Lines of a table: the seconds per step for which each dream is first, by level of success."""
    yield f"| arm | {' | '.join(f'{level:.0%}' for level in levels)} |"
    yield "|---" * (1 + len(levels)) + "|"
    for name, some in dreams.items():
        found = [_in_words(ahead_between(some, real, level, sessions)) for level in levels]
        yield f"| {name} | {' | '.join(found)} |"


def _in_words(between: tuple[float, float] | None) -> str:
    if between is None:
        return "never"
    low, high = between
    if math.isfinite(high):
        return f"below {high:.2g} s"
    return f"above {low:.2g} s" if low else "at any speed"


def checked(run: Path, arm: str, seeds: Sequence[Path], slowed: Path) -> Iterator[str]:
    """Lines of a table: seconds that rollouts took in a slowed environment, measured and predicted by the formula."""
    compute = [number(line, "rollout_s") for seed in seeds for line in practice(seed / name_of(Arm(name=arm)))]
    steps = [number(line, "environment_steps") for seed in seeds for line in practice(seed / name_of(Arm(name=arm)))]
    plan = read_plan(sorted(slowed.glob("*.toml"))[0])
    options = load_spec(plan.env).options
    seconds, sessions = float(str(options["seconds"])), int(str(options["sessions"]))
    yield f"Slowed in fact, {sessions} sessions and {seconds:g} s a step (`{slowed.name}`):"
    yield ""
    yield "| seed | updates | real steps | measured s | predicted s | of it waiting s | measured / predicted |"
    yield "|---|---|---|---|---|---|---|"
    for file in sorted(slowed.glob("seed-*/*/metrics.jsonl")):
        lines = [line for line in practice(file.parent) if "rollout_s" in line and line["where"] == "real"]
        taken, measured = (
            sum(number(line, "environment_steps") for line in lines),
            sum(number(line, "rollout_s") for line in lines),
        )
        waiting = taken * seconds / sessions
        predicted = taken * sum(compute) / sum(steps) + waiting
        cells = (file.parts[-3], len(lines), f"{taken:,.0f}", f"{measured:.1f}", f"{predicted:.1f}", f"{waiting:.1f}")
        yield f"| {' | '.join(map(str, cells))} | {measured / predicted:.2f} |"


def plot(given: dict[str, list[Course]], speeds: Sequence[float], sessions: int, file: Path) -> None:
    """Plot success over hours, with a panel for each number of seconds per step."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(speeds), figsize=(3.2 * len(speeds), 3.4), sharey=True, layout="constrained")
    for panel, seconds in zip(panels if len(speeds) > 1 else [panels], speeds, strict=True):
        styles = itertools.cycle(["-", "--", ":", "-."])  # arms share their beginning: both lines must be seen
        for name, some in given.items():
            clocks = [clock(one, seconds, sessions) for one in some]
            moments = sorted({moment for one in clocks for moment, _ in one})
            hours = [moment / 3600 for moment in moments]
            heights = [success_at(clocks, moment) for moment in moments]
            panel.plot(hours, heights, next(styles), label=name)
        panel.set(title=f"{seconds:g} s a step", xlabel="hours, predicted")
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylim(bottom=0)
    figure.axes[0].set_ylabel("success in the real environment")
    figure.axes[0].legend(frameon=False, fontsize=8)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def levels_of(given: dict[str, list[Course]]) -> list[float]:
    """Levels of success in steps of five points that all arms reach and none begins with."""
    clocks = [[clock(one, 0.0, 1) for one in some] for some in given.values()]
    begin = max(mean(one[0][1] for one in some) for some in clocks)
    moments = [sorted({moment for one in some for moment, _ in one}) for some in clocks]
    reached = min(max(success_at(some, t) for t in times) for some, times in zip(clocks, moments, strict=True))
    return [step / 20 for step in range(1, 20) if begin < step / 20 <= reached]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("run", type=Path, help="run folder of an experiment")
    parser.add_argument("--real", default="GRPO real, ten times", help="the arm that practises in reality")
    parser.add_argument("--dream", action="append", help="an arm that practises in the dream; repeatable")
    parser.add_argument("--speed", type=float, action="append", help="seconds per real step; repeatable")
    parser.add_argument("--sessions", type=int, default=4, help="real calls at a time")
    parser.add_argument("--level", type=float, action="append", help="success to be reached, such as 0.4; repeatable")
    parser.add_argument("--slowed", type=Path, help="run folder of an experiment in a slowed environment")
    asked = parser.parse_args()
    dreams, speeds = asked.dream or ["GRPO dream", "dream then real"], asked.speed or [0.0, 0.1, 1.0, 2.0, 5.0]
    names = [*dreams, asked.real]
    files = [f"{name_of(Arm(name=name))}/result.json" for name in names]
    seeds = [seed for seed in sorted(asked.run.glob("seed-*")) if all((seed / file).exists() for file in files)]
    if not seeds:
        parser.error(f"{asked.run} has no seed with the results of all arms: {', '.join(names)}")
    given = {name: courses(asked.run, name, seeds, charged=True) for name in names}
    at_hand = {name: courses(asked.run, name, seeds, charged=False) for name in names}
    levels = asked.level or levels_of(given)
    lines = [
        f"# What a slow environment costs ({asked.run.name}, {len(seeds)} seeds)",
        "",
        f"Predicted by {FORMULA}, with {asked.sessions} sessions. Compute and success were measured; compute is that "
        "of the machine as loaded as it was, probes included. Every arm pays for its recordings: one that dreams or "
        "imitates them for all, any other for those of the warm start.",
        "",
        *table(given, speeds, levels, asked.sessions),
        "",
        "Break-even: the seconds a step at which the dream reaches a success first.",
        "",
        *even_table({name: given[name] for name in dreams}, given[asked.real], levels, asked.sessions),
        "",
        "The same where the recordings are at hand and cost nothing:",
        "",
        *even_table({name: at_hand[name] for name in dreams}, at_hand[asked.real], levels, asked.sessions),
    ]
    if asked.slowed:
        lines += ["", *checked(asked.run, asked.real, seeds, asked.slowed)]
    text = "\n".join(lines) + "\n"
    (asked.run / "cost.md").write_text(text, encoding="utf-8")
    plot(given, speeds, asked.sessions, asked.run / "cost.png")
    print(text)


if __name__ == "__main__":
    main()
