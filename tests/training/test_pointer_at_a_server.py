"""A pointer policy at a server with typed tools sees what an agent sees: what the task says and the answers show."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy.model import load_policy
from dreamgym_integrations.trainers.policy.scratch import create_policy
from dreamgym_integrations.trainers.policy.sft import rows_of
from dreamgym_server.local import LocalEnvironment
from dreamgym_server.sessions import Episodes
from dreamgym_server.sources import RealWorlds

from dreamgym import Environment, EnvironmentSpec, StepResult, Trajectory
from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import play
from dreamgym.errors import InvalidInput
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.runs.opening import served
from dreamgym.runs.players import player_at, player_in
from dreamgym.state import StateSchema
from dreamgym.training.rollout import Rollout, TokenPlayer
from dreamgym.types import JsonObject, Source, Task, ToolCall

NOTES = StateSchema.model_validate({"notes": {"key": "id", "fields": {"title": "string"}, "complete": True}})
STRING: JsonObject = {"type": "string"}
TOOLS: list[JsonObject] = [
    {"name": "open", "inputSchema": {"type": "object", "properties": {"id": STRING}, "required": ["id"]}},
    {"name": "list", "inputSchema": {"type": "object", "properties": {}}},
]
SPEC = EnvironmentSpec(name="notes", tools_list=({"tools": [*TOOLS]},), state=NOTES, max_steps=4)
START: JsonObject = {"notes": {"n1": {"id": "n1", "title": "milk"}, "n2": {"id": "n2", "title": "tea"}}}
TASK = Task(id="tea", env="notes", instruction="Open the note tea.", initial_state=json.dumps(START))


class Notes:
    """The tool `list` shows the notes; `open` ends the episode, with a reward for the note of the task."""

    tools = TOOLS

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="", info={"state": task.initial_state})

    async def step(self, action: ToolCall) -> StepResult:
        if action.name == "list":
            return StepResult(observation="2 notes", info={"state": json.dumps(START), "structured": START})
        is_right = action.arguments["id"] == "n2"
        return StepResult(
            observation="opened", info={"state": json.dumps(START)}, reward=float(is_right), terminated=True
        )

    async def close(self) -> None:
        pass


def recorded(*calls: ToolCall, portal: BlockingPortal) -> Trajectory:
    async def behave(first: StepResult, environment: Environment, seed: int) -> None:
        for call in calls:
            await environment.step(call)

    async def record() -> Trajectory:
        return await play(Notes(), TASK, behave, spec=SPEC, seed=0, source=Source.REAL)

    return portal.call(record)


LIST, OPEN = ToolCall(name="list", arguments={}), ToolCall(name="open", arguments={"id": "n2"})


def test_a_pointer_policy_sees_the_same_at_a_server_in_this_process_and_in_recordings(
    tmp_path: Path, portal: BlockingPortal
) -> None:
    right = recorded(LIST, OPEN, portal=portal)
    create_policy("pointer", SPEC, [right], tmp_path, seed=0)
    policy, codec = load_policy(tmp_path)
    worlds = RealWorlds(SPEC, Notes)
    many = 12

    async def rollouts() -> list[list[Rollout]]:
        asked: dict[str, Any] = {"groups": [""] * many, "seeds": [0] * many, "version": 0, "sampling_seed": 0}
        async with served(worlds) as url:
            remote = await player_at(url, SPEC, policy, codec, agent=None).play([TASK] * many, **asked)
        async with player_in(worlds, policy, codec, agent=None) as player:
            bare = await player.play([TASK] * many, **asked)
        episodes = Episodes({"notes": worlds}, MemoryEpisodeStore(), MemoryBuffer(TrigramEncoder()))
        async with episodes.running():
            player = TokenPlayer(policy, codec, SPEC, lambda *_: LocalEnvironment(episodes, "notes"))
            local = await player.play([TASK] * many, **asked)
        return [remote, bare, local]

    remote, bare, local = portal.call(rollouts)
    for others in (bare, local):
        assert [one.actions for one in remote] == [one.actions for one in others]
        assert [one.segments for one in remote] == [one.segments for one in others]
    first, second = (row["input_ids"][:-1] for row in rows_of(SPEC, codec, [right]))
    listed = [one for one in remote if one.actions[0] == LIST.model_dump_json()]
    assert {tuple(one.segments[0].prompt_ids) for one in remote} == {tuple(first)}
    assert {tuple(one.segments[1].prompt_ids) for one in listed} == {tuple(second)}
    assert len(second) > len(first)


def test_a_call_with_an_id_that_no_answer_has_shown_is_not_learned(tmp_path: Path, portal: BlockingPortal) -> None:
    create_policy("pointer", SPEC, [recorded(LIST, OPEN, portal=portal)], tmp_path, seed=0)
    _, codec = load_policy(tmp_path)
    with pytest.raises(InvalidInput, match=r"can learn none of the 1 recorded episodes of 'notes'.*before they act"):
        rows_of(SPEC, codec, [recorded(OPEN, portal=portal)])
