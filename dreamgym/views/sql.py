"""Servers that take SQL: their tables as recordings show them, in a database of our own that is made for each call.

The rows of a table are known if a recording reads all of them before any write, or if recordings show as many
different rows as one of them counts. Their order is known if a recording reads all of them in no other order, or from
the table's integer key. A query that touches another table, the schema, or rows in an unknown order is not answered.
The writes of the session are run again first. The agent's SQL is untrusted: the database is in memory, small, without
files or extensions, and each statement has a limit of work.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from pydantic import JsonValue

from dreamgym.types import JsonObject, ToolCall
from dreamgym.views.expressions import ValueName

STATEMENT = re.compile(
    r"(?:\s++|--[^\n]*+(?:\n|$)|/\*(?:[^*]|\*(?!/))*+\*/)*+(select|with|values|insert|update|delete|replace|create|drop|alter|pragma)\b",
    re.IGNORECASE,
)
HARMLESS = re.compile(r"\s*(?:explain|show|describe|desc)\b|\s*$", re.IGNORECASE)
"""What changes no table although it is no statement that is read here."""
SCHEMA = frozenset({"sqlite_master", "sqlite_schema", "sqlite_temp_master", "sqlite_temp_schema", "sqlite_sequence"})
"""Tables about the tables, of which ours have other content than the server's."""
SORTED = re.compile(r"\border\s+by\b", re.IGNORECASE)
ORDER = r"\s+order\s+by\s+\w+(?:\s+(?:asc|desc))?(?:\s*,\s*\w+(?:\s+(?:asc|desc))?)*"
WHOLE = re.compile(rf"select\s+\*\s+from\s+[\"`\[]?(\w+)[\"`\]]?(?:{ORDER})?", re.IGNORECASE)
SOME = re.compile(r"select\s+\*\s+from\s+[\"`\[]?(\w+)[\"`\]]?\s+where\s[^;]*", re.IGNORECASE)
WRITTEN = re.compile(
    r"\s*(?:insert\s+(?:or\s+\w+\s+)?into|replace\s+into|update(?:\s+or\s+\w+)?|delete\s+from)\s+[\"`\[]?(\w+)",
    re.IGNORECASE,
)
COUNT = re.compile(r"select\s+count\(\*\)(?:\s+as\s+\w+)?\s+from\s+[\"`\[]?(\w+)[\"`\]]?", re.IGNORECASE)
UNIQUE = re.compile(r"UNIQUE constraint failed: (\w+)\.(\w+)")
CLOCK = ("current_date", "current_time", "current_timestamp")
"""Functions that read the clock, and are called without brackets."""
CHANCE = ("random", "randomblob")
OF_CONNECTION = ("changes", "total_changes", "last_insert_rowid", "sqlite_version", "sqlite_source_id")
DATES = {"date": 1, "time": 1, "datetime": 1, "julianday": 1, "unixepoch": 1, "strftime": 2, "timediff": 2}
"""Functions of a time, and the number of arguments without which they read the clock."""
HERE_AND_NOW = frozenset({"now", "subsec", "subsecond", "localtime", "utc"})
"""Arguments with which they read the clock or our time zone."""
UNKNOWN = " of what"
"""The end of the kind of a statement that touches unknown content."""
TOLD = re.compile(
    r"no such (?:column|table)|syntax error|constraint failed|ambiguous column|has no column|already exists|"
    r"datatype mismatch|values for|values were supplied|incomplete input|misuse of"
)
"""Matches a database's message about a wrong statement. Any other message comes from a limit of ours."""
QUERIES = frozenset({"select", "with", "values"})
WRITES = re.compile(r"\s*with\b.*\b(?:insert|update|delete|replace)\b", re.IGNORECASE | re.DOTALL)
"""A statement that begins like a query and may write."""
WORK = 200_000
"""Most instructions of the database's virtual machine for one statement."""
SECONDS = 0.5
"""Most processor time of one statement: some functions take much longer than an instruction."""
LENGTH = 65_536
"""Most bytes of one value or one statement. A statement cannot be stopped within a function, so values are small."""
PATTERN = 1_000
"""Most bytes of a pattern of LIKE or GLOB."""
COLUMNS = 500
"""Most columns of a table or an answer."""
PAGES = 2_000
"""Most pages of the database, of 4 kB each."""
ROWS = 2_000
"""Most rows of one answer."""
ANSWER = 1_000_000
"""Most characters and bytes in the values of one answer."""
WRITING = frozenset({sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_CREATE_TABLE})
"""Actions on a table that a statement writes."""
FORBIDDEN = frozenset({sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA})


