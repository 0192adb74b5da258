"""A tool's program is learned from its recorded calls, runs in other states, and never guesses."""

import json
import random

import pytest
from growth import grows_linearly
from pydantic import JsonValue
from stalls import SCHEMA, play, recordings, start

from dreamgym.state import Collection, StateSchema, as_text, changed_fields, parsed
from dreamgym.synthesis import ProgramResult, learn
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, ToolCall, Transition


def answered(step: Transition, *shown: Transition) -> ProgramResult | None:
    """Run the program learned from the shown calls on the call of another step."""
    program = learn(shown, SCHEMA)
    assert program is not None
    return program.run(state_of(step.state), step.action.arguments)


def state_of(text: str) -> JsonObject:
    state = parsed(text)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("tool", "changed"),
    [("get_stall", 0), ("list_lots", 0), ("rename", 1), ("close_stall", 2), ("cancel", 5), ("buy", 9)],
)
def test_unseen_calls_have_the_state_and_the_answer_of_the_real_system(tool: str, changed: int) -> None:
    shown = tuple(recordings(tool, 20, seed=1))
    refused = {step.result.observation.split(" ")[0] for step in shown if step.result.is_error}
    known = [  # a refusal of a kind that was never recorded cannot be known
        step
        for step in recordings(tool, 40, seed=2)
        if not step.result.is_error or step.result.observation.split(" ")[0] in refused
    ]
    assert len(known) > 20
    most = 0
    for step in known:
        result = answered(step, *shown)
        assert result is not None
        assert as_text(result.after) == step.next_state
        assert (result.observation, result.is_error) == (step.result.observation, step.result.is_error)
        most = max(most, len(changed_fields(state_of(step.state), state_of(step.next_state))))
    assert most >= changed


def test_eight_recordings_teach_a_tool_that_changes_one_field() -> None:
    shown = tuple(recordings("rename", 8, seed=5))
    assert any(step.result.is_error for step in shown)
    for step in recordings("rename", 30, seed=4):
        result = answered(step, *shown)
        assert result is not None
        assert (as_text(result.after), result.observation) == (step.next_state, step.result.observation)


def test_a_refusal_for_too_little_stock_is_learned_with_its_numbers() -> None:
    shown = tuple(recordings("reserve", 20, seed=5))
    state = start(random.Random(99))
    entity = state_of(as_text(state))["lots"]
    assert isinstance(entity, dict)
    for left in range(1, 6):
        entity["L-3"]["left"] = left  # type: ignore[call-overload, index]
        for count in (left, left + 1):
            action = ToolCall(name="reserve", arguments={"lot": "L-3", "count": count})
            step = play({**state, "lots": entity}, action, random.Random(0))
            result = answered(step, *shown)
            assert result is not None
            assert result.is_error == (count > left)
            assert result.observation == step.result.observation


def test_a_refusal_that_was_recorded_once_names_the_values_of_the_new_call() -> None:
    shown = [step for step in recordings("reserve", 40, seed=5) if not step.result.is_error]
    refused = next(step for step in recordings("reserve", 40, seed=6) if "wanted" in step.result.observation)
    wanting = [step for step in recordings("reserve", 40, seed=7) if "wanted" in step.result.observation]
    assert len(wanting) > 3
    for step in wanting:
        result = answered(step, *shown, refused)
        assert result is not None
        assert (result.observation, result.is_error) == (step.result.observation, True)


def test_calls_with_and_without_an_optional_argument_are_distinguished() -> None:
    shown = tuple(recordings("buy", 20, seed=1))
    state = start(random.Random(3))
    people = state["people"]
    assert isinstance(people, dict)
    people["ann"]["purse"] = 500.0  # type: ignore[call-overload, index]
    beside: tuple[JsonObject, ...] = ({}, {"to": "Metz"})
    for to in beside:
        lines: list[JsonValue] = [{"lot": "L-1", "count": 1}]
        step = play(state, ToolCall(name="buy", arguments={"person": "ann", "lines": lines, **to}), random.Random(0))
        result = answered(step, *shown)
        assert result is not None
        assert result.observation == step.result.observation


def test_a_change_without_an_explanation_is_not_guessed() -> None:
    *shown, step = recordings("stamp", 12, seed=1)
    assert answered(step, *shown) is None


