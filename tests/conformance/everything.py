"""The environment that the protocol's conformance suite expects: its tools, resources and prompts, all scripted.

Each scenario's description contains what the suite expects (`conformance list`, and the text of its package).
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import JsonValue

from dreamgym.content import result_of
from dreamgym.environment import EnvironmentSpec
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="
WAV = "UklGRiQAAABXQVZFZm10IBAAAAABAAEARKwAAIhYAQACABAAZGF0YQAAAAA="

NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}
JSON_SCHEMA_2020: JsonObject = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def text(said: str) -> JsonObject:
    """A text block."""
    return {"type": "text", "text": said}


def resource(uri: str, mime_type: str, said: str) -> JsonObject:
    """An embedded resource."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime_type, "text": said}}


IMAGE: JsonObject = {"type": "image", "data": PNG, "mimeType": "image/png"}
ANSWERS: dict[str, JsonObject] = {
    "test_simple_text": {"content": [text("This is a simple text response for testing.")]},
    "test_image_content": {"content": [IMAGE]},
    "test_audio_content": {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]},
    "test_embedded_resource": {
        "content": [resource("test://embedded-resource", "text/plain", "This is an embedded resource content.")]
    },
    "test_multiple_content_types": {
        "content": [
            text("Multiple content types test:"),
            IMAGE,
            resource("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
        ]
    },
    "test_error_handling": {
        "content": [text("This tool intentionally returns an error for testing")],
        "isError": True,
    },
}
"""Results of the tools that answer at once."""

NOTICES: dict[str, list[JsonObject]] = {
    "test_tool_with_progress": [
        {"method": "notifications/progress", "params": {"progress": done, "total": 100}} for done in (0, 50, 100)
    ],
    "test_tool_with_logging": [
        {"method": "notifications/message", "params": {"level": "info", "data": said}}
        for said in ("Tool execution started", "Tool processing data", "Tool execution completed")
    ],
}
NOTICES["test_logging_tool"] = NOTICES["test_tool_with_logging"]
"""Notices that tools send before they answer."""


def form(message: str, field: str, kind: str = "string") -> JsonObject:
    """A question to the user of the client."""
    schema: JsonObject = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


def sample(said: str) -> JsonObject:
    """A question to the client's model."""
    message: JsonObject = {"role": "user", "content": text(said)}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": 100}}


ROOTS: JsonObject = {"method": "roots/list", "params": {}}
NAME = form("What is your name?", "name")
ROUNDS: dict[str, list[JsonObject]] = {
    "test_input_required_result_elicitation": [{"user_name": NAME}],
    "test_streaming_elicitation": [{"user_name": NAME}],
    "test_input_required_result_sampling": [{"capital_question": sample("What is the capital of France?")}],
    "test_missing_capability": [{"question": sample("Are you there?")}],
    "test_input_required_result_list_roots": [{"client_roots": ROOTS}],
    "test_input_required_result_request_state": [{"confirm": form("Please confirm", "ok", "boolean")}],
    "test_input_required_result_tampered_state": [{"confirm": form("Please confirm", "ok", "boolean")}],
    "test_input_required_result_multiple_inputs": [
        {"user_name": NAME, "greeting": sample("Generate a greeting"), "client_roots": ROOTS}
    ],
    "test_input_required_result_capabilities": [{"user_name": NAME, "greeting": sample("Generate a greeting")}],
    "test_input_required_result_multi_round": [
        {"step1": form("Step 1: What is your name?", "name")},
        {"step2": form("Step 2: What is your favorite color?", "color")},
    ],
}
"""Questions that tools ask before they answer, round by round."""
STATEFUL = {name for name in ROUNDS if name.endswith(("_state", "_inputs", "_round"))}
"""Tools that send a state with their questions and expect it back."""


def ask(tool: str, answers: JsonObject) -> StepResult:
    """Return the next round of questions, or the answer after the last one."""
    rounds = ROUNDS[tool]
    states: list[JsonValue] = [f"round {number}" for number in range(1, len(rounds) + 1)]
    given = answers.get("inputResponses")
    asked = 0 if given is None else 1
    if "requestState" in answers:
        if answers["requestState"] not in states:
            error: JsonObject = {"code": -32602, "message": "requestState was not given out by this server"}
            return StepResult(observation="refused", is_error=True, info={"error": error})
        asked = states.index(answers["requestState"]) + 1
    if isinstance(given, dict) and all(key in given for key in rounds[asked - 1]):
        if asked == len(rounds):
            return result_of({"content": [text("state-ok: thank you.")]})
    else:
        asked = max(asked - 1, 0)
    asks: JsonObject = {"inputRequests": rounds[asked]}
    if tool in STATEFUL:
        asks["requestState"] = states[asked]
    return StepResult(observation="a question", info={"asks": asks})


PROMPTS: dict[str, tuple[JsonObject, list[JsonObject]]] = {
    "test_simple_prompt": ({}, [text("This is a simple prompt for testing.")]),
    "test_prompt_with_arguments": (
        {"arg1": "testValue1", "arg2": "testValue2"},
        [text("Prompt with arguments: arg1='testValue1', arg2='testValue2'")],
    ),
    "test_prompt_with_embedded_resource": (
        {"resourceUri": "test://example-resource"},
        [
            resource("test://example-resource", "text/plain", "Embedded resource content for testing."),
            text("Please process the embedded resource above."),
        ],
    ),
    "test_prompt_with_image": ({}, [IMAGE, text("Please analyze the image above.")]),
}
"""Arguments and messages of each prompt."""

