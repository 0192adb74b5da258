"""The approximate index of an environment with many recorded keys, in a real PostgreSQL."""

import asyncio
import logging
import random
from collections.abc import Sequence

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg import conninfo

from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import StoreError
from dreamgym.replay.buffer import Retrieval
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.postgres.vector_index import described
from dreamgym.replay.ranking import SIMILAR_KEYS
from dreamgym.testing.replay import ENV, sample_retrieval, sample_trajectory, sample_transition
from dreamgym.types import Source, Trajectory

pytestmark = pytest.mark.anyio

WORDS = ("coin", "lamp", "knife", "apple", "book", "key", "chair", "table", "rope", "bottle", "candle", "mirror")
LENGTH = 50
KEYS = 3_000
"""Recorded keys from which these tests build an index. Loading a user's 10,000 would take each test seconds."""
INDEX = "SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('vectors_1_1_recorded')"


def walks(keys: int, source: Source = Source.REAL, env: str = ENV) -> list[Trajectory]:
    """Trajectories with this number of distinct keys."""
    return [
        sample_trajectory(
            f"{source} {number}",
            *(
                sample_transition(place(number, step), f"take {WORDS[step % 12]}", place(number, step + 1))
                for step in range(LENGTH)
            ),
            world=f"house {number}",
            source=source,
            env=env,
        )
        for number in range(keys // LENGTH)
    ]


def place(number: int, step: int) -> str:
    draw = random.Random(f"{number} {step}")
    return f"House {number}, room {step}: {' '.join(draw.choices(WORDS, k=5))}"


def asked(number: int, **changes: object) -> Retrieval:
    return sample_retrieval(place(number, number % LENGTH), "open the window", **changes)


@pytest.fixture
async def small(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store with short vectors, so that an index is built in seconds."""
    monkeypatch.setattr("dreamgym.replay.postgres.vector_index.INDEXED_KEYS", KEYS)
    return await open_store(empty_dsn, TrigramEncoder(24))


async def test_an_index_is_built_from_the_stated_size_on_is_measured_and_answers_as_the_exact_search_does(
    small: Store,
) -> None:
    store = small
    everything = frozenset(Source)  # dreams are not in the index: a search that may return them is exact
    await store.buffer.add(walks(KEYS - LENGTH))
    await store.buffer.indexes.tend(1)
    assert await store.database.fetch(INDEX, {}) == []
    assert f"searches are exact: an index is built from {KEYS:,}" in await described(store.database, ENV)
    await store.buffer.add(walks(KEYS + 2 * LENGTH))
    await store.database.fetch("ANALYZE vectors_1_1", {})
    await store.buffer.indexes.tend(1)
    assert await store.database.fetch(INDEX, {}) == [(True,)]
    assert await store.buffer.indexes.ef_search(1) is not None
    assert "recall 0.9" in (said := await described(store.database, ENV)) or "recall 1.000" in said
    same = 0
    for number in range(50):
        near = await store.buffer.nearest(asked(number))
        assert len(near) == 3
        same += near == await store.buffer.nearest(asked(number, sources=everything))
    assert same >= 48
    await store.close()


async def test_keys_are_counted_up_to_the_size_of_an_index_if_postgresql_has_never_estimated_them(small: Store) -> None:
    store = small
    await store.buffer.add(walks(LENGTH))
    assert f"{LENGTH} keys, 0 MB; searches are exact: an index is built" in await described(store.database, ENV)
    await store.database.fetch("ANALYZE vectors_1_1", {})
    assert f"about {LENGTH} keys, 0 MB" in await described(store.database, ENV)
    await store.buffer.add(walks(KEYS + LENGTH))
    await store.database.fetch("UPDATE pg_class SET reltuples = -1 WHERE relname = 'vectors_1_1'", {})
    said = await described(store.database, ENV)
    assert f"at least {KEYS:,} keys, " in said
    assert "until the index is built by the next process that searches" in said
    await store.close()


async def test_a_search_with_a_filter_that_few_keys_pass_finds_all_of_them(small: Store) -> None:
    store = small
    rare = sample_trajectory("rare", sample_transition("a shed", "dig", "a hole"), world="a garden")
    await store.buffer.add([rare])
    then = await store.buffer.watermark(ENV)
    await store.buffer.add(walks(KEYS + LENGTH))
    await store.buffer.indexes.tend(1)
    assert await store.buffer.indexes.ef_search(1) is not None
    (found,) = await store.buffer.nearest(asked(3, as_of=then))
    assert found.transition == rare.transitions[0]
    excluded = await store.buffer.nearest(asked(3, exclude="real 3"))
    assert len(excluded) == 3
    assert all(found.world != "house 3" for found in excluded)
    await store.close()


class Blurred(TrigramEncoder):
    """An encoder that gives all texts the same vector."""

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        return np.ones((len(texts), self.dim), dtype=np.float32)


async def test_of_keys_that_are_equally_near_the_same_ones_are_found_whatever_their_order_in_the_table(
    empty_dsn: str,
) -> None:
    store = await open_store(empty_dsn, Blurred(24))
    steps = [sample_transition("a shed", f"dig {number}", f"hole {number}") for number in range(SIMILAR_KEYS + 20)]
    found = []
    for env, ordered in (("forwards", steps), ("backwards", steps[::-1])):
        for half in (ordered[:40], ordered[40:]):
            await store.buffer.add([sample_trajectory(f"{env} {half[0].next_state}", *half, env=env)])
        near = await store.buffer.nearest(sample_retrieval("a shed", "dig", env=env, k=SIMILAR_KEYS, history=None))
        found.append({one.transition.next_state for one in near})
    assert len(found[0]) == SIMILAR_KEYS
    assert found[0] == found[1]
    await store.close()


async def test_dreams_alone_are_searched_exactly_however_many_there_are(small: Store) -> None:
    store = small
    await store.buffer.add(walks(KEYS + LENGTH, Source.SYNTHETIC))
    await store.buffer.indexes.tend(1)
    assert await store.database.fetch(INDEX, {}) == []
    assert await store.buffer.indexes.ef_search(1) is None
    await store.close()


async def test_the_index_that_an_interrupted_build_left_is_replaced_and_never_searched(
    small: Store, empty_dsn: str
) -> None:
    store = small
    await store.buffer.add(walks(KEYS + LENGTH))
    exact = await store.buffer.nearest(asked(7))
    with psycopg.connect(empty_dsn, autocommit=True) as other:
        other.execute("SET statement_timeout = '20ms'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            other.execute(
                "CREATE INDEX CONCURRENTLY vectors_1_1_recorded ON vectors_1_1 "
                "USING hnsw (embedding halfvec_cosine_ops)"
            )
    assert await store.database.fetch(INDEX, {}) == [(False,)]
    assert await store.buffer.indexes.ef_search(1) is None
    assert await store.buffer.nearest(asked(7)) == exact
    assert "searches are exact" in await described(store.database, ENV)
    await store.buffer.indexes.tend(1)
    assert await store.database.fetch(INDEX, {}) == [(True,)]
    await store.close()


async def test_others_add_and_search_while_an_index_is_built(small: Store, empty_dsn: str) -> None:
    store = small
    await store.buffer.add(walks(KEYS + LENGTH))
    other = await open_store(empty_dsn, TrigramEncoder(24))
    with psycopg.connect(empty_dsn) as writer:
        writer.execute("LOCK TABLE vectors_1_1 IN ROW EXCLUSIVE MODE")  # the build waits for writers
        building = asyncio.gather(store.buffer.indexes.tend(1), other.buffer.indexes.tend(1))
        while "the index is being built (" not in (said := await described(store.database, ENV)):
            assert not building.done()
    assert said.endswith("searches are exact")
    added = 0
    while not building.done():
        walk = sample_trajectory(f"more {added}", sample_transition(f"yard {added}", "dig", "a hole"))
        assert await other.buffer.add([walk]) == 1
        assert len(await other.buffer.nearest(asked(added))) == 3
        added += 1
    await building
    assert added > 0
    assert await store.database.fetch(INDEX, {}) == [(True,)]
    await other.close()
    await store.close()


async def test_more_environments_than_connections_get_their_indexes_and_are_searched_meanwhile(
    empty_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.vector_index.INDEXED_KEYS", 300)
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # a pool of four connections
    store = await open_store(empty_dsn, TrigramEncoder(24))
    names = [f"environment {number}" for number in range(5)]
    for name in names:
        await store.buffer.add([walk.model_copy(update={"id": f"{name}/{walk.id}"}) for walk in walks(350, env=name)])
    await store.database.fetch("ANALYZE", {})
    envs = [env for (env,) in await store.database.fetch("SELECT id FROM environments", {})]
    assert len(envs) == 5
    building = asyncio.gather(*map(store.buffer.indexes.tend, envs))
    found = await asyncio.gather(*(store.buffer.nearest(asked(1, env=name)) for name in names))
    assert [len(near) for near in found] == [3] * 5
    await asyncio.wait_for(building, 60)
    built = await store.database.fetch("SELECT count(*) FROM vector_indexes WHERE error IS NULL", {})
    assert built == [(5,)]
    await store.close()


async def test_a_process_that_only_adds_builds_no_index_and_the_first_search_has_it_built(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.vector_index.QUIET_S", 0.01)
    store = small
    await store.buffer.add(walks(KEYS + LENGTH))
    await store.buffer.indexes.settle()
    assert await store.database.fetch("SELECT * FROM vector_indexes", {}) == []
    assert "until the index is built by the next process that searches" in await described(store.database, ENV)
    await store.buffer.nearest(asked(1))
    await store.buffer.indexes.settle()
    assert await store.database.fetch(INDEX, {}) == [(True,)]
    await store.close()


async def test_no_index_is_built_between_two_transactions_of_a_load(
    small: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.vector_index.QUIET_S", 0.01)
    store, walked = small, walks(KEYS + 2 * LENGTH)
    await store.buffer.add(walked[:1])
    async with store.buffer.indexes.adding([1]):
        await store.buffer.add(walked[1:-1])
        await store.buffer.nearest(asked(1))
        building = asyncio.create_task(store.buffer.indexes.settle())
        assert await asyncio.wait({building}, timeout=0.5) == (set(), {building})
        assert await store.database.fetch("SELECT * FROM vector_indexes", {}) == []
        await store.buffer.add(walked[-1:])
    await building
    assert await store.database.fetch(INDEX, {}) == [(True,)]
    await store.close()


async def test_a_failed_build_is_reported_and_harms_nothing(
    small: Store, empty_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = small
    await store.buffer.add(walks(KEYS + LENGTH))
    before = await store.buffer.counts(ENV)
    with psycopg.connect(empty_dsn, autocommit=True) as owner:  # fail as on a full disk, whose code is 53100
        owner.execute(
            """
            CREATE FUNCTION refuse() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
              RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100';
            END $$
            """
        )
        owner.execute(
            "CREATE EVENT TRIGGER full_disk ON ddl_command_start WHEN TAG IN ('CREATE INDEX') EXECUTE FUNCTION refuse()"
        )
    with caplog.at_level(logging.WARNING):
        await store.buffer.nearest(asked(1))
        await store.buffer.indexes.settle()
    assert "No space left on device" in caplog.text
    assert "the index could not be built" in await described(store.database, ENV)
    assert await store.buffer.counts(ENV) == before
    assert len(await store.buffer.nearest(asked(1))) == 3
    await store.close()


async def test_a_build_that_the_databases_time_limit_cuts_off_is_reported_and_not_begun_again_at_once(
    small: Store, empty_dsn: str
) -> None:
    await small.buffer.add(walks(KEYS + LENGTH))
    limited = conninfo.make_conninfo(empty_dsn, options="-c statement_timeout=1s")
    store = await open_store(limited, TrigramEncoder(24))
    with psycopg.connect(empty_dsn) as writer:
        writer.execute("LOCK TABLE vectors_1_1 IN ROW EXCLUSIVE MODE")  # the build waits for writers
        with pytest.raises(StoreError, match=r"statement timeout.*ALTER ROLE postgres SET statement_timeout = 0"):
            await store.buffer.indexes.tend(1)
    await store.buffer.indexes.tend(1)
    assert await store.database.fetch(INDEX, {}) == []
    assert "could not be built: " in await described(store.database, ENV)
    await store.close()
    await small.close()
