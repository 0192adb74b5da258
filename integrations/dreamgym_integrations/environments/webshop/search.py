"""The search of the shop: BM25 as the original's Lucene index ranks, in pure Python.

k1 0.9, b 0.4, document lengths rounded to what fits one byte; equally good documents come in the order of their names.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from heapq import nsmallest
from math import log

from dreamgym_integrations.environments.webshop.words import Analyzer

K1, B = 0.9, 0.4
DIGITS = 5
"""Scores that agree to here are equal: the original adds them up in single precision."""


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
