"""Redaction of everything that agents and trainers send to an environment whose recordings were redacted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from answers import text_of
from dreamgym_server.sessions import GONE, UNAVAILABLE, UNCERTAIN, Episodes, Limits, NewEpisode
from dreamgym_server.sources import RealWorlds
from mcp import Client
from mcp.shared.exceptions import MCPError
from pydantic import JsonValue
from server_stage import CounterEnvironment, Someone, Stage, counter_spec

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.testing.replay import sample_trajectory
from dreamgym.tools import MAX_ARGUMENT_BYTES, Tools
from dreamgym.types import JsonObject, Provenance, Source, StepResult, Task, Tier, ToolCall, Transition

pytestmark = pytest.mark.anyio

MAIL = "ann.lee@corp.net"


@pytest.fixture(autouse=True)
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a redaction key of this test's own."""
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))


def redacted() -> EnvironmentSpec:
    """The counter, recorded with redaction."""
    return counter_spec(redact=RedactionRules())


def placeholder() -> str:
    """Return the placeholder of the address in recordings."""
    return Redactor(RedactionRules(), key=load_key()).text(MAIL)


async def play(stage: Stage, world: Any) -> str:
    """Play an episode whose task, call and answer contain the address. Returns the trainer's view of its end."""
    task = Task(id="mine", env="counter", instruction=f"Write to {MAIL}.", initial_state="count 0")
    async with stage.serve(world) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={"task": task.model_dump(mode="json")})).json()
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 1, "a": f"for {MAIL}"})
        assert not result.is_error
        finish = f"/envs/counter/episodes/{made['episode']}/finish"
        return (await http.post(finish, json={"answer": f"told {MAIL}", "success": True})).text


async def test_a_dream_sees_and_stores_only_the_recorded_placeholder(stage: Stage) -> None:
    state = await play(stage, stage.dream(redacted()))
    (asked,) = stage.model.asked
    assert asked.action.arguments["a"] == f"for {placeholder()}"
    assert asked.task.instruction == f"Write to {placeholder()}."
    assert MAIL not in state
    assert MAIL not in asked.model_dump_json()
    assert json.loads(state)["trajectory"]["answer"] == f"told {placeholder()}"
    (stored,) = await stage.buffer.trajectories("counter", sources=frozenset({Source.SYNTHETIC}))
    assert MAIL not in stored.model_dump_json()


async def test_a_real_environment_is_given_the_address_and_the_placeholder_is_stored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stage.real(redacted())
    seen: list[object] = []
    create = world.create

    def watched(episode_id: str, as_of: int | None = None) -> Any:
        environment = create(episode_id)
        step = environment.step

        async def watch(action: Any) -> Any:
            seen.append(action.arguments["a"])
            result = await step(action)
            return result.model_copy(update={"observation": f"{result.observation} for {MAIL}"})

        environment.step = watch  # type: ignore[method-assign]
        return environment

    monkeypatch.setattr(world, "create", watched)
    state = await play(stage, world)
    assert seen == [f"for {MAIL}"]
    assert MAIL not in state
    assert state.count(placeholder()) >= 4


async def test_a_resent_call_is_recognized_although_only_its_placeholder_is_stored(stage: Stage) -> None:

    for make in (stage.dream, stage.real):
        episodes = Episodes({"counter": make(redacted())}, stage.episodes, stage.buffer)
        made = await episodes.create("counter", NewEpisode())
        call = ToolCall(name="add", arguments={"n": 1, "a": MAIL})
        first = await episodes.call("counter", made.id, call, Someone(gone=True))
        resent = await episodes.call("counter", made.id, call, Someone())
        assert (first.step, resent.step) == (1, 1)


