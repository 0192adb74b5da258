"""One environment's tools at the door: arguments in and structured answers out, checked against the tool's own schema.

A refusal is text for the agent, phrased as a real server's validation error; no model has been asked by then.
Schemas never fetch anything: a `$ref` to another document is a fault of tools.json and found at start.
"""

from __future__ import annotations

import json

import jsonschema
import referencing
import referencing.exceptions

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject, ToolCall

MAX_ARGUMENT_BYTES = 64 * 1024


class Tools:
    """The compiled schemas of one environment."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._inputs: dict[str, jsonschema.protocols.Validator] = {}
        self._outputs: dict[str, jsonschema.protocols.Validator] = {}
        for tool in spec.tools:
            name = str(tool["name"])
            self._inputs[name] = _compiled(spec, name, tool.get("inputSchema", {}))
            if isinstance(tool.get("outputSchema"), dict):
                self._outputs[name] = _compiled(spec, name, tool["outputSchema"])

    def refusal(self, action: ToolCall, canonical: str) -> str | None:
        """Why the real system would not even try this call, or None. `canonical` is the call's canonical text."""
        validator = self._inputs.get(action.name)
        if validator is None:
            return f"MCP error -32602: Tool {action.name} not found"
        if len(canonical.encode()) > MAX_ARGUMENT_BYTES:
            return f"Input validation error: the arguments exceed {MAX_ARGUMENT_BYTES} bytes"
        fault = jsonschema.exceptions.best_match(validator.iter_errors(action.arguments))
        if fault is None:
            return None
        where = f"{fault.json_path.removeprefix('$.')}: " if fault.path else ""
        return f"Input validation error: {where}{fault.message[:500]}"

    def structured(self, tool: str, observation: str) -> JsonObject | None:
        """The observation as `structuredContent` where the tool has an output schema, else None.

        Raises:
            ValueError: the observation is not JSON under that schema.
        """
        validator = self._outputs.get(tool)
        if validator is None:
            return None
        try:
            value = json.loads(observation)
        except ValueError as error:
            raise ValueError(f"the output schema of {tool!r} wants JSON, got {observation[:200]!r}") from error
        fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
        if fault is not None or not isinstance(value, dict):
            raise ValueError(f"the answer of {tool!r} is off its output schema: {fault.message if fault else value!r}")
        return value


def _compiled(spec: EnvironmentSpec, tool: str, schema: object) -> jsonschema.protocols.Validator:
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
        validator: jsonschema.protocols.Validator = kind(schema, registry=referencing.Registry())
        jsonschema.exceptions.best_match(validator.iter_errors({}))
    except (jsonschema.SchemaError, referencing.exceptions.Unresolvable) as error:
        raise InvalidInput(f"environment {spec.name!r}, tool {tool!r}: not a usable JSON schema: {error}") from error
    return validator