@dataclass(frozen=True)
class KnownTable:
    """A table at the start of a session."""

    columns: tuple[JsonObject, ...] = ()
    """As SQLite describes them: name, type, notnull, dflt_value, pk."""
    rows: tuple[JsonObject, ...] = ()
    is_complete: bool = False
    """True if `rows` are all rows of the table."""
    unique: frozenset[str] = frozenset()
    """Columns whose values are unique, as a recorded refusal shows."""
    is_ordered: bool = True
    """True if `rows` are in the order in which the server gives them."""
    is_view: bool = False
    """True if it may be a view on other tables: it is neither listed nor described, and no recording writes to it."""

    @property
    def is_described(self) -> bool:
        """True if a recording describes the columns, and does not show only their names."""
        return all("type" in column for column in self.columns)

    @property
    def integer_key(self) -> str | None:
        """The column with the number of each row, in whose order SQLite reads the table; None if there is none."""
        keys = [column for column in self.columns if column.get("pk")]
        is_integer = len(keys) == 1 and str(keys[0].get("type")).upper() == "INTEGER"
        return str(keys[0]["name"]) if is_integer else None


@dataclass(frozen=True)
class KnownDatabase:
    """The tables of a server, and the argument of each tool that holds SQL."""

    arguments: Mapping[str, str]
    tables: Mapping[str, KnownTable] = field(default_factory=dict)
    """In the order in which the server lists them."""
    harmless: Mapping[str, Collection[str]] = field(default_factory=dict)
    """Tools without SQL that write, and the tables of which recorded queries show that they do not change them."""

    def statement(self, action: ToolCall) -> str | None:
        """The SQL of a call; None if it has none."""
        value = self._text(action)
        return value if STATEMENT.match(value) else None

    def _text(self, action: ToolCall) -> str:
        value = action.arguments.get(self.arguments.get(action.name, ""))
        return value if isinstance(value, str) else ""

    def kind(self, action: ToolCall) -> str:
        """The first word of the SQL of a call; empty if it has none."""
        found = STATEMENT.match(self.statement(action) or "")
        return found[1].lower() if found else ""

    def bindings(self, written: Iterable[ToolCall], action: ToolCall) -> tuple[str, dict[ValueName, JsonValue]]:
        """The kind of a call, and the bindings that the database gives for it.

        Args:
            written: the calls of the session that were not refused, in their order.
            action: the call.

        Returns:
            The kind: the first word of its SQL, with ` fails` if the database refuses it and ` of what` if it touches
            unknown content; empty for a call without SQL. The bindings contain only what is known.
        """
        found: dict[ValueName, JsonValue] = {}
        written = list(written)
        try:
            with closing(self._opened()) as opened:
                unknown = self._play(opened, written)
                statement = self.statement(action)
                if statement is None:
                    vague = {name for name, table in self.tables.items() if not table.is_described}
                    found.update(_catalogue(opened, action, vague))
                    return "", found
                kind = self.kind(action)
                said = _run(opened, statement)
                if said.error is not None and said.error.startswith("no such table"):
                    return f"{kind}{UNKNOWN}", {}
                if said.error is not None:
                    found["sql", "error"] = said.error
                    return f"{kind} fails", found
                # a change is right only if all rows of the table are known
                if (unknown | SCHEMA) & (said.read | said.written) or said.is_unsure(statement):
                    return f"{kind}{UNKNOWN}", {}
                if self._depends_on_order(written, statement, said):
                    return f"{kind}{UNKNOWN}", {}
                found["sql", "rows"] = said.rows
                found["sql", "count"] = said.count
                found["sql", "last id"] = said.last_id
                return kind, found
        except sqlite3.Error:
            return f"{self.kind(action)}{UNKNOWN}", {}

    def tables_read(self, action: ToolCall) -> frozenset[str]:
        """The tables that the SQL of a call reads, at the start of a session."""
        try:
            with closing(self._opened()) as opened:
                return _run(opened, self.statement(action) or "").read & self.tables.keys()
        except sqlite3.Error:
            return frozenset()

    def _play(self, opened: sqlite3.Connection, written: Iterable[ToolCall]) -> set[str]:
        """Run the writes among the calls of a session; return the tables whose content is not known then."""
        unknown = {name for name, table in self.tables.items() if not table.is_complete}
        shrunk: set[str] = set()
        for call in written:
            statement = self.statement(call)
            if statement is None:
                unknown |= self.tables.keys() - self._spared(call)
                continue
            if self.kind(call) in QUERIES and not WRITES.match(statement):
                continue
            before = self._last_keys(opened)
            said = _run(opened, statement)
            if said.error is not None or unknown & said.read or said.unsure:
                unknown |= said.written
            after = self._last_keys(opened)
            # the number of a deleted row may be given again, or never: that is not known
            unknown |= {name for name in shrunk if after[name] > before[name]}
            shrunk |= {name for name in before if after[name] < before[name]}
            unknown |= {name for name, table in self.tables.items() if table.is_view} - said.written
            unknown |= {one for one in said.written & self.tables.keys() if self._has_gaps(opened, one)}
        return unknown

    def _depends_on_order(self, written: Sequence[ToolCall], statement: str, said: _Said) -> bool:
        """True if an answer is another one when the rows of tables in an unknown order are in another order."""
        if all(self.tables[name].is_ordered for name in said.read & self.tables.keys()):
            return False
        with closing(self._opened(backwards=True)) as other:
            self._play(other, written)
            return _run(other, statement).rows != said.rows

    def _spared(self, call: ToolCall) -> Collection[str]:
        """The tables that a call without a statement that is read here does not change."""
        if call.name not in self.arguments:
            return self.harmless.get(call.name, ())
        # others are such as TRUNCATE, or a transaction that may be taken back
        return self.tables.keys() if HARMLESS.match(self._text(call)) else ()

    def _last_keys(self, opened: sqlite3.Connection) -> dict[str, int]:
        """The largest integer key of each table that has one; 0 for an empty table."""
        found = {}
        for name, table in self.tables.items():
            if (key := table.integer_key) is not None:
                ((last,),) = opened.execute(f"SELECT max({_quoted(key)}) FROM {_quoted(name)}")
                found[name] = last or 0
        return found

    def _has_gaps(self, opened: sqlite3.Connection, name: str) -> bool:
        """True if an undescribed table now has a NULL where no recorded row has one, such as the id of a new row."""
        table = self.tables[name]
        columns = [str(column["name"]) for column in table.columns]
        always = [_quoted(one) for one in columns if all(row.get(one) is not None for row in table.rows)]
        if table.is_described or not always:
            return False
        gaps = " OR ".join(f"{column} IS NULL" for column in always)
        return opened.execute(f"SELECT 1 FROM {_quoted(name)} WHERE {gaps}").fetchone() is not None

    def _opened(self, *, backwards: bool = False) -> sqlite3.Connection:
        """The database at the start of a session. With `backwards`, rows in an unknown order are reversed."""
        opened = sqlite3.connect(":memory:", isolation_level=None)
        try:
            opened.execute(f"PRAGMA max_page_count = {PAGES}")
            opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LENGTH)
            opened.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, LENGTH)
            opened.setlimit(sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, PATTERN)
            opened.setlimit(sqlite3.SQLITE_LIMIT_COLUMN, COLUMNS)
            for name, table in self.tables.items():
                opened.execute(_definition(name, table))
                for row in reversed(table.rows) if backwards and not table.is_ordered else table.rows:
                    names = ", ".join(map(_quoted, row))
                    marks = ", ".join("?" for _ in row)
                    opened.execute(f"INSERT INTO {_quoted(name)} ({names}) VALUES ({marks})", list(row.values()))
        except BaseException:
            opened.close()
            raise
        return opened


