"""The server presentation: recorded handshakes, listings and refusals are repeated to the byte, without a database."""

from __future__ import annotations

import json
from typing import Any, cast

import httpx2
import pytest
from answers import text_of
from dreamgym_server.sources import RealWorlds
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import TextContent, TextResourceContents
from server_stage import BreakableStore, CounterEnvironment, Stage, counter_spec
from test_agent_door import HANDSHAKE, MODERN, ask, create

from dreamgym.types import JsonObject, StepResult, ToolCall

pytestmark = pytest.mark.anyio

ERAS = pytest.mark.parametrize("headers", [HANDSHAKE, MODERN], ids=["handshake", "modern"])
MODES = pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}

TOOLS = [
    {
        "vendor": {"z": None, "a": [1, {"y": None}]},
        "name": "bare",
        "inputSchema": {"type": "object", "$comment": "no properties"},
    },
    {
        "name": "full",
        "title": "Full",
        "annotations": {"readOnlyHint": True, "x-cost": 3},
        "outputSchema": {"type": "object", "required": ["b"], "properties": {"b": {}, "a": {"type": "null"}}},
        "inputSchema": {"required": ["z"], "type": "object", "properties": {"z": {"type": "string"}, "a": True}},
        "execution": {"taskSupport": "optional"},
        "_meta": {"vendor/k": 1},
    },
    {"description": "", "name": "last", "inputSchema": {"additionalProperties": False, "type": "object"}},
]
PAGES: list[dict[str, Any]] = [
    {"nextCursor": "b64==", "tools": TOOLS[:1], "x-page": 1},
    {"tools": TOOLS[1:2], "nextCursor": "third", "_meta": {"vendor/page": 2}},
    {"tools": TOOLS[2:]},
]
INITIALIZE: dict[str, Any] = {
    "instructions": "Be brief.\n\nAnd kind.",
    "protocolVersion": "2025-06-18",
    "serverInfo": {"version": "0.6.3", "name": "memory-server", "title": "Memory", "x-build": [1]},
    "capabilities": {
        "tools": {"listChanged": True},
        "resources": {"subscribe": True, "listChanged": True},
        "prompts": {"listChanged": True},
        "logging": {},
        "completions": {},
        "tasks": {"list": {}, "requests": {"tools": {"call": {}}}},
    },
}
REFUSAL = {
    "code": -32602,
    "message": "MCP error -32602: Resource demo://gone not found",
    "data": {"uri": "demo://gone"},
}
READ = {"contents": [{"uri": "demo://one", "mimeType": "text/plain", "text": "one", "x-etag": "e"}]}
PROMPT = {"messages": [{"role": "user", "content": {"type": "text", "text": "Say Ann."}}], "description": "greets"}
GREETED = {"who": "Ann", "how": "x"}
COMPLETION = {"completion": {"values": ["Ann"], "total": 1, "hasMore": False}}
MIRROR: dict[str, Any] = {
    "initialize": INITIALIZE,
    "listings": {
        "resources/list": [
            {"resources": [{"uri": "demo://one", "name": "one", "x": 1}], "nextCursor": "2"},
            {"resources": [{"uri": "demo://two", "name": "two"}]},
        ],
        "prompts/list": [{"prompts": [{"name": "greet", "arguments": [{"name": "who", "required": True}]}]}],
    },
    "lookups": [
        {"method": "resources/read", "params": {"uri": "demo://one"}, "result": READ},
        {"method": "resources/read", "params": {"uri": "demo://gone"}, "error": REFUSAL},
        {
            "method": "prompts/get",
            "params": {"name": "greet", "arguments": {"who": "Ann", "how": "x"}},
            "result": PROMPT,
        },
        {"method": "prompts/get", "params": {"name": "greet"}, "error": {"code": -32602, "message": "who is required"}},
        {
            "method": "completion/complete",
            "params": {
                "ref": {"type": "ref/prompt", "name": "greet"},
                "argument": {"name": "who", "value": "A"},
            },
            "result": COMPLETION,
        },
    ],
}


