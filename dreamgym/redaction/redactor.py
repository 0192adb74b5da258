"""The redactor: reads JSON and text, and puts placeholders where a rule finds something."""

from __future__ import annotations

import base64
import html
import json
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeGuard, TypeVar
from urllib.parse import quote, quote_plus

from pydantic import JsonValue

from dreamgym.redaction import forms, pairs, personal
from dreamgym.redaction.encodings import Unescaped, redact_blobs
from dreamgym.redaction.find import Find
from dreamgym.redaction.linear import compiled
from dreamgym.redaction.names import has_letter_and_digit, holds_secret, is_dense, is_secret_name, may_be_secret_name
from dreamgym.redaction.placeholder import MARK, Placeholders, load_key
from dreamgym.redaction.rules import RedactionRules
from dreamgym.redaction.tables import columns, under
from dreamgym.types import JsonObject

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_SCHEMA = frozenset({"$ref", "anyOf", "oneOf", "allOf", "properties"})
_EXAMPLES = frozenset({"default", "const", "example", "examples"})
_TOLD = frozenset({"title", "description", *_EXAMPLES})
_HELD = _EXAMPLES | {"value"}
"""Fields with a secret in an object that has a type: a schema's examples, and the value of a typed variable."""
_LISTED = frozenset({"required", "enum"})
"""Lists of a schema, in which no item is the value of the one before it."""
_LONG_NUMBER = 10**12
_LAYOUTS: tuple[tuple[int | None, tuple[str, str]], ...] = (
    (None, (", ", ": ")),
    (None, (",", ":")),
    (2, (",", ": ")),
    (4, (",", ": ")),
)


_WINDOW, _OVERLAP = 2**14, 2**12
"""Number of characters that a rule reads at a time, and the overlap of two readings. So no rule holds a thread for
long."""
_OPAQUE = re.compile(r"[A-Za-z0-9+/]{4096,}+")
"""Long base64, such as a picture, which contains prefixes of tokens by chance. Only web tokens are as long."""
_REST = re.compile(r"[\w.~+/=%-]*+")
"""The rest of a token that a window has cut."""
_NAMES = (
    *("name", "key", "label", "field", "header", "variable", "parameter", "property", "title", "id", "type"),
    "parameterkey",
)
_VALUES = ("value", "content", "text", "data", "val", "parametervalue")
_WORDS = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*")
"""A name of words, such as that of a column."""
_COLUMN = re.compile(r"[A-Za-z][\w .-]{0,40}")
_FIRST_COLUMNS = frozenset({"id", "name", "user", "username", "login", "account", "email", "mail", "host", "service"})
"""Names of the first column in tables of two, which would otherwise be lists of names and values."""
MAX_ENCODED = 4
"""Number of encodings inside each other that are opened. Each can be read in two ways, so each doubles the time."""
MAX_REMEMBERED = 2000
MIN_REMEMBERED = 6
MAX_LEARNED = 200
"""Number of values of headers that are known at once. A server may set a new cookie with every response."""

Rule = Callable[[str], Iterable[Find]]
_FORMS: tuple[Rule, ...] = (forms.prefixed, forms.kingfisher)
Json = TypeVar("Json", str, JsonValue)
Redact = Callable[[JsonValue], JsonValue]


