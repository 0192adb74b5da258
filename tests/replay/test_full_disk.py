"""If the disk of the database is full, the error is one sentence, and stored data stays as it was.

PostgreSQL writes to /dev/full at the moment that a table is written, so the error is the kernel's, handled by
PostgreSQL's own code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest

from dreamgym.errors import StoreError
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import Store
from dreamgym.testing.replay import ENV, sample_retrieval, sample_trajectory, sample_transition
from dreamgym.types import StepResult, Task

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full"),
]

FIRST = sample_trajectory("first", sample_transition("kitchen", "north", "hall"))
SECOND = sample_trajectory("second", sample_transition("hall", "south", "kitchen"), *FIRST.transitions)
SENTENCE = "has no space left .*No space left on device.*: free some on its disk, then do this again; nothing was chang"


@contextmanager
def full_disk(dsn: str, table: str) -> Iterator[None]:
    """Make every insert into this table fail within the block."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            """
            CREATE FUNCTION fill() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN COPY (SELECT 1) TO '/dev/full'; RETURN NULL; END $$
            """
        )
        connection.execute(f"CREATE TRIGGER full_disk AFTER INSERT ON {table} EXECUTE FUNCTION fill()")
        yield
        connection.execute("DROP FUNCTION fill CASCADE")


@pytest.mark.parametrize("table", ["tasks", "transitions_1", "trajectory_steps", "vectors_1_1", "world_states_1"])
@pytest.mark.parametrize("how", ["add", "upsert"])
async def test_a_trajectory_is_stored_whole_or_not_at_all(store: Store, dsn: str, table: str, how: str) -> None:
    await store.buffer.add([FIRST])
    before = await store.buffer.counts(ENV), await store.buffer.trajectories(ENV)
    with full_disk(dsn, table), pytest.raises(StoreError, match=SENTENCE):
        await (store.buffer.add([SECOND]) if how == "add" else store.buffer.upsert([SECOND]))
    assert (await store.buffer.counts(ENV), await store.buffer.trajectories(ENV)) == before
    assert await store.buffer.add([SECOND]) == 1
    assert (await store.buffer.nearest(sample_retrieval("hall", "south", k=1)))[0].transition.next_state == "kitchen"


async def test_an_episode_goes_on_when_there_is_room_again(store: Store, dsn: str) -> None:
    task = Task(id="go", env=ENV, instruction="Find the coin.")
    initial = StepResult(observation="kitchen")
    now = datetime.now(UTC)
    await store.episodes.create(
        Episode(id="one", env=ENV, task=task, seed=7, max_steps=9, initial=initial, expires_at=now)
    )
    with full_disk(dsn, "episode_steps"), pytest.raises(StoreError, match=SENTENCE):
        await store.episodes.append("one", FIRST.transitions[0], version=0)
    assert (await store.episodes.load("one")).version == 0
    await store.episodes.append("one", FIRST.transitions[0], version=0)
    assert (await store.episodes.load("one")).version == 1
