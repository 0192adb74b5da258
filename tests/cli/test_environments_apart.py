"""Two environments with one name do not mix, and the stored data of each is listed and deleted by itself."""

import asyncio
import json
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import psycopg
import pytest
from command_line import Command

from dreamgym.embedding import TrigramEncoder
from dreamgym.recordings.folder import start_folder
from dreamgym.recordings.folder.identity import FILE
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.postgres import open_store
from dreamgym.runs.stored import forget
from dreamgym.types import JsonObject, StepResult, StopReason, Task, ToolCall, Trajectory, Transition

GET: JsonObject = {"name": "get", "inputSchema": {"type": "object"}}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a store of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    return tmp_path


def run(folder: Path, name: str, *answers: str, **said: Any) -> None:
    """A recorded run: one call of `get` for each answer, and a note."""
    asked: list[tuple[str, JsonObject, JsonObject]] = [("tools/list", {}, {"tools": [GET]})]
    asked += [("tools/call", {"name": "get"}, {"content": [{"type": "text", "text": answer}]}) for answer in answers]
    one: JsonObject = {"kind": "exchange", "run": name, "session": "s", "started_at": 1.0, "ended_at": 1.0}
    lines: list[JsonObject] = [
        {**one, "method": method, "params": params, "result": result} for method, params, result in asked
    ]
    lines += [{"kind": "note", "run": name, "at": 1.0, **said}] if said else []
    (folder / "recordings").mkdir(exist_ok=True)
    (folder / "recordings" / f"{name}.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def recorded(place: str, name: str = "crm", answer: str = "Ada") -> Path:
    """A folder with one recorded run, `a`."""
    folder = Path(place)
    start_folder(folder, name, {"adapter": "mcp", "command": ["npx", "crm"]})
    run(folder, "a", answer, task="Who is it?", success=True)
    return folder


def stored(dsn: str, env: str = "crm") -> list[Trajectory]:
    """Stored trajectories of an environment, without dreams."""

    async def read() -> list[Trajectory]:
        store = await open_store(dsn, TrigramEncoder())
        found = await store.buffer.trajectories(env)
        await store.close()
        return list(found)

    return asyncio.run(read())


def answers(dsn: str, env: str = "crm") -> list[str]:
    """The first answer of each stored trajectory."""
    return [one.transitions[0].result.observation for one in stored(dsn, env)]


def test_the_folder_of_another_environment_of_the_same_name_is_refused_by_every_verb_and_the_message_says_what_to_do(
    dreamgym: Command, dsn: str
) -> None:
    recorded("one/crm", answer="Ada")
    recorded("two/crm", answer="Eve")
    assert dreamgym("seed", "one/crm", "one/crm")[0] == 0
    call: JsonObject = {"id": "c", "type": "function", "function": {"name": "get", "arguments": "{}"}}
    chat: JsonObject = {
        "messages": [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "Eve"},
        ]
    }
    Path("chats.jsonl").write_text(json.dumps(chat))
    for arguments in (
        ("seed", "two/crm", "two/crm"),
        ("seed", "two/crm", "two/crm/trajectories.jsonl"),
        ("serve", "two/crm", "--model", "nearest", "--port", "0"),
        ("import", "openai", "chats.jsonl", "--env", "two/crm"),
    ):
        code, _, err = dreamgym(*arguments)
        assert code == 2, arguments
        assert f"{Path('two/crm').resolve()} and {Path('one/crm').resolve()} have the same environment name" in err
        assert "change the name in one env.toml" in err
        assert "`dreamgym db forget crm`" in err
    assert answers(dsn) == ["Ada"]


def test_two_folders_with_one_name_given_at_once_store_nothing(dreamgym: Command, dsn: str) -> None:
    recorded("one", answer="Ada")
    recorded("two", answer="Eve")
    code, _, err = dreamgym("seed", "one", "one", "two")
    assert (code, "have the same environment name" in err) == (2, True)
    assert answers(dsn) == []
    assert dreamgym("seed", "two", "two")[0] == 0, "a refused folder does not reserve its name"


def test_a_copy_of_a_folder_is_the_same_environment_until_it_has_another_name(dreamgym: Command, dsn: str) -> None:
    folder = recorded("crm")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    shutil.copytree(folder, "copy")
    run(Path("copy"), "b", "Bob")
    assert dreamgym("seed", "copy", "copy")[2].splitlines()[-1] == "copy: 1 of 2 trajectories are new"
    assert answers(dsn) == ["Ada", "Bob"]
    file = Path("copy/env.toml")
    file.write_text(file.read_text().replace('name = "crm"', 'name = "shop"'))
    run(Path("copy"), "a", "Eve", task="Who is it?", success=True)
    assert dreamgym("seed", "copy", "copy")[2].splitlines()[-1] == "copy: 2 of 2 trajectories are new"
    assert (answers(dsn), answers(dsn, "shop")) == (["Ada", "Bob"], ["Eve", "Bob"])


