"""The approximate index on the vectors of an environment with many recorded keys: built, measured, and then used.

It contains only recorded keys, so dreams do not change its answers, and storing them does not cost index work. A
process that searches builds it in the background, with CREATE INDEX CONCURRENTLY; searches are exact meanwhile. A
process that only adds, such as practice in reality, does not build one, because each key added to an index takes
milliseconds. An index is used once its recall has been measured and is high enough. It is measured again when the
partition has grown.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from uuid import UUID

import numpy as np
import psycopg
from pgvector import HalfVector

from dreamgym.errors import DreamGymError
from dreamgym.replay.buffer import GROUNDED
from dreamgym.replay.keys import source_mask
from dreamgym.replay.postgres.database import Database

logger = logging.getLogger(__name__)

INDEXED_KEYS = 10_000
"""Number of recorded keys from which on an environment has an index. With fewer, every search is exact."""
RECALL = 0.98
"""Lowest recall, as a share of the 5 nearest keys, with which an index is used."""
INDEXED_RESULTS = 40
"""How many of the nearest keys a search of an index finds, which is twice what a dream usually asks for. An exact
search finds `SIMILAR_KEYS`; here each key costs 2 % of the search."""
EF_SEARCH = (INDEXED_RESULTS, 48, 56, 64, 80, 100, 200, 400, 800)
"""Numbers of candidates that a search may keep; the first with enough recall is taken."""
BUILD = "m = 20, ef_construction = 256"
"""Neighbours of a key, and candidates for them when it is inserted. Among a million keys, a search with 48 candidates
and 20 neighbours finds 0.99 of the nearest keys in 2.0 ms of CPU; with 64 candidates it takes 2.6 ms. With 12
neighbours and 64 candidates it found 0.93 in 2.1 ms."""
NEIGHBOURS = 5
QUESTIONS = 50
"""Number of queries with which the recall is measured."""
GROWN = 1.5
"""A partition that has grown by this factor is measured again."""
RETRY = "1 hour"
"""Pause after a build that failed."""
LOOK_S = 10.0
"""How long a process relies on what it knows about an index."""
QUIET_S = 2.0
"""An index is built when nothing was added for this long: adding to a table with an index takes a hundred times as
long."""
INDEX_LOCK = 728_904
EVERYTHING = 2**63 - 1
"""A watermark above every position: it hides nothing."""

RECORDED = f"sources & {source_mask(GROUNDED)} <> 0"
"""Condition on the keys in an index. PostgreSQL uses the index only for a search with exactly this condition."""
EXACT = """
SELECT key, state, action, 1 - distance AS cosine
FROM (
  SELECT key, state, action, (embedding <=> %(vector)s) + 0 AS distance  -- no index is in the order of a sum
  FROM vectors_{encoder}_{env}
  WHERE env_id = {env} AND sources & %(mask)s <> 0 AND first_at <= %(as_of)s AND starts_with(action, %(tool)s)
    AND embedding IS NOT NULL
  ORDER BY distance, key  -- of equally near keys always the same ones
  LIMIT %(keys)s + (SELECT count(DISTINCT transition_id) FROM trajectory_steps WHERE trajectory_id = %(exclude)s)
) AS nearest"""
FILTER = f"""
env_id = {{env}} AND {RECORDED} AND CASE
  WHEN sources & %(mask)s <> 0 AND first_at <= %(as_of)s AND starts_with(action, %(tool)s) THEN true ELSE false
