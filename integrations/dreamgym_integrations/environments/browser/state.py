"""The part of a page that matters for a task. In the paper (appendix C) a language model extracts it.

Here it is a pure function of the text and the instruction, the same for a real page and for a simulated state. Applied
to its own result it changes nothing. It keeps three to ten elements with their exact ids, in the order of the page:
those that can be used, that share words with the instruction, or that have the focus. It also keeps the texts,
including tables.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from dreamgym_integrations.environments.browser.tree import SEPARATOR, Element, page_of

FEWEST = 3
MOST = 10
TEXT_LENGTH = 1000
_WORD = re.compile(r"\w+")
_EMPTY = frozenset(_WORD.findall("a an and are as at be by for from in into is it of on or that the then this to with"))


def state_of(observation: str, instruction: str) -> str:
    """The state of a page, for a task with this instruction."""
    page = page_of(observation)
    wanted = _words(instruction)
    lines = [f"goal: {instruction!r}", f"page: {page.title!r}", *page.tabs]
    lines.extend(element.line() for element in relevant(page.elements, wanted))
    if texts := _texts(page.texts, wanted):
        lines.append(f"text: {SEPARATOR.join(texts)!r}")
    return "\n".join(lines)


def relevant(elements: Sequence[Element], wanted: frozenset[str]) -> list[Element]:
    """The elements that matter: at most ten, and at least three if there are as many."""
    scores = [_score(element, wanted) for element in elements]
    ranked = sorted(range(len(elements)), key=lambda place: (-scores[place], place))
    number = max(FEWEST, min(MOST, sum(score > 0 for score in scores)))
    return [elements[place] for place in sorted(ranked[:number])]


def _score(element: Element, wanted: frozenset[str]) -> int:
    shared = len(wanted & _words(f"{element.name} {element.value}"))
    return 2 * element.is_interactive + ("focused" in element.marks) + 3 * min(shared, 3)


def _texts(texts: Sequence[str], wanted: frozenset[str]) -> list[str]:
    """The texts to keep, in order. If they are too long, those that share a word with the instruction have priority."""
    ranked = sorted(range(len(texts)), key=lambda place: (not wanted & _words(texts[place]), place))
    kept: list[int] = []
    left = TEXT_LENGTH
    for place in ranked:
        left -= len(texts[place]) + len(SEPARATOR)
        if left < 0:
            break
        kept.append(place)
    return [texts[place] for place in sorted(kept)]


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text.lower())) - _EMPTY
