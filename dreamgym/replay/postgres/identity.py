"""The folder that an environment in PostgreSQL belongs to: recordings of two folders with one name must not mix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dreamgym.errors import InvalidInput
from dreamgym.replay.postgres.database import Database


class Claim(NamedTuple):
    """A folder whose recordings are to be stored or dreamed under an environment's name."""

    env: str
    identity: str
    folder: str
    """Path of the folder, for messages."""


CLAIM = """
UPDATE environments AS env SET identity = %(identity)s, folder = %(folder)s
WHERE name = %(env)s
  AND (identity IS NULL OR identity = %(identity)s OR NOT EXISTS (SELECT FROM trajectories WHERE env_id = env.id))
RETURNING id
"""


async def claim(database: Database, claims: Sequence[Claim]) -> None:
    """Record which folders these environments belong to, all or none. Any folder may claim an empty environment.

    Raises:
        InvalidInput: the recordings of another folder are stored under a name; the message says what to do.
    """
    first = {one.env: one for one in reversed(claims)}
    async with database.transaction() as connection:
        for one in claims:
            if one.identity != first[one.env].identity:
                raise _two(one, first[one.env].folder)
            names = one._asdict()
            await connection.execute("SELECT ensure_environment(%(env)s)", names)
            if (await (await connection.execute(CLAIM, names)).fetchone()) is not None:
                continue
            row = await (
                await connection.execute("SELECT folder FROM environments WHERE name = %(env)s", names)
            ).fetchone()
            raise _two(one, str(row[0]) if row else "another folder")


def _two(one: Claim, other: str) -> InvalidInput:
    return InvalidInput(
        f"{one.folder} and {other} have the same environment name, {one.env!r}, and their recordings must not mix: "
        f"change the name in one env.toml, or delete the stored recordings with `dreamgym db forget {one.env}`. If "
        "both folders are the same environment, copy environment.id from one folder into the other"
    )
