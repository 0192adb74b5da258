"""What a real MCP server says of itself, raw: recorded once, and answered for ever after.

These are the answers that no episode changes; `tools/list` stands beside them in tools.json. Where a listing came in
pages, its pages are kept, each with its own `nextCursor`.
"""

from __future__ import annotations

from pydantic import Field

from dreamgym.types import Frozen, JsonObject

LISTINGS = ("resources/list", "resources/templates/list", "prompts/list")
"""Listings besides `tools/list`."""
LOOKUPS = ("resources/read", "prompts/get", "completion/complete")
"""Requests that are answered as recorded for the very same parameters."""


class Lookup(Frozen):
    """One recorded request that is neither a listing nor a tool call, and its answer."""

    method: str
    params: JsonObject = Field(default_factory=dict)
    """Without `_meta`."""
    result: JsonObject | None = None
    error: JsonObject | None = None
    """The JSON-RPC error (code, message, data), where there is no result."""


class Mirror(Frozen):
    """The content of server.json. Empty for an environment that is no recorded MCP server."""

    initialize: JsonObject = Field(default_factory=dict)
    """The result of `initialize`: serverInfo, instructions, capabilities."""
    discover: JsonObject = Field(default_factory=dict)
    """The result of `server/discover`, where the server speaks that revision."""
    listings: dict[str, tuple[JsonObject, ...]] = Field(default_factory=dict)
    """The pages of each listing, by method."""
    lookups: tuple[Lookup, ...] = ()
    unknown_tool: str | None = None
    """How the server refuses a tool it has not, with `{tool}` in the place of the name, where that was recorded."""
    invalid_arguments: str | None = None
    """How it refuses arguments that its schema forbids, with `{tool}` and `{reason}`, where that was recorded."""
