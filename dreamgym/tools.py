"""The tools of one environment: arguments in and structured answers out, checked against each tool's own schemas.

A refusal is text for the agent, as the real server phrases it; no model has been asked by then.
Schemas never fetch anything: a `$ref` to another document is a fault of tools.json and found at start.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TypeAlias

import jsonschema
import referencing
import referencing.exceptions
from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject, StepResult, ToolCall

MAX_ARGUMENT_BYTES = 64 * 1024
SHOWN_CHARACTERS = 500
REMEMBERED_CALLS = 10_000
REMEMBERED_CHARACTERS = 500
UNKNOWN_TOOL = "MCP error -32602: Tool {tool} not found"
INVALID_ARGUMENTS = "Input validation error: {reason}"

Validator: TypeAlias = jsonschema.protocols.Validator


class Tools:
    """The compiled schemas of one environment. Raises InvalidInput naming a schema that cannot be used."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._unknown_tool = spec.mirror.unknown_tool or UNKNOWN_TOOL
        self._invalid_arguments = spec.mirror.invalid_arguments or INVALID_ARGUMENTS
        self._inputs: dict[str, Validator] = {}
        self._outputs: dict[str, Validator] = {}
        self._sound: set[str] = set()
        """Calls that were found sound: the rollouts of a group make the same ones again and again."""
        for tool in spec.tools:
            name = str(tool["name"])
            try:
                self._inputs[name] = _compiled(json.dumps(tool.get("inputSchema", {})))
                if isinstance(tool.get("outputSchema"), dict):
                    self._outputs[name] = _compiled(json.dumps(tool["outputSchema"]))
            except (jsonschema.SchemaError, referencing.exceptions.Unresolvable) as error:
                raise InvalidInput(
                    f"environment {spec.name!r}, tool {name!r}: not a usable JSON schema: {error}"
                ) from error

    def refusal(self, action: ToolCall, canonical: str) -> str | None:
        """Why the real system would not even try this call, or None. `canonical` is the call's canonical text."""
        if canonical in self._sound:
            return None
        validator = self._inputs.get(action.name)
        if validator is None:
            return self._unknown_tool.replace("{tool}", action.name)
        if len(canonical.encode()) > MAX_ARGUMENT_BYTES:
            reason: str | None = f"the arguments exceed {MAX_ARGUMENT_BYTES} bytes"
        else:
            reason = _fault(validator, action.arguments)
        if reason is None and len(canonical) <= REMEMBERED_CHARACTERS:
            if len(self._sound) >= REMEMBERED_CALLS:
                self._sound.clear()
            self._sound.add(canonical)
        return reason and self._invalid_arguments.replace("{tool}", action.name).replace("{reason}", reason)

    def violation(self, tool: str, result: StepResult) -> str | None:
        """What an MCP client would reject of an answer, or None."""
        validator = self._outputs.get(tool)
        if validator is None or result.is_error or "asks" in result.info:
            return None
        if result.structured is None:
            return f"the output schema of {tool!r} wants structured content, got text: {result.observation[:200]!r}"
        fault = _fault(validator, result.structured)
        return fault and f"the answer of {tool!r} is off its output schema: {fault}"


def is_forbidden(spec: EnvironmentSpec, action: ToolCall) -> bool:
    """The tool does not exist or its schema forbids the arguments: the real system never tried this call."""
    for definition in spec.tools:
        if definition["name"] == action.name:
            schema = definition.get("inputSchema")
            return isinstance(schema, dict) and fault_under(schema, action.arguments) is not None
    return True


def output_schema(spec: EnvironmentSpec, tool: str) -> JsonObject | None:
    """The schema of a tool's structured content, where it has one."""
    for definition in spec.tools:
        if definition["name"] == tool:
            schema = definition.get("outputSchema")
            return schema if isinstance(schema, dict) else None
    return None


def fault_under(schema: JsonObject, value: JsonValue) -> str | None:
    """What is wrong with a value under a usable schema, or None."""
    return _fault(_compiled(json.dumps(schema)), value)


def _fault(validator: Validator, value: JsonValue) -> str | None:
    fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    if fault is None:
        return None
    where = f"{fault.json_path.removeprefix('$.')}: " if fault.path else ""
    return f"{where}{fault.message[:SHOWN_CHARACTERS]}"


@lru_cache(maxsize=1024)
def _compiled(text: str) -> Validator:
    """Raises SchemaError and Unresolvable."""
    schema = json.loads(text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    validator: Validator = kind(schema, registry=referencing.Registry())
    jsonschema.exceptions.best_match(validator.iter_errors({}))
    return validator
