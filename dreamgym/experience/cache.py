"""Predictions that are remembered: what was asked before is answered as before, whoever asks.

The address of a prediction is made of all that it depends on, so nothing ever has to be thrown away: another model,
another recording shown, another seed, another edition of the prompts is another question. How the history's answers
came about is no part of it, or an episode that is played again would leave the remembered one at its second step.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.model import ExperienceModel, Judge, Part, Prediction, Query, Verdict
from dreamgym.replay.keys import check_storable
from dreamgym.replay.predictions import Predictions
from dreamgym.types import JsonObject, Task, Tier, Transition

READ = {".py", ".txt", ".sql"}
"""Kinds of files that are code."""
SPEC = {"name", "description", "rules", "tools_list", "state"}
"""Of a spec, what a prediction may depend on."""


def remembering(model: ExperienceModel, predictions: Predictions, weights: str = "") -> Remembering:
    """The model with a memory; a judge remains one."""
    kind = RememberingJudge if isinstance(model, Judge) else Remembering
    return kind(model, predictions, weights)


def fingerprint(model: ExperienceModel) -> str:
    """What a model itself says to be told apart from others of its name."""
    return str(getattr(model, "fingerprint", ""))


def weights_fingerprint(model: str | None) -> str:
    """What tells apart models in files of the same name, by the string `--model`; empty where it names no file.

    A folder that is trained into once more is another model. By size and time, because weights are large.
    """
    path = Path(model or "")
    files = sorted(path.rglob("*")) if model and path.is_dir() else [path] if path.is_file() else []
    stats = [(str(file.relative_to(path)), file.stat()) for file in files if file.is_file()]
    if not stats:
        return ""
    told = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
    return hashlib.sha256(told.encode()).hexdigest()


class Remembering:
    """An experience model that asks another one, and each question only once.

    Two identical questions at the same time share one prediction. One that failed is not remembered.

    Args:
        model: is asked what is not known; closed together with this one.
        predictions: where answers are remembered.
        weights: tells apart models of the same name, as the model's own attribute `fingerprint` does.
    """

    def __init__(self, model: ExperienceModel, predictions: Predictions, weights: str = "") -> None:
        self._model = model
        self._predictions = predictions
        self._asking: dict[bytes, asyncio.Task[str]] = {}
        self._identity = f"{model.name}\n{weights}\n{fingerprint(model)}"

    @property
    def name(self) -> str:
        """The model's."""
        return self._model.name

    @property
    def demonstrations(self) -> int:
        """The model's."""
        return self._model.demonstrations

    @property
    def learns_from_dreams(self) -> bool:
        """The model's."""
        return self._model.learns_from_dreams

    async def predict(self, query: Query) -> Prediction:
        """The remembered prediction, of the tier `cache` and without tokens, or the model's. Raises PredictionError."""
        if Part.CACHE in query.without:
            return await self._model.predict(query)
        own: list[Prediction] = []

        async def ask() -> str:
            prediction = await self._model.predict(query)
            own.append(prediction)
            return check_storable(prediction, "prediction")

        text = await self._remembered(_address("predict", self._identity, _question(query)), ask)
        if own and own[0].model_dump_json() == text:
            return own[0]
        known = Prediction.model_validate_json(text)
        free = {"tier": Tier.CACHE, "prompt_tokens": 0, "completion_tokens": 0}
        return known.model_copy(update={"provenance": known.provenance.model_copy(update=free)})

    async def close(self) -> None:
        """Release the model; nobody waits for what is still asked."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._model.close()

    async def _remembered(self, address: bytes, ask: Callable[[], Awaitable[str]]) -> str:
        task = self._asking.get(address)
        if task is None:
            task = self._asking[address] = asyncio.create_task(self._found_or_asked(address, ask))
            task.add_done_callback(lambda done: self._answered(address, done))
        return await asyncio.shield(task)  # who leaves does not take the answer from the others

    def _answered(self, address: bytes, done: asyncio.Task[str]) -> None:
        del self._asking[address]
        if not done.cancelled():
            done.exception()  # whoever waited has it; if nobody did, it is no news

    async def _found_or_asked(self, address: bytes, ask: Callable[[], Awaitable[str]]) -> str:
        known = await self._predictions.get(address)
        return known if known is not None else await self._predictions.put(address, await ask())


class RememberingJudge(Remembering):
    """The same of a model that is a judge: its verdicts are remembered as well."""

    async def judge_step(self, query: Query, prediction: Prediction) -> Verdict:
        """The remembered verdict, which costs no tokens, or the model's. Raises PredictionError."""
        model = self._model
        assert isinstance(model, Judge)
        if Part.CACHE in query.without:
            return await model.judge_step(query, prediction)
        own: list[Verdict] = []

        async def ask() -> str:
            own.append(await model.judge_step(query, prediction))
            return own[0].model_dump_json()

        predicted = prediction.model_dump(mode="json", exclude={"provenance", "probabilities"})
        question: JsonValue = [_question(query), predicted]
        verdict = Verdict.model_validate_json(
            await self._remembered(_address("judge step", self._identity, question), ask)
        )
        return own[0] if own else Verdict(accomplished=verdict.accomplished)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        """The remembered verdict, or the model's. Raises PredictionError."""
        model = self._model
        assert isinstance(model, Judge)

        async def ask() -> str:
            return json.dumps(await model.judge(spec, task, history, answer, seed=seed))

        question: JsonValue = [_spec(spec), _task(task), [_step(step) for step in history], answer, seed]
        return bool(json.loads(await self._remembered(_address("judge", self._identity, question), ask)))


def _address(kind: str, model: str, question: JsonValue) -> bytes:
    said = [kind, edition(), model, question]
    return hashlib.sha256(json.dumps(said, sort_keys=True, separators=(",", ":")).encode()).digest()


@cache
def edition(package: Path = Path(__file__).parents[1]) -> str:
    """Digest of the code that finds recordings, writes prompts and makes predictions of what is answered."""
    parts = (package / name for name in ("experience", "replay"))
    files = [*package.glob("*.py"), *(file for part in parts for file in part.rglob("*") if file.suffix in READ)]
    read = b"\x00".join(file.read_bytes() for file in sorted(files))
    return hashlib.sha256(read).hexdigest()


def _question(query: Query) -> JsonObject:
    return {
        "spec": _spec(query.spec),
        "task": _task(query.task),
        "history": [_step(step) for step in query.history],
        "state": query.state,
        "action": query.action.canonical(),
        "demonstrations": [_step(shown.transition) for shown in query.demonstrations],
        "seed": query.seed,
        "without": [part.value for part in sorted(query.without)],
    }


def _spec(spec: EnvironmentSpec) -> JsonObject:
    return spec.model_dump(mode="json", include=SPEC)


def _task(task: Task) -> JsonObject:
    return {"instruction": task.instruction, "initial_state": task.initial_state}


def _step(step: Transition) -> JsonObject:
    return {**step.model_dump(mode="json", exclude={"provenance"}), "exact": step.provenance.exact}
