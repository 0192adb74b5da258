import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from dreamgym.errors import InvalidInput, StaleEpisode, UnknownEpisode
from dreamgym.replay.episode_store import Episode, EpisodeStore, SteadyClock
from dreamgym.replay.memory import MemoryEpisodeStore
from dreamgym.replay.postgres import Store
from dreamgym.testing.replay import sample_transition
from dreamgym.types import StepResult, StopReason, Task

pytestmark = pytest.mark.anyio

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)
STEP = sample_transition("kitchen", "north", "hall")


def episode(name: str = "first", **changes: object) -> Episode:
    task = Task(id="go", env="house", instruction="Find the coin.")
    made = Episode(
        id=name, env="house", task=task, seed=7, max_steps=9, initial=StepResult(observation="kitchen"), expires_at=NOW
    )
    return made.model_copy(update=changes)


@pytest.fixture(params=["memory", "postgres"])
def episodes(request: pytest.FixtureRequest) -> EpisodeStore:
    if request.param == "memory":
        return MemoryEpisodeStore()
    store: Store = request.getfixturevalue("store")
    return store.episodes


async def test_an_episode_comes_back_as_it_was_stored(episodes: EpisodeStore) -> None:
    forked = episode(transitions=(STEP, STEP), group="g", policy_version=3)
    assert await episodes.create(forked) == forked
    assert await episodes.load("first") == forked


async def test_the_same_idempotency_key_gives_the_same_episode(episodes: EpisodeStore) -> None:
    first = await episodes.create(episode(), idempotency_key="once")
    assert await episodes.create(episode("second"), idempotency_key="once") == first
    assert await episodes.find("once") == first
    assert await episodes.find("never") is None
    with pytest.raises(UnknownEpisode):
        await episodes.load("second")


async def test_many_that_create_one_episode_at_once_all_get_the_same_episode(episodes: EpisodeStore) -> None:
    wanted = [episode(seed=seed) for seed in range(8)]
    made = await asyncio.gather(*(episodes.create(one, idempotency_key="first") for one in wanted))
    assert len({one.seed for one in made}) == 1
    assert await episodes.load("first") == made[0]


