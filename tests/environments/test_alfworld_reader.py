"""The reader of ALFWorld's texts: its state agrees with the game, and it can render the texts again."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from alfworld_recorded import HAS_DATA, NO_DATA, episodes
from alfworld_room import HOT, problem
from dreamgym_integrations.environments.alfworld import alfworld
from dreamgym_integrations.environments.alfworld.own_engine import HouseholdGame, HouseholdPlay
from dreamgym_integrations.environments.alfworld.reader import AlfworldReader
from dreamgym_integrations.environments.alfworld.wording import REFUSAL, listed
from dreamgym_integrations.environments.base import act
from growth import grows_linearly

from dreamgym.environment import EnvironmentSpec
from dreamgym.reading import Reader, with_readings
from dreamgym.state import as_object, as_text, parsed
from dreamgym.tools import Tools
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall, Trajectory, Transition

READER = AlfworldReader()
TASK = Task(id="t", env="alfworld", instruction="Your task is to: put a hot mug in desk.")
MORE = """(:init
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_1)
    (canContain SinkBasinType MugType)
    (cleanable Mug_bar_1)
    (inReceptacle Mug_bar_1 Desk_bar_1)
    (isReceptacleObject Book_bar_1)
    (objectType Book_bar_2 BookType)
    (pickupable Book_bar_2)
    (sliceable Book_bar_2)
    (inReceptacle Book_bar_2 Desk_bar_1)
    (objectAtLocation Book_bar_2 loc_bar_1)
    (objectType Knife_bar_1 KnifeType)
    (pickupable Knife_bar_1)
    (inReceptacle Knife_bar_1 Desk_bar_1)
    (canContain DeskType KnifeType)"""
BESIDE = ("(receptacleAtLocation Drawer_bar_2 loc_bar_3)", "(receptacleAtLocation Drawer_bar_2 loc_bar_2)")
CROWDED = problem(HOT).replace(*BESIDE).replace("(:init", MORE)
"""The invented room with places that share a spot, a mug in two places, a sink, a knife and a second book."""


def said(command: str, observation: str) -> tuple[ToolCall, StepResult]:
    call = READER.call(act(command))
    return call, READER.result(call, StepResult(observation=observation))


def called(tool: str, **arguments: str) -> tuple[ToolCall, str]:
    call = ToolCall(name=tool, arguments={**arguments})
    return call, call.canonical()


def fields(state: JsonObject, collection: str, name: str) -> JsonObject:
    part = state[collection]
    assert isinstance(part, dict)
    entity = part[name]
    assert isinstance(entity, dict)
    return entity


def read_along(playing: HouseholdPlay, steps: int, random: Random) -> Iterator[JsonObject]:
    """Yield the reader's state after each step of random play, in which one command in ten may be impossible."""
    state = READER.start(TASK, StepResult(observation=playing.game.start))
    tried = ["dance", "take mug 1", "open desk 1", "go to"]
    for _ in range(steps):
        possible = playing.commands()
        tried += possible
        command = random.choice(tried if random.random() < 0.1 else possible)
        answer = playing.step(command)
        call, result = said(command, answer)
        assert READER.action(call) == act(command)
        assert result.is_error == (answer == REFUSAL)
        if result.structured is None:
            assert result.is_error, answer
        else:
            assert READER.observation(call, result.structured, "") == answer
        before = as_text(state)
        known = READER.after(state, call, result)
        assert as_text(state) == before, "a state is never changed"
        state = known
        yield state


def check_is_true(state: JsonObject, playing: HouseholdPlay) -> None:
    """Check that everything in the state is true in the game, and that it lists all things in each seen place."""
    assert READER.schema.fault_of(state) is None
    places, things = state["places"], state["things"]
    assert isinstance(places, dict)
    assert isinstance(things, dict)
    assert set(places) == set(playing.game.spots)
    assert state["held"] == playing.held
    assert state["at"] is None if not playing.here else playing.game.spots[str(state["at"])] == playing.spot
    for name in places:
        place = fields(state, "places", name)
        if place["openable"] is not None:
            assert place["openable"] == (name in playing.game.openable)
            assert place["open"] == (name in playing.opened if place["openable"] else None)
        beside = place["beside"]
        assert isinstance(beside, list)
        assert all(playing.game.spots[str(other)] == playing.game.spots[name] for other in beside)
        lying = {thing for thing in things if name in list_of(fields(state, "things", thing)["where"])}
        assert lying <= set(playing.inside[name])
        assert not place["seen"] or lying == set(playing.inside[name])
    for name in things:
        thing = fields(state, "things", name)
        for look in ("hot", "clean", "sliced", "on"):
            assert thing[look] == (name in playing.conditions[look])
        assert not thing["cool"] or name in playing.conditions["cool"]


