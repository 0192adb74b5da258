"""`dreamgym record` and `dreamgym label`, as a user starts them."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from misuse import refused_start
from recorder_stage import (
    BIN,
    ENVIRON,
    HANDSHAKE,
    ODD,
    RawHttp,
    RawStdio,
    call,
    events,
    node_server,
    raw_stdio,
    recording,
    request,
)

from dreamgym.cli.app import main
from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.recordings.folder.env_file import name_in
from dreamgym.recordings.log import Exchange, Note
from dreamgym.types import Trajectory

pytestmark = pytest.mark.anyio

DREAMGYM = str(BIN / "dreamgym")


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set a DREAMGYM_HOME of the test's own, so that placeholders are made with a key of its own."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("DREAMGYM_HOME", str(folder))
    monkeypatch.setitem(ENVIRON, "DREAMGYM_HOME", str(folder))


@asynccontextmanager
async def recording_over_http(
    out: Path, *options: str, command: list[str] = ODD
) -> AsyncIterator[tuple[RawStdio, str]]:
    """`dreamgym record` with an HTTP front, and the URL that it prints."""
    started = [DREAMGYM, "record", str(out), "--port", "0", *options, "--", *command]
    async with raw_stdio(started) as process:
        yield process, (await process.line()).decode().strip()


def misused(*arguments: str) -> tuple[int | str | None, str]:
    """Exit code and last line of a start that is refused."""
    code, said = refused_start(main, *arguments)
    return code, said.strip().splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
async def test_over_http_it_prints_the_url_and_a_signal_ends_it_with_a_folder_that_can_be_served(
    number: int, tmp_path: Path
) -> None:
    out = tmp_path / "crm"
    async with recording_over_http(out) as (process, url):
        async with Client(url, mode="legacy") as agent:
            await agent.list_tools()
            assert (await agent.call_tool("count", {})).structured_content == {"value": 1}
        process.process.send_signal(number)
        rest, said = await process.leave()
    assert url.startswith("http://127.0.0.1:")
    assert url.endswith("/mcp")
    assert rest == b""
    assert process.process.returncode == 0
    assert b"recorded 1 tool call in 1 run. Recordings are in" in said
    spec = EnvironmentSpec.load(out)
    assert spec.name == "crm"
    assert [tool["name"] for tool in spec.tools][:2] == ["echo", "count"]
    assert spec.adapter == "mcp"
    assert spec.options["command"] == ODD
    (trajectory,) = read_jsonl(out / "trajectories.jsonl", Trajectory)
    assert [step.action.name for step in trajectory.transitions] == ["count"]


async def test_started_by_an_agent_it_speaks_mcp_over_stdio_and_prints_nothing_else_to_stdout(
    tmp_path: Path,
) -> None:
    out = tmp_path / "crm"
    async with raw_stdio([DREAMGYM, "record", "crm", "--out", str(out), "--", *ODD]) as process:
        await process.shake_hands()
        await process.ask(call("mutter", 1, text="hello"))
        rest, said = await process.leave()
    assert rest == b""
    assert b"crm | hello" in said.splitlines()
    assert process.process.returncode == 0
    (file,) = (out / "recordings").glob("*.jsonl")
    assert [event.method for event in read_jsonl(file, Exchange)] == ["initialize", "tools/call"]


def holding_a_pipe(path: Path) -> tuple[list[str], int]:
    """The command of a server whose processes hold a pipe open, and the pipe's other end."""
    os.mkfifo(path)
    return ["sh", "-c", 'exec "$@" 9>"$0"', str(path), *ODD], os.open(path, os.O_RDONLY | os.O_NONBLOCK)


async def is_closed(pipe: int) -> bool:
    """Wait until no process holds the pipe; return False if one still does after 30 seconds."""
    ended, _, _ = await asyncio.to_thread(select.select, [pipe], [], [], 30)
    os.close(pipe)
    return bool(ended)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
