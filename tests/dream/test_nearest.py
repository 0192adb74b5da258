"""`NearestModel`: what it repeats, refuses and substitutes, and for which tasks it repeats a success."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from queries import DESK, HOUSE, act, query, transition

from dreamgym.dream.model import Part, Query
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.substitution import BYTES, Substitution
from dreamgym.errors import NotRecorded, PredictionError
from dreamgym.types import JsonObject, Provenance, Tier, ToolCall, Transition

pytestmark = pytest.mark.anyio

KITCHEN, HALL = "kitchen. east: hall.", "hall. west: kitchen."


def book(name: str, seats: int) -> ToolCall:
    return ToolCall(name="book", arguments={"name": name, "seats": seats})


async def test_a_recorded_action_in_its_state_is_repeated_to_the_letter() -> None:
    won = transition(HALL, act("take coin"), "you take the coin.", reward=1.0, terminated=True)
    prediction = await NearestModel().predict(query(HOUSE, HALL, act("take coin"), won))
    assert (prediction.observation, prediction.success, prediction.terminated) == ("you take the coin.", True, True)
    assert (prediction.provenance.tier, prediction.provenance.exact) == (Tier.MODEL, True)
    assert prediction.provenance.retrieved == ("d0",)


async def test_without_retrieval_it_says_that_it_is_shown_no_recording() -> None:
    asked = query(HOUSE, HALL, act("take coin")).model_copy(update={"without": frozenset({Part.RETRIEVAL})})
    with pytest.raises(NotRecorded, match="without retrieval it is shown none: leave 'retrieval' in"):
        await NearestModel().predict(asked)


async def test_the_first_exact_demonstration_wins_over_better_ranked_similar_ones() -> None:
    similar = transition(HALL, act("move west"), KITCHEN)
    first = transition(KITCHEN, act("move east"), HALL)
    second = transition(KITCHEN, act("move east"), "another hall.")
    prediction = await NearestModel().predict(query(HOUSE, KITCHEN, act("move east"), similar, first, second))
    assert prediction.observation == HALL


async def test_a_recorded_end_without_reward_is_not_a_success() -> None:
    lost = transition(HALL, act("wait"), "you fall asleep.", terminated=True)
    prediction = await NearestModel().predict(query(HOUSE, HALL, act("wait"), lost))
    assert (prediction.terminated, prediction.success) == (True, False)


async def test_an_unrecorded_text_action_is_refused_as_another_action_was_in_this_state() -> None:
    won = transition(HALL, act("take coin"), "you take the coin.", reward=1.0, terminated=True)
    elsewhere = transition(HALL, act("fly"), f"no wings. {HALL}", HALL, is_error=True)
    here = transition(KITCHEN, act("jump"), f"unknown action. {KITCHEN}", KITCHEN, is_error=True)
    prediction = await NearestModel().predict(query(HOUSE, KITCHEN, act("take coin"), won, elsewhere, here))
    assert prediction.observation == f"unknown action. {KITCHEN}"
    assert prediction.next_state == KITCHEN
    assert (prediction.is_error, prediction.success, prediction.terminated) == (True, False, False)
    assert prediction.provenance.tier is Tier.MODEL


async def test_a_refusal_from_another_state_is_repeated_with_the_current_state() -> None:
    elsewhere = transition(HALL, act("fly"), f"unknown action. {HALL}", HALL, is_error=True)
    prediction = await NearestModel().predict(query(HOUSE, KITCHEN, act("coin"), elsewhere))
    assert (prediction.observation, prediction.next_state) == (f"unknown action. {KITCHEN}", KITCHEN)


async def test_a_refusal_that_changed_the_state_is_not_repeated() -> None:
    moved = transition(KITCHEN, act("fly"), HALL, is_error=True)
    still = transition(HALL, act("fly"), f"unknown action. {HALL}", HALL, is_error=True)
    prediction = await NearestModel().predict(query(HOUSE, KITCHEN, act("coin"), moved, still))
    assert prediction.observation == f"unknown action. {KITCHEN}"


async def test_without_any_recorded_refusal_the_nearest_answers_but_never_with_success() -> None:
    won = transition(HALL, act("take coin"), "you take the coin.", reward=1.0, terminated=True)
    prediction = await NearestModel().predict(query(HOUSE, KITCHEN, act("take coin"), won))
    assert prediction.observation == "you take the coin."
    assert (prediction.success, prediction.terminated) == (False, False)


def test_arguments_of_the_action_replace_the_recorded_ones() -> None:
    substitution = Substitution(book("Ann Lee", 2), book("Bo", 3))
    assert substitution("2 seats for Ann Lee, ref Z12, 2.5 EUR") == "3 seats for Bo, ref Z12, 2.5 EUR"


def test_swapped_values_are_substituted_at_once_and_not_one_after_the_other() -> None:
    move = ToolCall(name="move", arguments={"here": "shelf", "there": "table"})
    back = ToolCall(name="move", arguments={"here": "table", "there": "shelf"})
    assert Substitution(move, back)("from shelf to table") == "from table to shelf"


@pytest.mark.parametrize("said", ["NaN", "Infinity", "1e999"])
def test_a_number_stays_if_the_words_of_the_action_are_no_finite_number(said: str) -> None:
    asked = ToolCall(name="say", arguments={"text": said})
    assert Substitution(ToolCall(name="say", arguments={"text": "5"}), asked).within({"n": 5}) == {"n": 5}


def test_a_value_of_one_letter_is_left_alone() -> None:
    assert Substitution(book("a", 2), book("Zoe", 2))("a table is booked") == "a table is booked"


def test_the_bytes_of_a_picture_are_left_alone() -> None:
    picture: JsonObject = {"type": "image", "data": "Ann", "alt": "Ann"}
    assert Substitution(book("Ann", 2), book("Bo", 2)).within(picture, BYTES) == {**picture, "alt": "Bo"}


async def test_a_call_that_no_recording_shows_has_no_answer() -> None:
    seen = transition("desk", book("Ann", 2), "2 seats for Ann")
    with pytest.raises(NotRecorded, match="recordings of tool 'book' do not show what this call does"):
        await NearestModel().predict(query(DESK, "desk", book("Bo", 1), seen))


async def test_a_step_of_a_server_without_states_is_not_repeated_if_it_is_not_an_end() -> None:
    seen = transition("desk", book("Ann", 2), "2 seats for Ann")
    with pytest.raises(NotRecorded):
        await NearestModel().predict(query(DESK, "desk", book("Ann", 2), seen))


async def test_without_recordings_the_error_says_how_to_record() -> None:
    with pytest.raises(
        PredictionError, match=r"'house', or nothing was when this episode began: .*record.*collect.*seed"
    ):
        await NearestModel().predict(query(HOUSE, KITCHEN, act("look")))


texts = st.text(alphabet="ab .1", max_size=6)
steps = st.builds(
    lambda state, command, observation, next_state, end, error: transition(
        state, act(command), observation, next_state, reward=float(end), terminated=end, is_error=error
    ),
    texts,
    texts,
    texts,
    texts,
    st.booleans(),
    st.booleans(),
)


@given(st.lists(steps, min_size=1, max_size=5), texts, texts)
async def test_success_is_only_ever_copied_from_the_same_action_in_the_same_state(
    recorded: list[Transition], state: str, command: str
) -> None:
    asked: Query = query(HOUSE, state, act(command), *recorded)
    prediction = await NearestModel().predict(asked)
    if prediction.success or prediction.terminated:
        assert any(shown.exact and shown.transition.result.terminated for shown in asked.demonstrations)
    assert await NearestModel().predict(asked) == prediction


async def test_a_state_made_of_the_agents_own_words_earns_nothing() -> None:
    won = transition("seat 9 held", book("me", 9), "booked.", reward=1.0, terminated=True)
    invented = Provenance(tier=Tier.MODEL, model="some")
    forged = transition("start", book("seat 9 held", 2), "seat 9 held").model_copy(update={"provenance": invented})
    claimed = await NearestModel().predict(query(DESK, "seat 9 held", book("me", 9), won, history=(forged,)))
    honest = await NearestModel().predict(query(DESK, "seat 9 held", book("me", 9), won))
    assert (claimed.observation, claimed.success, claimed.terminated) == ("booked.", False, False)
    assert (honest.success, honest.terminated) == (True, True)
