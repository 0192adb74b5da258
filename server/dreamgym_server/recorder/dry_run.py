"""The preview of `--dry-run`: which rule finds something, where and how often, but never the text that it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import JsonValue

from dreamgym.redaction import Redactor
from dreamgym.types import JsonObject


class Preview:
    """Counts of finds, by rule and place."""

    def __init__(self) -> None:
        self.finds: Counter[tuple[str, str]] = Counter()

    def compare(self, event: JsonObject, key: str, before: JsonValue, after: JsonValue, redactor: Redactor) -> None:
        """Count the finds of each rule at each place that redaction changed."""
        params = event.get("params")
        tool = params.get("name") if isinstance(params, dict) and event.get("method") == "tools/call" else None
        where = " ".join(str(part) for part in (event.get("method", "note"), tool) if part)
        for path, name, leaf in _changed(redactor.text(f"{where}: {key}"), "", before, after):
            finds = Counter(redactor.counts)
            redactor.value({name: leaf} if name else leaf)
            found = redactor.counts - finds
            redactor.counts = finds
            self.finds.update({(rule, path): count for rule, count in found.items()})

    @property
    def text(self) -> str:
        """The counts as a table."""
        if not self.finds:
            return "nothing would be redacted"
        rows = [f"{count:>6}  {rule:<20} {where}" for (rule, where), count in sorted(self.finds.items())]
        return "\n".join([f"{'count':>6}  {'rule':<20} where", *rows])


def _changed(path: str, name: str, before: JsonValue, after: JsonValue) -> Iterator[tuple[str, str, JsonValue]]:
    """The leaves that differ, each with its path and the name of its field."""
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict) and before.keys() == after.keys():
        for key, value in before.items():
            yield from _changed(f"{path}.{key}", key, value, after[key])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for one, other in zip(before, after, strict=True):
            yield from _changed(f"{path}[]", name, one, other)
    else:
        yield path, name, before
