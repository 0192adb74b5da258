"""The tape writes recordings without delaying the agent, and reports what it cannot write."""

from __future__ import annotations

import base64
import html
import io
import json
import resource
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from dreamgym_server.recorder import writer
from dreamgym_server.recorder.child import MAX_STDERR_LINE_BYTES, TOO_LONG_LINE
from dreamgym_server.recorder.pairing import Form, Heard
from dreamgym_server.recorder.stdio_to_stdio import say_all
from dreamgym_server.recorder.writer import Known, StderrLine, Tape, append_event
from pydantic import JsonValue
from recorder_stage import ODD, call, events, recording

from dreamgym.environment import read_jsonl
from dreamgym.recordings.log import Exchange, Loss
from dreamgym.redaction import RedactionRules, Redactor


def tape(folder: Path | None, said: list[str]) -> Tape:
    return Tape(folder, Redactor(RedactionRules(), key=b"0" * 32, remembers=True), said.append)


def exchange(text: str, request_id: int = 1, run: str = "r") -> Iterator[Heard]:
    """A call of echo and its answer."""
    answer: dict[str, JsonValue] = {"jsonrpc": "2.0", "id": request_id, "result": {"text": text}}
    for from_agent, message in ((True, call("echo", request_id, text=text)), (False, answer)):
        yield Heard(run, "session", "pipe", from_agent, Form.JSON, json.dumps(message).encode(), 1.0)


def put(on: Tape, *texts: str) -> None:
    for text in texts:
        for heard in exchange(text):
            on.put(heard)


def texts(folder: Path) -> list[JsonValue]:
    return [event.result["text"] for event in events(folder, "r") if isinstance(event, Exchange) and event.result]


def test_a_line_that_a_crash_left_unfinished_is_ended_before_the_next_one(tmp_path: Path) -> None:
    put(first := tape(tmp_path, []), "one")
    first.close()
    with (tmp_path / "r.jsonl").open("ab") as file:
        file.write(b'{"kind":"exchange","ru')
    put(second := tape(tmp_path, []), "two")
    second.close()
    lines = (tmp_path / "r.jsonl").read_bytes().split(b"\n")
    assert [line[:22] for line in lines] == [b'{"kind":"exchange","ru'] * 3 + [b""]
    assert json.loads(lines[2])["result"] == {"text": "two"}


def test_a_folder_that_was_removed_is_made_again(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    put(on := tape(folder, []), "one")
    on.flush()
    shutil.rmtree(folder)
    put(on, "two")
    assert on.close().losses == {}
    assert texts(folder) == ["two"]


def test_a_failure_to_write_is_reported_once_and_counted_and_later_writes_succeed(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.write_text("a file in the place of the folder")
    said: list[str] = []
    put(on := tape(folder, said), "one", "two")
    on.flush()
    folder.unlink()
    put(on, "three")
    summary = on.close()
    reason = f"cannot write to {folder}: File exists"
    assert said == [f"dreamgym record: r: {reason}"]
    assert (summary.calls, summary.losses) == ({"r": 1}, {reason: 2})
    assert summary.text.endswith(f"lost 2: 2 × {reason}")
    assert texts(folder) == ["three"]


def test_a_full_disk_leaves_no_half_line(tmp_path: Path) -> None:
    said: list[str] = []
    put(on := tape(tmp_path, said), "one")
    on.flush()
    size = (tmp_path / "r.jsonl").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50, hard))  # like a full disk: a write succeeds only in part
    try:
        put(on, "two")
        on.flush()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    put(on, "three")
    on.close()
    assert texts(tmp_path) == ["one", "three"]
    assert said == [f"dreamgym record: r: cannot write to {tmp_path}: File too large"]


