"""Recorded calls that contradict each other: one rule for measuring, for learning and for the command `seed`."""

import pytest
from desk import SPEC, START, call, recorded, step, task

from dreamgym.environment import EnvironmentSpec
from dreamgym.recordings.contradictions import contradicted, contradictions
from dreamgym.state import as_text
from dreamgym.types import Source, StopReason, Trajectory

pytestmark = pytest.mark.anyio

WORDS = EnvironmentSpec(name="desk", tools_list=SPEC.tools_list)
"""The desk with texts as states."""


def played(name: str, *steps: tuple[str, str], world: str = "") -> Trajectory:
    """An episode of a text environment; each step is the order asked for and the answer."""
    state, transitions = "start", []
    for order, said in steps:
        transitions.append(step(state, call("get", order), said, said))
        state = said
    return Trajectory(
        id=name,
        task=task(1).model_copy(update={"id": world or "t", "initial_state": "start", "metadata": {}}),
        transitions=tuple(transitions),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )


def test_another_outcome_of_the_same_calls_in_the_same_task_is_a_contradiction() -> None:
    one = played("one", ("O-1", "paid"), ("O-2", "paid"))
    other = played("other", ("O-1", "paid"), ("O-2", "shipped"), ("O-2", "shipped"))
    assert contradicted(WORDS, [one, other]) == {("one", 2), ("other", 2)}


def test_another_outcome_after_other_actions_or_in_another_task_is_not_a_contradiction() -> None:
    one = played("one", ("O-1", "paid"), ("O-2", "paid"))
    later = played("later", ("O-3", "paid"), ("O-1", "paid"), ("O-2", "shipped"))
    elsewhere = played("elsewhere", ("O-1", "shipped"), world="u")
    assert contradicted(WORDS, [one, later, elsewhere]) == set()


async def test_a_completely_known_state_decides_whatever_was_done_before() -> None:
    first, second = await recorded(task(1), call("get", "O-1")), await recorded(task(2), call("get", "O-1"))
    assert contradicted(SPEC, [first, second]) == set()
    lying = second.transitions[0].model_copy(update={"next_state": as_text({**START, "orders": {}})})
    other = second.model_copy(update={"transitions": (lying,)})
    assert contradicted(SPEC, [first, other]) == {(first.id, 1), (other.id, 1)}


def test_a_possible_effect_of_earlier_calls_is_not_a_contradiction_in_a_deterministic_text_environment() -> None:
    """The state of a text environment is its last answer, which can be the same after different calls."""
    spec = WORDS.model_copy(update={"deterministic": True})
    closed = played("closed", ("O-1", "a door"), ("O-2", "it is locked"))
    opened = played("opened", ("O-3", "a click"), ("O-1", "a door"), ("O-2", "it opens"))
    closed, opened = (one.model_copy(update={"world": "t"}) for one in (closed, opened))
    assert closed.transitions[1].state == opened.transitions[2].state == "a door"
    assert contradictions(spec, [closed, opened]) == []
    again = played("again", ("O-1", "a door"), ("O-2", "it opens"))
    assert contradictions(spec, [closed, opened, again]) == [
        "closed, call 2, and again, call 2: 'get{\"order_id\":\"O-2\"}' answered 'it is locked' and then 'it opens'"
    ]


def test_another_reward_for_the_same_call_is_a_contradiction() -> None:
    one, other = played("one", ("O-1", "paid")), played("other", ("O-1", "paid"))
    result = other.transitions[0].result.model_copy(update={"reward": 1.0})
    other = other.model_copy(update={"transitions": (other.transitions[0].model_copy(update={"result": result}),)})
    assert contradicted(WORDS, [one, other]) == {("one", 1), ("other", 1)}


def test_another_reward_for_another_goal_is_no_contradiction() -> None:
    one, other = played("one", ("O-1", "paid")), played("other", ("O-1", "paid"))
    result = other.transitions[0].result.model_copy(update={"reward": 1.0, "terminated": True})
    aim = other.task.model_copy(update={"instruction": "Something else."})
    changes = {"task": aim, "transitions": (other.transitions[0].model_copy(update={"result": result}),)}
    assert contradicted(WORDS, [one, other.model_copy(update=changes)]) == set()
