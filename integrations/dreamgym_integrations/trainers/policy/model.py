"""A transformers checkpoint as a policy: samples token ids, and turns words into tokens with its chat template.

An observation is tokenised on its own and appended. Sampled tokens are never decoded and tokenised again, since that
changes the ids.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import torch
from jinja2 import TemplateError
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from dreamgym.episode import user_message
from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import EPISODE_TOKENS, TURN_TOKENS, Generation, Segment
from dreamgym.types import JsonObject, StepResult, Task
from dreamgym_integrations.models.plain_text import PlainText
from dreamgym_integrations.models.whole_model import read_from, whole_model
from dreamgym_integrations.trainers.policy.conversation import Conversations
from dreamgym_integrations.trainers.policy.pointer.codec import PointerCodec
from dreamgym_integrations.trainers.policy.pointer.model import PointerConfig
from dreamgym_integrations.trainers.policy.prefix_cache import PrefixCache, is_plain

disable_progress_bar()  # a bar per loaded checkpoint hides the progress that matters
THREADS = torch.get_num_threads()
"""Number of CPU threads for a model that is not small: one for each core, or OMP_NUM_THREADS."""
SMALL = 20_000_000
"""A model with fewer parameters computes in one thread: on two busy cores, two threads were 14 times slower."""
SHARED = 64
"""Fewest tokens of a shared beginning for which a pass of its own pays off."""

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Returns freed memory to the system. glibc keeps much of it: without this call a run grew from 5 to 18 GB in six
updates."""

_MARKER = "\N{OBJECT REPLACEMENT CHARACTER}"
_USER: JsonObject = {"role": "user", "content": ""}
_SAYING: JsonObject = {"role": "assistant", "content": _MARKER}
_CALLING: JsonObject = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"type": "function", "function": {"name": _MARKER, "arguments": {}}}],
}


