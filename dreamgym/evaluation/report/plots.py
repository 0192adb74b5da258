"""The plots of a report, as SVG to embed in a page. Needs matplotlib (extra `report`)."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any

from dreamgym.errors import MissingPackage
from dreamgym.evaluation.rates import Rate
from dreamgym.evaluation.report import SettingReport

COLOURS = ("#2f6b9a", "#d9822b", "#5b8c5a", "#8a5a9a")
TIERS = {
    "recorded": "#5b8c5a",
    "check": "#9bbf85",
    "effects": "#57a3a8",
    "views": "#b07f5a",
    "plugin": "#8a6fb0",
    "cache": "#c9c27c",
    "model": "#2f6b9a",
}
NO_ANSWER = "#c9c9c9"


def plots(measured: Sequence[SettingReport]) -> dict[str, str]:
    """SVG plots by their title; only those that have something to show.

    Raises:
        MissingPackage: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise MissingPackage("a plot", "report") from error
    mpl.use("Agg")
    # text stays text, and the same report gives the same bytes
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "dreamgym", "font.size": 9}):
        drawn = {"State match by what the call changed": _drawn(lambda axes: _states(axes, measured))}
        drawn["Where the answers came from"] = _drawn(
            lambda axes: _tiers(axes, measured), height=0.6 + 0.5 * len(measured)
        )
        if any(one.calibration for one in measured):
            drawn["Reliability of the confidence"] = _drawn(
                lambda axes: _reliability(axes, measured), width=4.2, height=4
            )
        if any(one.closed_loop for one in measured):
            drawn["Players in dream and reality"] = _drawn(lambda axes: _players(axes, measured), width=4.6, height=4.2)
    return drawn


def _drawn(draw: Callable[[Any], None], *, width: float = 7.2, height: float = 3.0) -> str:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.spines[["top", "right"]].set_visible(False)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def _states(axes: Any, measured: Sequence[SettingReport]) -> None:
    names = [name for name in measured[0].steps.state if name != "all"]
    width = 0.8 / len(measured)
    for i, one in enumerate(measured):
        places = [place - 0.4 + width * (i + 0.5) for place in range(len(names))]
        found = [one.steps.state[name].exact for name in names]
        shown = [rate.mean if rate.n else 0.0 for rate in found]
        axes.bar(places, shown, width * 0.92, color=COLOURS[i % len(COLOURS)], label=str(one.setting))
        axes.errorbar(places, shown, yerr=_errors(found), fmt="none", ecolor="#333333", lw=1, capsize=2)
    counts = [measured[0].steps.state[name].exact.n for name in names]
    axes.set_xticks(range(len(names)), [f"{name}\n({n} steps)" for name, n in zip(names, counts, strict=True)])
    is_explicit = measured[0].steps.state["all"].fields is not None
    axes.set(ylim=(0, 1), ylabel="state exact", xlabel="fields that the call changed" if is_explicit else "the state")
    axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    axes.legend(frameon=False, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)


def _tiers(axes: Any, measured: Sequence[SettingReport]) -> None:
    for i, one in enumerate(measured):
        left = 0.0
        answered = {tier: one.steps.tiers[tier].mean for tier in TIERS if tier in one.steps.tiers}
        for tier, share in [*answered.items(), ("no answer", 1 - sum(answered.values()))]:
            label = tier if tier not in axes.get_legend_handles_labels()[1] else None
            axes.barh(len(measured) - i, share, 0.6, left=left, color=TIERS.get(tier, NO_ANSWER), label=label)
            left += share
    axes.set_yticks([len(measured) - i for i in range(len(measured))], [str(one.setting) for one in measured])
    axes.set(xlim=(0, 1), xlabel="share of the steps")
    axes.legend(frameon=False, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)


def _reliability(axes: Any, measured: Sequence[SettingReport]) -> None:
    axes.plot([0, 1], [0, 1], color="#999999", lw=1, ls=":")
    for i, one in enumerate(measured):
        if one.calibration is None:
            continue
        bins = one.calibration.bins
        axes.errorbar(
            [each.confidence for each in bins],
            [each.right.mean for each in bins],
            yerr=_errors([each.right for each in bins]),
            color=COLOURS[i % len(COLOURS)],
            marker="o",
            ms=4,
            lw=1.2,
            capsize=2,
            label=str(one.setting),
        )
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="share of right predictions")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)


def _players(axes: Any, measured: Sequence[SettingReport]) -> None:
    axes.plot([0, 1], [0, 1], color="#999999", lw=1, ls=":")
    for i, one in enumerate(measured):
        players = [each for each in one.closed_loop.players if each.dream.n and each.real.n] if one.closed_loop else []
        axes.errorbar(
            [each.real.mean for each in players],
            [each.dream.mean for each in players],
            xerr=_errors([each.real for each in players]),
            yerr=_errors([each.dream for each in players]),
            color=COLOURS[i % len(COLOURS)],
            fmt="o",
            ms=4,
            lw=0.8,
            label=str(one.setting),
        )
        names: dict[tuple[float, float], list[str]] = {}
        for each in players:
            names.setdefault((each.real.mean, each.dream.mean), []).append(each.player)
        for (x, y), some in names.items():
            axes.annotate(
                "\n".join(some),
                (x, y),
                xytext=(-4 if x > 0.7 else 4, 4),
                textcoords="offset points",
                ha="right" if x > 0.7 else "left",
                fontsize=7,
            )
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03), xlabel="success in reality", ylabel="success in the dream")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=8)


def _errors(rates: Sequence[Rate]) -> list[list[float]]:
    """Lengths of the error bars below and above the means; 0 if a rate has no values."""
    return [
        [max(0.0, rate.mean - rate.low) if rate.n else 0.0 for rate in rates],
        [max(0.0, rate.high - rate.mean) if rate.n else 0.0 for rate in rates],
    ]
