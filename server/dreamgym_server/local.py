"""An episode of this process behind the Environment protocol: the server's own sessions, with no HTTP in between.

`RemoteEnvironment` plays the same episodes at a server's address. Both take the same steps and get the same answers:
calls are checked, failures are counted, and ends are judged by the same `Episodes`.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, UnknownEpisode
from dreamgym.types import JsonObject, StepResult, Task, ToolCall
from dreamgym_server.live import EpisodeAnswer, is_unrewarded
from dreamgym_server.requests import NewEpisode
from dreamgym_server.sessions import Episodes


class Present:
    """A client in this process, which never leaves before its answer."""

    async def is_disconnected(self) -> bool:
        return False


class LocalEnvironment:
    """Plays one episode at a time in `episodes`.

    Args:
        episodes: the sessions of this process.
        env: the environment's name there.
        group: name of the group. Ids of episodes begin with it: the buffer keeps no other trace of it.
        policy_version: stored with each episode.
    """

    def __init__(
        self, episodes: Episodes, env: str, *, group: str | None = None, policy_version: int | None = None
    ) -> None:
        self._episodes, self._env = episodes, env
        self._group, self._policy_version = group, policy_version
        self._id: str | None = None
        """Id of the running episode; None if none runs."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The real system's tools, as recorded."""
        return self._episodes.world(self._env).spec.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start an episode. If the last one still runs, it is finished first.

        Raises:
            InvalidInput: the task belongs to another environment, or its check cannot be used.
            EnvironmentUnavailable: the environment does not start.
        """
        await self.close()
        order = NewEpisode(task=task, seed=seed or 0, group=self._group, policy_version=self._policy_version)
        identity = secrets.token_hex(16)
        name = f"{self._group}-{identity}" if self._group else identity
        episode = await self._episodes.create(self._env, order, episode_id=name)
        self._id = episode.id
        return StepResult(observation=episode.initial.observation)

    async def step(self, action: ToolCall) -> StepResult:
        """Take one step. Raises EpisodeFinished and EnvironmentUnavailable as Environment.step does."""
        if self._id is None:
            raise EpisodeFinished("the episode is over or was never started: call reset")
        answer = await self._episodes.call(self._env, self._id, action, Present())
        result = answer.result
        if result.done:
            self._id = None
        match answer.uncounted:
            case "unavailable":
                raise EnvironmentUnavailable(answer.text)
            case "ended" | "closed":
                raise EpisodeFinished(answer.text)
            case "refused":
                return StepResult(observation=answer.text, is_error=True)
        return result.model_copy(update={"info": _told(answer)})

    async def close(self) -> None:
        """Finish a running episode. Its check or judge decides the final reward."""
        identity, self._id = self._id, None
        if identity is not None:
            with suppress(UnknownEpisode):  # it expired
                await self._episodes.finish(self._env, identity)


def _told(answer: EpisodeAnswer) -> JsonObject:
    """The `info` that a trainer gets: structured content, whether the reward is unknown, and the confidence."""
    told: JsonObject = {"open_end": True} if is_unrewarded(answer.result) else {}
    if (structured := answer.result.info.get("structured")) is not None:
        told["structured"] = structured
    return told if answer.confidence is None else told | {"confidence": answer.confidence}
