"""Recorded episodes become the conversations that an agent would have had about them, token for token."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer
from dreamgym_integrations.trainers.policy.replay_through_agent import RecordedEnvironment, replay_through_agent
from dreamgym_integrations.trainers.policy.sft import conversation_row
from dreamgym_server.sources import RealWorlds
from openai import AsyncOpenAI
from server_stage import CounterEnvironment, counter_spec
from speakers import CODEC, TOKENIZER, call

from dreamgym.environment import Environment
from dreamgym.episode import Agent, load_agent, play
from dreamgym.errors import InvalidInput
from dreamgym.runs.opening import served
from dreamgym.training.rollout import Generation, Segment
from dreamgym.types import Source, StepResult, StopReason, ToolCall, Trajectory

pytestmark = pytest.mark.anyio
COUNTER = counter_spec()
AGENTS = ["react", "langgraph", "openai_agents"]


async def recorded(task: int, *numbers: int) -> Trajectory:
    async def adds(first: StepResult, environment: Environment, seed: int) -> None:
        for n in numbers:
            await environment.step(ToolCall(name="add", arguments={"n": n}))

    world = CounterEnvironment(COUNTER)
    return await play(world, COUNTER.tasks[task], adds, spec=COUNTER, seed=0, source=Source.REAL)


async def replayed(agent: Agent, *recordings: Trajectory) -> list[Segment]:
    async with served(RealWorlds(COUNTER, lambda: RecordedEnvironment(COUNTER, recordings))) as url:
        return await replay_through_agent(agent, CODEC, COUNTER, recordings, url=url)


class Adder:
    """A policy that adds five, whatever it is shown."""

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        said = tuple(CODEC.answer(call("add", n=5)))
        return [Generation(said, (-0.5,) * len(said)) for _ in prompts_B]


@pytest.mark.parametrize("name", AGENTS)
async def test_replayed_conversations_equal_those_of_the_agents_own_play_token_for_token(name: str) -> None:
    recordings = [await recorded(0, 5, 5), await recorded(1, 5, 5)]
    segments = await replayed(load_agent(name), *recordings)
    async with served(RealWorlds(COUNTER, lambda: CounterEnvironment(COUNTER))) as url:
        player = AgentPlayer(load_agent(name), Adder(), CODEC, url=url, env="counter")
        lived = await player.play(COUNTER.tasks[:2], groups=["", ""], seeds=[0, 0], version=0, sampling_seed=0)
    assert [segment.ids for segment in segments] == [segment.ids for one in lived for segment in one.segments]
    assert [segment.mask for segment in segments] == [segment.mask for one in lived for segment in one.segments]


async def test_only_what_the_policy_says_is_learned() -> None:
    (segment,) = await replayed(load_agent("langgraph"), await recorded(0, 3, 7))
    row = conversation_row(segment)
    assert row["input_ids"] == segment.ids
    assert len(row["labels"]) == len(segment.ids)
    learned = [id for id, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert TOKENIZER.decode(learned) == "".join(f"{call('add', n=n)}<|im_end|>" for n in (3, 7))
    assert [label for label in row["labels"] if label != -100] == learned


async def test_the_answer_that_ended_a_recording_is_the_last_thing_said() -> None:
    begun = await recorded(0, 4)
    answered = begun.model_copy(update={"stop_reason": StopReason.FINISHED, "answer": "It is four.", "final_reward": 1})
    (segment,) = await replayed(load_agent("react"), answered)
    assert TOKENIZER.decode(segment.completion_ids).endswith("It is four.<|im_end|>")


async def test_a_recording_with_a_call_that_the_server_refuses_is_left_out_and_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    forbidden = (await recorded(0, 5, 5)).model_dump()
    forbidden["transitions"][0]["action"]["arguments"] = {"n": -5}
    segments = await replayed(load_agent("react"), Trajectory.model_validate(forbidden), await recorded(1, 9))
    assert len(segments) == 1
    assert call("add", n=9) in TOKENIZER.decode(segments[0].completion_ids)
    (told,) = [one.getMessage() for one in caplog.records if "recorded episodes" in one.getMessage()]
    assert told.startswith("1 of 2 recorded episodes could not be played through the agent, and nothing is learned")


async def test_an_agent_that_asks_for_more_than_the_next_action_cannot_be_replayed_through() -> None:
    react = load_agent("react")

    async def planner(task: str, mcp_url: str, policy_url: str) -> str:
        async with AsyncOpenAI(base_url=policy_url, api_key="none") as client:
            await client.chat.completions.create(model="m", messages=[{"role": "user", "content": f"A plan: {task}"}])
        return await react(task, mcp_url, policy_url)

    with pytest.raises(InvalidInput, match="none of 1 recorded episodes could be played through the agent"):
        await replayed(planner, await recorded(0, 4, 6))
