"""A small model in this process, through llama.cpp.

One thread owns the model, since two at once crash the process; questions wait in its queue. The beginning that a prompt
shares with the one before it is not read again. Small models copy from close examples and do little else: with five
near-identical recordings the 0.5B model is right in 7 to 10 of 12 steps, without such recordings in 0.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage
from dreamgym.llm import Completion, Message
from dreamgym.types import JsonObject
from dreamgym_integrations.models import weights
from dreamgym_integrations.models.skeleton import as_lines, fill

if TYPE_CHECKING:
    from llama_cpp import Llama

CONTEXT_TOKENS = 16_384
LINE_TOKENS = 200
"""Most tokens of one value, or half of `max_tokens` if that is more. A longer value counts as cut off."""


def load(name: str) -> LocalModel:
    """The model for a name: empty or `0.5b`, `1.5b`, or the path of a .gguf file.

    Raises:
        InvalidInput: the name is unknown, or the weights have not been downloaded.
        MissingPackage: llama-cpp-python is not installed.
    """
    if find_spec("llama_cpp") is None:
        raise MissingPackage("a local model", "local")
    if name.endswith(".gguf"):
        path, shown = Path(name), Path(name).name
    else:
        known = weights.find(f"local:{name}" if name else "local")
        path, shown = weights.path_of(known), known.name
        if not path.is_file():
            raise InvalidInput(f"the weights of {shown!r} have not been downloaded: run `dreamgym models pull {shown}`")
    if not path.is_file():
        raise InvalidInput(f"model {name!r}: there is no such file")
    return LocalModel(path, shown)


class LocalModel:
    """One GGUF file, loaded at the first question.

    Args:
        path: the file. Prompts put chat turns between <|im_start|> and <|im_end|>; models trained so work best.
        name: name of the model in the provenance.
    """

    form = "turns"

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="llama")
        self._llama: Llama | None = None

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        """Answer the messages. With a schema, choices are always made greedily. Raises EnvironmentUnavailable."""
        work = asyncio.get_running_loop().run_in_executor(
            self._thread, self._answer, as_lines(messages), schema, max_tokens, temperature, seed
        )
        return await work

    async def close(self) -> None:
        """Wait for the running answer and free the model."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._free)
        self._thread.shutdown()

    def _answer(
        self, messages: Sequence[Message], schema: JsonObject | None, max_tokens: int, temperature: float, seed: int
    ) -> Completion:
        llama = self._loaded()
        tokens = _conversation(llama, messages)
        if len(tokens) + max_tokens > llama.n_ctx():
            raise EnvironmentUnavailable(
                f"{self.name}: a prompt of {len(tokens)} tokens and an answer of up to {max_tokens} do not fit into "
                f"the model's context of {llama.n_ctx()} tokens"
            )
        writer = _LlamaWriter(llama, tokens, max_tokens, temperature, seed)
        probabilities: dict[str, float] = {}
        if schema is None:
            text = writer.rest()
        else:
            answer, probabilities = fill(schema, writer)
            text = "" if writer.is_unfinished else json.dumps(answer, ensure_ascii=False)
        if writer.written:
            probabilities["tokens"] = math.exp(writer.log_probability / writer.written)
        return Completion(
            text=text,
            finish_reason=writer.finish_reason,
            prompt_tokens=len(tokens),
            completion_tokens=max(1, writer.written),  # an empty answer took the token that ended it
            probabilities=probabilities,
        )

    def _loaded(self) -> Llama:
        if self._llama is None:
            from llama_cpp import Llama

            threads = int(os.environ.get("DREAMGYM_LOCAL_THREADS") or max(1, (os.cpu_count() or 2) - 1))
            try:
                self._llama = Llama(
                    str(self._path), n_ctx=CONTEXT_TOKENS, n_threads=threads, n_threads_batch=threads, verbose=False
                )
            except (ValueError, OSError) as error:
                raise EnvironmentUnavailable(f"{self._path} cannot be loaded: {error}") from error
        return self._llama

    def _free(self) -> None:
        if self._llama is not None:
            self._llama.close()
            self._llama = None


