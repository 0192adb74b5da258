"""Answers to MCP requests other than tool calls, as the real server gave them. They need no episode, model or database.

Answers are returned as recorded, including unknown fields and key order. Fields that the newest revision requires are
added only if the recording lacks them. A resource that was never read and a prompt that was never requested are
refused, in the words of a recorded refusal if there is one, or as not recorded if the server lists them. Three
capabilities are not passed on: `tasks`, which needs a server with a memory of its own; and in the newest revision
`listChanged` and `subscribe`, which promise a stream that this server does not offer. In the older revisions these two
and `logging` are accepted, but no notification is sent, because nothing here changes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, SERVER_INFO_META_KEY
from mcp_types.methods import CACHEABLE_METHODS
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import JsonValue

import dreamgym
from dreamgym.environment import EnvironmentSpec
from dreamgym.mirror import Mirror, without_tool
from dreamgym.state import as_object
from dreamgym.types import JsonObject

LISTING_LIFETIME_MS = 3_600_000
RESOURCE_NOT_FOUND = -32002
"""Error code of the older revisions; the newest one uses INVALID_PARAMS."""
TASKS_EXTENSION = "io.modelcontextprotocol/tasks"

_METHODS = {
    "resources": ("resources/list", "resources/templates/list", "resources/read"),
    "prompts": ("prompts/list", "prompts/get"),
    "completions": ("completion/complete",),
    "logging": ("logging/setLevel",),
}
_ITEMS = {"resources/list": "resources", "resources/templates/list": "resourceTemplates", "prompts/list": "prompts"}
_ASKED = (
    ("prompts/list", "prompts/get", "name"),
    ("resources/list", "resources/read", "uri"),
    ("resources/templates/list", "resources/read", "uriTemplate"),
)
"""Listings, the method that asks for what they list, and the field of an item that names it."""
_SILENT = {"resources/subscribe", "resources/unsubscribe", "logging/setLevel"}


class Presentation:
    """One environment's answers to all requests except tool calls. `methods` are those that it answers by itself."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        recorded = spec.mirror
        self._initialize, self._discover = recorded.initialize, recorded.discover
        self.server_info = _server_info(spec)
        self._capabilities = self._recorded_capabilities(spec)
        # the first revision has no capability for completions
        answered = {lookup.method for lookup in recorded.lookups if lookup.error is None}
        self.methods = frozenset({*_offered(self._capabilities), *answered})
        self._pages = {
            "tools/list": _by_cursor(spec.tools_list),
            **{
                method: _by_cursor(recorded.listings.get(method) or ({items: []},))
                for method, items in _ITEMS.items()
                if method in self.methods
            },
        }
        self._lookups = {(lookup.method, _key(lookup.params)): lookup for lookup in recorded.lookups}
        self._refused = {
            lookup.method: lookup.error
            for lookup in recorded.lookups
            if lookup.method in _ITEMS and lookup.error is not None and lookup.method not in recorded.listings
        }
        self._listed = tuple(_listed(recorded))
        asked = {*recorded.listings, *(lookup.method for lookup in recorded.lookups)}
        is_recorded = bool(recorded.initialize or recorded.discover or recorded.lookups or recorded.listings)
        self._unlisted = {asks for _, asks, _ in _ASKED if is_recorded} - {
            asks for listing, asks, _ in _ASKED if listing in asked
        }
        """Methods that ask for items of a kind that nobody has listed: what they would answer is not known."""
        self._errors, self._invalid_arguments = recorded.errors, recorded.invalid_arguments or ""

    def initialized(self, answered: JsonObject) -> JsonObject:
        """The recorded result of `initialize`, fitted to `answered`, this server's own result."""
        known = self._initialize or {**answered, "instructions": self._discover.get("instructions")}
        presented = {
            **known,
            "protocolVersion": answered["protocolVersion"],
            "capabilities": self._capabilities,
            "serverInfo": self.server_info,
        }
        return {key: value for key, value in presented.items() if value is not None}

    def discovered(self, answered: JsonObject) -> JsonObject:
        """The recorded result of `server/discover`, fitted to `answered`, this server's own result."""
        known = self._discover or {**answered, "instructions": self._initialize.get("instructions"), "_meta": None}
        presented: JsonObject = {
            **known,
            "supportedVersions": answered["supportedVersions"],
            "capabilities": _lasting(self._capabilities),
        }
        result: JsonObject = {key: value for key, value in presented.items() if value is not None}
        return self.enveloped("server/discover", result)

    def answer(self, method: str, params: Mapping[str, Any] | None, version: str) -> JsonObject:
        """The result of one of `methods`. Raises MCPError if the recorded server would refuse the request."""
        if method in self._refused:
            raise as_error(self._refused[method])
        if method in self._pages:
            result = self._page(method, (params or {}).get("cursor"))
        elif method in _SILENT:
            result = {}
        else:
            result = self._looked_up(method, {} if params is None else dict(params), version)
        return result if version in HANDSHAKE_PROTOCOL_VERSIONS else self.enveloped(method, result)

    def enveloped(self, method: str, result: JsonObject) -> JsonObject:
        """A result with the envelope of the newest revision. The SDK would write this server's own name into it."""
        cache: JsonObject = {}
        if method in CACHEABLE_METHODS:
            cache = {"ttlMs": LISTING_LIFETIME_MS, "cacheScope": "public"}
        meta = {SERVER_INFO_META_KEY: self.server_info, **as_object(result.get("_meta"))}
        return {"resultType": "complete", **cache, **result, "_meta": meta}

    def tool_error(self, tool: str, message: str, *, is_refused: bool) -> JsonObject | None:
        """The JSON-RPC error as which the recorded server gives an error of a tool; None if it gives a tool result.

        Args:
            tool: the called tool.
            message: the words of the error.
            is_refused: True if the call was refused before the tool ran.
        """
        error = self._errors.get(without_tool(message, tool))
        if error is None and is_refused and self._invalid_arguments in self._errors:
            before, _, after = self._invalid_arguments.replace("{tool}", tool).partition("{reason}")
            if message.startswith(before) and message.endswith(after):
                error = self._errors[self._invalid_arguments]
        return error and {**error, "message": message}

    def _page(self, method: str, cursor: str | None) -> JsonObject:
        pages = self._pages[method]
        if cursor not in pages:
            raise MCPError(INVALID_PARAMS, f"Invalid cursor: {cursor!r} was never given for {method}")
        return pages[cursor]

    def _looked_up(self, method: str, params: JsonObject, version: str) -> JsonObject:
        lookup = self._lookups.get((method, _key(params)))
        if lookup is not None and lookup.result is not None:
            return lookup.result
        error = lookup.error if lookup is not None else self._refusal_like(method, params)
        is_unlisted = error is None and method in self._unlisted
        if lookup is None and (is_unlisted or self._is_listed(method, _name(params))):
            raise MCPError(INVALID_PARAMS, f"No recording of this simulation shows what {method} answers to this")
        if error is None:
            error = _refusal(method, params, version)
        raise as_error(error)

    def _is_listed(self, method: str, name: str) -> bool:
        return any(
            name == before if after is None else name.startswith(before) and name.endswith(after)
            for asks, before, after in self._listed
            if asks == method
        )

    def _refusal_like(self, method: str, params: JsonObject) -> JsonObject | None:
        """A recorded refusal in which the requested name replaces the name of the recorded request."""
        asked = _name(params)
        for lookup in self._lookups.values():
            refused = _name(lookup.params)
            if lookup.method == method and lookup.error is not None and refused and _names(lookup.error, refused):
                return {key: _renamed(value, refused, asked) for key, value in lookup.error.items()}
        return None

    def _recorded_capabilities(self, spec: EnvironmentSpec) -> JsonObject:
        recorded = spec.mirror
        for said in (recorded.initialize, recorded.discover):
            if isinstance(said.get("capabilities"), dict):
                return _without_tasks(as_object(said["capabilities"]))
        methods = {*recorded.listings, *(lookup.method for lookup in recorded.lookups)}
        offered: JsonObject = {name: {} for name, answered in _METHODS.items() if methods & set(answered)}
        return {**offered, "tools": {"listChanged": False}}