@pytest.mark.anyio
async def test_a_recording_that_fails_does_not_fail_the_call(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    folder.write_text("in the way")
    async with recording(ODD, folder) as recorder:
        client = recorder.client("r")
        await client.shake_hands()
        answer = await client.ask(call("count", 1))
        await recorder.seen()
    assert answer["result"]["structuredContent"] == {"value": 1}
    assert recorder.tape.summary.losses == {f"cannot write to {folder}: File exists": 2}


def test_a_redactor_that_fails_writes_nothing_unredacted_and_is_a_loss(tmp_path: Path) -> None:
    class Failing(Redactor):
        def value(self, value: JsonValue) -> JsonValue:
            if "poison" in json.dumps(value):
                raise ZeroDivisionError("poison")
            return super().value(value)

    said: list[str] = []
    on = Tape(tmp_path, Failing(RedactionRules(), key=b"0" * 32, remembers=True), said.append)
    put(on, "poison", "good")
    summary = on.close()
    assert said == ["dreamgym record: r: the recorder failed with ZeroDivisionError"]
    assert summary.losses == {"the recorder failed with ZeroDivisionError": 1}
    assert texts(tmp_path) == ["good"]
    assert "poison" not in (tmp_path / "r.jsonl").read_text()


def test_messages_that_are_not_written_in_time_are_a_loss_in_the_summary(tmp_path: Path) -> None:
    begun, released = threading.Event(), threading.Event()

    class Slow(Redactor):
        def value(self, value: JsonValue) -> JsonValue:
            begun.set()
            released.wait(60)
            return super().value(value)

    on = Tape(tmp_path, Slow(RedactionRules(), key=b"0" * 32, remembers=True))
    put(on, "one", "two")
    begun.wait(60)
    (_, answer), two = exchange("one"), exchange("two")  # the first request is taken, and its answer is being written
    size = sum(len(heard.payload) for heard in (answer, *two))
    summary = on.close(limit_s=0)
    released.set()
    assert summary.text.endswith(f"lost 1: 1 × {size} bytes of messages were not written within 0 s")


def test_a_secret_is_redacted_in_every_run_and_on_stderr_once_it_is_known(tmp_path: Path) -> None:
    said: list[str] = []
    on = tape(tmp_path, said)
    on.put(Known({"Tr0ub4dor": "x-api-key"}))
    put(on, "it is Tr0ub4dor")
    on.put(StderrLine("warning: Tr0ub4dor is weak"))
    on.close()
    (text,) = texts(tmp_path)
    assert "Tr0ub4dor" not in str(text)
    assert said == [str(text).replace("it is", "warning:") + " is weak"]


def test_a_pattern_of_the_user_does_not_take_the_time_of_a_call_for_an_account(tmp_path: Path) -> None:
    rules = RedactionRules(patterns={"account": r"\b\d{6,10}\b"})
    on = Tape(tmp_path, Redactor(rules, key=b"0" * 32, remembers=True))
    put(on, "account 1712345678")
    on.close()
    (line,) = [json.loads(one) for one in (tmp_path / "r.jsonl").read_text().splitlines() if '"exchange"' in one]
    assert line["ended_at"] >= line["started_at"] > 0
    assert "1712345678" not in str(line)


def test_a_closed_stderr_does_not_end_the_recording(tmp_path: Path) -> None:
    def closed(line: str) -> None:
        raise BrokenPipeError

    on = Tape(tmp_path, Redactor(RedactionRules(), key=b"0" * 32, remembers=True), closed)
    on.put(StderrLine("ready"))
    put(on, "one")
    on.put(StderrLine("a warning", from_server=True))
    on.lose("r", "it was too long")
    put(on, "two")
    summary = on.close()
    assert (summary.calls["r"], summary.losses) == (2, {"it was too long": 1})
    assert texts(tmp_path) == ["one", "two"]


def test_a_server_that_writes_to_stderr_faster_than_it_can_be_printed_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "MAX_WAITING_STDERR", 10_000)
    released, said = threading.Event(), list[str]()

    def slowly(line: str) -> None:
        released.wait(20)
        said.append(line)

    on = Tape(tmp_path, Redactor(RedactionRules(), key=b"0" * 32, remembers=True), slowly)
    stream = io.BytesIO(b"debug\n" * 1000)
    reader = threading.Thread(target=say_all, args=(stream, on))
    reader.start()
    reader.join(0.2)
    assert on.is_behind()
    assert stream.tell() < 1000
    released.set()
    reader.join(20)
    on.close()
    assert said == ["server | debug"] * 1000


