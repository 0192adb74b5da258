"""A model that was fitted to the recordings of one environment: the file that describes it, and how it is asked.

It is asked in the form in which it was trained, with as many transitions, and without the parts that its training
lacked. It is not a judge: it has only ever seen transitions.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import ExperienceModel, Part, Prediction, Query
from dreamgym.environment import first_reason
from dreamgym.errors import InvalidInput
from dreamgym.llm import LLM
from dreamgym.types import Frozen

FILE = "dreamgym.json"
"""Name of the file beside the weights that describes the training."""


class Fitting(Frozen):
    """The file that `dreamgym fit` writes beside a model: how it was trained."""

    env: str
    form: Literal["fitted"] = "fitted"
    demonstrations: int
    """How many recorded transitions it was shown with each row."""
    without: tuple[Part, ...] = ()
    """Parts of the method that its training rows lacked."""
    base: str
    tokenizer: str
    """sha256 of its tokenizer.json: with another one, its weights mean nothing."""
    seed: int
    rows: int
    longest_answer: int = 0
    """Tokens of the longest answer that it learned; 0: not known."""
    steps: int
    learned: tuple[str, ...]
    """Ids of the trajectories that it was fitted to."""
    versions: dict[str, str]


def read_fitting(folder: Path) -> Fitting | None:
    """Read `dreamgym.json` in a checkpoint folder; None if there is none because another program trained the model.

    Raises:
        InvalidInput: the file is damaged, or the tokenizer is not the one that the model was fitted with.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    try:
        fitting = Fitting.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError) as error:
        raise InvalidInput(f"{file}: {first_reason(error)}") from error
    if tokenizer_digest(folder) != fitting.tokenizer:
        raise InvalidInput(
            f"{folder}: tokenizer.json is not the one that this model was fitted with: "
            "take the whole folder as `dreamgym fit` wrote it"
        )
    return fitting


def tokenizer_digest(folder: Path) -> str:
    """Digest of a folder's tokenizer; empty if it has none."""
    file = folder / "tokenizer.json"
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""


class FittedModel:
    """An experience model made by `dreamgym fit`.

    Args:
        llm: the checkpoint, which is closed together with this model.
        fitting: the description in its folder.
    """

    learns_from_dreams = False

    def __init__(self, llm: LLM, fitting: Fitting) -> None:
        self._model = LanguageModel(llm, fitting.demonstrations)
        # CHECKS here means judging, which it cannot do, and the check against the state, which the dream makes too
        self._without = frozenset(fitting.without) | {Part.CHECKS}
        self.env = fitting.env
        self.demonstrations = fitting.demonstrations

    @property
    def name(self) -> str:
        return self._model.name

    async def predict(self, query: Query) -> Prediction:
        """Predict the step. Raises PredictionError, and InvalidInput for another environment than its own."""
        check_environment(self, query.spec.name)
        return await self._model.predict(query.model_copy(update={"without": query.without | self._without}))

    async def close(self) -> None:
        await self._model.close()


def check_environment(model: ExperienceModel, env: str) -> None:
    """Refuse a model that was fitted to another environment. Raises InvalidInput."""
    if isinstance(model, FittedModel) and model.env != env:
        raise InvalidInput(
            f"model {model.name!r} was fitted to environment {model.env!r} and knows nothing of {env!r}: "
            f"fit one with `dreamgym fit {env}`"
        )
