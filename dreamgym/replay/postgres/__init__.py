"""The replay buffer, the episodes and the predictions in PostgreSQL. `open_store` opens all three."""

from dreamgym.replay.postgres.store import Store, open_store

__all__ = ["Store", "open_store"]
