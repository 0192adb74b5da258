"""Raw answers of a real MCP server to requests other than tool calls: recorded once, then replayed.

No episode changes these answers. `tools/list` is in tools.json. If a listing came in pages, the pages are kept, each
with its own `nextCursor`.
"""

from __future__ import annotations

import re

from pydantic import Field

from dreamgym.types import Frozen, JsonObject

LISTINGS = ("resources/list", "resources/templates/list", "prompts/list")
"""Methods that list something, except `tools/list`."""
LOOKUPS = ("resources/read", "prompts/get", "completion/complete")
"""Methods that are answered as recorded if the parameters are equal."""


class Lookup(Frozen):
    """One recorded request that is neither a listing nor a tool call, and its answer."""

    method: str
    params: JsonObject = Field(default_factory=dict)
    """Parameters of the request, without `_meta`."""
    result: JsonObject | None = None
    error: JsonObject | None = None
    """The JSON-RPC error (code, message, data) if there is no result."""


class Mirror(Frozen):
    """The content of server.json. Empty for an environment that is not a recorded MCP server."""

    initialize: JsonObject = Field(default_factory=dict)
    """The result of `initialize`: serverInfo, instructions, capabilities."""
    discover: JsonObject = Field(default_factory=dict)
    """The result of `server/discover`, if the server supports that revision."""
    listings: dict[str, tuple[JsonObject, ...]] = Field(default_factory=dict)
    """The pages of each listing, by method."""
    lookups: tuple[Lookup, ...] = ()
    """Recorded requests that are no listing, and the listings that the server refused."""
    unknown_tool: str | None = None
    """The server's refusal of an unknown tool, with `{tool}` in the place of its name; None if none was recorded."""
    invalid_arguments: str | None = None
    """The server's refusal of invalid arguments, with `{tool}` and `{reason}`; None if none was recorded."""
    fault_words: dict[str, str] = Field(default_factory=dict)
    """The reasons of recorded refusals, by kind of fault, with gaps; see `dreamgym.fault_words`."""
    refusals: dict[str, str] = Field(default_factory=dict)
    """Recorded refusals of calls that a schema forbids, by the canonical text of the call. Only it is refused so."""
    accepted: tuple[str, ...] = ()
    """Recorded calls that a schema forbids and the server answered without an error, by canonical text: some servers
    read the text "2" as a number."""
    errors: dict[str, JsonObject] = Field(default_factory=dict)
    """The JSON-RPC errors with which tool calls were answered, by their message with `{tool}` for the tool's name. The
    words of `invalid_arguments` are among them if the server refuses arguments with such an error."""
    tells_all_faults: bool = False
    """True if a recorded refusal of several faults lists each of them in a line of its own."""


def without_tool(message: str, tool: str) -> str:
    """A message with `{tool}` in the place of a tool's name, wherever the name is a whole word."""
    return re.sub(rf"(?<!\w){re.escape(tool)}(?!\w)", "{tool}", message)
