"""Text encoders: the protocol, and the built-in encoder that needs no model.

Vectors have unit length, so that a dot product is the cosine.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from dreamgym.errors import MissingPackage, UnknownName

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Encoder(Protocol):
    """Anything that embeds text; found by entry point in the group `dreamgym.encoders`."""

    @property
    def name(self) -> str:
        """Short name, as DREAMGYM_ENCODER takes it."""

    @property
    def dim(self) -> int:
        """Dimension of the vectors."""

    @property
    def fingerprint(self) -> str:
        """Changes whenever the same text would give another vector; vectors of two fingerprints never mix."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; shape (len(texts), dim), rows of unit length. Blocking: call it in a thread."""


def trigrams(text: str) -> Iterator[str]:
    """Character trigrams of the lower-cased text with one blank of padding on each side."""
    padded = f" {' '.join(text.lower().split())} "
    return (padded[i : i + 3] for i in range(max(0, len(padded) - 2)))


def trigram_cosine(a: str, b: str) -> float:
    """Cosine of the two sets of character trigrams, in [0, 1]."""
    return set_cosine(trigram_set(a), trigram_set(b))


def set_cosine(grams_a: frozenset[str], grams_b: frozenset[str]) -> float:
    """Cosine of two sets, in [0, 1]; two empty sets are equal."""
    if not grams_a or not grams_b:
        return float(grams_a == grams_b)
    return len(grams_a & grams_b) / math.sqrt(len(grams_a) * len(grams_b))


REMEMBERED_CHARACTERS = 4000
"""Length of a text whose trigrams are cached. Interned, they take 60 kB at most."""


def trigram_set(text: str) -> frozenset[str]:
    """The trigrams of a text, cached because many queries are compared with the same recorded texts."""
    return _trigram_set(text) if len(text) <= REMEMBERED_CHARACTERS else frozenset(trigrams(text))


@lru_cache(maxsize=1024)
def _trigram_set(text: str) -> frozenset[str]:
    return frozenset(map(sys.intern, trigrams(text)))


class TrigramEncoder:
    """Hashed character trigrams: deterministic, fast, no model. For tests, and if no other encoder is installed."""

    name = "trigram"

    def __init__(self, dim: int = 256) -> None:
        self.dim = dim
        self.fingerprint = f"trigram-blake2b-{dim}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Normalised counts of signed, hashed trigrams. A text without a trigram becomes the first unit vector."""
        import numpy as np

        vectors = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in enumerate(texts):
            for gram in trigrams(text):
                digest = hashlib.blake2b(gram.encode(), digest_size=8).digest()
                vectors[row, int.from_bytes(digest[:4], "big") % self.dim] += 1.0 if digest[4] & 1 else -1.0
            if not vectors[row].any():
                vectors[row, 0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors


def load_encoder(name: str | None = None) -> Encoder:
    """The encoder of this name; without a name, the one that the variable DREAMGYM_ENCODER names.

    If neither names one: `minilm` if its packages are installed, else `trigram` with a line on stderr.

    Raises:
        UnknownName: no encoder is registered under this name; the message lists the registered ones.
        MissingPackage: the encoder needs a package that is not installed.
    """
    found = {point.name: point for point in entry_points(group="dreamgym.encoders")}
    name = name or os.environ.get("DREAMGYM_ENCODER") or None
    if name is not None and name not in found:
        raise UnknownName("encoder", name, found)
    try:
        encoder: Encoder = found[name or "minilm"].load()()
    except MissingPackage as error:
        if name is not None:
            raise
        print(f"encoder: trigram, which matches spelling and not meaning ({error})", file=sys.stderr)
        return TrigramEncoder()
    return encoder
