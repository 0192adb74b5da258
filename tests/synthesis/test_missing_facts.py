"""Facts that refusals reveal: only about lists that no call changes."""

import random

from dreamgym.state import StateSchema
from dreamgym.synthesis.objects import ObjectCall, learn_rules, missing_facts
from dreamgym.types import JsonObject

SCHEMA = StateSchema.model_validate(
    {"rooms": {"key": "room", "fields": {"room": "string", "shut": "array"}, "complete": False}, "at": "string?"}
)
ROOMS = [f"room {number}" for number in range(6)]


def recordings(*, has_bolts: bool) -> list[ObjectCall]:
    """Walks through houses. From each room, the ways to the rooms in `shut` are refused, and so are some others.

    With bolts, the call `bolt` shuts a way that is drawn at random.
    """
    draw, calls = random.Random(1), list[ObjectCall]()
    for house in range(30):
        at, shut = ROOMS[0], {room: draw.sample(ROOMS, draw.randint(0, 1)) for room in ROOMS}

        def state(at: str, shut: dict[str, list[str]]) -> JsonObject:
            return {"rooms": {room: {"room": room, "shut": [*shut[room]]} for room in ROOMS}, "at": at}

        for _ in range(12):
            before, room = state(at, shut), draw.choice(ROOMS)
            is_bolt = has_bolts and draw.random() < 0.4
            is_refused = not is_bolt and (room in shut[at] or draw.random() < 0.1)
            if is_bolt:
                shut = {**shut, room: sorted({*shut[room], draw.choice(ROOMS)})}
            elif not is_refused:
                at = room
            after = state(at, shut)
            answer: JsonObject | None = None if is_refused else {"room": room}
            tool, words = "bolt" if is_bolt else "enter", "no" if is_refused else "ok"
            calls.append(ObjectCall(str(house), tool, {"room": room}, before, after, answer, is_refused, words))
    return calls


def test_a_refusal_that_the_rules_do_not_explain_shows_an_item_of_a_list_that_no_call_changes() -> None:
    calls = recordings(has_bolts=False)
    assert len(list(missing_facts(calls, learn_rules(calls, SCHEMA), SCHEMA))) > 10


def test_a_refusal_shows_no_item_of_a_list_that_a_call_changed_even_if_no_rule_explains_how() -> None:
    calls = recordings(has_bolts=True)
    assert list(missing_facts(calls, learn_rules(calls, SCHEMA), SCHEMA)) == []


def test_calls_without_an_optional_argument_or_with_a_list_do_not_stop_learning() -> None:
    start: JsonObject = {"rooms": {room: {"room": room, "shut": []} for room in ROOMS}, "at": ROOMS[0]}
    optional: list[JsonObject] = [{"room": ROOMS[1], "how": "fast"}, {"room": ROOMS[2]}, {"room": ROOMS[1]}]
    lists: list[JsonObject] = [{"room": [ROOMS[1]]}, {"room": [ROOMS[2]]}, {"room": [ROOMS[1], ROOMS[2]]}]
    for arguments in (optional, lists):
        calls = [
            ObjectCall("a", "enter", one, start, {**start, "at": "x"}, {"ok": True}, False, "ok") for one in arguments
        ]
        refused = [ObjectCall("a", "leave", one, start, start, None, True, "no") for one in arguments]
        learn_rules([*calls, *refused], SCHEMA)


def test_one_refusal_of_a_tool_whose_successes_are_too_few_to_learn_from_does_not_refuse_its_other_calls() -> None:
    start: JsonObject = {"rooms": {room: {"room": room, "shut": []} for room in ROOMS}, "at": ROOMS[0]}

    def entered(room: str) -> ObjectCall:
        return ObjectCall("a", "enter", {"room": room}, start, {**start, "at": room}, {"room": room}, False, "ok")

    refused = ObjectCall("a", "enter", {"room": ROOMS[5]}, start, start, None, True, "no")
    rules = learn_rules([entered(ROOMS[1]), entered(ROOMS[2]), refused], SCHEMA)
    assert [rules.run("enter", start, {"room": room}) for room in ROOMS[1:4]] == [None, None, None]
    never = learn_rules([refused], SCHEMA).run("enter", start, {"room": ROOMS[1]})
    assert never is not None
    assert never.is_error


def test_a_call_that_removes_something_is_not_answered_as_if_it_changed_nothing() -> None:
    start: JsonObject = {"rooms": {room: {"room": room, "shut": []} for room in ROOMS}, "at": ROOMS[0]}

    def burnt(number: int, room: str) -> ObjectCall:
        rooms: JsonObject = {one: {"room": one, "shut": []} for one in ROOMS if one != room}
        return ObjectCall(
            str(number), "burn", {"room": room}, start, {**start, "rooms": rooms}, {"room": room}, False, ""
        )

    rules = learn_rules([burnt(number, room) for number in range(9) for room in ROOMS], SCHEMA)
    assert rules.run("burn", start, {"room": ROOMS[2]}) is None
