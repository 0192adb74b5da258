"""Training runs and reports of a run folder, as JSON for the page.

A metrics file that is being written is shown as far as it is written; a report that cannot be read says why.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from dreamgym.environment import first_reason, read_jsonl
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.evaluation.report import FidelityReport
from dreamgym.evaluation.report.behind import FILE, StepBehind, cell
from dreamgym.evaluation.report.text import Section, difference_section, headline, sections
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.training.practice import read_record, tiers_of
from dreamgym.types import JsonObject
from dreamgym_server.view.folders import METRICS, REPORT, RunFolder

COUNTS = {"of", "steps"}
"""Heads of the columns that say of how many steps a share is."""
MANY = 1_000_000
PRACTICE = (
    "step",
    "where",
    "inside_success",
    "refused_share",
    "groups",
    "dead_groups",
    "failed",
    "unjudged",
    "mean_steps",
    "environment_steps",
    "sampled_tokens",
    "rollout_s",
    "tiers",
)
LEARNED = ("step", "loss", "kl", "entropy", "learning_rate", "grad_norm")
PROBED = ("step", "real_success", "real_low", "real_high", "real_episodes", "real_refused_share")


def training_runs(folder: RunFolder) -> list[JsonObject]:
    """The training runs of a folder in short."""
    found: list[JsonObject] = []
    for path in folder.files(METRICS):
        lines = _record(path)
        played = [line for line in lines if "rollout_s" in line]
        probes = [line for line in lines if "real_success" in line]
        found.append(
            {
                "name": _name(folder, path),
                "updates": len(played),
                "where": str(played[-1]["where"]) if played else None,
                "last_inside": played[-1].get("inside_success") if played else None,
                "last_probe": {name: probes[-1].get(name) for name in PROBED} if probes else None,
                "tiers": {**tiers_of(lines)},
            }
        )
    return found


def training_run(folder: RunFolder, name: str) -> JsonObject:
    """One training run: its updates, its probes in the real environment, and what was learned. Raises UnknownName."""
    paths = {_name(folder, path): path for path in folder.files(METRICS)}
    if name not in paths:
        raise UnknownName("training run", name, paths)
    lines = _record(paths[name])
    return {
        "name": name,
        "group": _group(paths[name].parent),
        "updates": _chosen((line for line in lines if "rollout_s" in line), PRACTICE),
        "probes": _chosen((line for line in lines if "real_success" in line), PROBED),
        "learned": _chosen((line for line in lines if "loss" in line), LEARNED),
    }


def reports(folder: RunFolder) -> list[JsonObject]:
    """The reports of a folder: their names, and what each is about."""
    found: list[JsonObject] = []
    for path in folder.files(REPORT):
        report = _report(path)
        about = report if isinstance(report, str) else headline(report)
        found.append({"name": _name(folder, path), "about": about, "broken": isinstance(report, str)})
    return found


def report_page(folder: RunFolder, name: str) -> JsonObject:
    """A report of `dreamgym fidelity`: its tables, its sentences and its wrong steps. Raises UnknownName.

    Each table says which of its cells have steps behind them, and each of its rows which episodes.
    """
    path = _report_file(folder, name)
    report = _report(path)
    if isinstance(report, str):
        return {"name": name, "about": report, "settings": [], "differences": None}
    counted = Counter((line.setting, cell) for line in _lines_in(path) for cell in line.values)
    played = {one.group for one in folder.page(EpisodeFilter(), limit=MANY).episodes if one.group is not None}
    settings = [str(one.setting) for one in report.measured]
    return {
        "name": name,
        "env": report.env,
        "about": headline(report),
        "settings": [
            {
                "setting": setting,
                "sections": [_section(section, [setting], counted, played) for section in sections(one)],
                "worst": [wrong.model_dump(mode="json") for wrong in one.worst],
            }
            for setting, one in zip(settings, report.measured, strict=True)
        ],
        "differences": _section(difference_section(report), settings, counted, played) if report.differences else None,
    }


def steps_behind(folder: RunFolder, name: str, setting: str, cell: str, *, highest: bool) -> list[StepBehind]:
    """The steps behind a cell of a report, those of lowest or of highest value first. Raises UnknownName."""
    found = [line for line in lines_behind(folder, name) if line.setting == setting and cell in line.values]
    return sorted(found, key=lambda line: line.values[cell], reverse=highest)


def lines_behind(folder: RunFolder, name: str) -> list[StepBehind]:
    """All steps behind the numbers of a report. Raises UnknownName."""
    return _lines_in(_report_file(folder, name))


def _lines_in(report: Path) -> list[StepBehind]:
    """The steps behind a report; none if it was made before they were kept."""
    try:
        return read_jsonl(report.with_name(FILE), StepBehind)
    except InvalidInput:  # it is not there, or being written
        return []


def _report_file(folder: RunFolder, name: str) -> Path:
    paths = {_name(folder, path): path for path in folder.files(REPORT)}
    if name not in paths:
        raise UnknownName("report", name, paths)
    return paths[name]


def _section(
    section: Section, settings: Sequence[str], counted: Counter[tuple[str, str]], played: Collection[str]
) -> JsonObject:
    """A table: for each cell its text, and the setting and the name of the cell if there are steps behind it."""
    rows: list[JsonValue] = []
    head = section.rows[0] if section.rows else ()
    for row in section.rows:
        cells: list[JsonValue] = []
        for number, text in enumerate(row):
            setting, cell = _cell(section.title, row[0], number, head, settings)
            steps = counted[setting, cell] if number and row is not head else 0
            cells.append({"text": text, **({"setting": setting, "cell": cell, "steps": steps} if steps else {})})
        group = _group_of(section.title, row[0], settings[0])
        is_played = row is not head and any(one.startswith(group) for one in played)
        rows.append({"cells": cells, "group": group if is_played else None})
    return {"title": section.title, "rows": rows, "notes": list(section.notes)}


def _cell(title: str, row: str, column: int, head: Sequence[str], settings: Sequence[str]) -> tuple[str, str]:
    """The setting and the name of a cell. A count has the steps of the share to its right."""
    if len(settings) > 1:  # a row of the comparison: measure, steps, one, other, difference
        return settings[max(0, min(column, 3) - 2)], cell(title, row, "")
    if head[column] in COUNTS and column + 1 < len(head) and row != "fitted on":
        column += 1
    return settings[0], cell(title, row, head[column])


def _group_of(title: str, row: str, setting: str) -> str:
    """Start of the names of the groups of episodes that a row of a table counts."""
    name = row.removesuffix(" (bad on purpose)")
    inside = "" if title == "reads after writes" or name == "all" else f"{name}/"
    return f"{setting}/{title}/{inside}"


def _report(path: Path) -> FidelityReport | str:
    """The report, or why it cannot be shown."""
    try:
        return FidelityReport.model_validate_json(path.read_bytes())
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except ValidationError as error:
        return f"it cannot be read, perhaps because it is of another version: {first_reason(error)}"


def _record(path: Path) -> list[JsonObject]:
    try:
        return read_record(path)
    except (OSError, ValueError):  # it went away, or somebody else wrote into it
        return []


def _group(folder: Path) -> str | None:
    """Start of the names of the run's groups in the store; None if the folder does not say."""
    try:
        run = json.loads((folder / "run.json").read_bytes()).get("run")
    except (OSError, ValueError, AttributeError):
        return None
    return f"{run}-" if isinstance(run, str) and run else None


def _name(folder: RunFolder, path: Path) -> str:
    return path.parent.relative_to(folder.folder).as_posix()


def _chosen(lines: Iterable[JsonObject], names: Sequence[str]) -> list[JsonValue]:
    return [{name: line[name] for name in names if name in line} for line in lines]
