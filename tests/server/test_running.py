"""An app behind a real socket, in this loop or in a thread."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest
from dreamgym_server.build import build
from dreamgym_server.running import running, running_in_thread
from server_stage import Stage
from starlette.types import ASGIApp, Receive, Scope, Send

from dreamgym.errors import InvalidInput


def test_a_caller_without_an_event_loop_is_served_from_a_thread(stage: Stage) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[ASGIApp]:
        yield build([stage.dream()], stage.buffer, stage.episodes)

    with running_in_thread(make) as url:
        assert httpx2.post(f"{url}/envs/counter/episodes", json={}).status_code == 201
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(url)


def test_a_server_that_cannot_be_made_says_why_to_its_caller() -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[ASGIApp]:
        raise InvalidInput("no such model")
        yield

    with pytest.raises(InvalidInput, match="no such model"), running_in_thread(make):
        pass


@pytest.mark.anyio
async def test_a_port_that_is_taken_is_said_so(stage: Stage) -> None:
    async with stage.serve() as (url, _):
        port = int(url.rpartition(":")[2])
        with pytest.raises(InvalidInput, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            async with stage.serve(port=port):
                pass


@pytest.mark.anyio
async def test_an_app_that_does_not_start_is_an_error() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "lifespan.startup.failed", "message": "no"})

    with pytest.raises(InvalidInput, match="did not start"):
        async with running(app):
            pass