def test_recordings_that_contradict_each_other_teach_nothing() -> None:
    one = next(step for step in recordings("close_stall", 9, seed=1) if not step.result.is_error)
    state = state_of(one.state)
    other = one.model_copy(
        update={"result": one.result.model_copy(update={"observation": '{"closed": "S9", "time": 4}'})}
    )
    program = learn([one, other], SCHEMA)
    assert program is not None
    assert program.run(state, one.action.arguments) is None


def test_an_answer_that_is_nested_too_deeply_to_be_json_does_not_stop_the_learning() -> None:
    first, *shown = recordings("rename", 12, seed=1)
    odd = first.model_copy(update={"result": first.result.model_copy(update={"observation": "[" * 100_000})})
    assert learn([odd, *shown], SCHEMA) is not None


def test_recorded_numbers_that_are_too_large_or_none_at_all_do_not_stop_the_learning() -> None:
    def increased(by: float, before: str, after: str, said: str) -> Transition:
        action = ToolCall(name="increase", arguments={"by": by})
        return Transition.of(
            f'{{"lots": {{"L": {{"id": "L", "n": {before}}}}}}}',
            action,
            StepResult(observation=said, info={"state": f'{{"lots": {{"L": {{"id": "L", "n": {after}}}}}}}'}),
        )

    schema = StateSchema.model_validate({"lots": {"key": "id", "fields": {"n": "number"}}})
    long = [increased(by, "1", "1", f"{12345**80 * by} in all") for by in (1, 2, 3)]
    assert learn(long, schema) is not None
    usual = [increased(by, str(n), str(by + n), "ok") for by, n in ((1, 5), (2, 7.5), (3, 1.5), (4, 20))]
    for number in ("1e400", "-1e400", "NaN"):
        odd = [increased(4, number, "3", "ok"), increased(5, number, number, "ok"), increased(6, "2", number, "ok")]
        assert learn([*usual, *odd], schema) is not None


def test_recordings_without_an_explicit_state_teach_nothing() -> None:
    steps = [step.model_copy(update={"state": "a market"}) for step in recordings("rename", 3, seed=1)]
    assert learn(steps, SCHEMA) is None
    assert learn([], SCHEMA) is None


def test_the_same_recordings_in_another_order_are_learned_from_once() -> None:
    steps = list(recordings("rename", 8, seed=11))
    program = learn(steps, SCHEMA)
    assert program is not None
    assert learn([*reversed(steps), steps[0]], SCHEMA) is program
    assert learn(steps[1:], SCHEMA) is not program


def test_a_program_is_not_reused_for_recordings_with_other_structured_content() -> None:
    steps = list(recordings("get_stall", 8, seed=12))
    plain = learn(steps, SCHEMA)
    structured = learn([_structured(step) for step in steps], SCHEMA)
    assert plain is not None
    assert structured is not None
    step = next(step for step in recordings("get_stall", 9, seed=13) if not step.result.is_error)
    arguments, state = step.action.arguments, state_of(step.state)
    without, result = plain.run(state, arguments), structured.run(state, arguments)
    assert without is not None
    assert result is not None
    assert without.structured is None
    assert result.structured == json.loads(step.result.observation)


def _structured(step: Transition) -> Transition:
    if step.result.is_error:
        return step
    info = {**step.result.info, "structured": json.loads(step.result.observation)}
    return step.model_copy(update={"result": step.result.model_copy(update={"info": info})})


ORDERS = StateSchema(collections={"orders": Collection(key="order_id", fields={"status": "string"}, complete=False)})


def _listed(customer: str, *ids: str) -> Transition:
    """A recorded list of entities that the state did not contain, with ids that follow no order."""
    orders: list[JsonObject] = [{"order_id": one, "status": "paid"} for one in ids]
    after = as_text({"orders": {str(one["order_id"]): one for one in orders}})
    return Transition(
        state=as_text({"orders": {}}),
        action=ToolCall(name="list_orders", arguments={"customer": customer, "orders": list(ids)}),
        result=StepResult(observation=json.dumps({"orders": orders}), info={"state": after}),
        next_state=after,
        provenance=Provenance(tier=Tier.REAL),
    )


