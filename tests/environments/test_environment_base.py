"""All registered environments refuse an unknown option or an unknown split in the same way."""

from random import Random

import pytest
from dreamgym_integrations.environments.base import MIXED_SHARES, graded, mixed

from dreamgym.curriculum.generator import variation
from dreamgym.environment import Environment, load_real
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import StepResult

pytestmark = pytest.mark.anyio
NAMES = ["alfworld", "arithmetic", "bfcl", "coin", "miniwob", "scienceworld", "webarena", "webarena_lite", "webshop"]


@pytest.mark.parametrize("name", [*NAMES, "mcp"])
def test_an_unknown_option_is_refused_with_the_environment_and_the_option(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"^environment '{name}', its options: colour: "):
        load_real(name, {"colour": "red"})


@pytest.mark.parametrize("name", sorted({*NAMES} - {"alfworld"}))
def test_an_unknown_split_is_refused_before_any_task_is_read(name: str) -> None:
    with pytest.raises(UnknownName, match="unknown split 'valid': expected one of dev, test, train"):
        load_real(name).tasks("valid")


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("arithmetic", "textworld_express"),
        ("bfcl", "bfcl_eval"),
        ("coin", "textworld_express"),
        ("scienceworld", "scienceworld"),
        ("webshop", "rapidfuzz"),
    ],
)
async def test_a_generated_task_with_a_goal_of_its_own_is_refused_by_the_real_environment(
    name: str, package: str
) -> None:
    pytest.importorskip(package, reason="the environment needs its package")
    real = load_real(name)
    parent, environment = real.tasks("train")[0], real.create()
    await environment.reset(variation(parent, parent.instruction, "another start"))
    with pytest.raises(InvalidInput, match="generated with a goal of its own"):
        await environment.reset(variation(parent, "Tidy up the cellar.", parent.initial_state))
    await environment.close()


async def test_graded_play_has_one_share_of_good_actions_and_mixed_play_draws_it_for_each_episode() -> None:
    seen: list[tuple[float, float]] = []

    async def play(start: StepResult, environment: Environment, random: Random, good: float, slips: float) -> None:
        seen.append((good, slips))

    start, world = StepResult(observation=""), load_real("coin").create()
    for seed in range(40):
        await graded(play, 0.7, 0.2)(start, world, seed)
    assert set(seen) == {(0.7, 0.2)}
    seen.clear()
    for seed in (*range(40), *range(40)):
        await mixed(play, 0.2)(start, world, seed)
    assert set(seen) == {(share, 0.2) for share in MIXED_SHARES}
    assert seen[:40] == seen[40:], "the same seed draws the same share"
