"""The trainer's door: episodes are created, read, finished, watched and deleted, and bad input is refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from answers import meta_of
from dreamgym_server.app import build
from dreamgym_server.sessions import Episodes, Limits, NewEpisode
from dreamgym_server.sources import DreamWorlds, RealWorlds
from mcp import Client
from server_stage import BreakableStore, CounterEnvironment, Stage, counter_spec, told

from dreamgym.dream.language_model import LanguageModel
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, StoreError
from dreamgym.llm import ScriptedLLM
from dreamgym.replay.episode_store import Episode
from dreamgym.testing.replay import sample_trajectory
from dreamgym.types import StepResult, StopReason, Task, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

EPISODES = "/envs/counter/episodes"
VERDICTS = [((True, False, True), 1.0), ((True, False, False), 0.0), ((True, True), 0.0), ((False,), 0.0)]
"""The judge's verdicts on all steps, on none, and on the steps without the agent's words; then the reward."""


@pytest.mark.parametrize(("ends_itself", "reward"), [(True, 0.0), (False, None)])
async def test_an_agent_that_stops_early_has_failed_only_if_the_environment_ends_accomplished_tasks(
    stage: Stage, ends_itself: bool, reward: float | None
) -> None:
    async with stage.serve(stage.dream(counter_spec(ends_itself=ends_itself))) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "It is 1."})).json()
    assert (state["stop_reason"], state["reward"], state["terminated"]) == ("finished", reward, False)
    assert state["trajectory"]["answer"] == "It is 1."
    assert state["trajectory"]["final_reward"] == reward


@pytest.mark.parametrize(("has_state", "reward"), [(True, 1.0), (False, None)])
async def test_a_check_of_the_state_reads_a_real_environments_state_and_not_its_last_answer(
    stage: Stage, has_state: bool, reward: float | None
) -> None:
    spec = counter_spec(ends_itself=False)

    class Json(CounterEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            return StepResult(observation='{"results": []}', info={"state": '{"n": 1}'} if has_state else {})

    task = {"id": "t", "env": "counter", "instruction": "Add.", "metadata": {"success": {"type": "object"}}}
    async with stage.serve(RealWorlds(spec, lambda: Json(spec))) as (_, http):
        made = (await http.post(EPISODES, json={"task": task})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish")).json()
    assert state["trajectory"]["final_reward"] == reward


@pytest.mark.parametrize("odd", ["\0", "\ud800"])
async def test_a_real_answer_with_a_character_that_cannot_be_stored_is_a_step_like_any_other(
    stage: Stage, odd: str
) -> None:
    spec = counter_spec(ends_itself=False)

    class Binary(CounterEnvironment):
        async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
            return StepResult(observation=f"begin {odd}")

        async def step(self, action: ToolCall) -> StepResult:
            said = f"{odd}PNG"
            return StepResult(observation=said, info={"content": [{"type": "text", "text": said}]})

    async with stage.serve(RealWorlds(spec, lambda: Binary(spec))) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            first = await client.call_tool("add", {"n": 1})
    async with stage.serve(RealWorlds(spec, lambda: Binary(spec))) as (url, http):  # plays the steps again
        async with Client(f"{url}{EPISODES}/{made['episode']}/mcp") as client:
            await client.call_tool("add", {"n": 2})
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    assert [block.text[1:] for block in first.content if block.type == "text"] == ["PNG"]
    assert (state["step"], state["error"]) == (2, None)


async def test_a_second_finish_repeats_the_first_or_is_a_conflict_and_changes_nothing(stage: Stage) -> None:
    async with stage.serve(stage.dream()) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        place = f"{EPISODES}/{made['episode']}"
        first = await http.post(f"{place}/finish", json={"answer": "It is 1.", "success": True})
        again = await http.post(f"{place}/finish", json={"answer": "It is 1.", "success": True})
        bare = await http.post(f"{place}/finish")
        others = [
            await http.post(f"{place}/finish", json=other)
            for other in ({"answer": "It is 2."}, {"answer": "It is 1.", "success": False})
        ]
        after = await http.get(place)
    assert [response.status_code for response in (first, again, bare, *others)] == [200, 200, 200, 409, 409]
    assert first.json() == again.json() == bare.json() == after.json()
    assert "is already finished with another answer or verdict, which cannot be changed" in others[0].json()["error"]


async def test_the_urls_of_the_server_and_of_an_environment_describe_the_environments(stage: Stage) -> None:
    async with stage.serve(stage.dream()) as (url, http):
        index = (await http.get("/")).json()
        page = await http.get("/", headers={"accept": "text/html,*/*"})
        described = (await http.get("/envs/counter")).json()
        unknown = await http.get("/envs/nope")
    assert index["environments"] == {"counter": f"{url}/envs/counter"}
    assert page.headers["content-type"].startswith("text/plain")
    assert f"counter: MCP at {url}/envs/counter/mcp, described at {url}/envs/counter" in page.text
    assert described["mcp_url"] == f"{url}/envs/counter/mcp"
    assert (described["name"], "add" in described["tools"]) == ("counter", True)
    assert unknown.status_code == 404


def verdict(*, accomplished: bool) -> str:
    return json.dumps({"reasoning": "seen", "accomplished": accomplished})


STEP = json.dumps(
    {
        "reasoning": "",
        "observation": "count 1",
        "state": None,
        "error": False,
        "terminated": False,
        "success": False,
    }
)
"""A model's answer if it is asked for a step."""


