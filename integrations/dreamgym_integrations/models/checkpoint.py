"""A transformers checkpoint folder as a language model, batched over concurrent questions.

One thread owns the model. Questions that arrive while it works are answered together in its next batch. Prompts are
padded on the left and masked, so the other questions of a batch change an answer only by rounding. The output is not
constrained by a schema: callers validate it, as they do for every model.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dreamgym.dream.fitted import read_fitting
from dreamgym.dream.prompt import PromptForm
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.llm import Completion, Message
from dreamgym.types import JsonObject
from dreamgym_integrations.models.certainty import Certainty
from dreamgym_integrations.models.decoding import Decoding, decoded
from dreamgym_integrations.models.plain_text import PlainText
from dreamgym_integrations.models.whole_model import read_from, whole_model

BATCH = 32
LONGER = 2
"""Limit of a fitted model's answer, as a multiple of the longest answer it learned. A longer one would never end."""


def load(name: str) -> CheckpointModel:
    """The checkpoint in a folder. Raises InvalidInput if it is not one, MissingPackage without transformers."""
    folder = Path(name)
    check_tokenizer(folder)
    try:
        import torch  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise MissingPackage("a checkpoint folder", "train") from error
    return CheckpointModel(folder)


@dataclass(frozen=True)
class _Question:
    messages: tuple[Message, ...]
    max_tokens: int
    temperature: float
    seed: int
    answer: asyncio.Future[Completion]

    @property
    def size(self) -> int:
        """Number of characters."""
        return sum(len(message.content) for message in self.messages)