class ChatCodec:
    """Codec of a language model, which uses the chat template of its tokenizer.

    The template must keep earlier turns unchanged when later ones are added.

    Args:
        tokenizer: a transformers tokenizer with a chat template and an end-of-sequence token.
        max_tokens: most tokens of an episode, which is cut there.
    """

    def __init__(self, tokenizer: Any, *, max_tokens: int = EPISODE_TOKENS) -> None:
        if not tokenizer.chat_template:
            raise InvalidInput("the policy's tokenizer has no chat template: it cannot hold a conversation")
        self.max_tokens = max_tokens
        self._tokenizer, self._plain = tokenizer, PlainText(tokenizer)
        self._eos: int = tokenizer.eos_token_id

    def talk(self, task: Task, first: StepResult) -> ChatTalk:
        """Begin an episode of a policy that acts by itself."""
        return ChatTalk(self, user_message(task, first))

    def conversations(self) -> Conversations:
        """Begin the conversations of an episode with an agent."""
        return Conversations(self)

    def start(self, text: str) -> list[int]:
        """The tokens of a conversation that begins with this text, up to where the policy speaks."""
        return self.conversation([{"role": "user", "content": text}])

    def turn(self, text: str, *, ended: bool) -> list[int]:
        """The tokens of the user's next turn, from the end of the policy's words to where it speaks again."""
        return self.added([{"role": "user", "content": text}], ended=ended)

    @cached_property
    def knows_tools(self) -> bool:
        """True if the template shows tools to the policy, and writes calls as `<tool_call>{JSON}</tool_call>`."""
        tool: JsonObject = {"type": "function", "function": {"name": _MARKER, "description": "", "parameters": {}}}
        try:
            shown = self._render([_USER], [tool])
            said = self._render([_USER, _CALLING])
        except InvalidInput:
            return False
        return _MARKER in shown and "<tool_call>" in said

    def conversation(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> list[int]:
        """The tokens of a whole conversation, up to where the policy speaks next. Raises InvalidInput."""
        return self._plain.ids(self._render(messages, tools))

    def added(self, messages: Sequence[JsonObject], *, ended: bool) -> list[int]:
        """The tokens of the messages since the policy's last turn, up to where it speaks again.

        Args:
            messages: the messages, none of which is the policy's.
            ended: True if the policy closed its turn; otherwise it is closed here.

        Raises:
            InvalidInput: the template refuses them.
        """
        answers = messages[0]["role"] == "tool"  # some templates need the call that is answered
        after = self._render([_USER, _CALLING if answers else _SAYING, *messages]).split(_MARKER, 1)[1]
        if answers:
            if (end := self._tokenizer.eos_token) not in after:
                raise InvalidInput(
                    f"the policy's chat template does not end a tool call with the tokenizer's end token {end!r}: use "
                    "a policy whose turns end with it"
                )
            after = after[after.index(end) :]
        ids = self._plain.ids(after)
        return ids[1:] if ended and ids[:1] == [self._eos] else ids

    def decode(self, ids: Sequence[int]) -> str:
        """The text of the policy's tokens, without special tokens."""
        return cast("str", self._tokenizer.decode(list(ids), skip_special_tokens=True)).strip()

    def ended(self, ids: Sequence[int]) -> bool:
        """True if the last sampled token closes the turn."""
        return bool(ids) and ids[-1] == self._eos

    def answer(self, text: str) -> list[int]:
        """The ids of a whole answer with its end token, for supervised training."""
        return [*self._plain.ids(self._plain.broken(text)), self._eos]

    def _render(self, messages: Sequence[JsonObject], tools: Sequence[JsonObject] = ()) -> str:
        """The text of the template, in which only the template itself has special tokens."""
        shown, offered = self._plain.broken([*messages]), self._plain.broken([*tools])
        try:
            text = self._tokenizer.apply_chat_template(
                shown, tools=offered or None, tokenize=False, add_generation_prompt=True
            )
        except (TemplateError, TypeError) as error:
            raise InvalidInput(f"the policy's chat template cannot render this conversation: {error}") from error
        return cast("str", text)


class ChatTalk:
    """An episode as one conversation that is only appended to. Get it from `ChatCodec.talk`."""

    def __init__(self, codec: ChatCodec, text: str) -> None:
        self._codec = codec
        self.segments = [Segment(codec.start(text))]
        self._ended = False

    @property
    def prompt(self) -> list[int]:
        return self.segments[0].ids

    def ids_of(self, text: str) -> list[int]:
        return self._codec.answer(text)

    def say(self, sampled: Generation) -> str:
        self.segments[0].say(sampled)
        self._ended = self._codec.ended(sampled.ids)
        return self._codec.decode(sampled.ids)

    def skip(self, text: str) -> None:
        self.segments[0].hear(self._codec.answer(text))
        self._ended = True

    def hear(self, result: StepResult) -> bool:
        heard = self._codec.turn(result.observation, ended=self._ended)
        if len(self.prompt) + len(heard) >= self._codec.max_tokens:
            return False
        self.segments[0].hear(heard)
        return True


class TransformersPolicy:
    """Samples from a causal language model, all prompts in one left-padded batch.

    Args:
        model: the model; call `forget` after each change of its weights.
        tokenizer: has the padding and end-of-sequence ids.
        max_new_tokens: most tokens of an answer.
        temperature: divisor of the logits; the trainer must use the same.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_new_tokens: int, temperature: float = 1.0) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.max_new_tokens = max_new_tokens
        self.temperature = temperature
        self._known = PrefixCache()
        self._is_small = model.num_parameters() < SMALL

    def copy(self) -> TransformersPolicy:
        """A policy with the same model, which can be replaced in the copy."""
        return TransformersPolicy(
            self.model, self.tokenizer, max_new_tokens=self.max_new_tokens, temperature=self.temperature
        )

    def take_threads(self) -> None:
        """Set the number of CPU threads that suits the model. torch keeps this number per calling thread."""
        torch.set_num_threads(1 if self._is_small else THREADS)

    def forget(self) -> None:
        """Drop everything that was computed with the old weights, after they have changed."""
        self._known.clear()

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        """Sample one answer per prompt, each with random numbers of its own; the global random state is unchanged."""
        uniform_BT = torch.stack(
            [torch.rand(self.max_new_tokens, generator=torch.Generator().manual_seed(seed)) for seed in seeds_B]
        )
        was_training = self.model.training
        self.model.eval()
        self.take_threads()
        with torch.inference_mode():
            sampled_B = self._sampled(prompts_B, uniform_BT)
        self.model.train(was_training)
        if _trim is not None and not self._is_small:
            _trim(0)
        return sampled_B

    def _sampled(self, prompts_B: Sequence[Sequence[int]], uniform_BT: torch.Tensor) -> list[Generation]:
        """Sample until every row has ended. If the beginning of a prompt is cached, only the rest is computed.

        Rows that have ended leave the batch once they are half of it: a long answer then costs little more than alone.
        """
        eos, device = self.tokenizer.eos_token_id, self.model.device
        self._read_once(prompts_B)
        past = self._known.find(prompts_B, device)
        input_ids, new = self._padded([prompt[n:] for prompt, n in zip(prompts_B, past.lengths_B, strict=True)])
        attention = torch.cat([past.mask_BP, new], dim=1)
        uniform_BT = uniform_BT.to(device)
        ids_BT = torch.full_like(uniform_BT, eos, dtype=torch.long)
        logprobs_BT = torch.zeros_like(uniform_BT)
        cache, rows = past.cache(), torch.arange(len(prompts_B), device=device)
        del past  # the cache has a copy, and there is no room for both
        for t in range(self.max_new_tokens):
            positions = (attention.cumsum(-1) - 1).clamp(min=0)[:, -input_ids.shape[1] :]
            output = self.model(
                input_ids=input_ids,
                attention_mask=attention,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = output.past_key_values
            logprobs_BV = (output.logits[:, -1].float() / self.temperature).log_softmax(-1)
            drawn_B = _drawn(logprobs_BV, uniform_BT[rows, t])
            ids_BT[rows, t] = drawn_B
            logprobs_BT[rows, t] = logprobs_BV.gather(-1, drawn_B.unsqueeze(-1)).squeeze(-1)
            ended_B = (ids_BT[rows, : t + 1] == eos).any(dim=1)
            if bool(ended_B.all()) or t + 1 == self.max_new_tokens:
                break
            if 2 * int(ended_B.sum()) >= len(rows) and is_plain(cache):
                self._known.keep(cache, attention, self._talks(prompts_B, ids_BT[:, :t], rows, ended_B))
                going_on = (~ended_B).nonzero().squeeze(-1)
                cache.batch_select_indices(going_on)
                rows, drawn_B, attention = rows[going_on], drawn_B[going_on], attention[going_on]
            input_ids = drawn_B.unsqueeze(-1)
            attention = torch.cat([attention, torch.ones_like(input_ids)], dim=1)
        self._known.keep(cache, attention, self._talks(prompts_B, ids_BT[:, :t], rows, torch.ones_like(rows)))
        return [_until(eos, *row) for row in zip(ids_BT.tolist(), logprobs_BT.tolist(), strict=True)]

    def _talks(
        self, prompts_B: Sequence[Sequence[int]], shown_BT: torch.Tensor, rows: torch.Tensor, kept: torch.Tensor
    ) -> dict[int, list[int]]:
        """By place in the batch, the tokens of each conversation that the model has read, up to the end of its turn.

        Args:
            prompts_B: all prompts.
            shown_BT: for each prompt, the sampled tokens that the model has read.
            rows: numbers of the prompts that are in the batch.
            kept: true for the rows that are wanted.
        """
        eos, numbers = self.tokenizer.eos_token_id, rows.tolist()
        places = kept.nonzero().squeeze(-1).tolist()
        return {i: [*prompts_B[numbers[i]], *_upto(eos, shown_BT[numbers[i]].tolist())] for i in places}

    def _read_once(self, prompts_B: Sequence[Sequence[int]]) -> None:
        """Compute the beginning that all new prompts share, such as the list of tools, only once."""
        new = [prompt for prompt in prompts_B if not self._known.has_beginning_of(prompt)]
        if len(new) < 2:
            return
        shorter = (prompt[:-1] for prompt in new)  # the model must have something left to read
        shared = [ids[0] for ids in takewhile(lambda ids: len(set(ids)) == 1, zip(*shorter, strict=False))]
        if len(shared) >= SHARED:
            ids, mask = self._padded([shared])
            output = self.model(input_ids=ids, attention_mask=mask, use_cache=True, logits_to_keep=1)
            self._known.keep(output.past_key_values, mask, {0: shared})

    def _padded(self, rows_B: Sequence[Sequence[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and their mask, padded on the left."""
        rows = [torch.tensor(row) for row in rows_B]
        ids_BT = pad_sequence(rows, True, self.tokenizer.pad_token_id, "left")
        mask_BT = pad_sequence([torch.ones_like(row) for row in rows], True, 0, "left")
        return ids_BT.to(self.model.device), mask_BT.to(self.model.device)


def _drawn(logprobs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Draw one token per row by inverting its distribution function: one random number a token for any vocabulary."""
    below_BV = logprobs_BV.double().exp().cumsum(-1)
    threshold_B = uniform_B.double().unsqueeze(-1) * below_BV[:, -1:]
    return torch.searchsorted(below_BV, threshold_B, right=True).squeeze(-1).clamp(max=logprobs_BV.shape[-1] - 1)


def _until(eos: int, ids: list[int], logprobs: list[float]) -> Generation:
    """Cut after the first end-of-turn token: what follows is padding."""
    said = _upto(eos, ids)
    return Generation(ids=tuple(said), logprobs=tuple(logprobs[: len(said)]))


def _upto(eos: int, ids: list[int]) -> list[int]:
    return ids[: ids.index(eos) + 1] if eos in ids else ids


PolicyCodec = ChatCodec | PointerCodec
"""The codec of a checkpoint, which is a language model or a pointer policy."""


def check_pointer(codec: PolicyCodec, **settings: object) -> None:
    """Raise InvalidInput if one of these settings is set, and the policy is a pointer policy: it has none of them."""
    given = [name for name, value in settings.items() if value]
    if isinstance(codec, PointerCodec) and given:
        raise InvalidInput(f"a pointer policy has no {', '.join(given)}: leave them out")


def load_codec(folder: Path, *, episode_tokens: int | None = None) -> PolicyCodec:
    """The codec of the policy in a checkpoint folder, see `load_policy`. Raises InvalidInput if there is none."""
    tokenizer, config = _tokenizer(folder), AutoConfig.from_pretrained(folder)
    _limit(config, max_episode_tokens=episode_tokens)
    return _codec(config, tokenizer)


def load_policy(
    folder: Path, *, turn_tokens: int | None = None, episode_tokens: int | None = None
) -> tuple[TransformersPolicy, PolicyCodec]:
    """The policy in a checkpoint folder, and its codec.

    Args:
        folder: a folder as training saves it.
        turn_tokens: most tokens of one answer; None: the checkpoint's limit, or 64. The model's config keeps it.
        episode_tokens: most tokens of an episode; None: the checkpoint's limit, or 4096. The config keeps it too.

    Raises:
        InvalidInput: there is no policy in the folder, or a limit is given for a pointer policy, which has none.
    """
    tokenizer = _tokenizer(folder)
    model = whole_model(folder, dtype=torch.float32)
    _limit(model.config, max_action_tokens=turn_tokens, max_episode_tokens=episode_tokens)
    policy = TransformersPolicy(model, tokenizer, max_new_tokens=turn_limit(model.config))
    policy.take_threads()
    return policy, _codec(model.config, tokenizer)


def _limit(config: Any, **given: int | None) -> None:
    """Write limits into a checkpoint's config. Raises InvalidInput for a pointer, which has none."""
    limits = {name: value for name, value in given.items() if value is not None}
    if limits and isinstance(config, PointerConfig):
        raise InvalidInput("a pointer policy answers by one token: leave turn_tokens and episode_tokens out")
    for name, value in limits.items():
        setattr(config, name, value)


def turn_limit(config: Any) -> int:
    """The most tokens of one answer, from a checkpoint's config. Raises InvalidInput if it is not a positive number."""
    return _kept_limit(config, "max_action_tokens", TURN_TOKENS)


def episode_limit(config: Any) -> int:
    """The most tokens of an episode, from a checkpoint's config.

    A model that looks its positions up in a table, such as GPT-2, leaves room for an answer within them.

    Raises:
        InvalidInput: the limit is not a positive number.
    """
    limit, positions = _kept_limit(config, "max_episode_tokens", EPISODE_TOKENS), table_of_positions(config)
    return limit if positions is None else min(limit, positions - turn_limit(config))


def table_of_positions(config: Any) -> int | None:
    """Number of positions of a model that looks them up in a table, such as GPT-2; None for any other."""
    shape = config.get_text_config()
    positions = getattr(shape, "max_position_embeddings", None)
    return None if positions is None or getattr(shape, "rope_parameters", None) is not None else int(positions)


def _kept_limit(config: Any, name: str, usual: int) -> int:
    limit = getattr(config, name, usual)
    if type(limit) is not int or limit < 1:
        raise InvalidInput(f"config.json of the policy: expected {name} to be a positive whole number, got {limit!r}")
    return limit


def _codec(config: Any, tokenizer: Any) -> PolicyCodec:
    if isinstance(config, PointerConfig):
        return PointerCodec(config, tokenizer)
    return ChatCodec(tokenizer, max_tokens=episode_limit(config))


def load_chat_policy(folder: Path, *, episode_tokens: int | None = None) -> tuple[TransformersPolicy, ChatCodec]:
    """The language model in a checkpoint folder, and its codec, see `load_policy`. Raises InvalidInput without one."""
    policy, codec = load_policy(folder, episode_tokens=episode_tokens)
    if not isinstance(codec, ChatCodec):
        raise InvalidInput(
            f"expected a language model in {folder}, found a pointer policy, which cannot hold a conversation"
        )
    return policy, codec


def _tokenizer(folder: Path) -> Any:
    if not (folder / "config.json").is_file():
        raise InvalidInput(
            f"no policy checkpoint in {folder}: expected a folder with a config.json, as training saves it"
        )
    with read_from(folder):
        tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.pad_token is None:  # padding is masked, so any token will do; TRL takes this one too
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer
