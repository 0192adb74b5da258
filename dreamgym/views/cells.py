"""Servers of tables whose cells have names as in spreadsheets, such as B2 or A1:C4.

A sheet is known if a recording reads it before any write: all of it if the call names no range, else the cells that
the answer shows. The writes of a session then set, clear or replace cells. A formula is computed if it adds, subtracts
or multiplies known cells. Recordings show which argument names the range and which ones name the sheet.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from dreamgym.state import same
from dreamgym.types import ToolCall
from dreamgym.views.expressions import ValueName
from dreamgym.views.reads import makes_by_name
from dreamgym.views.replaced import Replacement

RANGE = re.compile(r"\$?([A-Z]{1,3})\$?([1-9]\d{0,6})(?::\$?([A-Z]{1,3})\$?([1-9]\d{0,6}))?")
FORMULA = re.compile(r"=(?!.*\d[A-Z])[A-Z0-9+*() .-]{1,200}")
"""A formula that is computed. A letter behind a digit, as in 0X10, would be a number of Python."""
MOST_CELLS = 10_000
"""Most cells of one range."""
LARGEST = 2**53
"""Largest number up to which a spreadsheet holds every whole number."""
DEPTH = 16
"""Most formulas in a chain of references."""
OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
Cell = tuple[int, int]
"""Row and column, counted from 1."""
Key = tuple[str, ...]
"""The values of the arguments that name a sheet."""


class UnknownCell(ValueError):
    """No recording shows what a cell contains, or what the server computes from it."""


@dataclass(frozen=True)
class Block:
    """The cells between two corners."""

    first: Cell
    last: Cell

    @classmethod
    def of(cls, text: JsonValue) -> Block | None:
        """The block that a text names; None if it names none, or too many cells."""
        found = RANGE.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            return None
        first = (int(found[2]), _number(found[1]))
        last = (int(found[4]), _number(found[3])) if found[3] else first
        block = cls(first, last)
        return block if first[0] <= last[0] and first[1] <= last[1] and block.count <= MOST_CELLS else None

    @classmethod
    def at(cls, first: Cell, rows: Sequence[Sequence[JsonValue]]) -> Block:
        """The block that rows fill, starting at a cell."""
        return cls(first, (first[0] + len(rows) - 1, first[1] + max(map(len, rows)) - 1))

    @property
    def count(self) -> int:
        return (self.last[0] - self.first[0] + 1) * (self.last[1] - self.first[1] + 1)

    @property
    def name(self) -> str:
        return cell_name(self.first) if self.first == self.last else f"{cell_name(self.first)}:{cell_name(self.last)}"

    def rows(self) -> Iterator[list[Cell]]:
        for row in range(self.first[0], self.last[0] + 1):
            yield [(row, column) for column in range(self.first[1], self.last[1] + 1)]


@dataclass(frozen=True)
class Sheet:
    """The known cells of one sheet. An empty cell contains None."""

    cells: Mapping[Cell, JsonValue] = field(default_factory=dict)
    is_whole: bool = False
    """True if every cell that is not in `cells` is empty."""
    computes: bool = False
    """True if a recording shows that the server computes formulas."""

    def value(self, cell: Cell) -> JsonValue:
        """The value that a cell shows. Raises UnknownCell."""
        return self._shown(cell, 0, {})

    def values(self, block: Block) -> list[list[JsonValue]]:
        """The rows of a block. Raises UnknownCell."""
        known: dict[Cell, JsonValue] = {}
        return [[self._shown(cell, 0, known) for cell in row] for row in block.rows()]

    def _shown(self, cell: Cell, depth: int, known: dict[Cell, JsonValue]) -> JsonValue:
        """The value of a cell. `known` has those computed so far: formulas may refer to one cell again and again."""
        if cell in known:
            return known[cell]
        if cell not in self.cells and not self.is_whole:
            raise UnknownCell(cell_name(cell))
        value = self.cells.get(cell)
        if isinstance(value, str) and value.startswith("="):
            value = self._computed(value, depth, known)
        known[cell] = value
        return value

    def used(self) -> Block:
        """The block from A1 to the last cell that is not empty. Raises UnknownCell if it is not known."""
        filled = [cell for cell, value in self.cells.items() if value is not None]
        rows, columns = {row for row, _ in filled}, {column for _, column in filled}
        if not self.is_whole or not filled or min(rows) != 1 or min(columns) != 1:
            raise UnknownCell("the used range")
        block = Block((1, 1), (max(rows), max(columns)))
        if block.count > MOST_CELLS:
            raise UnknownCell("the used range")
        return block

    def with_values(self, values: Mapping[Cell, JsonValue]) -> Sheet:
        return replace(self, cells={**self.cells, **values})

    def _computed(self, formula: str, depth: int, known: dict[Cell, JsonValue]) -> JsonValue:
        if not self.computes or depth == DEPTH or not FORMULA.fullmatch(formula):
            raise UnknownCell(formula)
        try:
            value = self._number(ast.parse(formula[1:].strip(), mode="eval").body, depth, known)
            # some servers show a whole result of fractions as 6, others as 6.0; some round to 15 digits, others do not
            is_whole = isinstance(value, float) and value.is_integer()
            is_shown = math.isfinite(value) and not is_whole and float(f"{value:.15g}") == value
        except (SyntaxError, RecursionError, MemoryError, OverflowError) as error:
            raise UnknownCell(formula) from error
        if not is_shown or abs(value) > LARGEST:
            raise UnknownCell(formula)
        return value

    def _number(self, node: ast.expr, depth: int, known: dict[Cell, JsonValue]) -> float:
        if isinstance(node, ast.BinOp) and (apply := OPERATORS.get(type(node.op))) is not None:
            return apply(self._number(node.left, depth, known), self._number(node.right, depth, known))
        value: object = node.value if isinstance(node, ast.Constant) else None
        if isinstance(node, ast.Name) and (block := Block.of(node.id)) is not None:
            value = self._shown(block.first, depth + 1, known)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
            return value
        raise UnknownCell("a formula")


@dataclass(frozen=True)
class KnownCells:
    """The sheets of a server, and what its tools do with them."""

    ranges: Mapping[str, str]
    """The argument that names a cell or a range, by tool."""
    keys: tuple[str, ...]
    """The arguments that name a sheet."""
    start: Mapping[Key, Sheet] = field(default_factory=dict)
    clears: frozenset[str] = frozenset()
    """Tools that empty a range."""
    replaces: Mapping[str, Replacement] = field(default_factory=dict)
    """Tools that replace text in cells, or the name of a sheet."""
    computes: bool = False
    """True if a recording shows that the server computes formulas."""
    empty: tuple[JsonValue, ...] = ()
    """The value with which answers show an empty cell; () if no recording shows it."""

    def bindings(self, written: Iterable[ToolCall], action: ToolCall) -> dict[ValueName, JsonValue]:
        """The bindings that the sheets give for a call, as far as they are known.

        Args:
            written: the calls of the session that were not refused, in their order.
            action: the call.
        """
        sheets = self._after(written)
        found: dict[ValueName, JsonValue] = {}
        asked = action.arguments.get(self.ranges.get(action.name, ""))
        given = Block.of(asked)
        rows = _rows_in(action.arguments.values())
        if asked is not None and given is None:
            return found
        if given is not None and rows:
            block = Block.at(given.first, rows)
            found["grid", "range"], found["grid", "count"] = block.name, sum(map(len, rows))
            return found
        sheet = sheets.get(self.key(action))
        if sheet is not None:
            try:
                block = given or sheet.used()
                values = sheet.values(block)
            except UnknownCell:
                pass
            else:
                if self.empty or all(value is not None for row in values for value in row):
                    found["grid", "range"] = block.name
                    found["grid", "values"] = [[self.empty[0] if one is None else one for one in row] for row in values]
            return found
        for name, value in action.arguments.items():
            if isinstance(value, str) and value and name not in self.keys:
                found.update(self._holding(sheets, action, name, value))
        return found

    def lacks(self, written: Iterable[ToolCall], action: ToolCall) -> bool:
        """True if a call names a sheet that no recording shows and the session did not make."""
        key = self.key(action)
        return len(key) == len(self.keys) and key not in self.start and key not in self._after(written)

    def key(self, action: ToolCall) -> Key:
        """The key of the sheet that a call names; shorter than `keys` if it names none."""
        given = (action.arguments.get(name) for name in self.keys)
        return tuple(value for value in given if isinstance(value, str))

    def table(self, action: ToolCall, value: JsonValue) -> tuple[Block, list[list[JsonValue]]] | None:
        """The cells that the answer of a call shows; None if it shows none."""
        rows = _rows_in(value.values() if isinstance(value, dict) else [value])
        keys = self.key(action)
        told = [text for text in value.values() if text not in keys] if isinstance(value, dict) else []
        texts = [*told, action.arguments.get(self.ranges.get(action.name, ""))]
        block = next((found for text in texts if (found := Block.of(text))), None)
        if not rows or block is None or len({*map(len, rows)}) != 1 or not _fills(rows, block):
            return None
        return block, rows

    def _holding(
        self, sheets: Mapping[Key, Sheet], action: ToolCall, name: str, asked: str
    ) -> Iterator[tuple[ValueName, JsonValue]]:
        """Bindings of the cells that contain the text of an argument, and of their number, by sheet."""
        said = [action.arguments.get(key) for key in self.keys]
        free = [number for number, value in enumerate(said) if value is None]
        meant = {
            key: sheet
            for key, sheet in sheets.items()
            if all(value in (None, one) for value, one in zip(said, key, strict=True))
        }
        if len(free) != 1 or not meant or not all(sheet.is_whole for sheet in meant.values()):
            return
        ways: dict[str, Callable[[str], bool]] = {
            "found": lambda text: asked in text,
            "found in any case": lambda text: asked.lower() in text.lower(),
            "equal": lambda text: asked == text,
        }
        for way, holds in ways.items():
            cells: dict[str, JsonValue] = {}
            counts: dict[str, JsonValue] = {}
            hits: list[JsonValue] = []
            for key, sheet in meant.items():
                label = key[free[0]]
                here = {
                    cell_name(cell): value
                    for cell, value in sorted(sheet.cells.items())
                    if isinstance(value, str) and holds(value)
                }
                hits += [{"sheet": label, "cell": cell, "value": value} for cell, value in here.items()]
                if here:
                    cells[label], counts[label] = dict(here), len(here)
            yield ("found", way, name), hits
            yield ("grid", way, name), cells
            yield ("grid", f"count {way}", name), counts

    def _after(self, written: Iterable[ToolCall]) -> dict[Key, Sheet]:
        """The sheets after the writes of a session, without those that it may have changed in an unknown way."""
        sheets = {key: replace(sheet, computes=self.computes) for key, sheet in self.start.items()}
        for action in written:
            key = self.key(action)
            block = Block.of(action.arguments.get(self.ranges.get(action.name, "")))
            rows = _rows_in(action.arguments.values())
            new = self.replaces.get(action.name)
            if new is not None:
                self._replace(sheets, action, new)
            elif len(key) == len(self.keys) and block is not None and rows:
                first = block.first
                values = {
                    (first[0] + i, first[1] + j): None if one == "" else one
                    for i, row in enumerate(rows)
                    for j, one in enumerate(row)
                }
                sheets[key] = sheets.get(key, Sheet(computes=self.computes)).with_values(values)
            elif len(key) == len(self.keys) and block is not None and action.name in self.clears:
                sheet = sheets.get(key, Sheet(computes=self.computes))
                sheets[key] = sheet.with_values({cell: None for row in block.rows() for cell in row})
            else:
                named = [one for one in sheets if one[-1:] and one[-1] in action.arguments.values()]
                for one in named:
                    del sheets[one]
                if not named:
                    self._make(sheets, action)
        return sheets

    def _make(self, sheets: dict[Key, Sheet], action: ToolCall) -> None:
        """Add the sheet that a write makes by its name, with one text besides the keys; else forget all sheets."""
        texts = [value for name, value in action.arguments.items() if isinstance(value, str) and name not in self.keys]
        given = tuple(str(action.arguments.get(name, "")) for name in self.keys[:-1])
        if len(texts) == 1 and makes_by_name(action.name):
            sheets[(*given, texts[0])] = Sheet(is_whole=True, computes=self.computes)
        else:
            sheets.clear()

    def _replace(self, sheets: dict[Key, Sheet], action: ToolCall, new: Replacement) -> None:
        find, put = new.values(action)
        if new.find in self.keys:
            place = self.keys.index(new.find)
            renamed = {
                (*key[:place], put, *key[place + 1 :]) if key[place] == find else key: sheet
                for key, sheet in sheets.items()
            }
            sheets.clear()
            sheets.update(renamed)
            return
        for key, sheet in list(sheets.items()):
            try:
                values = new.within(list(sheet.cells.values()), action)
                assert isinstance(values, list)
                sheets[key] = sheet.with_values(dict(zip(sheet.cells, values, strict=True)))
            except ValueError:
                del sheets[key]


Recorded = Sequence[Sequence[tuple[ToolCall, JsonValue, bool]]]
"""The calls of sessions, with the values of their answers and whether they may have changed the world."""


def cells_of(sessions: Recorded, reads: frozenset[str], replaces: Mapping[str, Replacement]) -> KnownCells | None:
    """The sheets that recordings show; None if no recorded tool reads cells.

    Args:
        sessions: the recorded sessions.
        reads: the tools that read.
        replaces: the tools that replace one text by another.
    """
    calls = [action for session in sessions for action, _, _ in session]
    ranges = _range_arguments([(action, value) for session in sessions for action, value, _ in session])
    readers = [call for call in calls if call.name in reads and call.name in ranges]
    keys = [
        name
        for name in (readers[0].arguments if readers else ())
        if name not in ranges.values() and all(isinstance(call.arguments.get(name), str) for call in readers)
    ]
    keys.sort(key=lambda name: len({call.arguments[name] for call in readers}))
    known = KnownCells(ranges, tuple(keys), replaces=replaces)
    start: dict[Key, Sheet] = {}
    for session in sessions if keys else ():
        for action, value, changes in session:
            if changes:
                break
            if action.name in reads and action.name in ranges and (shown := known.table(action, value)) is not None:
                sheet = start.get(known.key(action), Sheet())
                cells = (cell for row in shown[0].rows() for cell in row)
                values = dict(zip(cells, (one for row in shown[1] for one in row), strict=True))
                is_whole = sheet.is_whole or ranges[action.name] not in action.arguments
                start[known.key(action)] = replace(sheet.with_values(values), is_whole=is_whole)
    if not start:
        return None
    empty = next((one for sheet in start.values() for one in sheet.cells.values() if one is None or one == ""), 0)
    start = {
        key: sheet.with_values({cell: None for cell, x in sheet.cells.items() if x == ""})
        for key, sheet in start.items()
    }
    known = replace(known, start=start, empty=() if empty == 0 else (empty,))
    known = replace(known, computes=any(_shows_computed(known, session) for session in sessions))
    putting = {call.name for call in calls if _rows_in(call.arguments.values())}
    clears = [tool for tool in ranges if tool not in reads and tool not in putting]
    return replace(known, clears=frozenset(tool for tool in clears if _does_clear(known, tool, sessions)))


def _range_arguments(calls: Sequence[tuple[ToolCall, JsonValue]]) -> dict[str, str]:
    """The argument of each tool that names a cell or a range in all recorded calls.

    A sheet may have a name such as Q1. So the argument of some cells must have their shape at least once, or be the
    only one of its tool that may name a range, under a name that no other tool gives to something else.

    Args:
        calls: the recorded calls, with the values of their answers.
    """
    given: defaultdict[str, dict[str, bool]] = defaultdict(dict)
    shaped: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for call, value in calls:
        told = value.values() if isinstance(value, dict) else [value]
        put, shown = _rows_in(call.arguments.values()), _rows_in(told)
        for name, argument in call.arguments.items():
            block = Block.of(argument)
            is_too_small = block is not None and block.count == 1 and not put and sum(map(len, shown)) > 1
            given[call.name][name] = given[call.name].get(name, True) and block is not None and not is_too_small
            if block is not None and block.count > 1 and any(rows and _fills(rows, block) for rows in (put, shown)):
                shaped[call.name][name] += 1
    may = {tool: [name for name, is_range in names.items() if is_range] for tool, names in given.items()}
    found = {
        tool: max(proven, key=shaped[tool].__getitem__)
        for tool, names in may.items()
        if (proven := [name for name in names if shaped[tool][name]])
    }
    ranges = {*found.values()}
    others = {name for tool in found for name in given[tool]} - ranges
    for tool in may.keys() - found.keys():
        left = [name for name in may[tool] if name in ranges] or [name for name in may[tool] if name not in others]
        if len(left) == 1:
            found[tool] = left[0]
    return found


def _fills(rows: Sequence[Sequence[JsonValue]], block: Block) -> bool:
    return Block.at(block.first, rows) == block


def _shows_computed(known: KnownCells, session: Sequence[tuple[ToolCall, JsonValue, bool]]) -> bool:
    """True if a session reads a number from a cell that it has written a formula into."""
    formulas: set[tuple[Key, Cell]] = set()
    for action, value, changes in session:
        key, block = known.key(action), Block.of(action.arguments.get(known.ranges.get(action.name, "")))
        if changes and block is None:
            formulas.clear()
        elif changes and block is not None:
            rows = _rows_in(action.arguments.values())
            written = Block.at(block.first, rows) if rows else block
            formulas -= {(key, cell) for row in written.rows() for cell in row}
            for i, row in enumerate(rows):
                for j, one in enumerate(row):
                    if isinstance(one, str) and one.startswith("="):
                        formulas.add((key, (block.first[0] + i, block.first[1] + j)))
        shown = known.table(action, value) if formulas and not changes else None
        for cells, values in zip(shown[0].rows(), shown[1], strict=True) if shown is not None else ():
            for cell, one in zip(cells, values, strict=True):
                if (key, cell) in formulas and isinstance(one, int | float):
                    return True
    return False


def _does_clear(known: KnownCells, tool: str, sessions: Recorded) -> bool:
    """True if a recording reads a range after the tool emptied it, and no recording contradicts."""
    tried = replace(known, clears=frozenset({tool}))
    seen = False
    for session in sessions:
        written: list[ToolCall] = []
        for action, value, changes in session:
            shown = known.table(action, value)
            if shown is not None and any(call.name == tool for call in written):
                found = tried.bindings(written, action)
                if found and not same(found.get(("grid", "values")), list(shown[1])):
                    return False
                seen = seen or bool(found)
            if changes:
                written.append(action)
    return seen


def cell_name(cell: Cell) -> str:
    """The name of a cell, such as B2."""
    row, column = cell
    letters = ""
    while column:
        column, rest = divmod(column - 1, 26)
        letters = chr(ord("A") + rest) + letters
    return f"{letters}{row}"


def _number(letters: str) -> int:
    number = 0
    for letter in letters:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number


def _rows_in(values: Iterable[JsonValue]) -> list[list[JsonValue]]:
    """The rows in the one value that is a list of rows; empty unless there is exactly one."""
    found = [value for value in values if isinstance(value, list) and value and all(map(_is_row, value))]
    return [row for row in found[0] if isinstance(row, list)] if len(found) == 1 else []


def _is_row(row: JsonValue) -> bool:
    return isinstance(row, list) and bool(row) and not any(isinstance(cell, dict | list) for cell in row)
