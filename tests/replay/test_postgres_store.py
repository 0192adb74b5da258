import asyncio
import hashlib
import logging
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib import resources

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray
from psycopg_pool import AsyncConnectionPool

from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import InvalidInput, StoreError, UnknownName
from dreamgym.replay.buffer import Upserted
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.keys import digest_id, key_of
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.postgres import database as database_module
from dreamgym.replay.postgres.database import Database
from dreamgym.replay.postgres.episodes import CHANGING
from dreamgym.replay.postgres.forget import forget
from dreamgym.replay.postgres.listing import StoredEpisodes
from dreamgym.testing.replay import ENV, sample_retrieval, sample_trajectory, sample_transition
from dreamgym.types import Source, StepResult, Task, Trajectory

pytestmark = pytest.mark.anyio

PLAY = sample_trajectory("one", sample_transition("kitchen", "north", "hall"))


async def test_stored_trajectories_are_there_after_opening_again(empty_dsn: str) -> None:
    first = await open_store(empty_dsn, TrigramEncoder())
    await first.buffer.add([PLAY])
    await first.close()
    second = await open_store(empty_dsn, TrigramEncoder())
    assert await second.buffer.trajectories(ENV) == (PLAY,)
    assert await second.buffer.add([PLAY]) == 0
    await second.close()


async def test_another_encoder_is_refused_and_the_error_names_the_right_one(store: Store, dsn: str) -> None:
    with pytest.raises(StoreError, match="set DREAMGYM_ENCODER=trigram"):
        await open_store(dsn, TrigramEncoder(dim=32))


async def test_a_killed_connection_is_replaced(store: Store, dsn: str) -> None:
    await store.buffer.add([PLAY])
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    assert len(await store.buffer.nearest(sample_retrieval("kitchen", "north"))) == 1
    await store.buffer.record_outcomes(ENV, "go", 1, [1.0])
    assert len(await store.buffer.task_values(ENV)) == 1


async def test_replacing_a_closed_connection_writes_nothing_of_the_connection_pool_to_stderr(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # no command configures logging
    await store.buffer.add([PLAY])
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )
    await store.buffer.record_outcomes(ENV, "go", 1, [1.0])
    assert capsys.readouterr().err == ""


async def test_cancelled_calls_of_a_database_that_hangs_give_their_connections_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs = asyncio.Event()

    async def check(connection: object) -> None:
        hangs.set()
        await asyncio.Event().wait()

    async def begin() -> None:
        async with store.database.transaction():
            pass

    with monkeypatch.context() as patched:
        patched.setattr(AsyncConnectionPool, "check_connection", check)
        for _ in range(store.database._pool.max_size):
            hangs.clear()
            call = asyncio.create_task(begin())
            await hangs.wait()
            call.cancel()
            await asyncio.wait([call])
    async with asyncio.timeout(5):
        await begin()


async def test_a_database_that_is_back_is_used_again_after_its_start_failed_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database_module, "LOOK_S", 0)
    failures = iter([OSError(12, "Cannot allocate memory")])
    is_up = False

    def revive() -> None:
        nonlocal is_up
        for failure in failures:
            raise failure
        is_up = True

    database = await Database.open(dsn, revive=revive)
    answers = database._answers

    async def answers_if_up() -> bool:
        return is_up and await answers()

    monkeypatch.setattr(database, "_answers", answers_if_up)
    database._look()
    assert await database.fetch("SELECT 1", {}) == [(1,)]
    await database.close()


