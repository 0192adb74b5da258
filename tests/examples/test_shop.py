"""The shop: a real MCP server whose tools change 0, 1, 3 or 5 and more fields, and its recordings."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcp import Client
from pydantic import JsonValue

from dreamgym.dream.task_check import accomplished
from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.state import changed_fields, parsed
from dreamgym.types import JsonObject, StopReason, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "benchmarks" / "studies" / "shop"
MODULES = ("worlds", "shop", "tools", "server", "outcomes", "plans", "sessions", "record")
RUNS = ["--tasks", "3", "--poor", "1", "--sessions", "2", "--seed", "5"]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The example's modules; other examples have modules of the same names."""
    monkeypatch.syspath_prepend(str(EXAMPLE))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield SimpleNamespace(**{name: __import__(name) for name in MODULES})
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.fixture
def shop(example: SimpleNamespace) -> Iterator[Any]:
    """A new shop of start world 0."""
    with closing(example.shop.Shop()) as opened:
        yield opened


@pytest.fixture
def recordings(example: SimpleNamespace, tmp_path: Path) -> tuple[EnvironmentSpec, list[Trajectory]]:
    """The folder that `record.py --direct` makes."""
    runs = [*example.record.task_runs(60, 2), *example.record.session_runs(15, 1, 1)]
    example.record.prepare(tmp_path, runs)
    example.record.play_directly(tmp_path, runs)
    return EnvironmentSpec.load(tmp_path), read_jsonl(tmp_path / "trajectories.jsonl", Trajectory)


def acted(example: SimpleNamespace, shop: Any, tool: str, **arguments: JsonValue) -> tuple[str | None, frozenset[str]]:
    """Call a tool; return the text of a refusal, or None, and the changed fields."""
    before = shop.state()
    action = ToolCall(name=tool, arguments=arguments)
    answer = example.tools.call(shop, action)
    refusal = answer["content"][0]["text"] if answer["isError"] else None
    return refusal, changed_fields(before, shop.state())


ITEMS: list[JsonValue] = [{"product_id": "P-1", "quantity": 2}, {"product_id": "P-2", "quantity": 1}]
EFFECTS: list[tuple[int, str, JsonObject]] = [
    (0, "get_customer", {"customer_id": "C-1"}),
    (0, "get_product", {"product_id": "P-1"}),
    (0, "get_order", {"order_id": "O-1001"}),
    (0, "list_orders", {"customer_id": "C-1"}),
    (0, "list_bookings", {"room_id": "R-2"}),
    (0, "check_availability", {"room_id": "R-2", "day": 12}),
    (1, "set_order_address", {"order_id": "O-1001", "address": "5 Ferry Steps"}),
    (1, "rename_room", {"room_id": "R-1", "name": "Loft"}),
    (1, "mark_shipped", {"order_id": "O-1001"}),
    (1, "move_booking", {"booking_id": "B-201", "room_id": "R-1", "day": 6}),
    (3, "mark_delivered", {"order_id": "O-1002"}),
    (3, "cancel_booking", {"booking_id": "B-201"}),
    (5, "move_booking", {"booking_id": "B-201", "room_id": "R-3", "day": 5}),
    (6, "move_booking", {"booking_id": "B-201", "room_id": "R-3", "day": 6}),
    (6, "refund_order", {"order_id": "O-1001"}),
    (7, "refund_order", {"order_id": "O-1003"}),
    (6, "refund_order", {"order_id": "O-1004"}),
    (9, "book_room", {"room_id": "R-2", "customer_id": "C-4", "day": 13}),
    (11, "place_order", {"customer_id": "C-1", "items": ITEMS}),
]


@pytest.mark.parametrize(("count", "tool", "arguments"), EFFECTS)
def test_each_tool_changes_the_expected_number_of_fields(
    example: SimpleNamespace, shop: Any, count: int, tool: str, arguments: JsonObject
) -> None:
    refusal, changed = acted(example, shop, tool, **arguments)
    assert refusal is None
    assert len(changed) == count, sorted(changed)


def test_every_tool_is_among_those_whose_effect_is_known_and_reads_are_marked(example: SimpleNamespace) -> None:
    marked = {tool["name"]: tool["annotations"]["readOnlyHint"] for tool in example.tools.TOOLS}
    assert len(marked) == 15
    assert marked == {tool: count == 0 for count, tool, _ in EFFECTS}