def judged_by(stage: Stage, *script: str) -> DreamWorlds:
    """A dream whose experience model answers from a script."""
    return DreamWorlds(counter_spec(), LanguageModel(ScriptedLLM(script)), stage.buffer)


async def test_an_environment_without_described_tasks_lists_those_of_its_recordings(stage: Stage) -> None:
    await stage.buffer.add([sample_trajectory("recorded", env="counter")])
    async with stage.serve(stage.dream(counter_spec(tasks=[]))) as (_, http):
        (listed,) = (await http.get("/envs")).json()["environments"]
        made = (await http.post(EPISODES, json={})).json()
    assert listed["tasks"] == 1
    assert listed["first_task"]["id"] == made["task"]["id"]


@pytest.mark.parametrize(("accomplished", "reward"), [(True, 1.0), (False, 0.0)])
async def test_a_final_answer_in_a_dream_is_rewarded_by_the_models_judge(
    stage: Stage, accomplished: bool, reward: float
) -> None:
    on_words_alone, without_words = verdict(accomplished=False), verdict(accomplished=True)
    script = [STEP, verdict(accomplished=accomplished), on_words_alone, without_words]
    async with stage.serve(judged_by(stage, *script)) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "It is 10."})).json()
        other = await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "No, 9."})
        again = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    trajectory = Trajectory.model_validate(state["trajectory"])
    assert (trajectory.final_reward, trajectory.success, state["reward"]) == (reward, accomplished, reward)
    assert (other.status_code, again) == (409, state)


@pytest.mark.parametrize(("verdicts", "reward"), VERDICTS)
async def test_an_agent_that_stops_without_an_answer_is_judged_by_its_steps(
    stage: Stage, verdicts: tuple[bool, ...], reward: float
) -> None:
    script = [verdict(accomplished=one) for one in verdicts]
    async with stage.serve(judged_by(stage, STEP, *script)) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish")).json()
    assert (state["stop_reason"], state["trajectory"]["final_reward"]) == ("finished", reward)


async def test_an_agent_that_stops_at_once_gets_reward_0_without_a_judge(stage: Stage) -> None:
    async with stage.serve(judged_by(stage)) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish")).json()
    assert (state["stop_reason"], state["reward"]) == ("finished", 0.0)


@pytest.mark.parametrize("kind", ["dream", "real"])
@pytest.mark.parametrize(("success", "reward"), [(True, 1.0), (False, 0.0)])
async def test_a_caller_who_knows_the_outcome_decides_it(stage: Stage, kind: str, success: bool, reward: float) -> None:
    world = judged_by(stage) if kind == "dream" else stage.real()
    async with stage.serve(world) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        order = {"answer": "It is 10.", "success": success}
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish", json=order)).json()
    assert state["trajectory"]["final_reward"] == reward


async def test_a_judge_that_answers_rubbish_leaves_the_reward_of_the_end_unknown(stage: Stage) -> None:
    async with stage.serve(judged_by(stage, STEP, "rubbish", "rubbish")) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish", json={"answer": "It is 10."})).json()
    assert (state["stop_reason"], state["reward"], state["trajectory"]["final_reward"]) == ("finished", None, None)


