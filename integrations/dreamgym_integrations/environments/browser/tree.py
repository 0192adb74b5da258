"""Parses a page from text: BrowserGym's accessibility tree, and the states that are made from it.

One grammar covers both, so the same function reads a simulated state and a real page. Names are quoted as in Python, so
a page cannot add a line of its own. A line of any other form than these is skipped:

    [14] textbox 'Name' value='Ada', clickable, focused      an element; in a state, a colon follows the role
        StaticText 'Name'                                    a text; its depth is the number of tabs before it
    goal: 'Enter the name'   page: 'Form'   text: 'a | b'    three lines of a state
    tab 1: 'Inbox', open                                     a tab, if there are several
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from itertools import takewhile
from typing import NamedTuple

QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
# Each value has only one reading. With two, a line that does not fit at its end would take exponential time.
_MARK_VALUE = rf"(?:{QUOTED})(?=,|$)|(?!(?:{QUOTED})(?:,|$))[^,]*"
_LINE = re.compile(
    rf"(?P<indent>\t*)(?:\[(?P<bid>\w+)\] )?(?P<role>[\w-]+)(?P<colon>:?)(?: (?P<name>{QUOTED}))?"
    rf"(?: value=(?P<value>{QUOTED}|[^,\s]+))?(?P<marks>(?:, [\w-]+(?:=(?:{_MARK_VALUE}))?)*)"
)
_MARK = re.compile(rf", ([\w-]+)(?:=({QUOTED}|[^,]*))?")
_PLAIN_MARK = re.compile(r"[\w-]+(?:=[\w-]+)?")
_TAB = re.compile(rf"tab \d+: (?:{QUOTED})(?:, open)?")
SEPARATOR = " | "
LONGEST_NAME = 120

FIELDS = frozenset(["Date", "InputTime", "combobox", "listbox", "searchbox", "slider", "spinbutton", "textbox"])
PRESSED = frozenset(
    ("button", "checkbox", "link", "menuitem", "menuitemcheckbox", "menuitemradio", "radio", "switch", "tab")
)
FRAMES = frozenset(["LabelText", "RootWebArea", "dialog", "list", "menu", "tablist"])
"""Roles that may be clickable, although the elements to click are inside them."""
TEXT_ROLES = frozenset(["StaticText", "cell", "columnheader", "gridcell", "heading", "rowheader"])
SHOWN_MARKS = ("checked", "selected", "expanded", "pressed", "disabled", "focused", "clickable")
USUAL_MARKS = frozenset({"selected=false", "pressed=false", "disabled=false"})


class Element(NamedTuple):
    """An element with the id that calls use for it."""

    bid: str
    role: str
    name: str
    """The element's own name, else the text inside it or, for a field, before it."""
    value: str = ""
    marks: tuple[str, ...] = ()

    @property
    def is_interactive(self) -> bool:
        return self.role in FIELDS | PRESSED or ("clickable" in self.marks and self.role not in FRAMES)

    def line(self) -> str:
        value = f" value={self.value!r}" if self.value else ""
        return ", ".join((f"[{self.bid}] {self.role}: {self.name!r}{value}", *self.marks))


class Page(NamedTuple):
    """A page as read from its text."""

    goal: str
    title: str
    tabs: tuple[str, ...]
    elements: tuple[Element, ...]
    """One for each id, in the order of the page."""
    texts: tuple[str, ...]
    """Texts that are not the name of an interactive element, including the cells of tables."""


class _Node(NamedTuple):
    depth: int
    is_tree: bool
    element: Element


