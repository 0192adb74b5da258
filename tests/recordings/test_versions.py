"""Recordings of several versions of a server: the newest counts, changes are reported, and versions are not mixed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folder_stage import FIND, GET, SERVER, Tape, crm, trajectories
from growth import grows_linearly

from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.recordings.folder import build_folder
from dreamgym.recordings.folder.listings import Listing, ToolLists
from dreamgym.recordings.folder.runs import Run
from dreamgym.recordings.folder.versions import outdated
from dreamgym.recordings.log import Exchange
from dreamgym.replay.buffer import Retrieval
from dreamgym.replay.postgres import open_store
from dreamgym.runs.seed import seed
from dreamgym.types import JsonObject, StepResult, ToolCall

NEWER: JsonObject = {**SERVER, "serverInfo": {"name": "crm-server", "version": "2"}}
BY_NUMBER: JsonObject = {
    "name": "get",
    "inputSchema": {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
}


def answers(tape: Tape, *said: JsonObject) -> Tape:
    """Add one call of `get` to the run for each answer."""
    for number, answer in enumerate(said):
        tape.call("get", json.dumps(answer), id=f"x{number}")
    return tape


def test_an_episode_with_a_call_that_the_newest_schema_forbids_is_left_out_and_reported(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "old", at=10).hello(GET, FIND).call("get", "Ada", id="x1")
    Tape(folder, "found", at=50).hello(GET, FIND).call("find", "x1")
    Tape(folder, "new", at=100).hello(BY_NUMBER, FIND, server=NEWER).call("get", "Ada", id=1)
    assert build_folder(folder).messages == (
        "recorded with another tool list than the newest one: old, found; other schema: 'get'; a run whose calls all "
        "fit the newest list is kept",
        "old: left out, because the server has changed: 'get' now refuses the arguments of a recorded call",
    )
    assert list(trajectories(folder)) == ["crm-found", "crm-new"]


def test_an_episode_with_a_refusal_of_a_call_that_the_newest_schema_allows_is_left_out(
    tmp_path: Path,
) -> None:
    folder = crm(tmp_path)
    Tape(folder, "old", at=10).hello(GET).call("get", "id must be a text", is_error=True, id=1)
    Tape(folder, "new", at=100).hello(BY_NUMBER, server=NEWER).call("get", "Ada", id=1)
    assert build_folder(folder).messages[1:] == (
        "old: left out, because the server has changed: 'get' now accepts the arguments of a recorded call",
    )
    assert list(trajectories(folder)) == ["crm-new"]


def test_an_episode_with_an_answer_that_violates_the_newest_output_schema_is_left_out(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    named: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    Tape(folder, "text", at=10).hello(GET).call("get", "Ada", id="x1")
    answers(Tape(folder, "json", at=50).hello(GET), {"name": "Ada"})
    answers(Tape(folder, "new", at=100).hello({**GET, "outputSchema": named}), {"name": "Ada"})
    assert build_folder(folder).messages[1:] == (
        "text: left out, because the server has changed: an answer of 'get' does not fit its current output schema",
    )
    assert list(trajectories(folder)) == ["crm-json", "crm-new"]


def test_if_the_server_reports_a_new_version_only_the_newest_answers_of_a_changed_tool_are_kept(
    tmp_path: Path,
) -> None:
    folder = crm(tmp_path)
    answers(Tape(folder, "old", at=10).hello(), {"id": "x0", "price": 1}, {"id": "x1", "price": 2, "note": "cheap"})
    Tape(folder, "found", at=50).hello().call("find", "x1")
    answers(Tape(folder, "new", at=100).hello(server=NEWER), {"id": "x0", "cents": 100}, {"id": "x1", "cents": 200})
    assert build_folder(folder).messages == (
        "old: left out, because the newest version answers 'get' differently: new 'cents'; no longer 'price'",
    )
    assert list(trajectories(folder)) == ["crm-found", "crm-new"]


def test_a_field_that_only_some_answers_have_is_not_a_sign_of_another_version(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    answers(Tape(folder, "old", at=10).hello(), {"id": "x0"}, {"id": "x1", "note": "cheap"})
    answers(Tape(folder, "new", at=100).hello(server=NEWER), {"id": "x0"}, {"id": "x1", "paid": True})
    assert build_folder(folder).messages == ()
    assert len(trajectories(folder)) == 2


def test_if_the_server_reports_no_new_version_a_changed_answer_is_reported_and_all_is_kept(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    for number in range(3):
        answers(Tape(folder, f"a{number}", at=10 + 10 * number).hello(), {"orders": [{"id": "x", "price": 1}]})
    for number in range(3):
        answers(Tape(folder, f"b{number}", at=100 + 10 * number).hello(), {"orders": [{"id": "x", "cents": 100}]})
    assert build_folder(folder).messages == (
        "'get' answers differently since b0: new 'orders.[].cents'; no longer 'orders.[].price'. The server reports no "
        "new version, so all recordings are kept: if it has changed, delete the older ones and forget them "
        "(`dreamgym db forget`)",
    )
    assert len(trajectories(folder)) == 6


@pytest.mark.anyio
async def test_stored_episodes_of_an_older_version_are_forgotten_when_the_newest_is_recorded(
    tmp_path: Path, dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = crm(tmp_path)
    answers(Tape(folder, "old", at=10).hello(), {"price": 1}, {"price": 2})
    Tape(folder, "found", at=50).hello().call("find", "x1")
    await seed(str(folder), [folder], dsn=dsn)
    (folder / "recordings" / "found.jsonl").unlink()
    answers(Tape(folder, "new", at=100).hello(server=NEWER), {"cents": 100}, {"cents": 200})
    capsys.readouterr()
    await seed(str(folder), [folder], dsn=dsn)
    assert capsys.readouterr().err.splitlines()[0] == (
        f"{folder}: old: left out, because the newest version answers 'get' differently: new 'cents'; no longer 'price'"
    )
    store = await open_store(dsn, load_encoder(None))
    try:
        stored = {one.id for one in await store.buffer.trajectories("crm")}
        assert stored == {"crm-found", "crm-new"}, "a recording that was deleted stays stored until it is forgotten"
        asked = Retrieval(env="crm", state="", action=ToolCall(name="get", arguments={"id": "x0"}), k=9)
        shown = {one.transition.result.observation for one in await store.buffer.nearest(asked)}
        assert shown == {'{"cents": 100}'}
    finally:
        await store.close()


def test_comparing_answers_takes_time_in_proportion_to_them() -> None:
    definitions: JsonObject = {"tools": [GET]}

    def compare(text: str) -> None:
        calls = {run: [(ToolCall(name="get"), StepResult(observation=text), asked)] * 2 for run in ("old", "new")}
        seen = (Listing((definitions,), True, 1.0),)
        lists = ToolLists((definitions,), {"old": (Listing(({"tools": [FIND]},), True, 0.0),), "new": seen})
        assert outdated([Run("old"), Run("new")], calls, lists, print) == frozenset()

    asked = Exchange(run="r", session="s", method="tools/call", started_at=0.0, ended_at=0.0)
    assert grows_linearly(compare, lambda size: json.dumps({"k" * size: {str(n): n for n in range(size // 8)}}))


def test_answers_that_each_have_fields_of_their_own_take_time_in_proportion_to_them() -> None:
    definitions: JsonObject = {"tools": [GET]}
    lists = ToolLists((definitions,), {"r": (Listing((definitions,), True, 0.0),)})
    asked = Exchange(run="r", session="s", method="tools/call", started_at=0.0, ended_at=0.0)

    def compare(text: str) -> None:
        answers = [json.dumps({f"{id}-{n}": n for n in range(100)}) for id in text.split()]
        calls = {"r": [(ToolCall(name="get"), StepResult(observation=answer), asked) for answer in answers]}
        assert outdated([Run("r")], calls, lists, print) == frozenset()

    assert grows_linearly(compare, lambda size: " ".join(f"x{number}" for number in range(size // 64)))


def test_clients_of_two_protocol_revisions_see_one_version_of_the_server(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    answers(Tape(folder, "older", at=10).hello(GET), {"name": "Ada"}, {"name": "Bo"})
    newer = Tape(folder, "newer", at=100).exchange("initialize", {}, result=SERVER)
    newer.exchange("tools/list", {}, result={"tools": [GET], "resultType": "complete", "ttlMs": 0})
    answers(newer, {"name": "Cy", "phone": 1}, {"name": "Di", "phone": 2})
    assert build_folder(folder).messages == ()
    assert list(trajectories(folder)) == ["crm-older", "crm-newer"]


def test_a_new_version_with_the_same_tools_presents_itself_as_the_new_one(tmp_path: Path) -> None:
    folder = crm(tmp_path)
    Tape(folder, "old", at=10).hello(GET).call("get", "Ada", id="x1")
    Tape(folder, "new", at=100).hello(GET, server={**NEWER, "instructions": "Ids are texts."}).call(
        "get", "Bo", id="x2"
    )
    Tape(folder, "silent", at=200).exchange("tools/list", {}, result={"tools": [GET]}).call("get", "Cy", id="x3")
    assert build_folder(folder).messages == ()
    assert EnvironmentSpec.load(folder).mirror.initialize == {**NEWER, "instructions": "Ids are texts."}
