"""A real web browser as an environment, through BrowserGym: MiniWoB++, WebArena and WebArena-Lite by one adapter.

An agent reads the page's accessibility tree with the elements' ids. The state is the part of it that matters for the
task (see `state`). Each environment has a Chromium of its own.

    miniwob         pages in the installed package; nothing else is needed
    webarena        tasks from the file in `[real] data = "…"` or DREAMGYM_WEBARENA, played on sites of your own
    webarena_lite   like webarena, with the 165 tasks of WebArena-Lite; its variable is DREAMGYM_WEBARENA_LITE
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from dreamgym.types import Frozen, JsonObject
from dreamgym_integrations.environments.browser.actions import NAVIGATION_TOOLS, TOOLS

RULES = (
    "The state is what matters of a web page: its elements as [id] role: 'name' value='…' with marks, and its texts. "
    "Ids stay the same while the page does. A call that names an id that is not on the page is refused with "
    "'ValueError: Could not find element with bid \"…\"' and changes nothing. fill changes a value, click presses, "
    "checks or follows. The task ends when the page takes its answer, and is a success if it was the right one."
)


class BrowserOptions(Frozen):
    """Options of an environment folder, under [real]."""

    max_steps: int | None = Field(default=None, ge=1)
    """None: 20 on MiniWoB, 30 on sites."""
    pages: tuple[str, ...] = ()
    """Only these pages of MiniWoB."""
    data: Path | None = None
    """The file of WebArena's tasks, or its folder."""
    sites: dict[str, str] = Field(default_factory=dict)
    """Address by the name of the site, instead of the variables WA_SHOPPING, WA_REDDIT, …"""
    navigation: bool = False
    """Six more actions than the paper's thirteen: for addresses and tabs."""
    uploads: Path | None = None
    """The one folder that files may be uploaded from."""
    settle_s: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """How long to wait after an action before the page is read; None: 0.05 s on MiniWoB, 0.5 s on sites."""
    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """How long a reset or a step may take."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools that an agent has."""
        return (*TOOLS, *NAVIGATION_TOOLS) if self.navigation else TOOLS

    @property
    def given(self) -> JsonObject:
        """The options that were set, as an environment folder contains them."""
        return self.model_dump(mode="json", exclude_unset=True)
