"""Running episodes. Each takes one step at a time and stores the step before it is answered.

The episode store is authoritative, so an episode can continue in any process; the copy in this process is a cache. A
step is computed with no transaction open, and appended to the version from which it was computed. If another process
has appended a step first, the step is computed again, unless its client has left: the other process has then answered
the client's resend. An episode that two processes serve is compared with the store before each step, so that no model
call is wasted on an old state.
A step that has begun runs to its end even if its client leaves; `call` describes who then gets the answer.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import traceback
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import TypeVar

from dreamgym.budget import check_budget
from dreamgym.content import storable, storable_answer
from dreamgym.environment import Environment
from dreamgym.errors import (
    BudgetSpent,
    DreamGymError,
    EnvironmentUnavailable,
    NotRecorded,
    StaleEpisode,
    StoreError,
    UnknownEpisode,
    UnknownName,
    in_one_line,
)
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import Episode, EpisodeStore
from dreamgym.spans import TimedSpan
from dreamgym.tools import Tools, is_too_long
from dreamgym.types import Source, StepResult, StopReason, Task, ToolCall, Transition
from dreamgym_server.archive import Archive, source_of, trajectory_of
from dreamgym_server.limits import Limits
from dreamgym_server.live import (
    Client,
    EpisodeAnswer,
    EpisodeCall,
    Live,
    close,
    ended,
    stop_reason_of,
    timed,
    unstorable,
)
from dreamgym_server.requests import Fork, NewEpisode, TooManyEpisodes, chosen_task, first_steps, steps_allowed
from dreamgym_server.sources import AdmittedCall, WorldChanged, Worlds, key_of

__all__ = ["GONE", "NOT_RECORDED", "UNAVAILABLE", "Episodes", "Limits", "NewEpisode", "TooManyEpisodes"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

NOT_RECORDED = (
    "No recording of this simulation shows what this call answers. It had no effect, and trying it again does not help."
)
UNAVAILABLE = "The environment is currently unavailable and the call had no effect. Please try again."
UNCERTAIN = "The environment did not answer, and it is not known whether the call had an effect."
UNCONFIRMED = "The environment is currently unavailable. Please send the same call again."
GONE = "The environment is unavailable. The session has ended."
LOST = "The environment has lost calls that it had answered. The session has ended."


class StepsLost(EnvironmentUnavailable):
    """The store has fewer steps than were answered, so the episode cannot go on with the same history."""


LAST_STEPS_S = 20
"""Seconds that the steps under way may take until they are stored, when the server stops."""
ATTEMPTS = 8
"""Number of times that a step is tried if other processes append steps to its episode first."""


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
        self._archive = Archive(buffer, store)
        self._limits = limits or Limits()
        self._live: dict[str, Live] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def world(self, env: str) -> Worlds:
        """The DreamWorlds or RealWorlds of one environment. Raises UnknownName listing the environments."""
        if env not in self.worlds:
            raise UnknownName("environment", env, self.worlds)
        return self.worlds[env]

    async def tasks(self, env: str) -> Sequence[Task]:
        """The environment's tasks: those of its description, else the stored ones. Raises UnknownName."""
        spec = self.world(env).spec
        return spec.tasks or await self._buffer.tasks(spec.name)

    async def create(self, env: str, order: NewEpisode, *, episode_id: str | None = None) -> Episode:
        """Start an episode, or return the one that an earlier call with the same idempotency key or id started.

        Raises:
            BudgetSpent: a call of the model was refused by the budget, and the episode is not that of a session.
        """
        world = self.world(env)
        key = order.idempotency_key or episode_id
        key = key and f"create {env} {key}"
        if key and (known := await self._store.find(key)):
            return known
        if episode_id is None:  # the session of an agent may still get recorded answers
            check_budget()
        await self._check_room()
        task = world.admission.task(await chosen_task(world.spec, self._buffer, order))
        max_steps = steps_allowed(world.spec, order, self._limits)
        identity = episode_id or secrets.token_hex(16)
        as_of = await world.watermark(f"{order.seed}:{order.group}" if order.group else "")
        environment, initial = await self._in_time(world, _begun(world, identity, as_of, task, order.seed))
        episode = Episode(
            id=identity,
            env=env,
            task=task,
            seed=order.seed,
            max_steps=max_steps,
            group=order.group,
            initial=initial,
            policy_version=order.policy_version,
            as_of=as_of,
            is_kept=world.keeps,
            expires_at=self._expiry(),
        )
        return await self._start(episode, environment, key)

    async def fork(self, env: str, episode_id: str, order: Fork) -> Episode:
        """Start an episode that begins with the first steps of another one, which may be running or over.

        Raises:
            BudgetSpent: a call of the model was refused by the budget.
            UnknownEpisode: there is no such episode in this environment.
            InvalidInput: the other episode has fewer steps, or its last shared step ended it.
            WorldChanged: a real environment answers differently when the steps are played again, or their calls were
                stored redacted; or the other episode is a dream and this server plays real ones, or the reverse.
        """
        key = order.idempotency_key and f"fork {env} {episode_id} {order.step} {order.idempotency_key}"
        if key and (known := await self._store.find(key)):
            return known
        check_budget()
        await self._check_room()
        begun = first_steps(await self.read(env, episode_id), order.step)
        fresh = {"id": secrets.token_hex(16), "expires_at": self._expiry()}
        episode = begun.model_copy(update={**fresh, "is_kept": begun.is_kept and self.world(env).keeps})
        return await self._start(episode, await self._restored(episode), key)

    async def _start(self, episode: Episode, environment: Environment, idempotency_key: str | None) -> Episode:
        try:
            stored = await self._store.create(episode, idempotency_key=idempotency_key)
        except BaseException:
            await environment.close()
            raise
        live = Live(stored, environment)
        if stored is not episode or self._live.setdefault(stored.id, live) is not live:  # a parallel call was faster
            await environment.close()
        return stored

    async def call(
        self,
        env: str,
        episode_id: str,
        action: ToolCall,
        client: Client,
        request_id: str | int | None = None,
        *,
        is_session: bool = False,
    ) -> EpisodeAnswer:
        """Take one step for a client. The first call of a session creates its episode of the first task.

        Two identical calls are two steps, unless the client of the first one has gone. Then the second call is a
        resend: it joins the step under way, or gets the answer that could not be delivered.

        Raises:
            UnknownEpisode: this environment has no episode of this id.
        """
        try:
            live = await self._find(env, episode_id)
        except UnknownEpisode:
            if not is_session:
                raise
            await self.create(env, NewEpisode(), episode_id=episode_id)
            live = await self._find(env, episode_id)
        said = action.canonical()
        # a call that is too long is refused before any of it is kept
        admitted = (AdmittedCall.unchanged if is_too_long(said) else self.worlds[env].admitted)(action, said)
        running = live.calls.get(admitted.key)
        if running is None or not await running.abandoned() or running.task is None or running.task.done():
            running = live.calls[admitted.key] = EpisodeCall(admitted, clients=[client], request_id=request_id)
            running.task = asyncio.create_task(self._serve(live, running))
        else:
            running.clients.append(client)
            running.request_id, running.cancelled = request_id, False
        try:
            return await asyncio.shield(running.task)
        except asyncio.CancelledError:  # a server that stops does not wait for a long step: its client gets no answer
            running.clients.remove(client)
            raise

    async def cancel(self, episode_id: str, request_id: str | int) -> None:
        """Note that the client of this request no longer waits. The step goes on.

        Ids are counted per session. If several calls have this one, nothing is noted, since all but one are waited for.
        """
        live = self._live.get(episode_id)
        calls = [call for call in live.calls.values() if call.request_id == request_id] if live else []
        if len(calls) == 1:
            calls[0].cancelled = True

    async def read(self, env: str, episode_id: str) -> Episode:
        """The episode as the store has it. Raises UnknownEpisode."""
        episode = await self._store.load(episode_id)
        if episode.env != self.world(env).spec.name:
            raise UnknownEpisode(episode_id)
        return episode

    async def finish(
        self,
        env: str,
        episode_id: str,
        reason: StopReason = StopReason.FINISHED,
        *,
        answer: str | None = None,
        success: bool | None = None,
    ) -> Episode:
        """End the episode after the step under way. An episode that is already over keeps its first end.

        The final reward follows from `success` if it is given, else from the environment's check or judge. Without a
        verdict it is unknown. If the last call failed, `success` is not given and the verdict is not a success, the
        episode ends with an error: an agent that had to give up has not failed.

        Raises:
            PredictionError: the judge cannot be reached; the episode goes on, and may be finished again.
        """
        world, live = self.world(env), await self._find(env, episode_id)
        answer = None if answer is None else world.admission.text(answer)
        async with live.lock:
            while live.episode.stop_reason is None:
                verdict, ended_at = success, live.episode.version
                if success is None and reason is StopReason.FINISHED:
                    verdict = await self._in_time(world, world.judge(live.episode, answer))
                reward = None if verdict is None else float(verdict)
                is_decided = success is not None or verdict is True or not live.broken_off
                end, error = (reason, None) if is_decided else (StopReason.ERROR, live.broken_off)
                try:
                    await self._finish(
                        live,
                        end,
                        answer=answer,
                        final_reward=reward if is_decided else None,
                        error=error,
                        version=ended_at,
                    )
                except StaleEpisode:  # another process took a step, which the verdict must consider
                    try:
                        await self._reload(live)
                    except StepsLost as lost:
                        await self._finish(live, StopReason.ERROR, error=str(lost))
            return live.episode

    async def delete(self, env: str, episode_id: str) -> None:
        """End the episode and delete it. Its trajectory stays in the buffer if the environment's episodes are kept."""
        episode = await self.finish(env, episode_id, StopReason.CLOSED)
        trajectory = trajectory_of(episode, self.worlds[env].spec)
        if trajectory is not None and episode.is_kept:
            await self._archive.store([trajectory])  # after the deletion the sweep could not find it
        await self._store.delete(episode_id)

    @property
    def running_here(self) -> int:
        """Number of running episodes that this process has served. Another process may serve some of them too."""
        return len(self._live)

    @property
    def unarchived(self) -> int:
        """Number of finished episodes that this process has not put into the buffer yet, or that the buffer refused."""
        return self._archive.backlog

    async def archived(self) -> None:
        """Wait until the buffer has the episodes that are over."""
        await self._archive.flush()

    async def check(self) -> None:
        """Raises StoreError if the store does not answer at once, or takes no writes."""
        await self._store.check()

    async def sweep(self) -> None:
        """Close episodes that are expired or idle, and release those that ended in another process.

        Finished episodes that their process did not archive are archived here.
        """
        for episode in await self._store.expired([*self.worlds], self._store.now(), self._idle_since()):
            try:
                with suppress(UnknownEpisode, StaleEpisode):  # deleted or used meanwhile
                    await self._close(episode)
            except StoreError:
                raise
            except Exception:  # one bad episode must not stop the sweep of the others
                logger.exception("episode %s could not be closed", episode.id)
        idle = [name for name, live in self._live.items() if not live.calls and not live.lock.locked()]
        for name in await self._store.ended(idle):
            if live := self._live.pop(name, None):
                await self._release(live)
        await self._archive.rest({name: world.spec for name, world in self.worlds.items()})

    async def _close(self, episode: Episode) -> None:
        live = await self._find(episode.env, episode.id)
        if live.lock.locked():  # a later sweep closes it; to wait for its step would keep all others open
            return
        async with live.lock:
            await self._close_as_it_stands(live, version=episode.version)

    async def _close_as_it_stands(self, live: Live, version: int | None = None) -> None:
        """Close an episode that was not finished. It ends with an error if its last call failed."""
        reason = StopReason.ERROR if live.broken_off else StopReason.CLOSED
        await self._finish(live, reason, error=live.broken_off or None, version=version)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Sweep and archive in the background. At the end, all finished episodes that are kept are in the buffer."""
        background = [asyncio.create_task(self._archive.run()), asyncio.create_task(self._sweep_forever())]
        try:
            yield
        finally:
            calls = [call.task for live in self._live.values() for call in live.calls.values() if call.task]
            if calls:
                _, late = await asyncio.wait(calls, timeout=LAST_STEPS_S)
                for call in late:  # its step is not stored, and nobody has got its answer
                    call.cancel()
            await self._archive.flush()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, *self._closing, return_exceptions=True)
            ends = [(live.environment, self.worlds[live.episode.env]) for live in self._live.values()]
            await asyncio.gather(*(close(environment, world) for environment, world in ends if environment))
            self._live.clear()

    async def _sweep_forever(self) -> None:
        while True:
            try:
                await self.sweep()
            except DreamGymError as error:
                logger.warning("the sweep failed: %s", error)
            except Exception:  # the next sweep may succeed
                logger.exception("the sweep failed")
            await asyncio.sleep(self._limits.sweep_s)

    async def _check_room(self) -> None:
        running = await self._store.running(self._store.now(), self._idle_since())
        if running >= self._limits.open_episodes:
            raise TooManyEpisodes(f"{running} episodes are open: finish or delete some, or try again later")

    def _expiry(self) -> datetime:
        return self._store.now() + timedelta(seconds=self._limits.episode_s)

    def _idle_since(self) -> datetime:
        return self._store.now() - timedelta(seconds=self._limits.idle_s)

    async def _in_time(self, world: Worlds, asked: Awaitable[T], steps: int = 1) -> T:
        """Wait within the time limit of some steps, and redact the message of a failure by the environment's rules.

        An unexpected error of the environment is logged, redacted too, and becomes EnvironmentUnavailable.
        """
        limit_s, text = self._limits.step_s * steps, world.admission.text
        limit = asyncio.timeout(limit_s)
        try:
            async with limit:
                return await asked
        except EnvironmentUnavailable as error:
            error.args = (text(str(error)),)
            raise
        except DreamGymError:
            raise
        except Exception as error:  # noqa: BLE001  # its text may hold what must not be stored, logged or sent
            if limit.expired():
                raise EnvironmentUnavailable(f"no answer within {limit_s:g} s") from None
            logger.error("environment %s failed: %s", world.spec.name, text(traceback.format_exc()))
            raise EnvironmentUnavailable(text(f"{type(error).__name__}: {error}")) from None

    async def _find(self, env: str, episode_id: str) -> Live:
        live = self._live.get(episode_id)
        if live is None:
            episode = await self._store.load(episode_id)
            if episode.stop_reason is not None:
                live = Live(episode)
            else:
                live = self._live.setdefault(episode_id, Live(episode, is_shared=True))
        if live.episode.env != env:
            raise UnknownEpisode(episode_id)
        return live

    async def _serve(self, live: Live, call: EpisodeCall) -> EpisodeAnswer:
        async with live.lock:
            try:
                return await self._step(live, call)
            except UnknownEpisode:  # deleted by another process
                self._live.pop(live.episode.id, None)
                raise
            except (BudgetSpent, StoreError) as error:
                return await self._failed(live, str(error), counts=False)
            except DreamGymError as error:
                last_words = LOST if isinstance(error, StepsLost) else GONE if isinstance(error, WorldChanged) else None
                told = NOT_RECORDED if isinstance(error, NotRecorded) else UNAVAILABLE
                return await self._failed(live, str(error), last_words, told=told)
            except Exception as error:  # noqa: BLE001  # no error of an environment or a model may reach the agent
                said = self.worlds[live.episode.env].admission.text(traceback.format_exc())
                logger.error("episode %s: a step failed: %s", live.episode.id, said)
                return await self._failed(live, f"{type(error).__name__}: {error}")
            finally:
                if live.calls.get(call.admitted.key) is call:
                    del live.calls[call.admitted.key]

    async def _step(self, live: Live, call: EpisodeCall) -> EpisodeAnswer:
        world, action = self.worlds[live.episode.env], call.admitted.action
        for _ in range(ATTEMPTS):
            if (answer := await self._answered(live, call)) is not None:
                return answer
            episode = live.episode
            if live.environment is None:
                live.environment = await self._restored(episode)
            with TimedSpan("step", tool=action.name, step=episode.version + 1) as span:
                result = await self._in_time(world, live.environment.step(action))
            if world.source is Source.REAL:
                result = storable_answer(result)
            self._check(world, action, result)
            transition = world.transition(live.environment, episode, action, result)
            if transition.provenance.seconds is None:
                transition = timed(transition, span.seconds)
            if episode.version + 1 >= episode.max_steps and not result.done:
                result = result.model_copy(update={"truncated": True})
                remembered = transition.result.model_copy(update={"truncated": True})
                transition = transition.model_copy(update={"result": remembered})
            reason, undelivered = stop_reason_of(result), await call.abandoned()
            try:
                await self._store.append(
                    episode.id, transition, version=episode.version, stop_reason=reason, undelivered=undelivered
                )
                break
            except StoreError:
                live.unconfirmed, live.is_shared = transition, True
                raise
            except StaleEpisode:
                await self._reload(live)
                if await call.abandoned():  # the other process has answered the resend
                    return EpisodeAnswer.refusal(UNAVAILABLE, live.episode.version, "unavailable")
        else:
            raise EnvironmentUnavailable("other processes kept changing the episode")
        live.failures, live.broken_off, live.unconfirmed = 0, "", None
        changes = {"undelivered": undelivered, "stop_reason": reason}
        live.episode = episode.model_copy(update={"transitions": (*episode.transitions, transition), **changes})
        if reason is not None:
            await self._retire(live)
        if await call.abandoned() is not undelivered:
            await self._mark(live, undelivered=not undelivered)
        origin = transition.provenance
        return EpisodeAnswer(result, live.episode.version, tier=origin.tier, confidence=origin.confidence)

    async def _answered(self, live: Live, call: EpisodeCall) -> EpisodeAnswer | None:
        """The answer to a call that was answered before, comes after the end, or is refused; None for a new step."""
        is_doubtful = live.is_shared or live.episode.undelivered
        if is_doubtful and not await self._store.is_current(live.episode):
            await self._reload(live)
        if live.episode.undelivered and key_of(live.episode.transitions[-1]) == call.admitted.key:
            if not await call.abandoned():
                await self._mark(live, undelivered=False)
            last = live.episode.transitions[-1]
            return EpisodeAnswer(last.result, live.episode.version, confidence=last.provenance.confidence)
        if live.episode.stop_reason is None and live.episode.expires_at <= self._store.now():
            await self._close_as_it_stands(live)
        if live.episode.stop_reason is not None:
            return ended(live.episode)
        admitted, tools = call.admitted, self._tools[live.episode.env]
        # a placeholder may be longer than what it stands for, so the schemas check the call as it arrived
        if refusal := unstorable(admitted.action, admitted.recorded) or tools.refusal(
            admitted.asked, admitted.said, recorded=admitted.recorded
        ):
            return EpisodeAnswer.refusal(refusal, live.episode.version, "refused")
        return None

    def _check(self, world: Worlds, action: ToolCall, result: StepResult) -> None:
        """Raises EnvironmentUnavailable if the answer is too long or violates the tool's schema."""
        tools = self._tools[world.spec.name]
        if tools.violation(action.name, result):
            # the message quotes the beginning of the answer, in which half a secret would not be found
            shown = world.admission.transition(Transition.of("", action, result)).result
            plain = f"the answer of {action.name!r} does not match its output schema"
            raise EnvironmentUnavailable(tools.violation(action.name, shown) or plain)
        most = self._limits.observation_characters
        if world.source is Source.SYNTHETIC and len(result.observation) > most:
            raise EnvironmentUnavailable(
                f"the simulated answer has {len(result.observation)} characters, the limit is {most}"
            )

    async def _restored(self, episode: Episode) -> Environment:
        world = self.worlds[episode.env]
        if (begun_as := source_of(episode)) is not world.source:
            raise WorldChanged(
                f"the episode is {begun_as}, but this server's episodes of {episode.env!r} are {world.source}: go on "
                "at a server of the other kind, or start a new episode here"
            )
        if episode.is_kept and not world.keeps:
            raise WorldChanged(
                "the episode was started on a server that stores recordings, but this one does not: go on at a server "
                "with --store, or start a new episode here"
            )
        return await self._in_time(world, world.restore(episode), 1 + episode.version)

    async def _reload(self, live: Live) -> None:
        """Load the episode again after another process changed it, and drop the outdated environment.

        Raises:
            StepsLost: the store has lost steps, because it was restored from a backup or does not wait for its disk.
        """
        live.is_shared = True
        await self._release(live)
        answered, stored = live.episode.version, await self._store.load(live.episode.id)
        if stored.version < answered:
            raise StepsLost(f"the database has {stored.version} steps of this episode, but {answered} were answered")
        if stored.version > answered:
            live.broken_off = ""
        live.episode, unconfirmed, live.unconfirmed = stored, live.unconfirmed, None
        if unconfirmed is not None and stored.transitions[answered:] == (unconfirmed,):
            await self._mark(live, undelivered=True)

    async def _failed(
        self,
        live: Live,
        reason: str,
        last_words: str | None = None,
        *,
        told: str = UNAVAILABLE,
        counts: bool = True,
    ) -> EpisodeAnswer:
        """Answer a call whose step failed. The call does not count as a step, and the environment is dropped.

        The episode ends if there are `last_words` for the agent, or after too many failures that count.
        """
        reason = storable(self.worlds[live.episode.env].admission.text(reason))
        logger.warning("episode %s, step %d: %s", live.episode.id, live.episode.version, in_one_line(reason))
        await self._release(live)
        live.failures += counts
        live.broken_off = reason if told == UNAVAILABLE else ""
        if told == UNAVAILABLE and self.world(live.episode.env).source is Source.REAL:
            told = UNCERTAIN
        text = told if live.unconfirmed is None else UNCONFIRMED
        if last_words is not None or live.failures >= self._limits.failures:
            with suppress(DreamGymError):  # if the store itself failed, the sweep closes the episode later
                await self._finish(live, StopReason.ERROR, error=reason)
                text = last_words or GONE
        over = live.episode.stop_reason is not None
        return EpisodeAnswer.refusal(text, live.episode.version, "unavailable", truncated=over)

    async def _mark(self, live: Live, *, undelivered: bool) -> None:
        live.episode = live.episode.model_copy(update={"undelivered": undelivered})
        try:
            await self._store.mark_undelivered(live.episode.id, version=live.episode.version, undelivered=undelivered)
        except DreamGymError as error:  # the step is stored; only a resend after a restart needs the note
            logger.warning("episode %s: cannot store whether the last answer was delivered: %s", live.episode.id, error)

    async def _finish(
        self,
        live: Live,
        reason: StopReason,
        *,
        answer: str | None = None,
        final_reward: float | None = None,
        error: str | None = None,
        version: int | None = None,
    ) -> None:
        live.episode = await self._store.finish(
            live.episode.id, reason, answer=answer, final_reward=final_reward, error=error, version=version
        )
        await self._retire(live)

    async def _retire(self, live: Live) -> None:
        self._live.pop(live.episode.id, None)
        trajectory = trajectory_of(live.episode, self.worlds[live.episode.env].spec)
        assert trajectory is not None
        if live.episode.is_kept:
            self._archive.put(trajectory)
        await self._release(live)

    async def _release(self, live: Live) -> None:
        """Close the environment in the background, since a real one may take long."""
        if live.environment is not None:
            closing = asyncio.create_task(close(live.environment, self.worlds[live.episode.env]))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            live.environment = None


async def _begun(
    world: Worlds, episode_id: str, as_of: int | None, task: Task, seed: int
) -> tuple[Environment, StepResult]:
    """A new environment that has begun the task, and its first observation as it may be stored."""
    environment = world.create(episode_id, as_of)
    try:
        return environment, world.admission.result(storable_answer(await environment.reset(task, seed=seed)))
    except BaseException:
        await environment.close()
        raise
