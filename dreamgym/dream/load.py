"""Turns the string `--model` into an experience model or a language model.

    nearest                             no LLM: the nearest recorded transition, the action's arguments substituted
    local, local:1.5b, file.gguf        a small model in this process
    a checkpoint folder                 a transformers model in this process; one of `dreamgym fit` is asked as trained
    http://host:port/v1[#model]         any OpenAI-compatible server
    openai/x, hosted_vllm/x, ollama/x, lm_studio/x, openrouter/x, or a bare name such as gpt-4.1
    provider/model                      any other provider, through litellm
    plugin:NAME                         an entry point of the group `dreamgym.models`

Nothing heavy is imported, and no model is loaded, before the first prediction asks for it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from dreamgym.budget import metered
from dreamgym.dream.fitted import FittedModel, Fitting, check_environment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import ExperienceModel
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.questions import CachedLLM, Predictions, weights_fingerprint
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.llm import LLM
from dreamgym.plugins import plugins
from dreamgym.prices import OPENAI_PROVIDERS

Loader = Callable[[str], LLM]
"""Type of an entry point of `dreamgym.models`; called with the part of `--model` after its name."""

FORMS = (
    "nearest",
    "local",
    "local:1.5b",
    "FILE.gguf",
    "CHECKPOINT-FOLDER",
    "http://HOST:PORT/v1[#MODEL]",
    *(f"{provider}/MODEL" for provider in sorted(OPENAI_PROVIDERS)),
    "PROVIDER/MODEL (litellm)",
)


def load_model(model: str | None, *, env: str | None = None, predictions: Predictions | None = None) -> ExperienceModel:
    """The experience model that the string names; without a string, `local` if it is installed, else `nearest`.

    Args:
        model: as in `--model`, without `without PARTS` and `-k N`, which DreamEnvironment takes.
        env: the environment that it will be asked about, if that is known.
        predictions: store of its answers; None: they are not kept.

    Raises:
        InvalidInput: the string names no model or more than a model, its package or file is missing, it was fitted to
            another environment, or the budget limits money and the model's price is not known.
    """
    if model is not None and (" without " in model or " -k " in model):
        raise InvalidInput(
            f"expected the name of a model, got {model!r}: give the parts to leave out as `without`, and the number of "
            "shown transitions as `k`, to DreamEnvironment"
        )
    if model == NearestModel.name:
        return NearestModel()
    if model is not None:
        llm = _load(model)
        fitting = _fitting(llm)
        llm = _asked_once(llm, model, predictions)
        if fitting is None:
            return LanguageModel(llm)
        fitted = FittedModel(llm, fitting)
        check_environment(fitted, env or fitting.env)
        return fitted
    try:
        llm = _load("local")
    except InvalidInput as error:
        print(
            "model: nearest, which only repeats recorded transitions, and a success only for a task with the same "
            f"goal; for a model that can answer something new, give --model http://HOST:PORT/v1 ({error})",
            file=sys.stderr,
        )
        return NearestModel()
    print(
        f"model: {llm.name}, which is good for trying things out, but too small to simulate an environment for "
        "training; --model nearest is the baseline, --model http://HOST:PORT/v1 a better simulator",
        file=sys.stderr,
    )
    return LanguageModel(_asked_once(llm, model, predictions))


def load_llm(model: str | None, *, predictions: Predictions | None = None) -> LLM | None:
    """The language model that the string names; None for `nearest`, also if that is the default.

    None also for a model made by `dreamgym fit`: it has learned to answer only steps.

    Args:
        model: as in `--model`.
        predictions: store of its answers; None: they are not kept.

    Raises:
        InvalidInput: the string names no model, or its package or file is missing.
    """
    if model == NearestModel.name:
        return None
    if model is not None:
        llm = _load(model)
        return None if _fitting(llm) else _asked_once(llm, model, predictions)
    try:
        return _asked_once(_load("local"), model, predictions)
    except InvalidInput:
        return None


def _asked_once(llm: LLM, model: str | None, predictions: Predictions | None) -> LLM:
    """The model with its calls counted in the run's ledger and, given a store, with each question asked only once."""
    llm = metered(llm, model or "local")
    return llm if predictions is None else CachedLLM(llm, predictions, weights_fingerprint(model))


def _fitting(llm: LLM) -> Fitting | None:
    fitting = getattr(llm, "fitting", None)
    return fitting if isinstance(fitting, Fitting) else None


def _load(model: str) -> LLM:
    plugin, _, own = model.partition(":")
    if model.startswith(("http://", "https://")) or model.partition("/")[0] in OPENAI_PROVIDERS:
        return _loader("openai")(model)
    if plugin in plugins("dreamgym.models"):
        return _loader(plugin)(own)
    path = Path(model).expanduser()
    if model.endswith(".gguf") and path.is_file():
        return _loader("local")(str(path))
    if model and path.is_dir():
        return _loader("checkpoint")(str(path))
    if model.endswith(".gguf") or model.startswith((".", "/", "~")):
        raise InvalidInput(f"model {model!r}: there is no such file or folder")
    if "/" in model:
        return _loader("litellm")(model)
    if model and (os.environ.get("OPENAI_API_KEY") or os.environ.get("OPENAI_BASE_URL")):
        return _loader("openai")(model)
    hint = "A name without a prefix is an OpenAI model and needs OPENAI_API_KEY"
    raise UnknownName("model", model, [*FORMS, *(f"{name}:NAME" for name in plugins("dreamgym.models"))], hint)


def _loader(name: str) -> Loader:
    found = plugins("dreamgym.models")
    if name not in found:
        raise UnknownName("model backend", name, found)
    loader: Loader = found[name].load()
    return loader
