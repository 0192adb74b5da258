"""A PostgreSQL server that DreamGym starts by itself unless DREAMGYM_DSN gives the address of another."""

from dreamgym.replay.embedded.server import (
    EmbeddedServer,
    Status,
    databases,
    default_folder,
    remove,
    row_counts,
    status,
    stop,
)

__all__ = ["EmbeddedServer", "Status", "databases", "default_folder", "remove", "row_counts", "status", "stop"]
