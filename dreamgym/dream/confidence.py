"""Confidence of a prediction: features of its surroundings, and a calibration of these features on held-out calls.

The features mean nothing by themselves. `dreamgym fidelity` predicts held-out calls and records which answers were
right; a logistic regression on these results turns the features into a probability.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, FiniteFloat, ValidationError

from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import trigram_cosine
from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.files import write_whole
from dreamgym.replay.ranking import EXACT_SCORE
from dreamgym.types import Frozen

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

TOKENS = "tokens"
"""Key of the mean token probability in `Prediction.probabilities`; every other key is a flag of the answer."""

RIDGE = 1.0
"""Strength of the L2 penalty: half of it times the squared weights is added to the loss."""
NEWTON_STEPS = 100
FOLDS = 5

FEATURES = (
    "nearest",
    "has_nearest",
    "exact",
    "same_call",
    "has_same_call",
    "same_tool",
    "flags",
    "has_flags",
    "tokens",
    "has_tokens",
)
"""Names of the features, all between 0 and 1. `has_X` is 1 if the feature X is known; otherwise both are 0."""


def features(query: Query, prediction: Prediction) -> tuple[float, ...]:
    """The features of one prediction, in the order of FEATURES.

    `query` contains all retrieved transitions, not only those that the model was shown. `nearest` is the score of the
    nearest recorded call of the tool; `exact` is 1 if the same state and action were recorded. `same_call` is the mean
    similarity of the answer to the recorded answers of the same call, `same_tool` the similarity to the most similar
    answer of the tool. `flags` is the model's probability of its least sure flag, `tokens` its mean token probability.
    """
    same_tool = [shown for shown in query.demonstrations if shown.transition.action.name == query.action.name]
    call = query.action.canonical()
    same_call = [shown for shown in same_tool if shown.transition.action.canonical() == call]
    likeness = {
        shown.id: trigram_cosine(shown.transition.result.observation, prediction.observation)
        if shown.transition.result.is_error == prediction.is_error
        else 0.0
        for shown in same_tool
    }
    flags = [max(p, 1 - p) for name, p in prediction.probabilities.items() if name != TOKENS]
    tokens = prediction.probabilities.get(TOKENS)
    return (
        max((max(0.0, shown.score) / EXACT_SCORE for shown in same_tool), default=0.0),
        float(bool(same_tool)),
        float(any(shown.exact for shown in same_tool)),
        sum(likeness[shown.id] for shown in same_call) / len(same_call) if same_call else 0.0,
        float(bool(same_call)),
        max(likeness.values(), default=0.0),
        min(flags, default=0.0),
        float(bool(flags)),
        tokens or 0.0,
        float(tokens is not None),
    )


class Calibration(Frozen):
    """Weights that turn the features of one model's predictions in one environment into a probability."""

    model: str
    env: str
    weights: tuple[FiniteFloat, ...] = Field(min_length=len(FEATURES), max_length=len(FEATURES))
    """One per feature, in their order."""
    bias: FiniteFloat
    n: int = Field(ge=1)
    """Number of held-out predictions that it was fitted on."""
    brier: float = Field(ge=0, le=1)
    """Mean squared error of the probabilities, each given by a fit that had not seen its prediction."""
    auroc: float | None = Field(default=None, ge=0, le=1)
    """How often a right answer had a higher probability than a wrong one; None if all were right, or all wrong."""

    def confidence(self, numbers: Sequence[float]) -> float:
        """The probability that a prediction with these features is right."""
        return _logistic(self.bias + sum(w * x for w, x in zip(self.weights, numbers, strict=True)))

    def save(self, path: Path) -> None:
        """Write a JSON file, whole or not at all."""
        write_whole(path, self.model_dump_json(indent=2) + "\n")

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Read a file that `save` wrote. Raises InvalidInput."""
        try:
            return cls.model_validate_json(path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"{path}: cannot be read: {error}") from error
        except ValidationError as error:
            raise InvalidInput(f"{path}: not a calibration: {first_reason(error)}; {_how_to_get_one('ENV')}") from error


def check_calibration(calibration: Calibration | None, min_confidence: float, *, model: str, env: str) -> None:
    """Refuse a calibration of another model or environment, and a minimum confidence without a calibration.

    Raises:
        InvalidInput: one of these, or `min_confidence` is not a probability.
    """
    if not 0 <= min_confidence <= 1:
        raise InvalidInput(f"min_confidence must be a probability, got {min_confidence:g}")
    if calibration is None:
        if min_confidence > 0:
            raise InvalidInput(f"min_confidence needs a calibration of {model!r}: {_how_to_get_one(env)}")
        return
    if (calibration.model, calibration.env) != (model, env):
        raise InvalidInput(
            f"the calibration belongs to model {calibration.model!r} in {calibration.env!r}, but was given for "
            f"{model!r} in {env!r}: {_how_to_get_one(env)}"
        )


def calibrate(rows: Sequence[tuple[Sequence[float], bool]], *, model: str, env: str) -> Calibration:
    """Fit on the features of held-out predictions and whether each was right. The same rows give the same bytes.

    L2-regularised logistic regression. One right and one wrong answer with the mean features are added, as in Laplace's
    rule, so that a few answers that were all right do not give certainty.

    Raises:
        InvalidInput: there are no rows, or a row has the wrong number of features.
    """
    import numpy as np

    if not rows:
        raise InvalidInput(f"no held-out predictions of {model!r} in {env!r}: nothing can be calibrated")
    if any(len(numbers) != len(FEATURES) for numbers, _ in rows):
        raise InvalidInput(f"expected {len(FEATURES)} features a row: {', '.join(FEATURES)}")
    features_NF = np.array([numbers for numbers, _ in rows], dtype=np.float64)
    right_N = np.array([is_right for _, is_right in rows], dtype=np.float64)
    fold_N = np.arange(len(rows)) % FOLDS
    given_N = np.empty(len(rows))
    for fold in range(min(FOLDS, len(rows))):
        held = fold_N == fold
        # with a single row nothing is left to fit on: the two added answers alone then give 1/2
        weights, bias = _fitted(features_NF[~held], right_N[~held])
        given_N[held] = [_logistic(bias + float(x @ weights)) for x in features_NF[held]]
    weights, bias = _fitted(features_NF, right_N)
    return Calibration(
        model=model,
        env=env,
        weights=tuple(float(w) for w in weights),
        bias=bias,
        n=len(rows),
        brier=float(np.mean((given_N - right_N) ** 2)),
        auroc=auroc(given_N, right_N),
    )


def _fitted(features_NF: NDArray[np.float64], right_N: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Weights and bias by Newton's method with step halving; the bias is not penalised."""
    import numpy as np

    middle = features_NF.mean(axis=0) if len(features_NF) else np.zeros(features_NF.shape[1])
    x = np.column_stack([np.vstack([features_NF, middle, middle]), np.ones(len(features_NF) + 2)])
    y = np.concatenate([right_N, [1.0, 0.0]])
    penalty = np.full(x.shape[1], RIDGE)
    penalty[-1] = 0.0

    def loss(beta: NDArray[np.float64]) -> float:
        z = x @ beta
        return float(np.sum(np.logaddexp(0.0, z) - y * z) + 0.5 * np.sum(penalty * beta * beta))

    beta = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-(x @ beta)))
        gradient = x.T @ (p - y) + penalty * beta
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.diag(penalty)
        step = np.linalg.solve(hessian, gradient)
        size = 1.0
        while size > 1e-8 and loss(beta - size * step) > loss(beta):
            size /= 2
        beta = beta - size * step
        if float(np.max(np.abs(size * step))) < 1e-10:
            break
    return beta[:-1], float(beta[-1])


def auroc(given_N: ArrayLike, right_N: ArrayLike) -> float | None:
    """Share of pairs of a right and a wrong answer in which the right one scores higher; ties count half."""
    import numpy as np

    given, is_right = np.asarray(given_N, float), np.asarray(right_N, bool)
    right, wrong = given[is_right], given[~is_right]
    if not len(right) or not len(wrong):
        return None
    wrong.sort()
    below, at_most = np.searchsorted(wrong, right, "left"), np.searchsorted(wrong, right, "right")
    return float(np.mean((below + at_most) / 2) / len(wrong))


def _logistic(z: float) -> float:
    return 1 / (1 + math.exp(-z)) if z >= 0 else math.exp(z) / (1 + math.exp(z))


def _how_to_get_one(env: str) -> str:
    return f"`dreamgym fidelity {env} --model M --out DIR` writes DIR/calibration.json"
