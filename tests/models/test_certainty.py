"""The probabilities that a model gave to its answer, computed from its logits step by step."""

import math
from collections.abc import Sequence

import pytest
import torch
from dreamgym_integrations.models.certainty import Certainty

PIECES = ["{", "}", '"error":', "true", "false", ',"success":', '"a":', '"true"', "[", "]", ",", ':"x","done":true']
OTHER = [*PIECES, ':"x","done":false']


class Pieces:
    """A tokenizer whose tokens are the texts in `OTHER`."""

    def get_vocab(self) -> dict[str, int]:
        return {piece: number for number, piece in enumerate(OTHER)}

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool) -> str:
        return "".join(OTHER[token] for token in tokens)


def watched(*answer: tuple[str, dict[str, float]]) -> tuple[Certainty, list[int]]:
    """Watch an answer: each chosen piece has the logit 2, the pieces beside it the given logits, all others 0."""
    watching = Certainty(Pieces())
    tokens = []
    for piece, beside in answer:
        logits = torch.zeros(1, len(OTHER))
        for other, logit in {piece: 2.0, **beside}.items():
            logits[0, OTHER.index(other)] = logit
        watching.watch({0: 0}, logits)
        tokens.append(OTHER.index(piece))
    return watching, tokens


def sure(piece: str) -> tuple[str, dict[str, float]]:
    return piece, {}


def test_a_truth_value_has_the_probability_of_true_against_false() -> None:
    watching, tokens = watched(
        sure("{"), sure('"error":'), ("false", {"true": 1.0}), sure(',"success":'), ("true", {"false": 0.5}), sure("}")
    )
    found = watching.probabilities(0, tokens)
    assert found["error"] == pytest.approx(1 / (1 + math.e), abs=1e-4)
    assert found["success"] == pytest.approx(1 / (1 + math.exp(-1.5)), abs=1e-4)


def test_a_token_that_holds_more_than_the_value_is_compared_with_its_counterpart() -> None:
    watching, tokens = watched(
        sure("{"), sure('"a":'), sure("true"), sure(","), sure('"true"'), (OTHER[-1], {OTHER[-2]: 2.0}), sure("}")
    )
    found = watching.probabilities(0, tokens)
    assert found["done"] == pytest.approx(0.5)


def test_truth_values_nested_in_a_value_do_not_count() -> None:
    watching, tokens = watched(sure("{"), sure('"a":'), sure("{"), sure('"error":'), sure("true"), sure("}"), sure("}"))
    assert watching.probabilities(0, tokens).keys() == {"tokens"}


def test_the_tokens_have_the_geometric_mean_of_their_probabilities() -> None:
    watching, tokens = watched(sure("{"), ("}", {"{": 2.0}))
    alone = math.exp(2) / (math.exp(2) + len(OTHER) - 1)
    tied = math.exp(2) / (2 * math.exp(2) + len(OTHER) - 2)
    assert watching.probabilities(0, tokens) == {"tokens": pytest.approx(math.sqrt(alone * tied), abs=1e-4)}
    assert watching.probabilities(0, []) == {}
