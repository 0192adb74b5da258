"""The pure-Python engine of ALFWorld: its rules in an invented room, and equality with the package's engine."""

import importlib.util
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from random import Random

import pytest
from alfworld_recorded import HAS_DATA, NO_DATA, episodes
from alfworld_room import HOT, SIMPLE, START, WAY, pack, problem, row
from dreamgym_integrations.environments.alfworld import Alfworld, alfworld
from dreamgym_integrations.environments.alfworld.own_engine import HouseholdGame, HouseholdPlay
from dreamgym_integrations.environments.alfworld.wording import HELP, REFUSAL
from dreamgym_integrations.environments.base import act

from dreamgym.curriculum.generator import variation
from dreamgym.episode import play
from dreamgym.errors import EpisodeFinished, InvalidInput
from dreamgym.runs.environments import listed
from dreamgym.runs.side_by_side import keep_house
from dreamgym.runs.versions import GROUP, packages_of
from dreamgym.testing import check_environment
from dreamgym.types import JsonObject, Source, StepResult

HAS_PACKAGE = all(importlib.util.find_spec(name) for name in ("alfworld", "textworld", "fast_downward"))


@pytest.fixture
def room(tmp_path: Path) -> Alfworld:
    return own(tmp_path, [row(number, 1, HOT) for number in range(3)])


def own(folder: Path, rows: Sequence[JsonObject], engine: str = "own") -> Alfworld:
    data = pack(folder / "data", rows)
    return alfworld({"data": str(data), "cache": str(folder / "cache"), "workers": 1, "engine": engine})


def changed(old: str, new: str) -> HouseholdPlay:
    """Return play of the invented room, with `old` in its problem replaced by `new`."""
    assert old in problem(SIMPLE)
    return HouseholdPlay(HouseholdGame.of(problem(SIMPLE).replace(old, new)))


def said(playing: HouseholdPlay, *commands: str) -> list[str]:
    return [playing.step(command) for command in commands]


@pytest.mark.anyio
async def test_the_room_keeps_the_contract_of_an_environment(room: Alfworld) -> None:
    await check_environment(room.create, room.tasks("train")[:2], deterministic=True)


@pytest.mark.anyio
async def test_a_user_without_the_package_plays_packed_rows_to_the_end_of_the_task(room: Alfworld) -> None:
    environment, task = room.create(), room.tasks("train")[0]
    start = await environment.reset(task)
    assert start.observation == start.state == task.initial_state == START
    results = [await environment.step(act(command)) for command in WAY]
    assert [result.observation for result in results] == [
        "You arrive at drawer 2. The drawer 2 is closed.",
        "You open the drawer 2. The drawer 2 is open. In it, you see a mug 1.",
        "You pick up the mug 1 from the drawer 2.",
        "You arrive at microwave 1. The microwave 1 is closed.",
        "You heat the mug 1 using the microwave 1.",
        "You arrive at desk 1. On the desk 1, you see a book 1, and a desklamp 1.",
        "You move the mug 1 to the desk 1.",
    ]
    assert results[4].state == "You are at microwave 1, which is closed. You carry: mug 1 (hot)."
    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 0, 1]
    assert results[-1].terminated
    with pytest.raises(EpisodeFinished):
        await environment.step(act("look"))


def test_only_the_packages_engine_needs_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALFWORLD_DATA", str(pack(tmp_path / "data", [row(1, 1)])))
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    (point,) = entry_points(group=GROUP, name="alfworld")
    assert packages_of(point) == []
    assert "alfworld" in packages_of(point, {"engine": "package"})
    assert listed(point).is_playable


@pytest.mark.anyio
async def test_a_varied_task_is_not_rewarded_for_the_goal_of_its_game(room: Alfworld) -> None:
    parent = room.tasks("train")[0]
    varied = variation(parent, "Your task is to: put a book in drawer.", parent.initial_state)
    environment = room.create()
    with pytest.raises(InvalidInput, match=r"the real environment rewards only 'Your task is to: .*play it in a dream"):
        await environment.reset(varied)
    with pytest.raises(EpisodeFinished):
        await environment.step(act("look"))
    await environment.reset(variation(parent, parent.instruction, None))


@pytest.mark.anyio
@pytest.mark.parametrize("behaviour", ["expert", "handcoded"])
async def test_good_players_win_without_a_refusal(room: Alfworld, behaviour: str) -> None:
    task = room.tasks("train")[0]
    episode = await play(room.create(), task, room.behaviours[behaviour], spec=room.spec, seed=0, source=Source.REAL)
    assert episode.success
    assert not any(step.result.is_error for step in episode.transitions)
    assert behaviour != "expert" or [step.action.arguments["command"] for step in episode.transitions] == WAY


