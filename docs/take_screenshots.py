"""Take the pictures of docs/window.md from the run folder of a demonstration.

    dreamgym demo --out runs/demo
    python docs/take_screenshots.py runs/demo

Needs the packages playwright and pillow, and the system's Chromium.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
import sys
from collections.abc import Awaitable, Callable
from io import BytesIO
from pathlib import Path
from typing import Any

from dreamgym_integrations.environments.browser.chromium import SYSTEM_BROWSERS
from dreamgym_server.app import build_view
from dreamgym_server.running import running
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.library import Library
from PIL import Image

PICTURES = Path(__file__).parent / "window"
WIDE = {"width": 1280, "height": 800}
COLOURS = 96
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
PHONE = {"width": 390, "height": 800}


async def overview(page: Any) -> None:
    """Wait until the start page is loaded."""
    await page.wait_for_selector("a.pair")


async def parting(page: Any) -> None:
    """Open the step at which dream and reality part."""
    await page.click("a.pair")
    await page.wait_for_selector("#parting, .verdict")


async def episode(page: Any) -> None:
    """Open an episode of the dream and the sources of one of its answers."""
    await parting(page)
    await page.click(".sides a")
    await page.wait_for_selector(".step")
    await page.get_by_text("Made from").first.click()
    await page.wait_for_selector(".neighbours li")
    await page.locator(".step").first.scroll_into_view_if_needed()


async def training(page: Any) -> None:
    """Open the chart of success in the dream and in the real probes."""
    await page.get_by_role("link", name="Training").click()
    await page.wait_for_selector(".chart canvas")


async def episodes(page: Any) -> None:
    """Open the list of episodes."""
    await page.get_by_role("link", name="Episodes", exact=True).click()
    await page.wait_for_selector(".episodes")


SHOTS: dict[str, tuple[Callable[[Any], Awaitable[None]], dict[str, int], str]] = {
    "overview": (overview, WIDE, "light"),
    "parting": (parting, WIDE, "light"),
    "episode": (episode, WIDE, "light"),
    "training": (training, WIDE, "dark"),
    "episodes": (episodes, WIDE, "dark"),
    "phone": (parting, PHONE, "dark"),
}


async def take(folder: Path) -> None:
    """Write the six pictures."""
    from playwright.async_api import async_playwright

    program = next(filter(None, map(shutil.which, SYSTEM_BROWSERS)), None)
    if program is None:
        raise SystemExit("no chromium: install your system's package chromium")
    PICTURES.mkdir(exist_ok=True)
    token = secrets.token_urlsafe(24)
    app = build_view(Answers(Library(folder=RunFolder(folder))), token)
    async with running(app) as url, async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=QUIET)
        for name, (go, size, scheme) in SHOTS.items():
            page = await browser.new_page(viewport=size, color_scheme=scheme, reduced_motion="reduce")
            await page.goto(f"{url}/view/#token={token}")
            await page.wait_for_selector("h1")
            await go(page)
            await page.wait_for_timeout(500)
            picture = Image.open(BytesIO(await page.screenshot()))
            picture.quantize(COLOURS).save(PICTURES / f"{name}.png", optimize=True)
            await page.close()
        await browser.close()


if __name__ == "__main__":
    asyncio.run(take(Path(sys.argv[1])))