RESOURCES: dict[str, JsonObject] = {
    "test://static-text": {"mimeType": "text/plain", "text": "This is the content of the static text resource."},
    "test://static-binary": {"mimeType": "image/png", "blob": PNG},
    "test://watched-resource": {"mimeType": "text/plain", "text": "Nothing happens here."},
    "test://template/123/data": {
        "mimeType": "application/json",
        "text": '{"id":"123","templateTest":true,"data":"Data for ID: 123"}',
    },
}


def _name_of(uri: str) -> str:
    return uri.partition("://")[2]


def _lookups() -> list[JsonObject]:
    reads: list[JsonObject] = [
        {"method": "resources/read", "params": {"uri": uri}, "result": {"contents": [{"uri": uri, **said}]}}
        for uri, said in RESOURCES.items()
    ]
    prompts: list[JsonObject] = [
        {
            "method": "prompts/get",
            "params": {"name": name, "arguments": arguments},
            "result": {"messages": [{"role": "user", "content": block} for block in blocks]},
        }
        for name, (arguments, blocks) in PROMPTS.items()
    ]
    argument: JsonObject = {"name": "arg1", "value": "test"}
    completion: JsonObject = {
        "method": "completion/complete",
        "params": {"ref": {"type": "ref/prompt", "name": "test_prompt_with_arguments"}, "argument": argument},
        "result": {"completion": {"values": ["testValue1"], "total": 1, "hasMore": False}},
    }
    asking: JsonObject = {"name": "test_input_required_result_prompt"}
    answered: JsonObject = {"user_context": {"action": "accept", "content": {"context": "test context"}}}
    asked: JsonObject = {"user_context": form("What context should the prompt use?", "context")}
    message: JsonObject = {"role": "user", "content": text("The context is: test context")}
    prompts += [
        {
            "method": "prompts/get",
            "params": asking,
            "result": {"resultType": "input_required", "inputRequests": asked},
        },
        {
            "method": "prompts/get",
            "params": {**asking, "inputResponses": answered},
            "result": {"messages": [message]},
        },
    ]
    return [*reads, *prompts, completion]


def _tools() -> list[JsonObject]:
    names = [*ANSWERS, *NOTICES, *ROUNDS]
    plain: list[JsonObject] = [
        {"name": name, "description": f"The fixture {name}.", "inputSchema": NO_ARGUMENTS} for name in names
    ]
    schema: JsonObject = {
        "name": "json_schema_2020_12_tool",
        "description": "Tool with JSON Schema 2020-12 features",
        "inputSchema": JSON_SCHEMA_2020,
    }
    headers: JsonObject = {
        "name": "test_custom_headers",
        "description": "The fixture whose arguments stand in headers too.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "priority": {"type": "integer", "x-mcp-header": "Priority"},
                "verbose": {"type": "boolean", "x-mcp-header": "Verbose"},
            },
        },
    }
    return [*plain, schema, headers]


def _listings() -> dict[str, list[JsonObject]]:
    listed: list[JsonValue] = [
        {"uri": uri, "name": _name_of(uri), "description": "A fixture.", "mimeType": said["mimeType"]}
        for uri, said in RESOURCES.items()
        if "template" not in uri
    ]
    template: JsonObject = {
        "uriTemplate": "test://template/{id}/data",
        "name": "template",
        "description": "A fixture with a parameter.",
        "mimeType": "application/json",
    }
    prompts: list[JsonValue] = [
        {
            "name": name,
            "description": f"The fixture {name}.",
            "arguments": [
                {"name": argument, "description": "An argument.", "required": True} for argument in arguments
            ],
        }
        for name, (arguments, _) in PROMPTS.items()
    ]
    prompts.append({"name": "test_input_required_result_prompt", "description": "The fixture that asks first."})
    return {
        "resources/list": [{"resources": listed}],
        "resources/templates/list": [{"resourceTemplates": [template]}],
        "prompts/list": [{"prompts": prompts}],
    }


def everything_spec() -> EnvironmentSpec:
    """The environment. Its episodes never end by themselves."""
    return EnvironmentSpec.model_validate(
        {
            "name": "everything",
            "max_steps": 10_000,
            "tools_list": {"tools": _tools()},
            "tasks": [Task(id="everything", env="everything", instruction="Use every feature of the protocol.")],
            "mirror": {
                "initialize": {
                    "serverInfo": {"name": "everything", "version": "1"},
                    "capabilities": {
                        "tools": {"listChanged": False},
                        "resources": {"subscribe": True},
                        "prompts": {},
                        "completions": {},
                        "logging": {},
                    },
                },
                "listings": _listings(),
                "lookups": _lookups(),
            },
        }
    )


class Everything:
    """The real environment, which looks up its answers in tables."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Tools as in the spec."""
        return self._spec.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start an episode, which has no state."""
        return StepResult(observation="")

    async def step(self, action: ToolCall) -> StepResult:
        """Return the scripted answer of a tool."""
        if action.name in ROUNDS:
            return ask(action.name, action.answers)
        result = result_of(ANSWERS.get(action.name, {"content": [text("done")]}))
        notices = NOTICES.get(action.name)
        return result.model_copy(update={"info": {**result.info, "notices": notices}}) if notices else result

    async def close(self) -> None:
        """Nothing to release."""
