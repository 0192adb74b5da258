"""Training runs of a run folder, as JSON for the page. A metrics file may still be incomplete: it is being written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue

from dreamgym.errors import UnknownName
from dreamgym.training.record import tiers_of
from dreamgym.types import JsonObject
from dreamgym_server.view.folders import METRICS, RunFolder, is_own

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
        lines, broken = _record(path)
        played = [line for line in lines if "rollout_s" in line]
        probes = [line for line in lines if line.get("real_success") is not None]
        found.append(
            {
                "name": folder.place_of(path),
                "updates": len(played),
                "broken": broken,
                "where": str(played[-1].get("where")) if played else None,
                "last_inside": played[-1].get("inside_success") if played else None,
                "last_probe": {name: probes[-1].get(name) for name in PROBED} if probes else None,
                "tiers": {**tiers_of(lines)},
            }
        )
    return found


def training_run(folder: RunFolder, name: str) -> JsonObject:
    """One training run: its updates, its probes in the real environment, and what was learned. Raises UnknownName."""
    paths = {folder.place_of(path): path for path in folder.files(METRICS)}
    if name not in paths:
        raise UnknownName("training run", name, paths)
    lines, _ = _record(paths[name])
    return {
        "name": name,
        "group": _group(paths[name].parent),
        "updates": _chosen((line for line in lines if "rollout_s" in line), PRACTICE),
        "probes": _chosen((line for line in lines if line.get("real_success") is not None), PROBED),
        "learned": _chosen((line for line in lines if "loss" in line), LEARNED),
    }


def _record(path: Path) -> tuple[list[JsonObject], int]:
    """The lines of a metrics file, and how many others cannot be read. A last line without a line break is left out."""
    try:
        whole, _, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    except OSError:  # it was deleted
        return [], 0
    written = [line for line in whole.splitlines() if line.strip()]
    lines: list[JsonObject] = []
    for line in written:
        with suppress(ValueError, RecursionError):
            values = json.loads(line)
            if isinstance(values, dict):
                lines.append({name: _finite(value) for name, value in values.items()})
    return lines, len(written) - len(lines)


def _finite(value: JsonValue) -> JsonValue:
    """The value without numbers that JSON does not have: Python writes the loss of a failed update as NaN.

    A field becomes None. Inside a field, such as the steps of each tier, only whole numbers stay.
    """
    if isinstance(value, dict):
        return {name: inner for name, inner in value.items() if isinstance(inner, int) and not isinstance(inner, bool)}
    return None if isinstance(value, list) or (isinstance(value, float) and not math.isfinite(value)) else value


def _group(folder: Path) -> str | None:
    """Start of the names of the run's groups in the store; None if the folder does not have the run's name."""
    file = folder / "run.json"
    try:
        run = json.loads(file.read_bytes()).get("run") if is_own(file) else None
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return f"{run}-" if isinstance(run, str) and run else None


def _chosen(lines: Iterable[JsonObject], names: Sequence[str]) -> list[JsonValue]:
    return [{name: line[name] for name in names if name in line} for line in lines]