async def test_a_judge_that_cannot_be_reached_leaves_the_episode_open_and_may_be_asked_again(stage: Stage) -> None:
    answers = iter([STEP, None, *(verdict(accomplished=one) for one in (True, False, True))])

    def says(messages: object) -> str:
        answer = next(answers)
        if answer is None:
            raise EnvironmentUnavailable("the model took longer than 60 s")
        return answer

    world = DreamWorlds(counter_spec(), LanguageModel(ScriptedLLM(says)), stage.buffer)
    async with stage.serve(world) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        path = f"{EPISODES}/{made['episode']}"
        failed = await http.post(f"{path}/finish", json={"answer": "It is 10."})
        between = (await http.get(path)).json()
        state = (await http.post(f"{path}/finish", json={"answer": "It is 10."})).json()
    assert (failed.status_code, between["stop_reason"], state["reward"]) == (503, None, 1.0)


async def test_an_environment_without_a_task_has_an_open_one(stage: Stage) -> None:
    async with stage.serve(stage.dream(counter_spec(tasks=[]))) as (_, http):
        made = [(await http.post(EPISODES, json=order)).json() for order in ({}, {"task_id": "open"})]
        unknown = await http.post(EPISODES, json={"task_id": "nope"})
        await http.post(f"{EPISODES}/{made[0]['episode']}/finish")
    assert [(one["task"]["id"], one["task"]["instruction"], one["task"]["env"]) for one in made] == [
        ("open", "", "counter")
    ] * 2
    assert (unknown.status_code, unknown.json()["error"]) == (404, "unknown task 'nope': there is none. 0 in all")


async def test_a_task_that_was_added_later_comes_before_the_open_one(stage: Stage) -> None:
    (first, *_) = counter_spec().tasks
    await stage.buffer.add_tasks([first.model_copy(update={"id": "open", "instruction": ""}), first])
    async with stage.serve(stage.dream(counter_spec(tasks=[]))) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
    assert made["task"]["id"] == first.id


async def test_finishing_after_the_end_changes_nothing(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 10})
        state = (await http.post(f"{EPISODES}/{made['episode']}/finish")).json()
    assert (state["stop_reason"], state["reward"]) == ("terminated", 1.0)


async def test_a_finished_episode_reads_as_a_trajectory_with_provenance(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={"seed": 9})).json()
        running = (await http.get(f"{EPISODES}/{made['episode']}")).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 10})
        state = (await http.get(f"{EPISODES}/{made['episode']}")).json()
    trajectory = Trajectory.model_validate(state["trajectory"])
    assert running["trajectory"] is None
    assert trajectory.success
    assert trajectory.transitions[0].reasoning == "it adds up"
    assert trajectory.transitions[0].provenance.seed == 9


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_an_episode_without_a_step_has_the_source_of_its_environment(stage: Stage, kind: str) -> None:
    async with stage.serve(stage.dream() if kind == "dream" else stage.real()) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        ended = (await http.post(f"{EPISODES}/{made['episode']}/finish", json={})).json()
    assert ended["trajectory"]["source"] == ("synthetic" if kind == "dream" else "real")


async def test_an_environment_that_only_another_server_serves_is_unknown_here(stage: Stage) -> None:
    there = Episodes({"other": stage.dream(counter_spec("other"))}, stage.episodes, stage.buffer)
    path = f"/envs/other/episodes/{(await there.create('other', NewEpisode())).id}"
    async with stage.serve() as (_, http):
        answers = [await http.post(f"{path}/finish"), await http.delete(path), await http.get(path)]
    assert [answer.status_code for answer in answers] == [404, 404, 404]


async def test_one_idempotency_key_is_one_episode(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = [(await http.post(EPISODES, json={"idempotency_key": key})).json()["episode"] for key in "aab"]
    assert made[0] == made[1] != made[2]


async def test_a_repeated_request_gets_its_episode_from_a_server_that_is_full_by_now(stage: Stage) -> None:
    async with stage.serve(limits=Limits(open_episodes=2)) as (_, http):
        made = [await http.post(EPISODES, json={"idempotency_key": "a"}) for _ in range(2)]
        fork = f"{EPISODES}/{made[0].json()['episode']}/fork"
        made += [await http.post(fork, json={"step": 0, "idempotency_key": "a"}) for _ in range(2)]
        refused = await http.post(EPISODES, json={"idempotency_key": "b"})
    assert [answer.status_code for answer in made] == [201] * 4
    assert len({answer.json()["episode"] for answer in made}) == 2
    assert refused.status_code == 429


async def test_a_request_may_contain_a_new_task(stage: Stage) -> None:
    task = {"id": "new", "env": "counter", "instruction": "Reach 10.", "initial_state": "count 7"}
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={"task": task})).json()
        async with told(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 3})
    assert made["observation"] == "count 7"
    assert made["task"]["instruction"] == "Reach 10."
    assert meta_of(result)["dreamgym/reward"] == 1.0


