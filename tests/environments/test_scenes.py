"""The shortened view of a place: read from the game's prose, written for the agent, and read back by players."""

import pytest
from dreamgym_integrations.environments.textworld_express.engine import SIDES, plain
from dreamgym_integrations.environments.textworld_express.scenes import Scene, short
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.errors import EnvironmentUnavailable

KITCHEN = (
    "You are in the kitchen. In one part of the room you see a stove. There is also an oven. "
    "You also see a fridge that is closed. In another part of the room you see a counter that has 33 papayas, a knife, "
    "and some flour on it. In one part of the room you see a kitchen cupboard that is closed. "
    "There is also An open cutlery drawer, that contains a TV remote control. You also see an open trash can, that is "
    "empty. In another part of the room you see a desk, that has nothing on it. In one part of the room you see a "
    "clean blue T-shirt. \nTo the West you see a closed frosted-glass door. Through an open screen door, to the East "
    "you see the pantry. "
)

names = st.from_regex(r"[a-z]{1,5}( [a-z]{1,5}){0,2}", fullmatch=True).filter(
    lambda name: name not in {*SIDES, "empty", "closed", "score", "you carry"}
)
lists = st.lists(names, max_size=3).map(tuple)
scenes = st.builds(
    Scene,
    place=names,
    exits=st.dictionaries(st.sampled_from(SIDES), names),
    things=lists,
    holders=st.dictionaries(names, st.none() | lists, max_size=3),
    carried=lists,
)


def test_a_view_shows_the_name_of_the_place_its_exits_its_things_and_its_containers() -> None:
    scene = Scene.of_game(KITCHEN, "Inventory: \n  Your inventory is currently empty.\n")
    assert str(scene) == (
        "kitchen. east: pantry. west: closed door. stove. oven. clean blue t shirt. fridge: closed. "
        "counter: 33 papayas, knife, flour. kitchen cupboard: closed. cutlery drawer: tv remote control. "
        "trash can: empty. desk: empty."
    )
    assert scene.within_reach == (
        *("stove", "oven", "clean blue t shirt", "33 papayas", "knife", "flour", "tv remote control"),
    )


def test_a_view_ends_with_the_carried_things() -> None:
    scene = Scene.of_game("You are in the chamber. ", "Inventory: \n  a map\n  a raw chicken wing\n")
    assert str(scene) == "chamber. you carry: map, raw chicken wing."


def test_a_text_that_describes_no_place_is_a_fault_of_the_environment() -> None:
    with pytest.raises(EnvironmentUnavailable, match="Unknown action"):
        Scene.of_game("Unknown action: I'm not sure what you mean.", "")


@given(scenes)
def test_players_read_back_what_was_written(scene: Scene) -> None:
    assert Scene.of_text(str(scene)) == scene
    assert Scene.of_text(f"{scene} score: 25.") == scene


@given(st.text())
def test_plain_words_stay_plain(text: str) -> None:
    assert plain(plain(text)) == plain(text)


def test_replies_are_one_line_that_keeps_its_items_apart() -> None:
    assert short("Unknown action: I'm not sure what you mean.") == "unknown action."
    assert short("Inventory: \n  Your inventory is currently empty.\n") == "you carry nothing."
    assert short("Inventory: \n  a map\n") == ""
    assert short("Simon says, 'smell apple'.") == "simon says, smell apple."
    assert short("You open the fridge. It's empty inside.") == "you open the fridge. it's empty inside."
    recipe = (
        "Gather all.\n\nIngredients:\n  chicken wing\n  red apple\n\nDirections:\n  fry the red apple\n  prepare meal\n"
    )
    assert short(recipe) == (
        "gather all. ingredients: chicken wing, red apple, directions: fry the red apple, prepare meal."
    )
