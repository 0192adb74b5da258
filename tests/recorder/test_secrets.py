"""Secrets planted in every place of the traffic are in no file and on no stream."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from dreamgym_server.recorder.pairing import VERSION_META_KEY
from dreamgym_server.running import running
from recorder_stage import BIN, ENVIRON, INITIALIZED, ODD, RawHttp, call, raw_stdio, request
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

pytestmark = pytest.mark.anyio

# no rule knows the form of these: only their source shows that they are secret
OF_THE_HEADER = "Qx7vTn2LmW"
OF_THE_COOKIE = "Jd8sKe5RbY"
OF_THE_ENVIRONMENT = "Zp4gHc9UfA"
OF_THE_URL = "Mw3kXt6VoI"
OF_THE_AGENTS_URL = "Hd6pRw8NkZ"
OF_THE_SERVERS_COOKIE = "Bn5yCq1EsG"
# a rule knows the form of these, in any place
GITHUB = "ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8"
AWS = "AKIA" + "QWERTYUIOP234567"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL5N3hVE2ZqvJ8"
PASSWORD = "correct-horse-7"
MAIL = "ada.lovelace@analytical.engine.org"
CARD = "4111 1111 1111 1111"
ANYWHERE = (
    *(OF_THE_HEADER, OF_THE_COOKIE, OF_THE_ENVIRONMENT, OF_THE_URL, OF_THE_AGENTS_URL, OF_THE_SERVERS_COOKIE),
    *(GITHUB, AWS, JWT, MAIL, CARD),
)
PLANTED = (*ANYWHERE, PASSWORD)
"""Every planted secret. The password has no known form and no known source; it is found by the name of its field."""


def places(secret: str) -> dict[str, object]:
    """An object that contains a secret in every form."""
    return {
        "plain": f"use {secret} for it",
        "nested": [{"deep": [{"er": secret}]}],
        "base64": base64.b64encode(f"login: {secret}".encode()).decode(),
        "json": json.dumps({"inner": secret}),
        "url": f"https://example.com/?q={secret.replace(' ', '%20').replace('@', '%40')}",
        secret: "as a key",
    }


def look_for_secrets(root: Path, *streams: bytes) -> None:
    """Fail on the first planted secret in any file or stream, as it is or in base64."""
    files = {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert files
    for where, content in {**files, **{f"stream {n}": stream for n, stream in enumerate(streams)}}.items():
        for secret in PLANTED:
            for form in forms(secret):
                assert form not in content, f"{secret} in {where}"


def forms(secret: str) -> Iterable[bytes]:
    yield secret.encode()
    yield base64.b64encode(f"login: {secret}".encode()).rstrip(b"=")[12:-2]


@asynccontextmanager
async def leaky_server() -> AsyncIterator[str]:
    """An HTTP server that repeats everything it gets, headers included, in results, errors and descriptions."""

    async def answer(got: Request) -> Response:
        try:
            message = await got.json()
        except ValueError:
            return Response(await got.body(), 400)
        if "id" not in message:
            return Response(status_code=202)
        seen = {"headers": [value for _, value in got.headers.items()], "query": got.url.query}
        everything = {"you sent": message.get("params"), "seen": seen, "also": {s: places(s) for s in ANYWHERE}}
        text = json.dumps(everything)
        body: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
        if message["method"] == "initialize":
            info = {"name": "leaky", "version": "1"}
            body["result"] = {
                "protocolVersion": "2025-06-18",
                "serverInfo": info,
                "capabilities": {"resources": {}, "tools": {}},
                "instructions": text,
            }
        elif message["method"] == "tools/list":
            body["result"] = {
                "tools": [
                    {"name": "leak", "description": text, "inputSchema": {"type": "object", "default": everything}}
                ]
            }
        elif message["method"] == "resources/read":
            blob = base64.b64encode(text.encode()).decode()
            body["result"] = {"contents": [{"uri": f"x://{GITHUB}", "text": text}, {"uri": "x://b", "blob": blob}]}
        elif message["params"].get("name") == "leak":
            body["result"] = {"content": [{"type": "text", "text": text}], "structuredContent": everything}
        else:
            body["error"] = {"code": -32000, "message": text, "data": everything}
        return JSONResponse(body, headers={"set-cookie": f"sid={OF_THE_SERVERS_COOKIE}; Path=/"})

    async with running(Starlette(routes=[Route("/mcp", answer, methods=["POST"])])) as url:
        yield f"{url}/mcp?api_key={OF_THE_URL}"


async def test_over_http_no_file_and_no_stream_holds_a_planted_secret(tmp_path: Path) -> None:
    out = tmp_path / "crm"
    async with leaky_server() as upstream:
        command = [str(BIN / "dreamgym"), "record", "crm", "--out", str(out), "--port", "0", "--upstream", upstream]
        async with raw_stdio(command, CRM_PASSWORD=OF_THE_ENVIRONMENT, DREAMGYM_HOME=str(tmp_path / "home")) as process:
            url = (await process.line()).decode().strip().removesuffix("/mcp")
            async with aiohttp.ClientSession() as http:
                client = RawHttp(
                    http,
                    f"{url}/record/r/mcp?api_key={OF_THE_AGENTS_URL}",
                    authorization=f"Bearer {OF_THE_HEADER}",
                    cookie=f"sid={OF_THE_COOKIE}; a=b",
                )
                task = f"Log in as {MAIL} with {GITHUB}, {OF_THE_HEADER}."
                for message in (
                    request("initialize", 0, {"protocolVersion": "2025-06-18", "capabilities": {}}),
                    request("tools/list", 1),
                    call("leak", 2, password=PASSWORD, **{s: places(s) for s in ANYWHERE}),
                    call(f"nope {AWS}", 3, token=PASSWORD),
                    request("resources/read", 4, {"uri": f"x://{GITHUB}", "_meta": {VERSION_META_KEY: GITHUB}}),
                ):
                    assert OF_THE_COOKIE in json.dumps(await client.ask(message))  # the agent still sees everything
                await client.post(b"{" + OF_THE_HEADER.encode())
                async with http.post(f"{url}/record/r", json={"task": task}) as described:
                    assert described.status == 200
                outcome = {"answer": f"The card is {CARD}; {OF_THE_ENVIRONMENT}; {JWT}.", "success": True}
                async with http.post(f"{url}/record/r/finish", json=outcome) as finished:
                    assert finished.status == 200
            process.process.terminate()
            said = await process.leave()
    look_for_secrets(out, *said)
    assert {path.name for path in out.iterdir()} >= {"env.toml", "tools.json", "server.json", "recordings"}


async def test_over_stdio_no_file_and_no_stream_holds_a_secret_of_the_servers_environment_or_stderr(
    tmp_path: Path,
) -> None:
    out = tmp_path / "crm"
    command = [str(BIN / "dreamgym"), "record", "crm", "--out", str(out), "--run", "r", "--", *ODD]
    environ = {
        "CRM_PASSWORD": OF_THE_ENVIRONMENT,
        "ODD_DESCRIPTION": f"Ask {MAIL}, the key is {AWS}.",
        "DREAMGYM_HOME": str(tmp_path / "home"),
    }
    async with raw_stdio([*command, "--api-key", GITHUB], **environ) as process:
        await process.shake_hands()
        await process.send(INITIALIZED)
        await process.ask(request("tools/list", 1))
        shown = await process.ask(call("environment", 2, name="CRM_PASSWORD"))
        assert shown["result"]["structuredContent"] == {"value": OF_THE_ENVIRONMENT}  # the agent still sees it
        for number, secret in enumerate((OF_THE_ENVIRONMENT, GITHUB, MAIL), start=3):
            await process.ask(call("mutter", number, text=f"starting with {secret}"))
        await process.ask(call("echo", 9, password=PASSWORD, card=CARD))
        _, said = await process.leave()
    assert said.count(b"starting with ") == 3
    look_for_secrets(out, said)


def test_a_label_is_redacted_before_it_is_written(tmp_path: Path) -> None:
    out = tmp_path / "crm"
    environ = {**ENVIRON, "DREAMGYM_HOME": str(tmp_path / "home"), "CRM_PASSWORD": OF_THE_ENVIRONMENT}
    recorded = json.dumps(request("tools/list", 1)).encode() + b"\n"
    command = [str(BIN / "dreamgym"), "record", "crm", "--out", str(out), "--run", "r", "--", *ODD]
    done = subprocess.run(command, input=recorded, env=environ, capture_output=True, check=True, timeout=60)
    told = ["--task", f"Mail {MAIL}.", "--answer", f"{GITHUB} {OF_THE_ENVIRONMENT}", "--success"]
    label = subprocess.run(
        [str(BIN / "dreamgym"), "label", str(out), "last", *told], env=environ, capture_output=True, check=True
    )
    assert b"r: task, answer, success noted" in label.stderr
    assert "REDACTED" in (out / "recordings" / "r.jsonl").read_text()
    look_for_secrets(out, done.stderr, label.stderr, label.stdout)


def test_a_dry_run_writes_nothing_and_names_rule_place_and_count_but_no_value(tmp_path: Path) -> None:
    out = tmp_path / "crm"
    messages = [
        request("tools/list", 1),
        call("echo", 2, to=[MAIL, MAIL], password=PASSWORD),
        call("environment", 3, name="CRM_PASSWORD"),
        call("echo", 4, said="it is hunter3-cl"),
    ]
    environ = {**os.environ, "DREAMGYM_HOME": str(tmp_path / "home"), "CRM_PASSWORD": OF_THE_ENVIRONMENT}
    done = subprocess.run(
        [str(BIN / "dreamgym"), "record", "crm", "--out", str(out), "--dry-run", "--", *ODD, "--api-key=hunter3-cl"],
        input=b"".join(json.dumps(message).encode() + b"\n" for message in messages),
        env=environ,
        capture_output=True,
        check=True,
        timeout=60,
    )
    rows = [line.split() for line in done.stderr.decode().splitlines()]
    assert ["2", "email", "tools/call", "echo:", "params.arguments.to[]"] in rows
    assert ["1", "password", "tools/call", "echo:", "params.arguments.password"] in rows
    assert ["1", "crm_password", "tools/call", "environment:", "result.structuredContent.value"] in rows
    assert ["1", "api-key", "tools/call", "echo:", "params.arguments.said"] in rows
    assert not out.exists()
    assert not any(secret.encode() in done.stderr for secret in (*PLANTED, "hunter3-cl"))
