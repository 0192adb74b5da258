"""Which data the store deletes, and which it keeps for running episodes."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import psycopg
import pytest
from numpy.typing import NDArray

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import Store, open_store
from dreamgym.replay.postgres.forget import forget
from dreamgym.replay.postgres.prune import prune
from dreamgym.testing.replay import ENV, sample_retrieval, sample_trajectory, sample_transition
from dreamgym.types import Source, StepResult, StopReason, Trajectory

pytestmark = pytest.mark.anyio

MONTH = timedelta(days=30)


def dreams(numbers: Sequence[int]) -> list[Trajectory]:
    return [
        sample_trajectory(f"d{n}", sample_transition("kitchen", "go", f"dream {n}"), source=Source.SYNTHETIC)
        for n in numbers
    ]


async def solve(store: Store) -> None:
    for version in range(2):
        await store.buffer.record_outcomes(ENV, "go", version, [1.0] * 8)


def running(as_of: int | None, *, left: timedelta = MONTH) -> Episode:
    return Episode(
        id="running",
        env=ENV,
        task=dreams([0])[0].task,
        seed=0,
        max_steps=9,
        initial=StepResult(observation="kitchen"),
        as_of=as_of,
        expires_at=datetime.now(UTC) + left,
    )


async def test_trajectories_that_a_running_episode_may_see_are_retired_only_when_it_is_over(store: Store) -> None:
    await store.buffer.add(dreams(range(3)))
    mark = await store.buffer.watermark(ENV)
    await store.episodes.create(running(mark))
    await store.buffer.add(dreams(range(3, 6)))
    await solve(store)
    asked = sample_retrieval("kitchen", "go", sources=frozenset(Source), as_of=mark, k=9)
    seen = await store.buffer.nearest(asked)
    assert await store.buffer.retire(ENV, keep=1) == 2, "only the trajectories that the episode does not see"
    assert await store.buffer.nearest(asked) == seen
    assert len(seen) == 3
    await store.episodes.finish("running", StopReason.CLOSED)
    assert await store.buffer.retire(ENV, keep=1) == 3


async def test_an_episode_that_sees_everything_keeps_everything_until_its_time_is_over(store: Store) -> None:
    await store.buffer.add(dreams(range(3)))
    await solve(store)
    await store.episodes.create(running(None))
    assert await store.buffer.retire(ENV, keep=1) == 0
    await store.episodes.delete("running")
    await store.episodes.create(running(None, left=-MONTH))
    assert await store.buffer.retire(ENV, keep=1) == 2


class Retiring(TrigramEncoder):
    """An encoder that calls `meanwhile` once, before it embeds; the test retires dreams in it."""

    meanwhile: Callable[[], None] | None = None

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super().encode(texts)


async def test_a_transition_that_is_retired_while_it_is_stored_again_is_still_found(store: Store) -> None:
    """A writer looks up which vectors exist before it takes the lock."""
    await store.buffer.add([*dreams(range(2)), sample_trajectory("other", source=Source.SYNTHETIC)])
    await solve(store)
    asked = sample_retrieval("kitchen", "go!", sources=frozenset(Source))
    assert await store.buffer.nearest(asked), "a search among dreams, which computes their vectors"
    loop, encoder, retired = asyncio.get_running_loop(), Retiring(), []
    encoder.meanwhile = lambda: retired.append(
        asyncio.run_coroutine_threadsafe(store.buffer.retire(ENV, keep=1), loop).result(60)
    )
    again = [dream.model_copy(update={"id": f"again {dream.id}", "source": Source.REAL}) for dream in dreams(range(2))]
    new = sample_trajectory("new", sample_transition("cellar", "up", "kitchen"))
    writer = await open_store(store.dsn, encoder)
    assert await writer.buffer.add([*again, new]) == 3
    await writer.close()
    assert retired == [2]
    found = await store.buffer.nearest(asked)
    assert {shown.transition.next_state for shown in found} == {"dream 0", "dream 1", "kitchen"}


@pytest.mark.parametrize(
    ("changes", "goes"),
    [
        ({"archived": True}, True),
        ({}, False),
        ({"archived": True, "days": 29}, False),
        ({"archived": True, "runs": True}, False),
        ({"policy_version": 3}, True),
    ],
    ids=["stored", "not stored yet", "young", "running", "of a training run"],
)
async def test_an_old_ended_episode_is_pruned_with_its_steps_if_the_buffer_has_it(
    store: Store, dsn: str, changes: dict[str, int], goes: bool
) -> None:
    episode = running(None).model_copy(update={"policy_version": changes.get("policy_version")})
    await store.episodes.create(episode)
    await store.episodes.append("running", sample_transition("kitchen", "go", "hall"), version=0)
    if not changes.get("runs"):
        await store.episodes.finish("running", StopReason.FINISHED)
    if changes.get("archived"):
        await store.episodes.mark_archived(["running"])
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("UPDATE episodes SET used_at = now() - make_interval(days => %s)", [changes.get("days", 31)])
        pruned = await prune(store, older_than=MONTH)
        steps = admin.execute("SELECT count(*)::int FROM episode_steps").fetchone()
    assert (pruned.episodes, steps) == ((1, (0,)) if goes else (0, (1,)))


async def test_old_predictions_and_watermarks_go_and_young_ones_stay(store: Store, dsn: str) -> None:
    await store.buffer.add(dreams(range(6)))
    await solve(store)
    for name in ("old", "young"):
        await store.predictions.put(name.encode(), "an answer")
        await store.buffer.watermark(ENV, name)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("UPDATE predictions SET made_at = now() - interval '31 days' WHERE key = %s", [b"old"])
        admin.execute("UPDATE watermarks SET asked_at = now() - interval '31 days' WHERE name = 'old'")
    pruned = await prune(store, older_than=MONTH)
    assert pruned.model_dump() == {"trajectories": 2, "episodes": 0, "predictions": 1, "watermarks": 1}
    assert await store.predictions.get(b"young") == "an answer"
    assert await store.predictions.get(b"old") is None
    assert await store.predictions.put(b"old", "another") == "another"
    assert (await prune(store, older_than=timedelta(0))).predictions == 0, "nothing younger than a day is deleted"


async def test_what_was_learned_before_a_recording_changed_stays_outdated_after_pruning(store: Store, dsn: str) -> None:
    await store.buffer.add([sample_trajectory("walk", sample_transition("kitchen", "go", "hall"))])
    learned_from = await store.buffer.newest_recording(ENV)
    await store.buffer.upsert([sample_trajectory("walk", sample_transition("kitchen", "go", "cellar"))])
    changed = await store.buffer.newest_recording(ENV)
    with psycopg.connect(dsn, autocommit=True) as admin:
        admin.execute("UPDATE watermarks SET asked_at = now() - interval '31 days'")
    assert (await prune(store, older_than=MONTH)).watermarks == 0
    assert await store.buffer.newest_recording(ENV) == changed != learned_from


async def test_a_trajectory_is_forgotten_without_those_whose_ids_only_begin_like_its_own(store: Store) -> None:
    run = "ab" * 8
    played = [f"{run}-7-0-{'0' * 32}", f"{run}-8-1-{'1' * 32}"]
    others = [f"{ENV}-20261127-140000-a1b2c3", "chat-1-easy", f"{run}-1-easy", f"{'cd' * 8}-7-0-{'2' * 32}"]
    step = sample_transition("kitchen", "go", "hall")
    await store.buffer.add([sample_trajectory(name, step) for name in ("chat", run, *others, *played)])
    assert (await forget(store.database, ENV, "chat")).trajectories == 1
    assert (await forget(store.database, ENV, run)).trajectories == 3, "the run's own episodes belong to it"
    assert [one.id for one in await store.buffer.trajectories(ENV)] == others
