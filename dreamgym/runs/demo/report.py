"""report.json, report.md and report.png of the demonstration."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import mean
from typing import Any

from dreamgym.evaluation.rates import shares

Report = dict[str, Any]
COLUMNS = (
    "policy",
    "success in the dream",
    "success in reality",
    "refused actions (real)",
    "dream steps",
    "answered by",
    "real steps in training",
    "seconds",
)
TITLES = {"dream": "one recorded world per episode", "control": "history withheld from retrieval"}


def write_report(report: Report, folder: Path) -> None:
    """Write all three files."""
    here = Path.cwd()
    shown = folder.relative_to(here) if folder.is_relative_to(here) else folder
    (folder / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    (folder / "report.md").write_text(markdown(report, shown), encoding="utf-8")
    plot(report, folder / "report.png")


def markdown(report: Report, folder: Path) -> str:
    """The table with its reading."""
    size, seconds, recorded = report["size"], report["seconds"], report["recorded"]
    lines = [
        f"# Trained in a dream of `{report['environment']}`, measured in the real game",
        "",
        f"Made by `dreamgym demo` at commit {report['commit']}.",
        "",
        f"The dream is made of {recorded['episodes']:,} recorded real episodes ({recorded['real_steps']:,} real steps, "
        f"{size['worlds']} worlds). No real step is taken while training. Checkpoint: the last one, without looking.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
        *(_row(row) for row in report["rows"]),
        "",
        f"95 % intervals in brackets. Reality: {size['final_tasks']} test tasks, each played once, none used before. "
        f"Dream: the {size['worlds']} recorded tasks. `dream-N` is trained in the dream with seed N, `control-N` the "
        "same with the episode's history withheld from retrieval, and is measured in that inconsistent dream.",
        "",
        "Gain in reality over the same warm start, in points, with Student's t over runs and tasks; the interval of a "
        "single run is for other tasks alone:",
        "",
        *(f"- {name}: {_points(gain)}" for name, gain in report["gain"].items()),
        "",
        f"Gap between dream and reality after training: {_gap(report, 'dream')} points with one world per episode, "
        f"{_gap(report, 'control')} with the history withheld.",
        "",
        f"Seconds: {', '.join(f'{stage} {spent:g}' for stage, spent in seconds.items())}.",
        "",
        "Measure a checkpoint again:",
        "",
        "```",
        f"dreamgym eval {report['environment']} --policy {folder}/dream-0/policy --against real --split test "
        f"--episodes {size['final_tasks']} --json",
        "```",
        "",
    ]
    return "\n".join(lines)


def _row(row: Report) -> str:
    refused = f"{row['real']['refused_share']:.0%}" if "refused_share" in row["real"] else ""
    cells = [row["policy"], _percent(row["dream"]), _percent(row["real"]), refused]
    cells += [f"{row['dream_steps']:,}" if "dream_steps" in row else "", shares(row.get("tiers", {}))]
    cells += ["0", f"{row.get('seconds', 0):g}"]
    return f"| {' | '.join(cells)} |"


def _percent(rate: Report) -> str:
    return f"{100 * rate['mean']:.1f} % [{100 * rate['low']:.1f}, {100 * rate['high']:.1f}] (n={rate['n']})"


def _points(rate: Report) -> str:
    return f"{100 * rate['mean']:+.1f} [{100 * rate['low']:+.1f}, {100 * rate['high']:+.1f}]"


def _gap(report: Report, kind: str) -> str:
    rows = [row for row in report["rows"] if row["policy"].startswith(f"{kind}-")]
    return f"{100 * mean(row['dream']['mean'] - row['real']['mean'] for row in rows):+.1f}"


def plot(report: Report, file: Path) -> None:
    """Both curves over training, one panel per kind of dream; thin lines are runs."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, 2, figsize=(11, 4.4), sharey=True, layout="constrained")
    for panel, (kind, title) in zip(panels, TITLES.items(), strict=True):
        runs = [curve for name, curve in report["curves"].items() if name.startswith(f"{kind}-")]
        for number, curve in enumerate(runs):
            _draw_run(panel, curve, labelled=number == 0)
        panel.set(title=title, xlabel="policy updates", ylim=(0, 1))
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("success")
    panels[0].legend(loc="upper left", frameon=False)
    figure.suptitle(f"{report['environment']}: what the dream says and what is true")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def _draw_run(panel: Any, curve: list[Report], *, labelled: bool) -> None:
    inside = [line for line in curve if "inside_success" in line]
    window = 10
    smooth = [
        mean(line["inside_success"] for line in inside[max(0, i - window + 1) : i + 1]) for i in range(len(inside))
    ]
    steps = [line["step"] for line in inside]
    panel.plot(steps, smooth, color="#7a5195", lw=1.2, label="in the dream (mean of 10 updates)" if labelled else None)
    real = [line for line in curve if "real_success" in line]
    errors = [
        [line["real_success"] - line["real_low"] for line in real],
        [line["real_high"] - line["real_success"] for line in real],
    ]
    panel.errorbar(
        [line["step"] for line in real],
        [line["real_success"] for line in real],
        yerr=errors,
        color="#ef8a17",
        lw=1.6,
        marker="o",
        ms=4,
        capsize=2,
        label="in the real game, test tasks (95 %)" if labelled else None,
    )
