"""Every client finds its episode by URL, by header and at the bare URL, in dreams and in reality, many at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
import pytest
from adder import adds
from dreamgym_integrations.models.chat_server import chat_server
from dreamgym_server.sources import RealWorlds, Worlds
from matrix import (
    CLIENTS,
    KEPT,
    MCP_1,
    REFUSED,
    RESET,
    ROOT,
    Client,
    Order,
    StructuredCounter,
    run_clients,
    structured_spec,
    table,
)
from server_stage import Stage, counter_spec

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore

WORLDS = ("counter", "counter-real")
STARTS = (0, 2)
"""Where the parallel episodes of each world start."""
PLACES = [(env, start) for env in WORLDS for start in STARTS]
NUMBERS = (1, -1, 2)
"""The second number violates the tool's schema."""
TOKEN = "of the server"


def bearer(token: str) -> dict[str, str]:
    """The header with a token."""
    return {"Authorization": f"Bearer {token}"}


@dataclass
class Ordered:
    """The episodes of one client: by URL, by header, at the bare URL, and one with structured content."""

    by_url: list[Order] = field(default_factory=list)
    by_header: list[Order] = field(default_factory=list)
    at_bare_url: list[Order] = field(default_factory=list)
    structured: list[Order] = field(default_factory=list)
    states: list[str] = field(default_factory=list)
    """Paths of the server that return the state of each episode by URL and by header."""

    @property
    def all(self) -> list[Order]:
        """All of them, in the order of the fields."""
        return [*self.by_url, *self.by_header, *self.at_bare_url, *self.structured]


@dataclass
class Seen:
    """Observations of one client in these episodes, and the number of steps that the server counted in them."""

    by_url: Sequence[Any]
    by_header: Sequence[Any]
    at_bare_url: Sequence[Any]
    structured: Any
    steps: Sequence[int]


async def ordered(url: str, http: httpx2.AsyncClient, chat_url: str) -> Ordered:
    """Create the episodes of one client."""

    async def create(env: str, start: int) -> dict[str, Any]:
        answer = await http.post(f"/envs/{env}/episodes", json={"task_id": f"{env}-{start}"})
        made: dict[str, Any] = answer.json()
        return made

    orders = Ordered()
    for env, start in PLACES:
        first, second = await create(env, start), await create(env, start)
        bare = f"{url}/envs/{env}/mcp"
        orders.by_url.append((NUMBERS, first["mcp_url"], bearer(first["token"]), chat_url))
        named = {**bearer(TOKEN), "X-DreamGym-Episode": second["episode"]}
        orders.by_header.append((NUMBERS, bare, named, chat_url))
        orders.at_bare_url.append((NUMBERS, bare, bearer(TOKEN), chat_url))
        orders.states += [f"/envs/{env}/episodes/{made['episode']}" for made in (first, second)]
    last = await create("structured", 1)
    orders.structured.append(((1, 2), last["mcp_url"], bearer(last["token"]), chat_url))
    return orders


async def played_by_all() -> dict[str, Seen]:
    """Let every installed client play all of its episodes."""
    stage = Stage(MemoryBuffer(TrigramEncoder()), MemoryEpisodeStore())
    structured = RealWorlds(structured_spec, lambda: StructuredCounter(structured_spec))
    worlds: list[Worlds] = [stage.dream(), stage.real(counter_spec("counter-real")), structured]
    async with stage.serve(*worlds, token=TOKEN) as (url, http), chat_server(adds) as chat_url:
        http.headers.update(bearer(TOKEN))
        orders = {client.player: await ordered(url, http, chat_url) for client in CLIENTS}
        ours = {client.player: orders[client.player].all for client in CLIENTS if not client.needs_mcp_1}
        theirs = {client.player: orders[client.player].all for client in CLIENTS if client.needs_mcp_1}
        runs = [run_clients(sys.executable, ours)]
        if MCP_1.exists():
            runs.append(run_clients(str(MCP_1), theirs))
        played = {player: saw for run in await asyncio.gather(*runs) for player, saw in run.items()}
        steps = {
            player: [(await http.get(state)).json()["step"] for state in orders[player].states] for player in played
        }
    n = len(PLACES)
    return {
        player: Seen(saw[:n], saw[n : 2 * n], saw[2 * n : 3 * n], saw[3 * n], steps[player])
        for player, saw in played.items()
    }


@pytest.fixture(scope="module")
def played() -> dict[str, Seen]:
    """Play once for all tests, so that the clients import their frameworks only once."""
    return asyncio.run(played_by_all())


@pytest.fixture(params=CLIENTS, ids=lambda client: client.player)
def client(request: pytest.FixtureRequest) -> Client:
    """Each client in turn."""
    chosen: Client = request.param
    return chosen


@pytest.fixture
def seen(played: dict[str, Seen], client: Client) -> Seen:
    """The results of the client in turn."""
    if client.player not in played:
        pytest.skip("needs the environment with mcp 1.x: make .venv-mcp1/installed")
    return played[client.player]


def outcome(saw: Any, start: int) -> str:
    """Return the cell of the table for an episode, from the client's observations."""
    if isinstance(saw, str):
        return REFUSED if "this URL contains no episode" in saw else saw
    first, _, last = saw["seen"]
    if first != f"count {start + 1}":
        return str(first)
    return {f"count {start + 3}": KEPT, f"count {start + 2}": RESET}.get(last, str(last))


@pytest.mark.parametrize("way", ["by_url", "by_header"])
def test_a_client_keeps_the_episode_that_its_url_or_its_header_names(seen: Seen, way: str) -> None:
    saw = getattr(seen, way)
    assert [outcome(one, start) for one, (_, start) in zip(saw, PLACES, strict=True)] == [KEPT] * len(PLACES)
    assert seen.steps == [2] * (2 * len(PLACES))


def test_at_the_bare_url_a_client_has_an_episode_per_session(seen: Seen, client: Client) -> None:
    assert [outcome(one, 0) for one in seen.at_bare_url] == [client.at_bare_url] * len(PLACES)


def test_a_client_gets_a_tool_error_and_goes_on(seen: Seen) -> None:
    errors = [saw["seen"][1] for saw in [*seen.by_url, *seen.by_header]]
    assert all("Input validation error" in error for error in errors)
    assert all("-1 is less than the minimum of 0" in error for error in errors)


def test_structured_content_reaches_the_client(seen: Seen) -> None:
    assert seen.structured["structured"] == [{"count": 2}, {"count": 4}]


def test_the_documentation_has_the_table_that_these_tests_assert() -> None:
    assert table() in (ROOT / "docs" / "clients.md").read_text(encoding="utf-8")