END
"""
"""The conditions are in a CASE, because the planner assumes that it lets half of the keys pass. So one plan serves all
queries; planning each of them would take a fifth of its time. If the planner saw the conditions, it would assume their
worst values and scan the table."""
APPROXIMATE = f"""
WITH setting AS MATERIALIZED (  -- of this statement only, so that connections may be pooled
  SELECT set_config('hnsw.iterative_scan', 'relaxed_order', true) AS scan,
         set_config('hnsw.ef_search', %(ef_search)s, true) AS width
), near AS MATERIALIZED (
  SELECT key, state, action, embedding <=> %(vector)s AS distance
  FROM vectors_{{encoder}}_{{env}}
  WHERE {FILTER} AND (SELECT scan || width FROM setting) <> ''  -- checked once, before the scan begins
  ORDER BY distance
  LIMIT {{limit}}  -- a number: the planner takes an expression for a tenth of the table, and scans it
), same_state AS MATERIALIZED (  -- the best answers of all, and what an approximate search misses most
  SELECT key, state, action, (embedding <=> %(vector)s) + 0 AS distance
  FROM vectors_{{encoder}}_{{env}}
  WHERE {FILTER} AND state = %(state)s
  LIMIT {{limit}}
)
SELECT key, state, action, 1 - distance AS cosine FROM near
UNION ALL
SELECT key, state, action, 1 - distance FROM same_state WHERE key NOT IN (SELECT key FROM near)"""

STATE = """
SELECT greatest(leaf.reltuples, 0)::bigint, coalesce(pg_index.indisvalid, false), known.vectors, known.keys,
  known.ef_search, coalesce(known.error <> 'being built' AND known.looked_at > now() - %(retry)s::interval, false)
FROM pg_class AS leaf
LEFT JOIN pg_index ON indexrelid = to_regclass(leaf.relname || '_recorded')
LEFT JOIN vector_indexes AS known ON known.encoder_id = %(encoder)s AND known.env_id = %(env)s
WHERE leaf.oid = to_regclass(%(table)s)
"""
BEGUN = "being built"
KEEP = """
INSERT INTO vector_indexes (encoder_id, env_id, vectors, keys, ef_search, recall, error)
VALUES (%(encoder)s, %(env)s, %(vectors)s, %(keys)s, %(ef_search)s, %(recall)s, %(error)s)
ON CONFLICT (encoder_id, env_id) DO UPDATE SET vectors = excluded.vectors, keys = excluded.keys,
  ef_search = excluded.ef_search, recall = excluded.recall, error = excluded.error, looked_at = now()
"""
BUILDING = "SELECT 1 FROM pg_stat_progress_create_index WHERE relid = to_regclass(%(table)s)"
SAMPLE = f"""
SELECT embedding, state, action, first_at FROM {{table}}
WHERE env_id = {{env}} AND {RECORDED} AND key > %(after)s ORDER BY key LIMIT %(count)s
"""
"""Query for a sample of keys. Keys are digests, so the first ones in order are a random sample, and always the same
one."""

DESCRIBED = """
SELECT leaf.relname, leaf.reltuples::bigint, pg_table_size(leaf.oid), known.keys, known.ef_search, known.recall,
  known.error, coalesce(pg_index.indisvalid, false), coalesce(pg_relation_size(indexrelid), 0),
  (SELECT (100 * tuples_done / greatest(tuples_total, 1))::int FROM pg_stat_progress_create_index
   WHERE relid = leaf.oid LIMIT 1)
FROM environments AS env JOIN encoders AS encoder ON ready
JOIN pg_class AS leaf ON leaf.oid = to_regclass(format('vectors_%%s_%%s', encoder.id, env.id))
LEFT JOIN pg_index ON indexrelid = to_regclass(leaf.relname || '_recorded')
LEFT JOIN vector_indexes AS known ON known.encoder_id = encoder.id AND known.env_id = env.id
WHERE env.name = %(env)s
"""
COUNTED = "SELECT count(*) FROM (SELECT FROM {table} LIMIT {most}) AS first"
"""Query for the rows of a partition that PostgreSQL has never estimated, which it does from about 50 rows on."""


async def described(database: Database, env: str) -> str:
    """Describe in one line how an environment's similar keys are searched: the index, its size and its recall."""
    rows = await database.fetch(DESCRIBED, {"env": env})
    if not rows:
        return "no vectors"
    table, vectors, table_bytes, keys, ef_search, recall, error, valid, index_bytes, percent = rows[0]
    precision = "about "
    if vectors < 0:
        ((vectors,),) = await database.fetch(COUNTED.format(table=table, most=INDEXED_KEYS), {})
        precision = "at least " if vectors == INDEXED_KEYS else ""
    keys = vectors if keys is None else keys
    size = f"{precision}{vectors:,} keys, {table_bytes / 2**20:,.0f} MB"
    if percent is not None:
        return f"{size}; the index is being built ({percent} %), and searches are exact"
    if valid and ef_search is not None:
        return f"{size}; index of {keys:,} recorded keys, {index_bytes / 2**20:,.0f} MB, recall {recall:.3f}"
    if valid and recall is not None:
        return f"{size}; searches are exact, since the recall of the index is {recall:.3f} and {RECALL} is needed"
    if error is not None and error != BEGUN:
        return f"{size}; searches are exact, since the index could not be built: {error}"
    if error == BEGUN or keys >= INDEXED_KEYS:
        return f"{size}; searches are exact until the index is built by the next process that searches"
    return f"{size}; searches are exact: an index is built from {INDEXED_KEYS:,} recorded keys on"


