"""Where predictions are remembered by their content address, so that a question is answered alike for ever."""

from __future__ import annotations

from typing import Protocol


class Predictions(Protocol):
    """Keeps texts by their keys. Every method may be called from any replica."""

    async def get(self, key: bytes) -> str | None:
        """What is remembered under the key."""

    async def put(self, key: bytes, prediction: str) -> str:
        """Remember it, unless another was remembered before; returns the one that stays."""

    async def forget(self, key: bytes) -> None:
        """Remember nothing under the key any more."""


class MemoryPredictions:
    """Predictions in a dictionary."""

    def __init__(self) -> None:
        self._predictions: dict[bytes, str] = {}

    async def get(self, key: bytes) -> str | None:
        return self._predictions.get(key)

    async def put(self, key: bytes, prediction: str) -> str:
        return self._predictions.setdefault(key, prediction)

    async def forget(self, key: bytes) -> None:
        self._predictions.pop(key, None)
