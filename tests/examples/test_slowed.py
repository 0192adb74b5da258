"""A slowed environment: the same game behind a few sessions, each of which answers after a delay."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.environment import Environment, from_place, load_real, load_spec, real_of
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.types import StepResult, ToolCall

PLACE = f"{Path(__file__).parents[2] / 'benchmarks' / 'studies' / 'slowed.py'}"
SESSIONS = from_place("class", f"{PLACE}:Sessions")


def test_each_session_serves_one_call_at_a_time() -> None:
    sessions = SESSIONS(2, 3.0)
    assert [sessions.answered(10.0) for _ in range(5)] == [13.0, 13.0, 16.0, 16.0, 19.0]
    assert sessions.answered(100.0) == 103.0


@given(st.integers(1, 8), st.integers(1, 100), st.floats(0, 5))
def test_simultaneous_calls_take_calls_per_session_times_the_seconds(count: int, calls: int, seconds: float) -> None:
    sessions = SESSIONS(count, seconds)
    last = [sessions.answered(0.0) for _ in range(calls)][-1]
    assert last == pytest.approx(-(-calls // count) * seconds)


@pytest.mark.anyio
async def test_it_is_the_same_game() -> None:
    slow, fast = load_real(f"{PLACE}:slowed", {"seconds": 0, "name": "coin"}), load_real("coin")
    given = {"adapter", "options"}
    assert slow.spec.model_dump(exclude=given) == fast.spec.model_dump(exclude=given)
    assert real_of(slow.spec).spec == slow.spec
    task = slow.tasks("train")[3]
    one, other = slow.create(), fast.create()

    async def seen(environment: Environment) -> list[StepResult]:
        commands = ("look around", "move north", "fly")
        first = await environment.reset(task, seed=0)
        return [first, *[await environment.step(ToolCall(name="act", arguments={"command": c})) for c in commands]]

    assert await seen(one) == await seen(other)
    assert one.tools == other.tools
    await one.close()
    await other.close()


def test_a_place_without_an_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"environment '.*nothing.py:slowed' cannot be loaded"):
        load_real(f"{tmp_path / 'nothing.py'}:slowed")
    with pytest.raises(InvalidInput, match="has no attribute 'quick'"):
        load_real(f"{PLACE}:quick")
    with pytest.raises(UnknownName, match=r"module:function"):
        load_spec("slow")
    with pytest.raises(InvalidInput, match="a slowed environment: sessions"):
        load_real(f"{PLACE}:slowed", {"sessions": 0})