async def test_over_stdio_a_signal_ends_server_and_recorder_and_the_recorded_calls_are_kept(
    number: int, tmp_path: Path
) -> None:
    server, pipe = holding_a_pipe(tmp_path / "pipe")
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--", *server]
    async with raw_stdio(command) as process:
        await process.shake_hands()
        await process.ask(call("count", 1))
        process.process.send_signal(number)
        await asyncio.wait_for(process.process.wait(), 30)  # stdin is still open: the signal ends both
        assert await is_closed(pipe), "a process of the server is left"
    assert process.process.returncode == 0
    kept = [event.method for event in events(tmp_path / "recordings", "r") if isinstance(event, Exchange)]
    assert kept == ["initialize", "tools/call"]


async def test_a_recorder_that_is_killed_leaves_the_earlier_calls_and_no_server(tmp_path: Path) -> None:
    written = tmp_path / "recordings" / "r.jsonl"
    server, pipe = holding_a_pipe(tmp_path / "pipe")
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--", *server]
    async with raw_stdio(command) as process:
        await process.shake_hands()
        for number in range(1, 5):
            await process.ask(call("count", number))
        while not written.exists() or written.read_bytes().count(b"\n") < 5:  # written after the answer is sent
            await asyncio.to_thread(os.sched_yield)
        process.process.kill()
        assert await is_closed(pipe), "a process of the server is left"
    kept = [event for event in events(tmp_path / "recordings", "r") if isinstance(event, Exchange)]
    assert len(kept) == 5


def test_a_run_is_not_named_on_the_command_line_over_http(tmp_path: Path) -> None:
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--port", "0", "--", *ODD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "name the run in the agent's URL, /record/r/mcp" in " ".join(done.stderr.split())


def test_over_stdio_each_start_is_a_run_of_its_own_even_with_the_same_name(tmp_path: Path) -> None:
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--", *ODD]
    asked = [request("initialize", 0, HANDSHAKE), request("tools/list", 1), call("count", 2)]
    sent = b"".join(json.dumps(one).encode() + b"\n" for one in asked)
    said = [
        subprocess.run(command, input=sent, env=ENVIRON, capture_output=True, check=True, timeout=60).stderr.decode()
        for _ in range(2)
    ]
    assert "this one is r-2" not in said[0]
    assert "run r is recorded already, and each start is a run of its own: this one is r-2" in said[1]
    played = {one.id: len(one.transitions) for one in read_jsonl(tmp_path / "trajectories.jsonl", Trajectory)}
    assert played == {"crm-r": 1, "crm-r-2": 1}


