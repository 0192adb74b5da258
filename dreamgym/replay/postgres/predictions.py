"""The cache of predictions in PostgreSQL."""

from __future__ import annotations

from dreamgym.replay.postgres.database import Database


class PostgresPredictions:
    """A Predictions store in PostgreSQL, shared by all replicas."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, key: bytes) -> str | None:
        rows = await self._database.fetch("SELECT body FROM predictions WHERE key = %(key)s", {"key": key})
        return str(rows[0][0]) if rows else None

    async def put(self, key: bytes, prediction: str) -> str:
        await self._database.fetch(
            "INSERT INTO predictions (key, body) VALUES (%(key)s, %(body)s) ON CONFLICT DO NOTHING",
            {"key": key, "body": prediction},
        )
        stays = await self.get(key)
        return prediction if stays is None else stays  # None if an old one was just pruned

    async def forget(self, key: bytes) -> None:
        await self._database.fetch("DELETE FROM predictions WHERE key = %(key)s RETURNING 1", {"key": key})
