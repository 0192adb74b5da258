"""A PostgreSQL server that DreamGym starts by itself when no `--dsn` is given."""

from dreamgym.replay.embedded.server import EmbeddedServer, Status, default_folder, row_counts, status, stop

__all__ = ["EmbeddedServer", "Status", "default_folder", "row_counts", "status", "stop"]