def mirrored(**mirror: Any) -> Any:
    """The counter, presented as a recorded server."""
    return counter_spec(tools_list=PAGES, mirror=mirror or MIRROR)


async def asked(
    stage: Stage, spec: Any, method: str, params: dict[str, Any], headers: dict[str, str]
) -> httpx2.Response:
    """Send one raw request to a new episode after its database has failed."""
    async with stage.serve(stage.dream(spec)) as (_, http):
        made = await create(http)
        assert isinstance(stage.episodes, BreakableStore)
        stage.episodes.broken = True
        return await ask(http, made["mcp_url"], method, params, headers)


def said(recorded: object) -> str:
    """Return a recorded value as the JSON text that an answer must contain."""
    return json.dumps(recorded, separators=(",", ":"))


@ERAS
@pytest.mark.parametrize(("cursor", "page"), [(None, 0), ("b64==", 1), ("third", 2)])
async def test_each_page_of_the_tools_is_given_byte_for_byte_under_its_own_cursor(
    stage: Stage, headers: dict[str, str], cursor: str | None, page: int
) -> None:
    params = {} if cursor is None else {"cursor": cursor}
    answer = await asked(stage, mirrored(), "tools/list", params, headers)
    if headers is HANDSHAKE:
        assert f'"result":{said(PAGES[page])}' in answer.text
        return
    result = answer.json()["result"]
    assert f'"tools":{said(PAGES[page]["tools"])}' in answer.text
    assert result.get("nextCursor") == PAGES[page].get("nextCursor")
    assert result["resultType"] == "complete"
    assert result["_meta"] == {
        "io.modelcontextprotocol/serverInfo": INITIALIZE["serverInfo"],
        **PAGES[page].get("_meta", {}),
    }


@ERAS
async def test_a_cursor_that_no_page_gave_is_refused(stage: Stage, headers: dict[str, str]) -> None:
    answer = (await asked(stage, mirrored(), "tools/list", {"cursor": "fourth"}, headers)).json()
    assert answer["error"]["code"] == -32602
    assert "'fourth'" in answer["error"]["message"]


@MODES
async def test_a_client_collects_all_pages(stage: Stage, mode: str) -> None:
    async with stage.serve(stage.dream(mirrored())) as (_, http):
        made = await create(http)
        async with Client(made["mcp_url"], mode=mode) as client:
            names, cursor = [], None
            while True:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                cursor = page.next_cursor
                if cursor is None:
                    break
    assert names == ["bare", "full", "last"]


async def test_a_page_without_a_recorded_successor_has_no_cursor(stage: Stage) -> None:
    spec = counter_spec(tools_list=PAGES[:2], mirror=MIRROR)
    answer = (await asked(stage, spec, "tools/list", {"cursor": "b64=="}, HANDSHAKE)).json()
    assert "nextCursor" not in answer["result"]


async def test_recorded_pages_without_cursors_get_cursors(stage: Stage) -> None:
    spec = counter_spec(tools_list=[{"tools": TOOLS[:1]}, {"tools": TOOLS[1:]}])
    first = (await asked(stage, spec, "tools/list", {}, HANDSHAKE)).json()["result"]
    stage.breakable.broken = False
    second = (await asked(stage, spec, "tools/list", {"cursor": first["nextCursor"]}, HANDSHAKE)).json()["result"]
    assert [*first["tools"], *second["tools"]] == TOOLS


async def test_the_handshake_is_the_recorded_one_without_tasks(stage: Stage) -> None:
    answer = await asked(stage, mirrored(), "initialize", HELLO, {})
    capabilities = {key: value for key, value in INITIALIZE["capabilities"].items() if key != "tasks"}
    expected = {**INITIALIZE, "protocolVersion": "2025-11-25", "capabilities": capabilities}
    assert f'"result":{said(expected)}' in answer.text


