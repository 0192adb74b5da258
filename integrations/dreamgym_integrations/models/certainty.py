"""A transformers model's confidence in its answer, computed from the logits of each decoding step.

The logits of a whole answer would take gigabytes. So only two things are kept of each step: the log-probability of the
chosen token, and the logits of those tokens that have a counterpart with `true` in place of `false`, or the reverse.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

DIGITS = 4
"""Decimal places of a probability. The digits after these depend on the other questions in the batch."""
_JSON = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|true|false')


class Certainty:
    """The probabilities of the steps so far, for each answer of a batch."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._pairs = _pairs(tokenizer.get_vocab())
        self._ids = sorted({token for pair in self._pairs.values() for token in pair})
        self._at = {token: number for number, token in enumerate(self._ids)}
        self._seen: dict[int, list[tuple[float, list[float]]]] = defaultdict(list)

    def watch(self, rows: Mapping[int, int], logits: Any) -> None:
        """Record one step: `rows` maps each answer to its row in `logits`, which has shape (rows, vocabulary)."""
        likeliest = (logits.max(dim=-1).values - logits.logsumexp(dim=-1)).tolist()
        truths = logits[:, self._ids].tolist()
        for answer, row in rows.items():
            self._seen[answer].append((likeliest[row], truths[row]))

    def probabilities(self, answer: int, tokens: Sequence[int]) -> dict[str, float]:
        """`Completion.probabilities` for one answer and its tokens; empty if the answer was not watched."""
        seen = self._seen.get(answer)
        if not tokens or seen is None:
            return {}
        found = {"tokens": math.exp(sum(log for log, _ in seen[: len(tokens)]) / len(tokens))}
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        for name, position in _truth_values(text):
            at = bisect_right(
                range(1, len(tokens) + 1),
                position,
                key=lambda count: len(self._tokenizer.decode(tokens[:count], skip_special_tokens=True)),
            )
            pair = self._pairs.get(tokens[at]) if at < len(tokens) else None
            if pair is not None:
                true, false = (seen[at][1][self._at[token]] for token in pair)
                found[name] = 1 / (1 + math.exp(min(false - true, 700.0)))
        return {name: round(probability, DIGITS) for name, probability in found.items()}


def _pairs(vocabulary: dict[str, int]) -> dict[int, tuple[int, int]]:
    """Map each token that contains `true` or `false` to its pair: (token with `true`, token with `false`).

    A token may also contain the characters before the value.
    """
    pairs = {}
    for piece, token in vocabulary.items():
        other = vocabulary.get("false".join(piece.rsplit("true", 1))) if "true" in piece else None
        if other is not None:
            pairs[token] = pairs[other] = (token, other)
    return pairs


def _truth_values(text: str) -> Iterator[tuple[str, int]]:
    """Yield each key of the outermost object whose value is true or false, and the position of that value."""
    depth, key = 0, ""
    for found in _JSON.finditer(text):
        if found[0] in "{[":
            depth += 1
        elif found[0] in "}]":
            depth -= 1
        elif depth == 1 and found[0] in {"true", "false"}:
            yield key, found.start()
        elif depth == 1:
            key = found[0][1:-1]
