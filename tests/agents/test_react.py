"""The built-in agent: the requests that it sends, and how it handles calls that go wrong."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from chat_endpoint import calls, chat_endpoint, says
from dreamgym_client.control import ControlClient
from dreamgym_integrations.agents import react
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import RealWorlds
from server_stage import ADD_TOOL, PEEK_TOOL, CounterEnvironment, counter_spec

from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import load_real
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import JsonObject, Trajectory

pytestmark = pytest.mark.anyio
COIN = load_real("coin")
LOOK = '{"command": "look around"}'


class Model:
    """Answers with its lines in turn, with the last one for ever, and keeps the requests."""

    def __init__(self, *lines: JsonObject) -> None:
        self._lines = lines
        self.asked: list[Any] = []

    def __call__(self, body: JsonObject) -> JsonObject:
        self.asked.append(body)
        return self._lines[min(len(self.asked), len(self._lines)) - 1]

    @property
    def told(self) -> list[str]:
        """The answers of tools that the last request contains."""
        return [message["content"] for message in self.asked[-1]["messages"] if message["role"] == "tool"]


@asynccontextmanager
async def game() -> AsyncIterator[tuple[str, Callable[[], Any]]]:
    """An episode of the real game: its MCP URL, and a function that ends it and returns its commands."""
    worlds = RealWorlds(COIN.spec, COIN.create)
    app = build([worlds], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with running(app) as url, ControlClient(url) as control:
        started = await control.create("coin", task=COIN.tasks("train")[0])

        async def steps() -> list[str]:
            state = await control.finish("coin", started.episode)
            assert isinstance(state.trajectory, Trajectory)
            return [str(step.action.arguments["command"]) for step in state.trajectory.transitions]

        yield started.mcp_url, steps


async def test_the_model_gets_the_task_and_the_tools_as_the_server_lists_them() -> None:
    model = Model(says("done"))
    async with game() as (mcp_url, steps), chat_endpoint(model) as policy_url:
        assert await react.play("find the coin", mcp_url, f"{policy_url}#small-model") == "done"
        assert await steps() == []
    (body,) = model.asked
    assert body["model"] == "small-model"
    assert body["messages"][-1] == {"role": "user", "content": "find the coin"}
    (tool,) = body["tools"]
    (listed,) = COIN.spec.tools
    assert tool["function"] == {
        "name": listed["name"],
        "description": listed["description"],
        "parameters": listed["inputSchema"],
    }


async def test_the_model_gets_the_tools_of_all_pages() -> None:
    spec = counter_spec(tools_list=[{"tools": [ADD_TOOL], "nextCursor": "2"}, {"tools": [PEEK_TOOL]}])
    app = build(
        [RealWorlds(spec, lambda: CounterEnvironment(spec))], MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore()
    )
    model = Model(says("done"))
    async with running(app) as url, ControlClient(url) as control, chat_endpoint(model) as policy_url:
        started = await control.create("counter", task=spec.tasks[0])
        await react.play("count", started.mcp_url, policy_url)
    assert [tool["function"]["name"] for tool in model.asked[0]["tools"]] == ["add", "peek"]


async def test_a_call_is_a_step_and_its_answer_is_what_the_model_reads_next() -> None:
    model = Model(calls("act", LOOK), calls("act", '{"command": "jump"}'), says("enough"))
    async with game() as (mcp_url, steps), chat_endpoint(model) as policy_url:
        assert await react.play("", mcp_url, policy_url) == "enough"
        assert await steps() == ["look around", "jump"]
    view = COIN.tasks("train")[0].initial_state
    assert model.told == [view, f"unknown action. {view}"]


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("act", "{'command': look}", "The arguments are not JSON"),
        ("act", '["look around"]', "The arguments must be a JSON object, not list."),
        ("act", '{"direction": "north"}', "command"),
        ("fly", "{}", "fly"),
        ("act", "[" * 100_000, "The arguments are not JSON"),
        ("act", r'{"command": "\ud83d"}', "The arguments are not JSON"),
        ("act", '{"command": NaN}', "The arguments are not JSON"),
    ],
)
async def test_a_call_that_cannot_be_made_is_reported_to_the_model_and_is_not_a_step(
    tool: str, arguments: str, told: str
) -> None:
    model = Model(calls(tool, arguments), calls("act", LOOK), says("ok"))
    async with game() as (mcp_url, steps), chat_endpoint(model) as policy_url:
        assert await react.play("", mcp_url, policy_url) == "ok"
        assert await steps() == ["look around"]
    assert told in model.told[0]


async def test_several_calls_in_one_answer_are_made_in_their_order() -> None:
    both = calls("act", LOOK)
    both["tool_calls"] = [*calls("act", '{"command": "move west"}')["tool_calls"], *both["tool_calls"]]  # type: ignore[misc]
    model = Model(both, says("ok"))
    async with game() as (mcp_url, steps), chat_endpoint(model) as policy_url:
        assert await react.play("", mcp_url, policy_url) == "ok"
        assert await steps() == ["move west", "look around"]
    assert model.told[0] == model.told[1]
    assert model.told[0].startswith("pantry. ")


async def test_an_error_that_an_endpoint_sends_with_status_200_is_the_reason_of_the_failure() -> None:
    model = Model({"error": {"message": "Provider returned error", "code": 502}})
    async with game() as (mcp_url, _), chat_endpoint(model) as policy_url:
        reason = pytest.RaisesExc(EnvironmentUnavailable, match=r"expected a chat completion .*Provider returned error")
        with pytest.RaisesGroup(reason, flatten_subgroups=True):  # the clients' task groups wrap it
            await react.play("", mcp_url, policy_url)


async def test_a_model_that_never_stops_calling_is_stopped() -> None:
    model = Model(calls("act", LOOK))
    async with game() as (mcp_url, steps), chat_endpoint(model) as policy_url:
        assert await react.play("", mcp_url, policy_url) == ""
        assert len(await steps()) == COIN.spec.max_steps
    assert len(model.asked) == react.MAX_TURNS