def list_of(value: Any) -> list[Any]:
    assert isinstance(value, list)
    return value


def test_the_environment_has_the_reader_and_its_tools_have_sound_schemas() -> None:
    reader: Reader | None = alfworld({}).reader
    assert isinstance(reader, AlfworldReader)
    assert len({tool["name"] for tool in reader.tools}) == len(reader.tools) == 14
    spec = EnvironmentSpec(name="typed", tools_list=({"tools": [*reader.tools]},))
    refusal = Tools(spec).refusal(*called("take", thing="mug 1"))
    assert refusal is not None
    assert "place" in refusal
    assert Tools(spec).refusal(*called("take", thing="mug 1", place="desk 1")) is None


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("text", [problem(HOT), CROWDED], ids=["room", "crowded room"])
def test_the_state_read_from_random_play_agrees_with_the_game(text: str, seed: int) -> None:
    playing = HouseholdPlay(HouseholdGame.of(text))
    for state in read_along(playing, 60, Random(seed)):
        check_is_true(state, playing)


@pytest.mark.skipif(not HAS_DATA, reason=NO_DATA)
def test_the_state_read_from_random_play_agrees_with_many_real_games() -> None:
    played = set[str]()
    for number, (_, packed) in enumerate(episodes()):
        playing = HouseholdPlay(HouseholdGame.of(packed["pddl_problem"]))
        *_, last = read_along(playing, 25, Random(number))
        check_is_true(last, playing)
        played.add(packed["game"])
    assert len(played) > 200


@pytest.mark.skipif(not HAS_DATA, reason=NO_DATA)
def test_every_recorded_observation_is_read_and_rendered_again_word_for_word() -> None:
    steps = 0
    for episode, _ in episodes():
        for step in episode["steps"]:
            call, result = said(step["action"], step["observation"])
            assert result.structured is not None
            assert READER.observation(call, result.structured, "") == step["observation"].strip()
            steps += 1
            assert READER.action(call) == act(step["action"])
    assert steps == 2038


def test_contents_are_in_natural_order_whatever_the_order_of_the_words() -> None:
    words = "You arrive at desk 1. On the desk 1, you see a book 2, a mug 11, a mug 10, and a mug 9."
    call, result = said("go to desk 1", words)
    assert result.structured == {
        "place": "desk 1",
        "open": None,
        "contents": ["book 2", "mug 9", "mug 10", "mug 11"],
    }
    assert call == ToolCall(name="go_to", arguments={"place": "desk 1"})
    assert READER.observation(call, result.structured, "") == words


@pytest.mark.parametrize("number", ["2", "9" * 5000])
def test_a_thing_with_a_number_of_any_length_is_rendered_again(number: str) -> None:
    words = f"On the desk 1, you see a cup 1, a mug {number}, and a mug 1."
    call = READER.call(act("examine desk 1"))
    answer = READER.result(call, StepResult(observation=words)).structured
    assert answer is not None
    assert READER.observation(call, answer, TASK.instruction) == words


def test_a_state_contains_the_held_thing_the_current_place_and_the_changes_of_a_thing() -> None:
    state = READER.start(TASK, StepResult(observation=HouseholdGame.of(CROWDED).start))
    for command, words in (
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1."),
        ("take mug 1 from desk 1", "You pick up the mug 1 from the desk 1."),
        ("clean mug 1 with sinkbasin 1", "You clean the mug 1 using the sinkbasin 1."),
        ("cool mug 1 with fridge 1", REFUSAL),
    ):
        state = READER.after(state, *said(command, words))
    assert (state["at"], state["held"]) == ("desk 1", "mug 1")
    mug, desk = fields(state, "things", "mug 1"), fields(state, "places", "desk 1")
    assert (mug["kind"], mug["where"], mug["clean"], mug["cool"]) == ("mug", [], True, False)
    assert (desk["kind"], desk["openable"], desk["open"], desk["seen"]) == ("desk", False, None, True)
    assert desk["beside"] == ["sinkbasin 1"]
    assert fields(state, "places", "drawer 1")["open"] is None


