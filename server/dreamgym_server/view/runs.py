"""Training runs and reports of a run folder, as JSON for the page.

A metrics file that is being written is shown as far as it is written; a report that cannot be read says why.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import UnknownName
from dreamgym.evaluation.report import FidelityReport, SettingReport
from dreamgym.evaluation.report.text import Section, difference_section, headline, sections
from dreamgym.training.practice import read_record, tiers_of
from dreamgym.types import JsonObject
from dreamgym_server.view.folders import METRICS, REPORT, RunFolder

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
    """A report of `dreamgym fidelity`: its tables, its sentences and its wrong steps. Raises UnknownName."""
    paths = {_name(folder, path): path for path in folder.files(REPORT)}
    if name not in paths:
        raise UnknownName("report", name, paths)
    report = _report(paths[name])
    if isinstance(report, str):
        return {"name": name, "about": report, "settings": [], "differences": None}
    return {
        "name": name,
        "env": report.env,
        "about": headline(report),
        "settings": [_setting(one) for one in report.measured],
        "differences": _section(difference_section(report)) if report.differences else None,
    }


def _setting(one: SettingReport) -> JsonObject:
    return {
        "setting": str(one.setting),
        "sections": [_section(section) for section in sections(one)],
        "worst": [wrong.model_dump(mode="json") for wrong in one.worst],
    }


def _section(section: Section) -> JsonObject:
    rows: list[JsonValue] = [list(row) for row in section.rows]
    return {"title": section.title, "rows": rows, "notes": list(section.notes)}


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
