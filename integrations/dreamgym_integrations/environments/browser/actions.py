"""An agent's actions in a browser, as tools: the thirteen actions of the paper (appendix C), with BrowserGym's names.

A call becomes Python code that BrowserGym runs. Its arguments become literals, so an agent's text is never run as code.
`NAVIGATION_TOOLS` are six more, for tasks that need an address or several tabs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue

from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.schema import fault_under
from dreamgym.types import JsonObject, ToolCall
from dreamgym_integrations.environments.browser.tree import FIELDS, Page

LONGEST_WAIT_MS = 5000

_BID: JsonObject = {"type": "string", "description": "The id of an element, as in [id]."}
_ONE_OR_MORE: JsonObject = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
_BUTTON: JsonObject = {"type": "string", "enum": ["left", "middle", "right"], "default": "left"}
_MODIFIERS: JsonObject = {
    "type": "array",
    "items": {"type": "string", "enum": ["Alt", "Control", "ControlOrMeta", "Meta", "Shift"]},
    "default": [],
}
_PIXELS: JsonObject = {"type": "number", "description": "In pixels; right and down are positive."}


def _tool(name: str, description: str, required: Mapping[str, JsonObject], **optional: JsonObject) -> JsonObject:
    schema: JsonObject = {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "inputSchema": schema}


_CLICK = {"button": _BUTTON, "modifiers": _MODIFIERS}
TOOLS: Sequence[JsonObject] = (
    _tool(
        "noop",
        "Do nothing for a while.",
        {},
        wait_ms={"type": "number", "minimum": 0, "maximum": LONGEST_WAIT_MS, "default": 1000},
    ),
    _tool("send_msg_to_user", "Tell the user something: the answer to a question.", {"text": {"type": "string"}}),
    _tool("scroll", "Scroll the page.", {"delta_x": _PIXELS, "delta_y": _PIXELS}),
    _tool("fill", "Replace the text of a form field.", {"bid": _BID, "value": {"type": "string"}}),
    _tool("select_option", "Select options of a list by value or label.", {"bid": _BID, "options": _ONE_OR_MORE}),
    _tool("click", "Click an element.", {"bid": _BID}, **_CLICK),
    _tool("dblclick", "Double-click an element.", {"bid": _BID}, **_CLICK),
    _tool("hover", "Move the mouse over an element.", {"bid": _BID}),
    _tool(
        "press",
        "Focus an element and press a key or a combination of keys.",
        {"bid": _BID, "key_comb": {"type": "string", "description": "For example: Enter, Backspace, Control+a"}},
    ),
    _tool("focus", "Focus an element.", {"bid": _BID}),
    _tool("clear", "Empty a form field.", {"bid": _BID}),
    _tool("drag_and_drop", "Drag one element onto another.", {"from_bid": _BID, "to_bid": _BID}),
    _tool("upload_file", "Give files to a file input.", {"bid": _BID, "file": _ONE_OR_MORE}),
)
NAVIGATION_TOOLS: Sequence[JsonObject] = (
    _tool("goto", "Open an address.", {"url": {"type": "string", "pattern": "^https?://"}}),
    _tool("go_back", "Go back to the page before.", {}),
    _tool("go_forward", "Go forward to the page after.", {}),
    _tool("new_tab", "Open a new tab, which becomes the active one.", {}),
    _tool("tab_close", "Close the active tab.", {}),
    _tool("tab_focus", "Make a tab the active one.", {"index": {"type": "integer", "minimum": 0}}),
)


class Refusal(Exception):
    """The action is possible in a browser, but not allowed here."""


def code_of(action: ToolCall, tools: Sequence[JsonObject], uploads: Path | None = None) -> str:
    """Python code that calls BrowserGym's function.

    Args:
        action: the agent's call.
        tools: definitions of the tools.
        uploads: the one folder that files may be taken from.

    Raises:
        UnknownName, InvalidInput: there is no such tool, or its arguments do not fit its schema.
        Refusal: a file that may not be uploaded.
    """
    schemas = {str(tool["name"]): tool["inputSchema"] for tool in tools}
    if action.name not in schemas:
        raise UnknownName("tool", action.name, schemas)
    if fault := fault_under(schemas[action.name], action.arguments):
        raise InvalidInput(f"{action.name}: {fault}")
    arguments = dict(action.arguments)
    if action.name == "upload_file":
        arguments["file"] = _allowed(arguments["file"], uploads)
    return f"{action.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"


def _allowed(value: JsonValue, uploads: Path | None) -> JsonValue:
    if uploads is None:
        raise Refusal("Error: no files may be uploaded here.")
    paths: list[JsonValue] = []
    for name in value if isinstance(value, list) else [value]:
        path = (uploads / str(name)).resolve()
        if not path.is_relative_to(uploads.resolve()) or not path.is_file():
            raise Refusal(f"Error: there is no file {name!r} to upload.")
        paths.append(str(path))
    return paths


def admissible(page: Page) -> list[str]:
    """Calls that act on the elements of the page; TEXT stands for any text."""
    calls: list[str] = []
    options = [element.name for element in page.elements if element.role == "option" and element.name]
    for element in page.elements:
        if "disabled=true" in element.marks or not element.is_interactive:
            continue
        if element.role == "combobox" and options:
            calls.extend(f"select_option({element.bid!r}, {option!r})" for option in options)
        elif element.role in FIELDS:
            calls.extend((f"click({element.bid!r})", f"fill({element.bid!r}, TEXT)"))
        else:
            calls.append(f"click({element.bid!r})")
    return calls
