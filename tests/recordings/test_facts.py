"""If a server reports no state, its state is inferred from the facts that answers show, and from nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from folder_stage import Tape, crm, trajectories
from hypothesis import given, settings
from hypothesis import strategies as st

from dreamgym.environment import EnvironmentSpec
from dreamgym.recordings.folder import build_folder
from dreamgym.recordings.folder.infer_states import read_only_tools, with_inferred_states
from dreamgym.recordings.folder.schema import infer_schema
from dreamgym.state import Collection, StateSchema, parsed
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

WRITE: JsonObject = {"annotations": {"readOnlyHint": False}}
READ: JsonObject = {"annotations": {"readOnlyHint": True}}
TOOLS: dict[str, JsonObject] = {
    "get_order": READ,
    "list_orders": READ,
    "find": READ,
    "get_all": READ,
    "pay": WRITE,
    "note": WRITE,
}
SCHEMA = StateSchema(
    collections={
        "orders": Collection(
            key="order_id", fields={"status": "string", "customer_id": "string", "total": "number"}, complete=False
        ),
        "customers": Collection(key="customer_id", fields={"balance": "number"}, complete=False),
    }
)

Step = tuple[str, JsonObject, Any]


def played(*steps: Step, id: str = "t", task: str = "any") -> Trajectory:
    """A trajectory of (tool, arguments, answer); a text that begins with `!` is an error."""
    transitions = []
    state = ""
    for tool, arguments, answer in steps:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        result = StepResult(observation=text, is_error=text.startswith("!"))
        action = ToolCall(name=tool, arguments=arguments)
        real = Provenance(tier=Tier.REAL)
        transitions.append(Transition(state=state, action=action, result=result, next_state=text, provenance=real))
        state = text
    return Trajectory(
        id=id,
        task=Task(id=task, env="shop", instruction="Do."),
        transitions=tuple(transitions),
        source=Source.REAL,
        stop_reason=StopReason.CLOSED,
    )


def order(number: int, status: str = "open", **more: Any) -> JsonObject:
    return {"order_id": f"O-{number}", "status": status, **more}


def known(trajectory: Trajectory, *paths: str) -> list[list[Any]]:
    """The values at some paths in each state; None if a value is not known."""
    texts = [trajectory.transitions[0].state, *(step.next_state for step in trajectory.transitions)]
    return [[_at(parsed(text), path) for path in paths] for text in texts]


def _at(state: Any, path: str) -> Any:
    for part in path.split("/"):
        state = state.get(part, {})
    return state if state != {} else None


def stated(*steps: Step) -> Trajectory:
    return with_inferred_states([played(*steps)], SCHEMA, TOOLS)[0]


def test_a_fact_that_a_read_shows_is_true_from_the_start_to_the_end() -> None:
    found = stated(("find", {}, "none"), ("get_order", {"id": "O-1"}, order(1)), ("find", {}, "none"))
    assert known(found, "orders/O-1/status") == [["open"]] * 4
    assert found.task.initial_state == found.transitions[0].state
    assert all(step.result.state == step.next_state for step in found.transitions)


def test_a_value_that_a_write_shows_replaces_the_known_one() -> None:
    found = stated(("get_order", {"id": "O-1"}, order(1)), ("pay", {"id": "O-1"}, order(1, "paid", total=3)))
    assert known(found, "orders/O-1/status", "orders/O-1/total") == [["open", None], ["open", None], ["paid", 3]]


def test_a_change_that_a_later_read_shows_is_attributed_to_the_write_that_named_the_entity() -> None:
    found = stated(
        ("get_order", {"id": "O-1"}, order(1)),
        ("pay", {"id": "O-1"}, "ok"),
        ("note", {"about": "O-2"}, "ok"),
        ("list_orders", {}, [order(1, "paid"), order(2)]),
    )
    assert known(found, "orders/O-1/status") == [["open"], ["open"], ["paid"], ["paid"], ["paid"]]
    assert known(found, "orders/O-2/status") == [[None], [None], [None], ["open"], ["open"]]


def test_an_entity_linked_to_a_named_one_may_have_changed_too() -> None:
    shown: JsonObject = {"customer_id": "C-1", "balance": 5}
    found = stated(
        ("get_order", {"id": "O-1"}, order(1, customer_id="C-1")), ("pay", {"id": "O-1"}, "ok"), ("find", {}, shown)
    )
    assert known(found, "customers/C-1/balance") == [[None], [None], [5], [5]]


def test_a_write_that_names_no_known_entity_may_have_changed_everything() -> None:
    found = stated(("note", {"text": "sale"}, "ok"), ("get_order", {"id": "O-1"}, order(1)))
    assert known(found, "orders/O-1/status") == [[None], ["open"], ["open"]]


def test_a_refused_call_has_changed_nothing_and_shows_nothing() -> None:
    found = stated(("pay", {"id": "O-1"}, "!" + json.dumps(order(1, "broken"))), ("get_order", {}, order(1)))
    assert known(found, "orders/O-1/status") == [["open"]] * 3


def test_a_change_that_no_call_named_is_attributed_to_the_last_write_else_to_the_read_that_shows_it() -> None:
    found = stated(("get_order", {}, order(1)), ("pay", {"id": "O-2"}, order(2)), ("get_order", {}, order(1, "late")))
    assert known(found, "orders/O-1/status") == [["open"], ["open"], ["late"], ["late"]]
    found = stated(("get_order", {}, order(1)), ("get_order", {}, order(1, "late")))
    assert known(found, "orders/O-1/status") == [["open"], ["open"], ["late"]]


def test_in_a_deterministic_environment_the_runs_of_a_task_share_their_facts_except_contradictions() -> None:
    runs = [
        played(("get_order", {}, order(1)), ("get_order", {}, order(3)), id="a"),
        played(("get_order", {}, order(2)), ("get_order", {}, order(3, "paid")), id="b"),
        played(("get_order", {}, order(4)), id="c", task="other"),
    ]
    first, second, third = with_inferred_states(runs, SCHEMA, TOOLS, deterministic=True)
    paths = [f"orders/O-{number}/status" for number in (1, 2, 3, 4)]
    assert known(first, *paths)[0] == ["open", "open", "open", None]
    assert known(second, *paths)[0] == ["open", "open", "paid", None]
    assert known(third, *paths)[0] == [None, None, None, "open"]


def test_an_entity_that_no_argument_names_may_be_new_unless_the_tool_has_a_read_only_hint() -> None:
    run = played(("search", {}, [order(1), order(2)]), ("look", {"id": "O-1"}, order(1, total=2)))
    (found,) = with_inferred_states([run], SCHEMA, {})
    paths = ["orders/O-1/status", "orders/O-1/total", "orders/O-2/status"]
    assert known(found, *paths) == [[None, 2, None], ["open", 2, "open"], ["open", 2, "open"]]
    assert _at(parsed(found.transitions[0].state), "orders/O-1/order_id") == "O-1"
    (hinted,) = with_inferred_states([run], SCHEMA, {"search": READ})
    assert known(hinted, *paths) == [["open", 2, "open"]] * 3


def test_what_a_call_shows_after_a_refusal_of_the_same_id_is_not_put_before_it() -> None:
    run = played(("look", {"id": "O-1"}, "!no order O-1"), ("create", {"id": "O-1"}, order(1)), ("count", {}, "1"))
    (found,) = with_inferred_states([run], SCHEMA, {"look": READ})
    assert known(found, "orders/O-1/status") == [[None], [None], ["open"], ["open"]]


def test_a_tool_with_a_destructive_hint_is_no_read() -> None:
    run = played(("pay", {"id": "O-1"}, order(1, "paid")))
    (found,) = with_inferred_states([run], SCHEMA, {"pay": {"annotations": {"destructiveHint": True}}})
    assert known(found, "orders/O-1/status") == [[None], ["paid"]]


def test_tools_are_reads_if_a_hint_marks_them_or_if_they_explain_no_change() -> None:
    runs = [
        played(
            ("look", {"id": "O-1"}, order(1)), ("pay", {"id": "O-1"}, "ok"), ("look", {"id": "O-1"}, order(1, "paid"))
        ),
        played(("look", {"id": "O-1"}, order(1)), ("look", {"id": "O-1"}, order(1)), ("count", {}, "3")),
        played(("look", {"id": "O-2"}, order(2)), ("hinted", {"id": "O-2"}, "ok"), ("look", {"id": "O-2"}, order(2))),
    ]
    tools: dict[str, JsonObject] = {"hinted": WRITE, "look": {}}
    assert read_only_tools(runs, SCHEMA, tools) == {"look", "count"}
    assert read_only_tools(runs, SCHEMA, {"pay": READ}) == {"count", "hinted", "pay"}


def shop_runs() -> list[Trajectory]:
    """Two runs that show orders, their lines, and answers to yes-or-no questions."""
    lines: Any = [{"sku": "S-1", "price": 3}, {"sku": "S-2", "price": 4}]
    return [
        played(
            ("list_orders", {}, [order(1, customer_id="C-1"), order(2, customer_id="C-1")]),
            ("get_order", {"id": "O-1"}, order(1, customer_id="C-1", lines=lines, seen_at=run)),
            ("get_order", {"id": "O-2"}, order(2, "paid", customer_id="C-1", lines=lines, seen_at=None)),
            ("find", {"sku": "S-1"}, {"sku": "S-1", "price": 3}),
            ("find", {"sku": "S-2"}, {"sku": "S-2", "price": 4}),
            ("is_free", {"order_id": "O-1", "day": 1}, {"order_id": "O-1", "day": 1, "free": True}),
            ("is_free", {"order_id": "O-1", "day": 2}, {"order_id": "O-1", "day": 2, "free": False}),
            ("is_free", {"order_id": "O-2", "day": 2}, {"order_id": "O-2", "day": 2, "free": False}),
            id=f"run-{run}",
        )
        for run in range(2)
    ]


def test_objects_with_an_id_that_answers_show_repeatedly_become_collections() -> None:
    hinted: dict[str, JsonObject] = {"is_free": READ, "get_order": READ, "list_orders": READ, "find": READ}
    assert infer_schema(shop_runs(), hinted) == StateSchema(
        collections={
            "orders": Collection(
                key="order_id",
                fields={"status": "string", "customer_id": "string", "seen_at": "integer?"},
                complete=False,
            ),
            "lines": Collection(key="sku", fields={"price": "integer"}, complete=False),
        }
    )


def test_no_schema_is_derived_from_words_or_from_objects_shown_once() -> None:
    assert infer_schema([played(("get_order", {}, order(1)), ("get_order", {}, order(2)))], TOOLS) is None
    assert infer_schema([played(("look", {}, "an order"), ("look", {}, "[1, 2"))], TOOLS) is None
    assert infer_schema([], TOOLS) is None


def test_a_collection_with_the_key_id_is_named_after_its_place_in_the_answer() -> None:
    teams: Any = {"teams": {"7": {"id": 7, "name": "A"}, "8": {"id": 8, "name": "B"}}}
    schema = infer_schema([played(("get_all", {}, teams), ("get_all", {}, teams))], TOOLS)
    assert schema == StateSchema(collections={"teams": Collection(key="id", fields={"name": "string"}, complete=False)})
    (found,) = with_inferred_states([played(("get_all", {}, teams))], schema, TOOLS)
    assert known(found, "teams/7/name", "teams/8/id") == [["A", 8]] * 2


def test_facts_are_derived_on_request_and_from_then_on_by_the_schema_in_env_toml(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    for run in ("a", "b"):
        tape = Tape(folder, run).hello()
        for name in ("Ada", "Bob"):
            tape.call("get", json.dumps({"person_id": f"P-{name}", "name": name}), id=f"P-{name}")
    build_folder(folder)
    assert EnvironmentSpec.load(folder).state is None
    build_folder(folder, derives_facts=True)
    schema = EnvironmentSpec.load(folder).state
    assert schema is not None
    assert schema.collections == {"persons": Collection(key="person_id", fields={"name": "string"}, complete=False)}
    states = [parsed(step.state) for step in trajectories(folder)["crm-a"].transitions]
    people = {f"P-{name}": {"person_id": f"P-{name}", "name": name} for name in ("Ada", "Bob")}
    assert states == [{"persons": people}] * 2

    env = folder / "env.toml"
    env.write_text(env.read_text().replace('name = "string"', 'name = "string?"'))
    edited = env.read_text()
    build_folder(folder)
    report = build_folder(folder, derives_facts=True)
    assert env.read_text() == edited
    assert report.messages == ("[state] in env.toml was changed by hand and stays as it is",)

    env.write_text(edited.replace("complete = false", "complete = true"))
    (message,) = build_folder(folder).messages
    assert message.startswith("[state.persons] in env.toml has complete = true, but the server reports no states")


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["get_order", "list_orders", "pay", "note"]),
        st.integers(1, 3),
        st.sampled_from(["open", "paid", "late", 5, None]),
        st.sampled_from(["json", "words", "error"]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(CALLS)
def test_every_shown_fact_is_in_the_next_state_and_every_state_fits_the_schema(
    calls: list[tuple[str, int, Any, str]],
) -> None:
    steps: list[tuple[str, JsonObject, Any]] = []
    for tool, number, status, kind in calls:
        shown = {"order_id": f"O-{number}", "status": status}
        answer: Any = {"json": shown, "words": "ok", "error": "!no"}[kind]
        steps.append((tool, {"id": f"O-{number}"}, answer))
    (found,) = with_inferred_states([played(*steps)], SCHEMA, TOOLS)
    for place, (step, (_, number, status, kind)) in enumerate(zip(found.transitions, calls, strict=True)):
        after = parsed(step.next_state)
        assert after is not None
        assert SCHEMA.fault_of(after) is None
        assert step.state == (found.transitions[place - 1].next_state if place else found.task.initial_state)
        if kind == "json" and isinstance(status, str):
            assert _at(after, f"orders/O-{number}/status") == status
        if kind == "error":
            assert step.state == step.next_state