async def test_the_newest_revision_presents_the_same_server_without_notices(stage: Stage) -> None:
    result = (await asked(stage, mirrored(), "server/discover", {}, MODERN)).json()["result"]
    assert result["instructions"] == INITIALIZE["instructions"]
    assert result["_meta"] == {"io.modelcontextprotocol/serverInfo": INITIALIZE["serverInfo"]}
    assert result["capabilities"] == {"tools": {}, "resources": {}, "prompts": {}, "logging": {}, "completions": {}}
    assert (result["supportedVersions"], result["resultType"]) == (["2026-07-28"], "complete")


async def test_a_server_recorded_in_the_newest_revision_presents_itself_in_both(stage: Stage) -> None:
    info = {"name": "new", "version": "9"}
    discover = {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28", "2027-01-01"],
        "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}, "vendor/ui": {"a": 1}}},
        "instructions": "Hi.",
        "ttlMs": 5,
        "cacheScope": "private",
        "_meta": {"io.modelcontextprotocol/serverInfo": info},
    }
    discovered = (await asked(stage, mirrored(discover=discover), "server/discover", {}, MODERN)).json()["result"]
    kept = {"tools": {}, "extensions": {"vendor/ui": {"a": 1}}}
    assert discovered == {**discover, "supportedVersions": ["2026-07-28"], "capabilities": kept}
    stage.breakable.broken = False
    initialized = (await asked(stage, mirrored(discover=discover), "initialize", HELLO, {})).json()["result"]
    assert (initialized["serverInfo"], initialized["instructions"], initialized["capabilities"]) == (info, "Hi.", kept)


async def test_a_server_recorded_without_a_handshake_has_the_name_that_its_tool_list_gives(stage: Stage) -> None:
    info = {"name": "new", "version": ""}
    pages = ({"tools": TOOLS, "_meta": {"io.modelcontextprotocol/serverInfo": info}},)
    result = (await asked(stage, counter_spec(tools_list=pages), "initialize", HELLO, {})).json()["result"]
    assert result["serverInfo"] == info


async def test_an_environment_without_a_mirror_offers_tools_and_nothing_else(stage: Stage) -> None:
    result = (await asked(stage, counter_spec(), "initialize", HELLO, {})).json()["result"]
    assert result["capabilities"] == {"tools": {"listChanged": False}}
    assert result["serverInfo"]["name"] == "counter"
    assert "instructions" not in result


LOOKUPS = {
    "a resource": ("resources/read", {"uri": "demo://one"}, READ),
    "a prompt, its arguments in another order": (
        "prompts/get",
        {"arguments": {"how": "x", "who": "Ann"}, "name": "greet"},
        PROMPT,
    ),
    "a completion": (
        "completion/complete",
        {"argument": {"value": "A", "name": "who"}, "ref": {"name": "greet", "type": "ref/prompt"}},
        COMPLETION,
    ),
    "a listing": ("resources/list", {"cursor": "2"}, MIRROR["listings"]["resources/list"][1]),
    "a listing that was never recorded": ("resources/templates/list", {}, {"resourceTemplates": []}),
}


@ERAS
@pytest.mark.parametrize(("method", "params", "recorded"), LOOKUPS.values(), ids=LOOKUPS.keys())
async def test_recorded_requests_are_answered_as_recorded(
    stage: Stage, headers: dict[str, str], method: str, params: dict[str, Any], recorded: dict[str, Any]
) -> None:
    if headers is MODERN and method == "resources/read":
        headers = {**MODERN, "mcp-name": params["uri"]}
    answer = await asked(stage, mirrored(), method, params, headers)
    result = answer.json()["result"]
    if headers is HANDSHAKE:
        assert f'"result":{said(recorded)}' in answer.text
    else:
        assert {key: result[key] for key in recorded} == recorded
        assert result["resultType"] == "complete"
        assert ("ttlMs" in result) is method.startswith("resources/")