class Redactor:
    """Replaces what the rules find. Equal values get equal placeholders, and redacting twice changes nothing more.

    If only what is beside a value shows that it is a secret, such as its name, it is also replaced everywhere else in
    the same JSON value.

    Args:
        rules: the rules of the environment.
        key: key of the placeholders; see `load_key`.
        known: literal secrets to the name of their origin; they are also found in base64 or in a URL.
        remembers: True if a secret found in this way in one value is also replaced in all later values.
    """

    def __init__(
        self, rules: RedactionRules, *, key: bytes, known: Mapping[str, str] | None = None, remembers: bool = False
    ) -> None:
        self.counts: Counter[str] = Counter()
        """Rule name to the number of its finds."""
        self.told: dict[str, str] = {}
        """Secrets that were found only by what is beside them, each with the name of the find."""
        self._as_written: dict[str, str] = {}
        """A secret of `told` without its escapes, and as it was written."""
        self._rules, self._remembers = rules, remembers
        self._make = Placeholders(key)
        self._depth = 0
        """Number of encodings around the text that is being read."""
        self._fields = frozenset(name.lower() for name in rules.fields)
        self._allowed = [compiled(pattern) for pattern in rules.allow]
        self._known = {form: (name, value) for value, name in (known or {}).items() for form in _forms(value)}
        self._learned: dict[str, None] = {}
        """Values that were learned later, the newest last."""
        make, own = self._make, {name for name in self._fields if name.strip()}
        self._patterns: tuple[Rule, ...] = tuple(
            _of_pattern(name, compiled(pattern)) for name, pattern in rules.patterns.items()
        )
        self._rules_of_form: tuple[Rule, ...] = (
            *self._patterns,
            *(_FORMS if rules.secrets else ()),
            *(_of_kind(personal.RULES[kind], make) for kind in personal.RULES if kind in rules.personal),
            *([pairs.behind(own)] if own else []),
        )
        self._telling: tuple[Rule, ...] = (pairs.beside, pairs.named, pairs.said) if rules.secrets else ()
        self._of_secrets = frozenset({*_FORMS, *self._telling})
        """The rules whose finds go on to the end of a run of characters."""
        self._columns: tuple[Rule, ...] = (*([columns] if rules.secrets else []), *([under(own)] if own else []))

    def know(self, known: Mapping[str, str]) -> list[str]:
        """Replace these values too, until `MAX_LEARNED` newer ones are learned; returns those that are new.

        Args:
            known: literal secrets to the name of their origin.
        """
        new = [value for value in known if value not in self._known]
        for value in new:
            self._known |= dict.fromkeys(_forms(value) - self._known.keys(), (known[value], value))
        for value in [value for value in known if value in new or value in self._learned]:
            self._learned.pop(value, None)
            self._learned[value] = None
        for oldest in list(self._learned)[:-MAX_LEARNED]:
            del self._learned[oldest]
            self._known = {form: origin for form, origin in self._known.items() if origin[1] != oldest}
        return new

    def value(self, value: JsonValue) -> JsonValue:
        """The redacted JSON, in the same shape. A text under a secret's name is replaced whole; a number becomes 0."""
        return self._twice(self._value, value)

    def text(self, text: str) -> str:
        """The redacted text. JSON, base64 and hexadecimal in it keep their form."""
        return self._twice(self._text, text)

    def mark(self, text: str) -> str:
        """Letters that are equal for equal texts. Without the key of the placeholders they tell nothing of the text."""
        return self._make.mark(text)

    def _twice(self, redact: Callable[[Json], Json], value: Json) -> Json:
        """Redact a value, and again if a name has shown a secret that may also occur before its name."""
        before = len(self.told)
        redacted = redact(value)
        if len(self.told) > before:
            redacted = redact(redacted)
        if not self._remembers and self.told:
            self.told, self._as_written = {}, {}
        return redacted

    def _value(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list):
            return self._list(value)
        if isinstance(value, dict):
            return self._object(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return self._number(value)
        return value

    def _number(self, value: float) -> float:
        """Redact a number. What is found in it becomes 0, unless its placeholder is a number too."""
        # many programs write whole numbers as 4111111111111111.0
        is_whole = isinstance(value, int) or value.is_integer()
        text = str(int(value) if is_whole else value)
        is_found = text in self._known or any(True for rule in self._patterns for _ in rule(text))
        may_tell = is_found or (is_whole and abs(value) >= _LONG_NUMBER)
        redacted = self._plain(text) if may_tell else text
        if redacted == text:
            return value
        return type(value)(redacted) if redacted.lstrip("-").isdigit() else 0

    def _list(self, items: list[JsonValue], *, is_of_pairs: bool = False) -> JsonValue:
        """Redact a list. Names may precede values: `["--password", "x"]`, and in pairs `["Authorization", "x"]`.

        Two words alone are two names, such as those of required arguments, unless the list is one of pairs.
        """
        pairs = bool(items) and all(isinstance(one, list) and len(one) == 2 for one in items)
        if (names := self._heading_of(items)) is not None:
            return [self._value(items[0]), *(self._row(names, row) for row in items[1:])]
        redacted: list[JsonValue] = []
        for at, item in enumerate(items):
            before = items[at - 1] if at else None
            is_option = isinstance(before, str) and before.startswith("-") and isinstance(item, str) and item[:1] != "-"
            is_pair = isinstance(before, str) and len(items) == 2 and isinstance(item, str)
            is_pair = is_pair and (is_of_pairs or not _WORDS.fullmatch(str(item)))
            if (is_option or is_pair) and self._is_secret(str(before).lstrip("-"), item):
                redacted.append(self._field(str(before).lstrip("-"), item))
            elif is_option and before in {"-u", "--user", "--proxy-user"} and isinstance(item, str) and ":" in item:
                user, _, password = item.partition(":")
                redacted.append(f"{self._text(user)}:{self._whole_text('password', password)}")
            elif pairs and isinstance(item, list):
                redacted.append(self._list(item, is_of_pairs=True))
            else:
                redacted.append(self._value(item))
        return redacted

    def _object(self, value: JsonObject) -> JsonValue:
        """Redact an object by its field names, by `{"name": "password", "value": "x"}`, and rows by column names."""
        lower = {name.lower(): item for name, item in value.items()}
        entries = [name for key in _NAMES if isinstance(name := lower.get(key), str)]
        entry = next((name for name in entries if self._is_secret(name, "")), None)
        heading = next(
            (item for item in value.values() if isinstance(item, list) and self._names_a_secret(_column_names(item))),
            None,
        )
        columns = [] if heading is None else _column_names(heading)
        redacted: list[tuple[str, JsonValue]] = []
        for name, item in value.items():
            if entry is not None and (
                name.lower() == "value" or (name.lower() in _VALUES and isinstance(item, str) and " " not in item)
            ):
                clean = self._field(entry, item)
            elif columns and item is not heading and _is_table(item):
                clean = [self._row(columns, row) for row in item]
            elif name in _LISTED and isinstance(item, list) and _is_schema(value):
                clean = [self._value(one) for one in item]
            else:
                clean = self._field(name, item)
            redacted.append((self._text(name), clean))
        return _named_apart(redacted)

    def _heading_of(self, rows: list[JsonValue]) -> list[str] | None:
        """The names in the first of several rows, if one is a secret's; None for a list that is no such table.

        Lists of options are no tables, and neither are pairs, unless the first name is that of a usual first column.
        """
        if len(rows) < 2 or not _is_table(rows):
            return None
        names = [cell for cell in rows[0] if isinstance(cell, str) and _COLUMN.fullmatch(cell)]
        if len(names) != len(rows[0]) or not self._names_a_secret(names):
            return None
        if len(names) < 3 and names[0].lower() not in _FIRST_COLUMNS and len(names) != 1:
            return None
        has_options = any(isinstance(cell, str) and cell.startswith("-") for row in rows for cell in row)
        return None if has_options else names

    def _names_a_secret(self, names: Iterable[str]) -> bool:
        return any(self._is_secret(name, "") for name in names)

    def _row(self, names: list[str], row: JsonValue) -> JsonValue:
        """Redact a row by the names of its columns; empty cells at its end may be missing."""
        if not isinstance(row, list) or len(row) > len(names):
            return self._value(row)
        return [self._field(name, item) for name, item in zip(names, row, strict=False)]

    def _text(self, text: str) -> str:
        if len(text) < 4:
            return text
        text = _valid(text)
        if text.lstrip()[:1] in ("{", "["):
            try:
                return self._json(text)
            except (ValueError, RecursionError):
                pass  # it only begins like JSON, or is nested too deeply
        return self._plain(redact_blobs(text, self._encoded) if self._depth < MAX_ENCODED else text)

    def _encoded(self, text: str) -> str:
        """Redact a text that is encoded inside of another one."""
        self._depth += 1
        try:
            return self._text(text)
        finally:
            self._depth -= 1

    def _field(self, name: str, value: JsonValue) -> JsonValue:
        if not self._is_secret(name, value):
            if isinstance(value, list) and may_be_secret_name(name):
                return [self._field(name, one) if isinstance(one, str) else self._value(one) for one in value]
            if isinstance(value, dict) and may_be_secret_name(name) and not _is_schema(value):
                told = {key: one for key, one in value.items() if isinstance(one, str) and is_dense(one)}
                value = {**value, **{key: self._field(name, one) for key, one in told.items()}}
            return self._value(value)
        if isinstance(value, list):
            return [self._field(name, item) for item in value]
        if isinstance(value, str):
            return self._whole_text(name, value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            self.counts[name] += 1
            return 0
        if isinstance(value, dict):
            held = _HELD if _is_schema(value) else value.keys()
            return _named_apart(
                (self._text(key), self._field(name, item) if key in held else self._value(item))
                for key, item in value.items()
            )
        return value

    def _is_secret(self, name: str, value: JsonValue) -> bool:
        if name.lower() in self._fields:
            return True
        if not self._rules.secrets:
            return False
        return holds_secret(name, str(value)) if isinstance(value, (str, int)) else is_secret_name(name)

    def _whole_text(self, name: str, value: str) -> str:
        value = _valid(value)
        bare = re.sub(r"(?i)^(?:bearer|basic|token|digest|apikey)\s+", "", value)
        rest = MARK.sub("", bare)
        # a placeholder that a rule has put into an ordinary value must not make it look like a secret
        is_ordinary = rest != bare and not self._is_secret(name, rest)
        if not rest.strip() or is_ordinary or self._is_allowed(bare):
            return value
        self.counts[name] += 1
        self._remember(name, bare)
        # the first name wins, so that a value has one placeholder under all names
        name, secret = self._known.get(bare, (self.told.get(bare, name), bare))
        return value[: len(value) - len(bare)] + self._make.secret(name, secret)

    def _json(self, text: str) -> str:
        """Redact a text that is JSON. Its layout is kept if it is a usual one. Raises ValueError if it is not JSON."""
        value = json.loads(text, object_pairs_hook=_once)
        redacted = self._value(value)
        if redacted == value:
            return text
        for indent, separators in _LAYOUTS:
            for ascii_only in (False, True):
                options = {"indent": indent, "separators": separators, "ensure_ascii": ascii_only}
                if json.dumps(value, **options) == text.strip():  # type: ignore[arg-type]
                    return json.dumps(redacted, **options)  # type: ignore[arg-type]
        return json.dumps(redacted, ensure_ascii=False)

    def _plain(self, text: str) -> str:
        """Redact in one pass: every rule reads the text without its escapes, and finds are replaced in the original."""
        seen = Unescaped(text)
        without_pictures = _OPAQUE.sub(lambda match: " " * len(match[0]), seen.text)
        finds = list(self._literal(seen.text))
        if self._rules.secrets:
            finds += [*pairs.private_keys(seen.text), *forms.web_tokens(seen.text)]
        finds += [find for rule in self._columns for find in rule(seen.text)]
        rest = 0  # end of what follows a find that its window has cut
        for start in range(0, max(1, len(seen.text) - _OVERLAP), _WINDOW - _OVERLAP):
            window, to_form = (whole[start : start + _WINDOW] for whole in (seen.text, without_pictures))
            cut = start + len(window)

            def is_cut(find: Find, rule: Rule, end: int = len(window)) -> bool:
                """True if a window ends within a secret; what has a form of its own is whole in the next window."""
                return find.end == end and find.placeholder is None and rule in self._of_secrets

            if cut > rest and (more := _REST.match(seen.text, cut)) is not None:
                rest = more.end()
            finds += [
                find._replace(start=find.start + start, end=rest if is_cut(find, rule) else find.end + start)
                for rule in (*self._rules_of_form, *(self._telling if pairs.may_tell(window) else ()))
                for find in rule(to_form if rule in _FORMS else window)
            ]
        if not finds:
            return text
        marks = [match.span() for match in MARK.finditer(seen.text)]
        parts, at = [], 0
        for start, end, find in _apart(finds):
            found = seen.text[start:end]
            if _overlaps(marks, start, end) or self._is_allowed(found) or found == find.placeholder:
                continue
            is_whole = (find.start, find.end) == (start, end)
            if find.is_told:
                self._remember(find.name, seen.text[find.start : find.end])
            self.counts[find.name] += 1
            parts.append(text[at : seen.original(start)])
            # all its forms get one placeholder
            secret = self._known[found][1] if found in self._known else self._as_written.get(found, found)
            parts.append((is_whole and find.placeholder) or self._make.secret(find.name, secret))
            at = seen.original(end)
        return "".join([*parts, text[at:]])

    def _literal(self, text: str) -> Iterator[Find]:
        """Find the secrets that are known by their value."""
        # plain searches: for thousands of values they are faster than one pattern of all, and need no compilation
        for form in (*self._known, *self.told):
            at = text.find(form)
            while at >= 0:
                yield Find(at, at + len(form), self._known[form][0] if form in self._known else self.told[form])
                at = text.find(form, at + len(form))

    def _remember(self, name: str, value: str) -> None:
        for secret in (value, *(pairs.cookies_in(value) if "cookie" in name.lower() else [])):
            for form in dict.fromkeys((secret, Unescaped(secret).text)):  # a text is searched without its escapes
                is_new = form not in self.told and form not in self._known and len(self.told) < MAX_REMEMBERED
                if is_new and len(form) >= MIN_REMEMBERED and has_letter_and_digit(form) and not MARK.search(form):
                    self.told[form], self._as_written[form] = name, secret

    def _is_allowed(self, found: str) -> bool:
        return any(pattern.fullmatch(found) for pattern in self._allowed)


def redact_by(rules: RedactionRules | None) -> Redact | None:
    """A function that redacts values with this user's key; None if there are no rules."""
    return None if rules is None else Redactor(rules, key=load_key()).value


def _of_kind(rule: personal.Rule, make: Placeholders) -> Rule:
    return lambda text: rule(text, make)


def _of_pattern(name: str, pattern: Any) -> Rule:
    return lambda text: [Find(match.start(), match.end(), name) for match in pattern.finditer(text)]


def _apart(finds: Iterable[Find]) -> list[tuple[int, int, Find]]:
    """Merged spans of overlapping finds, each with its longest find; of equally long ones, the first rule's."""
    stretches: list[tuple[int, int, Find]] = []
    for find in sorted(finds, key=lambda find: find.start):
        if stretches and find.start < stretches[-1][1]:
            start, end, longest = stretches[-1]
            longer = find if find.end - find.start > longest.end - longest.start else longest
            stretches[-1] = (start, max(end, find.end), longer)
        else:
            stretches.append((find.start, find.end, find))
    return stretches


def _overlaps(marks: list[tuple[int, int]], start: int, end: int) -> bool:
    """True if one of the placeholders at `marks`, in the order of their positions, overlaps the span."""
    at = bisect_left(marks, end, key=lambda mark: mark[0])
    return at > 0 and marks[at - 1][1] > start


def _valid(text: str) -> str:
    """The text with a question mark for each half of a surrogate pair, which has no UTF-8 form."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _once(fields: list[tuple[str, JsonValue]]) -> JsonObject:
    """An object of JSON. Raises ValueError if it has a field twice: the first value would be read by nobody."""
    found = dict(fields)
    if len(found) < len(fields):
        raise ValueError("a field occurs twice")
    return found


def _named_apart(fields: Iterable[tuple[str, JsonValue]]) -> JsonObject:
    """An object of these fields; if two have one name, as two spellings of one address have, the later get a number."""
    taken: dict[str, int] = {}
    found: JsonObject = {}
    for name, value in fields:
        own = name
        while own in found:
            taken[name] = taken.get(name, 1) + 1
            own = f"{name} {taken[name]}"
        found[own] = value
    return found


def _is_table(value: JsonValue) -> TypeGuard[list[list[JsonValue]]]:
    return isinstance(value, list) and bool(value) and all(isinstance(row, list) for row in value)


def _column_names(columns: list[JsonValue]) -> list[str]:
    """The names of columns, which are texts, or objects with a name; empty if the list has anything else."""
    names = [column.get("name") if isinstance(column, dict) else column for column in columns]
    return [name for name in names if isinstance(name, str)] if all(isinstance(name, str) for name in names) else []


def _is_schema(value: Mapping[str, JsonValue]) -> bool:
    """True if an object under a secret's name only describes the secret, as the schema of an argument does."""
    kinds = value.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return any(kind in _TYPES for kind in listed) or bool(_SCHEMA & value.keys()) or value.keys() <= _TOLD


def _forms(secret: str) -> set[str]:
    """All forms of a literal secret: as it is, in a URL, escaped in JSON, and in base64 at each alignment.

    Each is also given as it reads once its escapes are decoded, because the text that is searched has none.
    """
    if not secret:
        return set()
    raw = secret.encode()
    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1], raw.hex(), raw.hex().upper()}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - (1 if (shift + len(raw)) % 3 else 0)]
        if len(inner) >= 8:
            forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms | {read for form in forms if len(read := Unescaped(form).text) >= MIN_REMEMBERED}


def spellings(secret: str) -> set[str]:
    """The usual texts as which a line of JSON contains a secret: its forms and HTML, in one or two JSON texts."""
    said = {*_forms(secret), html.escape(secret), html.escape(secret, quote=False)}
    for _ in range(2):
        said |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in said for ascii_only in (True, False)}
    return said