def test_a_folder_whose_env_toml_has_another_command_keeps_it_and_the_recorder_says_so(tmp_path: Path) -> None:
    said = [
        subprocess.run(
            [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--", *ODD, *option],
            input=b"",
            env=ENVIRON,
            capture_output=True,
            check=True,
            timeout=60,
        ).stderr.decode()
        for option in ([], [], ["--newer"])
    ]
    told = f"[real] in {tmp_path / 'env.toml'} stays as it is and has another command or url"
    assert [told in one for one in said] == [False, False, True]
    assert tomllib.loads((tmp_path / "env.toml").read_text())["real"]["command"] == ODD


async def test_without_a_pipe_on_stdin_it_serves_http(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *[DREAMGYM, "record", "crm", "--out", str(tmp_path), "--port", "0", "--", *ODD],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).startswith(b"http://127.0.0.1:")
    process.terminate()
    await process.communicate()
    assert process.returncode == 0


async def test_a_stream_that_an_agent_keeps_open_does_not_delay_the_end(tmp_path: Path) -> None:
    import aiohttp

    async with recording_over_http(tmp_path) as (process, url), aiohttp.ClientSession() as http:
        client = RawHttp(http, url)
        await client.shake_hands()
        async with http.get(url, headers=client.headers) as stream:
            assert stream.status == 200
            process.process.terminate()
            _, said = await asyncio.wait_for(process.leave(), 8)  # less than the wait for an open connection
    assert b"Traceback" not in said
    assert b"ERROR" not in said


@pytest.mark.long  # test_record_then_serve labels a run too
async def test_a_label_adds_task_and_outcome_and_ends_the_current_run(tmp_path: Path) -> None:
    import aiohttp

    out = tmp_path / "crm"
    async with recording_over_http(out) as (process, url), aiohttp.ClientSession() as http:
        counted = []
        for _ in range(2):
            client = RawHttp(http, url)
            await client.shake_hands()
            await client.ask(request("tools/list", 1))
            counted.append((await client.ask(call("count", 2)))["result"]["structuredContent"]["value"])
            async with http.get(url.replace("/mcp", "/record")) as listed:
                runs = (await listed.json())["runs"]
            label = [DREAMGYM, "label", str(out), "last", "--task", "Count.", "--answer", "1", "--success"]
            done = await asyncio.to_thread(subprocess.run, label, capture_output=True, env=ENVIRON, check=True)
            assert done.stdout == b""
        process.process.terminate()
        await process.leave()
    assert counted == [1, 1]
    files = sorted((out / "recordings").glob("*.jsonl"))
    assert len(files) == 2
    assert len(runs) == 2
    notes = [[event for event in events(out / "recordings", file.stem) if isinstance(event, Note)] for file in files]
    assert [[(note.task, note.answer, note.success) for note in of_run] for of_run in notes] == [
        [("Count.", "1", True)]
    ] * 2
    assert [trajectory.success for trajectory in read_jsonl(out / "trajectories.jsonl", Trajectory)] == [True, True]


async def test_a_finished_run_is_refused_with_the_reason_until_the_folder_can_be_updated(tmp_path: Path) -> None:
    import aiohttp

    out = tmp_path / "crm"
    async with recording_over_http(out) as (process, url), aiohttp.ClientSession() as http:
        client = RawHttp(http, url.replace("/mcp", "/record/r/mcp"))
        await client.shake_hands()
        await client.ask(request("tools/list", 1))
        await client.ask(call("count", 2))
        (out / "tools.json").mkdir()
        async with http.post(url.replace("/mcp", "/record/r/finish"), json={"success": True}) as response:
            refused = response.status, (await response.json())["error"]
        (out / "tools.json").rmdir()
        async with http.post(url.replace("/mcp", "/record/r/finish")) as response:
            assert (response.status, (await response.json())["finished"]) == (200, True)
        assert (out / "tools.json").exists()
        process.process.terminate()
        _, said = await process.leave()
    assert refused[0] == 503
    assert refused[1].startswith(f"the recordings are kept, but {out} could not be updated from them: ")
    assert said.decode().count(f"dreamgym record: {refused[1]}\n") == 1
    assert [one.success for one in read_jsonl(out / "trajectories.jsonl", Trajectory)] == [True]


def test_a_short_value_of_a_header_is_not_removed_from_the_recording(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/items/71"
    command = [DREAMGYM, "record", str(tmp_path), "--upstream", url, "--header", "X-Debug=DBG"]
    environ = {**ENVIRON, "DBG": "1"}
    subprocess.run(command, input=b"", env=environ, capture_output=True, check=False, timeout=60)
    assert tomllib.loads((tmp_path / "env.toml").read_text())["real"]["url"] == url


def test_misuse_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record = ("record", "crm", "--out", str(tmp_path / "crm"))
    assert misused(*record) == (2, "dreamgym: expected one real server: either a COMMAND after --, or --upstream URL")
    assert misused(*record, "--", "no-such-command") == (
        2,
        "dreamgym: the command 'no-such-command' is not found: install it, or give its path",
    )
    code, said = misused(*record, "--host", "0.0.0.0", "--", sys.executable)
    assert (code, said[:58]) == (2, "dreamgym: refusing to listen on 0.0.0.0 without a token: s")
    assert misused(*record, "--upstream", "http://x", "--header", "Authorization=NOT_SET")[0] == 2
    for url in ("ftp://x", "http://[foo/mcp", "http://x:abc/mcp", "http:///mcp"):
        said = "dreamgym: expected --upstream http://HOST… or https://HOST…"
        assert misused(*record, "--upstream", url) == (2, said)
    monkeypatch.setenv("EMPTY", "")
    assert misused(*record, "--upstream", "http://x", "--header", "X-Api-Key=EMPTY") == (
        2,
        "dreamgym: --header X-Api-Key=VARIABLE: expected the name of a variable that is set and not empty",
    )
    monkeypatch.setenv("BROKEN", "s3cret\ns3cret")
    assert misused(*record, "--upstream", "http://x", "--header", "X-Api-Key=BROKEN") == (
        2,
        "dreamgym: --header X-Api-Key=BROKEN: expected printable ASCII characters on one line",
    )
    assert not (tmp_path / "crm").exists()
    assert misused(*record, "--stdio", "--", sys.executable) == (
        2,
        "dreamgym: --stdio: it was removed: record uses stdio by itself if it is started with a pipe on standard input",
    )
    code, said = misused("label", str(tmp_path), "nope", "--task", "x")
    assert (code, f"dreamgym: {tmp_path} has no recorded runs, and only these can be labelled" in said) == (2, True)
    assert misused("label", str(tmp_path), "nope")[0] == 2


def test_a_port_in_use_is_refused_before_anything_is_made_or_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused_start(main, "record", str(tmp_path / "crm"), "--port", str(port), "--", sys.executable)
    told = f"cannot listen on 127.0.0.1:{port}: Address already in use; give another with --port (0 takes a free one)"
    assert (code, said) == (2, f"dreamgym: {told}\n")
    assert not (tmp_path / "crm").exists()


@pytest.mark.long
def test_the_environment_has_the_name_of_its_folder_unless_env_toml_or_the_command_gives_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "env.toml").write_text('name = "crm"\n')
    for words, folder, name in (
        (("./desk",), "desk", "desk"),
        (("kept/",), "kept", "crm"),
        (("crm", "--out", "other"), "other", "crm"),
    ):
        command = [DREAMGYM, "record", *words, "--", *ODD]
        subprocess.run(command, input=b"", env=ENVIRON, capture_output=True, check=True, timeout=60)
        assert name_in(tmp_path / folder) == name
    code, said = misused("record", "My CRM", "--", *ODD)
    assert code == 2
    assert "'My CRM': expected lower-case letters, digits, '-' and '_'; give such a name" in said


def test_rules_in_env_toml_that_cannot_be_used_are_refused_before_anything_starts(tmp_path: Path) -> None:
    (tmp_path / "env.toml").write_text('name = "crm"\n[redact]\nsecrets = "maybe"\n')
    code, said = misused("record", "crm", "--out", str(tmp_path), "--", *ODD)
    assert code == 2
    assert said.startswith(f"dreamgym: {tmp_path / 'env.toml'}, [redact]: secrets: ")


async def test_recordings_are_redacted_with_the_rules_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "env.toml").write_text('name = "crm"\n[redact]\npatterns = { order = "ORD-[0-9]+" }\n')
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--", *ODD]
    async with raw_stdio(command) as process:
        await process.shake_hands()
        answer = await process.ask(call("echo", 1, order="ORD-123"))
        await process.leave()
    assert answer["result"]["structuredContent"]["value"] == {"order": "ORD-123"}
    text = (tmp_path / "recordings" / "r.jsonl").read_text()
    assert "ORD-123" not in text
    assert "REDACTED-ORDER-" in text


