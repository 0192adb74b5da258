"""A transformers checkpoint folder as a language model, batched over concurrent questions.

One thread owns the model. Questions that arrive while it works are answered together in its next batch. Prompts are
padded on the left and masked, so what stands beside a question changes its answer by rounding only. No output is
constrained: callers validate, as they do for every model.
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

BATCH = 32
CPU_CHUNK = 128
"""Tokens of a prompt that a CPU reads at a time: the intermediate values of a whole one would not fit its cache."""
LONGER = 2
"""A fitted model's answer that is this many times as long as the longest it learned will not end any more."""


def load(name: str) -> CheckpointModel:
    """The checkpoint in a folder. Raises InvalidInput where it is none, MissingPackage without transformers."""
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

    @property
    def alone(self) -> bool:
        """Sampled with a seed of its own, which no batch can share."""
        return self.temperature > 0


class CheckpointModel:
    """One checkpoint; read at the first question."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.fitting = read_fitting(folder)
        """What `dreamgym fit` wrote down, where it made this checkpoint."""
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
                if question.answer.done():  # whoever asked may have gone
                    continue
                if isinstance(answer, Completion):
                    question.answer.set_result(answer)
                else:
                    failed = EnvironmentUnavailable(f"{self.name} failed: {type(answer).__name__}: {str(answer)[:300]}")
                    failed.__cause__ = answer
                    question.answer.set_exception(failed)

    def _next_batch(self) -> list[_Question]:
        """Greedy questions together: the first and those nearest to it in length, for all are padded to the longest.

        A sampled question comes by itself.
        """
        first = self._waiting[0]
        greedy = sorted(
            (question for question in self._waiting if not question.alone), key=lambda one: abs(one.size - first.size)
        )
        batch = [first] if first.alone else greedy[:BATCH]
        self._waiting = [question for question in self._waiting if question not in batch]
        return batch

    def _answer(self, batch: Sequence[_Question]) -> list[Completion | Exception]:
        """An answer to each; a question that is too long fails alone."""
        model, tokenizer = self._loaded()
        prompts = [prompt_ids(tokenizer, question.messages) for question in batch]
        room = getattr(model.config, "max_position_embeddings", None)
        fitting = [i for i, prompt in enumerate(prompts) if room is None or len(prompt) < room]
        asked = [batch[i] for i in fitting]
        rows, watching = self._written(asked, [prompts[i] for i in fitting], room) if fitting else ([], None)
        completions = {
            i: self._completion(batch[i], len(prompts[i]), row, watching, number)
            for number, (i, row) in enumerate(zip(fitting, rows, strict=True))
        }
        return [
            completions[i]
            if i in completions
            else ValueError(f"a prompt of {len(prompts[i])} tokens does not fit into {room}")
            for i in range(len(batch))
        ]

    def _written(
        self, batch: Sequence[_Question], prompts: Sequence[Sequence[int]], room: int | None
    ) -> tuple[list[list[int]], Certainty | None]:
        """The tokens of the answers, as long as the longest of them, and how sure the model was where it was greedy."""
        import torch

        model, tokenizer = self._loaded()
        width = max(len(prompt) for prompt in prompts)
        limit = max(question.max_tokens for question in batch)
        if self.fitting is not None and self.fitting.longest_answer:
            limit = min(limit, LONGER * self.fitting.longest_answer)
        pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
        tokens = torch.tensor([[pad] * (width - len(prompt)) + [*prompt] for prompt in prompts], device=model.device)
        mask = torch.tensor(
            [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=model.device
        )
        sampled: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if batch[0].alone:
            sampled = {"do_sample": True, "temperature": batch[0].temperature, "top_p": None, "top_k": 0}
        watching = None if batch[0].alone else Certainty(tokenizer)
        # The process may be training too: its random numbers go on as if nothing had been sampled here.
        with torch.inference_mode(), torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            torch.manual_seed(batch[0].seed)
            written: list[list[int]] = model.generate(
                input_ids=tokens,
                attention_mask=mask,
                max_new_tokens=limit if room is None else min(limit, room - width),
                pad_token_id=pad,
                prefill_chunk_size=CPU_CHUNK if model.device.type == "cpu" else None,
                logits_processor=[] if watching is None else [watching],
                **sampled,
            )[:, width:].tolist()
        return written, watching

    def _completion(
        self, question: _Question, prompt_tokens: int, row: list[int], watching: Certainty | None, number: int
    ) -> Completion:
        ends = self._model.generation_config.eos_token_id
        stops = set(ends) if isinstance(ends, list) else {ends}
        end = next((at for at, token in enumerate(row) if token in stops), None)
        kept = row[: question.max_tokens] if end is None else row[: min(end, question.max_tokens)]
        whole = end is not None and end < question.max_tokens
        return Completion(
            text=self._tokenizer.decode(kept, skip_special_tokens=True),
            finish_reason="stop" if whole else "length",
            prompt_tokens=prompt_tokens,
            completion_tokens=len(kept),
            probabilities={} if watching is None else watching.probabilities(number, kept),
        )

    def _loaded(self) -> tuple[Any, Any]:
        if self._model is None:
            import torch
            from transformers import AutoModelForCausalLM, AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(self._folder, local_files_only=True)
            model = AutoModelForCausalLM.from_pretrained(self._folder, local_files_only=True).eval()
            self._model = model.to("cuda") if torch.cuda.is_available() else model
        return self._model, self._tokenizer


def prompt_ids(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """The tokens of a question, up to where the answer begins; training builds its rows by the same function."""
    said = [message.model_dump() for message in messages]
    if tokenizer.chat_template is not None:
        text = tokenizer.apply_chat_template(said, tokenize=False, add_generation_prompt=True)
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])
    text = "\n\n".join(message.content for message in messages)
    return list(tokenizer(f"{text}\n\n")["input_ids"])


def check_tokenizer(folder: Path) -> None:
    """Refuse a folder that is no checkpoint, or whose tokenizer knows tokens that its weights do not.

    Raises:
        InvalidInput: it cannot be used.
    """
    if not (folder / "config.json").is_file():
        raise InvalidInput(f"{str(folder)!r} is no checkpoint folder: it has no config.json")
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
            f"{str(folder)!r}: the tokenizer knows {largest + 1} tokens and the weights {known}: "
            "they do not belong together"
        )
