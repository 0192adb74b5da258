"""`dreamgym-serve`, as a user starts it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import anyio
import httpx2
import psycopg
import pytest
from dreamgym_client.control import ControlClient
from misuse import refused_start

from dreamgym.cli.serve import main
from dreamgym.dream.confidence import FEATURES, calibrate
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.runs.opening import Against
from dreamgym.runs.server_process import ServerProcess, server_process

SERVE = [sys.executable, "-m", "dreamgym.cli.serve"]
TOOLS = '{"tools": [{"name": "look", "inputSchema": {"type": "object"}}]}'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small environment folder."""
    home = tmp_path / "house"
    home.mkdir()
    (home / "env.toml").write_text('name = "house"\n')
    (home / "tools.json").write_text(TOOLS)
    (home / "tasks.jsonl").write_text('{"id": "t", "env": "house", "instruction": "Look.", "initial_state": "dark"}\n')
    return home


@contextmanager
def served(*options: str, **variables: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running server process and the URL that it prints first."""
    process = subprocess.Popen(
        [*SERVE, "--port", "0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DREAMGYM_ENCODER": "trigram", **variables},
    )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=60)


def refused(*options: str) -> tuple[int | str | None, str]:
    """Exit code and last line of a start that is refused."""
    code, said = refused_start(main, *options)
    return code, said.strip().splitlines()[-1]


def test_a_dream_is_served_until_sigterm_and_the_process_exits_normally(folder: Path, dsn: str) -> None:
    with served(str(folder), "--model", "nearest") as (process, url):
        assert url.endswith("/envs/house/mcp")
        base = url.removesuffix("/envs/house/mcp")
        made = httpx2.post(f"{base}/envs/house/episodes", json={"task_id": "t"}).json()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=60)
    assert made["observation"] == "dark"
    assert process.returncode == 0
    assert "experience model: nearest" in said
    assert "house: nothing is recorded yet" in said


def test_a_server_stops_without_a_fault_while_a_page_watches_an_episode(folder: Path, dsn: str) -> None:
    with served(str(folder), "--model", "nearest") as (process, url), httpx2.Client(timeout=60) as http:
        base = url.removesuffix("/envs/house/mcp")
        episode = http.post(f"{base}/envs/house/episodes", json={}).json()["episode"]
        with http.stream("GET", f"{base}/view/api/events", params={"id": episode}) as events:
            lines = events.iter_lines()
            assert '"steps": 0' in next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line] == []
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def test_the_token_comes_from_the_environment_and_is_never_printed(folder: Path, dsn: str) -> None:
    with served(str(folder), "--model", "nearest", DREAMGYM_TOKEN="a token of s3cret") as (
        process,
        url,
    ):
        base = url.removesuffix("/envs/house/mcp")
        statuses = [
            httpx2.get(f"{base}/envs", headers=headers).status_code
            for headers in ({}, {"Authorization": "Bearer a token of s3cret"})
        ]
        process.terminate()
        out, said = process.communicate(timeout=60)
    assert statuses == [401, 200]
    assert "a token of s3cret" not in out + said


def test_a_bind_that_others_can_reach_is_refused_without_a_token(folder: Path) -> None:
    code, said = refused(str(folder), "--host", "0.0.0.0")
    assert code == 2
    assert said.startswith("dreamgym: refusing to listen on 0.0.0.0 without a token")


def test_an_unknown_environment_is_refused_and_the_known_ones_are_listed() -> None:
    code, said = refused("nope")
    assert code == 2
    assert said.startswith("dreamgym: unknown environment 'nope': expected one of ")


def test_a_model_makes_no_sense_for_the_real_environment(folder: Path) -> None:
    code, said = refused(str(folder), "--real", "--model", "nearest")
    assert code == 2
    assert "are for dreams" in said


@pytest.mark.parametrize(
    "option", [("--model", "nearest without cache"), ("--min-confidence", "0.5"), ("--calibration", "calibration.json")]
)
def test_parts_and_confidence_make_no_sense_for_the_real_environment(folder: Path, option: tuple[str, str]) -> None:
    code, said = refused(str(folder), "--real", *option)
    assert (code, "are for dreams" in said) == (2, True)


def test_a_part_that_does_not_exist_is_refused_and_the_parts_are_listed(folder: Path) -> None:
    code, said = refused(str(folder), "--model", "nearest without luck")
    assert code == 2
    parts = "cache, checks, effects, history, reasoning, recorded, retrieval, state, views"
    assert said == f"dreamgym: unknown part 'luck': expected one of {parts}"


def test_the_number_of_demonstrations_is_only_for_measuring_verbs(folder: Path) -> None:
    code, said = refused(str(folder), "--model", "nearest -k 3")
    assert code == 2
    assert said.startswith("dreamgym: --model 'nearest -k 3': -k is for check, fidelity and fit")


def test_a_limit_of_confidence_without_a_calibration_says_how_to_get_one(folder: Path, dsn: str) -> None:
    code, said = refused(str(folder), "--model", "nearest", "--min-confidence", "0.5")
    assert code == 2
    assert said.endswith("`dreamgym fidelity house --model M --out DIR` writes DIR/calibration.json")


def test_a_calibration_of_another_environment_is_refused(folder: Path, dsn: str) -> None:
    file = folder / "calibration.json"
    calibrate([((0.0,) * len(FEATURES), True)], model="nearest", env="garden").save(file)
    code, said = refused(str(folder), "--model", "nearest", "--calibration", str(file))
    assert code == 2
    assert "the calibration belongs to model 'nearest' in 'garden', but was given for 'nearest' in 'house'" in said


def test_a_folder_without_a_real_environment_cannot_be_served_as_real(folder: Path) -> None:
    code, said = refused(str(folder), "--real")
    assert code == 2
    assert "has no real environment: add [real] adapter" in said


def test_an_unknown_encoder_is_refused_and_the_known_ones_are_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "nope")
    code, said = refused(str(folder), "--model", "nearest")
    assert code == 2
    assert said == "dreamgym: unknown encoder 'nope': expected one of minilm, trigram"


async def started(url: str) -> str:
    """Start an episode and return its id."""
    async with ControlClient(url) as control:
        return (await control.create("house", task_id="t")).episode


def test_the_address_of_the_database_is_not_on_the_command_line(folder: Path, dsn: str) -> None:
    with server_process(str(folder), Against.DREAM, model="nearest", dsn=dsn) as process:
        assert process.pid is not None
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        episode = anyio.run(started, process.url)
    assert b"dreamgym.cli.serve" in command
    assert dsn.encode() not in command
    with psycopg.connect(dsn) as connection:
        assert connection.execute("SELECT id FROM episodes").fetchall() == [(episode,)]


class Foreign(BaseHTTPRequestHandler):
    """Another server, which knows another token."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/healthz" else 401)
        self.end_headers()

    def log_message(self, *values: object) -> None:
        pass


def test_a_server_process_does_not_take_the_server_of_another_command_on_its_port_for_its_own(tmp_path: Path) -> None:
    process = ServerProcess(str(tmp_path / "nothing"), Against.DREAM, model="nearest", dsn=None)
    with HTTPServer(("127.0.0.1", int(process.url.rpartition(":")[2])), Foreign) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        try:
            with pytest.raises(EnvironmentUnavailable, match="dreamgym-serve ended with exit code 2"):
                process.start()
        finally:
            other.shutdown()
            process.stop()