async def test_calls_beyond_the_connections_wait_for_minutes_and_none_fails(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def busy() -> None:
        await store.database.fetch("SELECT pg_advisory_xact_lock(7)", {})

    with psycopg.connect(dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(7)")
        calls = [asyncio.create_task(busy()) for _ in range(40)]  # a pool has at most 32 connections
        loop = asyncio.get_running_loop()
        await turns(1_000)
        now = loop.time
        monkeypatch.setattr(loop, "time", lambda: now() + 300)
        await turns(1_000)
        failed = [call for call in calls if call.done()]
    await asyncio.gather(*calls)
    assert failed == []


async def test_a_database_that_is_busy_with_other_calls_passes_its_check(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.database.CHECK_LIMIT_S", 20)
    with psycopg.connect(dsn) as other:
        other.execute("SELECT pg_advisory_xact_lock(7)")
        calls = [
            asyncio.create_task(store.database.fetch("SELECT pg_advisory_xact_lock(7)", {})) for _ in range(40)
        ]  # a pool has at most 32 connections
        await turns(1_000)
        await store.episodes.check()
    await asyncio.gather(*calls)


async def test_simultaneous_steps_are_stored_by_one_statement(store: Store, dsn: str) -> None:
    names = [f"episode-{number}" for number in range(20)]
    for name in names:
        await store.episodes.create(new_episode(name))
    step = sample_transition("kitchen", "north", "hall")
    await asyncio.gather(*(store.episodes.append(name, step, version=0) for name in names))
    assert await store.database.fetch("SELECT count(*), count(DISTINCT xmin::text) FROM episode_steps", {}) == [(20, 1)]


async def test_a_step_that_cannot_be_stored_does_not_affect_those_stored_with_it(store: Store, dsn: str) -> None:
    names = [f"episode-{number}" for number in range(5)]
    for name in names:
        await store.episodes.create(new_episode(name))
    step = sample_transition("kitchen", "north", "hall")
    results = await asyncio.gather(
        *(store.episodes.append(name, step, version=0) for name in [*names, "none\x00"]), return_exceptions=True
    )
    assert [type(result) for result in results] == [*[type(None)] * 5, InvalidInput]
    assert [(await store.episodes.load(name)).version for name in names] == [1] * 5


async def test_if_two_stores_write_the_same_steps_at_once_each_step_is_stored_once(store: Store, dsn: str) -> None:
    names = [f"episode-{number}" for number in range(40)]
    for name in names:
        await store.episodes.create(new_episode(name))
    step = sample_transition("kitchen", "north", "hall")
    other = await open_store(dsn, TrigramEncoder())
    for version in range(5):
        results = await asyncio.gather(
            *(store.episodes.append(name, step, version=version) for name in names),
            *(other.episodes.append(name, step, version=version) for name in reversed(names)),
            return_exceptions=True,
        )
        assert sorted(type(result).__name__ for result in results) == ["NoneType"] * 40 + ["StaleEpisode"] * 40
    await other.close()


def new_episode(name: str) -> Episode:
    task = Task(id="go", env=ENV, instruction="Find the coin.")
    initial = StepResult(observation="kitchen")
    return Episode(id=name, env=ENV, task=task, seed=7, max_steps=9, initial=initial, expires_at=datetime.now(UTC))


async def turns(number: int) -> None:
    """Let the event loop turn this number of times."""
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_server_that_is_not_there_is_named_without_its_password() -> None:
    with pytest.raises(StoreError, match="cannot be reached") as caught:
        await Database.open("postgresql://bob:s3cr3t@127.0.0.1:1/dreams")
    assert "dreams" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "mend"),
    [
        ("postgresql:///x", "start it, correct DREAMGYM_DSN, or unset it to use the embedded one"),
        ("", "do this again: the embedded database starts by itself; start any other one, or correct its address"),
    ],
)
async def test_the_advice_for_an_unreachable_database_names_dreamgym_dsn_only_if_it_is_set(
    variable: str, mend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_DSN", variable)
    with pytest.raises(StoreError) as caught:
        await open_store("postgresql://postgres@/dreamgym?host=/nowhere", TrigramEncoder())
    assert str(caught.value).endswith(f": {mend}")


async def test_an_invalid_address_is_refused_without_repeating_it() -> None:
    with pytest.raises(StoreError, match="is not a PostgreSQL address") as caught:
        await Database.open("postgres:/bob:s3cr3t@host")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("password", ["odd@s3cr3t", "odd/s3cr3t", "a/1@s3cr3t"])
async def test_a_password_that_must_be_escaped_in_an_address_is_not_repeated(password: str) -> None:
    with pytest.raises(StoreError, match="write %40 for @ and %2F for /") as caught:
        await Database.open(f"postgresql://bob:{password}@127.0.0.1:1/dreamgym?connect_timeout=2")
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://bob:odd%40pass%2Fword@127.0.0.1:1/dreamgym",
        "postgresql://127.0.0.1:1/dreamgym?user=bob@home",
        "host=127.0.0.1 port=1 dbname=dreamgym user=bob@home password=odd@pass/word",
    ],
)
async def test_an_address_with_an_escaped_password_or_other_parts_with_an_at_is_tried(address: str) -> None:
    with pytest.raises(StoreError, match=r"on 127\.0\.0\.1 cannot be reached"):
        await Database.open(address)