async def test_the_public_memory_server_is_recorded_under_an_agent_over_stdio(tmp_path: Path) -> None:
    out = tmp_path / "crm"
    memory = node_server("memory")
    command = [DREAMGYM, "record", "crm", "--out", str(out), "--run", "r", "--", *memory]
    environ = {**ENVIRON, "MEMORY_FILE_PATH": str(tmp_path / "memory.json")}
    ada: dict[str, Any] = {"name": "Ada", "entityType": "person", "observations": ["leads Apollo"]}
    place = StdioServerParameters(command=command[0], args=command[1:], env=environ)
    async with Client(place, mode="legacy") as agent:
        tools = [tool.name for tool in (await agent.list_tools()).tools]
        made = await agent.call_tool("create_entities", {"entities": [ada]})
        await agent.call_tool("search_nodes", {"query": "Apollo"})
    spec = EnvironmentSpec.load(out)
    assert [tool["name"] for tool in spec.tools] == tools
    (trajectory,) = read_jsonl(out / "trajectories.jsonl", Trajectory)
    assert [step.action.name for step in trajectory.transitions] == ["create_entities", "search_nodes"]
    assert trajectory.transitions[0].result.structured == made.structured_content
    assert json.loads(trajectory.transitions[1].result.observation)["entities"] == [ada]
    assert os.stat(out / "recordings" / "r.jsonl").st_size > 0