REFUSALS: list[tuple[str, JsonObject, str]] = [
    ("get_order", {"order_id": "O-1099"}, "Order O-1099 not found"),
    ("list_orders", {"customer_id": "C-9"}, "Customer C-9 not found"),
    ("list_bookings", {"room_id": "R-9"}, "Room R-9 not found"),
    ("check_availability", {"room_id": "R-1", "day": 31}, "Day 31 is not in the calendar: it has days 1 to 30"),
    ("refund_order", {"order_id": "O-1002"}, "Order O-1002 is already shipped and cannot be cancelled"),
    ("refund_order", {"order_id": "O-1007"}, "Order O-1007 is already refunded"),
    ("set_order_address", {"order_id": "O-1004", "address": "x"}, "Order O-1004 is already delivered and its address"),
    ("mark_shipped", {"order_id": "O-1008"}, "Order O-1008 is already shipped and cannot be shipped"),
    ("mark_delivered", {"order_id": "O-1001"}, "Order O-1001 is placed, only a shipped order can be delivered"),
    ("rename_room", {"room_id": "R-1", "name": "Galley"}, "Room R-5 is already called Galley"),
    ("rename_room", {"room_id": "R-1", "name": " "}, "The name is empty"),
    ("cancel_booking", {"booking_id": "B-204"}, "Booking B-204 is already cancelled"),
    ("book_room", {"room_id": "R-2", "customer_id": "C-4", "day": 12}, "Room R-2 is already booked on day 12"),
    ("move_booking", {"booking_id": "B-201", "room_id": "R-1", "day": 5}, "Booking B-201 is already for room R-1 on"),
    ("move_booking", {"booking_id": "B-201", "room_id": "R-1", "day": 18}, "Room R-1 is already booked on day 18"),
    ("place_order", {"customer_id": "C-1", "items": []}, "An order needs at least one item"),
    ("place_order", {"customer_id": "C-1", "items": [*ITEMS, ITEMS[0]]}, "Product P-1 is listed twice"),
    (
        "place_order",
        {"customer_id": "C-4", "items": [ITEMS[0], {"product_id": "P-2", "quantity": 4}]},
        "Not enough stock of P-2: 3 left, 4 asked for",
    ),
    (
        "place_order",
        {"customer_id": "C-2", "items": [{"product_id": "P-3", "quantity": 2}]},
        "Customer C-2 has 9500 cents, the order costs 16000",
    ),
    (
        "place_order",
        {"customer_id": "C-2", "items": [{"product_id": "P-3", "quantity": 0}]},
        "The quantity of P-3 must be at least 1, got 0",
    ),
    ("get_order", {"order_id": 7}, "Input validation error: order_id: 7 is not of type 'string'"),
    ("get_order", {}, "Input validation error: 'order_id' is a required property"),
]


@pytest.mark.parametrize(("tool", "arguments", "words"), REFUSALS)
def test_a_refusal_says_why_and_changes_nothing(
    example: SimpleNamespace, shop: Any, tool: str, arguments: JsonObject, words: str
) -> None:
    refusal, changed = acted(example, shop, tool, **arguments)
    assert refusal is not None
    assert refusal.startswith(words)
    assert not changed


def test_a_room_that_is_too_dear_is_not_booked_and_nothing_is_half_done(example: SimpleNamespace, shop: Any) -> None:
    assert acted(example, shop, "book_room", room_id="R-4", customer_id="C-2", day=1)[0] is None
    refusal, changed = acted(example, shop, "book_room", room_id="R-1", customer_id="C-2", day=1)
    assert refusal == "Customer C-2 has 500 cents, the room costs 3000"
    assert not changed


