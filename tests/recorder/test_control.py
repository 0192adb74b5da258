"""The control API takes what the traffic does not contain, and only from authorized callers."""

from __future__ import annotations

import json
from io import BytesIO
from pathlib import Path

import pytest
from dreamgym_server.connections import MAX_BODY_BYTES
from recorder_stage import ODD, call, http_odd, recording

from dreamgym.recordings.log import Note

pytestmark = pytest.mark.anyio


async def test_task_answer_and_success_are_noted_and_the_folder_is_built_when_the_run_is_finished(
    tmp_path: Path,
) -> None:
    built: list[int] = []
    async with recording(ODD, tmp_path, build=lambda: built.append(1)) as recorder:
        control = f"{recorder.url}/record/r"
        async with recorder.http.post(control, json={"task": "Count to one.", "task_id": "t-1"}) as response:
            described = await response.json()
        await recorder.client("r").shake_hands()
        await recorder.client("r").ask(call("count", 1))
        assert built == []
        async with recorder.http.post(f"{control}/finish", json={"answer": "One.", "success": True}):
            pass
        async with recorder.http.get(control) as response:
            state = await response.json()
    assert described["mcp_url"] == f"{recorder.url}/record/r/mcp"
    assert state == {"run": "r", "mcp_url": described["mcp_url"], "calls": 1, "finished": True}
    assert built == [1]
    notes = [
        event.model_dump(exclude={"at"}, exclude_defaults=True) for event in recorder.events("r") if type(event) is Note
    ]
    assert notes == [
        {"run": "r", "task": "Count to one.", "task_id": "t-1"},
        {"run": "r", "answer": "One.", "success": True},
    ]


async def test_a_body_with_an_unknown_field_is_refused_and_the_field_is_named(tmp_path: Path) -> None:
    async with (
        recording(ODD, tmp_path) as recorder,
        recorder.http.post(f"{recorder.url}/record/r", json={"tusk": "x"}) as response,
    ):
        assert response.status == 400
        assert "tusk" in (await response.json())["error"]
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize("path", ["r", "r/finish"])
async def test_a_label_of_more_than_a_megabyte_is_refused(path: str, tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        label = BytesIO(json.dumps({"answer": "a" * MAX_BODY_BYTES}).encode())
        async with recorder.http.post(f"{recorder.url}/record/{path}", data=label) as response:
            assert (response.status, await response.json()) == (
                413,
                {"error": f"the request body exceeds {MAX_BODY_BYTES} bytes"},
            )
    assert not (tmp_path / "r.jsonl").exists()


async def test_a_label_that_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    folder = tmp_path / "recordings"
    async with recording(ODD, folder) as recorder:
        folder.write_text("a file in the place of the folder")
        control = f"{recorder.url}/record/r"
        async with recorder.http.post(f"{control}/finish", json={"success": True}) as response:
            refused = response.status, (await response.json())["error"]
        folder.unlink()
        async with recorder.http.get(control) as response:
            state = await response.json()
        async with recorder.http.post(f"{control}/finish", json={"success": True}) as response:
            assert (response.status, (await response.json())["finished"]) == (200, True)
    assert refused == (503, "the label of run 'r' is not on disk: the recorder's stderr says why; send it again")
    assert state["finished"] is False
    assert [event.success for event in recorder.events("r") if type(event) is Note] == [True]


async def test_a_foreign_host_or_origin_is_refused_by_mcp_and_control_urls(tmp_path: Path) -> None:
    async with recording(ODD, tmp_path) as recorder:
        statuses = [
            (await recorder.client("r", **{name: value}).post(call("count", 1)))[0]
            for name, value in (("host", "evil.example"), ("origin", "http://evil.example"))
        ]
        async with recorder.http.get(f"{recorder.url}/record", headers={"host": "evil.example"}) as response:
            statuses.append(response.status)
    assert statuses == [421, 403, 421]


async def test_mcp_and_control_urls_require_the_token_and_the_server_never_gets_it(tmp_path: Path) -> None:
    async with http_odd() as url, recording(f"{url}/mcp", tmp_path, token="of-the-recorder") as recorder:
        without = [
            (await recorder.client("r").post(call("echo", 1)))[0],
            (await recorder.http.post(f"{recorder.url}/record/r/finish")).status,
        ]
        client = recorder.client("r", authorization="Bearer of-the-recorder", **{"x-mine": "1"})
        _, body = await client.post(call("echo", 1, text="hello"))
    assert without == [401, 401]
    received = json.loads(body)["result"]
    assert "hello" in received["body"]
    assert received["headers"]["x-mine"] == "1"
    assert "authorization" not in received["headers"]
    assert "of-the-recorder" not in json.dumps(received)
    assert "of-the-recorder" not in (tmp_path / "r.jsonl").read_text()


async def test_a_header_given_to_the_recorder_reaches_the_server_instead_of_the_agents_header(tmp_path: Path) -> None:
    async with (
        recording(ODD, tmp_path / "behind", token="of-the-server") as behind,
        recording(
            f"{behind.url}/record/b/mcp", tmp_path / "front", headers={"Authorization": "Bearer of-the-server"}
        ) as front,
    ):
        answer = await front.client("r", authorization="Bearer of-the-agent").shake_hands()
    assert answer["result"]["serverInfo"]["name"] == "odd"
