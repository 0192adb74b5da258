"""A pointer policy behind the policy endpoint: an unchanged agent plays, and every choice is kept with its state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from desks import SPEC, Desks, untrained
from dreamgym_integrations.trainers.policy.agent_player import AgentPlayer
from dreamgym_integrations.trainers.policy.model import PolicyCodec, load_codec, load_policy
from dreamgym_integrations.trainers.policy.pointer.conversations import PointerConversations
from dreamgym_server.sources import RealWorlds
from server_stage import Stage
from speakers import ADD

from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import load_agent
from dreamgym.errors import InvalidInput
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.training.rollout import Generation, Rollout, TokenPlayer

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pointer")
    untrained(folder)
    return folder


async def test_an_unchanged_agent_shows_the_states_that_the_policy_sees_without_an_agent(base: Path) -> None:
    policy, codec = load_policy(base)
    task = SPEC.tasks[0]
    place = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    async with place.serve(RealWorlds(SPEC, Desks)) as (url, _):
        player = AgentPlayer(load_agent("react"), policy, codec, url=url, env="desks")
        (rollout,) = await player.play([task], groups=["g"], seeds=[0], version=0, sampling_seed=0)
    assert rollout.error is None
    assert len(rollout.segments) == len(rollout.actions) > 1
    said = [one.completion_ids[0] for one in rollout.segments]
    assert [one.prompt_ids for one in rollout.segments] == (await alone(codec, said)).prompts


class Recalled:
    """A policy that makes given choices and remembers what it was shown."""

    def __init__(self, choices: list[int]) -> None:
        self._choices, self.prompts = iter(choices), list[list[int]]()

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        self.prompts += map(list, prompts_B)
        return [Generation((next(self._choices),), (0.0,))]


async def alone(codec: PolicyCodec, choices: list[int]) -> Recalled:
    """Play the same choices without an agent, and return the policy."""
    policy = Recalled(choices)
    player = TokenPlayer(policy, codec, SPEC, lambda version, group: Desks())
    (played,) = await player.play([SPEC.tasks[0]], groups=[""], seeds=[0], version=0, sampling_seed=0)
    assert isinstance(played, Rollout)
    return policy


async def test_a_request_that_does_not_fit_an_episode_of_the_environment_is_refused(base: Path) -> None:
    codec = load_codec(base)
    conversations = codec.conversations()
    assert isinstance(conversations, PointerConversations)
    with pytest.raises(InvalidInput, match="expected a message of the user with the task"):
        conversations.prompt([{"role": "system", "content": "Be good."}], [])
    with pytest.raises(InvalidInput, match="is a text, not add:"):
        conversations.prompt([{"role": "user", "content": "Take the mug."}], [ADD])
