"""`dreamgym check` on the folder of a real MCP server."""

import json
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from ledger import NOT_SET, ONLY_UP, SECRET, add, counted, folder, played
from misuse import refused_start
from typer.testing import CliRunner

from dreamgym.cli.app import app, main
from dreamgym.dream.nearest import NearestModel
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.runs.fidelity import fidelity
from dreamgym.types import StepResult

RECORDED = [
    played(f"episode-{i}", (add(i), counted(i)), (add(-1), ONLY_UP), (SECRET, NOT_SET), (add(2), counted(i + 2)))
    for i in range(5)
]


def checked(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["check", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_the_real_server_answers_as_it_was_recorded(tmp_path: Path) -> None:
    report = json.loads(checked(folder(tmp_path, RECORDED), "--against", "real", "--held-out", "0.4", "--json"))
    assert (report["env"], report["model"], report["complete"]) == ("counter", None, True)
    assert (len(report["held_out"]), len(report["known"]), report["total"]["calls"]) == (2, 3, 8)
    assert report["total"]["exact"]["mean"] == report["total"]["valid"]["mean"] == 1.0
    assert [report["tools"][tool]["calls"] for tool in ("add", "secret")] == [6, 2]


def test_a_dream_is_compared_with_the_same_calls_and_its_differences_are_printed(tmp_path: Path) -> None:
    env = folder(tmp_path, RECORDED)
    printed = checked(env, "--against", "dream", "--model", "nearest", "--held-out", "0.4")
    held_out = json.loads(checked(env, "--against", "real", "--held-out", "0.4", "--json"))["held_out"]
    assert printed.startswith(
        f"counter against dream of nearest, at most {NearestModel.demonstrations} transitions shown: "
        "2 trajectories held out, 3 known with 12 transitions\n"
    )
    assert [line.split()[:3] for line in printed.splitlines() if line.startswith("secret")] == [["secret", "2", "100"]]
    assert f"  {held_out[0]} step 4: add" in printed
    assert f"      recorded  count {int(held_out[0][-1]) + 2}\n" in printed


def test_the_model_is_a_setting_and_the_report_names_what_is_left_out(tmp_path: Path) -> None:
    env = folder(tmp_path, RECORDED)
    printed = checked(env, "--against", "dream", "--model", "nearest without recorded,checks -k 3")
    assert printed.startswith("counter against dream of nearest without checks,recorded, at most 3 transitions shown:")
    whole = json.loads(checked(env, "--against", "dream", "--model", "nearest", "--json"))
    assert (whole["model"], whole["k"]) == ("nearest", NearestModel.demonstrations)


def test_an_endpoint_that_is_dead_or_refuses_the_key_is_misuse_before_any_call_is_predicted(tmp_path: Path) -> None:
    env, asked = folder(tmp_path, RECORDED), []

    class Refusing(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(self.path)
            self.send_response(401)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as http:
        Thread(target=http.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{http.server_port}/v1#m"
        code, said = refused_start(main, "check", env, "--against", "dream", "--model", url)
        http.shutdown()
    assert code == 2
    assert f"no call was predicted: {url} failed: Error code: 401" in said
    assert len(asked) == 1
    code, said = refused_start(main, "check", env, "--against", "dream", "--model", url)
    assert code == 2
    assert f"no call was predicted: {url} cannot be reached: is the server running?" in said


def test_without_recordings_the_model_that_repeats_them_has_no_answer(tmp_path: Path) -> None:
    report = checked(folder(tmp_path, RECORDED), "--against", "dream", "--model", "nearest -k 0", "--json")
    total = json.loads(report)["total"]
    assert (total["answered"]["mean"], total["answered"]["n"]) == (0.0, total["calls"])


def test_a_recording_that_the_real_server_no_longer_gives_is_a_difference(tmp_path: Path) -> None:
    changed = [played(f"old-{i}", (add(1), counted(7)), (SECRET, NOT_SET)) for i in range(2)]
    printed = checked(folder(tmp_path, changed), "--against", "real")
    assert "1 of 2 answers differ:" in printed
    assert "recorded  count 7\n      got       count 1" in printed


def test_real_answers_are_redacted_like_the_recording_before_they_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    monkeypatch.setenv("COUNTER_SECRET", "ask ada.byron@analytical.org")
    clean = Redactor(RedactionRules(), key=load_key()).text("ask ada.byron@analytical.org")
    recorded = [played(f"episode-{i}", (SECRET, StepResult(observation=clean))) for i in range(2)]
    env = folder(tmp_path, recorded)
    with (tmp_path / "env.toml").open("a") as file:
        file.write('env = ["COUNTER_SECRET"]\n[redact]\nsecrets = true\n')
    printed = checked(env, "--against", "real")
    assert "ada.byron" not in printed
    assert "differ" not in printed


def test_a_closed_loop_redacts_reality_and_the_checks_of_tasks_like_the_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    monkeypatch.setenv("COUNTER_SECRET", "ask ada.byron@analytical.org")
    clean = Redactor(RedactionRules(), key=load_key()).text("ask ada.byron@analytical.org")
    recorded = [
        played("episode", (SECRET, StepResult(observation=clean))).model_copy(update={"id": f"episode-{i}"})
        for i in range(4)
    ]
    env = folder(tmp_path, recorded)
    with (tmp_path / "env.toml").open("a") as file:
        file.write('env = ["COUNTER_SECRET"]\n[redact]\nsecrets = true\n')
    check = {"answers": ["ask ada.byron@analytical.org"]}
    (tmp_path / "tasks.jsonl").write_text(recorded[0].task.model_copy(update={"metadata": check}).model_dump_json())
    loop = fidelity(env, ["nearest"], closed_loop=1).measured[0].closed_loop
    assert loop is not None
    (player,) = [one for one in loop.players if one.player == "recorded"]
    assert (player.dream.mean, player.real.mean, player.replay.same.mean) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(
    ("program", "fault", "reason"),
    [("nowhere.py", "", "No such file or directory"), ("counter_server.py", "dies", "out of paper")],
)
def test_a_real_server_that_answers_no_call_is_no_measurement(
    tmp_path: Path, program: str, fault: str, reason: str
) -> None:
    env, described = folder(tmp_path, RECORDED, fault=fault), tmp_path / "env.toml"
    described.write_text(described.read_text().replace("counter_server.py", program))
    with pytest.raises(EnvironmentUnavailable, match=f"no call was played: MCP server .*{reason}"):
        checked(env, "--against", "real")


def test_a_long_recorded_answer_is_cut_where_the_dream_has_none(tmp_path: Path) -> None:
    long = [played(f"episode-{i}", (add(i), StepResult(observation="count " + "9" * 100_000))) for i in range(5)]
    printed = checked(folder(tmp_path, long), "--against", "dream", "--model", "nearest")
    assert "got       no answer" in printed
    assert len(printed) < 5_000


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--against", "real", "--model", "nearest"], "the real system needs no model"),
        (["--against", "real", "--trajectories", "nowhere.jsonl"], "there is no such file"),
    ],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], reason: str, tmp_path: Path) -> None:
    env = folder(tmp_path, RECORDED)
    with pytest.raises(InvalidInput, match=reason):
        CliRunner().invoke(app, ["check", env, *arguments], catch_exceptions=False)


def test_recordings_of_another_environment_are_refused(tmp_path: Path) -> None:
    other = RECORDED[0].model_copy(update={"task": RECORDED[0].task.model_copy(update={"env": "crm"})})
    with pytest.raises(InvalidInput, match="'episode-0' belongs to environment 'crm', not 'counter'"):
        checked(folder(tmp_path, [other, *RECORDED[1:]]), "--against", "real")


def test_an_interrupted_check_prints_what_it_has(tmp_path: Path) -> None:
    recorded = [played(f"episode-{i}", (SECRET, NOT_SET), (add(1), counted(1))) for i in range(2)]
    env = folder(tmp_path, recorded, fault="interrupts")
    done = subprocess.run(
        [sys.executable, "-c", "from dreamgym.cli.app import main; main()", "check", env, "--against", "real"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 130
    assert "interrupted, the results are partial" in done.stdout
    assert [line.split()[:2] for line in done.stdout.splitlines() if line.startswith("all")] == [["all", "1"]]
    assert "Traceback" not in done.stderr
