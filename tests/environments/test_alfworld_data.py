"""ALFWorld's data in the forms that users have, and errors for bad data; needs neither the package nor the data."""

import sys
from pathlib import Path
from random import Random

import pytest
from alfworld_room import HOT, SIMPLE, START, pack, problem, row, unpack
from dreamgym_integrations.environments.alfworld import alfworld
from dreamgym_integrations.environments.alfworld.data import GOALS, Games
from dreamgym_integrations.environments.alfworld.planner import narrowed
from dreamgym_integrations.environments.alfworld.players import HouseholdGoal, HouseholdPlayer

from dreamgym.errors import InvalidInput, MissingPackage, UnknownName
from dreamgym.types import StepResult

PLANS = [1, 2, 5, 10, 225, 230, 301, 415]


def games(data: Path) -> Games:
    return Games(data, data.parent / "cache")


def test_packed_rows_are_cut_so_that_no_floor_plan_is_in_two_splits(tmp_path: Path) -> None:
    read = games(pack(tmp_path / "data", [row(number, plan) for number, plan in enumerate(PLANS * 3)]))
    plans = {split: {task.metadata["floor_plan"] for task in read.tasks(split)} for split in ("train", "dev", "test")}
    assert plans == {"train": {1, 2, 301}, "dev": {5, 225, 415}, "test": {10, 230}}
    ids = [task.id for split in plans for task in read.tasks(split)]
    assert len(set(ids)) == len(ids) == 24


def test_the_description_names_the_adapter_as_it_is_registered(tmp_path: Path) -> None:
    data = pack(tmp_path / "data", [row(1, 1)])
    assert alfworld({"data": str(data), "cache": str(tmp_path / "cache")}).spec.adapter == "alfworld"


def test_official_data_keep_their_own_splits_and_the_wording_of_their_games(tmp_path: Path) -> None:
    for number, source in enumerate(("train", "valid_seen", "valid_unseen")):
        unpack(tmp_path / "data", source, number, 10)
    read = games(tmp_path / "data")
    for split, number in (("train", 0), ("dev", 1), ("test", 2)):
        (task,) = read.tasks(split)
        assert task.metadata["game"] == f"{SIMPLE}-Mug-None-Desk-10/trial_{number}"
        assert task.instruction == "Your task is to: put some mug on desk."
        assert task.initial_state == START
        assert task.metadata["descriptions"] == ["Bring the mug to the desk."]
    assert "(:domain alfred)" in read.problem(f"{SIMPLE}-Mug-None-Desk-10/trial_0")
    assert [task.id for task in games(tmp_path / "data" / "json_2.1.1").tasks("train")] == [read.tasks("train")[0].id]


def test_a_game_file_without_a_wording_of_its_own_takes_one_of_its_type(tmp_path: Path) -> None:
    unpack(tmp_path / "data", "train", 1, 1, grammar='"rhs": "Your task is to: UNKNOWN GOAL."')
    (task,) = games(tmp_path / "data").tasks("train")
    wordings = [wording.format(obj="mug", recep="desk") for wording in GOALS[SIMPLE]]
    assert task.instruction.removeprefix("Your task is to: ").removesuffix(".") in wordings


def test_unsolvable_games_and_trials_that_are_not_text_games_are_left_out(tmp_path: Path) -> None:
    unpack(tmp_path / "data", "train", 1, 1)
    unpack(tmp_path / "data", "train", 2, 1, solvable=False)
    sliced = unpack(tmp_path / "data", "train", 3, 1)
    sliced.rename(sliced.with_name("trial_Sliced"))
    assert len(games(tmp_path / "data").tasks("train")) == 1


@pytest.mark.parametrize("above", ["removable", "Sliced"])
def test_the_name_of_a_folder_above_the_games_leaves_none_of_them_out(tmp_path: Path, above: str) -> None:
    unpack(tmp_path / above / "data", "train", 1, 1)
    assert len(games(tmp_path / above / "data").tasks("train")) == 1


