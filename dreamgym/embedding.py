"""Text encoders: the protocol, and the built-in encoder that needs no model.

Vectors have unit length, so that a dot product is the cosine.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Protocol

from dreamgym.errors import MissingPackage, UnknownName
from dreamgym.plugins import plugins

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
        """Changes whenever the same text would give another vector. Vectors of two fingerprints are never mixed."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Embed texts; shape (len(texts), dim), rows of unit length. Blocking: call it in a thread."""


def trigram_cosine(a: str, b: str) -> float:
    """Cosine of the two sets of character trigrams, in [0, 1]; two empty sets are equal."""
    return trigram_cosines(a, [b])[0]


def trigram_cosines(asked: str, texts: Sequence[str]) -> list[float]:
    """Cosine of the set of character trigrams of one text with that of each of the others, see `trigram_cosine`."""
    import numpy as np

    sought, found = _trigrams.of(asked), [_trigrams.of(text) for text in texts]
    numbers = np.concatenate([*found, sought[:0]])
    place = np.searchsorted(sought, numbers)
    place[place == len(sought)] = 0
    is_shared = sought[place] == numbers if len(sought) else np.zeros(len(numbers), dtype=bool)
    before = [0, *np.cumsum(is_shared).tolist()]
    ends = list(accumulate(map(len, found), initial=0))
    return [
        (before[end] - before[start]) / math.sqrt(len(sought) * (end - start))
        if len(sought) and end > start
        else float(len(sought) == end - start)
        for start, end in pairwise(ends)
    ]


REMEMBERED_CHARACTERS = 8_000_000
"""Length of all texts whose trigrams are kept: 64 MB."""


class _Trigrams:
    """The distinct trigrams of texts, as numbers. Kept, because queries are compared with the same recorded texts."""

    def __init__(self) -> None:
        self._known: dict[str, NDArray[np.int64]] = {}
        self._characters = 0

    def of(self, text: str) -> NDArray[np.int64]:
        """The trigrams of a text in order of their numbers."""
        import numpy as np

        if (known := self._known.get(text)) is not None:
            return known
        codes = np.frombuffer(_padded(text).encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(np.int64)
        numbers = np.unique((codes[:-2] << 42) | (codes[1:-1] << 21) | codes[2:])
        if self._characters + len(text) > REMEMBERED_CHARACTERS:
            self._known, self._characters = {}, 0
        self._known[text] = numbers
        self._characters += len(text)
        return numbers


_trigrams = _Trigrams()


class TrigramEncoder:
    """Hashed character trigrams: deterministic, fast, no model. For tests, and if no other encoder is installed."""

    name = "trigram"

    def __init__(self, dim: int = 256) -> None:
        self.dim = dim
        self.fingerprint = f"trigram-blake2b-{dim}"

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Normalised counts of signed, hashed trigrams. A text without a trigram becomes the first unit vector."""
        import numpy as np

        vectors = np.empty((len(texts), self.dim), dtype=np.float32)
        row = 0
        for batch in _batches([_padded(text) for text in texts]):
            vectors[row : row + len(batch)] = self._counts(batch)
            row += len(batch)
        vectors[~vectors.any(axis=1), 0] = 1.0
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def _counts(self, padded: Sequence[str]) -> NDArray[np.float32]:
        """Signed counts of the trigrams of each text, shape (len(padded), dim). Each trigram is hashed once."""
        import numpy as np

        ends = np.cumsum([len(text) for text in padded])
        codes = np.frombuffer("".join(padded).encode("utf-32-le"), dtype=np.uint32)
        letters, spelled = _numbered(codes)
        starts = np.ones(max(0, len(codes) - 2), dtype=bool)
        for overlap in (1, 2):  # a trigram that begins so close before the end of a text reaches into the next one
            inside = ends[ends >= overlap] - overlap
            starts[inside[inside < len(starts)]] = False
        spelled = spelled.astype(np.int64)
        grams = (spelled[:-2] * len(letters) + spelled[1:-1]) * len(letters) + spelled[2:]
        distinct, gram = _numbered(grams[starts])
        slots = np.empty((len(distinct), 2), dtype=np.int64)
        alphabet = [chr(letter) for letter in letters]
        for number, code in enumerate(distinct.tolist()):
            first, rest = divmod(code, len(letters) ** 2)
            second, third = divmod(rest, len(letters))
            slots[number] = _slot(alphabet[first] + alphabet[second] + alphabet[third], self.dim)
        text_of = np.repeat(np.arange(len(padded)), np.diff(ends, prepend=0))[: len(starts)][starts]
        cells = text_of * self.dim + slots[gram, 0]
        counts = np.bincount(cells, weights=slots[gram, 1], minlength=len(padded) * self.dim)
        return counts.reshape(len(padded), self.dim).astype(np.float32)


BATCH_CHARACTERS = 1_000_000
"""How many characters are hashed at once: some 50 MB of working memory."""
TABLE = 2**22
"""Values below this are numbered with a lookup table, larger ones by sorting, which takes ten times as long."""


def _padded(text: str) -> str:
    return f" {' '.join(text.lower().split())} "


def _batches(padded: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts in order, in batches of BATCH_CHARACTERS or of one longer text."""
    ends = list(accumulate(map(len, padded), initial=0))
    first = 0
    while first < len(padded):
        last = bisect_right(ends, ends[first] + BATCH_CHARACTERS) - 1
        yield padded[first : max(last, first + 1)]
        first = max(last, first + 1)


def _numbered(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The distinct values in order, and for each value its place among them."""
    import numpy as np

    if not len(values) or values.max() >= TABLE:
        return np.unique(values, return_inverse=True)
    table = np.zeros(int(values.max()) + 1, dtype=np.int32)
    table[values] = 1
    distinct = np.flatnonzero(table)
    table[distinct] = np.arange(len(distinct), dtype=np.int32)
    return distinct, table[values]


@lru_cache(maxsize=2**16)
def _slot(gram: str, dim: int) -> tuple[int, int]:
    """The place of a trigram in a vector, and its sign."""
    digest = hashlib.blake2b(gram.encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "big") % dim, 1 if digest[4] & 1 else -1


def load_encoder(name: str | None = None) -> Encoder:
    """The encoder of this name; without a name, the one in the environment variable DREAMGYM_ENCODER.

    If neither is given: `minilm` if its packages are installed, else `trigram` with a line on stderr.

    Raises:
        UnknownName: no encoder is registered under this name; the message lists the registered ones.
        MissingPackage: the encoder needs a package that is not installed.
    """
    found = plugins("dreamgym.encoders")
    name = name or os.environ.get("DREAMGYM_ENCODER") or None
    if name is not None and name not in found:
        raise UnknownName("encoder", name, found)
    try:
        encoder: Encoder = found[name or "minilm"].load()()
    except MissingPackage as error:
        if name is not None:
            raise
        print(f"encoder: using trigram, which compares spelling instead of meaning ({error})", file=sys.stderr)
        return TrigramEncoder()
    return encoder
