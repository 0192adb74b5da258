"""Checks of tool calls and structured answers against the tools' own schemas.

A refusal is text for the agent, in the words of the real server. No model is asked before these checks. A `$ref` to
another document is a fault of tools.json. It is found at start if the check of an empty object reaches it. Otherwise
the values that reach it are not checked, and the log has a warning.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.fault_words import reason_in_words
from dreamgym.schema import Schema, fault_under, schema_of
from dreamgym.types import JsonObject, StepResult, ToolCall, Transition

MAX_ARGUMENT_BYTES = 64 * 1024
REMEMBERED_CALLS = 10_000
REMEMBERED_CHARACTERS = 500
UNKNOWN_TOOL = "MCP error -32602: Tool {tool} not found"
INVALID_ARGUMENTS = "Input validation error: {reason}"

logger = logging.getLogger(__name__)


class Tools:
    """The compiled schemas of one environment. Raises InvalidInput naming a schema that cannot be used."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._unknown_tool = spec.mirror.unknown_tool or UNKNOWN_TOOL
        self._invalid_arguments = spec.mirror.invalid_arguments or INVALID_ARGUMENTS
        self._mirror, self._accepted = spec.mirror, frozenset(spec.mirror.accepted)
        self._inputs: dict[str, Schema] = {}
        self._outputs: dict[str, Schema] = {}
        self._sound: set[str] = set()
        """Canonical texts of calls that passed the check. The rollouts of a group repeat the same calls."""
        for tool in spec.tools:
            name = str(tool["name"])
            try:
                self._inputs[name] = schema_of(tool.get("inputSchema", {}), redacted=True)
                if isinstance(tool.get("outputSchema"), dict):
                    self._outputs[name] = schema_of(tool["outputSchema"])
            except InvalidInput as error:
                raise InvalidInput(
                    f"environment {spec.name!r}, tool {name!r}: {error}; correct the schema in tools.json"
                ) from error

    def refusal(self, action: ToolCall, canonical: str, *, recorded: str | None = None) -> str | None:
        """The message with which the real server refuses this call without running it; None if it would run it.

        Args:
            action: the call.
            canonical: its canonical text.
            recorded: canonical text of the call as a recording has it, if a recording of it is redacted.
        """
        recorded = canonical if recorded is None else recorded
        if canonical in self._sound or recorded in self._accepted:
            return None
        schema = self._inputs.get(action.name)
        if schema is None:
            return self._unknown_tool.replace("{tool}", action.name)
        if is_too_long(canonical):
            return self._refuse(action, f"the arguments exceed {MAX_ARGUMENT_BYTES} bytes")
        reason = _fault(schema, action.name, action.arguments)
        if reason is not None:
            mirror = self._mirror
            if recorded in mirror.refusals:
                return mirror.refusals[recorded]
            told = reason_in_words(schema, action, mirror.fault_words, tells_all=mirror.tells_all_faults)
            return self._refuse(action, reason, told)
        if len(canonical) <= REMEMBERED_CHARACTERS:
            if len(self._sound) >= REMEMBERED_CALLS:
                self._sound.clear()
            self._sound.add(canonical)
        return None

    def _refuse(self, action: ToolCall, reason: str, told: str | None = None) -> str:
        """The refusal of arguments. The reason is in the words of the real server, if these are known."""
        words = self._invalid_arguments if told is None else self._mirror.invalid_arguments or "{reason}"
        return words.replace("{tool}", action.name).replace("{reason}", reason if told is None else told)

    def violation(self, tool: str, result: StepResult) -> str | None:
        """The reason why an MCP client would reject this answer; None if it is valid."""
        schema = self._outputs.get(tool)
        if schema is None or result.is_error or "asks" in result.info:
            return None
        structured = result.info.get("structured")
        if structured is None:
            return f"the output schema of {tool!r} requires structured content, got text: {result.observation[:200]!r}"
        fault = _fault(schema, tool, structured)
        return fault and f"the answer of {tool!r} does not match its output schema: {fault}"


def is_too_long(canonical: str) -> bool:
    """True if the canonical text of a call is too long. Such a call is refused before any slow check."""
    return len(canonical) > MAX_ARGUMENT_BYTES or len(canonical.encode("utf-8", "surrogatepass")) > MAX_ARGUMENT_BYTES


def is_forbidden(spec: EnvironmentSpec, action: ToolCall) -> bool:
    """True if the tool does not exist or its schema forbids the arguments, so the real server never ran the call."""
    for definition in spec.tools:
        if definition["name"] == action.name:
            schema = definition.get("inputSchema")
            return isinstance(schema, dict) and known_fault(schema, action.arguments, redacted=True) is not None
    return True


def known_fault(schema: JsonObject, value: JsonValue, *, redacted: bool = False) -> str | None:
    """The fault of a value; None also if the schema cannot be evaluated for it, since the real server could."""
    try:
        return fault_under(schema, value, redacted=redacted)
    except InvalidInput:
        return None


def hints_of(tools: Mapping[str, JsonObject]) -> dict[str, bool]:
    """What each tool that has annotations says of itself: True if it only reads, False if it writes."""
    return {name: hint for name, tool in tools.items() if (hint := _hint(tool)) is not None}


def output_schema(spec: EnvironmentSpec, tool: str) -> JsonObject | None:
    """The schema of a tool's structured content; None if it has none."""
    for definition in spec.tools:
        if definition["name"] == tool:
            schema = definition.get("outputSchema")
            return schema if isinstance(schema, dict) else None
    return None


def completed(step: Transition, spec: EnvironmentSpec) -> Transition:
    """A recorded step with its structured content. If the recording lacks it, it is parsed from the text."""
    schema = output_schema(spec, step.action.name)
    if schema is None or step.result.is_error or step.result.structured is not None:
        return step
    try:
        value = json.loads(step.result.observation)
    except (ValueError, RecursionError):
        return step
    if not isinstance(value, dict) or known_fault(schema, value) is not None:
        return step
    info = {**step.result.info, "structured": value}
    return step.model_copy(update={"result": step.result.model_copy(update={"info": info})})


def _hint(tool: JsonObject) -> bool | None:
    annotations = tool.get("annotations")
    if not isinstance(annotations, dict):
        return None
    hint = annotations.get("readOnlyHint")
    if isinstance(hint, bool):
        return hint
    return False if annotations.get("destructiveHint") is True else None


def _fault(schema: Schema, tool: str, value: JsonValue) -> str | None:
    """The fault of a value; None if the schema cannot be evaluated for it, since the real server could."""
    try:
        return schema.fault(value)
    except InvalidInput as error:
        logger.warning("tool %s: its schema could not be evaluated, so a value was not checked: %s", tool, error)
        return None