def test_an_id_of_too_many_digits_is_not_one_of_the_sequence_of_ids() -> None:
    def opened(*known: str) -> Transition:
        orders: JsonObject = {one: {"order_id": one, "status": "open"} for one in known}
        made = f"O-{len(known) + 1}"
        return Transition(
            state=as_text({"orders": orders}),
            action=ToolCall(name="open_order"),
            result=StepResult(observation=f"opened {made}"),
            next_state=as_text({"orders": {**orders, made: {"order_id": made, "status": "open"}}}),
            provenance=Provenance(tier=Tier.REAL),
        )

    program = learn([opened(*(f"O-{i + 1}" for i in range(count))) for count in range(5)], ORDERS)
    assert program is not None
    orders: JsonObject = {one: {"order_id": one, "status": "open"} for one in ("O-6", f"O-{'9' * 5_000}")}
    result = program.run({"orders": orders}, {})
    assert result is not None
    assert result.observation == "opened O-7"


def test_an_entity_that_the_call_names_is_made_under_that_name() -> None:
    def noted(name: str, *known: str) -> Transition:
        notes: JsonObject = {one: {"order_id": one, "status": "old"} for one in known}
        made: JsonObject = {"order_id": name, "status": f"about {name}"}
        return Transition(
            state=as_text({"orders": notes}),
            action=ToolCall(name="note", arguments={"name": name, "status": f"about {name}"}),
            result=StepResult(observation="noted"),
            next_state=as_text({"orders": {**notes, name: made}}),
            provenance=Provenance(tier=Tier.REAL),
        )

    shown = [noted("apple"), noted("pear", "fig"), noted("kiwi", "fig", "plum"), noted("lime"), noted("date", "nut")]
    program = learn(shown, ORDERS)
    assert program is not None
    fig: JsonObject = {"order_id": "fig", "status": "old"}
    result = program.run({"orders": {"fig": fig}}, {"name": "quince", "status": "sour"})
    assert result is not None
    assert result.after == {"orders": {"fig": fig, "quince": {"order_id": "quince", "status": "sour"}}}

    assert program.run({"orders": {"fig": fig}}, {"name": "fig", "status": "paid"}) is None, "no call replaced a note"


@pytest.mark.parametrize(
    ("tool", "usual", "other"),
    [
        ("reserve", {"lot": "L-1", "count": 1}, {"lot": "L-1", "count": -3}),
        ("reserve", {"lot": "L-1", "count": 1}, {"lot": "L-1", "count": 0}),
        (
            "buy",
            {"person": "ann", "lines": [{"lot": "L-1", "count": 1}]},
            {"person": "ann", "lines": [{"lot": "L-1", "count": 1}, {"lot": "L-2", "count": -5}]},
        ),
    ],
)
def test_calls_with_positive_numbers_do_not_show_what_others_do_even_if_they_are_few_or_in_a_list(
    tool: str, usual: JsonObject, other: JsonObject
) -> None:
    program = learn(recordings(tool, 18, seed=1), SCHEMA)
    assert program is not None
    state = state_of(as_text(start(random.Random(1))))
    assert program.run(state, usual) is not None
    assert program.run(state, other) is None


@pytest.mark.parametrize(("recorded", "is_answered"), [(["2A", "1B"], False), (["2A", "1A"], True)])
def test_an_item_that_a_list_has_is_added_again_only_if_a_recorded_call_did_that(
    recorded: list[str], is_answered: bool
) -> None:
    schema = StateSchema.model_validate({"flights": {"key": "id", "fields": {"seats": "array"}}})

    def booked(seat: str, *seats: str) -> Transition:
        before, after = (
            as_text({"flights": {"F1": {"id": "F1", "seats": list(taken)}}}) for taken in (seats, (*seats, seat))
        )
        action = ToolCall(name="book", arguments={"flight": "F1", "seat": seat})
        return Transition.of(before, action, StepResult(observation=f"booked {seat}", info={"state": after}))

    program = learn([booked("1A"), *(booked(seat, "1A") for seat in recorded)], schema)
    assert program is not None
    taken: JsonObject = {"flights": {"F1": {"id": "F1", "seats": ["3C"]}}}
    assert program.run(taken, {"flight": "F1", "seat": "4D"}) is not None
    assert (program.run(taken, {"flight": "F1", "seat": "3C"}) is not None) is is_answered


