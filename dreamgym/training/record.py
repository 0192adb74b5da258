"""Reads the record of a training run: a line of JSON for each update and each probe, in its metrics file."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

from dreamgym.types import JsonObject


def real_steps(record: Sequence[JsonObject]) -> int:
    """Number of steps that training took in the real environment. Probes do not count: nothing is learned from them."""
    return sum(int(str(line["environment_steps"])) for line in record if line.get("where") == "real")


def dead_updates(record: Sequence[JsonObject]) -> int:
    """Number of last updates, in a row, without a success and without a group to learn from."""
    updates = (line for line in reversed(record) if "rollout_s" in line)
    dead = takewhile(
        lambda line: not line.get("inside_success") and line.get("dead_groups") == line.get("groups"), updates
    )
    return sum(1 for _ in dead)


def tiers_of(record: Iterable[JsonObject]) -> Counter[str]:
    """Number of steps of a run that each tier of its dream answered."""
    counts: Counter[str] = Counter()
    for line in record:
        tiers = line.get("tiers")
        for tier, steps in tiers.items() if isinstance(tiers, dict) else ():
            counts[tier] += int(str(steps))
    return counts


def read_record(path: Path) -> list[JsonObject]:
    """All lines of a metrics file, oldest first. A last line that was cut off while it was written is left out."""
    whole, newline, _ = path.read_text(encoding="utf-8").rpartition("\n") if path.exists() else ("", "", "")
    return [json.loads(line) for line in whole.splitlines()] if newline else []
