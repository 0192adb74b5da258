"""A real Chromium and pages of `dreamgym view` in it."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest
from dreamgym_integrations.environments.browser.chromium import SYSTEM_BROWSERS
from screen import Screen

BROWSER = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The tests of a module share an event loop, to which their browser belongs."""
    return "asyncio"


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Any]:
    """One browser for the tests of a module, each in a context of its own. They are skipped if none is installed."""
    if importlib.util.find_spec("playwright") is None:
        pytest.skip("no playwright: pip install playwright")
    if BROWSER is None:
        pytest.skip("no chromium: install your system's package chromium")
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=BROWSER, args=QUIET)
        yield browser
        await browser.close()


@pytest.fixture
async def screen(chromium: Any) -> AsyncIterator[Screen]:
    """A page of 1280 px. The test fails if errors occurred in it."""
    context = await chromium.new_context(viewport={"width": 1280, "height": 860})
    shown = Screen(await context.new_page())
    yield shown
    await context.close()
    assert shown.faults == [], "the page had errors"