REFUSALS = {
    "a recorded refusal": ("resources/read", {"uri": "demo://gone"}, REFUSAL),
    "a resource never read, in the recorded words": (
        "resources/read",
        {"uri": "demo://new"},
        {
            "code": -32602,
            "message": "MCP error -32602: Resource demo://new not found",
            "data": {"uri": "demo://new"},
        },
    ),
    "a recorded refusal of missing arguments": (
        "prompts/get",
        {"name": "greet", "arguments": {}},
        {"code": -32602, "message": "who is required"},
    ),
    "a prompt never asked for, since the recorded refusal is about something else": (
        "prompts/get",
        {"name": "other"},
        {"code": -32602, "message": "Prompt other not found"},
    ),
}


@ERAS
@pytest.mark.parametrize(("method", "params", "error"), REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_refusal_is_the_recorded_one_or_like_it(
    stage: Stage, headers: dict[str, str], method: str, params: dict[str, Any], error: dict[str, Any]
) -> None:
    if headers is MODERN and method == "resources/read":
        headers = {**MODERN, "mcp-name": params["uri"]}
    answer = await asked(stage, mirrored(), method, params, headers)
    assert answer.json()["error"] == error


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("prompts/get", {"name": "greet", "arguments": {"who": "Zoe"}}),
        ("resources/read", {"uri": "demo://two"}),
        ("resources/read", {"uri": "demo://rooms/5/keys"}),
    ],
)
async def test_what_the_server_lists_is_refused_as_not_recorded_and_not_as_unknown(
    stage: Stage, method: str, params: dict[str, Any]
) -> None:
    listings = {
        **MIRROR["listings"],
        "resources/templates/list": [{"resourceTemplates": [{"uriTemplate": "demo://rooms/{n}/keys", "name": "keys"}]}],
    }
    unknown = {"code": 0, "message": "Unknown prompt: no"}
    lookups = [*MIRROR["lookups"], {"method": "prompts/get", "params": {"name": "no"}, "error": unknown}]
    spec = mirrored(initialize=INITIALIZE, listings=listings, lookups=lookups)
    error = (await asked(stage, spec, method, params, HANDSHAKE)).json()["error"]
    assert error == {"code": -32602, "message": f"No recording of this simulation shows what {method} answers to this"}


async def test_the_name_in_a_recorded_refusal_is_replaced_only_where_it_is_a_whole_word(stage: Stage) -> None:
    unknown = {"code": 0, "message": "Unknown prompt: no"}
    lookups = [{"method": "prompts/get", "params": {"name": "no"}, "error": unknown}]
    spec = mirrored(initialize=INITIALIZE, lookups=lookups)
    error = (await asked(stage, spec, "prompts/get", {"name": "gone"}, HANDSHAKE)).json()["error"]
    assert error == {"code": 0, "message": "Unknown prompt: gone"}


@pytest.mark.parametrize(("headers", "code"), [(HANDSHAKE, -32002), (MODERN, -32602)])
async def test_without_a_recorded_refusal_a_resource_is_refused_as_the_protocol_says(
    stage: Stage, headers: dict[str, str], code: int
) -> None:
    if headers is MODERN:
        headers = {**MODERN, "mcp-name": "demo://x"}
    spec = mirrored(initialize=INITIALIZE, listings={"resources/list": ({"resources": []},)})
    error = (await asked(stage, spec, "resources/read", {"uri": "demo://x"}, headers)).json()["error"]
    assert error == {"code": code, "message": "Resource demo://x not found", "data": {"uri": "demo://x"}}


@pytest.mark.parametrize(
    ("method", "params"), [("resources/read", {"uri": "demo://x"}), ("prompts/get", {"name": "x"})]
)
async def test_an_item_of_a_kind_that_nobody_listed_is_reported_as_not_recorded(
    stage: Stage, method: str, params: JsonObject
) -> None:
    error = (await asked(stage, mirrored(initialize=INITIALIZE), method, params, HANDSHAKE)).json()["error"]
    assert error == {"code": -32602, "message": f"No recording of this simulation shows what {method} answers to this"}


