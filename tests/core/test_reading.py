"""Readers: adapters bring their own, and a server with typed tools is read by `ServerReader`."""

import pytest

from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.reading import ServerReader, reader_of, with_readings
from dreamgym.state import StateSchema, as_text, parsed
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall, Trajectory, Transition

SHOP = EnvironmentSpec.model_validate(
    {
        "name": "shop",
        "tools_list": [
            {"tools": [{"name": "get_order", "inputSchema": {"type": "object"}}, {"name": "ship"}, {"name": "close"}]}
        ],
        "state": {
            "orders": {"key": "order_id", "fields": {"status": "string", "total": "integer"}, "complete": False},
            "clock": "integer",
        },
    }
)
TASK = Task(id="t", env="shop", instruction="Ship O-1.")
GET, SHIP = (ToolCall(name=name, arguments={"order_id": "O-1"}) for name in ("get_order", "ship"))


def answer(text: str, **info: str) -> StepResult:
    return StepResult(observation=text, info={**info})


def after(*steps: tuple[ToolCall, StepResult], reader: ServerReader | None = None) -> JsonObject:
    """State that is known after some calls of a server that showed no state at the start."""
    reader = reader or ServerReader(SHOP)
    state = reader.start(TASK, StepResult(observation=""))
    for call, result in steps:
        state = reader.after(state, reader.call(call), reader.result(call, result))
    return state


@pytest.mark.parametrize("name", ["alfworld", "scienceworld"])
def test_the_reader_of_a_text_environment_is_that_of_its_adapter(name: str) -> None:
    act: JsonObject = {"name": "act", "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}}}
    spec = EnvironmentSpec(name="mine", tools_list=({"tools": [act]},), adapter=name)
    reader = reader_of(spec)
    assert reader is not None
    assert type(reader).__module__.endswith(f"{name}.reader")
    assert "places" in reader.schema.collections


def test_a_text_environment_has_no_reader_if_its_adapter_brings_none() -> None:
    assert reader_of(load_spec("coin")) is None


def test_a_folder_that_names_code_by_its_path_is_read_without_running_it() -> None:
    spec = SHOP.model_copy(update={"adapter": "nowhere.py:shop"})
    assert isinstance(reader_of(spec), ServerReader)


def test_typed_calls_and_json_answers_of_a_server_are_read_as_they_are() -> None:
    reader = reader_of(SHOP)
    assert reader is not None
    assert [tool["name"] for tool in reader.tools] == ["get_order", "ship", "close"]
    assert reader.call(GET) == reader.action(GET) == GET
    assert reader.result(GET, answer('{"order_id": "O-1", "status": "paid"}')).structured == {
        "order_id": "O-1",
        "status": "paid",
    }
    words = answer("O-1 ships tomorrow.")
    assert reader.result(SHIP, words) == words
    refused = StepResult(observation='{"order_id": "O-9", "status": "gone"}', is_error=True)
    assert reader.result(GET, refused).structured is None


def test_without_a_state_from_the_server_the_newest_value_in_an_answer_is_known() -> None:
    state = after(
        (GET, answer('{"order_id": "O-1", "status": "paid", "total": 10}')),
        (SHIP, answer('{"order": {"order_id": "O-1", "status": "shipped", "colour": "red"}}')),
        (SHIP, StepResult(observation='{"order_id": "O-1", "status": "lost"}', is_error=True)),
        (GET, answer('{"order_id": "O-2", "status": 7}')),
    )
    assert state == {"orders": {"O-1": {"order_id": "O-1", "status": "shipped", "total": 10}}}


def test_a_state_that_the_server_sends_is_used_as_it_is() -> None:
    told: JsonObject = {"orders": {"O-1": {"order_id": "O-1", "status": "paid"}}, "clock": 4}
    assert after((SHIP, answer("done", state=as_text(told)))) == told
    assert ServerReader(SHOP).start(TASK, answer("", state=as_text(told))) == told


def test_a_server_without_a_schema_has_an_empty_state() -> None:
    reader = ServerReader(SHOP.model_copy(update={"state": None}))
    assert reader.schema == StateSchema()
    assert after((GET, answer('{"order_id": "O-1"}')), reader=reader) == {}


def test_a_recorded_trajectory_without_states_gets_the_states_that_its_agent_could_know() -> None:
    steps = [(GET, answer('{"order_id": "O-1", "status": "paid"}')), (SHIP, answer("Shipped."))]
    recorded = Trajectory(
        id="r",
        task=TASK,
        transitions=Transition.chain("", steps),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED,
    )
    read = with_readings(recorded, ServerReader(SHOP), SHOP)
    paid = {"orders": {"O-1": {"order_id": "O-1", "status": "paid"}}}
    assert [parsed(step.state) for step in read.transitions] == [{}, paid]
    assert [parsed(step.next_state) for step in read.transitions] == [paid, paid]
    assert read.task.initial_state == "{}"