def test_an_impossible_command_is_refused_and_changes_nothing() -> None:
    playing = HouseholdPlay(HouseholdGame.of(problem(HOT)))
    said(playing, *WAY[:3])
    before = playing.state(), playing.commands()
    for command in (
        *("put mug 1 in/on drawer 2", "take book 1 from desk 1", "go to drawer 2", "go drawer 1", "go to", "dance", ""),
        *("heat mug 1 with drawer 2", "move mug 1 to desk 1", "open drawer 2", "close desk 1", "examine book 1"),
        *("look around", "take mug 1", "use mug 1", "slice mug 1 with mug 1", "Look", "look ", "help me"),
    ):
        assert playing.step(command) == REFUSAL, command
        assert (playing.state(), playing.commands()) == before


def test_every_command_listed_as_possible_is_carried_out_and_every_other_is_refused() -> None:
    random, tried = Random(0), set[str]()
    for _ in range(20):
        playing = HouseholdPlay(HouseholdGame.of(problem(SIMPLE)))
        for _ in range(30):
            possible = playing.commands()
            assert possible == sorted(set(possible))
            tried |= set(possible)
            for impossible in tried - set(possible):
                assert playing.step(impossible) == REFUSAL
            assert playing.commands() == possible
            assert playing.step(random.choice(possible)) != REFUSAL


def test_a_thing_in_two_places_is_taken_out_of_one() -> None:
    playing = changed(
        "(inReceptacle Mug_bar_1 Drawer_bar_1)",
        "(inReceptacle Mug_bar_1 Drawer_bar_1)(inReceptacle Mug_bar_1 Desk_bar_1)",
    )
    assert said(playing, "go to desk 1", "take mug 1 from desk 1", "go to drawer 2", "open drawer 2")[-1] == (
        "You open the drawer 2. The drawer 2 is open. In it, you see a mug 1."
    )
    assert not [command for command in playing.commands() if command.startswith("take")]
    assert said(playing, "move mug 1 to drawer 2", "examine drawer 2")[-1].endswith("you see a mug 1.")


def test_places_at_one_spot_are_reached_together_and_not_from_each_other() -> None:
    playing = changed("(receptacleAtLocation Drawer_bar_2 loc_bar_3)", "(receptacleAtLocation Drawer_bar_2 loc_bar_2)")
    assert said(playing, "look", "go to drawer 1", "look", "go to drawer 2") == [
        "You are in the middle of a room. Looking quickly around you, you see nothing.",
        "You arrive at drawer 1. The drawer 1 is closed.",
        "You are facing the drawer 2, and drawer 1. Next to it, you see nothing.",
        REFUSAL,
    ]
    assert {"open drawer 1", "open drawer 2"} <= set(playing.commands())


def test_examining_a_held_thing_shows_whether_it_is_hot_cold_or_clean() -> None:
    playing = changed(
        "(pickupable Mug_bar_1)", "(pickupable Mug_bar_1)(coolable Mug_bar_1)(cleanable Mug_bar_1)(isCool Mug_bar_1)"
    )
    answers = said(
        playing,
        "inventory",
        *WAY[:3],
        "inventory",
        "examine mug 1",
        "go to microwave 1",
        "heat mug 1 with microwave 1",
        "examine mug 1",
        "help",
    )
    assert [answers[number] for number in (0, 4, 5, 8, 9)] == [
        "You are not carrying anything.",
        "You are carrying: a mug 1.",
        "This is a cold mug 1.",
        "This is a hot mug 1.",
        HELP,
    ]
    playing.conditions["clean"].add("mug 1")
    assert playing.step("examine mug 1") == "This is a hot and clean mug 1."
    assert playing.state().endswith("You carry: mug 1 (hot, clean).")


def test_a_knife_slices_a_thing_at_the_same_spot() -> None:
    playing = changed(
        "(objectType Book_bar_1 BookType)", "(objectType Book_bar_1 ButterKnifeType)(sliceable DeskLamp_bar_1)"
    )
    assert said(playing, "go to desk 1", "take book 1 from desk 1", "slice desklamp 1 with book 1") == [
        "You arrive at desk 1. On the desk 1, you see a book 1, and a desklamp 1.",
        "You pick up the book 1 from the desk 1.",
        "You sliced the desklamp 1 with the book 1.",
    ]
    assert "There: desklamp 1 (sliced)." in playing.state()


def test_a_goal_of_two_things_is_met_only_if_both_are_in_one_place() -> None:
    two = "(exists (?p - object) (and (not (= ?o ?p)) (objectType ?p MugType) (inReceptacle ?p ?r)))"
    text = problem(SIMPLE).replace("(objectType Book_bar_1 BookType)", "(objectType Book_bar_1 MugType)")
    goal = text.index("(:goal")
    playing = HouseholdPlay(
        HouseholdGame.of(text[:goal] + text[goal:].replace("(inReceptacle ?o ?r)", f"(inReceptacle ?o ?r) {two}"))
    )
    assert not playing.is_won
    said(playing, *WAY[:3], "go to desk 1")
    assert not playing.is_won
    said(playing, "move mug 1 to desk 1")
    assert playing.is_won