def test_a_folder_and_a_store_without_an_identity_go_on_to_work(dreamgym: Command, dsn: str) -> None:
    folder = recorded("crm")
    (folder / FILE).unlink()
    assert dreamgym("seed", "crm", "crm")[0] == 0
    assert (folder / FILE).exists(), "it has one from now on"
    # a store that an older version filled
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE environments SET identity = NULL, folder = NULL")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    recorded("other", answer="Eve")
    assert dreamgym("seed", "other", "other")[0] == 2


def test_an_identity_that_is_damaged_is_named(dreamgym: Command) -> None:
    folder = recorded("crm")
    (folder / FILE).write_text("x" * 1_000_000)
    code, _, err = dreamgym("seed", "crm", "crm")
    assert code == 2
    assert "environment.id: expected 32 digits of 0-9a-f, got b'xxxx" in err
    assert len(err) < 400


def tables(dsn: str, env: str) -> dict[str, int]:
    """Number of rows of an environment in each table that has any."""
    with psycopg.connect(dsn) as connection:
        found = connection.execute("SELECT id FROM environments WHERE name = %s", [env]).fetchone()
        assert found is not None
        parents = connection.execute(
            "SELECT relname FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid "
            "WHERE attname = 'env_id' AND relkind IN ('r', 'p') AND NOT relispartition"
        ).fetchall()
        rows = {
            str(name): connection.execute(f"SELECT count(*) FROM {name} WHERE env_id = %s", found).fetchone()
            for (name,) in parents
        }
        episodes = connection.execute("SELECT count(*) FROM episodes WHERE body ->> 'env' = %s", [env]).fetchone()
    counts = {name: int(row[0]) for name, row in rows.items() if row is not None} | {"episodes": (episodes or (0,))[0]}
    return {name: count for name, count in counts.items() if count}


def test_stored_data_is_listed_by_environment_by_run_and_as_one_episode(dreamgym: Command) -> None:
    assert dreamgym("db", "show")[1] == "nothing is stored\n"
    folder = recorded("crm")
    run(folder, "b", "Bob", "Bert")
    recorded("shops/one", "shop", "Eve")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    assert dreamgym("seed", "shops/one", "shops/one")[0] == 0
    lines = dreamgym("db", "show")[1].splitlines()
    assert lines[0].split() == ["environment", "recorded", "imported", "dreamed", "tasks", "last", "stored", "folder"]
    assert [line.split()[:5] for line in lines[1:]] == [["crm", "2", "0", "0", "1"], ["shop", "1", "0", "0", "1"]]
    assert [line.split()[-1] for line in lines[1:]] == [str(Path(place).resolve()) for place in ("crm", "shops/one")]
    of_env = dreamgym("db", "show", "crm")[1].splitlines()
    assert f"folder        {folder.resolve()}" in of_env
    assert "trajectories  2 recorded, 0 imported, 0 dreamed" in of_env
    assert [line.split("  ")[0] for line in of_env[-2:]] == ["crm-b", "crm-a"]
    assert dreamgym("db", "show", "shops/one")[1].startswith("environment   shop\n"), "a folder names one too"
    for name in ("b", "crm-b"):
        one = dreamgym("db", "show", "crm", name)[1]
        assert "crm-b  recorded  " in one
        assert "1.  get()\n       Bob   [real]\n   2.  get()\n       Bert   [real]" in one


def test_an_episode_that_runs_or_ended_as_error_is_shown_with_its_steps(dreamgym: Command, dsn: str) -> None:
    async def play() -> None:
        store = await open_store(dsn, TrigramEncoder())
        for name in ("on", "off"):
            task = Task(id="t", env="crm", instruction="Who is it?")
            begun = Episode(
                id=name,
                env="crm",
                task=task,
                seed=0,
                max_steps=9,
                initial=StepResult(observation=""),
                expires_at=store.episodes.now(),
            )
            await store.episodes.create(begun)
            step = Transition.of("", ToolCall(name="get", arguments={}), StepResult(observation="Ada"))
            await store.episodes.append(name, step, version=0)
        await store.episodes.finish("off", StopReason.ERROR, error="the server is away")
        await store.close()

    asyncio.run(play())
    running, failed = (dreamgym("db", "show", "crm", name)[1] for name in ("on", "off"))
    for name, shown in (("on", running), ("off", failed)):
        assert shown.startswith(f"{name}  episode  1 step  Who is it?\n")
        assert "1.  get()\n       Ada   [" in shown
    assert running.endswith("\nend    running\n")
    assert failed.endswith("\nend    error: the server is away\n")


@pytest.mark.parametrize("arguments", [("show", "nope"), ("forget", "nope"), ("forget", "nope", "a", "--yes")])
def test_an_environment_that_is_not_stored_is_misuse_and_the_stored_ones_are_named(
    dreamgym: Command, arguments: tuple[str, ...]
) -> None:
    recorded("crm")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    code, _, err = dreamgym("db", *arguments)
    assert (code, "unknown environment 'nope': expected one of crm" in err) == (2, True)
    code, _, err = dreamgym("db", arguments[0], "crm", ".*")
    assert (code, "unknown run or trajectory '.*': expected one of crm-a. 1 in all" in err) == (2, True)


