"""The search for a template that gives the right text in every recorded call: some words stay, others vary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from pydantic import JsonValue

from dreamgym.synthesis.expressions import FORMATS, Expression, Template, written
from dreamgym.synthesis.paths import Bindings, is_number

Token = tuple[str, bool]
"""A piece of a text, and whether another call may have another piece in its place."""


def tokens(text: str, call: Bindings) -> list[Token]:
    """The pieces of a text: bound values, numbers, words, and the characters between them."""
    bound = {
        value if isinstance(value, str) else json.dumps(value)
        for value in call.values.values()
        if is_number(value) or (isinstance(value, str) and len(value) > 1)
    }
    here = sorted((value for value in bound if value in text), key=lambda value: (-len(value), value))
    pattern = "|".join([*(rf"(?<!\w){re.escape(value)}(?!\w)" for value in here), r"\w+(?:[.,:@-]\w+)*", r"\W"])
    known = set(here)
    return [(piece, piece in known or any(c.isdigit() for c in piece)) for piece in re.findall(pattern, text)]


def alike(one: Sequence[Token], other: Sequence[Token]) -> bool:
    """True if two texts differ only in pieces that may be others."""
    return len(one) == len(other) and all(
        a == b or (may and might) for (a, may), (b, might) in zip(one, other, strict=True)
    )


def template_for(
    texts: Sequence[str], calls: Sequence[Bindings], find: Callable[[Sequence[JsonValue]], Expression | None]
) -> Expression | None:
    """The template that gives every call its text; None if the texts are not alike or a piece has no expression.

    Args:
        texts: one for each call.
        calls: the bindings of each call.
        find: finds the expression of a piece.
    """
    pieces = [tokens(text, call) for text, call in zip(texts, calls, strict=True)]
    if len(pieces[0]) < 2 or not all(alike(pieces[0], other) for other in pieces[1:]):
        return None
    parts: list[str | Expression] = []
    formats: list[str] = []
    for column in zip(*pieces, strict=True):
        words = [piece for piece, _ in column]
        if not any(may for _, may in column):
            parts.append(words[0])
            continue
        numbers = [_number(word) for word in words]
        found: Expression | None = None
        chosen = ""
        for form in FORMATS if all(number is not None for number in numbers) else ():
            if found is None and all(written(n, form) == word for n, word in zip(numbers, words, strict=True)):
                found, chosen = find(numbers), form
        if found is None:
            found, chosen = find(list(words)), ""
        if found is None:
            return None
        parts.append(found)
        formats.append(chosen)
    return Template(tuple(parts), tuple(formats)) if formats else None


def _number(word: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(word.replace(",", ""))
    except ValueError:
        return None
    return value if is_number(value) else None
