"""`dreamgym seed ENV FOLDER` stores a folder's contents, names what it leaves out, and lets a model write tasks."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from dreamgym_integrations.models.chat_server import Reply, chat_server

from dreamgym.cli.app import main
from dreamgym.cli.label import label
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl
from dreamgym.errors import UnknownName
from dreamgym.recordings.folder import build_folder, start_folder
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.replay.postgres import open_store
from dreamgym.types import JsonObject, Origin, Task, Trajectory

pytestmark = pytest.mark.anyio

Command = Callable[..., Awaitable[tuple[int, list[str]]]]
GET: JsonObject = {"name": "get", "inputSchema": {"type": "object"}}


@pytest.fixture
def seed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, dsn: str) -> Command:
    """Runs `dreamgym seed` in the test's folder; returns exit code and the lines on stderr. Stdout must be empty."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "home"))

    def command(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["dreamgym", "seed", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        assert said.out == ""
        return int(exit_.value.code or 0), said.err.splitlines()

    async def in_a_thread(*arguments: str) -> tuple[int, list[str]]:
        return await asyncio.to_thread(command, *arguments)

    return in_a_thread


def event(kind: str, **fields: Any) -> str:
    return json.dumps({"kind": kind, "run": "any", **fields}) + "\n"


def run(folder: Path, name: str, at: float, *calls: tuple[str, str], **said: Any) -> None:
    """A recorded run: tool and answer of each call, and a note."""
    asked: list[tuple[str, JsonObject, JsonObject]] = [("tools/list", {}, {"tools": [GET]})]
    for tool, answer in calls:
        asked.append(("tools/call", {"name": tool}, {"content": [{"type": "text", "text": answer}]}))
    lines = [
        event("exchange", session="s", method=method, params=params, result=result, started_at=at, ended_at=at)
        for method, params, result in asked
    ]
    lines += [event("note", at=at, **said)] if said else []
    (folder / "recordings").mkdir(exist_ok=True)
    (folder / "recordings" / f"{name}.jsonl").write_text("".join(lines))


@pytest.fixture
def crm(tmp_path: Path) -> Path:
    """A recorded folder: an episode with a task, one without, and one that calls a tool that is not in the list."""
    folder = tmp_path / "crm"
    start_folder(folder, "crm", {"adapter": "mcp", "command": ["npx", "crm"]})
    run(folder, "a", 1.0, ("get", "Ada"), task="Who is it?", success=True)
    run(folder, "b", 2.0, ("get", "Bob"))
    run(folder, "c", 3.0, ("hidden", "it worked"))
    return folder


async def stored(dsn: str) -> tuple[list[str], list[str]]:
    """Ids of the trajectories and instructions of the tasks in the buffer."""
    store = await open_store(dsn, load_encoder(None))
    trajectories, tasks = await store.buffer.trajectories("crm"), await store.buffer.tasks("crm")
    await store.close()
    return [one.id for one in trajectories], [task.instruction for task in tasks]


@pytest.mark.parametrize(("env", "path"), [("crm", "crm/"), ("crm/", "crm"), ("crm", "elsewhere")])
async def test_a_recorded_folder_is_built_and_stored_and_what_is_left_out_is_named(
    seed: Command, crm: Path, dsn: str, env: str, path: str
) -> None:
    if path == "elsewhere":
        crm.rename("elsewhere")
    folder = path.rstrip("/")
    assert await seed(env, path) == (
        0,
        [
            f"{folder}: c: left out, because the tool list has no 'hidden': record a run that lists it or, if the "
            "server refused the call, delete the call in recordings/c.jsonl",
            f"{folder}: 1 of 2 episodes have no task: add it with `dreamgym label`, "
            "or let a model propose one with `dreamgym seed --model MODEL`",
            f"{folder}: 2 of 2 trajectories are new",
        ],
    )
    assert await stored(dsn) == (["crm-a", "crm-b"], ["Who is it?"])
    assert (await seed(env, path))[1][-1] == f"{folder}: 0 of 2 trajectories are new"


def test_a_check_sees_what_was_recorded_since_the_folder_was_last_built(
    crm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        sys, "argv", ["dreamgym", "check", str(crm), "--against", "dream", "--model", "nearest", "--json"]
    )
    for expected in ({"crm-a", "crm-b"}, {"crm-a", "crm-b", "crm-d"}):
        with pytest.raises(SystemExit) as exit_:
            main()
        assert not exit_.value.code
        report = json.loads(capsys.readouterr().out)
        assert {*report["known"], *report["held_out"]} == expected
        run(crm, "d", 4.0, ("get", "Dan"))


async def test_trajectories_that_changed_since_they_were_stored_are_named(seed: Command, crm: Path) -> None:
    await seed("crm", "crm")
    run(crm, "b", 2.0, ("get", "Bob"), task="And who is that?")
    assert (await seed("crm", "crm"))[1][-2:] == [
        "crm: 0 of 2 trajectories are new",
        "replaced, because they have changed since they were stored: crm-b",
    ]


async def test_only_the_first_twenty_of_many_changed_trajectories_are_named(seed: Command, crm: Path) -> None:
    names = [f"n{number:02}" for number in range(22)]
    for task in (None, "Again?"):
        for number, name in enumerate(names):
            run(crm, name, 5.0 + number, ("get", name), **({"task": task} if task else {}))
        last = (await seed("crm", "crm"))[1][-1]
    ids = ", ".join(f"crm-{name}" for name in names[:20])
    assert last == f"replaced, because they have changed since they were stored: {ids} and 2 more"


async def test_a_label_after_seeding_counts_from_the_next_seeding(seed: Command, crm: Path, dsn: str) -> None:
    await seed("crm", "crm")
    label(crm, "b", task="Who is Bob?", answer="Bob", success=True)
    assert (await seed("crm", "crm"))[1][-1] == "replaced, because they have changed since they were stored: crm-b"
    store = await open_store(dsn, load_encoder(None))
    first, second = await store.buffer.trajectories("crm")
    await store.close()
    assert (first.id, second.id) == ("crm-a", "crm-b")
    assert (second.task.instruction, second.answer, second.final_reward) == ("Who is Bob?", "Bob", 1.0)


async def test_an_edited_trajectory_is_stored_and_outlives_a_new_run_until_its_own_recording_changes(
    seed: Command, crm: Path, dsn: str
) -> None:
    await seed("crm", "crm")
    file = crm / "trajectories.jsonl"
    file.write_text(file.read_text().replace("Bob", "Bert"))
    assert (await seed("crm", "crm"))[1][-1] == "replaced, because they have changed since they were stored: crm-b"
    run(crm, "d", 4.0, ("get", "Dan"))
    assert (await seed("crm", "crm"))[1][-1] == "crm: 1 of 3 trajectories are new"
    assert "Bert" in file.read_text()
    edited = file.read_bytes()
    run(crm, "b", 2.0, ("get", "Bob"), task="Who is Bob?")
    said = (await seed("crm", "crm"))[1]
    (copy,) = crm.glob("trajectories.jsonl.*.bak")
    assert (
        f"crm: trajectories.jsonl was built again and lost the edits of crm-b; the edited file was saved as {copy.name}"
        in said
    )
    assert copy.read_bytes() == edited
    assert said[-1] == "replaced, because they have changed since they were stored: crm-b"
    store = await open_store(dsn, load_encoder(None))
    stored_now = await store.buffer.trajectories("crm")
    await store.close()
    assert list(stored_now) == read_jsonl(file, Trajectory)


async def test_a_folder_without_recordings_gives_its_trajectories_and_tasks(seed: Command, crm: Path, dsn: str) -> None:
    build_folder(crm)
    for file in (crm / "recordings").iterdir():
        file.unlink()
    mine = Task(id="mine", env="crm", instruction="Mine")
    (crm / "tasks.jsonl").write_text(f"{mine.model_dump_json()}\n")
    assert await seed("crm", "crm") == (0, ["crm: 2 of 2 trajectories are new"])
    assert (await stored(dsn))[1] == ["Mine", "Who is it?"]


async def test_trajectories_that_are_refused_leave_no_task_in_the_store(seed: Command, crm: Path, dsn: str) -> None:
    build_folder(crm)
    (one, *_) = read_jsonl(crm / "trajectories.jsonl", Trajectory)
    store = await open_store(dsn, load_encoder(None))
    await store.buffer.add([one.model_copy(update={"task": one.task.model_copy(update={"env": "other"})})])
    await store.close()
    (crm / "tasks.jsonl").write_text(Task(id="mine", env="crm", instruction="Mine").model_dump_json() + "\n")
    code, said = await seed("crm", "crm")
    assert code == 2, said
    assert "'other'" in said[-1]
    assert await stored(dsn) == ([], [])


async def test_two_different_tasks_with_one_id_are_misuse_and_both_stay_in_the_file(
    seed: Command, crm: Path, dsn: str
) -> None:
    tasks = [Task(id="mine", env="crm", instruction=instruction) for instruction in ("First", "Second")]
    written = "".join(f"{task.model_dump_json()}\n" for task in tasks)
    (crm / "tasks.jsonl").write_text(written)
    code, said = await seed("crm", "crm")
    assert code == 2
    assert "crm/tasks.jsonl, task 2: an earlier task has the id 'mine' and other content" in said[-1]
    assert (crm / "tasks.jsonl").read_text() == written
    assert await stored(dsn) == ([], [])


async def test_a_trajectory_with_an_unknown_tool_is_left_out_and_named(seed: Command, crm: Path, dsn: str) -> None:
    build_folder(crm)
    lines = (crm / "trajectories.jsonl").read_text().splitlines()
    Path("more.jsonl").write_text("\n".join([lines[0].replace('"name":"get"', '"name":"fly"'), lines[1]]))
    assert await seed("crm", "more.jsonl") == (
        0,
        ["more.jsonl: 'crm-a' is left out: 'crm' has no tool 'fly'", "more.jsonl: 1 of 1 trajectories are new"],
    )
    assert (await stored(dsn))[0] == ["crm-b"]


async def test_what_the_database_cannot_store_is_left_out_and_named(seed: Command, crm: Path, dsn: str) -> None:
    (crm / "recordings" / "c.jsonl").unlink()
    build_folder(crm)
    with (crm / "tasks.jsonl").open("a") as file:
        file.write(Task(id="mine", env="crm", instruction="B\0b?").model_dump_json() + "\n")
    (known, _) = (crm / "trajectories.jsonl").read_text().splitlines()
    other = Trajectory.model_validate_json(known).model_copy(update={"id": "other", "answer": "B\0b"})
    Path("more.jsonl").write_text(other.model_dump_json() + "\n")
    said = (await seed("crm", "crm", "more.jsonl"))[1]
    assert [line.partition(": contains a NUL")[0] for line in said if "have no task" not in line] == [
        "more.jsonl: left out: trajectory 'other'",
        "crm/tasks.jsonl: left out: task 'mine'",
        "crm: 2 of 2 trajectories are new",
        "more.jsonl: 0 of 0 trajectories are new",
    ]
    assert (await stored(dsn))[0] == ["crm-a", "crm-b"]


@pytest.mark.parametrize(
    ("check", "why"),
    [
        ({"answers": "Ada"}, "expected a list of texts in metadata.answers, got 'Ada'"),
        ({"answers": ["Ada", 5]}, "expected a list of texts in metadata.answers, got ['Ada', 5]"),
        ({"success": {"type": "foo"}}, "not a usable JSON Schema: 'foo' is not valid"),
    ],
)
async def test_a_check_of_a_task_that_cannot_be_used_is_misuse_and_nothing_is_stored(
    seed: Command, crm: Path, dsn: str, check: JsonObject, why: str
) -> None:
    build_folder(crm)
    with (crm / "tasks.jsonl").open("a") as file:
        file.write(Task(id="mine", env="crm", instruction="Mine", metadata=check).model_dump_json() + "\n")
    code, said = await seed("crm", "crm")
    assert code == 2
    assert f"crm/tasks.jsonl: task 'mine': its check: {why}" in said[-1]
    assert await stored(dsn) == ([], [])


async def test_a_value_that_is_redacted_in_the_recordings_is_redacted_in_the_tasks_too(
    seed: Command, crm: Path, dsn: str
) -> None:
    clean = Redactor(RedactionRules(), key=load_key()).text("ask ada.byron@analytical.org")
    run(crm, "c", 3.0, ("get", clean))
    build_folder(crm)
    with (crm / "tasks.jsonl").open("a") as file:
        check: JsonObject = {"answers": ["ask ada.byron@analytical.org"]}
        mine = Task(id="mine", env="crm", instruction="ask ada.byron@analytical.org", metadata=check)
        file.write(mine.model_dump_json() + "\n")
    assert not [line for line in (await seed("crm", "crm"))[1] if "check" in line]
    assert "ada.byron" not in clean
    assert clean in (await stored(dsn))[1]


async def test_checks_of_a_state_that_the_environment_does_not_have_are_named(seed: Command, crm: Path) -> None:
    build_folder(crm)
    with (crm / "tasks.jsonl").open("a") as file:
        schemas: dict[str, JsonObject] = {"mine": {"required": ["orders"]}, "nothing": {}}
        for name, schema in schemas.items():
            check: JsonObject = {"success": schema}
            file.write(Task(id=name, env="crm", instruction=name, metadata=check).model_dump_json() + "\n")
    (line,) = [line for line in (await seed("crm", "crm"))[1] if "check" in line]
    assert line == (
        "crm/tasks.jsonl: the checks of these tasks read a state (metadata.success), but env.toml has no [state]: "
        "mine. Without an explicit state they decide nothing; use metadata.answers"
    )


async def test_tasks_whose_check_holds_at_the_start_are_named(seed: Command, crm: Path) -> None:
    build_folder(crm)
    (crm / "env.toml").write_text((crm / "env.toml").read_text() + '\n[state]\ncount = "integer"\n')
    with (crm / "tasks.jsonl").open("a") as file:
        schemas: dict[str, JsonObject] = {"any": {"type": "object"}, "more": {"properties": {"count": {"minimum": 1}}}}
        for name, schema in schemas.items():
            check: JsonObject = {"success": schema}
            task = Task(id=name, env="crm", instruction=name, initial_state='{"count": 0}', metadata=check)
            file.write(task.model_dump_json() + "\n")
    (line,) = [line for line in (await seed("crm", "crm"))[1] if "check" in line]
    assert line == (
        "crm/tasks.jsonl: the checks of these tasks hold at the start already, so an agent that does nothing useful "
        "succeeds: any. A check (metadata.success) must fail until the task is done"
    )


async def test_tasks_whose_check_wants_an_answer_that_no_recording_gives_are_named(seed: Command, crm: Path) -> None:
    run(crm, "c", 3.0, ("get", '{"id": 1, "name": "Ada"}'))
    build_folder(crm)
    wanted = {"whole": '{"name":"Ada","id":1}', "part": '"name": "Ada"', "text": "Ada", "none": "Eve"}
    with (crm / "tasks.jsonl").open("a") as file:
        for name, answer in wanted.items():
            check: JsonObject = {"answers": [answer]}
            file.write(Task(id=name, env="crm", instruction=name, metadata=check).model_dump_json() + "\n")
    (line,) = [line for line in (await seed("crm", "crm"))[1] if "check" in line]
    assert line == (
        "crm/tasks.jsonl: no recording gives the answers that the checks of these tasks want: part, none. A check "
        "wants whole answers; JSON is compared as JSON"
    )


async def test_a_model_proposes_the_missing_tasks_and_building_again_keeps_them(
    seed: Command, crm: Path, dsn: str
) -> None:
    async with chat_server(lambda messages, tools: Reply('{"instruction": "Find Bob."}')) as url:
        code, said = await seed("crm", "crm", "--model", url)
    assert code == 0
    assert said[0] == "b: proposed task: Find Bob."
    assert said[-2] == "crm: 2 of 2 trajectories are new"
    assert said[-1].startswith("spent: 2 calls")
    assert not any("have no task" in line for line in said)
    build_folder(crm)
    tasks = EnvironmentSpec.load(crm).tasks
    assert [(task.instruction, task.origin) for task in tasks] == [
        ("Who is it?", Origin.SEED),
        ("Find Bob.", Origin.PROPOSED),
    ]
    assert await stored(dsn) == (["crm-a", "crm-b"], ["Who is it?", "Find Bob."])
    lines = (crm / "trajectories.jsonl").read_text().splitlines()
    assert [Trajectory.model_validate_json(line).task for line in lines] == list(tasks)


async def test_a_model_that_gives_nothing_usable_loses_no_episode(seed: Command, crm: Path) -> None:
    async with chat_server(lambda messages, tools: Reply("no")) as url:
        code, said = await seed("crm", "crm", "--model", url)
    assert code == 0
    assert said[0].startswith("b: no task proposed: model ")
    assert said[-2] == "crm: 2 of 2 trajectories are new"
    assert said[-1].startswith("spent: 3 calls")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shop", "crm"), "unknown environment 'shop'"),
        (("crm", "nowhere"), "nowhere: cannot be read"),
        (("crm", "empty"), "empty/trajectories.jsonl: cannot be read"),
        (("empty", "crm"), "empty is not an environment folder: it has no env.toml"),
        (("crm", "crm", "--model", "nearest"), "--model nearest cannot write a task: expected a language model"),
    ],
)
async def test_misuse_is_one_clear_line(seed: Command, crm: Path, arguments: tuple[str, ...], message: str) -> None:
    build_folder(crm)
    Path("empty").mkdir()
    code, said = await seed(*arguments)
    assert code == 2
    assert message in said[-1]


