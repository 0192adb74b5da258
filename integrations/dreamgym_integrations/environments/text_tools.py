"""Typed tools of a text game: translates commands such as `take mug from desk` to typed calls, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

from dreamgym.types import JsonObject, ToolCall
from dreamgym_integrations.environments.base import act

_ARGUMENT = re.compile(r"\{(\w+)\}")


class TextTools:
    """The typed tools of a game whose one tool is `act(command)`.

    Args:
        forms: the forms of the command by tool, such as `take {thing} from {place}`. The first form of a tool is the
            one that is written. If a command fits several tools, the first of them counts.
        name: the regular expression of an argument.
    """

    def __init__(self, forms: Mapping[str, Sequence[str]], name: str) -> None:
        self._forms = {tool: of_tool[0] for tool, of_tool in forms.items()}
        self._patterns = [
            (tool, re.compile(_ARGUMENT.sub(lambda found: f"(?P<{found[1]}>{name})", form)))
            for tool, of_tool in forms.items()
            for form in of_tool
        ]
        self.tools: Sequence[JsonObject] = [_tool(tool, form) for tool, form in self._forms.items()]

    def call(self, action: ToolCall) -> ToolCall:
        """Typed call of a command; the action itself if no tool has a form that fits."""
        command = action.arguments.get("command")
        if action.name == "act" and isinstance(command, str):
            for tool, pattern in self._patterns:
                if found := pattern.fullmatch(command.strip()):
                    return ToolCall(name=tool, arguments=dict(found.groupdict()))
        return action

    def action(self, call: ToolCall) -> ToolCall:
        """The call of `act` for a typed call; any other call is returned unchanged."""
        form = self._forms.get(call.name)
        return call if form is None else act(form.format_map(cast("dict[str, object]", call.arguments)))


def _tool(tool: str, form: str) -> JsonObject:
    names = _ARGUMENT.findall(form)
    return {
        "name": tool,
        "description": form,
        "inputSchema": {
            "type": "object",
            "properties": {name: {"type": "string"} for name in names},
            "required": [*names],
            "additionalProperties": False,
        },
    }