def test_the_time_to_add_items_to_one_long_list_grows_linearly() -> None:
    schema = StateSchema.model_validate({"tickets": {"key": "id", "fields": {"tags": "array"}}})

    def state(*tags: str) -> JsonObject:
        return {"tickets": {"T1": {"id": "T1", "tags": [{"tag": tag} for tag in tags]}, "T2": {"id": "T2", "tags": []}}}

    def tagged(tag: str) -> Transition:
        action = ToolCall(name="tag", arguments={"tickets": ["T1"], "tag": tag})
        return Transition.of(
            as_text(state()), action, StepResult(observation="ok", info={"state": as_text(state(tag))})
        )

    program = learn([tagged(tag) for tag in "abcdef"], schema)
    assert program is not None
    assert program.run(state(), {"tickets": ["T1"], "tag": "g"}) is not None
    assert program.run(state("g"), {"tickets": ["T1"], "tag": "g"}) is None
    assert grows_linearly(
        lambda tags: program.run(state(*tags), {"tickets": ["T1"] * len(tags), "tag": "g"}), lambda size: "a" * size
    )


def test_the_time_to_make_an_entity_for_each_item_of_a_list_grows_linearly() -> None:
    notes = StateSchema.model_validate({"notes": {"key": "id", "fields": {"text": "string"}}})

    def state(*texts: str) -> JsonObject:
        return {"notes": {f"N{number}": {"id": f"N{number}", "text": text} for number, text in enumerate(texts, 1)}}

    def noted(*texts: str) -> Transition:
        action = ToolCall(name="note", arguments={"texts": list(texts)})
        after = as_text(state("first", *texts))
        return Transition.of(as_text(state("first")), action, StepResult(observation="ok", info={"state": after}))

    program = learn([noted("a", "b"), noted("c"), noted("d", "e", "f")], notes)
    assert program is not None
    result = program.run(state("first"), {"texts": ["x", "y"]})
    assert result is not None
    assert result.after == state("first", "x", "y")
    assert grows_linearly(lambda texts: program.run(state("first"), {"texts": list(texts)}), lambda size: "x" * size)


def test_entities_whose_ids_follow_no_order_are_not_predicted() -> None:
    shown = [_listed("C-1", "x9k", "b2"), _listed("C-2", "q7", "zz1", "a"), _listed("C-3", "m4")]
    program = learn(shown, ORDERS)
    assert program is not None
    assert program.run({"orders": {}}, {"customer": "C-4"}) is None


def _of_orders(tool: str, arguments: JsonObject, ids: list[str], made: list[str], said: str) -> Transition:
    return Transition(
        state=as_text({"orders": {one: {"order_id": one, "status": "open"} for one in ids}}),
        action=ToolCall(name=tool, arguments=arguments),
        result=StepResult(observation=said),
        next_state=as_text({"orders": {one: {"order_id": one, "status": "open"} for one in [*ids, *made]}}),
        provenance=Provenance(tier=Tier.REAL),
    )


@pytest.mark.parametrize("limit", [-1, True, "2", 2.0])
def test_a_limit_that_is_no_number_of_entities_has_no_answer(limit: JsonValue) -> None:
    known = [f"O-{number}" for number in range(1, 7)]
    program = learn(
        [
            _of_orders("list_orders", {"limit": most}, known[:count], [], json.dumps(known[:count][:most]))
            for count in (4, 5, 6)
            for most in (1, 2, 3)
        ],
        ORDERS,
    )
    assert program is not None
    state = state_of(as_text({"orders": {one: {"order_id": one, "status": "open"} for one in known}}))
    two = program.run(state, {"limit": 2})
    assert two is not None
    assert two.observation == '["O-1", "O-2"]'
    assert program.run(state, {"limit": limit}) is None


def test_the_first_id_of_an_empty_collection_is_not_guessed() -> None:
    known = [f"O-{number}" for number in range(500, 506)]
    steps = [
        _of_orders("open_order", {}, known[:count], [known[count]], f"opened {known[count]}") for count in (1, 2, 3, 4)
    ]
    program = learn(steps, ORDERS)
    assert program is not None
    state = state_of(steps[-1].next_state)
    result = program.run(state, {})
    assert result is not None
    assert result.observation == "opened O-505"
    assert program.run({"orders": {}}, {}) is None
