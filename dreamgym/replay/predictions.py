"""The cache of predictions: a text per content address, so that the same question always gets the same answer."""

from __future__ import annotations

from typing import Protocol


class Predictions(Protocol):
    """Keeps texts by their keys. Every method may be called from any replica."""

    async def get(self, key: bytes) -> str | None:
        """The stored prediction; None if there is none under this key."""

    async def put(self, key: bytes, prediction: str) -> str:
        """Store a prediction unless the key has one already; return the one that is stored."""

    async def forget(self, key: bytes) -> None:
        """Delete the prediction under this key, if there is one."""


class MemoryPredictions:
    """A Predictions store in a dictionary, for tests and notebooks."""

    def __init__(self) -> None:
        self._predictions: dict[bytes, str] = {}

    async def get(self, key: bytes) -> str | None:
        return self._predictions.get(key)

    async def put(self, key: bytes, prediction: str) -> str:
        return self._predictions.setdefault(key, prediction)

    async def forget(self, key: bytes) -> None:
        self._predictions.pop(key, None)
