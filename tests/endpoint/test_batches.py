"""Prompts that wait at the same time are sampled in one batch; a batch under way is always waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest
from dreamgym_integrations.trainers.policy.batches import Batches, PolicyFailed

from dreamgym.training.rollout import Generation

pytestmark = pytest.mark.anyio


class Doubling:
    """A policy that says each prompt twice, and fails for an odd seed."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.began, self.may_end = threading.Event(), threading.Event()
        self.may_end.set()
        self.busy = False

    def generate(self, prompts_B: Sequence[Sequence[int]], *, seeds_B: Sequence[int]) -> list[Generation]:
        assert not self.busy, "one batch at a time"
        self.busy = True
        self.sizes.append(len(prompts_B))
        self.began.set()
        assert self.may_end.wait(60)
        self.busy = False
        if any(seed % 2 for seed in seeds_B):
            raise ValueError("odd")
        return [Generation((*prompt, *prompt), (0.0,) * 2 * len(prompt)) for prompt in prompts_B]


async def test_episodes_that_come_back_from_one_batch_meet_in_the_next_and_those_that_left_are_not_waited_for() -> None:
    policy = Doubling()
    batches = Batches(policy)
    playing = 8
    batches.expect(playing)

    async def episode(number: int) -> None:
        nonlocal playing
        for turn in range(number + 1):
            assert (await batches.sample([number, turn], 2 * number)).ids == (number, turn, number, turn)
        playing -= 1
        batches.expect(playing)

    async with batches.running():
        await asyncio.gather(*map(episode, range(8)))
    assert policy.sizes == [8, 7, 6, 5, 4, 3, 2, 1]


async def test_a_prompt_that_comes_while_a_batch_is_under_way_waits_for_the_next() -> None:
    policy = Doubling()
    batches = Batches(policy)
    policy.may_end.clear()
    async with batches.running():
        first = asyncio.create_task(batches.sample([1], 0))
        await asyncio.to_thread(policy.began.wait, 60)
        others = [asyncio.create_task(batches.sample([n], 0)) for n in range(5)]
        left = asyncio.create_task(batches.sample([9], 0))
        await asyncio.wait([left], timeout=0)
        left.cancel()
        policy.may_end.set()
        await asyncio.gather(first, *others)
    assert policy.sizes == [1, 5]


async def test_a_failed_policy_fails_its_whole_batch_and_is_not_asked_again() -> None:
    policy = Doubling()
    batches = Batches(policy)
    batches.expect(2)
    async with batches.running():
        told = await asyncio.gather(*(batches.sample([n], n) for n in range(2)), return_exceptions=True)
        assert [str(error) for error in told] == ["the policy failed: ValueError: odd"] * 2
        assert all(isinstance(error, PolicyFailed) for error in told)
        with pytest.raises(PolicyFailed, match="ValueError: odd"):
            await batches.sample([3], 2)
    assert policy.sizes == [2]
    assert isinstance(batches.failure, ValueError)


async def test_the_end_waits_for_the_batch_under_way_before_the_policy_changes() -> None:
    policy = Doubling()
    batches = Batches(policy)
    policy.may_end.clear()
    async with batches.running():
        abandoned = asyncio.create_task(batches.sample([1], 0))
        await asyncio.to_thread(policy.began.wait, 60)
        abandoned.cancel()
        asyncio.get_running_loop().call_soon(policy.may_end.set)
    assert not policy.busy
