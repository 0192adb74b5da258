"""The start of a world is merged from all its recordings, with the agent's own moves undone."""

from typing import Any

import pytest
from dreamgym_integrations.environments.alfworld.reader import AlfworldReader
from dreamgym_integrations.environments.base import act

from dreamgym.dream.hindsight import known_worlds
from dreamgym.dream.usual import UsualValues
from dreamgym.state import as_text
from dreamgym.types import Source, StepResult, StopReason, Task, Trajectory, Transition

READER = AlfworldReader()
START = "You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 1, and a shelf 1."
DESK = ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1, and a pen 1.")
TAKE = ("take mug 1 from desk 1", "You pick up the mug 1 from the desk 1.")
SHELF = ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see a mug 1.")
SHELVE = ("move mug 1 to shelf 1", "You move the mug 1 to the shelf 1.")
BARE_SHELF = ("go to shelf 1", "You arrive at shelf 1. On the shelf 1, you see nothing.")
DRAWER = ("go to drawer 1", "You arrive at drawer 1. The drawer 1 is closed.")
OPEN = ("open drawer 1", "You open the drawer 1. The drawer 1 is open. In it, you see a key 1.")
CLOSE = ("close drawer 1", "You close the drawer 1.")
LOOK = ("look", "You are facing the desk 1, and shelf 1. Next to it, you see nothing.")


def recording(name: str, *said: tuple[str, str], start: str = START, world: str = "room") -> Trajectory:
    task = Task(id=world, env="alfworld", instruction="Your task is to: put a mug in shelf.", initial_state=start)
    steps = [
        (act(command), StepResult(observation=words, is_error=words == "Nothing happens.")) for command, words in said
    ]
    return Trajectory(
        id=name,
        task=task,
        world=world,
        transitions=Transition.chain(start, steps),
        source=Source.REAL,
        stop_reason=StopReason.MAX_STEPS,
    )


def merged(*trajectories: Trajectory) -> Any:
    """Merged start of the only world in the trajectories."""
    (world,) = known_worlds(trajectories, READER).values()
    assert world.fault is None
    assert READER.schema.fault_of(world.start) is None
    return world.start


def test_a_fact_that_one_recording_finds_late_is_in_the_start_of_all() -> None:
    start = merged(recording("a", DESK, TAKE), recording("b", DRAWER, OPEN))
    assert start["things"]["mug 1"]["where"] == ["desk 1"]
    assert start["things"]["key 1"]["where"] == ["drawer 1"]
    assert (start["at"], start["held"]) == (None, None)


def test_the_agents_own_moves_are_undone() -> None:
    start = merged(recording("a", DESK, TAKE, BARE_SHELF, SHELVE, DRAWER, OPEN, CLOSE), recording("b", DRAWER))
    assert start["things"]["mug 1"]["where"] == ["desk 1"]
    assert (start["places"]["drawer 1"]["openable"], start["places"]["drawer 1"]["open"]) == (True, False)


def test_a_thing_may_lie_in_two_places_at_once() -> None:
    assert merged(recording("a", DESK, TAKE, SHELF))["things"]["mug 1"]["where"] == ["desk 1", "shelf 1"]


def test_places_beside_each_other_are_so_from_the_start() -> None:
    start = merged(recording("a", DESK, LOOK))
    assert start["places"]["shelf 1"]["beside"] == ["desk 1"]


def test_recorded_steps_are_replayed_from_the_merged_start() -> None:
    (world,) = known_worlds([recording("a", DESK, TAKE), recording("b", DRAWER, OPEN)], READER).values()
    first = world.steps[0]
    assert (first.tool, first.arguments) == ("go_to", {"place": "desk 1"})
    assert as_text(first.before) == as_text(world.start)
    assert [step.after["held"] for step in world.steps] == [None, "mug 1", None, None]
    assert [end["held"] for end in world.ends] == ["mug 1", None]


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (recording("b", ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a pen 1.")), "contradict"),
        (recording("b", DESK, start=START.replace("a desk 1", "a bed 1")), "start in different states"),
        (recording("b", ("go to drawer 1", "You arrive at drawer 1. On the drawer 1, you see nothing.")), "openable"),
    ],
    ids=["other contents", "other places", "other furniture"],
)
def test_recordings_of_two_versions_of_a_room_are_named_and_teach_nothing(other: Trajectory, why: str) -> None:
    third = recording("c", DESK, world="another room")
    worlds = known_worlds([recording("a", DESK, DRAWER), other, third], READER)
    assert why in str(worlds["room"].fault)
    assert worlds["room"].steps == ()
    assert worlds["another room"].fault is None


def test_an_unvisited_place_is_like_the_others_of_its_kind() -> None:
    start = START.replace("a shelf 1", "a drawer 2, and a shelf 1")
    seen = merged(recording("a", DRAWER, start=start))
    assert seen["places"]["drawer 2"]["openable"] is True
    assert seen["places"]["drawer 2"]["open"] is False
    assert seen["places"]["drawer 2"]["seen"] is False
    assert seen["places"]["shelf 1"]["openable"] is None


def test_values_of_this_world_count_before_those_of_all_others() -> None:
    def room(*openable: bool | None) -> Any:
        places: dict[str, Any] = {
            f"drawer {i}": {
                "place": f"drawer {i}",
                "kind": "drawer",
                "openable": one,
                "open": None if not one else False,
                "seen": one is not None,
                "beside": [],
            }
            for i, one in enumerate(openable)
        }
        return {"places": places, "things": {}, "at": None, "held": None}

    usual = UsualValues([room(True, True, True), room(False, None)], READER.schema)
    filled: Any = usual.filled(room(False, None))
    assert filled["places"]["drawer 1"]["openable"] is False
    filled = usual.filled(room(None))
    assert (filled["places"]["drawer 0"]["openable"], filled["places"]["drawer 0"]["open"]) == (True, False)
