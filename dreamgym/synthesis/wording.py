"""Texts that say the same of different things: which words always stand, and which follow from the call."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from pydantic import JsonValue

from dreamgym.synthesis.expressions import FORMS, Expression, Words, written
from dreamgym.synthesis.situation import Situation, is_number

Token = tuple[str, bool]
"""A piece of a text, and whether it may be another one in another call."""
Find = Callable[[Sequence[JsonValue]], Expression | None]


def tokens(text: str, situation: Situation) -> list[Token]:
    """The pieces of a text: values that can be named, numbers, words, and what stands between them."""
    named = {
        value if isinstance(value, str) else json.dumps(value) for value in situation.values.values() if _said(value)
    }
    here = sorted((name for name in named if name and name in text), key=lambda name: (-len(name), name))
    pattern = "|".join([*(rf"(?<!\w){re.escape(name)}(?!\w)" for name in here), r"\w+(?:[.,:@-]\w+)*", r"\W"])
    known = set(here)
    return [(piece, piece in known or any(c.isdigit() for c in piece)) for piece in re.findall(pattern, text)]


def alike(one: Sequence[Token], other: Sequence[Token]) -> bool:
    """Two texts differ in nothing but what may be another."""
    return len(one) == len(other) and all(
        a == b or (may and might) for (a, may), (b, might) in zip(one, other, strict=True)
    )


class Wordings:
    """Explains texts piece by piece."""

    def __init__(self, situations: Sequence[Situation]) -> None:
        self._situations = situations

    def find(self, texts: Sequence[str], find: Find) -> Expression | None:
        """What gives all texts; None where they are not alike or a piece has no explanation."""
        pieces = [tokens(text, situation) for text, situation in zip(texts, self._situations, strict=True)]
        if len(pieces[0]) < 2 or not all(alike(pieces[0], other) for other in pieces[1:]):
            return None
        parts: list[str | Expression] = []
        forms: list[str] = []
        for column in zip(*pieces, strict=True):
            words = [piece for piece, _ in column]
            if not any(may for _, may in column):
                parts.append(words[0])
                continue
            found = _piece(words, find)
            if found is None:
                return None
            parts.append(found[0])
            forms.append(found[1])
        return Words(tuple(parts), tuple(forms)) if forms else None


def _piece(words: Sequence[str], find: Find) -> tuple[Expression, str] | None:
    numbers = [_number(word) for word in words]
    if all(number is not None for number in numbers):
        for form in FORMS:
            if all(written(number, form) == word for number, word in zip(numbers, words, strict=True)):
                found = find(numbers)
                if found is not None:
                    return found, form
    found = find(list(words))
    return (found, "") if found is not None else None


def _number(word: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(word.replace(",", ""))
    except ValueError:
        return None
    return value if is_number(value) else None


def _said(value: JsonValue) -> bool:
    return is_number(value) or (isinstance(value, str) and len(value) > 1)
