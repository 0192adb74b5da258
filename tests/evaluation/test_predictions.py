"""Which steps are predicted, from which recordings, and that no step is predicted twice."""

from pathlib import Path

import pytest
from desk import SPEC, DeskModel, recordings

from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.kept import KeptRows, KeptStep
from dreamgym.evaluation.material import drawn, first_known, material
from dreamgym.evaluation.predictions import predict, steps_of
from dreamgym.tools import Tools
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio


async def test_steps_are_drawn_by_the_seed_and_a_smaller_draw_is_part_of_a_larger_one() -> None:
    steps = steps_of(await recordings())
    small, large = drawn(steps, 5, seed=3), drawn(steps, 9, seed=3)
    assert (len(small), len(large)) == (5, 9)
    assert all(any(one is other for other in large) for one in small)
    assert [steps.index(one) for one in large] == sorted(steps.index(one) for one in large)
    assert drawn(steps, 5, seed=3) == small
    assert drawn(steps, 99, seed=0) == drawn(steps, None, seed=1) == steps


async def test_the_wanted_number_of_transitions_is_known_and_a_smaller_set_is_part_of_a_larger_one() -> None:
    trajectories = await recordings()
    few, more = first_known(trajectories, 5, seed=1), first_known(trajectories, 10, seed=1)
    assert [sum(len(one.transitions) for one in some) for some in (few, more)] == [5, 10]
    assert {t.digest() for one in few for t in one.transitions} <= {t.digest() for one in more for t in one.transitions}
    assert first_known(trajectories, 0, seed=1) == ()
    with pytest.raises(InvalidInput, match="known=25: only 24 recorded transitions"):
        first_known(trajectories, 25, seed=1)


@pytest.mark.parametrize(
    ("edited", "check"),
    [
        ({"metadata": {}}, {}),
        ({"instruction": "Ship it.", "metadata": {"answers": ["shipped"]}}, {"answers": ["shipped"]}),
        (None, {"answers": ["sent"]}),
    ],
    ids=["the check is removed", "the task is reworded and has another check", "the task is removed"],
)
async def test_a_held_out_episode_has_the_check_that_tasks_jsonl_has_now(
    edited: JsonObject | None, check: JsonObject
) -> None:
    played = [
        one.model_copy(update={"task": one.task.model_copy(update={"metadata": {"answers": ["sent"], "split": "dev"}})})
        for one in await recordings()
    ]
    tasks = {one.task.id: one.task.model_copy(update=edited) for one in played} if edited is not None else {}
    spec = SPEC.model_copy(update={"tasks": tuple(tasks.values())})
    found = material(spec, played, held_out=0.5)
    assert [one.task.metadata for one in found.held_out] == [{"split": "dev", **check}] * len(found.held_out)


class Counted(DeskModel):
    """Counts how often it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    async def predict(self, query: Query) -> Prediction:
        self.asked += 1
        return await super().predict(query)


async def test_each_step_is_predicted_once() -> None:
    steps, model = steps_of(await recordings()), Counted()
    await predict(SPEC, model, [], steps, TrigramEncoder(), parallel=7)
    assert model.asked == len(steps)


async def test_parallel_predictions_equal_sequential_ones() -> None:
    steps = steps_of(await recordings())
    alone = await predict(SPEC, DeskModel(), [], steps, TrigramEncoder())
    together = await predict(SPEC, DeskModel(), [], steps, TrigramEncoder(), parallel=7)
    without_time = [[call.model_copy(update={"seconds": 0.0}) for call in some] for some in (alone, together)]
    assert without_time[0] == without_time[1]


async def test_a_kept_prediction_and_its_recording_restore_the_comparison(tmp_path: Path) -> None:
    trajectories = await recordings()
    by_id = {one.id: one for one in trajectories}
    calls = await predict(SPEC, DeskModel(), [], steps_of(trajectories), TrigramEncoder())
    kept = KeptRows(KeptStep, tmp_path / "out", "steps-a model/b", ["basis"])
    for compared in calls:
        row = KeptStep.of(compared, 1)
        assert row is not None
        kept.add(row)
    assert kept.path.parent == tmp_path / "out"
    tools = Tools(SPEC)
    assert [row.restored(SPEC, tools, by_id[row.trajectory]) for row in kept.read()] == calls


async def test_a_line_that_was_cut_off_is_dropped_and_a_broken_one_is_an_error(tmp_path: Path) -> None:
    calls = await predict(SPEC, DeskModel(), [], steps_of(await recordings())[:2], TrigramEncoder())
    kept = KeptRows(KeptStep, tmp_path, "steps", [])
    rows = [row for compared in calls if (row := KeptStep.of(compared, 1))]
    for row in rows:
        kept.add(row)
    with kept.path.open("a") as file:
        file.write('{"trajectory": "on')
    assert kept.read() == rows
    kept.add(rows[0])
    assert kept.read() == [*rows, rows[0]]
    kept.path.write_text("{}\n")
    with pytest.raises(InvalidInput, match=r"line 1: .*delete the file"):
        kept.read()


def test_another_basis_is_another_file(tmp_path: Path) -> None:
    paths = {KeptRows(KeptStep, tmp_path, "steps", basis).path for basis in (["a", "b"], ["a"], ["ab"])}
    assert len(paths) == 3
