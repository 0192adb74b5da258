"""Forks episodes of a server from the page and plays on by hand. The page can change nothing else.

It sends the same requests to the server as a trainer and an agent, so the server's limits, checks and redaction apply.
Only episodes that were forked here can be played on.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp import Client, MCPError
from pydantic import BaseModel, Field, JsonValue

from dreamgym.errors import EnvironmentUnavailable, InvalidInput, UnknownEpisode
from dreamgym.types import JsonObject


class ForkWanted(BaseModel):
    """Request for an episode that begins with the first steps of another."""

    env: str
    id: str
    step: int = Field(ge=0)


class CallWanted(BaseModel):
    """Request for one tool call in an episode that was forked here."""

    id: str
    tool: str
    arguments: dict[str, JsonValue] = Field(default_factory=dict)


class Hand:
    """Forks and plays episodes on one server.

    Args:
        url: the server's base URL; its token may be a part of it (`http://:TOKEN@host`).
        token: the server's bearer token.

    Raises:
        InvalidInput: the URL does not begin with http:// or https:// and a host.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        if not re.match(r"(?i)https?://[^/]", url):  # it may contain a token, so it is not shown
            raise InvalidInput(
                "the URL of the server: expected http://HOST:PORT, got a text without http:// or without a host"
            )
        self._address = (url, token)
        self._urls: dict[str, str] = {}
        """URL for an agent, by episode."""

    async def fork(self, wanted: ForkWanted) -> JsonObject:
        """Start an episode with the first steps of another; return its id and the URL at which an agent can go on.

        Raises:
            UnknownEpisode: the server has no such episode.
            InvalidInput: the episode has fewer steps, or its last shared step ended it.
            EnvironmentUnavailable: the server cannot be reached or has no room.
        """
        from dreamgym_client.control import ControlClient  # aiohttp takes a tenth of a server's start

        async with ControlClient(*self._address) as control:
            started = await control.fork(wanted.env, wanted.id, wanted.step)
        self._urls[started.episode] = started.mcp_url
        return {"id": started.episode, "mcp_url": started.mcp_url}

    async def tools(self, episode: str) -> JsonObject:
        """The tools of an episode that was forked here, and its URL for an agent.

        Raises:
            UnknownEpisode: the episode was not forked here.
            InvalidInput: the server refuses the request, for example because the episode was deleted there.
            EnvironmentUnavailable: the server cannot be reached.
        """
        async with self._client(episode) as client:
            listed = await client.list_tools()
        tools: list[JsonValue] = [
            {"name": one.name, "description": one.description, "schema": one.input_schema} for one in listed.tools
        ]
        return {"mcp_url": self._url(episode), "tools": tools}

    async def call(self, wanted: CallWanted) -> JsonObject:
        """Make one call; return its text, and the reason if it did not become a step. The store has the step itself.

        Raises:
            UnknownEpisode: the episode was not forked here.
            InvalidInput: the server refuses the request, for example because the episode was deleted there.
            EnvironmentUnavailable: the server cannot be reached.
        """
        async with self._client(wanted.id) as client:
            result = await client.call_tool(wanted.tool, wanted.arguments)
        told = "\n".join(block.text for block in result.content if block.type == "text")
        uncounted = (result.meta or {}).get("dreamgym/uncounted")
        return {"uncounted": uncounted, "text": told}

    @asynccontextmanager
    async def _client(self, episode: str) -> AsyncIterator[Client]:
        try:
            async with Client(self._url(episode)) as client:
                yield client
        except (MCPError, OSError, ExceptionGroup) as failure:
            error: Exception = failure
            while isinstance(error, ExceptionGroup):  # raised by the client's task groups
                error = error.exceptions[0]
            if isinstance(error, MCPError):
                raise InvalidInput(f"the server refused this: {error}") from failure
            raise EnvironmentUnavailable(f"the server cannot be reached: {error}") from failure

    def _url(self, episode: str) -> str:
        if episode not in self._urls:
            raise UnknownEpisode(episode)
        return self._urls[episode]
