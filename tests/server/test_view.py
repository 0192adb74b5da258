"""The HTTP API of the page: access, lists, steps, comparisons of dream and reality, and incomplete searches."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from dreamgym_server.app import build_view
from dreamgym_server.doors.view import files
from dreamgym_server.running import running
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.hand import CallWanted, ForkWanted, Hand
from dreamgym_server.view.library import Library
from hypothesis import given
from hypothesis import strategies as st
from server_stage import Stage

from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.report import PredictedStep
from dreamgym.evaluation.report.behind import FILE, StepBehind, cell
from dreamgym.replay.keys import transition_id
from dreamgym.replay.listing import EpisodeFilter, EpisodeSummary, Outcome
from dreamgym.replay.postgres import Store
from dreamgym.replay.postgres.listing import StoredEpisodes
from dreamgym.types import (
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

pytestmark = pytest.mark.anyio
TOKEN = "the token of this page"


def episode(
    name: str,
    answers: list[str],
    *,
    source: Source = Source.REAL,
    task: str = "t1",
    env: str = "crm",
    states: list[str] | None = None,
    **fields: Any,
) -> Trajectory:
    """Return an episode that calls `go` with 1, 2, … and gets these answers. The last one ends it."""
    seen = ["start", *answers] if states is None else states
    steps = [
        Transition(
            state=seen[number],
            action=ToolCall(name="go", arguments={"to": number + 1}),
            result=StepResult(
                observation=answer,
                terminated=number == len(answers) - 1,
                reward=float(number == len(answers) - 1),
            ),
            next_state=seen[number + 1],
            provenance=Provenance(tier=Tier.REAL if source is Source.REAL else Tier.MODEL),
        )
        for number, answer in enumerate(answers)
    ]
    return Trajectory.model_validate(
        {
            "id": name,
            "task": Task(id=task, env=env, instruction=f"Do {task}."),
            "transitions": tuple(steps),
            "source": source,
            "stop_reason": StopReason.TERMINATED,
            **fields,
        }
    )


@asynccontextmanager
async def page(library: Library) -> AsyncIterator[httpx2.AsyncClient]:
    """Serve the page. Yields a client that has its token."""
    async with (
        running(build_view(Answers(library), TOKEN)) as url,
        httpx2.AsyncClient(base_url=f"{url}/view/api/", headers={"Authorization": f"Bearer {TOKEN}"}) as http,
    ):
        yield http


async def asked(http: httpx2.AsyncClient, question: str, **given: object) -> Any:
    answer = await http.get(question, params={key: str(value) for key, value in given.items()})
    assert answer.status_code == 200, answer.text
    return answer.json()


def in_folder(folder: Path, *episodes: Trajectory, name: str = "episodes.jsonl") -> Library:
    (folder / name).write_text("".join(one.model_dump_json() + "\n" for one in episodes), encoding="utf-8")
    return Library(folder=RunFolder(folder))


async def test_the_address_for_a_browser_leads_to_the_page_with_its_token_once(tmp_path: Path) -> None:
    answers = Answers(Library(folder=RunFolder(tmp_path)))
    async with running(build_view(answers, TOKEN, "code")) as url, httpx2.AsyncClient(base_url=url) as http:
        guessed = await http.get("/view/open/other")
        first, second = [await http.get("/view/open/code") for _ in range(2)]
    assert (first.status_code, first.headers["location"]) == (307, f"/view/#token={quote(TOKEN)}")
    assert first.headers["cache-control"] == "no-store"
    assert (guessed.status_code, second.status_code) == (404, 404)
    assert "was opened before: use the address that `dreamgym view` printed" in second.json()["error"]
    assert quote(TOKEN) not in f"{guessed.headers} {second.headers}"


async def test_recordings_need_the_token_and_the_page_itself_does_not(tmp_path: Path) -> None:
    async with page(in_folder(tmp_path, episode("a", ["one"]))) as http:
        base = str(http.base_url).removesuffix("api/")
        async with httpx2.AsyncClient() as stranger:
            index = await stranger.get(base)
            refused = [
                (await stranger.get(f"{base}api/{name}", headers=headers)).status_code
                for name in ("about", "episodes", "steps", "events")
                for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={TOKEN}"})
            ]
            elsewhere = await stranger.get(f"{base}api/about", headers={"Host": "example.org"})
    assert index.status_code == 200
    assert set(refused) == {401}
    assert elsewhere.status_code == 421


async def test_nothing_runs_in_the_page_but_its_own_files(tmp_path: Path) -> None:
    async with page(in_folder(tmp_path)) as http:
        index = await http.get("../")
        missing = await http.get("../../view/../secrets.toml")
    policy = index.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert index.headers["x-content-type-options"] == "nosniff"
    assert missing.status_code == 404
    for name, content in files().items():
        text = content.decode()
        assert "innerHTML" not in text, name
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", ""), name
        assert "https://" not in text.replace("/*! https://github.com/leeoniya/uPlot", ""), name
    assert b"<style" not in files()["index.html"]
    assert files()["index.html"].count(b"<script src=") + files()["index.html"].count(b"<script type=") == 2
    assert files()["index.html"].count(b"<script") == 2


async def test_the_whole_page_is_small() -> None:
    assert sum(map(len, files().values())) < 300_000


async def test_a_server_shows_episodes_only_with_its_token(stage: Stage, store: Store) -> None:
    await store.buffer.add([episode("kept", ["one"])])
    library = Library(store=StoredEpisodes(store.database))
    async with stage.serve(token="secret", answers=Answers(library)) as (_, http):
        bare = await http.get("/view/api/episodes")
        known = await http.get("/view/api/episodes", headers={"Authorization": "Bearer secret"})
        index = await http.get("/view/")
    assert (bare.status_code, known.status_code, index.status_code) == (401, 200, 200)
    assert [one["id"] for one in known.json()["episodes"]] == ["kept"]


async def test_an_episode_that_a_trainer_played_in_its_own_process_is_listed_with_its_update(store: Store) -> None:
    run, other = "ab" * 8, "cd" * 8
    names = f"{run}-7-0", f"{run}-7-1", f"{run}-7-10", f"{run}-8-0", f"{other}-7-0"
    played = [f"{name}-{str(number) * 32}" for number, name in enumerate(names)]
    await store.buffer.add([episode(name, ["one"], source=Source.SYNTHETIC) for name in [*played, f"{run}-recorded"]])
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        of_update = await asked(http, "episodes", group=f"{run}-7-")
        of_run = await asked(http, "episodes", group=f"{run}-")
        of_group = await asked(http, "episodes", group=f"{run}-7-1")
        of_none = [await asked(http, "episodes", group=name) for name in (run, f"{run}-7")]
    assert {one["id"]: one["group"] for one in of_update["episodes"]} == {
        played[0]: f"{run}-7-0",
        played[1]: f"{run}-7-1",
        played[2]: f"{run}-7-10",
    }
    assert {one["id"] for one in of_run["episodes"]} == set(played[:4])
    assert [one["id"] for one in of_group["episodes"]] == [played[1]], "not those of the group 7-10 too"
    assert [one["episodes"] for one in of_none] == [[], []], "the start of a name ends with - or /"


async def test_a_page_without_the_store_goes_on_with_its_folder_and_says_why(tmp_path: Path) -> None:
    library = in_folder(tmp_path, episode("a", ["one"]))
    shown = Library(folder=library.folder, absent="the store is not shown: start it")
    async with page(shown) as http:
        about = await asked(http, "about")
        refused = await http.get("episodes", params={"place": "store"})
    assert about["absent"] == "the store is not shown: start it"
    assert about["folder"]["files"] == [{"place": "episodes.jsonl", "episodes": 1, "broken": 0}]
    assert about["folder"]["environments"] == ["crm"]
    assert (refused.status_code, refused.json()) == (503, {"error": "the store is not shown: start it"})


async def test_an_empty_store_is_an_empty_list(store: Store) -> None:
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        found = await asked(http, "episodes")
        pairs = await asked(http, "pairs")
        unknown = await http.get("episode", params={"id": "nobody"})
    assert found == {"episodes": [], "matching": 0, "looked": 0, "next": None}
    assert pairs == {"pairs": [], "total": 0}
    assert unknown.status_code == 404
    assert "unknown episode 'nobody'" in unknown.json()["error"]


@pytest.fixture
def many() -> list[Trajectory]:
    """Twelve episodes: every third one dreamed, every fourth one without success."""
    return [
        episode(
            f"e{number:02}",
            ["one", "two"],
            source=Source.SYNTHETIC if number % 3 == 0 else Source.REAL,
            task=f"t{number % 2}",
            final_reward=0.0 if number % 4 == 0 else None,
            policy_version=number if number % 3 == 0 else None,
            stop_reason=StopReason.ERROR if number == 11 else StopReason.TERMINATED,
            error="the endpoint is away" if number == 11 else None,
        )
        for number in range(12)
    ]


@pytest.mark.parametrize("place", ["store", "folder"])
@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        ({}, set(range(12))),
        ({"source": "synthetic"}, {0, 3, 6, 9}),
        ({"task": "t1"}, {1, 3, 5, 7, 9, 11}),
        ({"policy_version": 6}, {6}),
        ({"text": "E1"}, {10, 11}),
        ({"text": "do T0"}, {0, 2, 4, 6, 8, 10}),
        ({"success": "false"}, {0, 4, 8}),
        ({"tier": "model"}, {0, 3, 6, 9}),
        ({"tier": "model", "success": "true"}, {3, 6, 9}),
        ({"state": "running"}, set()),
        ({"state": "failed"}, {11}),
        ({"state": "over"}, set(range(11))),
        ({"env": "another"}, set()),
    ],
)
async def test_filters_choose_the_same_episodes_in_a_store_and_in_a_folder(
    store: Store, tmp_path: Path, many: list[Trajectory], place: str, chosen: dict[str, str], expected: set[int]
) -> None:
    await store.buffer.add(many)
    library = Library(store=StoredEpisodes(store.database), folder=in_folder(tmp_path, *many).folder)
    async with page(library) as http:
        found: list[str] = []
        after, asked_for = "", 0
        while True:
            part = await asked(http, "episodes", place=place, limit=5, after=after, **chosen)
            found += [one["id"] for one in part["episodes"]]
            asked_for += 1
            after = part["next"]
            if after is None:
                break
    assert asked_for < 6
    assert sorted(found) == sorted(f"e{number:02}" for number in expected)
    if not {"success", "tier"} & chosen.keys() or place == "folder":
        assert part["matching"] == len(expected)


async def test_a_policy_version_of_any_size_hides_no_other_episode_from_a_filter(
    store: Store, many: list[Trajectory]
) -> None:
    await store.buffer.add([*many, episode("huge", ["one"], policy_version=10**11)])
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        listed = [await asked(http, "episodes", policy_version=version) for version in (6, 10**11)]
        steps = await asked(http, "search", env="crm", policy_version=10**11)
    assert [[one["id"] for one in part["episodes"]] for part in listed] == [["e06"], ["huge"]]
    assert {one["episode"] for one in steps["recorded"]} == {"huge"}


async def test_a_filter_that_reads_steps_returns_how_many_episodes_it_looked_through(
    store: Store, many: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.listing.LOOKED", 4)
    monkeypatch.setattr("dreamgym.replay.postgres.listing.WINDOW", 2)
    await store.buffer.add(many)
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        first = await asked(http, "episodes", tier="views")
        found: list[dict[str, Any]] = []
        after, pages = "", 0
        while after is not None:
            part = await asked(http, "episodes", tier="model", after=after)
            found, after, pages = found + part["episodes"], part["next"], pages + 1
    assert (first["episodes"], first["matching"], first["looked"]) == ([], None, 4)
    assert first["next"] is not None
    assert sorted(one["id"] for one in found) == ["e00", "e03", "e06", "e09"]
    assert pages > 2


async def test_a_long_list_can_be_read_again_from_its_beginning(
    store: Store, many: list[Trajectory], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.listing.REMEMBERED", 2)
    await store.buffer.add(many)
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        first = await asked(http, "episodes", limit=4)
        await store.buffer.add([episode("new", ["one"])])
        again = await asked(http, "episodes", limit=5)
    assert [one["id"] for one in again["episodes"]] == ["new", *(one["id"] for one in first["episodes"])]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("episodes", {"source": "heaven"}),
        ("episodes", {"after": "nowhere"}),
        ("episodes", {"limit": "0"}),
        ("episodes", {"limit": "-1"}),
        ("episodes", {"policy_version": "new"}),
        ("episodes", {"text": "\x00"}),
        ("episode", {}),
        ("episode", {"id": "\x00"}),
        ("steps", {"id": "e01", "first": "9" * 400}),
        ("step", {"id": "e01", "step": "77"}),
        ("episode", {"id": "e01", "place": "../../etc/passwd"}),
    ],
)
async def test_bad_requests_are_refused_with_an_error_message(
    store: Store, many: list[Trajectory], name: str, given: dict[str, str]
) -> None:
    await store.buffer.add(many)
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        answer = await http.get(name, params=given)
    assert answer.status_code in {400, 404}
    assert len(answer.json()["error"]) > 20


async def test_dream_and_reality_of_one_task_are_paired_and_part_at_the_first_different_answer(
    store: Store, tmp_path: Path
) -> None:
    real = episode("real", ["one", "two", "three", "four"])
    dream = episode("dream", ["one", "two", "tree", "four"], source=Source.SYNTHETIC)
    await store.buffer.add([real, dream, episode("other", ["one"], task="t2")])
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        pairs = await asked(http, "pairs")
        compared = await asked(http, "compare", id="dream", other="real")
        of_dream = await asked(http, "episode", id="dream")
        of_real = await asked(http, "episode", id="real")
    assert [(pair["dream"]["id"], pair["real"]["id"], pair["parts_at"]) for pair in pairs["pairs"]] == [
        ("dream", "real", 3)
    ]
    assert [(pair["same_call"], pair["same_answer"]) for pair in compared["pairs"]] == [
        (True, True),
        (True, True),
        (True, False),
        (True, True),
    ]
    assert (compared["parts_at"], compared["total"], compared["first"]) == (3, 4, 1)
    assert [twin["id"] for twin in of_dream["twins"]] == ["real"]
    assert [twin["id"] for twin in of_real["twins"]] == ["dream"]


@pytest.mark.parametrize(
    ("dream", "real", "told"),
    [
        ({}, {}, (None, False, None, True)),
        ({"final_reward": 1.0}, {"final_reward": 0.0}, (None, False, None, False)),
        ({"answer": "42"}, {"answer": "41"}, (None, False, None, False)),
        ({"answers": ["one"], "stop_reason": StopReason.OUT_OF_SUPPORT}, {}, (1, True, None, False)),
        ({"answers": ["one", "two", "three"]}, {"answers": ["one", "two", "three", "four"]}, (3, True, None, True)),
    ],
    ids=["the same", "another verdict", "another final answer", "another end", "an earlier end"],
)
async def test_two_episodes_are_the_same_only_if_they_end_alike(
    tmp_path: Path, dream: dict[str, Any], real: dict[str, Any], told: tuple[int | None, bool, str | None, bool]
) -> None:
    both = [
        episode(name, which.pop("answers", ["one", "two"]), source=source, **which)
        for name, which, source in (("dream", dream, Source.SYNTHETIC), ("real", real, Source.REAL))
    ]
    async with page(in_folder(tmp_path, *both)) as http:
        (pair,) = (await asked(http, "pairs"))["pairs"]
        names = {"place": "episodes.jsonl", "id": "dream", "other_place": "episodes.jsonl", "other": "real"}
        compared = await asked(http, "compare", **names)
    assert (pair["parts_at"], pair["same_call"], pair["over"], pair["same_end"]) == told
    assert (compared["parts_at"], compared["same_end"]) == (told[0], told[3])


async def test_a_dream_that_is_over_first_is_not_blamed_on_the_agents(tmp_path: Path) -> None:
    real = episode("real", ["one", "two", "three"])
    dream = episode("dream", ["one", "two", "three"], source=Source.SYNTHETIC)
    cut = dream.model_copy(update={"transitions": dream.transitions[:2], "stop_reason": StopReason.OUT_OF_SUPPORT})
    async with page(in_folder(tmp_path, cut, real)) as http:
        (pair,) = (await asked(http, "pairs"))["pairs"]
    assert (pair["parts_at"], pair["same_call"], pair["over"]) == (3, False, "dream")


async def test_long_episodes_are_compared_on_the_page_on_which_they_part(tmp_path: Path) -> None:
    answers = [f"answer {number}" for number in range(700)]
    other = [*answers[:432], "another", *answers[433:]]
    library = in_folder(tmp_path, episode("real", answers), episode("dream", other, source=Source.SYNTHETIC))
    async with page(library) as http:
        names = {"place": "episodes.jsonl", "id": "dream", "other_place": "episodes.jsonl", "other": "real"}
        compared = await asked(http, "compare", **names)
        last = await asked(http, "compare", **names, first=601)
        steps = await asked(http, "steps", place="episodes.jsonl", id="dream", first=650)
    assert (compared["parts_at"], compared["first"], compared["total"]) == (433, 401, 700)
    assert [pair["step"] for pair in last["pairs"]] == list(range(601, 701))
    assert [step["step"] for step in steps["steps"]] == list(range(650, 701))


async def test_a_step_shows_what_changed_in_the_state_and_where_its_answer_was_recorded(store: Store) -> None:
    before = json.dumps({"orders": {"1": {"paid": False, "item": "rope"}}})
    after = json.dumps({"orders": {"1": {"paid": True, "item": "rope"}, "2": {"paid": False}}})
    recorded = episode("recorded", ["paid"], states=[before, after])
    neighbour = str(transition_id(recorded.transitions[0]))
    dreamed = episode("dreamed", ["paid"], states=[before, after], source=Source.SYNTHETIC, task="t9")
    told = dreamed.transitions[0].provenance.model_copy(update={"retrieved": (neighbour, "gone"), "confidence": 0.75})
    dreamed = dreamed.model_copy(
        update={"transitions": (dreamed.transitions[0].model_copy(update={"provenance": told, "reasoning": "I saw"}),)}
    )
    await store.buffer.add([recorded, dreamed])
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        (step,) = (await asked(http, "steps", id="dreamed"))["steps"]
        found = await asked(http, "recorded", env="crm", ids=",".join(step["retrieved"]))
    assert step["state"] == {
        "kind": "fields",
        "changed": 2,
        "changes": [
            {"path": "/orders/1/paid", "before": "false", "after": "true"},
            {"path": "/orders/2/paid", "after": "false"},
        ],
    }
    assert (step["reasoning"], step["confidence"], step["tier"]) == ("I saw", 0.75, "model")
    here, gone = found["recorded"]
    assert (here["episode"], here["step"], here["source"]) == ("recorded", 1, "real")
    assert gone == {"id": "gone"}


async def test_arguments_and_changed_fields_are_sent_as_json_text_since_a_browser_rounds_large_numbers(
    tmp_path: Path,
) -> None:
    large, states = 1234567890123456789, ['{"id": 1234567890123456789, "tags": ["é"]}', '{"id": 10.0, "tags": []}']
    one = episode("one", ["done"], states=states)
    (step,) = one.transitions
    call = ToolCall(name="go", arguments={"ids": [large], "note": "é", "text": "x" * 5000})
    one = one.model_copy(update={"transitions": (step.model_copy(update={"action": call}),)})
    async with page(in_folder(tmp_path, one)) as http:
        (shown,) = (await asked(http, "steps", place="episodes.jsonl", id="one"))["steps"]
    assert shown["arguments"]["ids"] == "[1234567890123456789]"
    assert shown["arguments"]["note"] == '"é"'
    assert shown["arguments"]["text"]["characters"] == 5002
    assert shown["state"]["changes"] == [
        {"path": "/id", "before": "1234567890123456789", "after": "10.0"},
        {"path": "/tags", "before": '["é"]', "after": "[]"},
    ]


async def test_the_recording_of_an_answer_is_found_in_another_file_of_the_folder(tmp_path: Path) -> None:
    recorded = episode("recorded", ["one", "two"])
    in_folder(tmp_path, recorded, name="recorded.jsonl")
    library = in_folder(tmp_path, episode("dream", ["one"], source=Source.SYNTHETIC), name="dreamed.jsonl")
    second = str(transition_id(recorded.transitions[1]))
    async with page(library) as http:
        (found,) = (await asked(http, "recorded", env="crm", ids=second))["recorded"]
    assert (found["place"], found["episode"], found["step"]) == ("recorded.jsonl", "recorded", 2)


async def test_an_answer_that_was_also_dreamed_is_found_in_its_recording(tmp_path: Path) -> None:
    recorded = episode("recorded", ["one"])
    in_folder(tmp_path, recorded, name="recorded.jsonl")
    in_folder(tmp_path, episode("before", ["one"], source=Source.SYNTHETIC), name="a.jsonl")
    library = in_folder(tmp_path, episode("after", ["one"], source=Source.SYNTHETIC), name="z.jsonl")
    first = str(transition_id(recorded.transitions[0]))
    async with page(library) as http:
        (found,) = (await asked(http, "recorded", env="crm", ids=first))["recorded"]
    assert (found["episode"], found["source"]) == ("recorded", "real")


async def test_a_long_text_is_cut_with_its_length_and_returned_whole_on_request(tmp_path: Path) -> None:
    async with page(in_folder(tmp_path, episode("a", ["x" * 50_000]))) as http:
        (step,) = (await asked(http, "steps", place="episodes.jsonl", id="a"))["steps"]
        whole = await asked(http, "step", place="episodes.jsonl", id="a", step=1)
    assert step["observation"]["characters"] == 50_000
    assert 1_000 < len(step["observation"]["text"]) < 10_000
    assert whole["observation"] == "x" * 50_000


async def test_a_half_written_run_folder_is_shown_as_far_as_it_is_written_and_then_whole(tmp_path: Path) -> None:
    lines = [episode(name, ["one"]).model_dump_json() + "\n" for name in ("a", "b")]
    file = tmp_path / "run" / "played.jsonl"
    file.parent.mkdir()
    file.write_text(lines[0] + lines[1][:90])
    (tmp_path / "metrics.jsonl").write_text('{"step": 0')
    (tmp_path / "notes.jsonl").write_text('{"a": 1}\n[]\nnonsense\n{"transitions": 3}\n')
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        half = await asked(http, "about")
        file.write_text("".join(lines))
        done = await asked(http, "about")
    assert half["folder"]["files"] == [{"place": "run/played.jsonl", "episodes": 1, "broken": 1}]
    assert done["folder"]["files"] == [{"place": "run/played.jsonl", "episodes": 2, "broken": 0}]


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param(b"[" * 200_000, id="deeply nested"),
        pytest.param(b'"reward":NaN', id="a reward that is not a number"),
        pytest.param(b'"reward":1e999', id="an infinite reward"),
        pytest.param(b'"reward":1.0,"unknown":1', id="a field that this version does not know"),
        pytest.param(b'"reward":1.0,"info":{"a":"\\ud800"}', id="half a surrogate"),
    ],
)
async def test_a_line_that_is_not_an_episode_is_counted_and_hides_no_other(tmp_path: Path, odd: bytes) -> None:
    good = episode("good", ["one"])
    line = episode("odd", ["one"]).model_dump_json().encode()
    line = odd if odd.startswith(b"[") else line.replace(b'"reward":1.0', odd)
    (tmp_path / "e.jsonl").write_bytes(line + b"\n" + good.model_dump_json().encode() + b"\n")
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        about = await asked(http, "about")
        listed = await asked(http, "episodes")
        (found,) = (await asked(http, "recorded", ids=transition_id(good.transitions[0])))["recorded"]
        await asked(http, "pairs")
    assert about["folder"]["files"] == [{"place": "e.jsonl", "episodes": 1, "broken": 1}]
    assert [one["id"] for one in listed["episodes"]] == ["good"]
    assert found["episode"] == "good"


async def test_a_file_of_episodes_of_which_none_can_be_read_is_listed_with_their_number(tmp_path: Path) -> None:
    newer = episode("a", ["one"]).model_dump() | {"unknown": 1}
    (tmp_path / "e.jsonl").write_text(json.dumps(newer, default=str) + "\n")
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        about = await asked(http, "about")
    assert about["folder"]["files"] == [{"place": "e.jsonl", "episodes": 0, "broken": 1}]


async def test_an_episode_that_is_twice_in_a_file_counts_once(tmp_path: Path) -> None:
    async with page(in_folder(tmp_path, episode("a", ["one"]), episode("a", ["one"]))) as http:
        (shown,) = (await asked(http, "episodes", place="folder"))["episodes"]
        of_task = await asked(http, "episodes", place="folder", env=shown["env"], task=shown["task"])
    assert of_task["matching"] == 1


async def test_a_request_that_needs_the_store_is_refused_if_none_is_open(tmp_path: Path) -> None:
    async with page(in_folder(tmp_path, episode("a", ["one"]))) as http:
        answers = [await http.get(question) for question in ("events?id=a", "near?env=crm&tool=go", "tasks?env=crm")]
    assert [one.status_code for one in answers] == [503] * 3
    assert {one.json()["error"] for one in answers} == {"no store is open here: only a run folder is shown"}


async def test_what_is_not_a_regular_file_is_not_opened(tmp_path: Path) -> None:
    in_folder(tmp_path, episode("a", ["one"]))
    os.mkfifo(tmp_path / "pipe.jsonl")
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        about = await asked(http, "about")
    assert [one["place"] for one in about["folder"]["files"]] == ["episodes.jsonl"]


def test_requests_at_once_count_each_episode_once(tmp_path: Path) -> None:
    folder = in_folder(tmp_path, *(episode(f"e{number}", ["one"]) for number in range(500))).folder
    assert folder is not None
    together = threading.Barrier(4)

    def listed(_: int) -> int | None:
        together.wait()
        return folder.page(EpisodeFilter()).matching

    with ThreadPoolExecutor(4) as threads:
        counts = list(threads.map(listed, range(4)))
    assert counts == [500] * 4
    assert folder.page(EpisodeFilter(env="crm", task="t1")).matching == 500


async def test_no_link_leads_out_of_a_run_folder(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "run"
    outside.mkdir()
    folder.mkdir()
    in_folder(outside, episode("secret", ["one"]))
    (folder / "linked").symlink_to(outside)
    (folder / "linked.jsonl").symlink_to(outside / "episodes.jsonl")
    (outside / "run.json").write_text('{"run": "secret"}')
    (outside / "checkpoint-1").mkdir()
    (outside / "checkpoint-1" / "curriculum.json").write_text('{"generated": [], "groups": {}}')
    (folder / "metrics.jsonl").write_text('{"step": 0, "rollout_s": 1.0, "where": "dream"}\n')
    (folder / "run.json").symlink_to(outside / "run.json")
    (folder / "checkpoints").symlink_to(outside)
    async with page(Library(folder=RunFolder(folder))) as http:
        about = await asked(http, "about")
        run = await asked(http, "run", name=".")
    assert (about["folder"]["files"], about["folder"]["curricula"], run["group"]) == ([], [], None)


async def test_a_pipe_beside_a_run_or_a_report_stops_no_answer(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "rollout_s": 1.0, "where": "dream"}\n')
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "checkpoints" / "checkpoint-1").mkdir(parents=True)
    for name in ("run.json", FILE, "checkpoints/checkpoint-1/curriculum.json"):
        os.mkfifo(tmp_path / name)
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        about = await asked(http, "about")
        run = await asked(http, "run", name=".")
        behind = await asked(http, "behind", name=".", setting="", cell="")
    assert (about["folder"]["curricula"], run["group"], behind["steps"]) == ([], None, [])


async def test_the_episodes_of_one_file_of_a_folder_are_listed_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(episode(name, ["one"]).model_dump_json() + "\n")
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        listed = await asked(http, "episodes", place="b.jsonl")
        everything = await asked(http, "episodes", place="folder")
    assert [one["id"] for one in listed["episodes"]] == ["b"]
    assert everything["matching"] == 2


async def test_the_events_of_a_running_episode_follow_its_steps_until_its_end(stage: Stage, store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    library = Library(store=StoredEpisodes(store.database))
    async with stage.serve(answers=Answers(library)) as (url, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        listed = (await http.get("/view/api/episodes", params={"state": "running"})).json()
        changes = asyncio.create_task(heard(url, made["episode"]))
        place = f"/envs/counter/episodes/{made['episode']}"
        for _ in range(2):
            await http.post(
                f"{place}/mcp",
                json={
                    "jsonrpc": "2.0",
                    "id": 1,
                    "method": "tools/call",
                    "params": {"name": "add", "arguments": {"n": 1}},
                },
                headers={"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-06-18"},
            )
        await http.post(f"{place}/finish", json={"success": True})
        told = await changes
        steps = (await http.get("/view/api/steps", params={"id": made["episode"]})).json()["steps"]
    assert [one["id"] for one in listed["episodes"]] == [made["episode"]]
    assert told[-1] == {"steps": 2, "stop_reason": "finished"}
    assert [one["steps"] for one in told] == sorted(one["steps"] for one in told)
    assert [step["observation"] for step in steps] == ["count 1", "count 2"]


async def test_the_watcher_of_a_deleted_episode_is_notified(store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve(answers=Answers(Library(store=StoredEpisodes(store.database)))) as (url, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        changes = asyncio.create_task(heard(url, made["episode"]))
        await http.delete(f"/envs/counter/episodes/{made['episode']}")
        told = await changes
        after = await http.get("/view/api/episode", params={"id": made["episode"]})
    assert told[-1] in ({"gone": True}, {"steps": 0, "stop_reason": "closed"})
    assert after.status_code == 404


async def test_the_watcher_of_an_episode_that_cannot_exist_is_told_once(store: Store) -> None:
    stage = Stage(store.buffer, store.episodes)
    async with stage.serve(answers=Answers(Library(store=StoredEpisodes(store.database)))) as (url, _):
        assert await asyncio.wait_for(heard(url, "\x00"), 20) == [{"gone": True}]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://localhost", "http://"])
def test_a_server_to_write_to_is_refused_at_the_start_if_its_url_cannot_be_one(url: str) -> None:
    with pytest.raises(InvalidInput, match="expected http://HOST:PORT"):
        Hand(url)


async def test_a_call_by_hand_says_why_the_server_refused_it(stage: Stage) -> None:
    async with stage.serve() as (url, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        hand = Hand(url)
        name = str((await hand.fork(ForkWanted(env="counter", id=made["episode"], step=0)))["id"])
        await http.delete(f"/envs/counter/episodes/{name}")
        with pytest.raises(InvalidInput, match="the server refused this: unknown episode"):
            await hand.call(CallWanted(id=name, tool="add", arguments={"n": 1}))
    with pytest.raises(EnvironmentUnavailable, match=r"the server cannot be reached: (?!.*TaskGroup)"):
        await hand.call(CallWanted(id=name, tool="add", arguments={"n": 1}))


async def heard(url: str, name: str) -> list[dict[str, Any]]:
    """Return all events of an episode until it has ended or is deleted."""
    async with (
        httpx2.AsyncClient(timeout=60) as http,
        http.stream("GET", f"{url}/view/api/events", params={"id": name}) as answer,
    ):
        return [json.loads(line.removeprefix("data: ")) async for line in answer.aiter_lines() if line]


@given(
    rewards=st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=3),
    terminated=st.booleans(),
    open_end=st.booleans(),
    final=st.sampled_from([None, 0.0, 1.0]),
    reason=st.sampled_from(list(StopReason)),
)
def test_a_list_has_the_same_reward_and_success_as_the_trajectory(
    rewards: list[float], terminated: bool, open_end: bool, final: float | None, reason: StopReason
) -> None:
    ended = terminated and bool(rewards)
    steps = tuple(
        Transition.of(
            "",
            ToolCall(name="go"),
            StepResult(observation="", reward=reward, terminated=ended and number == len(rewards) - 1),
            Provenance(tier=Tier.MODEL, open_end=open_end),
        )
        for number, reward in enumerate(rewards)
    )
    whole = Trajectory(
        id="a",
        task=Task(id="t", env="e", instruction=""),
        transitions=steps,
        source=Source.SYNTHETIC,
        stop_reason=reason,
        final_reward=final,
    )
    listed = EpisodeSummary(
        place="store",
        id="a",
        task=whole.task,
        source=whole.source,
        stop_reason=reason,
        final_reward=final,
        outcome=Outcome(steps=len(steps), total=sum(rewards), terminated=ended, is_open=open_end and bool(steps)),
    )
    assert listed.reward == whole.reward
    assert listed.success == (None if whole.reward is None else whole.success)


async def test_the_coverage_of_a_store_shows_the_recorded_pairs_of_state_and_action(store: Store) -> None:
    await store.buffer.add(
        [episode("real", ["hall", "attic"]), episode("dream", ["yard", "pond"], source=Source.SYNTHETIC, task="t2")]
    )
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        found = (await asked(http, "coverage", env="crm"))["map"]
        nothing = await asked(http, "coverage", env="another")
    assert found["tools"] == [{"tool": "go", "keys": 3, "recorded": 2, "states": 3}]
    assert found["states_in_all"] == 3
    assert (found["states"], found["actions"]) == (["hall", "start"], ['go{"to":1}', 'go{"to":2}'])
    assert found["recorded"] == [[0, 1], [1, 0]]
    assert nothing["map"] is None


async def test_the_coverage_of_a_store_follows_a_recording_that_is_replaced(store: Store) -> None:
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        shown = []
        for answers in (["hall", "attic"], ["yard", "attic"]):
            await store.buffer.upsert([episode("real", answers)])
            shown.append((await asked(http, "coverage", env="crm"))["map"]["states"])
    assert shown == [["hall", "start"], ["start", "yard"]]


async def test_recorded_steps_are_found_by_a_text_and_by_likeness(store: Store) -> None:
    await store.buffer.add([episode("real", ['the "old" hall', "attic"]), episode("other", ["yard"], task="t2")])
    async with page(Library(store=StoredEpisodes(store.database), buffer=store.buffer)) as http:
        by_text = await asked(http, "search", env="crm", text='The "OLD"')
        near = await asked(http, "near", env="crm", state="start", tool="go", arguments='{"to": 1}')
        refused = [
            (await http.get("near", params={"env": "crm", "tool": "go", "arguments": arguments})).status_code
            for arguments in ("[1]", '{"to": ' * 3000 + "1" + "}" * 3000, '{"to": "\\ud800"}')
        ]
    assert [(one["episode"], one["step"]) for one in by_text["recorded"]] == [("real", 1), ("real", 2)]
    assert by_text["looked"] == 3
    assert {one["episode"] for one in near["recorded"]} == {"real", "other"}
    assert all(one["exact"] for one in near["recorded"])
    assert refused == [400, 400, 400]


async def test_an_incomplete_search_returns_where_to_go_on(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.search.LOOKED", 2)
    await store.buffer.add([episode("real", [f"room {number}" for number in range(5)])])
    async with page(Library(store=StoredEpisodes(store.database))) as http:
        found: list[dict[str, Any]] = []
        after, looked = "", 0
        while after is not None:
            part = await asked(http, "search", env="crm", text="room", after=after)
            found, after, looked = found + part["recorded"], part["next"], looked + part["looked"]
    assert sorted(one["step"] for one in found) == [1, 2, 3, 4, 5]
    assert looked == 5


async def test_tasks_are_listed_by_their_value_with_the_tasks_they_were_varied_from(store: Store) -> None:
    tasks = [Task(id=name, env="crm", instruction=name) for name in ("never", "always", "sometimes")]
    child = Task(id="child", env="crm", instruction="child", parent_id="sometimes")
    await store.buffer.add_tasks([*tasks, child])
    await store.buffer.record_outcomes("crm", "always", 1, [1.0, 1.0])
    await store.buffer.record_outcomes("crm", "sometimes", 1, [1.0, 0.0])
    async with page(Library(store=StoredEpisodes(store.database), buffer=store.buffer)) as http:
        found = await asked(http, "tasks", env="crm")
    assert [one["id"] for one in found["tasks"]] == ["sometimes", "always", "never", "child"]
    assert [one["parent"] for one in found["tasks"]] == [None, None, None, "sometimes"]
    assert found["tasks"][0]["value"]["variance"] == 0.25
    assert (found["total"], found["attempted"]) == (4, 2)


async def test_a_training_run_is_shown_as_far_as_it_is_written(tmp_path: Path) -> None:
    lines = [
        {"step": 0, "real_success": 0.2, "real_low": 0.1, "real_high": 0.3, "real_episodes": 100, "real_outcomes": [0]},
        {"step": 0, "where": "dream", "inside_success": 0.5, "tiers": {"model": 3}, "rollout_s": 1.0, "values": [0.1]},
        {"step": 1, "loss": 0.3, "kl": 0.01},
    ]
    run = tmp_path / "seed-0"
    run.mkdir()
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 1, "whe')
    (run / "run.json").write_text('{"run": "abc"}')
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        (listed,) = (await asked(http, "runs"))["runs"]
        shown = await asked(http, "run", name="seed-0")
        unknown = await http.get("run", params={"name": "../seed-0"})
    assert (listed["name"], listed["updates"], listed["last_probe"]["real_high"]) == ("seed-0", 1, 0.3)
    assert shown["group"] == "abc-"
    assert [one["inside_success"] for one in shown["updates"]] == [0.5]
    assert [one["real_success"] for one in shown["probes"]] == [0.2]
    assert shown["learned"] == [{"step": 1, "loss": 0.3, "kl": 0.01}]
    assert unknown.status_code == 404


async def test_a_training_run_in_a_folder_called_best_is_shown_and_the_weights_of_a_run_are_not(tmp_path: Path) -> None:
    for name in ("best/metrics.jsonl", "best/best/episodes.jsonl"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(episode("one", ["done"]).model_dump_json() + "\n")
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        runs = (await asked(http, "runs"))["runs"]
        episodes = await asked(http, "episodes", place="folder")
    assert [one["name"] for one in runs] == ["best"]
    assert episodes["matching"] == 0


async def test_a_probe_whose_success_is_unknown_is_left_out(tmp_path: Path) -> None:
    lines = [{"step": 0, "real_success": 0.2}, {"step": 5, "real_success": None}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        (listed,) = (await asked(http, "runs"))["runs"]
        shown = await asked(http, "run", name=".")
    assert listed["last_probe"]["real_success"] == 0.2
    assert shown["probes"] == [{"step": 0, "real_success": 0.2}]


async def test_a_training_run_is_shown_without_the_numbers_and_lines_that_cannot_be_shown(tmp_path: Path) -> None:
    lines = ['{"step": 0, "rollout_s": 1.0, "where": "dream", "inside_success": 0.5}', "3", '{"step": 0, "loss": NaN}']
    (tmp_path / "metrics.jsonl").write_text("".join(line + "\n" for line in [*lines, '{"step": 1, "lo', "{}"]))
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        (listed,) = (await asked(http, "runs"))["runs"]
        shown = await asked(http, "run", name=".")
    assert (listed["updates"], listed["last_inside"], listed["broken"]) == (1, 0.5, 2)
    assert shown["learned"] == [{"step": 0, "loss": None}]


async def test_files_of_a_training_run_that_mean_nothing_do_not_hide_the_others(tmp_path: Path) -> None:
    whole = {"step": 0, "rollout_s": 1.0, "where": "dream", "inside_success": 0.5}
    odd = ('{"recorded": NaN, "model": 3, "cache": "x", "check": true}', '["recorded"]')
    lines = [json.dumps({**whole, "tiers": "TIERS"}).replace('"TIERS"', tiers) for tiers in odd]
    for run, checkpoint, kept in (
        ("a", "²", "{}"),
        ("b", "1", "[" * 100_000),
        ("c", "1", '{"generated": [], "groups": [1]}'),
    ):
        place = tmp_path / run / "checkpoints" / f"checkpoint-{checkpoint}"
        place.mkdir(parents=True)
        (place / "curriculum.json").write_text(kept)
        (tmp_path / run / "metrics.jsonl").write_text("".join(line + "\n" for line in [*lines, '{"rollout_s": 1.0}']))
        (tmp_path / run / "run.json").write_text("[" * 100_000)
    async with page(in_folder(tmp_path, episode("one", ["done"]))) as http:
        about = await asked(http, "about")
        listed = (await asked(http, "runs"))["runs"]
        shown = await asked(http, "run", name="a")
        faulty = [await http.get("tasks", params={"run": run}) for run in ("b", "c")]
    assert about["folder"]["curricula"] == ["b", "c"]
    assert [one["tiers"] for one in listed] == [{"model": 3}] * 3
    assert shown["updates"][0]["tiers"] == {"model": 3}
    assert [one.status_code for one in faulty] == [400, 400]


async def test_a_copy_with_a_longer_name_does_not_take_the_place_of_a_training_run(tmp_path: Path) -> None:
    for name, success in (("metrics.jsonl", 0.5), ("old-metrics.jsonl", 0.9)):
        line = {"step": 0, "rollout_s": 1.0, "where": "dream", "inside_success": success}
        (tmp_path / name).write_text(json.dumps(line) + "\n")
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        (listed,) = (await asked(http, "runs"))["runs"]
    assert listed["last_inside"] == 0.5


@pytest.mark.parametrize("name", ["episodes", "search"])
@pytest.mark.parametrize("after", ["²", "9" * 5000])
async def test_a_position_that_is_not_a_number_is_refused(tmp_path: Path, name: str, after: str) -> None:
    async with page(in_folder(tmp_path, episode("a", ["one"]))) as http:
        answer = await http.get(name, params={"place": "folder", "env": "crm", "text": "one", "after": after})
    assert answer.status_code == 400
    assert "after=" in answer.json()["error"]


async def test_only_a_number_that_is_a_mean_is_explained_as_one(tmp_path: Path) -> None:
    share, auroc = cell("answers", "observation exact", "share"), cell("confidence", "AUROC", "value")
    lines = [
        StepBehind(
            setting="nearest",
            shown=PredictedStep(trajectory="a", step=step, action="go", recorded="one", got="one"),
            values={share: value, auroc: value},
        )
        for step, value in ((1, 0.0), (2, 1.0))
    ]
    (tmp_path / "report.json").write_text("{}")
    (tmp_path / "behind.jsonl").write_text("".join(line.model_dump_json() + "\n" for line in lines))
    answers = Answers(Library(folder=RunFolder(tmp_path)))
    means = [
        (await answers.behind({"name": ".", "setting": "nearest", "cell": name}))["mean"] for name in (share, auroc)
    ]
    assert means == [0.5, None]
    assert (await answers.all_behind("."))["not_means"] == [auroc]


async def test_a_half_written_report_is_listed_as_unreadable(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"env": "crm", "seed"')
    async with page(Library(folder=RunFolder(tmp_path))) as http:
        (listed,) = (await asked(http, "reports"))["reports"]
        shown = await asked(http, "report", name=".")
    assert listed["broken"] is True
    assert "cannot be read" in shown["about"]
