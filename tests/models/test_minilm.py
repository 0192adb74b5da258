import numpy as np
import pytest
from dreamgym_integrations.models.minilm import MAX_TOKENS, MiniLMEncoder


@pytest.fixture(scope="module")
def encoder() -> MiniLMEncoder:
    return MiniLMEncoder()


def test_texts_that_mean_the_same_are_nearer_than_texts_that_share_words(encoder: MiniLMEncoder) -> None:
    asked, paraphrase, lookalike = encoder.encode(
        ["The door of the kitchen is shut.", "The kitchen door is closed.", "The price of the kitchen is high."]
    )
    assert asked @ paraphrase > asked @ lookalike + 0.2
    assert asked @ paraphrase > 0.8


def test_every_vector_has_unit_length_and_the_announced_dimension(encoder: MiniLMEncoder) -> None:
    vectors = encoder.encode(["", "a", "kitchen north", "word " * 1000, "日本語 🙂"])
    assert vectors.shape == (5, encoder.dim)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_text_has_nearly_the_same_vector_in_any_batch(encoder: MiniLMEncoder) -> None:
    texts = [f"{'long ' * (number % 40)}text number {number}" for number in range(70)]
    together = encoder.encode(texts)
    alone = np.concatenate([encoder.encode([text]) for text in texts])
    assert (together * alone).sum(axis=1).min() > 0.99  # int8 activations are scaled per batch


def test_a_text_beyond_the_limit_is_cut_there(encoder: MiniLMEncoder) -> None:
    limit = MAX_TOKENS - 2  # one token at each end is special
    exact, longer = encoder.encode(["word " * limit]), encoder.encode(["word " * limit + "other things entirely"])
    np.testing.assert_array_equal(exact, longer)


def test_an_empty_list_gives_no_rows(encoder: MiniLMEncoder) -> None:
    assert encoder.encode([]).shape == (0, encoder.dim)
