"""A secret planted in the traffic is in no file of the folder, in no row of the database, and in no prompt."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pydantic import JsonValue

from dreamgym.dream.model import Query
from dreamgym.dream.prompt import judge_messages, step_messages
from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.recordings.folder import build_folder, start_folder
from dreamgym.recordings.log import Exchange, Note
from dreamgym.redaction import RedactionRules, Redactor
from dreamgym.replay.buffer import Demonstration
from dreamgym.replay.postgres import Store
from dreamgym.state import State
from dreamgym.types import JsonObject, Source, Trajectory

HEADER = "h3ader-only-value"
SECRETS = {
    "token": "ghp_" + "a1B2c3D4e" * 4,
    "password": "hunter2pass",
    "email": "alice.smith@corp-mail.io",
    "card": "4539 1488 0343 6467",
    "phone": "+1 (415) 555-2671",
    "header": HEADER,
}
SENTENCE = " and ".join(value for kind, value in SECRETS.items() if kind != "password") + " and password=hunter2pass"


def answered(method: str, params: JsonObject, result: JsonObject | None, error: JsonObject | None = None) -> Exchange:
    at = 1_000.0
    return Exchange(
        run="r1",
        session="s",
        method=method,
        params=params,
        result=result,
        error=error,
        started_at=at,
        ended_at=at + 1,
    )


def traffic() -> list[Exchange | Note]:
    """Events with all secrets in every place of a recording that can contain text."""
    schema: JsonObject = {"type": "object", "properties": {"q": {"type": "string", "default": SENTENCE}}}
    tool: JsonObject = {"name": "find", "description": SENTENCE, "inputSchema": schema, "x-own": [SENTENCE]}
    blob = base64.b64encode(SENTENCE.encode()).decode()
    found: JsonObject = {"password": SECRETS["password"], "of": SENTENCE}
    content: list[JsonValue] = [
        {"type": "text", "text": SENTENCE},
        {"type": "text", "text": json.dumps(found, indent=2)},
        {"type": "resource", "resource": {"uri": f"file:///{SECRETS['email']}", "text": SENTENCE}},
        {"type": "resource", "resource": {"uri": "file:///b", "blob": blob}},
    ]
    info: JsonObject = {"name": "crm", "version": "1"}
    arguments: JsonObject = {"q": SENTENCE, "password": SECRETS["password"], SECRETS["email"]: blob}
    error: JsonObject = {"code": -32602, "message": SENTENCE, "data": found}
    return [
        answered("initialize", {}, {"serverInfo": info, "instructions": SENTENCE, "capabilities": {}}),
        answered("tools/list", {}, {"tools": [tool], "_meta": {"authorization": f"Bearer {HEADER}"}}),
        answered("resources/list", {}, {"resources": [{"uri": "file:///b", "name": SENTENCE}]}),
        answered("resources/read", {"uri": SENTENCE}, {"contents": [{"uri": "file:///b", "blob": blob}]}),
        answered("tools/call", {"name": "find", "arguments": arguments}, {"content": content}),
        answered("tools/call", {"name": "find", "arguments": {}}, {"content": [], "structuredContent": found}),
        answered("tools/call", {"name": "find", "arguments": {"q": SENTENCE}}, None, error),
        Note(run="r1", task=f"Find {SENTENCE}.", answer=f"It is {SENTENCE}.", success=True, at=2_000.0),
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An environment folder built from the traffic, redacted event by event as the recorder does it."""
    redactor = Redactor(RedactionRules(), key=b"k" * 32, known={HEADER: "X_API_KEY"})
    start_folder(tmp_path / "crm", "crm", {"adapter": "mcp", "command": ["server"]})
    recordings = tmp_path / "crm" / "recordings"
    recordings.mkdir()
    events = [redactor.value(event.model_dump(mode="json")) for event in traffic()]
    (recordings / "r1.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    build_folder(tmp_path / "crm")
    return tmp_path / "crm"


def secrets_in(text: str) -> set[str]:
    """The kinds of the secrets in a text; `base64` if it contains them all in base64."""
    encoded = base64.b64encode(SENTENCE.encode()).decode()
    return {kind for kind, value in SECRETS.items() if value in text} | ({"base64"} if encoded in text else set())


def test_the_traffic_contains_every_secret_before_redaction() -> None:
    written = "".join(event.model_dump_json() for event in traffic())
    assert secrets_in(written) == {*SECRETS, "base64"}


def test_no_file_of_the_folder_holds_a_secret(folder: Path) -> None:
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert {"tools.json", "server.json", "tasks.jsonl", "trajectories.jsonl", "r1.jsonl"} <= {f.name for f in files}
    assert {file.name: found for file in files if (found := secrets_in(file.read_text()))} == {}


def test_the_redacted_trajectory_is_complete_and_coherent(folder: Path) -> None:
    (trajectory,) = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    first, second, third = trajectory.transitions
    assert str(first.action.arguments["q"]) in trajectory.task.instruction
    assert str(first.action.arguments["q"]) in first.result.observation
    assert third.result.is_error
    assert second.result.structured is not None
    assert second.result.structured["password"] == first.action.arguments["password"]


@pytest.mark.anyio
async def test_no_row_of_the_database_holds_a_secret(folder: Path, store: Store, dsn: str) -> None:
    trajectories = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    assert await store.buffer.add(trajectories) == 1
    rows = []
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        found = await connection.execute("SELECT tablename FROM pg_tables WHERE schemaname NOT LIKE 'pg!_%' ESCAPE '!'")
        for (table,) in [row for row in await found.fetchall() if not row[0].startswith("sql_")]:
            select = sql.SQL("SELECT row_to_json(t)::text FROM {} t").format(sql.Identifier(table))
            rows += [row[0] for row in await (await connection.execute(select)).fetchall()]
    stored = "".join(rows)
    assert "user-" in stored
    assert secrets_in(stored) == set()


def test_no_prompt_holds_a_secret(folder: Path) -> None:
    spec = EnvironmentSpec.load(folder)
    (trajectory,) = read_jsonl(folder / "trajectories.jsonl", Trajectory)
    steps = trajectory.transitions
    query = Query(
        spec=spec,
        task=trajectory.task,
        state=State.of(steps[-1].state, spec.state),
        action=steps[-1].action,
        history=steps[:-1],
        demonstrations=(
            Demonstration(id="1", transition=steps[0], source=Source.REAL, world="w", score=1.0, exact=False),
        ),
    )
    judged = judge_messages(
        spec, trajectory.task, [(s.action, s.result) for s in steps], final_answer=trajectory.answer
    )
    asked = [*step_messages(query, "turns"), *step_messages(query, "data"), *step_messages(query, "fitted"), *judged]
    prompts = "".join(message.content for message in asked)
    assert "user-" in prompts
    assert secrets_in(prompts) == set()
