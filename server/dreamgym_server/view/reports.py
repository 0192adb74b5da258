"""Reports of `dreamgym fidelity` and `dreamgym check` in a run folder, as JSON for the page.

Each number leads to the steps behind it. If a report cannot be read, the reason is shown in its place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from dreamgym.environment import first_reason, read_jsonl
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.evaluation.report import CHECK_FILE, CheckReport, FidelityReport, PredictedStep, worst
from dreamgym.evaluation.report.behind import FILE, StepBehind, behind_check, cell
from dreamgym.evaluation.report.text import (
    Number,
    Section,
    agreement_section,
    check_headline,
    difference_section,
    headline,
    sections,
)
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.types import JsonObject
from dreamgym_server.view.folders import RunFolder, is_own

REPORT = "report.json"
COUNTS = {"of", "steps", "calls"}
"""Heads of the columns that contain the number of steps behind a share."""
MANY = 1_000_000


def reports(folder: RunFolder) -> list[JsonObject]:
    """The reports of a folder: the name and the headline of each."""
    found: list[JsonObject] = []
    for name, path in _files(folder).items():
        report = _report(path)
        found.append({"name": name, "about": _about(report), "broken": isinstance(report, str)})
    return found


def report_page(folder: RunFolder, name: str) -> JsonObject:
    """A report: its tables, its sentences and its wrong steps. Raises UnknownName.

    Each cell of a table has the number of steps behind it, and each row the group of its episodes, if there are any.
    """
    path = _report_file(folder, name)
    report = _report(path)
    shown: JsonObject = {"name": name, "about": _about(report), "settings": [], "differences": None}
    if isinstance(report, str):
        return shown
    counted = Counter((line.setting, cell) for line in _lines_in(path) for cell in line.values)
    if isinstance(report, CheckReport):
        setting = report.setting
        told = _setting(setting, [agreement_section(report)], worst(report.calls, explicit=False), counted, ())
        return shown | {"settings": [told]}
    played = {one.group for one in folder.page(EpisodeFilter(), limit=MANY).episodes if one.group is not None}
    settings = [str(one.setting) for one in report.measured]
    return shown | {
        "settings": [
            _setting(setting, sections(one), one.worst, counted, played)
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


def _lines_in(path: Path) -> list[StepBehind]:
    """The steps behind a report; an empty list if it was made before reports kept them."""
    if path.name == CHECK_FILE:
        report = _report(path)
        return [*behind_check(report)] if isinstance(report, CheckReport) else []
    file = path.with_name(FILE)
    try:
        return read_jsonl(file, StepBehind) if is_own(file) else []
    except InvalidInput:  # it is not there, or being written
        return []


def _files(folder: RunFolder) -> dict[str, Path]:
    """The files of reports by their names, which are those of their folders."""
    checks = {path.relative_to(folder.folder).as_posix(): path for path in folder.files(CHECK_FILE)}
    return {folder.place_of(path): path for path in folder.files(REPORT)} | checks


def _report_file(folder: RunFolder, name: str) -> Path:
    paths = _files(folder)
    if name not in paths:
        raise UnknownName("report", name, paths)
    return paths[name]


def _about(report: FidelityReport | CheckReport | str) -> str:
    if isinstance(report, str):
        return report
    return check_headline(report) if isinstance(report, CheckReport) else headline(report)


def _setting(
    setting: str,
    sections: Iterable[Section],
    wrong: Iterable[PredictedStep],
    counted: Counter[tuple[str, str]],
    played: Collection[str],
) -> JsonObject:
    return {
        "setting": setting,
        "sections": [_section(section, [setting], counted, played) for section in sections],
        "worst": [one.model_dump(mode="json") for one in wrong],
    }


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
    notes: list[JsonValue] = []
    for sentence in section.notes:
        parts = (sentence,) if isinstance(sentence, str) else sentence
        notes.append([_part(part, section.title, settings[0], counted, played) for part in parts])
    return {"title": section.title, "rows": rows, "notes": notes}


def _part(
    part: str | Number, title: str, setting: str, counted: Counter[tuple[str, str]], played: Collection[str]
) -> JsonObject:
    """A part of a sentence: its text, and what is behind it if it is a number."""
    if isinstance(part, str):
        return {"text": part}
    name, group = cell(title, part.row, part.column), _group_of(title, part.row, setting)
    if counted[setting, name]:
        return {"text": part.text, "setting": setting, "cell": name, "steps": counted[setting, name]}
    is_played = any(one.startswith(group) for one in played)
    return {"text": part.text, "group": group if is_played else None, "head": part.column}


def _cell(title: str, row: str, column: int, head: Sequence[str], settings: Sequence[str]) -> tuple[str, str]:
    """The setting and the name of a cell. A count leads to the steps of the share to its right."""
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


def _report(path: Path) -> FidelityReport | CheckReport | str:
    """The report, or why it cannot be shown."""
    try:
        kind = CheckReport if path.name == CHECK_FILE else FidelityReport
        return kind.model_validate_json(path.read_bytes())
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    except ValidationError as error:
        return f"it cannot be read, perhaps because another version wrote it: {first_reason(error)}"