async def test_a_user_who_may_not_enable_pgvector_or_change_the_tables_is_told_the_command(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute("DROP ROLE IF EXISTS powerless")
        admin.execute("CREATE ROLE powerless LOGIN")
    with pytest.raises(StoreError, match="CREATE EXTENSION vector"):
        await open_store(empty_dsn.replace("postgres@", "powerless@"), TrigramEncoder())
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")
    with pytest.raises(StoreError, match="GRANT CREATE ON SCHEMA public TO powerless"):
        await open_store(empty_dsn.replace("postgres@", "powerless@"), TrigramEncoder())
    await (await open_store(empty_dsn, TrigramEncoder())).close()
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute("GRANT CREATE ON SCHEMA public TO powerless")
    with pytest.raises(StoreError, match=r"for table schema_migrations; connect as .* 'GRANT OWNER TO powerless'"):
        await open_store(empty_dsn.replace("postgres@", "powerless@"), TrigramEncoder())
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute("GRANT postgres TO powerless")
    await (await open_store(empty_dsn.replace("postgres@", "powerless@"), TrigramEncoder())).close()
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute("DROP OWNED BY powerless")
        admin.execute("DROP ROLE powerless")


async def test_a_database_that_takes_no_more_connections_is_told_with_what_to_do(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("CREATE ROLE crowded LOGIN CONNECTION LIMIT 0")
        try:
            with pytest.raises(StoreError, match=r"too many connections for role.*close connections of other programs"):
                await open_store(dsn.replace("postgres@", "crowded@"), TrigramEncoder())
        finally:
            admin.execute("DROP ROLE crowded")


async def test_a_server_older_than_needed_is_refused(empty_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The server under test is a new one, so the required version is raised above it.
    monkeypatch.setattr("dreamgym.replay.postgres.database.OLDEST_SERVER", 990_000)
    with pytest.raises(StoreError, match=r"has PostgreSQL 18, but needs 15 or newer: upgrade it"):
        await open_store(empty_dsn, TrigramEncoder())


async def test_an_old_pgvector_is_refused(empty_dsn: str) -> None:
    with psycopg.connect(empty_dsn, autocommit=True) as admin:
        admin.execute("CREATE EXTENSION vector")
        admin.execute("UPDATE pg_extension SET extversion = '0.7.4' WHERE extname = 'vector'")
    with pytest.raises(StoreError, match=r"but needs 0\.8\.0 or newer"):
        await open_store(empty_dsn, TrigramEncoder())


async def test_a_changed_migration_is_refused(store: Store, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("UPDATE schema_migrations SET checksum = 'other' WHERE version = 1")
    with pytest.raises(StoreError, match="created with a different version of migration 0001"):
        await open_store(dsn, TrigramEncoder())


async def test_a_store_with_the_first_schema_is_migrated_and_loses_nothing(empty_dsn: str) -> None:
    text = resources.files("dreamgym.replay.postgres").joinpath("migrations/0001_store.sql").read_text(encoding="utf-8")
    encoder = TrigramEncoder()
    step = PLAY.transitions[0]
    key, state = digest_id(*key_of(step)), digest_id("kitchen")
    with psycopg.connect(empty_dsn, autocommit=True) as old:
        old.execute("CREATE EXTENSION vector")
        old.execute(
            "CREATE TABLE schema_migrations (version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT now())"
        )
        old.execute(text)
        checksum = hashlib.sha256(text.encode()).hexdigest()
        old.execute("INSERT INTO schema_migrations VALUES (1, '0001_store.sql', %s)", [checksum])
        kept = [encoder.name, encoder.fingerprint, encoder.dim]
        old.execute("INSERT INTO encoders (name, fingerprint, dim) VALUES (%s, %s, %s)", kept)
        old.execute("SELECT ensure_encoder_table(1::smallint, %s)", [2 * encoder.dim])
        old.execute("SELECT ensure_environment(%s)", [ENV])
        old.execute("SELECT ensure_vectors(1::smallint, 1::smallint)")
        old.execute("INSERT INTO worlds (env_id, name) VALUES (1, 'one')")
        old.execute("INSERT INTO transitions VALUES (1, %s, %s, %s::json)", [key, state, step.model_dump_json()])
        old.execute("INSERT INTO sightings VALUES (1, %s, %s, 1, 0, 'one')", [key, key])
        body = PLAY.model_dump_json(exclude={"transitions"})
        old.execute("INSERT INTO trajectories (id, env_id, world_id, source, body) VALUES ('one', 1, 1, 0, %s)", [body])
        old.execute("INSERT INTO trajectory_steps VALUES ('one', 0, 1, %s)", [key])
        old.execute("INSERT INTO world_states VALUES (1, %s, 1, 1)", [state])
        old.execute("INSERT INTO tasks (env_id, id, body) VALUES (1, 'go', %s::json)", [PLAY.task.model_dump_json()])
        old.execute("INSERT INTO task_outcomes VALUES (1, 'go', 3, 8, 2, 2), (1, 'go', 4, 4, 2, 2)")
        vector = str([0.5] * 2 * encoder.dim)
        old.execute("INSERT INTO vectors_1 VALUES (1, %s, 1, 'kitchen', %s, %s)", [key, key_of(step)[1], vector])
    store = await open_store(empty_dsn, encoder)
    for command in ("north", "norht"):
        (found,) = await store.buffer.nearest(sample_retrieval("kitchen", command, as_of=0))
        assert found.transition == step, "transitions from before the migration are visible at any watermark"
        assert found.same_goal, "the goal of transitions from before the migration is known"
        assert found.instruction == PLAY.task.instruction
    (value,) = await store.buffer.task_values(ENV)
    assert (value.policy_version, value.attempts, value.variance, value.total_attempts) == (4, 4, 0.25, 12)
    await store.buffer.add([sample_trajectory("two", sample_transition("kitchen", "south", "cellar"))])
    assert len(await store.buffer.nearest(sample_retrieval("kitchen", "norht", as_of=0))) == 1
    assert len(await store.buffer.nearest(sample_retrieval("kitchen", "norht"))) == 2
    await store.close()


async def test_episodes_of_the_fourth_schema_are_kept_and_the_unarchived_ones_found(empty_dsn: str) -> None:
    folder = resources.files("dreamgym.replay.postgres").joinpath("migrations")
    texts = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir() if file.name < "0005"}
    initial, task = StepResult(observation="kitchen"), PLAY.task
    with psycopg.connect(empty_dsn, autocommit=True) as old:
        old.execute("CREATE EXTENSION vector")
        old.execute(
            "CREATE TABLE schema_migrations (version int PRIMARY KEY, name text NOT NULL, checksum text NOT NULL, "
            "applied_at timestamptz NOT NULL DEFAULT now())"
        )
        for name, text in sorted(texts.items()):
            with old.transaction():
                old.execute(text)
            applied = [int(name[:4]), name, hashlib.sha256(text.encode()).hexdigest()]
            old.execute("INSERT INTO schema_migrations VALUES (%s, %s, %s)", applied)
        old.execute("SELECT ensure_environment(%s)", [ENV])
        old.execute("INSERT INTO worlds (env_id, name) VALUES (1, 'one')")
        old.execute(
            "INSERT INTO trajectories (id, env_id, world_id, source, body, goal) "
            "VALUES ('stored', 1, 1, 2, '{}', gen_random_uuid())"
        )
        for name, reason, version in [
            ("stored", "finished", None),
            ("unstored", "finished", None),
            ("trained", "finished", 3),
            ("runs", None, None),
        ]:
            made = Episode(
                id=name,
                env=ENV,
                task=task,
                seed=0,
                max_steps=9,
                initial=initial,
                policy_version=version,
                expires_at=datetime.now(UTC) + timedelta(hours=1),
            )
            body = made.model_dump_json(exclude={"transitions", *CHANGING})
            old.execute(
                "INSERT INTO episodes (id, body, version, stop_reason, expires_at, idempotency_key) "
                "VALUES (%s, %s, 1, %s, %s, %s)",
                [name, body, reason, made.expires_at, f"key of {name}"],
            )
            old.execute("INSERT INTO episode_steps VALUES (%s, 0, %s)", [name, PLAY.transitions[0].model_dump_json()])
    store = await open_store(empty_dsn, TrigramEncoder())
    assert [found.id for found in await store.episodes.unarchived([ENV], limit=9)] == ["unstored"]
    running = await store.episodes.load("runs")
    assert (running.transitions, running.stop_reason) == (PLAY.transitions, None)
    again = await store.episodes.create(
        running.model_copy(update={"id": "new"}), idempotency_key=f"create {ENV} key of runs"
    )
    assert again == running
    now = store.episodes.now()
    assert await store.episodes.expired([ENV], now, now - timedelta(minutes=15)) == ()
    await store.close()


async def test_an_identical_match_needs_no_embedding(store: Store) -> None:
    await store.buffer.add([PLAY])
    asked: list[str] = []

    class Counting(TrigramEncoder):
        def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
            asked.extend(texts)
            return super().encode(texts)

    other = await open_store(store.dsn, Counting())
    assert (await other.buffer.nearest(sample_retrieval("kitchen", "north")))[0].exact
    assert asked == []
    assert not (await other.buffer.nearest(sample_retrieval("kitchen", "norht")))[0].exact
    assert len(asked) == 2
    await other.close()


async def test_a_trajectory_that_the_fifth_schema_stored_without_a_digest_is_replaced_if_it_has_changed(
    dsn: str,
) -> None:
    folder = resources.files("dreamgym.replay.postgres").joinpath("migrations")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".sql"))
    later = ["digests", "recordings", "identities", "vector_indexes", "dreamed_keys"]
    assert [name[5:-4] for name in names[5:]] == later, (
        "a later migration may have to bring this test's store back further"
    )
    same = sample_trajectory("same", sample_transition("kitchen", "north", "hall"))
    other = sample_trajectory("other", sample_transition("kitchen", "south", "cellar"))
    store = await open_store(dsn, TrigramEncoder())
    await store.buffer.add([same, other])
    await store.close()
    with psycopg.connect(dsn, autocommit=True) as old:  # back to the fifth schema
        old.execute("ALTER TABLE trajectories DROP COLUMN digest")
        old.execute("DROP INDEX trajectories_recorded")
        old.execute("ALTER TABLE environments DROP COLUMN identity, DROP COLUMN folder")
        old.execute("DROP TABLE vector_indexes")
        ((encoder,),) = old.execute("SELECT id FROM encoders").fetchall()
        old.execute(f"DROP INDEX vectors_{encoder}_missing")
        old.execute(f"ALTER TABLE vectors_{encoder} ALTER COLUMN embedding SET NOT NULL")
        old.execute("DELETE FROM schema_migrations WHERE version > 5")
    store = await open_store(dsn, TrigramEncoder())
    assert await store.buffer.trajectories(ENV) == (same, other)
    labelled = other.model_copy(update={"final_reward": 1.0})
    assert await store.buffer.upsert([same, labelled]) == Upserted(new=0, changed=("other",))
    assert await store.buffer.trajectories(ENV) == (same, labelled)
    await store.close()
    with psycopg.connect(dsn) as admin:
        kept: dict[str, bytes] = dict(admin.execute("SELECT id, digest FROM trajectories").fetchall())
    assert kept == {"same": same.digest(), "other": labelled.digest()}


class Counting(TrigramEncoder):
    """Counts the texts that it embeds."""

    texts = 0

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        self.texts += len(texts)
        return super().encode(texts)


async def test_dreams_are_embedded_when_a_question_first_searches_among_them(dsn: str) -> None:
    encoder = Counting()
    store = await open_store(dsn, encoder)
    await store.buffer.add([sample_trajectory("real", sample_transition("attic", "down", "hall"))])
    recorded = encoder.texts
    step = sample_transition("kitchen", "north", "hall")
    await store.buffer.add([sample_trajectory("dream", step, source=Source.SYNTHETIC)])
    assert encoder.texts == recorded
    among_dreams = sample_retrieval("kitchen", "northward", sources=frozenset(Source))
    assert (await store.buffer.nearest(among_dreams))[0].transition == step
    embedded = encoder.texts
    assert embedded == recorded + 3, (
        "state and call of the question, and the dreamed call; the state was embedded before"
    )
    assert (await store.buffer.nearest(among_dreams))[0].transition == step
    assert encoder.texts == embedded
    await store.close()


async def test_a_recording_of_a_dreamed_step_is_found_by_a_search_for_recordings(store: Store) -> None:
    step = sample_transition("kitchen", "north", "hall")
    await store.buffer.add([sample_trajectory("dream", step, source=Source.SYNTHETIC)])
    asked = sample_retrieval("kitchen", "northward")
    assert not await store.buffer.nearest(asked)
    await store.buffer.add([sample_trajectory("real", step)])
    assert (await store.buffer.nearest(asked))[0].transition == step


async def test_the_goal_of_replaced_or_taken_back_trajectories_alone_is_deleted(store: Store, dsn: str) -> None:
    def played(name: str, instruction: str) -> Trajectory:
        return sample_trajectory(name, sample_transition("kitchen", "north", "hall"), instruction=instruction)

    async def goals() -> list[str]:
        return [row[0] for row in await store.database.fetch("SELECT instruction FROM goals ORDER BY 1", {})]

    await store.buffer.add([played("one", "secret"), played("two", "secret"), played("r-3-0", "late")])
    await store.buffer.upsert([played("one", "open")])
    assert await goals() == ["late", "open", "secret"], "another trajectory has the old goal"
    await store.buffer.upsert([played("two", "open")])
    assert await goals() == ["late", "open"]
    await store.buffer.take_back(ENV, "r", 3)
    assert await goals() == ["open"]


async def test_the_newest_recording_changes_if_a_recording_is_forgotten_but_not_if_a_dream_is(store: Store) -> None:
    step = sample_transition("kitchen", "north", "hall")
    dream = sample_trajectory("dream", step, source=Source.SYNTHETIC)
    await store.buffer.add([dream, *(sample_trajectory(name, step) for name in ("first", "second", "third"))])
    seen = [await store.buffer.newest_recording(ENV)]
    for name in ("dream", "first", "third"):
        await forget(store.database, ENV, name)
        seen.append(await store.buffer.newest_recording(ENV))
    assert seen[0] == seen[1]
    assert len(set(seen)) == 3


@pytest.mark.parametrize("name", [ENV, f"{ENV}-20261127"])
async def test_the_beginning_of_the_ids_of_recorded_runs_names_none_of_them(store: Store, name: str) -> None:
    step = sample_transition("kitchen", "north", "hall")
    runs = [f"{ENV}-20261127-14000{number}-a1b2c3" for number in range(2)]
    await store.buffer.add([sample_trajectory(run, step) for run in runs])
    with pytest.raises(UnknownName):
        await forget(store.database, ENV, name)
    await forget(store.database, ENV, "20261127-140000-a1b2c3")
    assert [one.id for one in await store.buffer.trajectories(ENV)] == runs[1:]


async def test_two_stores_that_store_the_same_change_at_once_store_it_once(store: Store, dsn: str) -> None:
    walks = [sample_trajectory(f"{n}", sample_transition("kitchen", f"go {n}", f"room {n}")) for n in range(20)]
    changed = [walk.model_copy(update={"final_reward": 1.0}) for walk in walks]
    await store.buffer.add(walks[:10])
    second = await open_store(dsn, TrigramEncoder())
    results = await asyncio.gather(*(one.buffer.upsert(changed) for one in (store, second)))
    await second.close()
    assert sorted((result.new, len(result.changed)) for result in results) == [(0, 0), (10, 10)]
    assert await store.buffer.trajectories(ENV) == tuple(changed)


async def test_episodes_are_listed_even_if_the_tokens_of_a_step_are_beyond_the_numbers_of_the_database(
    store: Store,
) -> None:
    step = sample_transition("kitchen", "north", "hall")
    counts = {"few": 3, "many": 3_000_000_000, "absurd": 10**30}
    for name, tokens in counts.items():
        used = step.provenance.model_copy(update={"prompt_tokens": tokens, "completion_tokens": tokens})
        told = step.model_copy(update={"provenance": used})
        await store.buffer.add([sample_trajectory(name, told, told)])
    page = await StoredEpisodes(store.database).page(EpisodeFilter())
    assert {one.id: one.outcome.prompt_tokens for one in page.episodes} == {name: 2 * n for name, n in counts.items()}
    assert all(one.outcome.completion_tokens == one.outcome.prompt_tokens for one in page.episodes)
