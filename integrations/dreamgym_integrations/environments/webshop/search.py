"""The search of the shop: BM25 as the original's Lucene index ranks, in pure Python.

The words of a text are those of Lucene's English analysis: Unicode's word breaks, stop words, Porter's stems. k1 is
0.9, b is 0.4, and document lengths are rounded to fit one byte. Documents of equal score are in the order of their
names.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import lru_cache
from heapq import nsmallest
from math import log

from dreamgym.errors import MissingPackage

K1, B = 0.9, 0.4
DIGITS = 5
"""Scores that agree in so many decimals count as equal: the original adds them up in single precision."""
_STOP_WORDS = """\
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
LONGEST = 255
"""Longer words are cut to this many letters; agents send such words."""
_NO_LETTER = "_\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u208e\u2460-\u24ff\u2776-\u2793"
"""Fractions and numbers in circles: \\w matches them, but Unicode's word breaks do not count them as letters."""
_IDEOGRAPH = "\u3040-\u309f\u3400-\u4dbf\u4e00-\u9fff"
_ALPHANUMERIC = rf"[^\W{_NO_LETTER}{_IDEOGRAPH}]"
_LETTER = rf"[^\W\d{_NO_LETTER}{_IDEOGRAPH}]"
_ANYWHERE = ".'\u2018\u2019\u2024\uff07\uff0e"
_IN_WORDS = ":\u00b7\u0387\u2027\ufe13\ufe55\uff1a"
_IN_NUMBERS = ",;\u2044\uff0c\uff1b"
_JOINT = rf"(?:(?<={_LETTER})[{_ANYWHERE}{_IN_WORDS}](?={_LETTER})|(?<=\d)[{_ANYWHERE}{_IN_NUMBERS}](?=\d)|_+)"
_PICTOGRAPH = (
    "[\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf\u23e9-\u23f3\u23f8-\u23fa\u24c2"
    "\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716"
    "\u271d\u2721\u2728\u2733\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0"
    "\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299\U0001f000-\U0001faff]"
)
_EMOJI = rf"{_PICTOGRAPH}\ufe0f?[\U0001f3fb-\U0001f3ff]?(?:\u200d{_PICTOGRAPH}\ufe0f?)*"
_WORD = re.compile(rf"(?:(?<!_)_+)?{_ALPHANUMERIC}+(?:{_JOINT}{_ALPHANUMERIC}+)*_*|[{_IDEOGRAPH}]|{_EMOJI}")
_SYLLABLE = re.compile(r"[aeiouy][^aeiouy]")
"""An ending is removed only if this occurs in the rest of the word."""


class Analyzer:
    """Converts text to terms. Raises MissingPackage if the stemmer is not installed."""

    def __init__(self) -> None:
        self._stem = _lucene_stemmer()

    def terms(self, text: str) -> list[str]:
        """The terms in their order; an emoji is one too."""
        words = (word.removesuffix("'s").removesuffix("\u2019s") for word in _WORD.findall(text.lower()))
        return [self._stem(word[:LONGEST]) for word in words if word not in STOP_WORDS]


def _lucene_stemmer() -> Callable[[str], str]:
    """Porter's stemmer with Lucene's two departures from the paper, and short words left alone."""
    try:
        from snowballstemmer import stemmer
    except ModuleNotFoundError as error:
        raise MissingPackage("the search of WebShop", "webshop") from error
    porter: Callable[[str], str] = stemmer("porter").stemWord

    @lru_cache(maxsize=100_000)
    def stem(word: str) -> str:
        if len(word) < 3:
            return word
        if word.endswith("bly") and _SYLLABLE.search(word[:-3]):
            word = f"{word[:-1]}e"
        stemmed = porter(word)
        return stemmed[:-1] if stemmed.endswith("logi") and _SYLLABLE.search(stemmed[:-4]) else stemmed

    return stem


class SearchIndex:
    """The documents of a shop, ready to be ranked for a query."""

    def __init__(self, documents: Iterable[tuple[str, str]]) -> None:
        """Index documents, each a name and its text. Raises MissingPackage."""
        self._analyzer = Analyzer()
        self._names: list[str] = []
        counts: list[Counter[str]] = []
        for name, text in documents:
            self._names.append(name)
            counts.append(Counter(self._analyzer.terms(text)))
        lengths = [terms.total() for terms in counts]
        average = sum(lengths) / len(lengths)
        weights: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
        for document, (terms, length) in enumerate(zip(counts, lengths, strict=True)):
            norm = K1 * (1 - B + B * _one_byte(length) / average)
            for term, count in terms.items():
                weights[term].append((document, count / (count + norm)))
        self._postings: dict[str, list[tuple[int, float]]] = {}
        for term, found in weights.items():
            rarity = log(1 + (len(counts) - len(found) + 0.5) / (len(found) + 0.5))
            self._postings[term] = [(document, weight * rarity) for document, weight in found]

    def search(self, query: str, limit: int) -> list[str]:
        """The names of the best documents, the best first."""
        scores: defaultdict[int, float] = defaultdict(float)
        for term, count in Counter(self._analyzer.terms(query)).items():
            for document, weight in self._postings.get(term, ()):
                scores[document] += count * weight
        names = self._names
        best = nsmallest(limit, scores.items(), key=lambda scored: (-round(scored[1], DIGITS), names[scored[0]]))
        return [names[document] for document, _ in best]


def _one_byte(length: int) -> int:
    """A length as Lucene keeps it in one byte: exact below 40, then four significant bits of what exceeds 24."""
    if length < 40:
        return length
    shift = (length - 24).bit_length() - 4
    return ((length - 24) >> shift << shift) + 24