@dataclass(frozen=True)
class _Said:
    rows: list[JsonValue] = field(default_factory=list)
    count: int = 0
    last_id: int = 0
    error: str | None = None
    read: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    unsure: frozenset[str] = frozenset()
    """Functions that gave a value of our clock, of chance or of our connection."""

    def is_unsure(self, statement: str) -> bool:
        """True if the answer may depend on such a value. A write that reads nothing may take it only as a default."""
        is_only_written = self.written and not self.rows and not self.read
        is_default = is_only_written and not any(name in statement.lower() for name in self.unsure)
        return bool(self.unsure) and not is_default


def _run(opened: sqlite3.Connection, statement: str) -> _Said:
    """Run one statement, and note which tables it touches and which functions give a value that is not the server's."""
    read: set[str] = set()
    written: set[str] = set()
    unsure: set[str] = set()
    left = [WORK // 100]
    end = time.thread_time() + SECONDS

    def allow(action: int, table: str | None, *_: object) -> int:
        if action in FORBIDDEN:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_READ and table:
            read.add(table)
        elif action in WRITING and table:
            written.add(table)
        return sqlite3.SQLITE_OK

    def work() -> bool:
        left[0] -= 1
        return left[0] < 0 or time.thread_time() > end

    plain = sqlite3.connect(":memory:")
    plain.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LENGTH)
    for name in (*CLOCK, *CHANCE, *OF_CONNECTION, *DATES):
        # as in SQLite, an index may use the functions of a time
        opened.create_function(name, -1, partial(_noted, plain, unsure, name), deterministic=name in DATES)
    opened.set_authorizer(allow)
    opened.set_progress_handler(work, 100)
    try:
        cursor = opened.execute(statement)
        names = [column[0] for column in cursor.description or ()]
        rows: list[JsonValue] = []
        size = 0
        for row in cursor:
            rows.append(dict(zip(names, row, strict=True)))
            size += sum(len(value) for value in row if isinstance(value, str | bytes))
            if len(rows) > ROWS or size > ANSWER:
                raise sqlite3.OperationalError("the answer is too large")
        count, last_id = max(cursor.rowcount, 0), cursor.lastrowid or 0
        return _Said(rows, count, last_id, None, frozenset(read), frozenset(written), frozenset(unsure))
    except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
        if not TOLD.search(str(error)):
            raise sqlite3.OperationalError("a limit of ours, which the server does not have") from error
        return _Said([], 0, 0, str(error), frozenset(read), frozenset(written), frozenset(unsure))
    finally:
        opened.set_progress_handler(None, 0)
        opened.set_authorizer(None)
        plain.close()


