"""Unchanged agents work with a real server through the recorder."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from dreamgym_integrations.agents import langgraph, openai_agents
from dreamgym_integrations.models.chat_server import Reply, chat_server
from dreamgym_server.running import running
from mcp.server.mcpserver import MCPServer
from recorder_stage import node_server, recording

from dreamgym.environment import EnvironmentSpec, read_jsonl
from dreamgym.recordings.folder import build_folder, start_folder
from dreamgym.types import JsonObject, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

EPISODES = 8


def remembers(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
    """A model that stores a person, looks her up, and then answers."""
    (user,) = [str(message["content"]) for message in messages if message["role"] == "user"]
    answers = [message for message in messages if message["role"] == "tool"]
    name = user.split()[1]
    if not answers:
        person: JsonObject = {"name": name, "entityType": "person", "observations": [user]}
        return Reply(tool_calls=(ToolCall(name="create_entities", arguments={"entities": [person]}),))
    if len(answers) == 1:
        return Reply(tool_calls=(ToolCall(name="search_nodes", arguments={"query": name}),))
    return Reply(f"{name} is remembered.")


@pytest.mark.parametrize(
    "play",
    [langgraph.play, pytest.param(openai_agents.play, marks=pytest.mark.long)],
    ids=["langgraph", "openai_agents"],
)
async def test_many_agents_work_with_the_public_memory_server_each_in_a_run_of_its_own(
    play: object, tmp_path: Path
) -> None:
    assert callable(play)
    folder = tmp_path / "crm"
    # each server process has its own memory file, so that runs do not share data
    command = ["sh", "-c", f'MEMORY_FILE_PATH="{tmp_path}/$$.json" exec "$0"', *node_server("memory")]
    start_folder(folder, "crm", {"adapter": "mcp", "command": [*command]})
    async with (
        recording(command, folder / "recordings") as recorder,
        chat_server(remembers) as policy,
    ):

        async def episode(number: int) -> str:
            control = f"{recorder.url}/record/run-{number}"
            task = f"Remember Person{number} forever."
            async with recorder.http.post(control, json={"task": task}):
                answer: str = await play(task, f"{control}/mcp", policy)
            async with recorder.http.post(f"{control}/finish", json={"answer": answer, "success": True}):
                return answer

        answers = await asyncio.gather(*map(episode, range(EPISODES)))
    assert answers == [f"Person{number} is remembered." for number in range(EPISODES)]
    assert recorder.tape.summary.losses == {}
    build_folder(folder)
    trajectories = {trajectory.task.instruction: trajectory for trajectory in _trajectories(folder)}
    assert len(trajectories) == EPISODES
    for number in range(EPISODES):
        trajectory = trajectories[f"Remember Person{number} forever."]
        assert [step.action.name for step in trajectory.transitions] == ["create_entities", "search_nodes"]
        assert f"Person{number}" in trajectory.transitions[0].result.observation
        assert (trajectory.answer, trajectory.success) == (answers[number], True)


def _trajectories(folder: Path) -> list[Trajectory]:
    assert EnvironmentSpec.load(folder).tools
    return read_jsonl(folder / "trajectories.jsonl", Trajectory)


async def test_calls_that_an_agent_makes_at_once_overlap_in_the_recording(tmp_path: Path) -> None:
    server = MCPServer("meeting")
    there: list[str] = []
    complete = asyncio.Event()

    @server.tool()
    async def meet(who: str) -> str:
        """Return when both are there."""
        there.append(who)
        if len(there) == 2:
            complete.set()
        await complete.wait()
        return f"{who} met"

    def model(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        if any(message["role"] == "tool" for message in messages):
            return Reply("They met.")
        return Reply(tool_calls=tuple(ToolCall(name="meet", arguments={"who": who}) for who in ("Ada", "Bob")))

    async with (
        running(server.streamable_http_app()) as url,
        recording(f"{url}/mcp", tmp_path) as recorder,
        chat_server(model) as policy,
    ):
        assert await langgraph.play("Let them meet.", f"{recorder.url}/record/r/mcp", policy) == "They met."
    one, other = recorder.calls("r")
    assert max(one.started_at, other.started_at) < min(one.ended_at, other.ended_at)
    said = {json.dumps(call.params["arguments"]): call.result for call in (one, other)}
    assert {arguments: result["structuredContent"] for arguments, result in said.items() if result} == {
        '{"who": "Ada"}': {"result": "Ada met"},
        '{"who": "Bob"}': {"result": "Bob met"},
    }