def test_a_line_of_stderr_without_an_end_does_not_fill_the_memory(tmp_path: Path) -> None:
    said: list[str] = []
    on = tape(tmp_path, said)
    say_all(io.BytesIO(b"begins\n" + b"x" * (2 * MAX_STDERR_LINE_BYTES + 9) + b"\ngoes on\n"), on)
    on.close()
    assert said == ["server | begins", f"server | {TOO_LONG_LINE}", "server | goes on"]


def test_a_value_of_a_later_header_is_removed_from_earlier_lines(tmp_path: Path) -> None:
    put(on := tape(tmp_path, []), "your session is Zx9kLmnop1qq")
    on.put(Known({"Zx9kLmnop1qq": "set-cookie"}))
    put(on, "and again Zx9kLmnop1qq")
    on.close()
    first, second = map(str, texts(tmp_path))
    assert "Zx9kLmnop1qq" not in first + second
    assert first.removeprefix("your session is ") == second.removeprefix("and again ")


SECRET = 'Grüße&12"x/y'
SPELLED = {
    "plain": SECRET,
    "url": quote(SECRET, safe=""),
    "html": html.escape(SECRET),
    "html in numbers": SECRET.replace("&", "&#38;"),
    "base64": base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "hexadecimal": SECRET.encode().hex(),
    "JSON": json.dumps({"a": SECRET}),
}


@pytest.mark.parametrize("spelling", SPELLED)
def test_a_secret_that_a_later_header_shows_is_removed_from_earlier_lines_in_every_spelling(
    tmp_path: Path, spelling: str
) -> None:
    put(on := tape(tmp_path, []), f"see {SPELLED[spelling]} here")
    on.put(Known({SECRET: "set-cookie"}))
    on.close()
    (text,) = texts(tmp_path)
    assert SPELLED[spelling] not in str(text)


def test_a_secret_with_small_hexadecimal_digits_in_an_earlier_url_is_removed(tmp_path: Path) -> None:
    put(on := tape(tmp_path, []), "see https://h/x?q=pa%2fss%2bword12xy here")
    on.put(Known({"pa/ss+word12xy": "set-cookie"}))
    on.close()
    assert "word12xy" not in str(texts(tmp_path))


def test_a_server_that_sets_a_new_cookie_with_each_response_is_recorded_to_the_end(tmp_path: Path) -> None:
    said: list[str] = []
    on = tape(tmp_path, said)
    on.put(Known({"Tr0ub4dor": "authorization"}))
    for number in range(1500):
        on.put(Known({"Tr0ub4dor": "authorization"}))
        on.put(Known({f"{number:04}" + "aB3dE5fG7hI9" * 12: "set-cookie"}))
    put(on, f"the cookie {number:04}" + "aB3dE5fG7hI9" * 12 + " and Tr0ub4dor")
    on.close()
    (text,) = texts(tmp_path)
    assert (said, str(text).count("REDACTED-")) == ([], 2)


def test_text_with_unusual_ends_of_lines_is_one_line_for_every_reader(tmp_path: Path) -> None:
    odd = "a\u2028b\u2029c\x85d\re\x0bf\x1cg"
    put(on := tape(tmp_path, []), odd, "next")
    on.close()
    read = read_jsonl(tmp_path / "r.jsonl", Exchange)
    assert [event.result for event in read] == [{"text": odd}, {"text": "next"}]


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path: Path) -> None:
    said: list[str] = []
    put(on := tape(tmp_path, said), "\ud83d", "cut emoji \ud83d here", '{"password": "hunter2\ud83d"}', "next")
    on.close()
    short, long, secret, last = texts(tmp_path)
    assert (short, long, last, said) == ("?", "cut emoji ? here", "next", [])
    assert "hunter2" not in str(secret)