@pytest.mark.parametrize("lost", ["game.tw-pddl", "traj_data.json"])
def test_a_half_downloaded_folder_is_refused_with_a_way_to_finish_it(tmp_path: Path, lost: str) -> None:
    unpack(tmp_path / "data", "train", 1, 1)
    (unpack(tmp_path / "data", "train", 2, 1) / lost).unlink()
    with pytest.raises(
        InvalidInput,
        match=r"1 of 2 trials have no game.tw-pddl, or no traj_data.json, such as .*trial_2: .*`alfworld-download`",
    ):
        games(tmp_path / "data")
    whole = Games(tmp_path / "data", tmp_path / "cache", incomplete=True)
    assert len(whole.tasks("train")) == 1
    with pytest.raises(InvalidInput, match="no games for test, expected valid_unseen in it"):
        whole.tasks("test")


@pytest.mark.parametrize("name", ["game.tw-pddl", "traj_data.json"])
def test_a_file_that_is_cut_off_is_named(tmp_path: Path, name: str) -> None:
    file = unpack(tmp_path / "data", "train", 1, 1) / name
    file.write_text(file.read_text()[:50])
    with pytest.raises(InvalidInput, match=rf"{name} cannot be used: .*EOF"):
        games(tmp_path / "data")
    assert not list((tmp_path / "cache").iterdir()), "nothing half written is left"


def test_packed_rows_that_are_cut_off_or_incomplete_are_named_with_their_line(tmp_path: Path) -> None:
    data = pack(tmp_path / "data", [row(1, 1), row(2, 2)])
    file = data / "train.jsonl.xz"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(InvalidInput, match=r"train.jsonl.xz is cut off or damaged"):
        games(data)
    pack(data, [row(1, 1), {**row(2, 2), "pddl_problem": ""}])
    with pytest.raises(InvalidInput, match="line 2: expected a row with game and pddl_problem"):
        games(data)
    whole = str(row(1, 1)["pddl_problem"])
    for cut in ("hello", whole[: len(whole) // 2], whole.partition("(:goal")[0], whole.rstrip()[:-2]):
        pack(data, [row(2, 2), {**row(1, 1), "pddl_problem": cut}])
        with pytest.raises(InvalidInput, match="line 2: pddl_problem: expected a whole PDDL problem of ALFWorld"):
            games(data)
    pack(data, [{**row(1, 1), "task_type": "juggle"}])
    with pytest.raises(InvalidInput, match=r"line 1: task_type: expected one of .*, got 'juggle'"):
        games(data)
    pack(data, [{key: value for key, value in row(1, 1).items() if key != "scene_num"}])
    with pytest.raises(InvalidInput, match="line 1: expected scene_num"):
        games(data)


def test_changed_data_are_read_again_and_unchanged_data_are_not(tmp_path: Path) -> None:
    data = pack(tmp_path / "data", [row(1, 1)])
    assert len(games(data).tasks("train")) == 1
    (index,) = (tmp_path / "cache").iterdir()
    assert len(games(data).tasks("train")) == 1
    assert list((tmp_path / "cache").iterdir()) == [index]
    pack(data, [row(1, 1), row(2, 1)])
    assert len(games(data).tasks("train")) == 2


def test_a_folder_without_games_is_refused_with_a_way_to_get_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=r"expected a folder json_2.1.1, or train.jsonl.xz.*`alfworld-download`"):
        games(tmp_path)
    with pytest.raises(InvalidInput, match="does not exist: run `alfworld-download` to get"):
        games(tmp_path / "nowhere")
    (tmp_path / "started" / "json_2.1.1").mkdir(parents=True)
    with pytest.raises(
        InvalidInput, match=r"json_2.1.1: expected trials such as .*traj_data.json.*`alfworld-download`"
    ):
        games(tmp_path / "started")
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=r"are not in .*nowhere.*\[real\] data or ALFWORLD_DATA"):
        alfworld({}).tasks("train")
    monkeypatch.setenv("ALFWORLD_DATA", str(pack(tmp_path / "data", [row(1, 1)])))
    assert len(alfworld({"cache": str(tmp_path / "cache")}).spec.tasks) == 1


def test_unknown_names_and_options_are_refused(tmp_path: Path) -> None:
    real = alfworld({"data": str(pack(tmp_path / "data", [row(1, 1)])), "cache": str(tmp_path / "cache")})
    with pytest.raises(UnknownName, match="unknown split 'valid_seen': expected one of dev, test, train"):
        real.tasks("valid_seen")
    with pytest.raises(UnknownName, match="unknown game of ALFWorld 'chess'"):
        real.games.problem("chess")
    with pytest.raises(InvalidInput, match="environment 'alfworld', its options: rooms"):
        alfworld({"rooms": 3})


