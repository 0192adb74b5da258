"""The one who reads JSON and text, and puts placeholders where a rule finds something."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from urllib.parse import quote, quote_plus

from pydantic import JsonValue

from dreamgym.redaction import personal, secrets
from dreamgym.redaction.placeholder import MARK, Placeholders
from dreamgym.redaction.rules import RedactionRules

_BLOB = re.compile(r"(?<![\w+/=-])[A-Za-z0-9+/_-]{16,}={0,2}(?![\w+/=-])")
_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_SCHEMA = frozenset({"$ref", "anyOf", "oneOf", "allOf", "properties"})
_EXAMPLES = frozenset({"default", "const", "example", "examples"})
_TOLD = frozenset({"title", "description", *_EXAMPLES})
_LONG_NUMBER = 10**12
_LAYOUTS: tuple[tuple[int | None, tuple[str, str]], ...] = (
    (None, (", ", ": ")),
    (None, (",", ":")),
    (2, (",", ": ")),
    (4, (",", ": ")),
)


class Redactor:
    """Takes out what the rules find. The same value gives the same placeholder; redacting twice changes nothing more.

    Args:
        rules: what to look for.
        key: makes the placeholders; see `load_key`.
        known: literal secrets by value, each with the name of where it comes from; found also in base64 or in a URL.
    """

    def __init__(self, rules: RedactionRules, *, key: bytes, known: Mapping[str, str] | None = None) -> None:
        self.counts: Counter[str] = Counter()
        """How often each rule found something."""
        self._rules = rules
        self._make = Placeholders(key)
        self._fields = frozenset(name.lower() for name in rules.fields)
        self._patterns = {name: re.compile(pattern) for name, pattern in rules.patterns.items()}
        self._allowed = [re.compile(pattern) for pattern in rules.allow]
        self._known = {form: (name, value) for value, name in (known or {}).items() for form in _forms(value)}
        longest_first = sorted(self._known, key=len, reverse=True)
        self._any_known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def value(self, value: JsonValue) -> JsonValue:
        """JSON of the same shape. A text under a secret's name is taken out whole, a number there becomes 0."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if isinstance(value, dict):
            entry = value.get("name", value.get("key"))  # of a list of headers or variables
            is_secret = isinstance(entry, str) and self._is_secret(entry)
            return {
                self.text(name): self._field(str(entry) if is_secret and name == "value" else name, item)
                for name, item in value.items()
            }
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= _LONG_NUMBER:
            redacted = self._personal(str(value), "credit_card")
            return int(redacted)
        return value

    def text(self, text: str) -> str:
        """Text, or JSON in a text, or base64 of a text, in the same form."""
        if len(text) < 4:
            return text
        if text.lstrip()[:1] in ("{", "["):
            try:
                return self._json(text)
            except (ValueError, RecursionError):
                pass  # it only begins like JSON, or is nested beyond reading
        return self._plain(self._blobs(text))

    def _field(self, name: str, value: JsonValue) -> JsonValue:
        if not self._is_secret(name):
            return self.value(value)
        if isinstance(value, list):
            return [self._field(name, item) for item in value]
        if isinstance(value, str):
            return self._whole(name, value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value:
            self.counts[name] += 1
            return 0
        if isinstance(value, dict):
            held = _EXAMPLES if _is_schema(value) else value.keys()
            return {
                self.text(key): self._field(name, item) if key in held else self.value(item)
                for key, item in value.items()
            }
        return value

    def _is_secret(self, name: str) -> bool:
        return name.lower() in self._fields or (self._rules.secrets and secrets.is_secret_field(name))

    def _whole(self, name: str, value: str) -> str:
        bare = re.sub(r"(?i)^(?:bearer|basic|token)\s+", "", value)
        if not bare.strip() or self._is_left_alone(bare):
            return value
        self.counts[name] += 1
        return value[: len(value) - len(bare)] + self._make.secret(name, bare)

    def _json(self, text: str) -> str:
        """Raises ValueError where it is no JSON, or none in a layout that can be written again."""
        value = json.loads(text)
        redacted = self.value(value)
        if redacted == value:
            return text
        for indent, separators in _LAYOUTS:
            for ascii_only in (False, True):
                options = {"indent": indent, "separators": separators, "ensure_ascii": ascii_only}
                if json.dumps(value, **options) == text.strip():  # type: ignore[arg-type]
                    return json.dumps(redacted, **options)  # type: ignore[arg-type]
        return json.dumps(redacted, ensure_ascii=False)

    def _blobs(self, text: str) -> str:
        """Base64 whose content has to be redacted is replaced by base64 of the redacted content."""
        return _BLOB.sub(lambda match: self._blob(match[0]), text)

    def _blob(self, blob: str) -> str:
        url_safe = "-" in blob or "_" in blob
        padded = blob.rstrip("=") + "=" * (-len(blob.rstrip("=")) % 4)
        try:
            content = base64.b64decode(padded, altchars=b"-_" if url_safe else None, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return blob
        if not content.isprintable() and not set(content) & set("\n\t"):
            return blob
        redacted = self.text(content)
        if redacted == content:
            return blob
        encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
        encoded = encode(redacted.encode()).decode()
        return encoded if blob.endswith("=") else encoded.rstrip("=")

    def _plain(self, text: str) -> str:
        if self._any_known:
            text = self._any_known.sub(self._known_secret, text)
        for name, pattern in self._patterns.items():
            text = pattern.sub(lambda match, name=name: self._taken(name, match[0]), text)  # type: ignore[misc]
        if self._rules.secrets:
            for name, found in sorted(secrets.found_in(text), key=lambda pair: -len(pair[1])):
                text = text.replace(found, self._taken(name, found)) if found in text else text
        kinds = personal.RULES if personal.DIGIT.search(text) else personal.WITHOUT_DIGITS
        for kind in personal.RULES:
            if kind in kinds:
                text = self._personal(text, kind)
        return text

    def _known_secret(self, match: re.Match[str]) -> str:
        name, value = self._known[match[0]]
        self.counts[name] += 1
        return self._make.secret(name, value)

    def _taken(self, name: str, found: str) -> str:
        if self._is_left_alone(found):
            return found
        self.counts[name] += 1
        return self._make.secret(name, found)

    def _personal(self, text: str, kind: str) -> str:
        if kind not in self._rules.personal:
            return text
        for start, end, placeholder in sorted(_apart(personal.RULES[kind](text, self._make)), reverse=True):
            found = text[start:end]
            if not self._is_left_alone(found) and found != placeholder:
                self.counts[kind] += 1
                text = text[:start] + placeholder + text[end:]
        return text

    def _is_left_alone(self, found: str) -> bool:
        return bool(MARK.search(found)) or any(pattern.fullmatch(found) for pattern in self._allowed)


def _is_schema(value: Mapping[str, JsonValue]) -> bool:
    """An object under a secret's name that describes the secret, as the schema of an argument does."""
    kinds = value.get("type")
    listed = kinds if isinstance(kinds, list) else [kinds]
    return any(kind in _TYPES for kind in listed) or bool(_SCHEMA & value.keys()) or value.keys() <= _TOLD


def _apart(finds: Iterable[personal.Find]) -> list[personal.Find]:
    """Finds that do not overlap; the earlier and longer ones."""
    kept: list[personal.Find] = []
    for find in sorted(finds, key=lambda find: (find.start, -find.end)):
        if not kept or find.start >= kept[-1].end:
            kept.append(find)
    return kept


def _forms(secret: str) -> set[str]:
    """How a literal secret may be written: as it is, in a URL, escaped in JSON, and in base64 at each alignment."""
    raw = secret.encode()
    forms = {secret, quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    for shift in range(3):
        encoded = base64.b64encode(b"\0" * shift + raw).decode().rstrip("=")
        inner = encoded[(0, 2, 3)[shift] : len(encoded) - (1 if (shift + len(raw)) % 3 else 0)]
        if len(inner) >= 8:
            forms |= {inner, inner.replace("+", "-").replace("/", "_")}
    return forms