@pytest.mark.parametrize(
    "server",
    [
        [*ODD, "--password=hunter3-cl"],
        pytest.param([*ODD, "--api-key", "hunter3-cl"], marks=pytest.mark.long),
        pytest.param([*ODD, "--header", "X-Auth-Token: hunter3-cl"], marks=pytest.mark.long),
        pytest.param(["env", "DB_PASS=hunter3-cl", *ODD], marks=pytest.mark.long),
    ],
)
def test_a_secret_on_the_recorded_command_line_is_in_no_file(server: list[str], tmp_path: Path) -> None:
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--", *server]
    sent = json.dumps(call("echo", 1, said="it is hunter3-cl")).encode() + b"\n"
    subprocess.run(command, input=sent, env=ENVIRON, capture_output=True, check=True, timeout=60)
    for file in (tmp_path / "env.toml", tmp_path / "recordings" / "r.jsonl"):
        assert "hunter3-cl" not in file.read_text()
        assert "REDACTED-" in file.read_text()


@pytest.mark.parametrize("over_stdio", [True, pytest.param(False, marks=pytest.mark.long)], ids=["stdio", "http"])
async def test_a_missing_credential_is_reported_and_a_header_that_works_is_written_into_env_toml(
    over_stdio: bool, tmp_path: Path
) -> None:
    import aiohttp

    async def played(out: Path, *options: str, **environ: str) -> bytes:
        command = [DREAMGYM, "record", str(out), "--upstream", f"{behind.url}/record/b/mcp", *options]
        async with raw_stdio([*command, *(() if over_stdio else ("--port", "0"))], **environ) as process:
            if over_stdio:
                await process.shake_hands()
            else:
                url = (await process.line()).decode().strip()
                async with aiohttp.ClientSession() as http:
                    await RawHttp(http, url).post(request("initialize", 0, HANDSHAKE))
                process.process.terminate()
            return (await process.leave())[1]

    async with recording(ODD, tmp_path / "behind", token="of-the-server") as behind:
        refused = await played(tmp_path / "without")
        wrong = await played(tmp_path / "wrong", "--header", "Authorization=CRM_KEY", CRM_KEY="Bearer wrong-one")
        right = await played(tmp_path / "right", "--header", "Authorization=CRM_KEY", CRM_KEY="Bearer of-the-server")
    assert b"wants a credential (HTTP 401): give the recorder one with --header NAME=VARIABLE" in refused
    assert b"wants a credential (HTTP 401): check the header Authorization that it refused" in wrong
    assert b"wants a credential" not in right
    written = tomllib.loads((tmp_path / "right" / "env.toml").read_text())["real"]
    assert written["headers"] == {"Authorization": "CRM_KEY"}
    for text in (refused, wrong, right, (tmp_path / "right" / "env.toml").read_bytes()):
        assert b"of-the-server" not in text


def test_a_secret_in_the_path_of_the_upstream_is_not_in_env_toml(tmp_path: Path) -> None:
    secret = "MzQ1NjAtYWJj0xZ9k2QpLm"
    url = f"http://127.0.0.1:9/api/mcp/s/{secret}/mcp"
    command = [DREAMGYM, "record", "crm", "--out", str(tmp_path), "--run", "r", "--upstream", url]
    subprocess.run(command, input=b"", env=ENVIRON, capture_output=True, check=False, timeout=60)
    written = (tmp_path / "env.toml").read_text()
    assert secret not in written
    assert "/api/mcp/s/REDACTED-PATH-" in written
