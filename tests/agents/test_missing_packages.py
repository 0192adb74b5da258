"""An agent whose framework is not installed says what to install."""

import sys

import pytest

from dreamgym.episode import load_agent
from dreamgym.errors import MissingPackage

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("react", "mcp", "client,openai"),
        ("react", "openai", "client,openai"),
        ("langgraph", "langchain.mcp", "langgraph"),
        ("langgraph", "langchain_openai", "langgraph"),
        ("openai_agents", "agents", "openai-agents"),
    ],
)
async def test_an_agent_names_the_extra_it_needs(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage) as raised:
        await load_agent(name)("task", "http://127.0.0.1:9/mcp", "http://127.0.0.1:9/v1")
    assert f"pip install -c constraints.txt '.[{extra}]'" in str(raised.value)