def test_a_refunded_order_leaves_only_its_own_record_changed(example: SimpleNamespace, shop: Any) -> None:
    before = shop.state()
    acted(example, shop, "place_order", customer_id="C-1", items=ITEMS)
    acted(example, shop, "refund_order", order_id="O-1009")
    left = changed_fields(before, shop.state())
    assert {path.split("/")[2] for path in left} == {"O-1009"}


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10**6), world=st.integers(0, 5))
def test_whatever_is_done_money_goods_and_counts_add_up(example: SimpleNamespace, seed: int, world: int) -> None:
    start = example.worlds.start(world)
    end = example.outcomes.left_by(example.sessions.session(seed, 20, world), world)
    assert worth(end) == worth(start)
    orders, bookings = end["orders"].values(), end["bookings"].values()
    active = [one for one in bookings if one["status"] == "booked"]
    assert len({(one["room_id"], one["day"]) for one in active}) == len(active)
    for room in end["rooms"].values():
        assert room["free_days"] == 30 - sum(one["room_id"] == room["room_id"] for one in active)
    for customer in end["customers"].values():
        own = [one for one in orders if one["customer_id"] == customer["customer_id"]]
        assert customer["open_orders"] == sum(one["status"] in ("placed", "shipped") for one in own)
        assert customer["points"] == sum(one["total_cents"] // 100 for one in own if one["status"] == "delivered")
        assert customer["bookings"] == sum(one["customer_id"] == customer["customer_id"] for one in active)
        assert customer["balance_cents"] >= 0
    assert all(product["stock"] >= 0 for product in end["products"].values())


def worth(world: Any) -> dict[str, int]:
    """Each customer's balance plus payments, and the quantity of each product, sold or not."""
    found = {i: one["balance_cents"] for i, one in world["customers"].items()}
    found |= {i: one["stock"] for i, one in world["products"].items()}
    for order in world["orders"].values():
        found[order["customer_id"]] += order["total_cents"] - order["refunded_cents"]
        if order["status"] != "refunded":
            for item in order["items"]:
                found[item["product_id"]] += item["quantity"]
    for booking in world["bookings"].values():
        found[booking["customer_id"]] += booking["price_cents"]
    return found


@pytest.mark.parametrize("world", [0, 1, 7])
def test_a_start_world_is_sound_small_and_always_the_same(example: SimpleNamespace, world: int) -> None:
    start = example.worlds.start(world)
    assert start == example.worlds.start(world)
    with closing(example.shop.Shop(world=world)) as shop:
        assert start == shop.state()
    assert (world == 0) == (start == example.worlds.start(0))
    assert len(example.worlds.text(start)) < 4600
    for customer in start["customers"].values():
        own = [one for one in start["orders"].values() if one["customer_id"] == customer["customer_id"]]
        assert customer["open_orders"] == sum(one["status"] in ("placed", "shipped") for one in own)


def test_a_shop_in_a_file_goes_on_where_it_was(example: SimpleNamespace, tmp_path: Path) -> None:
    shop = example.shop.Shop(str(tmp_path / "shop.db"))
    acted(example, shop, "mark_shipped", order_id="O-1001")
    shop.close()
    again = example.shop.Shop(str(tmp_path / "shop.db"), world=3)
    assert again.get_order("O-1001")["status"] == "shipped"
    again.close()


async def test_the_server_sends_its_state_unless_it_is_quiet(example: SimpleNamespace, shop: Any) -> None:
    before = json.loads(json.dumps(shop.state()))
    async with Client(example.server.server(shop)) as client:
        listed = (await client.list_tools()).tools
        result = await client.session.call_tool("mark_shipped", {"order_id": "O-1001"})
    assert [tool.name for tool in listed] == [tool["name"] for tool in example.tools.TOOLS]
    assert result.meta is not None
    assert result.meta["dreamgym/before"] == before
    assert result.meta["dreamgym/state"] == shop.state()
    assert result.structured_content == shop.get_order("O-1001")
    async with Client(example.server.server(shop, quiet=True)) as client:
        result = await client.session.call_tool("mark_delivered", {"order_id": "O-1001"})
    assert not {"dreamgym/before", "dreamgym/state"} & (result.meta or {}).keys()
    assert shop.get_order("O-1001")["status"] == "delivered"


def test_every_recorded_state_fits_the_schema_and_every_answer_its_tool(
    recordings: tuple[EnvironmentSpec, list[Trajectory]],
) -> None:
    spec, trajectories = recordings
    assert spec.state is not None
    answers = 0
    for transition in (one for trajectory in trajectories for one in trajectory.transitions):
        state = parsed(transition.next_state)
        assert state is not None
        assert spec.state.fault_of(state) is None
        if not transition.result.is_error:
            jsonschema.validate(transition.result.structured, spec.tool(transition.action.name)["outputSchema"])
            answers += 1
    assert answers > 500


def test_tasks_are_accomplished_by_runs_that_do_them_and_not_by_runs_that_do_them_badly(
    recordings: tuple[EnvironmentSpec, list[Trajectory]],
) -> None:
    spec, trajectories = recordings
    outcomes = Counter[bool]()
    for trajectory in trajectories:
        if trajectory.task.metadata["split"] != "sessions":
            done = accomplished(trajectory.task, trajectory.transitions[-1].next_state)
            assert done == trajectory.success == trajectory.id.endswith("-done"), trajectory.id
            assert not any(one.result.is_error for one in trajectory.transitions) or not done
            assert accomplished(trajectory.task, str(trajectory.task.initial_state)) is False
            outcomes[done] += 1
    assert outcomes == {True: 60, False: 120}
    splits = Counter(task.metadata["split"] for task in spec.tasks)
    assert splits == {"train": 36, "dev": 12, "test": 12, "sessions": 15}


def test_an_agent_that_orders_once_too_often_has_not_accomplished_the_task(example: SimpleNamespace) -> None:
    plan = next(plan for plan in example.plans.plans() if plan.task.id == "order-1")
    calls = plan.runs["done"].calls
    left = example.outcomes.left_by((*calls, calls[-1]))
    assert accomplished(plan.task, example.worlds.text(left)) is False


def test_a_fifth_of_the_calls_in_sessions_is_refused_and_each_kind_of_change_is_there(
    recordings: tuple[EnvironmentSpec, list[Trajectory]],
) -> None:
    sessions = [one for one in recordings[1] if one.task.metadata["split"] == "sessions"]
    assert all(len(one.transitions) == 20 and one.stop_reason is StopReason.CLOSED for one in sessions)
    steps = [transition for one in sessions for transition in one.transitions]
    assert 0.1 < sum(step.result.is_error for step in steps) / len(steps) < 0.3
    counts = Counter(len(changed_fields(parsed(s.state) or {}, parsed(s.next_state) or {})) for s in steps)
    assert counts[1] > 15
    assert counts[3] > 15
    assert sum(number for count, number in counts.items() if count >= 5) > 30


def test_the_same_seed_gives_the_same_recordings_and_another_one_others(example: SimpleNamespace) -> None:
    record = example.record
    first = [record.played(run) for run in record.session_runs(2, 4, 2)]
    assert first == [record.played(run) for run in record.session_runs(2, 4, 2)]
    assert [one.transitions for one in first] != [
        record.played(run).transitions for run in record.session_runs(2, 5, 2)
    ]
    assert first[0].task.initial_state != first[1].task.initial_state


def test_a_folder_with_recordings_is_not_written_over(example: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / "trajectories.jsonl").write_text("kept")
    with pytest.raises(SystemExit, match="already contains recordings"):
        example.record.prepare(tmp_path, [])
    assert (tmp_path / "trajectories.jsonl").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.long
def test_the_recorder_writes_what_playing_directly_gives_except_for_the_times(tmp_path: Path) -> None:
    for out, options in (("recorded", []), ("direct", ["--direct"])):
        command = [sys.executable, str(EXAMPLE / "record.py"), "--out", str(tmp_path / out), *RUNS, *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    recorded, direct = (read_jsonl(tmp_path / out / "trajectories.jsonl", Trajectory) for out in ("recorded", "direct"))
    assert len(recorded) == 8
    assert [untimed(one) for one in recorded] == direct
    specs = [EnvironmentSpec.load(tmp_path / out) for out in ("recorded", "direct")]
    assert specs[0].tasks == specs[1].tasks
    assert specs[0].tools == specs[1].tools
    assert specs[0].state == specs[1].state


def untimed(trajectory: Trajectory) -> Trajectory:
    """The trajectory without the times of its calls, which differ between recordings."""
    transitions = []
    for one in trajectory.transitions:
        info = {name: value for name, value in one.result.info.items() if name not in ("started_s", "ended_s")}
        transitions.append(one.model_copy(update={"result": one.result.model_copy(update={"info": info})}))
    return trajectory.model_copy(update={"transitions": tuple(transitions)})