def test_an_environment_is_forgotten_completely_and_no_other_one_loses_anything(
    dreamgym: Command, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded("crm")
    recorded("shop", "shop")
    for env in ("crm", "shop"):
        assert dreamgym("seed", env, env)[0] == 0
    there = tables(dsn, "shop")
    assert {"trajectories", "transitions", "sightings", "vectors_1", "worlds", "goals", "tasks"} <= there.keys()
    assert tables(dsn, "crm") == there
    for answer in ("n\n", ""):  # the answer no, and an empty stdin
        monkeypatch.setattr("sys.stdin", StringIO(answer))
        code, out, err = dreamgym("db", "forget", "crm")
        assert (code, out.strip()) == (1, "")
        assert "1 recorded" in err
    assert tables(dsn, "crm") == there, "it was asked, and the answer was no"
    code, out, _ = dreamgym("db", "forget", "crm", "--yes")
    assert (code, [line.split() for line in out.splitlines()]) == (
        0,
        [["1", "trajectories", "deleted"], ["0", "episodes", "deleted"], ["1", "tasks", "deleted"]],
    )
    assert tables(dsn, "crm") == {}
    assert tables(dsn, "shop") == there
    assert "crm" not in dreamgym("db", "show")[1]
    recorded("other/crm", answer="Eve")
    assert dreamgym("seed", "other/crm", "other/crm")[0] == 0, "the name is free"
    assert answers(dsn) == ["Eve"]


def test_a_run_is_forgotten_with_everything_that_belongs_only_to_it(dreamgym: Command, dsn: str) -> None:
    folder = recorded("crm")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    before = tables(dsn, "crm")
    run(folder, "b", "Bob", task="Who else?")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    assert tables(dsn, "crm") != before
    code, _, err = dreamgym("db", "forget", "crm", "b", "--yes")
    assert (code, f"{folder.resolve()} still contains crm-b, and the next command" in err) == (0, True)
    # the watermark is a number that says when, so that servers learn again from what is left
    assert tables(dsn, "crm") == {**before, "watermarks": 1}
    assert answers(dsn) == ["Ada"]
    assert dreamgym("seed", "crm", "crm")[2].splitlines()[-1] == "crm: 1 of 2 trajectories are new", "it is still there"
    (folder / "recordings" / "b.jsonl").unlink()
    assert dreamgym("db", "forget", "crm", "crm-b", "--yes")[0] == 0
    assert dreamgym("seed", "crm", "crm")[2].splitlines()[-1] == "crm: 0 of 1 trajectories are new"
    (folder / "recordings" / "a.jsonl").unlink()
    assert dreamgym("db", "forget", "crm", "a", "--yes")[0] == 0
    assert dreamgym("seed", "crm", "crm")[2].splitlines()[-1] == "crm: 0 of 0 trajectories are new"
    assert answers(dsn) == []


def test_a_deletion_that_fails_in_the_middle_deletes_nothing(dreamgym: Command, dsn: str) -> None:
    recorded("crm")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    there = tables(dsn, "crm")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE environments ADD CHECK (identity IS NOT NULL)")  # the last statement fails
    with pytest.raises(psycopg.errors.CheckViolation):
        asyncio.run(forget("crm", None))
    assert tables(dsn, "crm") == there


def test_edits_of_a_folder_and_a_corrected_label_reach_the_store_but_a_label_of_an_edited_run_undoes_its_edits(
    dreamgym: Command, dsn: str
) -> None:
    folder = recorded("crm")
    run(folder, "b", "Bob", task="Who else?", success=True)
    assert dreamgym("seed", "crm", "crm")[0] == 0
    for file, old, new in (
        ("tools.json", '"name": "get"', '"name": "get", "description": "Mine."'),
        ("tasks.jsonl", "Who else?", "Who is the other?"),
        ("trajectories.jsonl", "Ada", "Adele"),
    ):
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
    assert dreamgym("label", "crm", "b", "--failure")[2] == "b: failure noted\n"
    assert dreamgym("seed", "crm", "crm")[2].splitlines()[-1] == (
        "replaced, because they have changed since they were stored: crm-a, crm-b"
    )
    first, second = stored(dsn)
    assert first.transitions[0].result.observation == "Adele"
    assert (second.task.instruction, second.final_reward) == ("Who is the other?", 0.0)
    assert "Mine." in (folder / "tools.json").read_text()
    assert list(folder.glob("*.bak")) == []
    said = dreamgym("label", "crm", "a", "--failure")[2]
    assert said.startswith("trajectories.jsonl was built again and lost the edits of")
    assert dreamgym("seed", "crm", "crm")[0] == 0
    assert (stored(dsn)[0].final_reward, answers(dsn)) == (0.0, ["Ada", "Bob"]), "the label wins"
