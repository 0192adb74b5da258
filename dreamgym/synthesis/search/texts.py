"""The search for a template that gives the right text in every recorded call: some words stay, others vary."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic import JsonValue

from dreamgym.state import is_number
from dreamgym.synthesis.expressions import FORMATS, Constant, Expression, Joined, NoValue, Template, written
from dreamgym.synthesis.paths import Bindings

Token = tuple[str, bool]
"""A piece of a text, and whether another call may have another piece in its place."""


SEPARATORS = (", ", "; ", "\n", " and ")
"""Possible separators of the items of a list in a text."""


@dataclass(frozen=True)
class ListForm:
    """The form in which some texts list entities, such as `O-1 (open), O-2 (sent)`."""

    collection: str
    separator: str
    tail: str
    """The text after each id, as a regular expression in which every word is `\\w+`."""

    def found_in(self, text: str, ids: str) -> list[str]:
        """The lists in a text.

        Args:
            text: any text.
            ids: the ids of the collection that are in it, as a regular expression.
        """
        item = ids + self.tail
        least = "*" if self.tail else "+"  # one id alone is not a list
        return [one[0] for one in re.finditer(f"{item}(?:{re.escape(self.separator)}{item}){least}", text)]


def list_forms(texts: Sequence[str], calls: Sequence[Bindings]) -> list[ListForm]:
    """The forms of all lists of at least two entities in some texts."""
    found: set[ListForm] = set()
    for text, call in zip(texts, calls, strict=True):
        for collection, ids in _ids_in(text, call).items():
            places = list(re.finditer(ids, text))
            for one, other in pairwise(places):
                between = text[one.end() : other.start()]
                separator = next((end for end in SEPARATORS if between.endswith(end)), None)
                if separator is not None:
                    tail = between[: -len(separator)]
                    shape = "".join(r"\w+" if word[0].isalnum() else re.escape(word) for word in _WORDS.findall(tail))
                    found.add(ListForm(collection, separator, shape))
    return sorted(found, key=lambda form: (-len(form.tail), form.tail, form.collection, form.separator))


_WORDS = re.compile(r"\w+|\W")


def _ids_in(text: str, call: Bindings) -> dict[str, str]:
    """For each collection, a regular expression of its ids that are in a text."""
    found = {name: [i for i in entities if i in text] for name, entities in call.state.collections.items()}
    return {
        name: rf"(?<!\w)(?:{'|'.join(map(re.escape, sorted(ids, key=len, reverse=True)))})(?!\w)"
        for name, ids in found.items()
        if ids
    }


def tokens(text: str, call: Bindings, forms: Sequence[ListForm] = ()) -> list[Token]:
    """The pieces of a text: lists, bound values, numbers, words, and the characters between them."""
    bound = {
        value if isinstance(value, str) else json.dumps(value)
        for value in call.values.values()
        if is_number(value) or (isinstance(value, str) and len(value) > 1)
    }
    for value in call.values.values():
        if isinstance(value, list) and value and all(isinstance(part, str) and part for part in value):
            bound |= {separator.join(map(str, value)) for separator in SEPARATORS}
    if forms:
        ids = _ids_in(text, call)
        bound |= {run for one in forms if one.collection in ids for run in one.found_in(text, ids[one.collection])}
    here = sorted((value for value in bound if value in text), key=lambda value: (-len(value), value))
    pattern = "|".join([*(rf"(?<!\w){re.escape(value)}(?!\w)" for value in here), r"\w+(?:[.,:@-]\w+)*", r"\W"])
    known = set(here)
    return [(piece, piece in known or any(c.isdigit() for c in piece)) for piece in re.findall(pattern, text)]


def alike(one: Sequence[Token], other: Sequence[Token]) -> bool:
    """True if two texts differ only in pieces that may vary."""
    return len(one) == len(other) and all(
        a == b or (may and might) for (a, may), (b, might) in zip(one, other, strict=True)
    )


def template_for(
    texts: Sequence[str],
    calls: Sequence[Bindings],
    find: Callable[[Sequence[JsonValue]], Expression | None],
    find_list: Callable[[Sequence[list[JsonValue]]], Expression | None],
) -> Expression | None:
    """The template that gives every call its text; None if the texts are not alike or a piece has no expression.

    Args:
        texts: one for each call.
        calls: the bindings of each call.
        find: finds the expression of a piece.
        find_list: finds the expression of a list of texts.
    """
    forms = list_forms(texts, calls)
    pieces = [tokens(text, call, forms) for text, call in zip(texts, calls, strict=True)]
    if len(pieces[0]) < 2 or not all(alike(pieces[0], other) for other in pieces[1:]):
        return None
    columns = list(zip(*pieces, strict=True))
    found: dict[int, tuple[Expression, str]] = {}
    # lists first: a number may be the length of a list
    for i in sorted(
        range(len(columns)), key=lambda i: not any(s in word for s in SEPARATORS for word, _ in columns[i])
    ):
        if any(may for _, may in columns[i]):
            one = _piece([word for word, _ in columns[i]], calls, find, find_list)
            if one is None:
                return None
            found[i] = one
    parts = tuple(found[i][0] if i in found else column[0][0] for i, column in enumerate(columns))
    formats = tuple(found[i][1] for i in sorted(found))
    return Template(parts, formats) if formats else None


def _piece(
    words: list[str],
    calls: Sequence[Bindings],
    find: Callable[[Sequence[JsonValue]], Expression | None],
    find_list: Callable[[Sequence[list[JsonValue]]], Expression | None],
) -> tuple[Expression, str] | None:
    """The expression and the format of the piece at one place of all texts."""
    numbers = [_number(word) for word in words]
    for form in FORMATS if all(number is not None for number in numbers) else ():
        if _are_written(numbers, form, words) and (one := find(numbers)):
            return one, form
    one = find(list(words))
    is_list = all(
        any(value == [word] for value in call.values.values()) for word, call in zip(words, calls, strict=True)
    )
    if isinstance(one, Constant) and is_list and (listed := find_list([[word] for word in words])):
        return Joined(listed, SEPARATORS[0]), ""  # a list that had the same one item in all calls
    if one is not None:
        return one, ""
    for separator in SEPARATORS:
        if any(separator in word for word in words):
            items = [_items(word, separator, call) for word, call in zip(words, calls, strict=True)]
            if one := find_list(items):
                return Joined(one, separator), ""
    states = [call.state for call in calls]
    is_entity = (any(i in ids for ids in one.collections.values()) for i, one in zip(words, states, strict=True))
    # a list that has one item in all calls
    if all(is_entity) and (one := find_list([[word] for word in words])):
        return Joined(one, SEPARATORS[0]), ""
    return None


def _are_written(numbers: Sequence[JsonValue], form: str, words: Sequence[str]) -> bool:
    """True if a format writes each number as its word."""
    try:
        return all(written(number, form) == word for number, word in zip(numbers, words, strict=True))
    except NoValue:
        return False


def _items(text: str, separator: str, call: Bindings) -> list[JsonValue]:
    """The items of a list in a text. If it lists entities, an item begins with an id and may contain the separator."""
    parts = text.split(separator)
    ids = [any(part.startswith(i) for entities in call.state.collections.values() for i in entities) for part in parts]
    if not ids[0]:
        return list(parts)
    items: list[str] = []
    for part, is_id in zip(parts, ids, strict=True):
        if is_id:
            items.append(part)
        else:
            items[-1] += separator + part
    return list(items)


def _number(word: str) -> JsonValue:
    try:
        value: JsonValue = json.loads(word.replace(",", ""))
    except (ValueError, RecursionError):
        return None
    return value if is_number(value) else None
