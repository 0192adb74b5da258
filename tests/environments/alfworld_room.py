"""An invented room for ALFWorld's engine, small enough to be built in a test, in folders of both forms of data."""

import json
import lzma
from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

OLD_GRAMMAR = 'grammar :: """{"task": [{"rhs": "Your task is to: put some mug on desk."}]}""";\naction PutObject {\n'
OLD_GRAMMAR += '    template :: "put {o} in/on {r}";\n}'
START = (
    "You are in the middle of a room. Looking quickly around you, you see a desk 1, a drawer 2, a drawer 1, "
    "and a microwave 1."
)
WAY = [
    *("go to drawer 2", "open drawer 2", "take mug 1 from drawer 2", "go to microwave 1"),
    *("heat mug 1 with microwave 1", "go to desk 1", "move mug 1 to desk 1"),
]
"""The commands that put a hot mug on the desk."""
PROBLEM = """
(define (problem room)
(:domain alfred)
(:objects
    agent1 - agent
    loc_bar_0 loc_bar_1 loc_bar_2 loc_bar_3 loc_bar_4 - location
    Desk_bar_1 Drawer_bar_1 Drawer_bar_2 Microwave_bar_1 - receptacle
    DeskType DrawerType MicrowaveType - rtype
    Mug_bar_1 Book_bar_1 DeskLamp_bar_1 - object
    MugType BookType DeskLampType - otype
)
(:init
    (receptacleType Desk_bar_1 DeskType)
    (receptacleType Drawer_bar_1 DrawerType)
    (receptacleType Drawer_bar_2 DrawerType)
    (receptacleType Microwave_bar_1 MicrowaveType)
    (objectType Mug_bar_1 MugType)
    (objectType Book_bar_1 BookType)
    (objectType DeskLamp_bar_1 DeskLampType)
    (canContain DeskType MugType)
    (canContain DeskType BookType)
    (canContain DrawerType MugType)
    (canContain DrawerType BookType)
    (canContain MicrowaveType MugType)
    (pickupable Mug_bar_1)
    (pickupable Book_bar_1)
    (toggleable DeskLamp_bar_1)
    (heatable Mug_bar_1)
    (openable Drawer_bar_1)
    (openable Drawer_bar_2)
    (openable Microwave_bar_1)
    (atLocation agent1 loc_bar_0)
    (receptacleAtLocation Desk_bar_1 loc_bar_1)
    (receptacleAtLocation Drawer_bar_1 loc_bar_2)
    (receptacleAtLocation Drawer_bar_2 loc_bar_3)
    (receptacleAtLocation Microwave_bar_1 loc_bar_4)
    (inReceptacle Mug_bar_1 Drawer_bar_1)
    (inReceptacle Book_bar_1 Desk_bar_1)
    (inReceptacle DeskLamp_bar_1 Desk_bar_1)
    (objectAtLocation Mug_bar_1 loc_bar_2)
    (objectAtLocation Book_bar_1 loc_bar_1)
    (objectAtLocation DeskLamp_bar_1 loc_bar_1)
)
(:goal
    (and
        (exists (?r - receptacle)
            (exists (?o - object)
                (and
                    (objectType ?o MugType)
                    (receptacleType ?r DeskType)
                    %s
                    (inReceptacle ?o ?r)
                )
            )
        )
    )
)
)
"""
HOT = "pick_heat_then_place_in_recep"
SIMPLE = "pick_and_place_simple"


def problem(task_type: str) -> str:
    return PROBLEM % ("(isHot ?o)" if task_type == HOT else "")


def row(number: int, floor_plan: int, task_type: str = SIMPLE) -> dict[str, JsonValue]:
    """One packed game."""
    return {
        "split": "train",
        "game": f"{task_type}-Mug-None-Desk-{floor_plan}/trial_{number}",
        "task_type": task_type,
        "pddl_params": {"object_target": "Mug", "parent_target": "Desk", "toggle_target": "", "mrecep_target": ""},
        "scene_num": floor_plan,
        "turk_annotations": {"anns": [{"task_desc": "Bring the mug to the desk."}]},
        "pddl_problem": problem(task_type),
    }


def pack(folder: Path, rows: Sequence[dict[str, JsonValue]], source: str = "train") -> Path:
    """Write packed rows into a folder, and return it."""
    folder.mkdir(exist_ok=True)
    text = "".join(json.dumps(one) + "\n" for one in rows)
    (folder / f"{source}.jsonl.xz").write_bytes(lzma.compress(text.encode()))
    return folder


def unpack(folder: Path, source: str, number: int, floor_plan: int, **game: JsonValue) -> Path:
    """Write one trial as in the official download, with a game file of the old grammar; return its folder."""
    packed = row(number, floor_plan)
    trial = folder / "json_2.1.1" / source / str(packed["game"])
    trial.mkdir(parents=True)
    told = {key: packed[key] for key in ("task_type", "pddl_params", "turk_annotations")}
    (trial / "traj_data.json").write_text(json.dumps({**told, "scene": {"scene_num": floor_plan}}))
    (trial / "initial_state.pddl").write_text(problem(SIMPLE))
    kept = {"pddl_domain": "old", "grammar": OLD_GRAMMAR, "pddl_problem": problem(SIMPLE), "solvable": True}
    (trial / "game.tw-pddl").write_text(json.dumps({**kept, **game}))
    return trial
