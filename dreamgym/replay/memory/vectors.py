"""The vectors of stored keys, searched exactly.

A key's vector is the vector of its state followed by that of its action. Many keys share a state or an action, so a
search compares each distinct one once and adds the two up for every key. In recorded play of ALFWorld this reads a
quarter of what a search of whole keys reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from dreamgym.replay.keys import Key

if TYPE_CHECKING:  # numpy takes a tenth of a second to import
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Half:
    """The distinct states, or the distinct actions, of some keys."""

    rows: dict[str, int]
    """Text to its row in `vectors`."""
    vectors: NDArray[np.float32]
    """Shape (texts, dim / 2)."""
    row_of: NDArray[np.intp]
    """The row of each key's text, shape (keys,)."""

    @classmethod
    def of(cls, texts: Sequence[str], vectors: NDArray[np.float16]) -> Self:
        """The texts of some keys, and the vector of each, shape (keys, dim / 2)."""
        import numpy as np

        last = {text: row for row, text in enumerate(texts)}  # a text has the same vector wherever it stands
        rows = {text: row for row, text in enumerate(last)}
        row_of = np.array([rows[text] for text in texts], dtype=np.intp)
        return cls(rows, vectors[[*last.values()]].astype(np.float32), row_of)

    def extended(self, other: Half) -> Half:
        """These texts and, after them, those of further keys."""
        import numpy as np

        fresh = [text for text in other.rows if text not in self.rows]
        rows = self.rows | {text: row for row, text in enumerate(fresh, start=len(self.rows))}
        vectors = np.concatenate([self.vectors, other.vectors[[other.rows[text] for text in fresh]]])
        row_in_these = np.array([rows[text] for text in other.rows], dtype=np.intp)
        return Half(rows, vectors, np.concatenate([self.row_of, row_in_these[other.row_of]]))

    def products(self, vector: NDArray[np.float32]) -> NDArray[np.float32]:
        """Dot product of each key's part with a vector, shape (keys,)."""
        products: NDArray[np.float32] = (self.vectors @ vector)[self.row_of]
        return products


@dataclass(frozen=True)
class KeyVectors:
    """Keys with their vectors."""

    keys: list[Key]
    states: Half
    actions: Half
    lengths: NDArray[np.float32]
    """Length of each key's vector, shape (keys,)."""

    @classmethod
    def of(cls, keys: Sequence[Key], vectors: NDArray[np.float16]) -> Self:
        """Some keys with their vectors, shape (keys, dim), as `KeyEncoder` gives them."""
        half = vectors.shape[1] // 2
        states = Half.of([state for state, _ in keys], vectors[:, :half])
        actions = Half.of([action for _, action in keys], vectors[:, half:])
        return cls([*keys], states, actions, lengths(vectors))

    def extended(self, other: KeyVectors) -> KeyVectors:
        """These keys and, after them, further ones."""
        import numpy as np

        return KeyVectors(
            [*self.keys, *other.keys],
            self.states.extended(other.states),
            self.actions.extended(other.actions),
            np.concatenate([self.lengths, other.lengths]),
        )

    def cosines(self, vector: NDArray[np.float16]) -> NDArray[np.float32]:
        """Cosine of each key's vector with one of shape (dim,); result of shape (keys,)."""
        import numpy as np

        exact, half = vector.astype(np.float32), len(vector) // 2
        products = self.states.products(exact[:half]) + self.actions.products(exact[half:])
        cosines: NDArray[np.float32] = products / (self.lengths * lengths(vector))
        return cosines


def lengths(vectors: NDArray[np.float16]) -> NDArray[np.float32]:
    """Lengths of vectors, shape (..., dim), but never 0; result of shape (...)."""
    import numpy as np

    found: NDArray[np.float32] = np.maximum(np.linalg.norm(vectors.astype(np.float32), axis=-1), 1e-12)
    return found
