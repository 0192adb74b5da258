"""The protocol's own conformance suite and its Inspector, against a server of ours on a real socket."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from conformance_stage import Urls, run_node

pytestmark = pytest.mark.anyio

SUITE = "@modelcontextprotocol/conformance/dist/index.js"
INSPECTOR = "@modelcontextprotocol/inspector/clients/launcher/build/index.js"
EXPECTED = Path(__file__).with_name("expected-failures.yml")
RUNS = [("bare", "2025-11-25", 68), ("episode", "2025-11-25", 63), ("episode", "2026-07-28", 164)]
"""URL, revision and number of passing checks. In 2026-07-28, the bare URL has no session that could be an episode."""


async def conform(url: str, revision: str, expected: Path, results: Path) -> tuple[int | None, str]:
    """Run all checks that a revision requires. The status is 0 only if exactly the expected failures occur."""
    return await run_node(
        SUITE,
        "server",
        *("--url", url),
        *("--requirements", revision),
        *("--expected-failures", str(expected)),
        *("--output-dir", str(results)),
    )


@pytest.mark.parametrize(("place", "revision", "passed"), RUNS)
async def test_the_official_suite_finds_no_failure_but_the_expected_ones(
    urls: Urls, place: str, revision: str, passed: int, tmp_path: Path
) -> None:
    status, said = await conform(getattr(urls, place), revision, EXPECTED, tmp_path)
    assert status == 0, said
    total = re.search(r"Total: (\d+) passed", said)
    assert total is not None, said
    assert int(total[1]) == passed


@pytest.mark.parametrize("revision", ["2025-11-25", "2026-07-28"])
async def test_an_expected_failure_that_passes_fails_the_suite(urls: Urls, revision: str, tmp_path: Path) -> None:
    stale = tmp_path / "expected.yml"
    stale.write_text(EXPECTED.read_text(encoding="utf-8") + "  - tools-call-image\n", encoding="utf-8")
    status, said = await conform(urls.episode, revision, stale, tmp_path)
    assert status == 1, said
    assert "tools-call-image" in said.partition("Stale")[2], said


@pytest.mark.parametrize("place", ["bare", "episode"])
async def test_the_inspector_lists_and_calls_the_tools(urls: Urls, place: str) -> None:
    url = getattr(urls, place)
    listed = await run_node(INSPECTOR, "--cli", url, "--transport", "http", "--method", "tools/list")
    called = await run_node(
        INSPECTOR,
        *("--cli", url, "--transport", "http"),
        *("--method", "tools/call", "--tool-name", "test_simple_text"),
    )
    assert [listed[0], called[0]] == [0, 0], (listed, called)
    assert "test_simple_text" in [tool["name"] for tool in json.loads(listed[1])["tools"]]
    result = json.loads(called[1])
    assert result["content"] == [{"type": "text", "text": "This is a simple text response for testing."}]
    assert result["_meta"]["dreamgym/step"] == 1
