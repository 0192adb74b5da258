"""The few whole rollouts of every update that a run folder keeps."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from dreamgym_server.view.folders import RunFolder

from dreamgym.replay.episode_store import Episode
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.replay.postgres import Store
from dreamgym.testing.replay import sample_trajectory
from dreamgym.training.examples import KeptRollouts
from dreamgym.types import StepResult, StopReason, Task

pytestmark = pytest.mark.anyio


def groups_in(folder: Path) -> list[str | None]:
    return [one.group for one in RunFolder(folder).page(EpisodeFilter()).episodes]


def test_an_update_that_is_played_again_replaces_its_kept_rollouts(tmp_path: Path) -> None:
    kept = KeptRollouts(tmp_path)
    kept.rewind(0)
    for update in range(3):
        kept.add([(f"run-{update}-{group}", sample_trajectory(f"{update} {group}")) for group in range(2)])
    with kept.path.open("ab") as file:
        file.write('{"group": "run-1-0", "id": "雨'.encode()[:-1])
    kept.rewind(2)
    kept.add([("run-2-0", sample_trajectory("again"))])
    assert groups_in(tmp_path) == ["run-2-0", "run-1-1", "run-1-0", "run-0-1", "run-0-0"]


async def test_the_store_gives_one_finished_episode_of_each_group_of_an_update(store: Store) -> None:
    for number, (group, is_over) in enumerate(
        [("run-1-0", True), ("run-1-0", True), ("run-1-1", False), ("run-1-2", True), ("run-10-0", True)]
    ):
        task = Task(id=f"t{number}", env="house", instruction="Go.")
        await store.episodes.create(
            Episode(
                id=f"e{number}",
                env="house",
                task=task,
                seed=0,
                max_steps=5,
                group=group,
                initial=StepResult(observation="start"),
                expires_at=store.episodes.now() + timedelta(hours=1),
            )
        )
        if is_over:
            await store.episodes.finish(f"e{number}", StopReason.CLOSED)
    found = await store.episodes.examples("house", "run", 1, 4)
    assert [(one.id, one.group) for one in found] == [("e0", "run-1-0"), ("e3", "run-1-2")]
    assert len(await store.episodes.examples("house", "run", 1, 1)) == 1
