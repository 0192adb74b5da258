"""The control API of a server, for trainers: start, read and end episodes. Agents only get an `mcp_url`."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import TypeVar

from pydantic import ConfigDict, ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.types import Frozen, JsonObject, StopReason, Task, Trajectory
from dreamgym_client.connection import Connection, without_token


class Started(Frozen):
    """A new episode, as the server describes it."""

    model_config = ConfigDict(extra="ignore")

    episode: str
    mcp_url: str
    token: str | None = None
    """The episode's token, a part of `mcp_url`. It gives access to that URL alone; None if the server has no token."""
    task: Task
    observation: str
    """The first observation of the agent; in a fork, the observation of the last shared step."""
    expires_at: datetime


class EpisodeState(Frozen):
    """The state of an episode on the server. Its rewards are authoritative."""

    model_config = ConfigDict(extra="ignore")

    episode: str
    step: int
    reward: float | None
    """Sum of the rewards so far; None if the episode is over and its reward is unknown."""
    terminated: bool
    truncated: bool
    stop_reason: StopReason | None
    """None while the episode runs."""
    error: str | None
    trajectory: Trajectory | None
    """The whole trajectory with provenance; None while the episode runs."""


class _Listing(Frozen):
    model_config = ConfigDict(extra="ignore")

    environments: tuple[JsonObject, ...]


Form = TypeVar("Form", Started, EpisodeState, _Listing)


class ControlClient:
    """The control API of one server; use it as an async context manager.

    Args:
        url: the server's base URL; its token may be a part of it (`http://:TOKEN@host`).
        token: the server's bearer token.

    Raises:
        InvalidInput: the URL is not that of a server.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self._address = without_token(url, token)
        self._connection: Connection | None = None

    async def __aenter__(self) -> ControlClient:
        self._connection = Connection.acquire(*self._address)
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._connection is not None:
            await self._connection.release()
            self._connection = None

    async def create(
        self,
        env: str,
        *,
        task: Task | None = None,
        task_id: str | None = None,
        seed: int | None = None,
        max_steps: int | None = None,
        group: str | None = None,
        idempotency_key: str | None = None,
        policy_version: int | None = None,
    ) -> Started:
        """Start an episode of `task`, of the server's task with the id `task_id`, or of the environment's first task.

        Raises:
            InvalidInput: the server refused; the message lists the known names.
            EnvironmentUnavailable: the server cannot be reached, has no room, or is another program.
        """
        order: JsonObject = {
            "task": task.model_dump(mode="json") if task else None,
            "task_id": task_id,
            "seed": seed,
            "max_steps": max_steps,
            "group": group,
            "idempotency_key": idempotency_key or uuid.uuid4().hex,  # a request sent twice makes one episode
            "policy_version": policy_version,
        }
        body: JsonObject = {key: value for key, value in order.items() if value is not None}
        path = f"/envs/{env}/episodes"
        return self._understood(Started, path, await self._connected.json("POST", path, body=body))

    async def fork(self, env: str, episode: str, step: int, *, idempotency_key: str | None = None) -> Started:
        """Start another episode that begins with the first `step` steps of this one, which may be running or over.

        Raises:
            UnknownEpisode: there is no such episode.
            InvalidInput: the episode has fewer steps, its last shared step ended it, or its real environment answers
                differently when the steps are played again.
            EnvironmentUnavailable: the server cannot be reached or has no room.
        """
        path = f"/envs/{env}/episodes/{episode}/fork"
        body: JsonObject = {"step": step, "idempotency_key": idempotency_key or uuid.uuid4().hex}
        return self._understood(Started, path, await self._connected.json("POST", path, body=body, episode=episode))

    async def read(self, env: str, episode: str) -> EpisodeState:
        """The current state of an episode. Raises UnknownEpisode."""
        return await self._state("GET", env, episode)

    async def finish(
        self, env: str, episode: str, *, answer: str | None = None, success: bool | None = None
    ) -> EpisodeState:
        """End the episode with a final answer. An episode that is already over keeps its first end.

        Args:
            env: the environment.
            episode: one of its episodes.
            answer: the agent's final answer. The task's own check or a dream's language model judges the episode;
                without them its reward is None.
            success: the caller's own verdict, if it has one.

        Raises:
            UnknownEpisode: there is no such episode.
            EnvironmentUnavailable: the judge cannot be reached; the episode still runs and may be finished again.
        """
        return await self._state("POST", env, episode, "/finish", {"answer": answer, "success": success})

    async def delete(self, env: str, episode: str) -> None:
        """End the episode and delete it. Its trajectory stays in the buffer. Raises UnknownEpisode."""
        await self._connected.json("DELETE", f"/envs/{env}/episodes/{episode}", episode=episode)

    async def environments(self) -> list[JsonObject]:
        """Descriptions of the environments that the server serves. Raises EnvironmentUnavailable."""
        answer = await self._connected.json("GET", "/envs")
        return list(self._understood(_Listing, "/envs", answer).environments)

    async def _state(
        self, method: str, env: str, episode: str, verb: str = "", body: JsonObject | None = None
    ) -> EpisodeState:
        path = f"/envs/{env}/episodes/{episode}{verb}"
        answer = await self._connected.json(method, path, body=body, episode=episode)
        return self._understood(EpisodeState, path, answer)

    def _understood(self, form: type[Form], path: str, answer: JsonObject) -> Form:
        """The answer in its form. Raises EnvironmentUnavailable if another program gave it."""
        try:
            return form.model_validate(answer)
        except ValidationError as error:
            got = ", ".join(map(repr, answer)) or "none"  # no values, since one may be a token
            raise EnvironmentUnavailable(
                f"{self._address[0]}{path} did not answer as a DreamGym server: {first_reason(error)}; its fields are "
                f"{got[:300]}: check the server's address and version"
            ) from None

    @property
    def _connected(self) -> Connection:
        assert self._connection is not None, "use it as `async with ControlClient(url) as control`"
        return self._connection