def _noted(plain: sqlite3.Connection, unsure: set[str], name: str, *given: object) -> str | bytes | float | None:
    """Call a function of SQLite in a plain database, and note its name if its value is not the server's."""
    if len(given) < DATES.get(name, len(given) + 1) or HERE_AND_NOW & {_word(one) for one in given}:
        unsure.add(name)
    arguments = "" if name in CLOCK else f"({', '.join('?' for _ in given)})"
    (value,) = plain.execute(f"SELECT {name}{arguments}", given).fetchone()
    return value  # type: ignore[no-any-return]


def _word(given: object) -> str:
    """An argument as a function of a time reads it: bytes are text, which ends before a NUL, and case is ignored."""
    text = given.decode(errors="replace") if isinstance(given, bytes) else str(given)
    return text.partition("\0")[0].lower()


def _catalogue(
    opened: sqlite3.Connection, action: ToolCall, vague: Collection[str]
) -> Iterator[tuple[ValueName, JsonValue]]:
    """Bindings for tools without SQL: the tables, and the columns of the table that an argument names."""
    names = [row[0] for row in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY rowid")]
    if not action.arguments:
        yield ("sql", "tables"), list(names)
        yield ("sql", "tables by name"), [{"name": name} for name in names]
    for value in action.arguments.values():
        if value in names and value not in vague:
            cursor = opened.execute("SELECT * FROM pragma_table_info(?)", [value])
            columns = [column[0] for column in cursor.description]
            yield ("sql", "columns"), [dict(zip(columns, row, strict=True)) for row in cursor]
            return


def database_of(
    calls: Sequence[ToolCall], start: Sequence[tuple[ToolCall, JsonValue]], refusals: Iterable[str] = ()
) -> KnownDatabase | None:
    """The database that recordings show; None if no recorded tool takes SQL.

    Args:
        calls: all recorded calls.
        start: the calls that were answered before any write, with the values of their answers.
        refusals: the texts of all refusals.
    """
    arguments = _sql_arguments(calls)
    if not arguments:
        return None
    known, shown = KnownDatabase(arguments), _Shown()
    for action, value in start:
        statement = known.statement(action)
        if statement is None:
            shown.add_description(action, value)
        elif (found := rows_in(value)) is not None:
            shown.add_query(statement, found)
    unique = {found.groups() for text in refusals for found in UNIQUE.finditer(text)}
    written = _written_tables(known.statement(call) or "" for call in calls)
    tables = {name: shown.table(name, unique, written) for name in shown.tables}
    return KnownDatabase(arguments, {name: table for name, table in tables.items() if _can_be_made(name, table)})


@dataclass
class _Shown:
    """What recordings show of the tables before any write, by the name of each table."""

    names: list[str] = field(default_factory=list)
    columns: dict[str, tuple[JsonObject, ...]] = field(default_factory=dict)
    rows: dict[str, dict[str, JsonObject]] = field(default_factory=dict)
    whole: dict[str, list[JsonObject]] = field(default_factory=dict)
    """All rows of a table, in the order in which the server gives them."""
    counts: dict[str, int] = field(default_factory=dict)
    complete: set[str] = field(default_factory=set)
    """Tables of which all rows were read at once."""
    _spelt: dict[str, str] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables, in the order in which the server lists them."""
        return tuple(dict.fromkeys([*self.names, *self.columns, *self.rows]))

    def add_description(self, action: ToolCall, value: JsonValue) -> None:
        """Note the answer to a call without SQL, if it lists the tables or describes the columns of one."""
        found = rows_in(value)
        if not action.arguments and isinstance(value, list):
            self.names += [self._name(name) for item in value if (name := _only_text(item)) is not None]
        described = [one for one in action.arguments.values() if isinstance(one, str) and one.isidentifier()]
        if len(described) == 1 and found and all("name" in row for row in found):
            self.columns[self._name(described[0])] = tuple(found)

    def add_query(self, statement: str, found: list[JsonObject]) -> None:
        """Note the rows that a query returned, if they are rows of one table or their number."""
        # without the blanks at its end, a statement is matched in linear time
        statement = statement.strip().removesuffix(";").rstrip()
        is_whole = WHOLE.fullmatch(statement)
        if match := is_whole or SOME.fullmatch(statement):
            name = self._name(match[1])
            self.rows.setdefault(name, {}).update({repr(sorted(row.items())): row for row in found})
            if is_whole:
                self.complete.add(name)
                if not SORTED.search(statement):
                    self.whole.setdefault(name, found)
        elif (match := COUNT.fullmatch(statement)) and len(found) == 1:
            (count,) = found[0].values()
            self.counts[self._name(match[1])] = count if isinstance(count, int) else -1

    def table(self, name: str, unique: Collection[tuple[str, ...]], written: Collection[str]) -> KnownTable:
        """What is known of a table.

        Args:
            name: the table.
            unique: table and column of each column whose values are unique.
            written: names in lower case of the tables that recorded statements write to.
        """
        rows = self.rows.get(name, {})
        table = KnownTable(
            self.columns.get(name) or tuple({"name": column} for column in next(iter(rows.values()), {})),
            tuple(self.whole.get(name, ())) or tuple(sorted(rows.values(), key=_in_order)),
            name in self.complete or (name in self.counts and len(rows) == self.counts[name]),
            frozenset(column for told, column in unique if told == name),
            is_view=not (name in self.names or name in self.columns or name.lower() in written),
        )
        return replace(table, is_ordered=name in self.whole or table.integer_key is not None)

    def _name(self, name: str) -> str:
        """A name as it was first written: a statement may spell it in another way."""
        return self._spelt.setdefault(name.lower(), name)


def _written_tables(statements: Iterable[str]) -> frozenset[str]:
    """The names in lower case of the tables that recorded statements write to, which are no views."""
    return frozenset(match[1].lower() for one in statements if (match := WRITTEN.match(one)))


def _sql_arguments(calls: Sequence[ToolCall]) -> dict[str, str]:
    """The argument of each tool that holds SQL in most recorded calls."""
    is_sql: Counter[tuple[str, str]] = Counter()
    made: Counter[str] = Counter(call.name for call in calls)
    for call in calls:
        is_sql.update(
            (call.name, name)
            for name, value in call.arguments.items()
            if isinstance(value, str) and STATEMENT.match(value) and " " in value.strip()
        )
    return {tool: name for (tool, name), count in is_sql.items() if 2 * count > made[tool]}


def rows_in(value: JsonValue) -> list[JsonObject] | None:
    """The rows in an answer: a list of flat objects, alone or in one field."""
    if isinstance(value, dict):
        lists = [part for part in value.values() if isinstance(part, list)]
        return rows_in(lists[0]) if len(lists) == 1 else None
    if not isinstance(value, list):
        return None
    rows = [row for row in value if isinstance(row, dict) and not any(isinstance(x, dict | list) for x in row.values())]
    return rows if len(rows) == len(value) else None


def _only_text(item: JsonValue) -> str | None:
    if isinstance(item, dict) and len(item) == 1:
        (item,) = item.values()
    return item if isinstance(item, str) and item.isidentifier() else None


def _definition(name: str, table: KnownTable) -> str:
    keys = [str(column["name"]) for column in table.columns if column.get("pk")]
    parts = []
    for column in table.columns:
        part = f"{_quoted(str(column['name']))} {column.get('type') or _type_of(column, table)}".strip()
        if keys == [column["name"]]:
            part += " PRIMARY KEY"
        if column["name"] in table.unique:
            part += " UNIQUE"
        if column.get("notnull"):
            part += " NOT NULL"
        if (default := column.get("dflt_value")) is not None:
            part += f" DEFAULT {default}"
        parts.append(part)
    if len(keys) > 1:
        parts.append(f"PRIMARY KEY ({', '.join(map(_quoted, keys))})")
    return f"CREATE TABLE {_quoted(name)} ({', '.join(parts)})"


def _type_of(column: JsonObject, table: KnownTable) -> str:
    """The type of a column whose definition was never told: that of all its values. Without one, `1` is not `'1'`."""
    shown = [row.get(str(column["name"])) for row in table.rows]
    kinds = {type(value) for value in shown if value is not None}
    return {float: "REAL", int: "INTEGER", str: "TEXT"}.get(kinds.pop(), "") if len(kinds) == 1 else ""


def _can_be_made(name: str, table: KnownTable) -> bool:
    """True if SQLite accepts the definition and the rows of the table."""
    if not table.columns:
        return False
    try:
        KnownDatabase({}, {name: table})._opened().close()
    except (sqlite3.Error, ValueError, OverflowError):
        return False
    return True


def _in_order(row: JsonObject) -> tuple[bool, float, str]:
    first = next(iter(row.values()), None)
    is_number = isinstance(first, int | float)
    return not is_number, float(first) if isinstance(first, int | float) else 0.0, str(first)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