def as_error(error: JsonObject) -> MCPError:
    """A recorded JSON-RPC error as an exception."""
    code = error.get("code")
    return MCPError(code if isinstance(code, int) else INVALID_PARAMS, str(error.get("message")), error.get("data"))


def _server_info(spec: EnvironmentSpec) -> JsonObject:
    # a client that is pinned to the newest revision needs no handshake: each answer names the server
    answers = (spec.mirror.discover, *spec.tools_list)
    recorded = (spec.mirror.initialize.get("serverInfo"), *(_named_in(answer) for answer in answers))
    known = next((info for info in recorded if isinstance(info, dict)), None)
    return known or {"name": spec.name, "version": dreamgym.__version__}


def _named_in(answer: JsonObject) -> JsonValue:
    return as_object(answer.get("_meta")).get(SERVER_INFO_META_KEY)


def _offered(capabilities: JsonObject) -> Iterable[str]:
    yield "tools/list"
    for name in _METHODS.keys() & capabilities.keys():
        yield from _METHODS[name]
    if as_object(capabilities.get("resources")).get("subscribe"):
        yield from ("resources/subscribe", "resources/unsubscribe")


def _without_tasks(capabilities: JsonObject) -> JsonObject:
    kept = {name: value for name, value in capabilities.items() if name != "tasks"}
    if isinstance(kept.get("extensions"), dict):
        extensions = as_object(kept["extensions"])
        kept["extensions"] = {name: value for name, value in extensions.items() if name != TASKS_EXTENSION}
    return kept


