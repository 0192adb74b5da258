"""Batches of prompts: those that wait at the same time are sampled together, one batch at a time.

A batch costs a model little more than a single prompt, and a prompt that just misses a batch waits for all of it. So a
batch waits a little for prompts that are about to come: the episodes of one batch meet again in the next.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from dreamgym.training.rollout import Generation, Policy

FIRST_S = 10.0
"""Assumed duration of a batch before the first one: agents that begin together need time to connect."""
PAUSE, PAUSE_S = 0.1, 0.02
"""A batch starts if no new prompt comes for this share of the time that the last batch took, at least for PAUSE_S."""
PAUSE_FOR_ALL = 0.3
"""Share in place of PAUSE if the last batch had the prompts of all callers, who then probably come back together."""
WAIT_S = 1.0
"""A batch waits at most as long as the last one took, or this long if that is more; it starts once all callers wait."""


class PolicyFailed(Exception):
    """The policy raised an exception, which the message contains."""


@dataclass(frozen=True)
class _Asking:
    prompt: Sequence[int]
    seed: int
    answer: asyncio.Future[Generation]


class Batches:
    """Samples in batches for many callers, who may ask at any time.

    Args:
        policy: called in a thread, never twice at a time.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._asking: list[_Asking] = []
        self._came = asyncio.Event()
        self._sampling = asyncio.Lock()
        self._took_s = FIRST_S
        self._all_were_in = False
        self._askers = 0
        self.failure: Exception | None = None
        """The exception that the policy raised, if it did."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sample until the block ends, then wait for the running batch, since its policy must not change."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            async with self._sampling:
                task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    def expect(self, askers: int) -> None:
        """Set the number of callers; a batch that all of them wait for starts at once."""
        self._askers = askers
        self._came.set()

    async def sample(self, prompt: Sequence[int], seed: int) -> Generation:
        """One continuation. Raises PolicyFailed; a policy that failed once is not asked again."""
        if self.failure is not None:
            raise _failed(self.failure)
        answer: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._asking.append(_Asking(prompt, seed, answer))
        self._came.set()
        return await answer

    async def _run(self) -> None:
        while True:
            await self._met()
            batch, self._asking = [one for one in self._asking if not one.answer.done()], []
            if batch:
                async with self._sampling:
                    await self._sample(batch)

    async def _met(self) -> None:
        """Wait until a prompt has come, and others that were about to come as well."""
        await self._came.wait()
        clock = asyncio.get_running_loop().time
        latest = clock() + max(WAIT_S, self._took_s)
        pause = max(PAUSE_S, self._took_s * (PAUSE_FOR_ALL if self._all_were_in else PAUSE))
        while len(self._asking) < self._askers:
            self._came.clear()
            try:
                async with asyncio.timeout_at(min(latest, clock() + pause)):
                    await self._came.wait()
            except TimeoutError:
                break
        self._came.clear()
        self._all_were_in = len(self._asking) >= self._askers

    async def _sample(self, batch: Sequence[_Asking]) -> None:
        began = time.monotonic()
        prompts_B, seeds_B = [one.prompt for one in batch], [one.seed for one in batch]
        try:
            sampled_B = await asyncio.to_thread(self._policy.generate, prompts_B, seeds_B=seeds_B)
        except Exception as error:  # noqa: BLE001  # whatever it is, those who wait must hear of it
            self.failure = error
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(_failed(error))
            return
        self._took_s = time.monotonic() - began
        for one, sampled in zip(batch, sampled_B, strict=True):
            if not one.answer.done():
                one.answer.set_result(sampled)


def _failed(error: Exception) -> PolicyFailed:
    return PolicyFailed(f"the policy failed: {type(error).__name__}: {error}")
