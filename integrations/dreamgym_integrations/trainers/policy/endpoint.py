"""The policy in training as an OpenAI-compatible endpoint, which keeps the sampled tokens of every episode.

Each episode has a base URL of its own, since that works with every client. Its name in the URL is random, so that no
other program and no web page can speak in the episode. The sampling parameters of a request (its temperature, its
longest answer) are ignored: log-probabilities are valid only for the way in which the trainer samples. The endpoint
runs in this process and listens on this machine only.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from http import HTTPStatus

from dreamgym.errors import DreamGymError, InvalidInput, MissingPackage, UnknownEpisode
from dreamgym.training.rollout import Policy, Segment, draw_seed
from dreamgym_integrations.models.chat_server import (
    Ask,
    Reply,
    Usage,
    answered,
    listed_models,
    read_ask,
    refused,
    serving,
)
from dreamgym_integrations.trainers.policy.batches import Batches, PolicyFailed
from dreamgym_integrations.trainers.policy.conversation import SpokenCodec

try:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route
except ImportError as missing:
    raise MissingPackage("a policy endpoint", "server") from missing


async def never() -> bool:
    """Return False, for an episode whose end the endpoint cannot know."""
    return False


class PolicySession:
    """One episode's side of the endpoint. Get it from `PolicyEndpoint.open`."""

    def __init__(self, url: str, codec: SpokenCodec, seed: int, is_over: Callable[[], Awaitable[bool]]) -> None:
        self.url = url
        """The base URL for this episode's agent."""
        self.seed = seed
        self.conversations = codec.conversations()
        self.sampled = itertools.count()
        """Counter that numbers the answers of the policy."""
        self.failed = False
        """True if any request was refused or failed."""
        self._is_over = is_over
        self._over = False
        self.closed = False

    async def over(self) -> bool:
        """True if the episode is over; it then stays over."""
        self._over = self._over or await self._is_over()
        return self._over


class PolicyEndpoint:
    """Serves a policy to many episodes at once; use it as an async context manager.

    Args:
        policy: the policy; called in a thread, one batch at a time.
        codec: codec of the policy, which also limits the length of a conversation.
    """

    def __init__(self, policy: Policy, codec: SpokenCodec) -> None:
        self._codec = codec
        self._batches = Batches(policy)
        self._sessions: dict[str, PolicySession] = {}
        self._running = AsyncExitStack()
        self._url = ""

    async def __aenter__(self) -> PolicyEndpoint:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._batches.running())
            routes = [
                Route("/episodes/{episode}/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/episodes/{episode}/v1/models", listed_models, methods=["GET"]),
            ]
            self._url = await stack.enter_async_context(serving(Starlette(routes=routes)))
            self._running = stack.pop_all()
        return self

    async def __aexit__(self, *exception: object) -> None:
        for session in [*self._sessions]:
            self._close(session)
        await self._running.aclose()

    @property
    def failure(self) -> Exception | None:
        """The exception that the policy raised, if it did."""
        return self._batches.failure

    def open(self, *, seed: int, is_over: Callable[[], Awaitable[bool]] = never) -> PolicySession:
        """Begin an episode.

        Args:
            seed: together with the number of an answer, fixes every token that is sampled for the answer.
            is_over: called before each answer. From the end on every answer is empty, so that any agent ends by itself.
        """
        name = secrets.token_hex(16)
        session = PolicySession(f"{self._url}/episodes/{name}/v1", self._codec, seed, is_over)
        self._sessions[name] = session
        self._batches.expect(len(self._sessions))
        return session

    def close(self, session: PolicySession) -> list[Segment]:
        """End a session and return the segments of its conversations, to which nothing is added any more."""
        for name, one in [*self._sessions.items()]:
            if one is session:
                self._close(name)
        return session.conversations.segments

    def _close(self, name: str) -> None:
        self._sessions.pop(name).closed = True
        self._batches.expect(len(self._sessions))

    async def _complete(self, request: Request) -> Response:
        episode = request.path_params["episode"]
        session = self._sessions.get(episode)
        if session is None:
            return refused(404, str(UnknownEpisode(episode)))
        try:
            response = await self._answer(session, await read_ask(request), request)
        except InvalidInput as error:
            response = refused(400, str(error))
        except DreamGymError as error:
            response = refused(503, str(error))
        except Exception:  # an error of the endpoint is not the policy's fault either
            session.failed = True
            raise
        session.failed |= response.status_code != HTTPStatus.OK
        return response

    async def _answer(self, session: PolicySession, ask: Ask, request: Request) -> Response:
        try:
            prompt = session.conversations.prompt(ask.messages, ask.tools)
        except RecursionError as error:
            raise InvalidInput(
                "the arguments of a call, or a tool, are nested too deeply: send fewer levels"
            ) from error
        if await session.over() or len(prompt.ids) >= self._codec.max_tokens:
            return answered(ask, Reply(text=""), name="end", usage=Usage(len(prompt.ids)))
        number = next(session.sampled)
        try:
            sampled = await self._batches.sample(prompt.ids, draw_seed(session.seed, number))
        except PolicyFailed as error:
            return refused(500, str(error), retry=False)
        if session.closed or await request.is_disconnected():
            return refused(
                410, "the episode is closed or the client has disconnected: this answer is discarded", retry=False
            )
        reply = session.conversations.record(prompt, sampled)
        usage = Usage(len(prompt.ids), len(sampled.ids))
        return answered(ask, reply, name=str(number), usage=usage, cut=not self._codec.ended(sampled.ids))