async def test_a_task_of_the_buffer_is_known_by_its_id(stage: Stage) -> None:
    task = counter_spec().tasks[0].model_copy(update={"id": "stored", "initial_state": "count 5"})
    await stage.buffer.add_tasks([task])
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={"task_id": "stored"})).json()
    assert made["observation"] == "count 5"


TASK = {"id": "t", "env": "other", "instruction": ""}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/envs/nope/episodes", {}, 404, "unknown environment 'nope': expected one of counter"),
        (EPISODES, {"task_id": "nope"}, 404, "unknown task 'nope': expected one of counter-0, counter-1, counter-2"),
        (EPISODES, {"task": TASK}, 400, "task 't' belongs to environment 'other', not 'counter'"),
        (EPISODES, {"task": {"id": "t"}}, 400, "request body: task.env: Field required"),
        (EPISODES, {"max_steps": 0}, 400, "request body: max_steps: Input should be greater than or equal to 1"),
        (EPISODES, {"wish": 1}, 400, "request body: wish: unknown key"),
        (EPISODES, [], 400, "request body: Input should be an object"),
        (f"{EPISODES}/nope/finish", {}, 404, "unknown episode 'nope': it was closed, expired, or never started"),
    ],
)
async def test_the_error_for_bad_input_describes_the_expected_input(
    stage: Stage, path: str, body: Any, status: int, said: str
) -> None:
    async with stage.serve() as (_, http):
        answer = await http.post(path, json=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(said)


@pytest.mark.parametrize("number", ["NaN", "1e999"])
async def test_a_task_with_a_number_that_json_does_not_have_is_refused_and_starts_nothing(
    stage: Stage, number: str
) -> None:
    task = {"id": "t", "env": "counter", "instruction": "Count.", "metadata": {"most": ["NUMBER"]}}
    body = json.dumps({"task": task}).replace('"NUMBER"', number)
    async with stage.serve(limits=Limits(open_episodes=1)) as (_, http):
        refused = await http.post(EPISODES, content=body)
        made = await http.post(EPISODES, json={})
    assert refused.status_code == 400
    assert refused.json()["error"].startswith("task 't': expected finite numbers in its metadata")
    assert made.status_code == 201


async def test_a_body_that_is_not_json_is_refused(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        answer = await http.post(EPISODES, content=b"{")
    assert answer.status_code == 400


@pytest.mark.parametrize("path", [EPISODES, "/envs/counter/mcp"])
async def test_a_body_over_the_limit_is_too_large(stage: Stage, path: str) -> None:
    async with stage.serve() as (_, http):
        body = b'{"task_id": "' + b"x" * (4 * 1024 * 1024) + b'"}'
        answer = await http.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 413


async def test_no_more_episodes_are_open_than_allowed(stage: Stage) -> None:
    async with stage.serve(limits=Limits(open_episodes=1)) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        refused = await http.post(EPISODES, json={})
        await http.post(f"{EPISODES}/{made['episode']}/finish")
        again = await http.post(EPISODES, json={})
    assert [refused.status_code, again.status_code] == [429, 201]
    assert "retry-after" in refused.headers


async def test_a_deleted_episode_is_forgotten_and_its_trajectory_is_kept(stage: Stage) -> None:
    async with stage.serve(stage.real()) as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1})
        deleted = await http.delete(f"{EPISODES}/{made['episode']}")
        statuses = [
            (await http.request(verb, f"{EPISODES}/{made['episode']}")).status_code for verb in ("GET", "DELETE")
        ]
    assert [deleted.status_code, *statuses] == [204, 404, 404]
    assert [trajectory.id for trajectory in await stage.buffer.trajectories("counter")] == [made["episode"]]


async def test_the_events_of_an_episode_are_its_steps_and_its_end(stage: Stage) -> None:
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        async with (
            Client(made["mcp_url"]) as client,
            http.stream("GET", f"{EPISODES}/{made['episode']}/events") as seen,
        ):
            lines = seen.aiter_lines()
            await client.call_tool("add", {"n": 1})
            first = [await anext(lines) for _ in range(3)]
            await client.call_tool("add", {"n": 9})
            rest = [line async for line in lines]
    assert first[0] == "event: step"
    assert '"observation": "count 1"' in first[1]
    assert [line for line in rest if line.startswith("event")] == ["event: step", "event: end"]
    assert "reasoning" not in "".join(rest)