def test_all_runs_are_written_even_if_there_are_more_than_open_files_allowed(tmp_path: Path) -> None:
    on = tape(tmp_path, [])
    for _ in range(2):
        for number in range(100):
            for heard in exchange("x", run=f"r-{number}"):
                on.put(heard)
    summary = on.close()
    assert summary.calls.total() == 200
    assert {len(read_jsonl(tmp_path / f"r-{number}.jsonl", Exchange)) for number in range(100)} == {2}
    assert not [held for held in Path("/proc/self/fd").iterdir() if held.resolve().is_relative_to(tmp_path)]


def test_only_their_owner_can_read_recordings(tmp_path: Path) -> None:
    append_event(tmp_path, {"kind": "note", "run": "r", "task": "t", "at": 1.0})
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o077 == 0


def test_a_call_without_an_answer_at_the_end_is_a_loss(tmp_path: Path) -> None:
    on = tape(tmp_path, [])
    on.put(next(exchange("never answered")))
    on.close()
    on.close()
    (lost,) = events(tmp_path, "r")
    assert isinstance(lost, Loss)
    assert lost.reason == "tools/call 'echo' has no answer: the recording was ended"


def test_a_link_in_the_place_of_a_recording_is_not_followed(tmp_path: Path) -> None:
    said: list[str] = []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("theirs\n")
    (tmp_path / "r.jsonl").symlink_to(elsewhere)
    put(one := tape(tmp_path, said), "one")
    one.close()
    assert elsewhere.read_text() == "theirs\n"
    assert one.summary.losses.total() == 1
    assert "cannot write to" in said[0]


def test_a_secret_that_a_name_shows_later_is_removed_from_earlier_lines(tmp_path: Path) -> None:
    put(one := tape(tmp_path, []), "he typed hunter42x")
    assert one.flush()
    assert "hunter42x" in (tmp_path / "r.jsonl").read_text()
    for heard in exchange('{"password": "hunter42x"}', run="other"):
        one.put(heard)
    assert one.flush()
    append_event(tmp_path, {"kind": "note", "run": "r", "answer": "1", "at": 2.0})
    put(one, "and more")
    one.close()
    written = (tmp_path / "r.jsonl").read_text()
    assert "hunter42x" not in written
    assert "he typed REDACTED-PASSWORD-" in written
    assert [event.model_dump()["kind"] for event in events(tmp_path, "r")] == ["exchange", "note", "exchange"]
    assert (tmp_path / "r.jsonl").stat().st_mode & 0o777 == 0o600


def test_a_run_whose_name_holds_a_secret_is_written_under_a_redacted_name(tmp_path: Path) -> None:
    token = "ghp_" + "A1b2C3d4E5" * 3 + "f6G7h8"
    said: list[str] = []
    one = tape(tmp_path, said)
    for heard in exchange("x", run=f"run-{token}"):
        one.put(heard)
    one.lose(f"run-{token}", "was lost")
    one.close()
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("run-REDACTED-TOKEN-")
    assert token not in file.read_text() + "".join(said)


def test_a_private_key_on_stderr_is_redacted_as_one_value(tmp_path: Path) -> None:
    said: list[str] = []
    one = tape(tmp_path, said)
    for line in (
        "before",
        "-----BEGIN PRIVATE KEY-----",
        "MIIEowIBAAKCAQEA",
        "q83vEjRW",
        "-----END PRIVATE KEY-----",
        "after",
    ):
        one.put(StderrLine(line, from_server=True))
    one.close()
    assert (said[0], said[-1], len(said)) == ("server | before", "server | after", 3)
    assert "MIIE" not in said[1]
    assert "q83v" not in said[1]
