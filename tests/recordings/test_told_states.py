"""States that a server reports become the states of the trajectories, and their schema is written into env.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folder_stage import FIND, GET, Tape, contents, crm, trajectories

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.recordings.folder import build_folder
from dreamgym.state import Collection, StateSchema, as_text, parsed
from dreamgym.types import JsonObject

ADA: JsonObject = {"person_id": "P-1", "name": "Ada", "age": 36, "email": None}
BOB: JsonObject = {"person_id": "P-2", "name": "Bob", "age": 40.5, "email": "bob@x"}


def world(*people: JsonObject, clock: int = 0) -> JsonObject:
    return {"people": {str(one["person_id"]): one for one in people}, "clock": clock}


def recorded(folder: Path) -> Path:
    """The folder with two runs of one task that start in the same state."""
    for number in (1, 2):
        tape = Tape(folder, f"r{number}", at=1000.0 * number).hello()
        tape.told("get", "Ada", world(ADA), world(ADA), id="P-1")
        tape.told("find", "found", world(ADA), world(ADA, BOB, clock=1)).note(task="Find Bob.")
    return folder


def test_reported_states_are_the_states_of_the_transitions_and_the_start_of_the_task(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    assert build_folder(folder).messages == ()
    first, second = trajectories(folder)["crm-r1"].transitions
    start, end = as_text(world(ADA)), as_text(world(ADA, BOB, clock=1))
    assert (first.state, first.next_state, first.result.state) == (start, start, start)
    assert (second.state, second.next_state, second.result.observation) == (start, end, "found")
    assert trajectories(folder)["crm-r2"].task.initial_state == start
    spec = EnvironmentSpec.load(folder)
    assert [task.initial_state for task in spec.tasks] == [start]
    assert spec.first(spec.tasks[0]).observation == ""


def test_a_task_whose_episodes_start_differently_has_no_initial_state(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    Tape(folder, "r3", at=9000.0).hello().told("get", "", world(BOB), world(BOB)).note(task="Find Bob.")
    build_folder(folder)
    assert [task.initial_state for task in EnvironmentSpec.load(folder).tasks] == [None]
    assert trajectories(folder)["crm-r3"].task.initial_state == as_text(world(BOB))


def test_the_schema_is_written_into_env_toml_and_read_from_there(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    env = folder / "env.toml"
    env.write_text(env.read_text() + "# my own words\n")
    build_folder(folder)
    fields = {"name": "string", "age": "number", "email": "string?"}
    assert EnvironmentSpec.load(folder).state == StateSchema(
        collections={"people": Collection(key="person_id", fields=fields, complete=True)}, values={"clock": "integer"}
    )
    assert "# my own words" in env.read_text()
    assert "# The schema of the server's state, as its answers show it." in env.read_text()


def test_the_schema_follows_later_recordings_until_somebody_changes_it(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    build_folder(folder)
    Tape(folder, "r3", at=9000.0).hello().told("get", "", world(), world(ADA | {"vip": True}))
    build_folder(folder)
    schema = EnvironmentSpec.load(folder).state
    assert schema is not None
    assert schema.collections["people"].fields["vip"] == "boolean"
    before = contents(folder)
    build_folder(folder)
    assert contents(folder) == before

    env = folder / "env.toml"
    env.write_text(env.read_text().replace('vip = "boolean"', 'vip = "boolean?"'))
    Tape(folder, "r4", at=9900.0).hello().told("get", "", world(), world(ADA | {"vip": None, "tall": 1}))
    edited = env.read_text()
    report = build_folder(folder)
    assert env.read_text() == edited
    assert report.messages == (
        "r4: call 1 (get) is left out: the state after the call does not fit [state] in env.toml: /people/P-1/tall: "
        "unknown field; known fields: age, email, name, vip",
    )
    assert "crm-r4" not in trajectories(folder)


def test_state_false_switches_reported_states_off(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    env = folder / "env.toml"
    env.write_text(f"state = false\n{env.read_text()}")
    build_folder(folder)
    assert EnvironmentSpec.load(folder).state is None
    assert [step.next_state for step in trajectories(folder)["crm-r1"].transitions] == ["Ada", "found"]
    assert "[state" not in env.read_text()


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("state = 0", "state: expected a table [state], or false, got 0"),
        ("state = 5", "state: expected a table [state], or false, got 5"),
        ('[state]\nclock = "intger"', "clock: expected one of string, integer"),
        ("[state]\nclock = 3", "clock: Input should be a valid string"),
        ('[state.people]\nkey = "id"\nfields = {name = "text"}', "name: expected one of string, integer"),
        ("[state.people]\nfields = {}", "people.key: Field required"),
    ],
)
def test_a_faulty_schema_is_reported_with_its_place_and_nothing_is_written(
    written: str, reason: str, tmp_path: Path
) -> None:
    folder = recorded(crm(tmp_path))
    env = folder / "env.toml"
    top = written.startswith("state")
    env.write_text(f"{written}\n{env.read_text()}" if top else f"{env.read_text()}\n{written}\n")
    before = contents(folder)
    with pytest.raises(InvalidInput, match=r"env\.toml: .*state") as error:
        build_folder(folder)
    assert reason in str(error.value)
    assert contents(folder) == before


def test_an_answer_without_states_gets_those_that_its_neighbours_report(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    tape = Tape(folder, "r").hello().call("get", "first")
    tape.told("get", "", world(ADA), world(ADA)).call("find", "second")
    tape.told("get", "", world(BOB), world(BOB))
    tape.exchange("tools/call", {"name": "nope"}, error={"code": -32602, "message": "Unknown tool: nope"})
    tape.told("find", "", None, world(ADA, BOB)).call("get", "last")
    report = build_folder(folder)
    names = {as_text(world(ADA)): "A", as_text(world(BOB)): "B", as_text(world(ADA, BOB)): "AB"}
    steps = trajectories(folder)["crm-r"].transitions
    assert [(names[step.state], names[step.next_state]) for step in steps] == [
        ("A", "A"),
        ("A", "B"),
        ("B", "B"),
        ("B", "B"),
        ("B", "AB"),
    ]
    assert report.messages == (
        "r: call 1 (get) and 1 more of its calls are left out: the server did not report the state before the call",
    )


def test_a_run_without_reported_states_is_left_out_if_others_have_them(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    Tape(folder, "r3", at=9000.0).hello().call("get", "Ada")
    (message,) = build_folder(folder).messages
    assert message.startswith("r3: left out, because the server reports no states in this run, but does in others")
    assert sorted(trajectories(folder)) == ["crm-r1", "crm-r2"]


def test_an_entry_that_is_not_a_collection_is_a_value_of_a_fitting_type(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    state: JsonObject = {
        "values": {"a": {"id": "a"}},
        "collections": {"x": {"name": "y"}},
        "mixed": 1,
        "list": [{"id": "a"}],
        "nothing": None,
        "odd name": True,
    }
    Tape(folder, "r").hello(GET, FIND).told("get", "", state | {"mixed": "x"}, state)
    assert build_folder(folder).messages == ()
    schema = EnvironmentSpec.load(folder).state
    assert schema == StateSchema(
        collections={"values": Collection(key="id")},
        values={"collections": "object", "mixed": "any", "list": "array", "nothing": "any", "odd name": "boolean"},
    )
    assert StateSchema.model_validate(json.loads(schema.model_dump_json())) == schema
    assert parsed(trajectories(folder)["crm-r"].transitions[0].next_state) == state


def test_a_schema_that_was_written_by_hand_stays_even_if_it_equals_the_derived_one(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    env = folder / "env.toml"
    fields = 'fields = {name = "string", age = "number", email = "string?"}  # mine'
    env.write_text(f'{env.read_text()}\n[state]\nclock = "integer"\n[state.people]\nkey = "person_id"\n{fields}\n')
    _, _, written = env.read_text().partition("[state]")
    assert build_folder(folder).messages == ()
    Tape(folder, "r3", at=9000.0).hello().told("get", "", world(ADA | {"vip": True}), world(ADA))
    (message,) = build_folder(folder).messages
    assert message.startswith(
        "r3: call 1 (get) is left out: the state before the call does not fit [state] in env.toml: /people/"
    )
    assert env.read_text().partition("[state]")[2] == written


def test_an_empty_state_table_counts_as_absent(tmp_path: Path) -> None:
    folder = recorded(crm(tmp_path))
    env = folder / "env.toml"
    env.write_text(f"{env.read_text()}\n[state]\n")
    build_folder(folder)
    schema = EnvironmentSpec.load(folder).state
    assert schema is not None
    assert schema.values == {"clock": "integer"}