def test_looking_at_a_thing_means_holding_it_beside_a_lit_lamp() -> None:
    start = problem(SIMPLE).partition("(:goal")[0]
    goal = """(:goal (and
        (exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and (objectType ?ot DeskLampType)
            (toggleable ?ot) (isToggled ?ot) (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r)))
        (exists (?o - object ?a - agent) (and (objectType ?o BookType) (holds ?a ?o))))))"""
    playing = HouseholdPlay(HouseholdGame.of(start + goal))
    assert said(playing, "go to desk 1", "use desklamp 1")[-1] == "You turn on the desklamp 1."
    assert not playing.is_won
    said(playing, "take book 1 from desk 1")
    assert playing.is_won
    said(playing, "go to drawer 1")
    assert not playing.is_won


@pytest.mark.parametrize(
    "goal",
    [
        "(forall (?o - object) (isHot ?o))",
        "(and (not (isHot Mug_bar_1)))",
        "(exists (?o - object) (and (objectType ?o MugType)))",
    ],
)
def test_a_goal_that_the_rules_cannot_decide_is_refused(goal: str) -> None:
    with pytest.raises(InvalidInput, match="expected a goal of ALFWorld's six types, got"):
        HouseholdGame.of(problem(SIMPLE).partition("(:goal")[0] + f"(:goal {goal}))")


@pytest.mark.skipif(not HAS_DATA, reason=NO_DATA)
def test_recorded_episodes_of_the_real_games_are_answered_word_for_word() -> None:
    steps = 0
    for episode, packed in episodes():
        playing = HouseholdPlay(HouseholdGame.of(packed["pddl_problem"]))
        assert playing.game.start == episode["initial_observation"].split("\n\n")[1]
        assert playing.commands() == episode["initial_admissible"]
        for step in episode["steps"]:
            answer = playing.step(step["action"])
            assert (answer, playing.commands(), playing.is_won, float(playing.is_won)) == (
                *(step["observation"], step["admissible"], step["done"], step["reward"]),
            )
            steps += 1
    assert steps == 2038


@pytest.mark.slow
@pytest.mark.anyio
@pytest.mark.skipif(not HAS_PACKAGE, reason="the package's engine needs the extra dreamgym[alfworld]")
@pytest.mark.skipif(not HAS_DATA, reason=NO_DATA)
async def test_played_episodes_of_real_games_are_those_of_the_packages_engine(tmp_path: Path) -> None:
    rows = [packed for number, (_, packed) in enumerate(episodes()) if number % 40 == 0]
    await check_same_play(tmp_path, rows, steps=60)


@pytest.mark.anyio
@pytest.mark.skipif(not HAS_PACKAGE, reason="the package's engine needs the extra dreamgym[alfworld]")
async def test_played_episodes_of_the_room_are_those_of_the_packages_engine(tmp_path: Path) -> None:
    await check_same_play(tmp_path, [row(1, 1, HOT), row(2, 1, SIMPLE)], steps=120)


async def check_same_play(folder: Path, rows: Sequence[JsonObject], steps: int) -> None:
    """Check that both engines give equal results for random play and for the expert's play.

    In random play, one command in eight is drawn from all commands seen so far, so it may be impossible.
    """
    ours, package = own(folder, rows), own(folder, rows, "package")
    random, seen = Random(0), set[str]()
    for task in ours.tasks("train"):
        planned = await ours.plan(task)
        for script in (None, planned):
            pair = [ours.create(), package.create()]
            result = await same([await environment.reset(task) for environment in pair])
            for number in range(len(planned) if script else steps):
                possible = result.info["admissible"]
                assert isinstance(possible, list)
                seen |= set(map(str, possible))
                drawn = random.choice(sorted(seen) if random.random() < 0.125 else [str(one) for one in possible])
                command = script[number] if script else drawn
                result = await same([await environment.step(act(command)) for environment in pair])
                if result.terminated:
                    break
            assert script is None or result.terminated
            for environment in pair:
                await environment.close()


async def same(results: Sequence[StepResult]) -> StepResult:
    first, second = results
    assert first == second
    return first


def test_the_scripted_chat_model_of_the_demonstration_wins_from_the_conversation_alone() -> None:
    playing = HouseholdPlay(HouseholdGame.of(problem(SIMPLE)))
    messages: list[JsonObject] = [{"role": "user", "content": f"Your task is to: put a mug in desk.\n\n{START}"}]
    while not playing.is_won:
        (call,) = keep_house(messages, []).tool_calls
        messages.append({"role": "assistant", "content": ""})
        messages.append({"role": "tool", "content": playing.step(str(call.arguments["command"]))})
        assert len(messages) < 40
    messages.append({"role": "tool", "content": "The session has ended."})
    assert keep_house(messages, []).text
