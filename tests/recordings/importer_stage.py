"""Helpers for the tests of all formats: environments, and the import of documents in one line."""

import json
from pathlib import Path

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.recordings.importers import ImportReport, importer_named, read_file
from dreamgym.types import JsonObject, Trajectory

DATA = Path(__file__).parents[3] / "shared/data"


def spec(*tools: str, name: str = "crm") -> EnvironmentSpec:
    """An environment with tools of these names."""
    listed: list[JsonValue] = [{"name": tool, "inputSchema": {"type": "object"}} for tool in tools]
    return EnvironmentSpec(name=name, tools_list=({"tools": listed},))


def text_spec(name: str = "game") -> EnvironmentSpec:
    """An environment whose only tool takes one text."""
    schema: JsonObject = {"type": "object", "properties": {"command": {"type": "string"}}}
    return EnvironmentSpec(name=name, tools_list=({"tools": [{"name": "act", "inputSchema": schema}]},))


def imported(
    folder: Path, environment: EnvironmentSpec, *documents: object, format_name: str | None = None
) -> ImportReport:
    """The report on a file with these documents, one per line; texts are written as they are."""
    lines = [document if isinstance(document, str) else json.dumps(document) for document in documents]
    (folder / "file.jsonl").write_text("\n".join(lines), encoding="utf-8")
    report = ImportReport()
    importer = importer_named(format_name) if format_name else None
    report.add(read_file(folder / "file.jsonl", importer), environment)
    return report


def only(report: ImportReport) -> Trajectory:
    """The one trajectory of an import that left nothing out."""
    assert (report.skipped, report.left_out) == ([], [])
    (trajectory,) = report.trajectories
    return trajectory


def steps(trajectory: Trajectory) -> list[tuple[str, JsonObject, str]]:
    """Tool, arguments and observation of each step."""
    return [(step.action.name, step.action.arguments, step.result.observation) for step in trajectory.transitions]