async def test_the_events_of_an_episode_go_on_when_the_database_is_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    load, times = stage.episodes.load, iter(range(9))

    async def fails_once(episode_id: str) -> Episode:
        if next(times) == 1:
            await stage.episodes.finish(episode_id, StopReason.FINISHED)
            raise StoreError("the database cannot be reached")
        return await load(episode_id)

    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={})).json()
        monkeypatch.setattr(stage.episodes, "load", fails_once)
        events = (await http.get(f"{EPISODES}/{made['episode']}/events")).text
    assert events == 'event: end\ndata: {"step": 0, "stop_reason": "finished"}\n\n'


async def test_a_server_that_stops_ends_the_events_of_an_episode_that_runs(stage: Stage) -> None:
    async with httpx2.AsyncClient() as http:
        async with stage.serve() as (url, _):
            made = (await http.post(f"{url}{EPISODES}", json={})).json()
            watched = http.build_request("GET", f"{url}{EPISODES}/{made['episode']}/events")
            events = await http.send(watched, stream=True)
        assert await events.aread() == b""


@pytest.mark.parametrize(("trusted", "scheme"), [("127.0.0.1", "https"), ("*", "https"), ("192.0.2.1", "http")])
async def test_an_episodes_url_begins_with_https_if_a_trusted_proxy_was_asked_with_https(
    stage: Stage, trusted: str, scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", trusted)
    async with stage.serve() as (_, http):
        made = (await http.post(EPISODES, json={}, headers={"X-Forwarded-Proto": "https"})).json()
    assert made["mcp_url"].startswith(f"{scheme}://")


async def test_the_environments_are_listed(stage: Stage) -> None:
    async with stage.serve(stage.dream(), stage.real(counter_spec("other"))) as (_, http):
        listed = (await http.get("/envs")).json()["environments"]
    assert [(one["name"], one["source"], one["tasks"]) for one in listed] == [
        ("counter", "synthetic", 3),
        ("other", "real", 3),
    ]


async def test_the_error_for_an_unreachable_database_names_the_database(stage: Stage) -> None:
    assert isinstance(stage.episodes, BreakableStore)
    stage.episodes.broken = True
    async with stage.serve() as (_, http):
        answer = await http.post(EPISODES, json={})
    assert (answer.status_code, answer.json()) == (503, {"error": "the database cannot be reached: start it"})


def test_two_environments_of_one_name_are_refused(stage: Stage) -> None:
    with pytest.raises(InvalidInput, match="two environments have the same name"):
        build([stage.dream(), stage.real()], stage.buffer, stage.episodes)


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, {"$ref": "https://example.org/schema.json"}])
def test_a_tool_schema_that_cannot_be_used_is_refused_at_start(stage: Stage, schema: dict[str, str]) -> None:
    spec = counter_spec(tools_list={"tools": [{"name": "broken", "inputSchema": schema}]})
    with pytest.raises(InvalidInput, match="tool 'broken': not a usable JSON Schema"):
        build([stage.dream(spec)], stage.buffer, stage.episodes)


@pytest.mark.parametrize(
    "check",
    [
        {"$ref": "http://127.0.0.1:{port}/admin"},
        {"$ref": "{file}"},
        {"properties": {"n": {"$ref": "http://127.0.0.1:{port}/admin"}}},
        {"$ref": "#"},
        {"type": "nonsense"},
        7,
    ],
)
async def test_a_check_that_cannot_be_used_is_refused_at_creation_and_nothing_is_fetched(
    stage: Stage, check: object, tmp_path: Path
) -> None:
    (tmp_path / "true.json").write_text("true")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        names = {"{port}": str(listener.getsockname()[1]), "{file}": (tmp_path / "true.json").as_uri()}
        text = json.dumps(check)
        for name, value in names.items():
            text = text.replace(name, value)
        task = {"id": "t", "env": "counter", "instruction": "Count.", "metadata": {"success": json.loads(text)}}
        async with stage.serve(stage.dream(counter_spec())) as (_, http):
            made = await http.post(EPISODES, json={"task": task})
        assert made.status_code == 400, made.text
        with pytest.raises(TimeoutError):
            listener.accept()