def test_a_list_of_more_places_than_a_spot_can_have_says_nothing_of_their_spots() -> None:
    state = READER.start(TASK, StepResult(observation=HouseholdGame.of(CROWDED).start))
    for count, known_places in ((3, {"shelf 0", "shelf 1", "shelf 2"}), (1000, set[str]())):
        names = [f"shelf {number}" for number in range(count)]
        words = f"You are facing the {listed(names)}. Next to it, you see nothing."
        known = READER.after(state, *said("look", words))
        assert {name for name in as_object(known["places"]) if name.startswith("shelf")} == known_places


def test_a_thing_that_is_no_longer_listed_is_removed_from_its_place() -> None:
    state = READER.start(TASK, StepResult(observation=HouseholdGame.of(CROWDED).start))
    for command, words in (
        ("go to desk 1", "You arrive at desk 1. On the desk 1, you see a mug 1, and a book 1."),
        ("examine desk 1", "On the desk 1, you see a book 1."),
    ):
        state = READER.after(state, *said(command, words))
    assert [fields(state, "things", name)["where"] for name in ("mug 1", "book 1")] == [[], ["desk 1"]]


@pytest.mark.parametrize("command", ["dance", "go to", "take the mug from desk 1", "take mug 1", "", "go to desk one"])
def test_a_text_that_is_not_a_command_stays_unchanged(command: str) -> None:
    assert READER.call(act(command)) == act(command)
    assert READER.action(act(command)) == act(command)


@pytest.mark.parametrize("words", ["", "You arrive at desk 1.", "The sky is blue.", "You open the door. It is dark."])
def test_a_text_that_is_not_from_the_game_is_not_read(words: str) -> None:
    call, result = said("open drawer 1", words)
    assert (result.structured, result.is_error, result.observation) == (None, False, words)
    state = READER.start(TASK, StepResult(observation=words))
    assert READER.after(state, call, result) == state == {"places": {}, "things": {}, "at": None, "held": None}


@pytest.mark.parametrize(
    "words", ["This is a {}.", "You arrive at {}. On the ", "On the desk 1, you see {}.", "You are facing the {}."]
)
@pytest.mark.parametrize("part", ["a", "a ", "hot ", "a mug 1, ", "1"])
def test_long_texts_are_read_in_linear_time(words: str, part: str) -> None:
    assert grows_linearly(lambda text: said("look", text), lambda size: words.format(part * (size // len(part))))
    assert grows_linearly(lambda text: said(text, ""), lambda size: f"take {part * (size // len(part))} from desk 1")


def test_a_recorded_trajectory_is_read_into_typed_calls_answers_and_states() -> None:
    playing = HouseholdPlay(HouseholdGame.of(problem(HOT)))
    commands = ["go to drawer 2", "open drawer 2", "take mug 1 from drawer 2", "dance"]
    steps = [(act(one), StepResult(observation=playing.step(one))) for one in commands]
    recorded = Trajectory(
        id="r",
        task=TASK.model_copy(update={"initial_state": playing.game.start}),
        transitions=Transition.chain(playing.game.start, steps),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )
    spec = EnvironmentSpec(name="typed", tools_list=({"tools": [*READER.tools]},))
    read = with_readings(recorded, READER, spec)
    assert [step.action.name for step in read.transitions] == ["go_to", "open", "take", "act"]
    assert [step.result.is_error for step in read.transitions] == [False, False, False, True]
    assert read.transitions[1].result.structured == {"place": "drawer 2", "open": True, "contents": ["mug 1"]}
    assert read.task.initial_state == read.transitions[0].state
    for one, other in zip(read.transitions, read.transitions[1:], strict=False):
        assert one.next_state == one.result.state == other.state
    last = parsed(read.transitions[-1].next_state)
    assert last is not None
    assert last["held"] == "mug 1"
    assert [step.result.observation for step in read.transitions] == [result.observation for _, result in steps]
