"""Running episodes: one step at a time each, stored before it is answered, resumable anywhere.

The episode store is the truth; what this process holds is a cache. A step is computed with no transaction open and
appended on top of the version it was computed from: where another process was faster, it is computed anew.
A step that has begun runs to its end even when its client leaves; `call` says who then gets the answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pydantic import Field

from dreamgym.environment import Environment
from dreamgym.errors import (
    DreamGymError,
    EnvironmentUnavailable,
    InvalidInput,
    StaleEpisode,
    UnknownEpisode,
    UnknownName,
)
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episodes import Episode, EpisodeStore
from dreamgym.tools import Tools
from dreamgym.types import Frozen, StepResult, StopReason, Task, ToolCall
from dreamgym_server.archive import Archive, trajectory_of
from dreamgym_server.live import Answer, Call, Client, Live, ended
from dreamgym_server.worlds import WorldChanged, Worlds

logger = logging.getLogger(__name__)

UNAVAILABLE = "The environment is currently unavailable and the call had no effect. Please try again."
GONE = "The environment is unavailable. The session has ended."


@dataclass(frozen=True)
class Limits:
    """Bounds of one server process."""

    open_episodes: int = 4096
    episode_s: float = 3600.0
    """An episode that is not over by then is closed."""
    step_s: float = 300.0
    failures: int = 3
    """Failed steps in a row that end an episode."""
    sweep_s: float = 30.0


class TooManyEpisodes(InvalidInput):
    """The server holds as many open episodes as it may."""


class NewEpisode(Frozen):
    """What a trainer asks for."""

    task_id: str | None = None
    task: Task | None = None
    seed: int = 0
    max_steps: int | None = Field(default=None, ge=1)
    group: str | None = None
    idempotency_key: str | None = None
    policy_version: int | None = None


class Episodes:
    """All episodes of one server process."""

    def __init__(
        self,
        worlds: Mapping[str, Worlds],
        store: EpisodeStore,
        buffer: ReplayBuffer,
        limits: Limits | None = None,
    ) -> None:
        self.worlds = worlds
        self._tools = {name: Tools(world.spec) for name, world in worlds.items()}
        self._store = store
        self._buffer = buffer
        self._archive = Archive(buffer)
        self._limits = limits or Limits()
        self._live: dict[str, Live] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def world(self, env: str) -> Worlds:
        """The worlds of one environment. Raises UnknownName listing the environments."""
        if env not in self.worlds:
            raise UnknownName("environment", env, self.worlds)
        return self.worlds[env]

    async def create(self, env: str, order: NewEpisode, *, episode_id: str | None = None) -> Episode:
        """Start an episode, or return the one that an earlier call with the same idempotency key started."""
        world = self.world(env)
        if len(self._live) >= self._limits.open_episodes:
            raise TooManyEpisodes(f"{len(self._live)} episodes are open: finish or delete some, or try again later")
        task = await self._task(world, order)
        identity = episode_id or secrets.token_hex(16)
        environment = world.create(identity)
        try:
            episode = Episode(
                id=identity,
                env=env,
                task=task,
                seed=order.seed,
                max_steps=order.max_steps or world.spec.max_steps,
                group=order.group,
                initial=await environment.reset(task, seed=order.seed),
                policy_version=order.policy_version,
                expires_at=datetime.now(UTC) + timedelta(seconds=self._limits.episode_s),
            )
            stored = await self._store.create(episode, idempotency_key=order.idempotency_key)
        except BaseException:
            await environment.close()
            raise
        if stored.id != identity:
            await environment.close()
            return stored
        self._live[identity] = Live(stored, environment)
        return stored

    async def call(
        self, env: str, episode_id: str, action: ToolCall, client: Client, request_id: str | int | None = None
    ) -> Answer:
        """Take one step for a client.

        Two identical calls are two steps, unless the first one's client has gone: then the second is a resend, and
        joins the step under way, or is given the answer that could not be delivered.

        Raises:
            UnknownEpisode: there is none of this id in this environment.
        """
        live = await self._find(env, episode_id)
        key = action.canonical()
        running = live.calls.get(key)
        if running is None or not await running.abandoned() or running.task is None or running.task.done():
            running = live.calls[key] = Call(clients=[client], request_id=request_id)
            running.task = asyncio.create_task(self._serve(live, action, key, running))
        else:
            running.clients.append(client)
            running.cancelled = False
        return await asyncio.shield(running.task)

    async def cancel(self, env: str, episode_id: str, request_id: str | int) -> None:
        """The client of this request waits no longer; the step goes on."""
        live = self._live.get(episode_id)
        for call in list(live.calls.values()) if live else ():
            call.cancelled = call.cancelled or call.request_id == request_id

    async def read(self, env: str, episode_id: str) -> Episode:
        """The episode as the store has it. Raises UnknownEpisode."""
        episode = await self._store.load(episode_id)
        if episode.env != self.world(env).spec.name:
            raise UnknownEpisode(episode_id)
        return episode

    async def finish(
        self, env: str, episode_id: str, reason: StopReason = StopReason.FINISHED, answer: str | None = None
    ) -> Episode:
        """End the episode after the step under way; one that is over keeps its first end."""
        live = await self._find(env, episode_id)
        async with live.lock:
            if live.episode.stop_reason is None:
                reward = 0.0 if reason is StopReason.FINISHED else None
                await self._finish(live, reason, answer=answer, final_reward=reward)
            return live.episode

    async def delete(self, env: str, episode_id: str) -> None:
        """End the episode and forget it; what was played is in the buffer."""
        await self.finish(env, episode_id, StopReason.CLOSED)
        await self._store.delete(episode_id)

    async def sweep(self, now: datetime) -> int:
        """Close the episodes whose time is over, and say how many."""
        expired = await self._store.expired(now)
        ours = [episode for episode in expired if episode.env in self.worlds]
        for episode in ours:
            with suppress(UnknownEpisode):  # deleted meanwhile
                await self.finish(episode.env, episode.id, StopReason.CLOSED)
        return len(ours)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sweep and archive in the background; at the end, everything played is in the buffer."""
        background = [asyncio.create_task(self._archive.run()), asyncio.create_task(self._sweep_forever())]
        try:
            yield
        finally:
            calls = [call.task for live in self._live.values() for call in live.calls.values() if call.task]
            await asyncio.gather(*calls, return_exceptions=True)
            await self._archive.flush()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, *self._closing, return_exceptions=True)
            for live in self._live.values():
                if live.environment is not None:
                    await _close(live.environment)
            self._live.clear()

    async def _sweep_forever(self) -> None:
        while True:
            await asyncio.sleep(self._limits.sweep_s)
            try:
                await self.sweep(datetime.now(UTC))
            except DreamGymError as error:
                logger.warning("expired episodes could not be closed: %s", error)

    async def _task(self, world: Worlds, order: NewEpisode) -> Task:
        env = world.spec.name
        if order.task is not None:
            if order.task_id not in {None, order.task.id}:
                raise InvalidInput("give either task_id or task, not both")
            if order.task.env != env:
                raise InvalidInput(f"task {order.task.id!r} is one of {order.task.env!r}, not of {env!r}")
            return order.task
        known = {task.id: task for task in world.spec.tasks}
        if order.task_id not in known:
            known |= {task.id: task for task in await self._buffer.tasks(env)}
        if order.task_id is None:
            if not known:
                raise InvalidInput(f"environment {env!r} has no task of its own: give one as 'task'")
            return next(iter(known.values()))
        if order.task_id not in known:
            raise UnknownName("task", order.task_id, list(known)[:20], f"{len(known)} in all")
        return known[order.task_id]

    async def _find(self, env: str, episode_id: str) -> Live:
        live = self._live.get(episode_id)
        if live is None:
            episode = await self._store.load(episode_id)
            if episode.stop_reason is not None:
                live = Live(episode)
            else:
                live = self._live.setdefault(episode_id, Live(episode))
        if live.episode.env != env:
            raise UnknownEpisode(episode_id)
        return live

    async def _serve(self, live: Live, action: ToolCall, key: str, call: Call) -> Answer:
        async with live.lock:
            try:
                if live.episode.undelivered and live.episode.transitions[-1].action.canonical() == key:
                    return await self._redeliver(live)
                answer = await self._step(live, action, key)
                if not answer.uncounted and await call.abandoned():
                    await self._mark(live, undelivered=True)
                return answer
            finally:
                if live.calls.get(key) is call:
                    del live.calls[key]

    async def _step(self, live: Live, action: ToolCall, key: str) -> Answer:
        tools = self._tools[live.episode.env]
        for _ in range(3):
            if live.episode.stop_reason is not None:
                return ended(live.episode)
            if refusal := tools.refusal(action, key):
                return Answer.refusal(refusal, live.episode.version, "refused")
            try:
                return await self._advance(live, action)
            except StaleEpisode:
                await self._release(live)
                live.episode = await self._store.load(live.episode.id)
            except DreamGymError as error:
                return await self._failed(live, str(error), for_good=isinstance(error, WorldChanged))
            except Exception as error:  # whatever an environment or a model throws must not reach the agent
                logger.exception("episode %s: a step failed", live.episode.id)
                return await self._failed(live, f"{type(error).__name__}: {error}")
        return await self._failed(live, "other processes kept changing the episode")

    async def _advance(self, live: Live, action: ToolCall) -> Answer:
        episode, world = live.episode, self.worlds[live.episode.env]
        if live.environment is None:
            live.environment = await world.restore(episode)
        try:
            async with asyncio.timeout(self._limits.step_s):
                result = await live.environment.step(action)
        except TimeoutError:
            raise EnvironmentUnavailable(f"no answer within {self._limits.step_s:g} s") from None
        if violation := self._tools[episode.env].violation(action.name, result):
            raise EnvironmentUnavailable(violation)
        transition = world.transition(live.environment, episode, action, result)
        if episode.version + 1 >= episode.max_steps and not result.done:
            result = result.model_copy(update={"truncated": True})
            transition = transition.model_copy(update={"result": result})
        stop_reason = _stop_reason(result)
        await self._store.append(episode.id, transition, version=episode.version, stop_reason=stop_reason)
        live.failures = 0
        live.episode = episode.model_copy(
            update={
                "transitions": (*episode.transitions, transition),
                "undelivered": False,
                "stop_reason": stop_reason,
            }
        )
        if stop_reason is not None:
            await self._retire(live)
        return Answer(result, live.episode.version)

    async def _failed(self, live: Live, reason: str, *, for_good: bool = False) -> Answer:
        """The step did not happen; what the world did meanwhile is forgotten."""
        logger.warning("episode %s, step %d: %s", live.episode.id, live.episode.version, reason)
        await self._release(live)
        live.failures += 1
        text = UNAVAILABLE
        if for_good or live.failures >= self._limits.failures:
            with suppress(DreamGymError):  # the store may be what failed; the sweeper closes the episode then
                await self._finish(live, StopReason.ERROR, error=reason)
                text = GONE
        over = live.episode.stop_reason is not None
        return Answer.refusal(text, live.episode.version, "unavailable", truncated=over)

    async def _redeliver(self, live: Live) -> Answer:
        await self._mark(live, undelivered=False)
        return Answer(live.episode.transitions[-1].result, live.episode.version)

    async def _mark(self, live: Live, *, undelivered: bool) -> None:
        live.episode = live.episode.model_copy(update={"undelivered": undelivered})
        try:
            await self._store.mark_undelivered(live.episode.id, version=live.episode.version, undelivered=undelivered)
        except DreamGymError as error:  # the step is stored; only a resend after a restart would miss the note
            logger.warning("episode %s: delivery could not be noted: %s", live.episode.id, error)

    async def _finish(
        self,
        live: Live,
        reason: StopReason,
        *,
        answer: str | None = None,
        final_reward: float | None = None,
        error: str | None = None,
    ) -> None:
        live.episode = await self._store.finish(
            live.episode.id, reason, answer=answer, final_reward=final_reward, error=error
        )
        await self._retire(live)

    async def _retire(self, live: Live) -> None:
        self._live.pop(live.episode.id, None)
        trajectory = trajectory_of(live.episode, self.worlds[live.episode.env].spec)
        assert trajectory is not None
        self._archive.put(trajectory)
        await self._release(live)

    async def _release(self, live: Live) -> None:
        """Close the world in the background: a real one may take its time."""
        if live.environment is not None:
            closing = asyncio.create_task(_close(live.environment))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            live.environment = None


def _stop_reason(result: StepResult) -> StopReason | None:
    if result.terminated:
        return StopReason.TERMINATED
    return StopReason.MAX_STEPS if result.truncated else None


async def _close(environment: Environment) -> None:
    try:
        await environment.close()
    except Exception:  # a world that cannot be closed must not take the next episode with it
        logger.exception("an environment could not be closed")
