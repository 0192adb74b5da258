"""A learned program answers other calls as recorded, prints readably, and has no answer to unknown cases."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import JsonValue
from stalls import SCHEMA, TOOLS, recordings

from dreamgym.state import StateSchema, apply, as_text, parsed
from dreamgym.synthesis import ProgramResult, learn
from dreamgym.synthesis.expressions import Entities, Sum, Variable
from dreamgym.synthesis.paths import IndexedState, bind
from dreamgym.types import JsonObject, StepResult, ToolCall, Transition


def answered(step: Transition, *shown: Transition) -> ProgramResult | None:
    """Run the program learned from the shown calls on the call of another step."""
    program = learn(shown, SCHEMA)
    assert program is not None
    return program.run(state_of(step.state), step.action.arguments)


def state_of(text: str) -> JsonObject:
    state = parsed(text)
    assert state is not None
    return state


def test_a_program_is_printed_as_conditions_changes_and_answers() -> None:
    program = learn(recordings("reserve", 20, seed=5), SCHEMA)
    assert (
        str(program)
        == """if not (lots[lot] exists):
    refuse "no lot {lot}"
if (0 > (lots[lot].left + (count * -1))):
    refuse "only {lots[lot].left} of {lot} left, {count} wanted"
otherwise:
    increase lots[lot].left by (count * -1)
    answer json {"lot": lot, "left": lots[lot].left}"""
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(TOOLS), st.integers(0, 10_000), st.integers(1, 10))
def test_changes_apply_under_the_schema_and_are_the_same_every_time(tool: str, seed: int, count: int) -> None:
    *shown, step = recordings(tool, count + 1, seed)
    result = answered(step, *shown)
    assert answered(step, *shown) == result
    if result is not None:
        assert apply(state_of(step.state), result.operations, SCHEMA) == result.after
        if result.is_error:
            assert result.operations == ()


def test_a_status_that_no_recording_changed_is_not_predicted_to_change() -> None:
    shown = [step for step in recordings("cancel", 40, seed=1) if not step.result.is_error]
    calls = list(recordings("cancel", 40, seed=2))
    refused = [step for step in calls if "not open" in step.result.observation]
    assert refused
    assert all(answered(step, *shown) is None for step in refused)
    assert all(answered(step, *shown) is not None for step in calls if not step.result.is_error)


def test_the_loops_lists_and_new_entities_of_a_program_are_printed() -> None:
    program = learn(recordings("buy", 40, seed=8), SCHEMA)
    printed = str(program).splitlines()
    assert "if not (people[person] exists):" in printed
    assert "    for item in lines: increase lots[item.lot].left by (item.count * -1)" in printed
    assert (
        "    increase people[person].purse by (sum((item.count * lots[item.lot].price) for item in lines) * -1)"
        in printed
    )
    assert any(line.startswith('    add deals[new deals] = {"lines": lines, "person": person') for line in printed)


ORDERS = StateSchema.model_validate(
    {"orders": {"key": "id", "fields": {"price": "number", "total": "number"}, "complete": True}}
)


def quoted(count: float, price: float) -> Transition:
    """A call that sets the total of an order to its count times its price, and says it."""

    def state(total: float) -> str:
        return as_text({"orders": {"A": {"id": "A", "price": price, "total": total}}})

    total = count * price
    told = StepResult(observation=f"The total is {json.dumps(total)}.", info={"state": state(total)})
    return Transition.of(state(0), ToolCall(name="quote", arguments={"id": "A", "count": count}), told)


def test_a_result_that_json_has_no_number_for_is_not_predicted() -> None:
    program = learn([quoted(count, count + 1.5) for count in (2, 3, 5, 7, 8, 11, 12, 14.0)], ORDERS)
    assert program is not None
    large, largest = quoted(1e300, 2.5), quoted(1e308, 2.5)
    answer = program.run(state_of(large.state), large.action.arguments)
    assert answer is not None
    assert answer.after == state_of(large.next_state)
    assert program.run(state_of(largest.state), largest.action.arguments) is None


def test_whole_numbers_of_any_length_are_calculated_exactly() -> None:
    program = learn([quoted(count, count + 3) for count in (2, 3, 5, 7, 8, 11, 12, 14)], ORDERS)
    assert program is not None
    long = quoted(12345678901234567890123456789012, 3)
    answer = program.run(state_of(long.state), long.action.arguments)
    assert answer is not None
    assert answer.after == state_of(long.next_state)


def looked(**arguments: JsonValue) -> Transition:
    """A recorded call that looks at an order and names some of its arguments in the answer."""
    state = as_text({"orders": {one: {"id": one, "price": 2, "total": 3} for one in "ABCDEF"}})
    told = StepResult(observation=f"{arguments['id']} costs 2 {arguments['unit']}", info={"state": state})
    return Transition.of(state, ToolCall(name="look", arguments=arguments), told)


@pytest.mark.parametrize(
    "other",
    [{"test": True}, {"how": {"long": False, "raw": 1}}, {"long": True}, {"unit": "dollars"}],
)
def test_an_argument_of_which_no_recorded_call_shows_the_name_or_the_kind_has_no_answer(other: JsonObject) -> None:
    usual: JsonObject = {"unit": "euros", "long": False, "how": {"long": False}}
    program = learn([looked(**usual, id=one, at=at) for one in "ABCDE" for at in range(1, 6)], ORDERS)
    assert program is not None
    asked: JsonObject = {**usual, "id": "F", "at": 6}
    state = state_of(looked(**asked).state)
    assert program.run(state, asked) is not None
    assert program.run(state, {**asked, **other}) is None


def test_a_truth_value_that_no_recorded_call_had_has_no_answer_even_after_few_recordings() -> None:
    program = learn([looked(id=one, unit="euros", test=False) for one in "ABC"], ORDERS)
    assert program is not None
    asked: JsonObject = {"id": "F", "unit": "euros"}
    state = state_of(looked(**asked).state)
    assert program.run(state, {**asked, "test": False}) is not None
    assert program.run(state, {**asked, "test": True}) is None


def test_one_recorded_call_does_not_show_the_answer_to_arguments_that_it_does_not_depend_on() -> None:
    state = as_text({"orders": {"A": {"id": "A", "price": 2, "total": 3}}})
    found = StepResult(observation="no results", info={"state": state})
    shown = [Transition.of(state, ToolCall(name="search", arguments={"query": text}), found) for text in ("hat", "mug")]
    program, both = learn(shown[:1], ORDERS), learn(shown, ORDERS)
    assert program is not None
    assert both is not None
    assert program.run(state_of(state), {"query": "hat"}) is not None
    assert program.run(state_of(state), {"query": "shoe"}) is None
    assert both.run(state_of(state), {"query": "shoe"}) is not None
    one = learn([looked(id="A", unit="euros")], ORDERS)
    assert one is not None
    assert one.run(state_of(looked(id="B", unit="euros").state), {"id": "B", "unit": "euros"}) is not None


def test_a_table_has_no_value_for_something_that_is_not_there() -> None:
    def advised(name: str) -> Transition:
        status = {one: "new" if one in "ABCD" else None for one in "ABCDEFGH"}
        state = as_text({"tasks": {one: {"id": one, "status": status[one]} for one in status}})
        told = json.dumps({"task": name, "advice": "start" if status[name] else "ask"})
        answer = StepResult(observation=told, info={"state": state})
        return Transition.of(state, ToolCall(name="advise", arguments={"id": name}), answer)

    tasks = StateSchema.model_validate({"tasks": {"key": "id", "fields": {"status": "string?"}}})
    program = learn(map(advised, "ABCDEFGH"), tasks)
    assert program is not None
    state: JsonObject = {"tasks": {"X": {"id": "X", "status": None}}}
    result = program.run(state, {"id": "X"})
    assert result is not None
    assert result.observation == '{"task": "X", "advice": "ask"}'
    assert program.run(state, {"id": "Y"}) is None


def test_a_read_by_a_few_values_answers_for_others_that_it_looks_up() -> None:
    users = StateSchema.model_validate({"users": {"key": "id", "fields": {"email": "string", "name": "string"}}})

    def found(email: int, time: int) -> Transition:
        rows: JsonObject = {f"u{i}": {"id": f"u{i}", "email": f"p{i}@x.org", "name": f"N{time}"} for i in range(9)}
        answer = StepResult(observation=f"u{email}", info={"state": as_text({"users": rows})})
        action = ToolCall(name="find", arguments={"email": f"p{email}@x.org"})
        return Transition.of(as_text({"users": rows}), action, answer)

    program = learn([found(n % 4, n) for n in range(40)], users)
    assert program is not None
    result = program.run(state_of(found(1, 99).state), {"email": "p7@x.org"})
    assert result is not None
    assert result.observation == "u7"


def test_an_argument_that_may_be_left_out_has_no_answer_if_it_is_empty_in_a_way_that_no_recorded_call_shows() -> None:
    prices = {"A": 2, "B": 3, "C": 2, "D": 4, "E": 3, "F": 5}
    state = as_text({"orders": {one: {"id": one, "price": price, "total": 1} for one, price in prices.items()}})

    def listed(**arguments: JsonValue) -> Transition:
        ids = [one for one, price in prices.items() if arguments.get("price") in (None, price)]
        answer = StepResult(observation=json.dumps(ids), info={"state": state})
        return Transition.of(state, ToolCall(name="list", arguments=arguments), answer)

    program = learn([listed(price=price) for price in (2, 3, 4)], ORDERS)
    open_too = learn([listed(), *(listed(price=price) for price in (2, 3, 4))], ORDERS)
    assert program is not None
    assert open_too is not None
    asked: list[JsonObject] = [{"price": 5}, {}, {"price": None}, {"price": ""}]
    assert [program.run(state_of(state), one) is not None for one in asked] == [True, False, False, False]
    assert [open_too.run(state_of(state), one) is not None for one in asked] == [True, True, False, False]


def test_a_number_of_too_many_digits_to_be_written_has_no_answer() -> None:
    def state(total: float) -> JsonObject:
        return {"orders": {"A": {"id": "A", "price": 1, "total": total}}}

    def paid(total: float) -> Transition:
        answer = StepResult(observation=f"paid {total:.2f} euros", info={"state": as_text(state(total))})
        return Transition.of(as_text(state(total)), ToolCall(name="pay", arguments={"id": "A"}), answer)

    program = learn(map(paid, (1.5, 2.25, 3.5, 7.5)), ORDERS)
    assert program is not None
    result = program.run(state(12), {"id": "A"})
    assert result is not None
    assert result.observation == "paid 12.00 euros"
    assert program.run(state(10**400), {"id": "A"}) is None
    quotes = learn([quoted(count, count + 3) for count in (2, 3, 5, 7, 8, 11, 12, 14)], ORDERS)
    assert quotes is not None
    assert quotes.run(state_of(quoted(2, 30).state), {"id": "A", "count": 10**4299}) is None


def test_a_sum_is_exact_so_that_the_order_of_its_parts_is_without_effect() -> None:
    totals = [1e25, 0.0625, -1e25, 3.5, 1e26, -1e26]
    orders: JsonObject = {str(i): {"id": str(i), "total": total} for i, total in enumerate(totals)}
    call = bind(IndexedState({"orders": orders}, ORDERS), {})
    assert Sum(Entities("orders"), Variable(("item", "total"))).value(call) == 3.5625
