"""Unchanged third-party agents play a policy's episodes through a real server, and every token is kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer
from dreamgym_integrations.trainers.policy.model import ChatCodec
from dreamgym_integrations.trainers.policy.ppo import token_rewards
from dreamgym_server.sources import RealWorlds, Worlds
from echo import SPEC, Echo, tiny
from mcp import Client
from openai import AsyncOpenAI
from server_stage import CounterEnvironment, CounterModel, Stage, counter_spec
from speakers import CODEC, TOKENIZER, Speaker, byte_pairs, call

from dreamgym.dream.model import Prediction, Query
from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import Agent, load_agent
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.replay.episode_store import Episode
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.training.rollout import Policy, Rollout, Segment
from dreamgym.types import JsonObject, StepResult, ToolCall

pytestmark = pytest.mark.anyio
AGENTS = ["react", "langgraph", "openai_agents"]
COUNTER = counter_spec()
Play = Callable[..., Awaitable[list[Rollout]]]


@asynccontextmanager
async def stage(
    agent: Agent, policy: Policy, codec: Any = CODEC, *, worlds: Worlds, **options: Any
) -> AsyncIterator[Play]:
    """Start a server; yield a function that lets the agent play `n` episodes of the first task there."""
    place = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with place.serve(worlds) as (url, _):
        player = AgentPlayer(agent, policy, codec, url=url, env=worlds.spec.name, **options)

        async def play(n: int = 1, *, sampling_seed: int = 0) -> list[Rollout]:
            tasks = [worlds.spec.tasks[0]] * n
            return await player.play(tasks, groups=["g"] * n, seeds=[3] * n, version=5, sampling_seed=sampling_seed)

        yield play


def counter() -> Worlds:
    return Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore()).real(COUNTER)


def echo(**options: Any) -> Worlds:
    return RealWorlds(SPEC, lambda: Echo(**options))


def to_ten(prompt: str) -> str:
    """Adds five, thinks aloud, and adds five."""
    return call("add", n=5) if "count 5" not in prompt else "Five more.\n" + call("add", n=5)


def turns(segment: Segment) -> list[list[int]]:
    """The ids that the policy sampled, turn by turn."""
    pairs = zip(segment.completion_ids, segment.mask, strict=True)
    return [[id for id, _ in run] for mine, run in itertools.groupby(pairs, lambda pair: pair[1]) if mine]


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_plays_unchanged_and_its_conversation_is_one_segment(name: str) -> None:
    speaker = Speaker(to_ten)
    async with stage(load_agent(name), speaker, worlds=counter()) as play:
        (rollout,) = await play()
    assert (rollout.error, rollout.success, rollout.reward, rollout.refused) == (None, True, 1.0, 0)
    assert rollout.actions == ['add{"n":5}', 'add{"n":5}']
    (segment,) = rollout.segments
    said = [call("add", n=5) + "<|im_end|>", "Five more.\n" + call("add", n=5) + "<|im_end|>"]
    assert [TOKENIZER.decode(turn) for turn in turns(segment)] == said
    # each prompt begins the recorded segment: the recorded tokens are those that the policy was asked with
    prompts = [prompt for batch in speaker.batches for prompt in batch]
    assert [segment.ids[: len(prompt)] for prompt in prompts] == prompts
    assert segment.rewards == [0.0] * (len(segment.rewards) - 1) + [1.0]


@pytest.mark.parametrize("name", AGENTS)
async def test_log_probabilities_are_those_of_the_model_on_the_whole_sequence(name: str, tmp_path: Path) -> None:
    policy, codec = await tiny(tmp_path)
    async with stage(load_agent(name), policy, codec, worlds=echo()) as play:
        rollouts = await play(4)
    for rollout in rollouts:
        assert rollout.error is None
        (segment,) = rollout.segments
        said = [codec.decode(turn) for turn in turns(segment)]
        assert rollout.actions == [f'act{{"command":"{words}"}}' for words in said]
        assert len(said) == SPEC.max_steps
        with torch.inference_mode():
            logits = policy.model(torch.tensor([segment.ids])).logits[0, len(segment.prompt_ids) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(segment.completion_ids).unsqueeze(-1)).squeeze(-1)
        mine = torch.tensor(segment.mask).bool()
        assert torch.allclose(torch.tensor(segment.logprobs)[mine], expected[mine], atol=1e-4)
    assert len({str(rollout.actions) for rollout in rollouts}) > 1


async def test_a_langgraph_agent_shows_a_tiny_policy_the_very_tokens_that_it_was_warm_started_on(
    tmp_path: Path,
) -> None:
    policy, codec = await tiny(tmp_path)
    async with stage(load_agent("langgraph"), policy, codec, worlds=echo()) as play:
        (rollout,) = await play()
    (segment,) = rollout.segments
    expected = codec.start("say something\nhello")
    assert segment.prompt_ids == expected
    said = turns(segment)
    for ids in said[:-1]:
        heard = f"you said {' '.join(codec.decode(ids).split())}"
        expected = [*expected, *ids, *codec.turn(heard, ended=codec.ended(ids))]
    assert segment.ids == [*expected, *said[-1]]


async def test_the_confidence_of_an_episode_is_that_of_its_least_certain_answer() -> None:
    class Unsure(CounterModel):
        async def predict(self, query: Query) -> Prediction:
            made = await super().predict(query)
            sure = 0.9 if made.terminated else 0.4
            return made.model_copy(update={"provenance": made.provenance.model_copy(update={"confidence": sure})})

    place = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    place.model = Unsure()
    async with stage(load_agent("react"), Speaker(to_ten), worlds=place.dream()) as play:
        (rollout,) = await play()
    assert (rollout.error, rollout.confidence, rollout.success) == (None, 0.4, True)


async def test_the_rewards_are_the_servers_and_stand_at_the_last_sampled_token(tmp_path: Path) -> None:
    policy, codec = await tiny(tmp_path)
    async with stage(load_agent("react"), policy, codec, worlds=echo()) as play:
        rollouts = await play(6)
    for rollout in rollouts:
        words = [action.removeprefix('act{"command":"').removesuffix('"}').split() for action in rollout.actions]
        assert rollout.total_reward == pytest.approx(0.1 * sum(map(len, words)))
        assert rollout.refused == sum(not one for one in words)
        (segment,) = rollout.segments
        assert [reward for reward in segment.rewards if reward] == [rollout.total_reward]
        assert segment.rewards[-1] == rollout.total_reward
        assert not rollout.success, "the echo has no end of its own"


class Unjudged(CounterEnvironment):
    """A real environment that cannot judge the end of its own task."""

    async def step(self, action: ToolCall) -> StepResult:
        return StepResult(observation="sent", truncated=True, info={"open_end": True})


@pytest.mark.parametrize("name", AGENTS)
async def test_the_reward_is_unknown_if_the_real_environment_could_not_judge_the_end(name: str) -> None:
    worlds = RealWorlds(COUNTER, lambda: Unjudged(COUNTER))
    async with stage(load_agent(name), Speaker(to_ten), worlds=worlds) as play:
        (rollout,) = await play()
    assert (rollout.error, rollout.reward, rollout.actions) == (None, None, ['add{"n":5}'])


async def test_the_same_seed_gives_the_same_episode_and_another_gives_another(tmp_path: Path) -> None:
    policy, codec = await tiny(tmp_path)
    async with stage(load_agent("react"), policy, codec, worlds=echo()) as play:
        one, again, other = await play(3), await play(3), await play(3, sampling_seed=1)
    ids = [[segment.ids for rollout in run for segment in rollout.segments] for run in (one, again, other)]
    assert ids[0] == ids[1] != ids[2]


async def test_an_agent_that_rewrites_its_history_yields_a_segment_each_time() -> None:
    speaker = Speaker(lambda prompt: f"{prompt.count('note')} notes")

    async def forgetful(task: str, mcp_url: str, policy_url: str) -> str:
        """Ask each question in a new conversation that contains only its notes."""
        notes = [task]
        async with AsyncOpenAI(base_url=policy_url, api_key="none") as client:
            for _ in range(3):
                said = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "\n".join(notes)}]
                )
                notes.append(f"note: {said.choices[0].message.content}")
        return notes[-1]

    async with stage(forgetful, speaker, worlds=counter()) as play:
        (rollout,) = await play()
    said = [TOKENIZER.decode(segment.completion_ids) for segment in rollout.segments]
    assert said == ["0 notes<|im_end|>", "2 notes<|im_end|>", "4 notes<|im_end|>"]
    assert rollout.reward == 0.0


async def test_the_reward_comes_after_everything_that_the_policy_said_in_any_conversation() -> None:
    async def with_a_helper(task: str, mcp_url: str, policy_url: str) -> str:
        """Ask in one conversation, then in a second one, and go on with the first."""
        plan, helper = ([{"role": "user", "content": text}] for text in (task, "How?"))
        async with AsyncOpenAI(base_url=policy_url, api_key="none") as client, Client(mcp_url) as environment:
            for talk in (plan, helper, plan):
                messages: Any = talk
                said = await client.chat.completions.create(model="m", messages=messages)
                talk.append({"role": "assistant", "content": said.choices[0].message.content or ""})
                talk.append({"role": "user", "content": "And then?"})
            for _ in range(2):
                await environment.call_tool("add", {"n": 5})
        return "done"

    speaker = Speaker(lambda prompt: "help" if "How?" in prompt else "plan")
    async with stage(with_a_helper, speaker, worlds=counter()) as play:
        (rollout,) = await play()
    assert [len(turns(segment)) for segment in rollout.segments] == [2, 1]
    assert [sorted({*segment.turns}) for segment in rollout.segments] == [[0, 1, 3], [2]]
    rewards_T = token_rewards(rollout.segments, rollout.total_reward)
    assert (rollout.reward, rewards_T[-1], sum(rewards_T)) == (1.0, 1.0, 1.0), "PPO credits what comes before a reward"


async def crashes(task: str, mcp_url: str, policy_url: str) -> str:
    raise ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("no such key\nTraceback …")])


async def hangs(task: str, mcp_url: str, policy_url: str) -> str:
    await asyncio.Event().wait()
    return ""


async def exits(task: str, mcp_url: str, policy_url: str) -> str:
    raise SystemExit(3)


async def gives_up(task: str, mcp_url: str, policy_url: str) -> str:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("broken", "error"),
    [
        (crashes, "the agent failed before its episode was over: ValueError: no such key"),
        (hangs, "the agent was stopped after 8 s, before its episode was over"),
        (exits, "the agent failed before its episode was over: RuntimeError: the agent called sys.exit(3)"),
        (gives_up, "the agent was cancelled before its episode was over"),
    ],
)
async def test_an_agent_that_fails_loses_its_episode_and_no_other(broken: Agent, error: str) -> None:
    numbers = itertools.count()
    react = load_agent("react")

    async def agent(task: str, mcp_url: str, policy_url: str) -> str:
        return await (broken if next(numbers) == 1 else react)(task, mcp_url, policy_url)

    async with stage(agent, Speaker(to_ten), worlds=counter(), limit_s=8) as play:
        first, second, third = await play(3)
    assert (second.error, second.reward, second.segments) == (error, None, [])
    assert first.reward == third.reward == 1.0


async def test_the_steps_of_an_agent_that_fails_are_counted() -> None:
    async def breaks_off(task: str, mcp_url: str, policy_url: str) -> str:
        async with Client(mcp_url) as environment:
            for _ in range(3):
                await environment.call_tool("add", {"n": 1})
        raise OSError("its notes cannot be written")

    async with stage(breaks_off, Speaker(to_ten), worlds=counter()) as play:
        (rollout,) = await play()
    assert (rollout.reward, len(rollout.actions)) == (None, 3)


class Forgetful(ChatCodec):
    """A codec with a fault: it cannot go on with a conversation."""

    def added(self, messages: Sequence[JsonObject], *, ended: bool) -> list[int]:
        raise KeyError("turn")


@pytest.mark.parametrize(
    ("codec", "error"),
    [
        (lambda: Forgetful(byte_pairs()), "500"),
        (lambda: ChatCodec(unended()), "does not end a tool call with the tokenizer's end token '<|endoftext|>'"),
    ],
)
async def test_an_endpoint_that_cannot_answer_is_not_blamed_on_the_policy(
    codec: Callable[[], ChatCodec], error: str
) -> None:
    async with stage(load_agent("react"), Speaker(to_ten), codec(), worlds=counter()) as play:
        (rollout,) = await play()
    assert error in str(rollout.error)
    assert rollout.reward is None


def unended() -> Any:
    """A tokenizer whose template ends turns with another token than its own."""
    tokenizer = byte_pairs()
    tokenizer.add_special_tokens({"eos_token": "<|endoftext|>"})
    return tokenizer


async def test_an_agent_that_crashes_after_the_end_of_its_episode_keeps_the_reward() -> None:
    react = load_agent("react")

    async def clumsy(task: str, mcp_url: str, policy_url: str) -> str:
        await react(task, mcp_url, policy_url)
        raise ValueError("too late")

    async with stage(clumsy, Speaker(to_ten), worlds=counter()) as play:
        (rollout,) = await play()
    assert (rollout.error, rollout.reward) == (None, 1.0)


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_that_answers_without_acting_is_a_valid_episode(name: str) -> None:
    async with stage(load_agent(name), Speaker(lambda prompt: "I give up."), worlds=counter()) as play:
        (rollout,) = await play()
    assert (rollout.error, rollout.reward, rollout.success, rollout.actions) == (None, 0.0, False, [])
    assert [TOKENIZER.decode(segment.completion_ids) for segment in rollout.segments] == ["I give up.<|im_end|>"]


@pytest.mark.parametrize("name", AGENTS)
async def test_an_agent_whose_conversation_has_no_room_left_ends_by_itself(name: str) -> None:
    speaker = Speaker(lambda prompt: "I wait. " * 30 + call("add", n=0))
    async with stage(load_agent(name), speaker, ChatCodec(TOKENIZER, max_tokens=3000), worlds=counter()) as play:
        (rollout,) = await play()
    assert rollout.error is None
    assert 0 < len(rollout.actions) < COUNTER.max_steps
    (segment,) = rollout.segments
    assert max(len(prompt) for batch in speaker.batches for prompt in batch) < 3000 < len(segment.ids) + 300


async def test_an_environment_that_fails_is_an_error_of_its_episodes(tmp_path: Path) -> None:
    policy, codec = await tiny(tmp_path)
    async with stage(load_agent("react"), policy, codec, worlds=echo(breaks=True), limit_s=20) as play:
        (rollout,) = await play()
    assert rollout.reward is None
    assert "the echo broke" in str(rollout.error)


async def test_an_episode_whose_end_could_not_be_judged_is_closed_and_its_steps_are_counted() -> None:
    class Unjudged(RealWorlds):
        async def judge(self, episode: Episode, answer: str | None) -> bool | None:
            raise EnvironmentUnavailable("the judge is away")

    async def adds_once(task: str, mcp_url: str, policy_url: str) -> str:
        async with Client(mcp_url) as environment:
            await environment.call_tool("add", {"n": 1})
        return "done"

    place = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with place.serve(Unjudged(COUNTER, lambda: CounterEnvironment(COUNTER))) as (url, _):
        player = AgentPlayer(adds_once, Speaker(to_ten), CODEC, url=url, env="counter")
        (rollout,) = await player.play(COUNTER.tasks[:1], groups=["a"], seeds=[1], version=5, sampling_seed=0)
    assert "the judge is away" in str(rollout.error)
    assert (rollout.reward, len(rollout.actions)) == (None, 1)
    long_ago = datetime.fromtimestamp(0, UTC)
    assert await place.episodes.running(long_ago, long_ago) == 0


async def test_a_server_that_is_gone_is_an_error_of_every_episode() -> None:
    player = AgentPlayer(load_agent("react"), Speaker(to_ten), CODEC, url="http://127.0.0.1:9", env="counter")
    tasks = COUNTER.tasks[:2]
    rollouts = await player.play(tasks, groups=["", ""], seeds=[0, 0], version=0, sampling_seed=0)
    assert [rollout.task for rollout in rollouts] == list(tasks)
    assert all("cannot be reached" in str(rollout.error) and rollout.reward is None for rollout in rollouts)


async def test_a_policy_that_fails_stops_the_trainer_and_not_only_an_agent() -> None:
    def broken(prompt: str) -> str:
        raise RuntimeError("out of memory")

    async with stage(load_agent("react"), Speaker(broken), worlds=counter()) as play:
        with pytest.raises(RuntimeError, match="out of memory"):
            await play(2)


async def test_tools_that_the_policys_template_cannot_show_are_named_in_the_error(tmp_path: Path) -> None:
    policy, codec = await tiny(tmp_path)
    async with stage(load_agent("react"), policy, codec, worlds=counter()) as play:
        (rollout,) = await play()
    assert "does not support tools" in str(rollout.error)
    assert "add, peek" in str(rollout.error)


async def test_an_episode_is_known_to_the_server_by_its_task_seed_and_policy() -> None:
    place = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with place.serve(place.real(COUNTER)) as (url, _):
        player = AgentPlayer(load_agent("react"), Speaker(to_ten), CODEC, url=url, env="counter")
        await player.play(COUNTER.tasks[:2], groups=["a", "b"], seeds=[1, 2], version=5, sampling_seed=0)
    kept = await place.buffer.trajectories("counter")
    known = [await place.episodes.load(one.id) for one in kept]
    assert sorted((one.task.id, one.seed, one.policy_version) for one in known) == [
        ("counter-0", 1, 5),
        ("counter-1", 2, 5),
    ]