def page_of(text: str) -> Page:
    """Parse a tree or a state."""
    nodes: list[_Node] = []
    tabs: list[str] = []
    for line in text.split("\n"):
        if _TAB.fullmatch(line):
            tabs.append(line)
        elif (match := _LINE.fullmatch(line)) and (match["name"] or match["bid"]):
            node = _node(match)
            if not _is_shown_value(nodes, node):
                nodes.append(node)
    told = {node.element.role: node.element.name for node in nodes if not node.element.bid}
    elements: dict[str, Element] = {}
    for place, node in enumerate(nodes):
        if node.element.bid:
            elements.setdefault(node.element.bid, _labelled(nodes, place))
    names = {element.name for element in elements.values() if element.is_interactive}
    texts = [text for node in nodes if node.is_tree and (text := _text(node, names))]
    return Page(
        goal=told.get("goal", ""),
        title=told.get("page", told.get("RootWebArea", "")),
        tabs=tuple(tabs),
        elements=tuple(elements.values()),
        texts=(*texts, *(part for part in told.get("text", "").split(SEPARATOR) if part)),
    )


def without_layout(tree: str) -> str:
    """The tree without the elements that only arrange others."""
    lines: list[str] = []
    left_out: list[int] = []
    for line in tree.split("\n"):
        match = _LINE.fullmatch(line)
        depth = len(line) - len(line.lstrip("\t"))
        while left_out and left_out[-1] >= depth:
            left_out.pop()
        if match and match["role"] == "generic" and not match["name"] and "clickable" not in match["marks"]:
            left_out.append(depth)
        else:
            lines.append(line[len(left_out) :])
    return "\n".join(lines)


def _node(match: re.Match[str]) -> _Node:
    marks: dict[str, None] = {}
    for name, value in _MARK.findall(match["marks"]):
        mark = f"{name}={_unquoted(value).lower()}" if value else name
        if name in SHOWN_MARKS and mark not in USUAL_MARKS and _PLAIN_MARK.fullmatch(mark):
            marks[mark] = None
    role = match["role"]
    if role in FIELDS | PRESSED:
        marks.pop("clickable", None)  # elements of these roles always are
    name = _unquoted(match["name"] or "")
    if role != "text":
        name = shortened(name)
    element = Element(match["bid"] or "", role, name, _unquoted(match["value"] or ""), tuple(marks))
    return _Node(len(match["indent"]), not match["colon"], element)


def _is_shown_value(before: Sequence[_Node], node: _Node) -> bool:
    """True for the text inside a field, which repeats the field's value."""
    return (
        bool(before)
        and node.element.role == "StaticText"
        and before[-1].element.role in FIELDS
        and before[-1].depth < node.depth
    )


def shortened(name: str) -> str:
    """A name on one line, cut to a readable length."""
    name = " ".join(name.split())
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1].rstrip()}…"


def _unquoted(text: str) -> str:
    if text[:1] not in {"'", '"'}:
        return text
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):  # a simulator's own escapes
        return text[1:-1]


def _text(node: _Node, names: Set[str]) -> str:
    """The node's text; empty if it belongs to an element that can be used, or is the name of one."""
    element = node.element
    if element.role not in TEXT_ROLES or element.is_interactive:
        return ""
    return "" if element.role == "StaticText" and element.name in names else element.name.replace("|", "/")


def _labelled(nodes: Sequence[_Node], place: int) -> Element:
    """The element with a name. If it is unnamed, the name is the text inside it or, for a field, before it."""
    node = nodes[place]
    element = node.element
    if element.name or not node.is_tree or not element.is_interactive:
        return element
    words = _before(nodes, place) if element.role in FIELDS else _inside(nodes, place)
    return element._replace(name=shortened(words))


def _inside(nodes: Sequence[_Node], place: int) -> str:
    after = (nodes[other] for other in range(place + 1, len(nodes)))  # a slice would copy them for each element
    inner = takewhile(lambda node: node.depth > nodes[place].depth, after)
    return " ".join(node.element.name for node in inner if node.element.role == "StaticText")


def _before(nodes: Sequence[_Node], place: int) -> str:
    for other in range(place - 1, -1, -1):
        node = nodes[other]
        if node.element.role in FIELDS:
            break
        if node.element.role == "StaticText" and node.element.name:
            return node.element.name
    return ""
