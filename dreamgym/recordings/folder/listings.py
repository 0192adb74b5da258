"""Listings of the real server, put together from the pages that its clients asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice

from dreamgym.environment import fault_of_tools
from dreamgym.recordings.folder.runs import Run, Say
from dreamgym.types import JsonObject

Pages = tuple[JsonObject, ...]


@dataclass(frozen=True)
class Listing:
    """A listing of the server at one time."""

    pages: Pages
    complete: bool
    """False if a page leads to another one that nobody asked for."""
    at: float


@dataclass(frozen=True)
class ToolLists:
    """The current tool list, and the lists that each run saw."""

    current: Pages
    of_runs: dict[str, tuple[Listing, ...]]

    @cached_property
    def definitions(self) -> dict[str, JsonObject]:
        """The current tool definitions, by name."""
        return tools_on(self.current)

    def older(self) -> list[str]:
        """Ids of the runs that saw another list than the current one, in order."""
        return [run for run, seen in self.of_runs.items() if any(_differ(one, self.current) for one in seen)]

    def is_current(self, run: Run) -> bool:
        """True if the run's last list is the current one."""
        seen = self.of_runs.get(run.id, ())
        return bool(seen) and not _differ(seen[-1], self.current)

    def named_in(self, run: Run) -> frozenset[str]:
        """Names of all tools that the server has ever listed in the run."""
        return frozenset(chain.from_iterable(tools_on(listing.pages) for listing in self.of_runs.get(run.id, ())))


def listings_of(run: Run, method: str) -> tuple[Listing, ...]:
    """The listing after each page of it that the run read, put together from the pages up to then."""
    listing = _Joined()
    found: list[Listing] = []
    for exchange in run.exchanges:
        if exchange.method == method and exchange.result is not None:
            cursor = exchange.params.get("cursor")
            listing.add(None if cursor is None else str(cursor), exchange.result)
            if listing.joined:
                found.append(Listing(tuple(listing.joined), listing.complete, exchange.started_at))
    return tuple(found)


def tool_lists(runs: Sequence[Run], say: Say) -> ToolLists | None:
    """The tool lists of all runs; None if no run has a usable one.

    The current list is the newest complete one, or else the newest one whose pages were not all read. Of several lists
    with the same tools it is the oldest, so that tools.json stays as it is while the tools do.
    """
    of_runs = {}
    for run in runs:
        listings = listings_of(run, "tools/list")
        if listings and fault_of_tools(listings[-1].pages):
            say(f"{run.id}: the server gave a tool list without tools, or with faulty ones; it is left out")
        whole = tuple(one for one in listings if one.complete and fault_of_tools(one.pages) is None)
        partial = (one for one in reversed(listings) if fault_of_tools(one.pages) is None)
        if usable := whole or tuple(islice(partial, 1)):
            of_runs[run.id] = usable
    every = list(chain.from_iterable(of_runs.values()))
    if not every:
        return None
    newest = max(every, key=lambda listing: (listing.complete, listing.at))
    if not newest.complete:
        say("no client has read the tool list to its last page: tools may be missing")
    current = next(one.pages for one in every if one.complete == newest.complete and not _differ(one, newest.pages))
    return ToolLists(current, {run: tuple(one for one in seen if one.complete) for run, seen in of_runs.items()})


def tools_on(pages: Sequence[JsonObject]) -> dict[str, JsonObject]:
    """The tool definitions on some pages, by name."""
    lists = [page.get("tools") for page in pages]
    tools = [tool for tools in lists if isinstance(tools, list) for tool in tools if isinstance(tool, dict)]
    return {str(tool.get("name")): tool for tool in tools}


@dataclass
class _Joined:
    """The pages of one listing that follow each other from the first one, as far as they are known."""

    pages: dict[str | None, JsonObject] = field(default_factory=dict)
    """All pages by cursor; None for the first one."""
    joined: list[JsonObject] = field(default_factory=list)
    passed: set[str | None] = field(default_factory=set)
    following: str | None = None
    """Cursor of the page that comes next."""

    def add(self, cursor: str | None, page: JsonObject) -> None:
        if cursor in self.passed:  # it was read again, and may lead to another page now
            self.joined, self.passed, self.following = [], set(), None
        self.pages[cursor] = page
        while self.following in self.pages and self.following not in self.passed:
            self.passed.add(self.following)
            self.joined.append(self.pages[self.following])
            following = self.joined[-1].get("nextCursor")
            self.following = None if following is None else str(following)

    @property
    def complete(self) -> bool:
        # clients stop at an empty cursor, too
        return self.following is None or (self.following == "" and "" not in self.pages)


def _differ(listing: Listing, current: Pages) -> bool:
    """True if the tools differ. What else is on the pages depends on the protocol revision of the client."""
    return tools_on(listing.pages) != tools_on(current)
