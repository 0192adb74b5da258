"""A page as text, read back: BrowserGym's accessibility tree, and the states that are made of it.

One grammar reads both, so that a simulated state is read by the same function as a real page. Names are quoted as
Python does, so no page can write a line of its own. A line that is none of these is skipped:

    [14] textbox 'Name' value='Ada', clickable, focused      an element; in a state there is a colon behind the role
        StaticText 'Name'                                    a text; the tabs before it are the depth
    goal: 'Enter the name'   page: 'Form'   text: 'a | b'    of a state
    tab 1: 'Inbox', open                                     where there are several
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence, Set
from itertools import takewhile
from typing import NamedTuple

QUOTED = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_LINE = re.compile(
    rf"(?P<indent>\t*)(?:\[(?P<bid>\w+)\] )?(?P<role>[\w-]+)(?P<colon>:?)(?: (?P<name>{QUOTED}))?"
    rf"(?: value=(?P<value>{QUOTED}|[^,\s]+))?(?P<marks>(?:, [\w-]+(?:=(?:{QUOTED}|[^,]*))?)*)"
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
"""They may be clickable, but what is to be clicked is within."""
TEXT_ROLES = frozenset(["StaticText", "cell", "columnheader", "gridcell", "heading", "rowheader"])
SHOWN_MARKS = ("checked", "selected", "expanded", "pressed", "disabled", "focused", "clickable")
USUAL_MARKS = frozenset({"selected=false", "pressed=false", "disabled=false"})


class Element(NamedTuple):
    """An element with an id, by which calls name it."""

    bid: str
    role: str
    name: str
    """Its own name, else the text inside of it or, for a field, before it."""
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
    """Those that no interactive element is named by; the cells of a table are among them."""


class _Node(NamedTuple):
    depth: int
    is_tree: bool
    element: Element


def page_of(text: str) -> Page:
    """Read a tree or a state."""
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
        marks.pop("clickable", None)  # it goes without saying
    name = _unquoted(match["name"] or "")
    if role != "text":
        name = shortened(name)
    element = Element(match["bid"] or "", role, name, _unquoted(match["value"] or ""), tuple(marks))
    return _Node(len(match["indent"]), not match["colon"], element)


def _is_shown_value(before: Sequence[_Node], node: _Node) -> bool:
    """The text inside of a field is its value once more."""
    return (
        bool(before)
        and node.element.role == "StaticText"
        and before[-1].element.role in FIELDS
        and before[-1].depth < node.depth
    )


def shortened(name: str) -> str:
    """A name in one line of a length that can be read."""
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
    """The element with a name: that of an unnamed one is the text inside of it, that of a field the one before it."""
    node = nodes[place]
    element = node.element
    if element.name or not node.is_tree or not element.is_interactive:
        return element
    words = _before(nodes, place) if element.role in FIELDS else _inside(nodes, place)
    return element._replace(name=shortened(words))


def _inside(nodes: Sequence[_Node], place: int) -> str:
    inner = takewhile(lambda node: node.depth > nodes[place].depth, nodes[place + 1 :])
    return " ".join(node.element.name for node in inner if node.element.role == "StaticText")


def _before(nodes: Sequence[_Node], place: int) -> str:
    for node in reversed(nodes[:place]):
        if node.element.role in FIELDS:
            break
        if node.element.role == "StaticText" and node.element.name:
            return node.element.name
    return ""