@dataclass(frozen=True)
class IndexState:
    """An index and its last measurement."""

    vectors: int
    """Rows of the partition, as PostgreSQL estimates them."""
    valid: bool
    """True if a complete index exists."""
    vectors_then: int | None
    """Rows when the partition was last looked at; None: never."""
    keys: int | None
    """Number of recorded keys when the partition was last looked at; None: never."""
    ef_search: int | None
    failed: bool
    """True if a build failed a short time ago."""

    @property
    def needs_work(self) -> bool:
        """True if the index must be built or measured."""
        if self.vectors < INDEXED_KEYS or self.failed:
            return False
        if self.vectors_then is None or self.keys is None:
            return True
        if self.keys < INDEXED_KEYS:  # the keys that were added since then may be recorded ones
            return self.keys + self.vectors - self.vectors_then >= INDEXED_KEYS
        return not self.valid or self.vectors >= GROWN * self.vectors_then

    @property
    def usable(self) -> int | None:
        """Candidates that a search of the index must keep; None: searches are exact."""
        return self.ef_search if self.valid and (self.keys or 0) >= INDEXED_KEYS else None


class VectorIndexes:
    """The indexes of all environments for one encoder, as one process knows and maintains them."""

    def __init__(self, database: Database, encoder_id: int) -> None:
        self._database = database
        self._encoder_id = encoder_id
        self._seen: dict[int, tuple[float, int | None]] = {}
        """Environment to the time when its index was last looked up, and its `usable`."""
        self._adding: Counter[int] = Counter()
        """Number of loads that are under way, by environment."""
        self._added_at: dict[int, float] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._turn = asyncio.Lock()
        """Allows work on one index at a time: it keeps one connection and needs another, and the pool has few."""

    async def ef_search(self, env: int) -> int | None:
        """Candidates that a search of the environment's index must keep; None: search exactly.

        A missing index is built in the background.
        """
        looked_at, usable = self._seen.get(env, (-LOOK_S, None))
        if time.monotonic() - looked_at >= LOOK_S:
            state = await self._state(env)
            usable = state.usable
            self._seen[env] = time.monotonic(), usable
            if state.needs_work and env not in self._tasks:
                self._tasks[env] = asyncio.create_task(self._tend_in_background(env))
        return usable

    @asynccontextmanager
    async def adding(self, envs: Collection[int]) -> AsyncIterator[None]:
        """A context in which rows are added to environments; this process builds no index of theirs until it ends.

        Embedding takes longer than storing, so minutes can pass between two transactions of a load. An index that is
        built in between makes the rest of the load ten times as slow.
        """
        self._adding.update(envs)
        try:
            yield
        finally:
            self._adding.subtract(envs)
            self._added_at |= dict.fromkeys(envs, time.monotonic())

    async def settle(self) -> None:
        """Wait for the background tasks."""
        await asyncio.gather(*self._tasks.values())

    async def tend(self, env: int) -> None:
        """Build and measure the index of an environment if it needs it; one process at a time does so.

        An index that an interrupted build left behind is dropped first. Raises StoreError.
        """
        # the lock is one of the transaction, because behind a pooler the next transaction may have another connection.
        # The lock's statement has no parameters: with parameters it would keep its snapshot until the transaction ends,
        # and the build waits for all snapshots
        async with self._turn, self._database.transaction() as turn:
            await turn.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor = await turn.execute(f"SELECT pg_try_advisory_xact_lock({INDEX_LOCK}, {env})")
            taken = await cursor.fetchone()
            state = await self._state(env)
            if taken is None or not taken[0] or not state.needs_work:
                return
            await self._work(env, state)
            self._seen.pop(env, None)

    async def close(self) -> None:
        """Stop the background tasks. An interrupted build is started again by the next process."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _tend_in_background(self, env: int) -> None:
        try:
            while True:
                quiet_s = 0.0 if self._adding[env] else time.monotonic() - self._added_at.get(env, -QUIET_S)
                if quiet_s >= QUIET_S:
                    break
                await asyncio.sleep(QUIET_S - quiet_s)
            await self.tend(env)
        except (DreamGymError, psycopg.Error) as error:  # nobody waits for it, and exact searches need no index
            logger.warning("no approximate index, and searches stay exact: %s", error)
        finally:
            del self._tasks[env]

    async def _state(self, env: int) -> IndexState:
        names = {"encoder": self._encoder_id, "env": env, "table": self._table(env), "retry": RETRY}
        (row,) = await self._database.fetch(STATE, names)
        return IndexState(*row)

    def _table(self, env: int) -> str:
        return f"vectors_{self._encoder_id}_{env}"

    async def _work(self, env: int, state: IndexState) -> None:
        table = self._table(env)
        ((keys,),) = await self._database.fetch(f"SELECT count(*) FROM {table} WHERE env_id = {env} AND {RECORDED}", {})
        known = {"encoder": self._encoder_id, "env": env, "vectors": state.vectors, "keys": keys}
        known |= {"ef_search": None, "recall": None, "error": None}
        wanted = keys >= INDEXED_KEYS
        try:
            if not state.valid and not await self._database.fetch(BUILDING, {"table": table}):
                for index in (f"{table}_recorded", f"{table}_states"):
                    await self._database.fetch(f"DROP INDEX CONCURRENTLY IF EXISTS {index}", {})
                if wanted:
                    await self._database.fetch(KEEP, {**known, "error": BEGUN})
                    await self._database.fetch(
                        f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {table}_states ON {table} USING hash (state)", {}
                    )
                    await self._database.fetch(
                        f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {table}_recorded ON {table} "
                        f"USING hnsw (embedding halfvec_cosine_ops) WITH ({BUILD}) WHERE {RECORDED}",
                        {},
                    )
            if wanted:
                known["ef_search"], known["recall"] = await self._measure(env)
        except DreamGymError as error:
            await self._database.fetch(KEEP, {**known, "error": str(error)})
            raise
        await self._database.fetch(KEEP, known)

    async def _measure(self, env: int) -> tuple[int | None, float]:
        """The fewest candidates with which a search has enough recall, and the recall. None: no number is enough.

        A test query is a recorded state with the action of another key, like most queries that no recording answers.
        Every second one is restricted to the tool of that action, and every third to an old watermark.
        """
        names = {"env": env, "encoder": self._encoder_id, "limit": INDEXED_RESULTS}
        query = SAMPLE.format(table=self._table(env), env=env)
        rows = await self._database.fetch(query, {"after": UUID(int=0), "count": QUESTIONS + 1})
        states = np.array([row[0].to_numpy() for row in rows], dtype=np.float32)
        half = states.shape[1] // 2
        vectors = np.concatenate([states[:-1, :half], states[1:, half:]], axis=1)
        questions: list[dict[str, object]] = [
            {
                "vector": HalfVector(vector),
                "state": state,
                "mask": source_mask(GROUNDED),
                "tool": f"{action.partition('{')[0]}{{" if number % 2 else "",
                "as_of": first_at if number % 3 == 2 else EVERYTHING,
                "keys": NEIGHBOURS,
                "exclude": "",
            }
            for number, (vector, (_, state, *_), (*_, action, first_at)) in enumerate(
                zip(vectors, rows[:-1], rows[1:], strict=True)
            )
        ]
        truth = [await self._database.fetch(EXACT.format(**names), question) for question in questions]
        recall = 0.0
        for width in EF_SEARCH:
            found = total = 0
            for question, nearest in zip(questions, truth, strict=True):
                wide = {**question, "ef_search": str(width)}
                near = await self._database.fetch(APPROXIMATE.format(**names), wide)
                # of keys that are equally near, any will do
                least = min((row[3] for row in nearest), default=2.0)
                found += min(len(nearest), sum(row[3] >= least for row in near))
                total += len(nearest)
            recall = found / max(total, 1)
            if recall >= RECALL:
                return width, recall
        return None, recall
