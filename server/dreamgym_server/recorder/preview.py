"""What `--dry-run` shows: which rule finds something where, and how often; never what it found."""

from __future__ import annotations

import re
from collections import Counter

from pydantic import JsonValue

from dreamgym.types import JsonObject

_NAME = re.compile(r"[a-z][a-z0-9_-]*", re.IGNORECASE)


class Preview:
    """Counts of finds, by rule and place."""

    def __init__(self) -> None:
        self.finds: Counter[tuple[str, str]] = Counter()

    def compare(self, event: JsonObject, key: str, before: JsonValue, after: JsonValue) -> None:
        """Count where redaction changed something."""
        params = event.get("params")
        tool = params.get("name") if isinstance(params, dict) and event.get("method") == "tools/call" else None
        where = " ".join(str(part) for part in (event.get("method", "note"), tool) if part)
        self._walk(f"{where}: {key}", before, after)

    @property
    def text(self) -> str:
        """The table."""
        if not self.finds:
            return "nothing would be redacted"
        rows = [f"{count:>6}  {rule:<20} {where}" for (rule, where), count in sorted(self.finds.items())]
        return "\n".join([f"{'count':>6}  {'rule':<20} where", *rows])

    def _walk(self, where: str, before: JsonValue, after: JsonValue) -> None:
        if before == after:
            return
        if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
            for key, value in before.items():
                self._walk(f"{where}.{key}", value, after[key])
        elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
            for one, other in zip(before, after, strict=True):
                self._walk(f"{where}[]", one, other)
        else:
            for rule in _rules(before, after):
                self.finds[rule, where] += 1


def _rules(before: JsonValue, after: JsonValue) -> list[str]:
    raise NotImplementedError
