"""Two environments of one name do not mix, and what is stored of one is listed and forgotten by itself."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from command_line import Command

from dreamgym.embedding import TrigramEncoder
from dreamgym.recordings.folder import start_folder
from dreamgym.recordings.folder.identity import FILE
from dreamgym.replay.postgres import open_store
from dreamgym.types import JsonObject, Trajectory

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
    """What is stored of an environment, dreams left out."""

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
        assert f"{Path('two/crm').resolve()} and {Path('one/crm').resolve()} are two environments of one name" in err
        assert "give one another name in its env.toml" in err
        assert "`dreamgym db forget crm`" in err
    assert answers(dsn) == ["Ada"]


def test_two_folders_of_one_name_given_at_once_store_nothing(dreamgym: Command, dsn: str) -> None:
    recorded("one", answer="Ada")
    recorded("two", answer="Eve")
    code, _, err = dreamgym("seed", "one", "one", "two")
    assert (code, "are two environments of one name" in err) == (2, True)
    assert answers(dsn) == []
    assert dreamgym("seed", "two", "two")[0] == 0, "what was refused holds no name"


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
    # a store that an older edition filled
    import psycopg

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
