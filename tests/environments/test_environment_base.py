"""All registered environments refuse an unknown option or an unknown split in the same way, and share simulators."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from random import Random
from threading import Event
from unittest.mock import Mock

import pytest
from dreamgym_integrations.environments.base import MIXED_SHARES, graded, mixed
from dreamgym_integrations.environments.lease import Lease
from dreamgym_integrations.environments.scienceworld.environment import ScienceWorldEnvironment
from dreamgym_integrations.environments.textworld_express.coin import COIN
from dreamgym_integrations.environments.textworld_express.engine import GameEnvironment

from dreamgym.curriculum.generator import variation
from dreamgym.environment import Environment, load_real
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, UnknownName
from dreamgym.types import StepResult, Task

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


class Pool:
    """One simulator to lend, with a call and a start that wait for `go`."""

    def __init__(self) -> None:
        self.begun, self.go, self.dropped = Event(), Event(), Event()
        self.kept: list[object] = []

    def lease(self, *, starts_slowly: bool = False) -> Lease[object]:
        return Lease(self.wait if starts_slowly else object, self.kept.append, lambda _: self.dropped.set())

    def wait(self, *_: object) -> object:
        self.begun.set()
        assert self.go.wait(20)
        return object()


@pytest.mark.parametrize("starts_slowly", [False, True])
@pytest.mark.parametrize("how", ["cancelled", "closed", "reset"])
async def test_a_simulator_is_dropped_by_its_thread_if_its_call_or_its_start_is_given_up(
    how: str, starts_slowly: bool
) -> None:
    pool = Pool()
    lease = pool.lease(starts_slowly=starts_slowly)
    asked = asyncio.create_task(lease.ask(str if starts_slowly else pool.wait))
    assert await asyncio.to_thread(pool.begun.wait, 20)
    if how == "cancelled":
        asked.cancel()
        with suppress(asyncio.CancelledError):
            await asked
    elif how == "reset":
        assert lease.renewed().simulator is None
    lease.end()
    assert not pool.dropped.is_set()
    pool.go.set()
    assert await asyncio.to_thread(pool.dropped.wait, 20)
    assert pool.kept == []
    with pytest.raises(EnvironmentUnavailable, match="closed or reset before the call"):
        await (lease.ask(str) if asked.cancelled() else asked)


async def test_a_simulator_without_a_call_stays_for_the_next_episode_and_is_given_back_once() -> None:
    pool = Pool()
    first = pool.lease()
    await first.ask(str)
    simulator = first.simulator
    second = first.renewed()
    assert second.simulator is simulator
    first.end()
    second.end()
    second.end()
    assert pool.kept == [simulator]


@pytest.mark.parametrize(
    ("environment", "pool"),
    [
        (ScienceWorldEnvironment, "scienceworld.environment.simulators"),
        (lambda: GameEnvironment(COIN), "textworld_express.engine.java_games"),
    ],
    ids=["scienceworld", "coin"],
)
async def test_a_game_whose_reset_was_cancelled_is_not_played_by_the_next_environment(
    environment: Callable[[], Environment], pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, games = Pool(), Mock()
    games.take.return_value.load = games.take.return_value.generateNewGameJSON = slow.wait
    monkeypatch.setattr(f"dreamgym_integrations.environments.{pool}", games)
    world = environment()
    task = Task(id="t", env="e", instruction="", metadata={"task": "boil", "variation": 0, "seed": 0})
    reset = asyncio.create_task(world.reset(task))
    assert await asyncio.to_thread(slow.begun.wait, 20)
    reset.cancel()
    with suppress(asyncio.CancelledError):
        await reset
    await world.close()
    slow.go.set()
    games.give_back.assert_not_called()
