"""Finds secrets in columns: comma-separated values, tables of Markdown, and SQL's INSERT."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator

from dreamgym.redaction.find import Find
from dreamgym.redaction.names import is_secret_name, stands_for_one
from dreamgym.redaction.pairs import may_tell

_INSERT = re.compile(r"(?i)\((?P<names>[^()']{1,2000})\)\s{0,16}values\s{0,16}(?=\()")
_TEXT = "'(?:[^']|'')*+'"
_ROW = re.compile(rf"\s{{0,16}},?\s{{0,16}}\((?P<row>(?:[^()']|{_TEXT}|\((?:[^()']|{_TEXT})*+\))*+)\)")
"""A row of values, which may call functions."""
_HEADING = re.compile(r"[\w.-]{1,40}(?: [\w.-]{1,20}){0,2}")
_RULE = re.compile(r"[\s:|+=-]*")
"""A line between the rows of a table, or a cell of it."""
_AROUND = " \t\"'`*"
_LONGEST_HEAD = 2000
_MOST_LINES = 20
"""Lines of one row at most: a cell in quotes may have several."""
_CELL = {
    delimiter: re.compile(rf"""(?:"[^"]*+"|'[^'\n]*+'|[^{re.escape(delimiter)}])*+""")
    for delimiter in ("|", "\t", ",", ";")
}
_MAY_BE_HEAD = re.compile(
    r"(?i)pass|pw|secret|token|key|auth|cookie|cred|cv[vc]|otp|csrf|dsn|jwt|bearer|code|phrase|sess"
)


def columns(text: str) -> Iterator[Find]:
    """Find the cells under a heading that is a secret's name."""
    if may_tell(text):
        for find in _columns(text, _MAY_BE_HEAD, is_secret_name):
            if not stands_for_one(text[find.start : find.end]):
                yield find


def under(names: Collection[str]) -> Callable[[str], Iterator[Find]]:
    """Make a rule that finds the cells under headings with these names, which are in lower case."""
    may_be_head = re.compile(f"(?i){'|'.join(map(re.escape, names))}")
    return lambda text: _columns(text, may_be_head, lambda name: name.lower() in names)


def _columns(text: str, may_be_head: re.Pattern[str], is_taken: Callable[[str], bool]) -> Iterator[Find]:
    yield from _lines(text, may_be_head, is_taken)
    for insert in _INSERT.finditer(text):
        names = [name.strip(' \t\n"`[]') for name in insert["names"].split(",")]
        taken = {at: name for at, name in enumerate(names) if is_taken(name)}
        at = insert.end()
        while taken and (row := _ROW.match(text, at)):
            at = row.end()
            yield from _contents(text, _cells(",", text, *row.span("row")), taken)


def _lines(text: str, may_be_head: re.Pattern[str], is_taken: Callable[[str], bool]) -> Iterator[Find]:
    begins, head, at = 0, None, 0
    lines = []
    for line in text.splitlines(keepends=True):
        lines.append((begins, begins + len(line.rstrip("\r\n"))))
        begins += len(line)
    while at < len(lines):
        start, end = lines[at]
        if head is not None:
            delimiter, count, taken = head
            row = _row(delimiter, count, text, lines[at : at + _MOST_LINES])
            if row is not None:
                cells, read = row
                yield from _contents(text, cells, taken)
                at += read
                continue
        at += 1
        if head is None or not (end > start and _RULE.fullmatch(text, start, end)):
            head = _head(text, start, end, is_taken) if may_be_head.search(text, start, end) else None


def _row(
    delimiter: str, count: int, text: str, lines: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], int] | None:
    """The cells of the row that begins with the first line, and the number of its lines; None if it is not a row."""
    quotes = 0
    for read, (start, end) in enumerate(lines, start=1):
        quotes += text.count('"', start, end)
        if read == 1 or quotes % 2 == 0:
            cells = _cells(delimiter, text, lines[0][0], end)
            if len(cells) == count:
                return cells, read
            if quotes % 2 == 0:
                return None
    return None


def _head(text: str, start: int, end: int, is_taken: Callable[[str], bool]) -> tuple[str, int, dict[int, str]] | None:
    """Delimiter, number of cells, and names of the taken columns, if the line can be the heading of a table."""
    for delimiter in _CELL if end - start <= _LONGEST_HEAD else ():
        if text.find(delimiter, start, end) >= 0:
            cells = _cells(delimiter, text, start, end)
            names = [text[first:last].strip("*_`") for first, last in cells]
            inner = names[1:-1] if delimiter == "|" and not names[0] and not names[-1] else names
            taken = {at: name for at, name in enumerate(names) if is_taken(name)}
            if taken and len(inner) > 1 and all(map(_HEADING.fullmatch, inner)):
                return delimiter, len(cells), taken
    return None


def _cells(delimiter: str, text: str, start: int, end: int) -> list[tuple[int, int]]:
    """Spans of the contents of a row's cells, without quotes and blanks."""
    cells = []
    while True:
        first, last = _CELL[delimiter].match(text, start, end).span()  # type: ignore[union-attr]  # it always matches
        start = last + 1
        while first < last and text[first] in _AROUND:
            first += 1
        while first < last and text[last - 1] in _AROUND:
            last -= 1
        cells.append((first, last))
        if start > end:
            return cells


def _contents(text: str, cells: list[tuple[int, int]], taken: dict[int, str]) -> Iterator[Find]:
    for at, (start, end) in enumerate(cells):
        if at in taken and start < end and not _RULE.fullmatch(text, start, end):
            yield Find(start, end, taken[at], is_told=True)
