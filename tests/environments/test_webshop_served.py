"""The shop behind a server: an MCP client buys in the real shop and in a dream of it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from answers import text_of

pytest.importorskip("rapidfuzz", reason="the shop needs the extra dreamgym[webshop]")
pytest.importorskip("snowballstemmer", reason="the shop needs the extra dreamgym[webshop]")

from dreamgym_client.control import ControlClient
from dreamgym_integrations.environments.webshop import webshop
from dreamgym_server.app import build
from dreamgym_server.running import running
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds
from mcp import Client

from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.episode import play
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.types import Source, ToolCall

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_catalogue_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DREAMGYM_WEBSHOP", raising=False)


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[ControlClient]:
    """Serve the real shop, or a dream of one purchase for each of three wishes; yield a client of the control API."""
    shop, buffer = webshop({}), MemoryBuffer(TrigramEncoder())
    worlds: Worlds = RealWorlds(shop.spec, shop.create)
    if kind == "dream":
        await buffer.add(
            [
                await play(shop.create(), task, shop.behaviours["expert"], spec=shop.spec, seed=0, source=Source.REAL)
                for task in shop.spec.tasks[:3]
            ]
        )
        worlds = DreamWorlds(shop.spec, NearestModel(), buffer)
    async with running(build([worlds], buffer, MemoryEpisodeStore())) as url, ControlClient(url) as control:
        yield control


async def purchase() -> tuple[ToolCall, ...]:
    """Return the expert's actions for the first wish."""
    shop = webshop({})
    task = shop.spec.tasks[0]
    episode = await play(shop.create(), task, shop.behaviours["expert"], spec=shop.spec, seed=0, source=Source.REAL)
    return tuple(step.action for step in episode.transitions)


@pytest.mark.parametrize("kind", ["real", "dream"])
async def test_an_mcp_client_buys_the_wished_product_and_is_rewarded(kind: str) -> None:
    async with served(kind) as control:
        started = await control.create("webshop", task_id=webshop({}).spec.tasks[0].id, seed=0)
        assert started.observation == webshop({}).spec.tasks[0].initial_state
        async with Client(started.mcp_url) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "click"]
            for action in await purchase():
                answer = await client.call_tool(action.name, dict(action.arguments))
                assert not answer.is_error
            assert "Thank you for shopping with us!" in text_of(answer)
        state = await control.finish("webshop", started.episode)
    assert (state.terminated, state.reward) == (True, 1.0)


async def test_a_click_on_a_missing_element_is_a_tool_error_and_the_visit_goes_on() -> None:
    async with served("real") as control:
        started = await control.create("webshop", task_id=webshop({}).spec.tasks[0].id, seed=0)
        async with Client(started.mcp_url) as client:
            refused = await client.call_tool("click", {"element": "buy now"})
            assert refused.is_error
            assert text_of(refused) == started.observation
            assert (await client.call_tool("click", {})).is_error
            assert not (await client.call_tool("search", {"query": "lamp"})).is_error