class CheckpointModel:
    """One checkpoint, loaded at the first question."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.fitting = read_fitting(folder)
        """The file that `dreamgym fit` wrote; None if another program made this checkpoint."""
        self.form: PromptForm = "data" if self.fitting is None else self.fitting.form
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._waiting: list[_Question] = []
        self._working: asyncio.Task[None] | None = None
        self._model: Any = None
        self._tokenizer: Any = None

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """Answer the messages. Raises EnvironmentUnavailable."""
        loop = asyncio.get_running_loop()
        question = _Question(tuple(messages), max_tokens, temperature, seed, loop.create_future())
        self._waiting.append(question)
        if self._working is None or self._working.done():
            self._working = loop.create_task(self._work())
        return await question.answer

    async def close(self) -> None:
        """Wait for the running batch and free the model."""
        if self._working is not None:
            await self._working
        self._thread.shutdown()
        self._model = self._tokenizer = None

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = self._next_batch()
            try:
                answers = await loop.run_in_executor(self._thread, self._answer, batch)
            except Exception as error:  # noqa: BLE001 the boundary: whoever asked gets the error
                answers = [error] * len(batch)
            for question, answer in zip(batch, answers, strict=True):
                if question.answer.done():  # the caller may have been cancelled
                    continue
                if isinstance(answer, Completion):
                    question.answer.set_result(answer)
                else:
                    failed = EnvironmentUnavailable(f"{self.name} failed: {type(answer).__name__}: {str(answer)[:300]}")
                    failed.__cause__ = answer
                    question.answer.set_exception(failed)

    def _next_batch(self) -> list[_Question]:
        """Take the first question and those nearest to it in length: all are padded to the longest."""
        first = self._waiting[0]
        batch = sorted(self._waiting, key=lambda one: abs(one.size - first.size))[:BATCH]
        self._waiting = [question for question in self._waiting if question not in batch]
        return batch

    def _answer(self, batch: Sequence[_Question]) -> list[Completion | Exception]:
        """Answer each question; one that is too long fails alone."""
        _, tokenizer = self._loaded()
        prompts = [prompt_ids(tokenizer, question.messages) for question in batch]
        room = self._room
        fitting = [i for i, prompt in enumerate(prompts) if room is None or len(prompt) < room]
        answers: list[Completion | Exception] = [
            ValueError(f"a prompt of {len(prompt)} tokens does not fit into the model's context of {room} tokens")
            for prompt in prompts
        ]
        if fitting:
            rows, certainty = self._written([batch[i] for i in fitting], [prompts[i] for i in fitting])
            for number, (i, row) in enumerate(zip(fitting, rows, strict=True)):
                answers[i] = self._completion(len(prompts[i]), row, number, certainty)
        return answers

    def _written(
        self, batch: Sequence[_Question], prompts: Sequence[Sequence[int]]
    ) -> tuple[list[list[int]], Certainty]:
        """The tokens of the answers, and the model's certainty in the greedy ones."""
        model, tokenizer = self._loaded()
        most = [question.max_tokens for question in batch]
        if self.fitting is not None and self.fitting.longest_answer:
            most = [min(own, LONGER * self.fitting.longest_answer) for own in most]
        if (room := self._room) is not None:
            most = [min(own, room - len(prompt)) for own, prompt in zip(most, prompts, strict=True)]
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
        certainty = Certainty(tokenizer)
        asked = [
            Decoding(prompt, own, question.temperature, question.seed)
            for question, prompt, own in zip(batch, prompts, most, strict=True)
        ]
        return decoded(model, asked, pad=pad, ends=self._ends, certainty=certainty), certainty

    def _completion(self, prompt_tokens: int, row: list[int], number: int, certainty: Certainty) -> Completion:
        ended = row[-1] in self._ends
        said = row[:-1] if ended else row
        return Completion(
            text=self._tokenizer.decode(said, skip_special_tokens=True),
            finish_reason="stop" if ended else "length",
            prompt_tokens=prompt_tokens,
            completion_tokens=max(1, len(said)),  # an empty answer took the token that ended it
            probabilities=certainty.probabilities(number, said),
        )

    @property
    def _room(self) -> int | None:
        """Most tokens of a prompt with its answer; None if the model's config has no limit."""
        return getattr(self._loaded()[0].config, "max_position_embeddings", None)

    @property
    def _ends(self) -> set[int]:
        """The tokens that end an answer."""
        ends = self._loaded()[0].generation_config.eos_token_id
        return set(ends) if isinstance(ends, list) else {ends}

    def _loaded(self) -> tuple[Any, Any]:
        if self._model is None:
            import torch
            from transformers import AutoTokenizer

            with read_from(self._folder):
                self._tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            model = whole_model(self._folder).eval()
            self._model = model.to("cuda") if torch.cuda.is_available() else model
        return self._model, self._tokenizer


def prompt_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The tokens of a question, up to where the answer begins. Training builds its rows with this function too."""
    plain = PlainText(tokenizer)
    said = plain.broken([message.model_dump() for message in messages])
    if tokenizer.chat_template is not None:
        return plain.ids(tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True))
    text = "\n\n".join(message["content"] for message in said)
    return plain.ids(f"{text}\n\n", add_special_tokens=True)


def check_tokenizer(folder: Path) -> None:
    """Refuse a folder that is not a checkpoint, or whose tokenizer has more tokens than its weights.

    Raises:
        InvalidInput: the folder cannot be used.
    """
    if not (folder / "config.json").is_file():
        raise InvalidInput(f"{str(folder)!r} is not a checkpoint folder: it has no config.json")
    tokens = folder / "tokenizer.json"
    if not tokens.is_file():
        return
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        tokenizer = json.loads(tokens.read_text(encoding="utf-8"))
        known = config.get("vocab_size", config.get("text_config", {}).get("vocab_size"))
        vocabulary = tokenizer["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        largest = max([*ids, *(token["id"] for token in tokenizer["added_tokens"])])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidInput(f"{str(folder)!r}: config.json or tokenizer.json is damaged: {error}") from error
    if known is not None and largest >= known:
        raise InvalidInput(
            f"{str(folder)!r}: the tokenizer has {largest + 1} tokens and the weights have {known}: "
            "they do not belong together"
        )
