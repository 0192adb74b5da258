"""The reader of ScienceWorld's texts, on recorded play and on the starts of all tasks; needs no Java."""

import json
import lzma
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from dreamgym_integrations.environments.base import act
from dreamgym_integrations.environments.scienceworld import scienceworld
from dreamgym_integrations.environments.scienceworld.reader import INVENTORY, ScienceWorldReader, view_in
from growth import grows_linearly

from dreamgym.reading import Reader
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

RECORDED = Path(__file__).parents[3] / "shared/data/scienceworld/gold_trajectories.jsonl.xz"
READER = ScienceWorldReader()
TASK = Task(id="t", env="scienceworld", instruction="Find a living thing.")
KITCHEN = """This room is called the kitchen. In it, you see: \n\tthe agent\n\ta substance called air
\ta counter. On the counter is: a bowl (containing a red apple, a cup (containing water)), a drawer.
\ta cupboard. The cupboard door is open. In the cupboard is: a tin cup (containing nothing), a lamp, which is turned on.
\ta fridge. The fridge door is closed. \n\ta sink, which is turned off. In the sink is: nothing.
\ta thermometer, currently reading a temperature of 10 degrees celsius
You also see:\n\tA door to the hallway (that is open)\n\tA door to the outside (that is closed)
In your inventory, you see:\n\tan orange"""


def read(*steps: tuple[str, str, str]) -> JsonObject:
    """Return the state after a start in the kitchen and some steps: a command, its reply and the view after it."""
    state = READER.start(TASK, StepResult(observation=KITCHEN))
    for command, reply, view in steps:
        call = READER.call(act(command))
        result = READER.result(call, StepResult(observation=reply, info={"state": view} if view else {}))
        state = READER.after(state, call, result)
        assert READER.schema.fault_of(state) is None
    return state


def known(state: JsonObject, thing: str) -> JsonObject:
    things = state["things"]
    assert isinstance(things, dict)
    entity = things[thing]
    assert isinstance(entity, dict)
    return entity


def recorded() -> Iterator[dict[str, Any]]:
    with lzma.open(RECORDED, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def test_the_environment_has_the_reader() -> None:
    reader: Reader = scienceworld({}).reader
    assert isinstance(reader, ScienceWorldReader)


def test_a_view_shows_where_things_are_which_are_open_and_which_are_on() -> None:
    state = read()
    where = {
        name: known(state, name)["where"] for name in ("air", "bowl", "red apple", "water", "tin cup", "lamp", "orange")
    }
    assert where == {
        "air": ["kitchen"],
        "bowl": ["kitchen/counter"],
        "red apple": ["kitchen/counter/bowl"],
        "water": ["kitchen/counter/bowl/cup"],
        "tin cup": ["kitchen/cupboard"],
        "lamp": ["kitchen/cupboard"],
        "orange": [INVENTORY],
    }
    assert [known(state, name)["open"] for name in ("cupboard", "fridge", "counter")] == [True, False, None]
    assert [known(state, name)["active"] for name in ("lamp", "sink", "thermometer")] == [True, False, None]
    assert state["at"] == "kitchen"
    assert state["places"] == {
        "kitchen": {"place": "kitchen", "seen": True, "doors": {"hallway": True, "outside": False}}
    }


def test_equal_things_are_one_entity_in_several_places_and_a_new_view_replaces_only_its_part() -> None:
    hallway = "This room is called the hallway. In it, you see: \n\ta substance called air"
    hallway += "\n\ta counter. On the counter is: nothing."
    state = read(("go to hallway", "You move to the hallway.", f"{hallway}\nIn your inventory, you see:\n\ta tin cup"))
    assert known(state, "air")["where"] == ["hallway", "kitchen"]
    assert known(state, "counter")["where"] == ["hallway", "kitchen"]
    assert known(state, "bowl")["where"] == ["kitchen/counter"], "the counter of the hallway is another one"
    assert known(state, "tin cup")["where"] == [INVENTORY, "kitchen/cupboard"]
    assert known(state, "orange")["where"] == []
    assert state["at"] == "hallway"


def test_walks_moves_and_switches_are_read_from_replies_alone() -> None:
    state = read(
        ("move orange to bowl", "You move the orange to the bowl.", ""),
        ("pick up tin cup", "You move the tin cup to the inventory.", ""),
        ("open fridge", "The fridge is now open.", ""),
        ("activate sink", "The sink is now activated.", ""),
        ("open fridge", "The fridge is already open.", ""),
        ("go to hallway", "You move to the hallway.", ""),
    )
    assert known(state, "orange")["where"] == ["kitchen/counter/bowl"]
    assert known(state, "tin cup")["where"] == [INVENTORY]
    assert known(state, "fridge")["open"] is True
    assert known(state, "sink")["active"] is True
    assert state["at"] == "hallway"


@pytest.mark.parametrize(
    ("command", "call"),
    [
        ("move metal pot to sink", ToolCall(name="move", arguments={"thing": "metal pot", "place": "sink"})),
        ("use thermometer on ice", ToolCall(name="use", arguments={"tool": "thermometer", "thing": "ice"})),
        ("go kitchen", ToolCall(name="go", arguments={"place": "kitchen"})),
        ("look around", ToolCall(name="look_around", arguments={})),
        ("0", act("0")),
    ],
)
def test_commands_become_typed_calls_and_a_typed_call_in_words_is_read_back(command: str, call: ToolCall) -> None:
    assert READER.call(act(command)) == call
    assert READER.call(READER.action(call)) == call


def test_the_starts_of_all_tasks_are_read() -> None:
    for split in ("train", "dev", "test"):
        for task in scienceworld({}).tasks(split):
            state = READER.start(task, StepResult(observation=task.initial_state or ""))
            assert READER.schema.fault_of(state) is None
            assert f"called the {state['at']}." in (task.initial_state or "")
            assert known(state, "air")["where"] == [state["at"]]


@pytest.mark.skipif(not RECORDED.is_file(), reason=f"{RECORDED} is not there")
def test_recorded_views_are_read_whole_and_no_name_contains_other_words() -> None:
    views = 0
    for episode in recorded():
        for text in [episode["initial_observation"], *(step["observation"] for step in episode["steps"])]:
            view = view_in(text)
            assert (view is not None) == (" is called " in text or text.startswith("In your inventory, you see"))
            if view is not None:
                views += 1
                things = view["things"]
                assert isinstance(things, list)
                for thing in things:
                    assert isinstance(thing, dict)
                    assert re.search(rf"\b{re.escape(str(thing['thing']))}\b", text)
                    assert not re.search(r"[(),.:]| is |^(?:an?|the|A) ", str(thing["thing"]))
                lines = {line for line in text.split("\n") if line.startswith("\t") and "A door to" not in line}
                roots = {*map(str, view["places"])} if isinstance(view["places"], list) else set()
                top = [thing for thing in things if isinstance(thing, dict) and thing["where"] in roots]
                assert len(top) >= len(lines)
    assert views > 100


@pytest.mark.parametrize(
    "part", ["(containing a ", "a cup, ", "In the cup is: ", "In the ", "You move the cup to the ", "\ta cup. "]
)
def test_long_texts_are_read_in_linear_time(part: str) -> None:
    def text(size: int) -> str:
        return f"This room is called the hall. In it, you see: \n\ta cup. {part * (size // len(part))}"

    assert grows_linearly(view_in, text)
    assert grows_linearly(lambda long: READER.result(act("wait"), StepResult(observation=long)), lambda n: part * n)
