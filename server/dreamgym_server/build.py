"""Builds a server from its parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.applications import Starlette

from dreamgym.errors import InvalidInput
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.episode_store import EpisodeStore
from dreamgym_server.app import create_app
from dreamgym_server.auth import LOOPBACK
from dreamgym_server.sessions import Episodes, Limits
from dreamgym_server.sources import Worlds


def build(
    worlds: Sequence[Worlds],
    buffer: ReplayBuffer,
    episodes: EpisodeStore,
    *,
    token: str | None = None,
    hosts: Iterable[str] = LOOPBACK,
    limits: Limits | None = None,
) -> Starlette:
    """The ASGI app of a server with these environments. The caller closes buffer, store and models.

    Args:
        worlds: one DreamWorlds or RealWorlds per environment.
        buffer: takes the finished episodes.
        episodes: stores the running episodes.
        token: the bearer token that every request must carry; None lets everyone in.
        hosts: host names by which the server may be addressed.
        limits: bounds on episodes and steps.

    Raises:
        InvalidInput: two environments have the same name, or a tool schema cannot be used.
    """
    by_name = {world.spec.name: world for world in worlds}
    if len(by_name) != len(worlds):
        raise InvalidInput(f"two environments of one name among {[world.spec.name for world in worlds]}")
    return create_app(Episodes(by_name, episodes, buffer, limits), token=token, hosts=hosts)
