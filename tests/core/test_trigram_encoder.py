"""Texts embedded together get the vectors that each gets alone, by the definition of a hashed trigram."""

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym import embedding
from dreamgym.embedding import TrigramEncoder, trigram_cosines

TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=12)


def trigrams(text: str) -> list[str]:
    padded = f" {' '.join(text.lower().split())} "
    return [padded[i : i + 3] for i in range(len(padded) - 2)]


def by_definition(text: str, dim: int) -> bytes:
    vector = np.zeros((1, dim), dtype=np.float32)
    for gram in trigrams(text):
        digest = hashlib.blake2b(gram.encode(), digest_size=8).digest()
        vector[0, int.from_bytes(digest[:4], "big") % dim] += 1.0 if digest[4] & 1 else -1.0
    if not vector.any():
        vector[0, 0] = 1.0
    vector /= np.linalg.norm(vector, axis=1, keepdims=True)
    return vector.tobytes()


@given(TEXTS, st.sampled_from([1, 7, 256]))
def test_texts_embedded_together_get_the_vectors_that_each_gets_alone(texts: list[str], dim: int) -> None:
    vectors = TrigramEncoder(dim).encode(texts)
    assert [row.tobytes() for row in vectors] == [by_definition(text, dim) for text in texts]


@given(st.text(max_size=40), TEXTS, st.integers(0, 60))
def test_the_trigram_cosine_of_many_texts_is_that_of_their_sets(asked: str, texts: list[str], kept: int) -> None:
    def cosine(text: str) -> float:
        one, other = set(trigrams(asked)), set(trigrams(text))
        if not one or not other:
            return float(one == other)
        return len(one & other) / math.sqrt(len(one) * len(other))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedding, "REMEMBERED_CHARACTERS", kept)
        assert trigram_cosines(asked, [*texts, asked]) == [cosine(text) for text in [*texts, asked]]


@given(TEXTS, st.integers(1, 50))
def test_the_size_of_the_working_memory_changes_no_vector(texts: list[str], characters: int) -> None:
    whole = TrigramEncoder(16).encode(texts).tobytes()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedding, "BATCH_CHARACTERS", characters)
        patched.setattr(embedding, "TABLE", 1)
        assert TrigramEncoder(16).encode(texts).tobytes() == whole