def _conversation(llama: Any, messages: Sequence[Message]) -> list[int]:
    """The chat as tokens. Marks inside a message are plain text, so no message can end its turn early."""

    def plain(text: str) -> list[int]:
        return list(llama.tokenize(text.encode(), add_bos=False, special=False))

    start, end = (list(llama.tokenize(mark, add_bos=False, special=True)) for mark in (b"<|im_start|>", b"<|im_end|>"))
    tokens: list[int] = []
    for message in messages:
        tokens += [*start, *plain(f"{message.role}\n{message.content}"), *end, *plain("\n")]
    return [*tokens, *start, *plain("assistant\n")]


class _LlamaWriter:
    """Writes one answer after a prompt. The longest beginning that the model has already read is not read again."""

    def __init__(self, llama: Any, prompt: list[int], max_tokens: int, temperature: float, seed: int) -> None:
        self._llama = llama
        self._left = max_tokens
        self._line = max(LINE_TOKENS, max_tokens // 2)
        self._temperature = temperature
        mark = llama.tokenize(b"<|im_end|>", add_bos=False, special=True)
        # to a model with other marks it is a text of several tokens, which are in other texts, too
        self._ends = {llama.token_eos(), *(mark if len(mark) == 1 else ())}
        self.written = 0
        self.log_probability = 0.0
        """Sum over the tokens that the model wrote; tokens that the program inserted do not count."""
        self.finish_reason: Literal["stop", "length"] = "stop"
        self.is_unfinished = False
        """True if the model ended its turn where a line was to be written."""
        read = llama.input_ids[: llama.n_tokens]
        shared = next((at for at, (a, b) in enumerate(zip(read, prompt, strict=False)) if a != b), None)
        # The last token is always read again: its logits are needed for the next one.
        llama.n_tokens = min(len(prompt) - 1, len(read) if shared is None else shared)
        llama.set_seed(seed % 2**31)
        llama.eval(prompt[llama.n_tokens :])

    def feed(self, text: str) -> None:
        self._llama.eval(self._tokens(text))

    def line(self) -> str:
        return self._until(b"\n", self._line)

    def rest(self) -> str:
        """Let the model write until it ends."""
        return self._until(None, self._left)

    def choose(self, texts: Sequence[str]) -> tuple[str, float]:
        """Choose token by token, each time the likeliest that leads to one of the texts, which are few and short."""
        newline = self._tokens("\n")[0]
        candidates = {text: [*self._tokens(f" {text}"), newline] for text in texts}
        depth, probability = 0, 1.0
        while len(candidates) > 1:
            logits = self._logits()
            at = {token: float(logits[token]) for token in sorted({tokens[depth] for tokens in candidates.values()})}
            token = max(at, key=lambda token: at[token])
            probability /= sum(math.exp(logit - at[token]) for logit in at.values())
            candidates = {text: tokens for text, tokens in candidates.items() if tokens[depth] == token}
            if token != newline:
                self._llama.eval([token])
                depth += 1
        ((chosen, tokens),) = candidates.items()
        if tokens[depth:-1]:
            self._llama.eval(tokens[depth:-1])
        return chosen, probability

    def _until(self, stop: bytes | None, limit: int) -> str:
        written = b""
        for _ in range(limit):
            if self._left <= 0:
                break
            token = int(self._llama.sample(temp=self._temperature))
            piece: bytes = self._llama.detokenize([token])
            if stop is not None and stop in piece:
                return (written + piece.partition(stop)[0]).decode(errors="replace")
            if token in self._ends:
                self.is_unfinished |= stop is not None and not written
                return written.decode(errors="replace")
            written += piece
            self.log_probability += self._log_probability(token)
            self._llama.eval([token])
            self._left -= 1
            self.written += 1
        self.finish_reason = "length"
        return written.decode(errors="replace")

    def _tokens(self, text: str) -> list[int]:
        return list(self._llama.tokenize(text.encode(), add_bos=False, special=False))

    def _log_probability(self, token: int) -> float:
        """Log-probability of a token: 0.4 ms for a vocabulary of 150,000, while a token takes 20 to 60 ms to write."""
        import numpy as np

        logits = self._logits()
        top = float(logits.max())
        return float(logits[token]) - top - math.log(float(np.exp(logits - top).sum()))

    def _logits(self) -> Any:
        import numpy as np

        return np.ctypeslib.as_array(self._llama._ctx.get_logits(), shape=(self._llama.n_vocab(),))