@ERAS
@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list"])
async def test_a_feature_that_the_recorded_server_does_not_offer_is_an_unknown_method(
    stage: Stage, headers: dict[str, str], method: str
) -> None:
    only_tools = {**INITIALIZE, "capabilities": {"tools": {}}}
    for spec in (mirrored(initialize=only_tools), counter_spec()):
        stage.breakable.broken = False
        answer = (await asked(stage, spec, method, {}, headers)).json()
        assert answer["error"]["code"] == -32601


async def test_a_recorded_completion_of_a_server_of_the_first_revision_is_answered(stage: Stage) -> None:
    named = {key: value for key, value in INITIALIZE["capabilities"].items() if key != "completions"}
    spec = mirrored(**{**MIRROR, "initialize": {**INITIALIZE, "capabilities": named}})
    method, params, recorded = cast("tuple[str, dict[str, Any], object]", LOOKUPS["a completion"])
    assert (await asked(stage, spec, method, params, HANDSHAKE)).json()["result"] == recorded


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("resources/subscribe", {"uri": "demo://one"}),
        ("resources/unsubscribe", {"uri": "demo://one"}),
        ("logging/setLevel", {"level": "debug"}),
    ],
)
async def test_subscriptions_and_log_levels_are_accepted_in_older_revisions_only(
    stage: Stage, method: str, params: dict[str, Any]
) -> None:
    accepted = (await asked(stage, mirrored(), method, params, HANDSHAKE)).json()
    stage.breakable.broken = False
    gone = (await asked(stage, mirrored(), method, params, MODERN)).json()
    assert accepted["result"] == {}
    assert gone["error"]["code"] == -32601


@ERAS
@pytest.mark.parametrize(
    ("method", "params"), [("resources/read", {}), ("tools/call", {"arguments": {}}), ("tools/list", {"cursor": 7})]
)
async def test_malformed_parameters_are_refused_as_the_protocol_says(
    stage: Stage, headers: dict[str, str], method: str, params: dict[str, Any]
) -> None:
    answer = (await asked(stage, mirrored(), method, params, headers)).json()
    assert answer["error"]["code"] in {-32602, -32020}


@MODES
async def test_a_client_reads_resources_and_prompts_of_a_simulated_server(stage: Stage, mode: str) -> None:
    async with stage.serve(stage.dream(mirrored())) as (_, http):
        made = await create(http)
        async with Client(made["mcp_url"], mode=mode) as client:
            listed = [resource.name for resource in (await client.list_resources()).resources]
            read = (await client.read_resource("demo://one")).contents[0]
            said = (await client.get_prompt("greet", {"who": "Ann", "how": "x"})).messages[0].content
            with pytest.raises(MCPError, match="Resource demo://new not found"):
                await client.read_resource("demo://new")
    assert isinstance(read, TextResourceContents)
    assert isinstance(said, TextContent)
    assert (listed, read.text, said.text) == (["one"], "one", "Say Ann.")


@MODES
async def test_unknown_tools_and_bad_arguments_are_refused_in_the_recorded_words(stage: Stage, mode: str) -> None:
    words = {"unknown_tool": "No {tool} here {}", "invalid_arguments": "{tool} does not take that: {reason}"}
    async with stage.serve(stage.dream(mirrored(**words))) as (_, http):
        made = await create(http)
        async with Client(made["mcp_url"], mode=mode) as client:
            unknown = await client.call_tool("nope", {})
            invalid = await client.call_tool("full", {})
    assert [unknown.is_error, invalid.is_error] == [True, True]
    assert text_of(unknown) == "No nope here {}"
    assert text_of(invalid) == "full does not take that: 'z' is a required property"