async def test_a_taken_id_is_refused(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    with pytest.raises(InvalidInput, match="exists already"):
        await episodes.create(episode())


async def test_steps_are_appended_in_order_and_the_last_one_ends_the_episode(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    await episodes.append("first", STEP, version=0)
    await episodes.append("first", STEP, version=1, stop_reason=StopReason.TERMINATED)
    loaded = await episodes.load("first")
    assert loaded.transitions == (STEP, STEP)
    assert loaded.stop_reason is StopReason.TERMINATED
    with pytest.raises(StaleEpisode, match="is over"):
        await episodes.append("first", STEP, version=2)


async def test_of_many_writers_on_one_version_exactly_one_wins(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    writes = (episodes.append("first", STEP, version=0) for _ in range(8))
    results = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(result) for result in results if result is not None] == [StaleEpisode] * 7
    assert (await episodes.load("first")).version == 1


async def test_each_of_several_simultaneous_steps_is_stored_or_refused_by_itself(episodes: EpisodeStore) -> None:
    for name in ("first", "second", "over"):
        await episodes.create(episode(name))
    await episodes.finish("over", StopReason.CLOSED)
    results = await asyncio.gather(
        episodes.append("first", STEP, version=0, stop_reason=StopReason.TERMINATED),
        episodes.append("second", STEP, version=0, undelivered=True),
        episodes.append("over", STEP, version=0),
        episodes.append("none", STEP, version=0),
        episodes.append("second", STEP, version=1),
        episodes.append("second", STEP, version=3),
        return_exceptions=True,
    )
    first, second = await episodes.load("first"), await episodes.load("second")
    assert [type(result) for result in results] == [
        *(type(None), type(None), StaleEpisode, UnknownEpisode),
        *(type(None), StaleEpisode),
    ]
    assert (first.version, first.stop_reason, first.undelivered) == (1, StopReason.TERMINATED, False)
    assert (second.version, second.stop_reason, second.undelivered) == (2, None, False)
    assert (await episodes.load("over")).version == 0


async def test_an_undelivered_answer_is_remembered_until_the_next_step(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    await episodes.append("first", STEP, version=0)
    await episodes.mark_undelivered("first", version=0, undelivered=True)
    assert not (await episodes.load("first")).undelivered
    await episodes.mark_undelivered("first", version=1, undelivered=True)
    assert (await episodes.load("first")).undelivered
    await episodes.append("first", STEP, version=1)
    assert not (await episodes.load("first")).undelivered


async def test_a_step_whose_client_has_gone_is_stored_as_undelivered(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    await episodes.append("first", STEP, version=0, undelivered=True)
    assert (await episodes.load("first")).undelivered


async def test_an_episode_is_current_until_someone_adds_a_step_or_ends_it(episodes: EpisodeStore) -> None:
    made = await episodes.create(episode())
    assert await episodes.is_current(made)
    await episodes.append("first", STEP, version=0)
    assert not await episodes.is_current(made)
    longer = await episodes.load("first")
    assert await episodes.is_current(longer)
    await episodes.mark_undelivered("first", version=1, undelivered=True)
    assert not await episodes.is_current(longer)
    longer = await episodes.load("first")
    assert await episodes.is_current(longer)
    ended = await episodes.finish("first", StopReason.FINISHED)
    assert [await episodes.is_current(known) for known in (longer, ended)] == [False, True]
    await episodes.delete("first")
    assert not await episodes.is_current(ended)


async def test_a_verdict_on_too_few_steps_does_not_end_the_episode(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    await episodes.append("first", STEP, version=0)
    with pytest.raises(StaleEpisode, match="has 1 steps, not 0"):
        await episodes.finish("first", StopReason.FINISHED, final_reward=1.0, version=0)
    assert (await episodes.load("first")).stop_reason is None
    ended = await episodes.finish("first", StopReason.FINISHED, final_reward=1.0, version=1)
    assert ended.final_reward == 1.0
    assert await episodes.finish("first", StopReason.FINISHED, version=0) == ended


async def test_running_episodes_are_counted_and_ended_ones_are_listed(episodes: EpisodeStore) -> None:
    for name in ("runs", "over", "late"):
        await episodes.create(episode(name, expires_at=NOW if name == "late" else NOW + timedelta(hours=1)))
    await episodes.finish("over", StopReason.FINISHED)
    assert await episodes.running(NOW, LONG_AGO) == 1
    assert await episodes.ended(["runs", "over", "late", "never"]) == {"over", "never"}
    assert await episodes.ended([]) == frozenset()


async def test_the_first_end_stays(episodes: EpisodeStore) -> None:
    await episodes.create(episode())
    ended = await episodes.finish("first", StopReason.FINISHED, answer="done", final_reward=0.5)
    assert (ended.stop_reason, ended.answer, ended.final_reward) == (StopReason.FINISHED, "done", 0.5)
    assert await episodes.finish("first", StopReason.ERROR, error="late") == ended
    assert await episodes.load("first") == ended


async def test_only_running_episodes_of_these_environments_expire(episodes: EpisodeStore) -> None:
    await episodes.create(episode("over"))
    await episodes.finish("over", StopReason.CLOSED)
    await episodes.create(episode("late"))
    await episodes.create(episode("fresh", expires_at=NOW + timedelta(seconds=1)))
    await episodes.create(episode("other", env="garden"))
    assert [found.id for found in await episodes.expired(["house"], NOW, LONG_AGO)] == ["late"]


async def test_an_episode_expires_when_nobody_used_it_for_too_long(episodes: EpisodeStore) -> None:
    await episodes.create(episode("forgotten"))
    await episodes.create(episode("used"))
    since = episodes.now()
    await episodes.append("used", STEP, version=0)
    now = episodes.now()
    assert [found.id for found in await episodes.expired(["house"], now, since)] == ["forgotten"]
    assert await episodes.running(now, since) == 1


async def test_episodes_that_are_over_are_found_until_they_are_marked_as_archived(episodes: EpisodeStore) -> None:
    for name in ("a", "b", "c", "runs"):
        await episodes.create(episode(name))
    await episodes.create(episode("other", env="garden"))
    await episodes.create(episode("trained", policy_version=3))
    for name in ("c", "a", "b", "other", "trained"):
        await episodes.finish(name, StopReason.FINISHED)

    async def found(after: str = "") -> list[str]:
        return [one.id for one in await episodes.unarchived(["house", "shop"], after=after, limit=2)]

    assert [await found(), await found("b"), await found("c")] == [["a", "b"], ["c"], []]
    await episodes.mark_archived(["a", "c", "unknown"])
    assert await found() == ["b"]


async def test_a_store_that_answers_passes_its_check(episodes: EpisodeStore) -> None:
    await episodes.check()


def test_a_steady_clock_does_not_jump_with_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = iter([5.0, 6.5])
    monkeypatch.setattr("time.monotonic", lambda: next(measured))
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert SteadyClock(NOW).now() == NOW + timedelta(seconds=1.5)


async def test_an_id_with_a_nul_character_is_unknown(episodes: EpisodeStore) -> None:
    with pytest.raises(UnknownEpisode):
        await episodes.load("first\x00")


async def test_an_unknown_episode_is_named_by_every_method(episodes: EpisodeStore) -> None:
    calls = (
        episodes.load("none"),
        episodes.append("none", STEP, version=0),
        episodes.finish("none", StopReason.CLOSED),
        episodes.delete("none"),
    )
    for call in calls:
        with pytest.raises(UnknownEpisode, match="none"):
            await call


async def test_a_deleted_episode_frees_its_idempotency_key(episodes: EpisodeStore) -> None:
    await episodes.create(episode(transitions=(STEP,)), idempotency_key="once")
    await episodes.delete("first")
    assert (await episodes.create(episode("second"), idempotency_key="once")).id == "second"