def _lasting(capabilities: JsonObject) -> JsonObject:
    """Capabilities without `listChanged` and `subscribe`, which promise a stream of notifications."""
    return {
        name: {key: said for key, said in value.items() if key not in {"listChanged", "subscribe"}}
        if isinstance(value, dict)
        else value
        for name, value in capabilities.items()
    }


def _by_cursor(pages: Sequence[JsonObject]) -> dict[str | None, JsonObject]:
    """Pages by the cursor that requests them; the first page is at None."""
    found: dict[str | None, JsonObject] = {}
    cursor: str | None = None
    for number, page in enumerate(pages, start=1):
        is_last = number == len(pages)
        following = str(page.get("nextCursor") or f"page-{number + 1}")
        if is_last:
            found[cursor] = {key: value for key, value in page.items() if key != "nextCursor"}
        else:
            found[cursor] = page if "nextCursor" in page else {**page, "nextCursor": following}
        cursor = following
    return found


def _key(params: JsonObject) -> str:
    """A text that is equal for equal parameters. `_meta`, key order, null values and empty objects do not count."""
    said = {key: value for key, value in params.items() if key != "_meta" and value not in (None, {})}
    return json.dumps(said, sort_keys=True)


def _name(params: JsonObject) -> str:
    """The URI or the prompt name that a request asks for."""
    described = {**params, **as_object(params.get("ref"))}
    return str(described.get("uri") or described.get("name") or "")


def _listed(recorded: Mirror) -> Iterator[tuple[str, str, str | None]]:
    """For each item that the server lists: the method that asks for it, and its name, or the two ends of a template."""
    for listing, method, field in _ASKED:
        for page in recorded.listings.get(listing, ()):
            items = page.get(_ITEMS[listing])
            for item in items if isinstance(items, list) else ():
                before, is_template, rest = str(as_object(item).get(field) or "").partition("{")
                yield method, before, rest.rpartition("}")[2] if is_template else None


def _names(error: JsonObject, name: str) -> bool:
    return _word(name).search(str(error.get("message"))) is not None or json.dumps(name) in json.dumps(
        error.get("data")
    )


def _word(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


def _renamed(value: JsonValue, old: str, new: str) -> JsonValue:
    if isinstance(value, str):
        return _word(old).sub(lambda _: new, value)
    if isinstance(value, dict):
        return {key: _renamed(item, old, new) for key, item in value.items()}
    return [_renamed(item, old, new) for item in value] if isinstance(value, list) else value


def _refusal(method: str, params: JsonObject, version: str) -> JsonObject:
    name = _name(params)
    if method == "resources/read":
        code = RESOURCE_NOT_FOUND if version in HANDSHAKE_PROTOCOL_VERSIONS else INVALID_PARAMS
        return {"code": code, "message": f"Resource {name} not found", "data": {"uri": name}}
    if method == "prompts/get":
        return {"code": INVALID_PARAMS, "message": f"Prompt {name} not found"}
    return {"code": INVALID_PARAMS, "message": f"No completion is known for {name}"}