async def test_another_call_is_no_resend_although_both_are_stored_alike(stage: Stage) -> None:
    made_of: list[object] = []

    class Vault(CounterEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            made_of.append(action.arguments["pin"])
            return StepResult(observation="wrong")

    tool: JsonObject = {"name": "open", "inputSchema": {"properties": {"pin": {"type": "integer", "minimum": 1000}}}}
    spec = counter_spec(redact=RedactionRules(), tools_list={"tools": [tool]})
    episodes = Episodes({"counter": RealWorlds(spec, lambda: Vault(spec))}, stage.episodes, stage.buffer)
    made = await episodes.create("counter", NewEpisode())
    pins = (1234, 4321, 4321, 999)
    first, second, resent, faulty = [
        await episodes.call("counter", made.id, ToolCall(name="open", arguments={"pin": pin}), Someone(gone=number < 2))
        for number, pin in enumerate(pins)
    ]
    assert made_of == [1234, 4321]
    assert [first.step, second.step, resent.step] == [1, 2, 2]
    assert "999 is less than the minimum of 1000" in faulty.text
    assert "4321" not in (await stage.episodes.load(made.id)).model_dump_json()


async def test_the_schemas_of_a_dream_check_the_call_and_not_its_placeholders(stage: Stage) -> None:
    texts: JsonObject = {
        "password": {"type": "string", "maxLength": 20},
        "otp": {"type": "string", "pattern": "^[0-9]{6}$"},
    }
    told: JsonObject = {"session_token": {"type": "string"}}
    tools: JsonObject = {
        "tools": [
            {
                "name": "login",
                "inputSchema": {"type": "object", "properties": texts},
                "outputSchema": {"type": "object", "properties": told},
            }
        ]
    }
    spec = counter_spec(redact=RedactionRules(), tools_list=tools, deterministic=True)
    redactor = Redactor(RedactionRules(), key=load_key())
    typed: JsonObject = {"password": "hunter22xyz", "otp": "654321"}
    said: JsonObject = {"session_token": "0123456789abcdef0123456789abcdef"}
    clean, given = redactor.value(typed), redactor.value(said)
    assert isinstance(clean, dict)
    assert clean["password"] != typed["password"]
    assert given != said
    step = Transition(
        state="count 0",
        action=ToolCall(name="login", arguments=clean),
        result=StepResult(observation=json.dumps(given), info={"structured": given}),
        next_state="count 0",
        provenance=Provenance(tier=Tier.REAL),
    )
    await stage.buffer.add([sample_trajectory("recorded", step, env="counter", world="counter-0")])
    episodes = Episodes({"counter": stage.dream(spec)}, stage.episodes, stage.buffer)
    made = await episodes.create("counter", NewEpisode())
    answered = await episodes.call("counter", made.id, ToolCall(name="login", arguments=typed), Someone())
    assert answered.text == json.dumps(given)
    longer = ToolCall(name="login", arguments={**typed, "password": "hunter22xyz" * 2})
    refused = await episodes.call("counter", made.id, longer, Someone())
    assert "is too long" in refused.text


def test_an_answer_whose_placeholder_a_client_would_reject_is_not_given() -> None:
    told: JsonObject = {"session_token": {"type": "string", "pattern": "^[0-9a-f]{32}$"}}
    tool: JsonObject = {"name": "login", "inputSchema": {}, "outputSchema": {"type": "object", "properties": told}}
    answer: JsonObject = {"session_token": "REDACTED-SESSION-TOKEN-apgpcpjh"}
    result = StepResult(observation=json.dumps(answer), info={"structured": answer})
    tools = Tools(counter_spec(tools_list={"tools": [tool]}))
    assert "does not match" in (tools.violation("login", result) or "")


async def test_without_rules_nothing_is_redacted(stage: Stage) -> None:
    state = await play(stage, stage.dream())
    assert state.count(MAIL) >= 3


@pytest.mark.parametrize("kind", ["dream", "real"])
def test_a_clients_answer_to_a_question_is_redacted_like_arguments(stage: Stage, kind: str) -> None:
    world = stage.dream(redacted()) if kind == "dream" else stage.real(redacted())
    answers: JsonObject = {"inputResponses": {"who": {"content": {"mail": MAIL}}}, "requestState": "1"}
    asked = ToolCall(name="peek", answers=answers)
    remembered = world.admitted(asked, asked.canonical()).recorded
    assert MAIL not in remembered
    assert '"requestState": "1"' in remembered


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_arguments_over_their_bound_are_refused_before_they_are_redacted(
    stage: Stage, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[object] = []

    def reads(self: Redactor, value: JsonValue) -> JsonValue:
        read.append(value)
        return value

    monkeypatch.setattr(Redactor, "value", reads)
    world = stage.dream(redacted()) if kind == "dream" else stage.real(redacted())
    async with stage.serve(world) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        read.clear()
        async with Client(made["mcp_url"]) as client:
            result = await client.call_tool("add", {"n": 1, "a": "a" * MAX_ARGUMENT_BYTES})
    assert result.is_error
    assert f"the arguments exceed {MAX_ARGUMENT_BYTES} bytes" in str(result.content)
    assert read == []


@pytest.mark.parametrize("kind", [EnvironmentUnavailable, RuntimeError])
async def test_the_reason_of_a_failure_is_stored_logged_and_returned_without_the_address(
    stage: Stage, kind: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world = stage.real(redacted())
    create = world._create

    def broken() -> Any:
        environment = create()

        async def fail(action: Any) -> Any:
            raise kind(f"the server said: no mailbox {MAIL}, password=hunter2pass")

        environment.step = fail  # type: ignore[method-assign]
        return environment

    monkeypatch.setattr(world, "_create", broken)
    async with stage.serve(world) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            for _ in range(Limits().failures):
                await client.call_tool("add", {"n": 1})
        told = (await http.get(f"/envs/counter/episodes/{made['episode']}")).text
    stored = await stage.episodes.load(made["episode"])
    assert stored.error is not None
    assert placeholder() in stored.error
    for text in (stored.model_dump_json(), told, caplog.text):
        assert MAIL not in text
        assert "hunter2pass" not in text


async def test_the_error_of_an_episode_that_cannot_start_does_not_contain_the_address(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stage.real(redacted())
    create = world._create

    def broken() -> Any:
        environment = create()

        async def fail(*_: Any, **__: Any) -> Any:
            raise EnvironmentUnavailable(f"no mailbox {MAIL}")

        environment.reset = fail  # type: ignore[method-assign]
        return environment

    monkeypatch.setattr(world, "_create", broken)
    async with stage.serve(world) as (_, http):
        refused = await http.post("/envs/counter/episodes", json={})
    assert refused.status_code == 503
    assert refused.json() == {"error": f"no mailbox {placeholder()}"}


async def test_a_password_in_a_call_is_not_stored_in_its_answer_either(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = stage.real(redacted())
    create = world._create

    def echoing() -> Any:
        environment = create()
        step = environment.step

        async def echo(action: Any) -> Any:
            result = await step(action)
            return result.model_copy(update={"observation": "you may log in with hunter42x now"})

        environment.step = echo  # type: ignore[method-assign]
        return environment

    monkeypatch.setattr(world, "_create", echoing)
    async with stage.serve(world) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1, "a": "password=hunter42x"})
        stored = (await stage.episodes.load(made["episode"])).model_dump_json()
    assert "you may log in with REDACTED-PASSWORD-" in stored
    assert "hunter42x" not in stored


@pytest.mark.parametrize("kind", ["text", "structured content"])
async def test_a_failure_that_quotes_the_beginning_of_an_answer_shows_no_half_of_an_address(
    stage: Stage, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema: JsonObject = {"type": "object", "properties": {"note": {"type": "integer"}}}
    tools: JsonObject = {"tools": [{"name": "read", "inputSchema": {"type": "object"}, "outputSchema": schema}]}
    spec = counter_spec(redact=RedactionRules(), tools_list=tools)

    class Wordy(CounterEnvironment):
        async def step(self, action: ToolCall) -> StepResult:
            if kind == "text":
                return StepResult(observation="long " * 38 + MAIL)
            return StepResult(observation="", info={"structured": {"note": "long " * 98 + MAIL}})

    episodes = Episodes({"counter": RealWorlds(spec, lambda: Wordy(spec))}, stage.episodes, stage.buffer)
    made = await episodes.create("counter", NewEpisode())
    for _ in range(Limits().failures):
        await episodes.call("counter", made.id, ToolCall(name="read"), Someone())
    error = (await stage.episodes.load(made.id)).error or ""
    assert "long long" in error
    assert MAIL[:7] not in error + caplog.text


class Mailbox(CounterEnvironment):
    """A counter that shows the address of its user at the start and in each answer."""

    def __init__(self, spec: EnvironmentSpec, calls: list[str]) -> None:
        super().__init__(spec)
        self._calls = calls

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        await super().reset(task, seed=seed)
        return StepResult(observation=f"hello {MAIL}", info={"state": json.dumps({"user": MAIL})})

    async def step(self, action: ToolCall) -> StepResult:
        said = str(action.arguments.get("a", ""))
        self._calls.append(said)
        if said == "fail":
            raise EnvironmentUnavailable("the line is down")
        result = await super().step(action)
        return result.model_copy(update={"observation": f"{result.observation} of {MAIL}"})


def mailbox(calls: list[str]) -> RealWorlds:
    """The mailbox as a real environment; `calls` gets the text of each call that it gets."""
    spec = redacted()
    return RealWorlds(spec, lambda: Mailbox(spec, calls))


async def test_the_first_observation_of_a_real_environment_is_stored_redacted(stage: Stage) -> None:
    async with stage.serve(mailbox([])) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
    assert made["observation"] == f"hello {placeholder()}"
    stored = await stage.episodes.load(made["episode"])
    assert json.loads(stored.initial.state) == {"user": placeholder()}
    assert MAIL not in stored.model_dump_json()


async def test_a_call_that_was_stored_redacted_is_never_played_again(stage: Stage) -> None:
    calls: list[str] = []
    async with stage.serve(mailbox(calls)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        path = f"/envs/counter/episodes/{made['episode']}"
        async with Client(made["mcp_url"]) as client:
            for said in (MAIL, "fail", "again"):
                await client.call_tool("add", {"n": 1, "a": said})
        fork = await http.post(f"{path}/fork", json={"step": 1})
        state = (await http.get(path)).json()
    assert calls == [MAIL, "fail"]
    assert (state["stop_reason"], state["reward"]) == ("error", None)
    assert "its calls were stored redacted, so they cannot be played again" in state["error"]
    assert fork.status_code == 409


async def test_calls_on_a_system_that_goes_on_are_never_made_a_second_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mailbox, "begins_anew", False, raising=False)
    calls: list[str] = []
    async with stage.serve(mailbox(calls)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            said = [text_of(await client.call_tool("add", {"n": 1, "a": word})) for word in ("one", "fail", "again")]
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert calls == ["one", "fail"]
    assert said[1:] == [UNCERTAIN, GONE]
    assert (state["stop_reason"], state["reward"]) == ("error", None)


async def test_an_episode_with_redacted_answers_goes_on_after_a_restart(stage: Stage) -> None:
    calls: list[str] = []
    async with stage.serve(mailbox(calls)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"]) as client:
            await client.call_tool("add", {"n": 1, "a": "one"})
    async with stage.serve(mailbox(calls)) as (url, http), Client(url + urlsplit(made["mcp_url"]).path) as client:
        result = await client.call_tool("add", {"n": 1, "a": "two"})
    assert text_of(result) == f"count 2 of {MAIL}"
    assert calls == ["one", "one", "two"]


async def test_an_environment_that_cannot_be_closed_is_logged_without_the_address(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Stuck(CounterEnvironment):
        async def close(self) -> None:
            raise RuntimeError(f"still writes to {MAIL}")

    spec = redacted()
    async with stage.serve(RealWorlds(spec, lambda: Stuck(spec))) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        await http.post(f"/envs/counter/episodes/{made['episode']}/finish", json={})
    assert f"still writes to {placeholder()}" in caplog.text
    assert MAIL not in caplog.text


async def test_an_unexpected_error_at_the_start_is_hidden_from_the_agent_and_logged_without_the_address(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(CounterEnvironment):
        async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
            raise RuntimeError(f"no mailbox {MAIL}")

    spec = redacted()
    async with stage.serve(RealWorlds(spec, lambda: Broken(spec))) as (url, http):
        refused = await http.post("/envs/counter/episodes", json={})
        async with Client(f"{url}/envs/counter/mcp", mode="legacy") as client:
            with pytest.raises(MCPError) as raised:
                await client.call_tool("add", {"n": 1})
    assert (refused.status_code, refused.json()) == (503, {"error": f"RuntimeError: no mailbox {placeholder()}"})
    assert str(raised.value) == UNAVAILABLE
    assert placeholder() in caplog.text
    assert MAIL not in caplog.text