async def test_a_folder_is_found_by_its_name_in_the_current_folder_or_the_message_says_what_works(
    crm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_folder(crm)
    monkeypatch.chdir(crm.parent)
    assert load_spec("crm").name == "crm"
    monkeypatch.chdir("/")
    with pytest.raises(UnknownName, match=r"There is no folder \S+ in \S+; a folder with an env.toml works"):
        load_spec("crm")


def tell_runs(folder: Path, *answers: str) -> None:
    """Write a run for each answer: the same call of one tool in the same explicit state."""
    (folder / "recordings").mkdir(exist_ok=True)
    for number, answer in enumerate(answers):
        people: JsonObject = {"P-1": {"person_id": "P-1", "name": "Ada"}}
        meta: JsonObject = {"dreamgym/before": {"people": people}, "dreamgym/state": {"people": people}}
        said: JsonObject = {"content": [{"type": "text", "text": answer}], "_meta": meta}
        asked: list[tuple[str, JsonObject, JsonObject]] = [("tools/list", {}, {"tools": [GET]})]
        asked.append(("tools/call", {"name": "get", "arguments": {"id": "P-1"}}, said))
        lines = [
            event("exchange", session="s", method=method, params=params, result=result, started_at=1.0, ended_at=1.0)
            for method, params, result in asked
        ]
        (folder / "recordings" / f"run-{number}.jsonl").write_text("".join(lines))


async def test_calls_that_contradict_each_other_in_a_deterministic_environment_are_named_and_stored(
    seed: Command, tmp_path: Path, dsn: str
) -> None:
    folder = tmp_path / "crm"
    start_folder(folder, "crm", {"adapter": "mcp", "command": ["npx", "crm"]})
    tell_runs(folder, "Ada", "Bob", "Ada", "Eve", "Eve", "Zoe")
    _, said = await seed("crm", "crm")
    assert said[-1] == "crm: 6 of 6 trajectories are new"
    (folder / "env.toml").write_text(f"deterministic = true\n{(folder / 'env.toml').read_text()}")
    _, said = await seed("crm", "crm")
    asked = """'get{"id":"P-1"}'"""
    assert said[-5:] == [
        "4 calls contradict an earlier one in the same state, although env.toml has deterministic = true; "
        "all of them are kept",
        f"crm-run-0, call 1, and crm-run-1, call 1: {asked} answered 'Ada' and then 'Bob'",
        f"crm-run-0, call 1, and crm-run-3, call 1: {asked} answered 'Ada' and then 'Eve'",
        f"crm-run-0, call 1, and crm-run-4, call 1: {asked} answered 'Ada' and then 'Eve'",
        "and 1 more",
    ]
    assert len((await stored(dsn))[0]) == 6


async def test_trajectories_that_do_not_fit_an_edited_schema_are_left_out_and_named(
    seed: Command, tmp_path: Path, dsn: str
) -> None:
    folder = tmp_path / "crm"
    start_folder(folder, "crm", {"adapter": "mcp", "command": ["npx", "crm"]})
    tell_runs(folder, "Ada")
    build_folder(folder)
    (folder / "trajectories.jsonl").rename("more.jsonl")
    env = folder / "env.toml"
    env.write_text(env.read_text().replace('name = "string"', 'name = "integer"'))
    assert (await seed("crm", "more.jsonl"))[1] == [
        "more.jsonl: crm-run-0: call 1 (get) is left out: the state before the call does not fit [state] in env.toml: "
        '/people/P-1/name: expected integer, got "Ada"',
        "more.jsonl: 0 of 0 trajectories are new",
    ]


async def test_a_state_is_derived_from_answers_on_request_and_only_from_recordings(seed: Command, crm: Path) -> None:
    for number in (1, 2):
        found = json.dumps([{"person_id": "P-1", "name": "Ada"}, {"person_id": "P-2", "name": "Bob"}])
        run(crm, f"d{number}", 9.0 + number, ("get", found))
    await seed("crm", "crm")
    assert EnvironmentSpec.load(crm).state is None
    _, said = await seed("crm", "crm", "--derive-state")
    assert "crm: [state] in env.toml was derived from the answers (persons): review it before you use it" in said
    schema = EnvironmentSpec.load(crm).state
    assert schema is not None
    assert schema.collections["persons"].fields == {"name": "string"}
    code, said = await seed("crm", "crm/trajectories.jsonl", "--derive-state")
    assert (code, said[-1].partition(": ")[2]) == (
        2,
        "--derive-state needs an environment folder with recordings: give one after ENV",
    )


async def test_two_different_trajectories_with_one_id_in_a_file_are_misuse_and_nothing_is_stored(
    seed: Command, crm: Path, dsn: str
) -> None:
    build_folder(crm)
    file = crm.parent / "more.jsonl"
    one = read_jsonl(crm / "trajectories.jsonl", Trajectory)[0]
    lines = [one.model_copy(update={"final_reward": reward}).model_dump_json() for reward in (0.0, 1.0)]
    file.write_text("\n".join(lines))
    code, said = await seed("crm", "crm", "more.jsonl")
    assert code == 2
    assert f"more.jsonl, trajectory 2: an earlier trajectory has the id {one.id!r} and other content" in said[-1]
    assert await stored(dsn) == ([], [])


async def test_a_trajectory_whose_task_has_a_check_that_cannot_be_used_is_left_out_and_named(
    seed: Command, crm: Path, dsn: str
) -> None:
    build_folder(crm)
    one = read_jsonl(crm / "trajectories.jsonl", Trajectory)[0]
    task = Task(id="forged", env="crm", instruction="Who is it?", metadata={"success": {"type": "nonsense"}})
    (crm.parent / "more.jsonl").write_text(one.model_copy(update={"id": "forged", "task": task}).model_dump_json())
    code, said = await seed("crm", "more.jsonl")
    assert code == 0
    assert "more.jsonl: left out: trajectory 'forged': task 'forged': its check: " in said[0]
    assert await stored(dsn) == ([], [])