@pytest.mark.anyio
async def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "alfworld", None)
    data = pack(tmp_path / "data", [row(1, 1)])
    real = alfworld({"data": str(data), "cache": str(tmp_path / "cache"), "engine": "package"})
    with pytest.raises(MissingPackage, match=r"\.\[alfworld\]"):
        await real.create().reset(real.tasks("train")[0])


@pytest.mark.parametrize("task_type", GOALS)
@pytest.mark.parametrize("number", [0, 1])
def test_every_wording_of_a_task_is_understood(task_type: str, number: int) -> None:
    text = GOALS[task_type][number].format(obj="mug", recep="desk", toggle="desklamp")
    goal = HouseholdGoal(f"Your task is to: {text}.")
    assert (goal.thing, goal.place) == ("mug", "desklamp" if goal.is_look else "desk")
    assert goal.is_look == (task_type == "look_at_obj_in_light")
    assert goal.count == (2 if "two" in task_type else 1)
    assert goal.change == next((change for change in ("heat", "cool", "clean") if f"_{change}_" in task_type), None)
    with pytest.raises(InvalidInput, match="expected a task in ALFWorld's wording"):
        HouseholdGoal("Win.")
    for other in ("do not", "put a cup and", "take a cup, then"):
        with pytest.raises(InvalidInput, match="expected a task in ALFWorld's wording"):
            HouseholdGoal(f"Your task is to: {other} {text}.")
    with pytest.raises(InvalidInput, match="at most 1000 characters, got 4000"):
        HouseholdGoal("put " * 999 + "mug!")


def test_the_planner_gets_only_the_facts_that_a_task_needs() -> None:
    plain, hot = narrowed(problem(SIMPLE)), narrowed(problem(HOT))
    for needed in ("(inReceptacle Mug_bar_1 Drawer_bar_1)", "(openable Drawer_bar_1)", "(canContain DeskType MugType)"):
        assert needed in plain
        assert needed in hot
    for other in ("Drawer_bar_2 loc_bar_3", "pickupable Book_bar_1", "toggleable DeskLamp_bar_1"):
        assert other in problem(SIMPLE)
        assert other not in plain + hot
    assert "receptacleType Microwave_bar_1" in hot
    assert "receptacleType Microwave_bar_1" not in plain
    assert plain.partition("(:goal")[2] == problem(SIMPLE).partition("(:goal")[2]


def test_the_searcher_solves_a_task_from_its_observations_alone() -> None:
    player = HouseholdPlayer(HouseholdGoal("put a hot mug in desk"), Random(0))
    player.see(StepResult(observation=START), "")
    told = {
        "go to desk 1": "You arrive at desk 1. On the desk 1, you see a book 1.",
        "go to drawer 2": "You arrive at drawer 2. The drawer 2 is closed.",
        "go to drawer 1": "You arrive at drawer 1. The drawer 1 is closed.",
        "go to microwave 1": "You arrive at microwave 1. The microwave 1 is closed.",
        "open drawer 2": "You open the drawer 2. The drawer 2 is open. In it, you see a mug 1.",
        "open drawer 1": "You open the drawer 1. The drawer 1 is open. In it, you see nothing.",
        "open microwave 1": "You open the microwave 1. The microwave 1 is open. In it, you see nothing.",
        "take mug 1 from drawer 2": "You pick up the mug 1 from the drawer 2.",
        "heat mug 1 with microwave 1": "You heat the mug 1 using the microwave 1.",
        "move mug 1 to desk 1": "You move the mug 1 to the desk 1.",
    }
    said: list[str] = []
    while not said or said[-1] != "move mug 1 to desk 1":
        said.append(player.command())
        player.see(StepResult(observation=told[said[-1]]), said[-1])
        assert len(said) < 15
    assert said[-6:-1] == [
        "open drawer 2",
        "take mug 1 from drawer 2",
        "go to microwave 1",
        "heat mug 1 with microwave 1",
        "go to desk 1",
    ]