@MODES
async def test_an_error_of_the_protocol_is_given_as_such_an_error_and_to_a_trainer_as_a_result(
    stage: Stage, mode: str
) -> None:
    words = {"unknown_tool": "unknown tool '{tool}'", "invalid_arguments": "{tool}: bad: {reason}"}
    errors: dict[str, dict[str, Any]] = {
        "unknown tool '{tool}'": {"code": -32602, "message": "unknown tool 'gone'", "data": {"see": "tools/list"}},
        "{tool}: bad: {reason}": {"code": -32600},
    }
    async with stage.serve(stage.dream(mirrored(**words, errors=errors))) as (_, http):
        made = await create(http)
        async with Client(made["mcp_url"], mode=mode) as client:
            with pytest.raises(MCPError) as unknown:
                await client.call_tool("nope", {})
            with pytest.raises(MCPError) as invalid:
                await client.call_tool("full", {})
        told = await ask(
            http, made["mcp_url"], "tools/call", {"name": "nope"}, {**HANDSHAKE, "x-dreamgym-tell": "reward"}
        )
    assert unknown.value.error.model_dump() == {**errors["unknown tool '{tool}'"], "message": "unknown tool 'nope'"}
    assert invalid.value.error.code == -32600
    assert invalid.value.error.message == "full: bad: 'z' is a required property"
    assert told.json()["result"]["content"] == [{"type": "text", "text": "unknown tool 'nope'"}]


@ERAS
async def test_a_listing_that_the_recorded_server_refused_is_refused(stage: Stage, headers: dict[str, str]) -> None:
    refusal = {"code": -32601, "message": "no templates"}
    lookups = [{"method": "resources/templates/list", "error": refusal}]
    spec = mirrored(initialize=INITIALIZE, lookups=lookups)
    answer = (await asked(stage, spec, "resources/templates/list", {}, headers)).json()
    assert answer["error"] == refusal


CONTENT = [
    {"type": "text", "text": "one", "annotations": {"audience": ["user"]}},
    {"type": "image", "data": "aGk=", "mimeType": "image/png", "x-alt": None},
    {"type": "resource", "resource": {"uri": "demo://one", "text": "1", "mimeType": "text/plain"}},
]


@ERAS
async def test_content_blocks_and_structured_content_of_a_step_are_given_byte_for_byte(
    stage: Stage, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    predict = stage.model.predict

    async def several(query: Any) -> Any:
        return (await predict(query)).model_copy(update={"content": tuple(CONTENT), "structured": {"b": [None]}})

    monkeypatch.setattr(stage.model, "predict", several)
    call = {"name": "full", "arguments": {"z": "?"}}
    async with stage.serve(stage.dream(mirrored())) as (_, http):
        made = await create(http)
        answer = await ask(http, made["mcp_url"], "tools/call", call, headers)
        state = (await http.get(f"/envs/counter/episodes/{made['episode']}")).json()
    assert f'"content":{said(CONTENT)},"isError":false,"structuredContent":{{"b":[null]}}' in answer.text
    assert state["step"] == 1


class Listing(CounterEnvironment):
    """Answers with structured content that is a list, and with a field that MCP does not define."""

    async def step(self, action: ToolCall) -> StepResult:
        result = await super().step(action)
        return result.model_copy(update={"info": {"structured": [1, 2], "fields": {"x-cost": 3}}})


@ERAS
async def test_structured_content_that_is_no_object_is_given_in_the_newest_revision_only(
    stage: Stage, headers: dict[str, str]
) -> None:
    worlds = RealWorlds(counter_spec(), lambda: Listing(counter_spec()))
    async with stage.serve(worlds) as (_, http):
        made = await create(http)
        answer = await ask(http, made["mcp_url"], "tools/call", {"name": "add", "arguments": {"n": 1}}, headers)
    result = answer.json()["result"]
    assert (result["x-cost"], result["isError"]) == (3, False)
    assert result.get("structuredContent") == ([1, 2] if headers is MODERN else None)
