"""The example environment folder is complete, can be loaded, and has exactly the answers of the real game."""

from pathlib import Path

import pytest

from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl, real_of
from dreamgym.types import Source, Tier, Trajectory

pytestmark = pytest.mark.anyio
FOLDER = Path(__file__).parents[2] / "examples/coin"
SPEC = EnvironmentSpec.load(FOLDER)
TRAJECTORIES = read_jsonl(FOLDER / "trajectories.jsonl", Trajectory)


def test_the_folder_agrees_with_the_real_environment_that_it_names() -> None:
    real = real_of(SPEC).spec
    assert load_spec(str(FOLDER)) == SPEC
    for field in ("name", "description", "rules", "tools_list", "max_steps", "deterministic", "adapter"):
        assert getattr(SPEC, field) == getattr(real, field), field
    assert SPEC.tasks == real.tasks[: len(SPEC.tasks)]
    assert SPEC.text_argument == ("act", "command")


def test_every_task_is_recorded_and_some_recordings_won_and_some_failed() -> None:
    assert {trajectory.task.id for trajectory in TRAJECTORIES} == {task.id for task in SPEC.tasks}
    assert len({trajectory.id for trajectory in TRAJECTORIES}) == len(TRAJECTORIES) >= 24
    assert 10 < sum(trajectory.success for trajectory in TRAJECTORIES) < len(TRAJECTORIES) - 10
    assert any(transition.result.is_error for trajectory in TRAJECTORIES for transition in trajectory.transitions)


async def test_every_recorded_step_gives_the_same_result_in_the_real_game() -> None:
    environment = real_of(SPEC).create()
    for trajectory in TRAJECTORIES:
        assert trajectory.source is Source.REAL
        assert trajectory.world == trajectory.task.id
        state = (await environment.reset(trajectory.task)).state
        for transition in trajectory.transitions:
            result = await environment.step(transition.action)
            truncated = transition.result.truncated
            assert transition.state == state
            assert transition.result == result.model_copy(update={"truncated": truncated})
            assert transition.next_state == result.state
            assert transition.provenance.tier is Tier.REAL
            state = result.state
        assert transition.result.done
    await environment.close()
