"""The keys of an environment with their vectors.

A recorded key is stored with its vector. A key that was only dreamed is stored without one: few questions search among
dreams, and embedding them would take a third of the time of practice. `embed_dreams` computes what is missing before
such a search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from pgvector import HalfVector

from dreamgym.replay.buffer import GROUNDED
from dreamgym.replay.keys import Key, KeyEncoder, source_mask
from dreamgym.replay.postgres import binary
from dreamgym.replay.postgres.database import WRITE_LOCK, Connection, Database

if TYPE_CHECKING:
    from dreamgym.replay.postgres.add import Batch, Id

RECORDED = source_mask(GROUNDED)
AT_ONCE = 1_000
"""Number of dreamed keys that are embedded and stored together."""


@dataclass(frozen=True)
class Vectors:
    """The vectors of some keys."""

    rows: Mapping[Id, int]
    """Key to its row in `values`."""
    values: NDArray[np.float16]

    @classmethod
    async def of(cls, encoder: KeyEncoder, keys: Mapping[Id, Key], wanted: Sequence[Id]) -> Vectors:
        """Embed the wanted keys among these."""
        values = await encoder.encode([keys[key] for key in wanted])
        return cls({key: row for row, key in enumerate(wanted)}, values)

    def take(self, keys: Iterable[Id]) -> NDArray[np.float16]:
        """The vectors of some of these keys, in the order given; shape (keys, dim)."""
        found: NDArray[np.float16] = self.values[[self.rows[key] for key in keys]]
        return found


NO_VECTORS = Vectors({}, np.empty((0, 0), dtype=np.float16))


async def encode(database: Database, encoder: KeyEncoder, encoder_id: int, env_id: int, batch: Batch) -> Vectors:
    """Vectors of a batch's recorded keys that the store lacks. `store_keys` adds those that it loses meanwhile."""
    recorded = _recorded(batch)
    rows = await database.fetch(
        f"SELECT uuid_send(key) FROM vectors_{encoder_id}_{env_id} "
        f"WHERE env_id = {env_id} AND key = ANY (%(keys)s) AND embedding IS NOT NULL",
        {"keys": binary.array("uuid", binary.uuid(recorded))},
    )
    known = {row[0] for row in rows}
    return await Vectors.of(encoder, batch.keys, [key for key in recorded if key not in known])


async def store_keys(
    connection: Connection,
    encoder: KeyEncoder,
    encoder_id: int,
    env_id: int,
    batch: Batch,
    vectors: Vectors,
    position: int,
) -> None:
    """Store the keys of a batch, in a transaction that holds the write lock."""
    table = f"vectors_{encoder_id}_{env_id}"
    cursor = await connection.execute(
        f"SELECT uuid_send(key), sources, first_at, embedding IS NOT NULL FROM {table} "
        f"WHERE env_id = {env_id} AND key = ANY (%s)",
        [binary.array("uuid", binary.uuid(batch.keys))],
        binary=True,
    )
    rows = await cursor.fetchall()
    known: dict[Id, tuple[int, int]] = {key: (sources, first_at) for key, sources, first_at, _ in rows}
    embedded = {key for key, _, _, is_embedded in rows if is_embedded}
    recorded = _recorded(batch)
    new = [key for key in recorded if key not in known]
    lacking = [key for key in recorded if key in known and key not in embedded]
    # `encode` looked before the lock was taken: a key that was retired since then needs its vector after all
    if any(key not in vectors.rows for key in (*new, *lacking)):
        vectors = await Vectors.of(encoder, batch.keys, [*new, *lacking])
    dreamed = [key for key in batch.keys if key not in known and not batch.key_sources[key] & RECORDED]
    await _copy(connection, table, env_id, batch, dreamed, position)
    if new:
        await _copy(connection, table, env_id, batch, new, position, vectors.take(new))
    if lacking:
        await _embed(connection, table, env_id, lacking, vectors.take(lacking))
    # a search skips a key if its mask holds no allowed source, or if it was first seen after the watermark, so a known
    # key gets the sources of this batch as well, and the position of a replaced trajectory that stands before its own
    now = {
        key: (sources | batch.key_sources[key], min(first_at, batch.first_at.get(key, first_at)))
        for key, (sources, first_at) in known.items()
    }
    if changed := {key: row for key, row in now.items() if row != known[key]}:
        await connection.execute(
            f"UPDATE {table} AS old SET sources = new.sources, first_at = new.first_at "
            f"FROM unnest(%s::uuid[], %s::smallint[], %s::bigint[]) AS new (key, sources, first_at) "
            f"WHERE env_id = {env_id} AND old.key = new.key",
            [
                binary.array("uuid", binary.uuid(changed)),
                binary.array("int2", binary.int2(sources for sources, _ in changed.values())),
                binary.array("int8", binary.int8(first_at for _, first_at in changed.values())),
            ],
        )


async def _copy(
    connection: Connection,
    table: str,
    env_id: int,
    batch: Batch,
    keys: Sequence[Id],
    position: int,
    values: NDArray[np.float16] | None = None,
) -> None:
    """Copy keys that are not stored, with their vectors or without."""
    await binary.copy(
        connection,
        f"{table} (env_id, key, sources, state, action, first_at{'' if values is None else ', embedding'})",
        binary.int2([env_id] * len(keys)),
        binary.uuid(keys),
        binary.int2(batch.key_sources[key] for key in keys),
        binary.text(batch.keys[key][0] for key in keys),
        binary.text(batch.keys[key][1] for key in keys),
        binary.int8(batch.first_at.get(key, position) for key in keys),
        *([] if values is None else [binary.halfvec(values)]),
    )


async def embed_dreams(database: Database, encoder: KeyEncoder, encoder_id: int, env_id: int) -> None:
    """Compute the vectors of the dreamed keys that have none, so that a search finds them."""
    table = f"vectors_{encoder_id}_{env_id}"
    missing = (
        f"SELECT uuid_send(key), state, action FROM {table} "
        f"WHERE env_id = {env_id} AND embedding IS NULL LIMIT {AT_ONCE}"
    )
    while rows := await database.fetch(missing, {}):
        values = await encoder.encode([(state, action) for _, state, action in rows])
        async with database.transaction() as connection:
            await connection.execute("SELECT pg_advisory_xact_lock(%s, %s)", [WRITE_LOCK, env_id])
            await _embed(connection, table, env_id, [key for key, _, _ in rows], values)


async def _embed(
    connection: Connection, table: str, env_id: int, keys: Sequence[Id], values: NDArray[np.float16]
) -> None:
    """Give stored keys their vectors, under the write lock. A key that is gone by now is skipped."""
    await connection.cursor().executemany(
        f"UPDATE {table} SET embedding = %s WHERE env_id = {env_id} AND key = %s",
        [(HalfVector(vector), UUID(bytes=key)) for key, vector in zip(keys, values, strict=True)],
    )


def _recorded(batch: Batch) -> list[Id]:
    """Keys of a batch that at least one recording contains."""
    return [key for key in batch.keys if batch.key_sources[key] & RECORDED]
