"""A language model that is asked each question once: what was sent before is answered as before, whoever sends it.

The key is made of the model and of everything that is sent to it. So nothing has to be thrown away when a prompt, a
recording or a seed changes: that is another question.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from dreamgym.errors import InvalidInput
from dreamgym.llm import LLM, Completion, Message
from dreamgym.replay.keys import check_storable
from dreamgym.replay.predictions import Predictions
from dreamgym.types import JsonObject


def weights_fingerprint(model: str | None) -> str:
    """What tells apart models in files of the same name, by the string `--model`; empty if it names no file.

    A folder that is trained into once more is another model. By size and time, because weights are large.
    """
    path = Path(model or "")
    files = sorted(path.rglob("*")) if model and path.is_dir() else [path] if path.is_file() else []
    stats = [(str(file.relative_to(path)), file.stat()) for file in files if file.is_file()]
    if not stats:
        return ""
    told = "\n".join(f"{name} {stat.st_size} {stat.st_mtime_ns}" for name, stat in stats)
    return hashlib.sha256(told.encode()).hexdigest()


class CachedLLM:
    """Asks another language model, and each question only once.

    Two identical questions at the same time share one answer. A question that failed is asked again.

    Args:
        llm: is asked what is not known; closed together with this one.
        predictions: where answers are remembered.
        weights: tells apart models of one name, as the model's own attribute `fingerprint` does.
    """

    def __init__(self, llm: LLM, predictions: Predictions, weights: str = "") -> None:
        self._llm = llm
        self._predictions = predictions
        self._asking: dict[bytes, asyncio.Task[Completion]] = {}
        self._identity = [llm.name, weights, str(getattr(llm, "fingerprint", ""))]
        self.form = getattr(llm, "form", "data")
        """The form of prompt that the model is asked in."""

    @property
    def name(self) -> str:
        return self._llm.name

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """The model's answer; a remembered one says that it is `cached` and costs no tokens.

        Raises:
            EnvironmentUnavailable: the model cannot be reached, refused or took too long.
            StoreError: the store cannot be reached.
        """
        key = self._key(messages, schema, max_tokens, temperature, seed)
        task = self._asking.get(key)
        if task is not None:
            return _free(await asyncio.shield(task))  # who leaves does not take the answer from the others

        async def found_or_asked() -> Completion:
            if (known := await self._predictions.get(key)) is not None:
                return _free(Completion.model_validate_json(known))
            own = await self._llm.complete(
                messages, schema=schema, max_tokens=max_tokens, temperature=temperature, seed=seed
            )
            try:
                text = check_storable(own, "completion")
            except InvalidInput:  # no store can hold it, and whoever reads it will refuse it too
                return own
            stays = await self._predictions.put(key, text)
            return own if stays == text else _free(Completion.model_validate_json(stays))

        task = self._asking[key] = asyncio.create_task(found_or_asked())
        task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    async def forget(
        self, messages: Sequence[Message], *, schema: JsonObject | None, max_tokens: int, temperature: float, seed: int
    ) -> None:
        """Ask this question anew the next time: its answer was of no use."""
        await self._predictions.forget(self._key(messages, schema, max_tokens, temperature, seed))

    async def close(self) -> None:
        """Release the model; nobody waits for what is still asked."""
        asking = list(self._asking.values())
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await self._llm.close()

    def _key(
        self, messages: Sequence[Message], schema: JsonObject | None, max_tokens: int, temperature: float, seed: int
    ) -> bytes:
        sent = [[message.role, message.content] for message in messages]
        question = [self._identity, sent, schema, max_tokens, temperature, seed]
        return hashlib.sha256(json.dumps(question, separators=(",", ":")).encode()).digest()

    def _answered(self, key: bytes, done: asyncio.Task[Completion]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # whoever waited has it; if nobody did, it is no news


def _free(completion: Completion) -> Completion:
    return completion.model_copy(update={"cached": True, "prompt_tokens": 0, "completion_tokens": 0})
