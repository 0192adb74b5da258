"""Keys and values of running conversations, so that only the new part of the next prompt is computed.

It does for sampling in this process what the prefix cache of a serving engine does. An episode then costs one pass over
its tokens, instead of one pass over the whole conversation at every turn.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

LIMIT = 2**30
"""Most bytes of keys and values in a cache."""


@dataclass(frozen=True)
class Past:
    """Keys and values for the beginnings of a batch of prompts, right-aligned.

    N: layers, B: prompts, H: heads, P: tokens, D: width.
    """

    lengths_B: list[int]
    """Number of tokens at the beginning of each prompt whose keys and values are known."""
    known_N2BHPD: torch.Tensor | None
    """Keys and values; None if nothing is known of any prompt."""
    mask_BP: torch.Tensor
    """1 for a token, 0 for padding."""

    def cache(self) -> DynamicCache | None:
        """The cached keys and values in the form that a transformers model takes."""
        if self.known_N2BHPD is None:
            return None
        cache = DynamicCache()
        for layer, (keys, values) in enumerate(self.known_N2BHPD):
            cache.update(keys, values, layer)
        return cache


class PrefixCache:
    """Keys and values of the conversations that were sampled last; the oldest are dropped first.

    It is valid for one set of weights: clear it when they change.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._held: OrderedDict[bytes, torch.Tensor] = OrderedDict()
        self._lengths: Counter[int] = Counter()
        self._bytes = 0

    def clear(self) -> None:
        self._held.clear()
        self._lengths.clear()
        self._bytes = 0

    def has_beginning_of(self, prompt: Sequence[int]) -> bool:
        """True if a beginning of the prompt is in the cache."""
        return self._longest(prompt) is not None

    def find(self, prompts_B: Sequence[Sequence[int]], device: torch.device) -> Past:
        """Take out the longest known beginning of each prompt, at most up to its last token, which is left to read."""
        keys_B = [self._longest(prompt) for prompt in prompts_B]
        found_B = [None if key is None else self._held[key] for key in keys_B]
        for key in {key for key in keys_B if key is not None}:
            self._forget(key)
        lengths_B = [0 if found is None else found.shape[3] for found in found_B]
        longest = max(lengths_B)
        mask_BP = torch.zeros(len(prompts_B), longest, dtype=torch.long, device=device)
        some = next((found for found in found_B if found is not None), None)
        if some is None:
            return Past(lengths_B, None, mask_BP)
        layers, two, heads, _, width = some.shape
        known = some.new_zeros(layers, two, len(prompts_B), heads, longest, width)
        for b, (found, length) in enumerate(zip(found_B, lengths_B, strict=True)):
            if found is not None:
                known[:, :, b, :, longest - length :] = found
                mask_BP[b, longest - length :] = 1
        return Past(lengths_B, known, mask_BP)

    def keep(self, cache: object, mask_BP: torch.Tensor, conversations: Mapping[int, Sequence[int]]) -> None:
        """Store the keys and values that the model computed.

        Args:
            cache: the cache that the model returned; ignored if it is not a plain list of keys and values.
            mask_BP: 1 for a token of the cache, 0 for padding.
            conversations: for some rows, by number, the first tokens of the row, whose keys and values are stored.
        """
        if not is_plain(cache):
            return
        for b, conversation in conversations.items():
            own = mask_BP[b].nonzero().squeeze(-1)[: len(conversation)]
            computed = [torch.stack((layer.keys[b][:, own], layer.values[b][:, own])) for layer in cache.layers]
            self._hold(_key(conversation), torch.stack(computed), len(conversation))
        while self._bytes > self._limit:
            self._forget(next(iter(self._held)))

    def _hold(self, key: bytes, known: torch.Tensor, length: int) -> None:
        if key in self._held:
            self._forget(key)
        self._held[key] = known
        self._lengths[length] += 1
        self._bytes += known.nbytes

    def _forget(self, key: bytes) -> None:
        known = self._held.pop(key)
        self._bytes -= known.nbytes
        self._lengths[known.shape[3]] -= 1
        self._lengths += Counter()  # drops the counts of zero

    def _longest(self, prompt: Sequence[int]) -> bytes | None:
        whole = _key(prompt)
        for length in sorted(self._lengths, reverse=True):
            if length < len(prompt) and (key := whole[: length * WIDTH]) in self._held:
                return key
        return None


def is_plain(cache: object) -> TypeGuard[DynamicCache]:
    """True if a cache is a list of keys and values of all tokens, and nothing else."""
    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)


WIDTH = array("q").itemsize


def _key(ids: Sequence[int]) -> bytes:
    return array("q", ids).tobytes()
