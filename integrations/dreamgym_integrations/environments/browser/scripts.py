"""Scripts for pages of MiniWoB: each makes all calls from the instruction and the first page.

The wording of the instruction selects the script. A script that does not find what it looks for gives no plan.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from dreamgym.types import ToolCall
from dreamgym_integrations.environments.browser.tree import FIELDS, Element, Page

Script = Callable[[Page, re.Match[str]], Sequence[ToolCall]]
_TEXT_FIELDS = frozenset({"textbox", "searchbox"})
_WIDGETS: Mapping[str, frozenset[str]] = {
    "button": frozenset({"button"}),
    "checkbox": frozenset({"checkbox"}),
    "radio": frozenset({"radio"}),
    "text": _TEXT_FIELDS,
    "textarea": _TEXT_FIELDS,
}


class _NotFound(LookupError):
    """The page does not have what the instruction asks for."""


def script(page: Page) -> list[ToolCall]:
    """All calls that do what the page's goal asks for; empty if no script fits."""
    for pattern, write in _SCRIPTS:
        match = re.search(pattern, page.goal)
        if match:
            try:
                return list(write(page, match))
            except _NotFound:
                return []
    return []


def _all(page: Page, roles: frozenset[str]) -> list[Element]:
    return [element for element in page.elements if element.role in roles]


def _find(page: Page, name: str, *roles: str) -> Element:
    """The element of this name; if roles are given, of one of them."""
    for element in page.elements:
        if element.name.lower() == name.lower() and element.is_interactive and (not roles or element.role in roles):
            return element
    raise _NotFound(name)


def _nth(elements: Sequence[Element], number: int) -> Element:
    if not 0 < number <= len(elements):
        raise _NotFound(str(number))
    return elements[number - 1]


def click(bid: str) -> ToolCall:
    """A click on an element."""
    return ToolCall(name="click", arguments={"bid": bid})


def fill(bid: str, value: str) -> ToolCall:
    """A new text for a field."""
    return ToolCall(name="fill", arguments={"bid": bid, "value": value})


def _send(page: Page, name: str = "Submit") -> ToolCall:
    return click(_find(page, name, "button").bid)


def _click_named(page: Page, match: re.Match[str]) -> list[ToolCall]:
    return [click(_find(page, name).bid) for name in match.groups()]


def _click_dialog(page: Page, match: re.Match[str]) -> list[ToolCall]:
    name = match["name"] if "name" in match.re.groupindex else "x"
    return [click(_find(page, "Close" if name == "x" else name, "button").bid)]


def _select(page: Page, match: re.Match[str]) -> list[ToolCall]:
    """Select from a list if there is one, else click boxes and radio buttons; then submit."""
    lists = _all(page, frozenset({"combobox"}))
    if lists:
        return [ToolCall(name="select_option", arguments={"bid": lists[0].bid, "options": match[1]}), _send(page)]
    names = [] if match[1] == "nothing" else match[1].split(", ")
    return [*(click(_find(page, name, "checkbox", "radio").bid) for name in names), _send(page)]


def _widget(page: Page, match: re.Match[str]) -> list[ToolCall]:
    kind = match[1]
    fitting = _all(page, _WIDGETS.get(kind, frozenset({kind})))
    if kind in {"text", "textarea"}:  # the tree does not distinguish them
        fitting = fitting[:1]
    return [click(_nth(fitting, 1).bid)]


def _focus(page: Page, match: re.Match[str]) -> list[ToolCall]:
    return [click(_nth(_all(page, _TEXT_FIELDS), int(match[1])).bid)]


def _enter(value: Callable[[Page, re.Match[str]], str], roles: frozenset[str] = _TEXT_FIELDS) -> Script:
    """Fill in all fields and submit them."""

    def write(page: Page, match: re.Match[str]) -> list[ToolCall]:
        fields = _all(page, roles)
        if not fields:
            raise _NotFound("a field")
        return [*(fill(element.bid, value(page, match)) for element in fields), _send(page)]

    return write


def _in_case(page: Page, match: re.Match[str]) -> str:
    return match[1].lower() if match[2] == "lower" else match[1].upper()


def _date(page: Page, match: re.Match[str]) -> str:
    return f"{match[3]}-{match[1]}-{match[2]}"


def _time(page: Page, match: re.Match[str]) -> str:
    hour = int(match[1]) % 12 + (12 if match[3] == "PM" else 0)
    return f"{hour:02d}:{match[2]}"


def _log_in(page: Page, match: re.Match[str]) -> list[ToolCall]:
    user, password = _find(page, "Username", "textbox"), _find(page, "Password", "textbox")
    return [fill(user.bid, match[1]), fill(password.bid, match[2]), _send(page, "Login")]


def _cell(page: Page, match: re.Match[str]) -> str:
    """The table cell after the name."""
    if match[1] not in page.texts[:-1]:
        raise _NotFound(match[1])
    return page.texts[page.texts.index(match[1]) + 1]


_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "x": lambda a, b: a * b,
}


def _shown(page: Page, pattern: str) -> re.Match[str]:
    labels = [element.name for element in page.elements if element.role in FIELDS]
    match = re.search(pattern, " ".join((*page.texts, *labels)))
    if match is None:
        raise _NotFound(pattern)
    return match


def _sum(page: Page, match: re.Match[str]) -> str:
    first, sign, second = _shown(page, r"(-?\d+) ([-+x]) (-?\d+) =").groups()
    return str(_OPERATIONS[sign](int(first), int(second)))


def _unknown(page: Page, match: re.Match[str]) -> str:
    """The x of `a + x = c`, `x - b = c` and the like."""
    first, sign, second, outcome = _shown(page, r"(x|-?\d+) ([-+]) (x|-?\d+) = (-?\d+)").groups()
    if first == "x":
        return str(int(outcome) - int(second) if sign == "+" else int(outcome) + int(second))
    return str(int(outcome) - int(first) if sign == "+" else int(first) - int(outcome))


def _copy(page: Page, match: re.Match[str]) -> list[ToolCall]:
    fields = _all(page, _TEXT_FIELDS)
    source = next((element for element in fields if element.value), None)
    target = next((element for element in fields if not element.value), None)
    if source is None or target is None:
        raise _NotFound("two fields")
    return [fill(target.bid, source.value), _send(page)]


def _word(page: Page, match: re.Match[str]) -> str:
    text = max((*page.texts, *(element.name for element in page.elements)), key=len)
    words = re.findall(r"\w+", text)
    number = int(match[1])
    if not 0 < number <= len(words):
        raise _NotFound(f"word {number}")
    return str(words[number - 1])


def _letters(page: Page, match: re.Match[str]) -> str:
    labels = [element.name for element in page.elements if element.role in FIELDS and element.name]
    return "".join((*page.texts, *labels))


def _odd_or_even(page: Page, match: re.Match[str]) -> list[ToolCall]:
    numbers = [int(text) for text in page.texts if re.fullmatch(r"-?\d+", text)]
    odd = [element for element in page.elements if element.name == "Odd"]
    even = [element for element in page.elements if element.name == "Even"]
    if not len(numbers) == len(odd) == len(even):
        raise _NotFound("a button for each number")
    rows = zip(numbers, odd, even, strict=True)
    return [*(click((this if number % 2 else that).bid) for number, this, that in rows), _send(page)]


_SCRIPTS: Sequence[tuple[str, Script]] = (
    (r"^Click button (\w+), then click button (\w+)\.$", _click_named),
    (r"^Click button (\w+)\.$", _click_named),
    (r'^Click the button in the dialog box labeled "(?P<name>.+)"\.$', _click_dialog),
    (r"^Close the dialog box", _click_dialog),
    (r"^Click on (Tab #\d+)\.$", lambda page, match: [click(_find(page, match[1], "link", "tab").bid)]),
    (r'^Click on a "(\w+)" widget\.$', _widget),
    (r'^Click on the (?:link )?"(.+?)"(?: button| link)?\.$', _click_named),
    (r"^Select (.+) from the list and click Submit\.$", _select),
    (r"^Select (.+) and click Submit\.$", _select),
    (r"^Focus into the (\d+)\w+ input textbox\.$", _focus),
    (r'^Enter the username "(.+)" and the password "(.+)" into', _log_in),
    (r'^Enter the password "(.+)" into both', _enter(lambda page, match: match[1])),
    (r'^Enter "(.+)" into the text field and press Submit\.$', _enter(lambda page, match: match[1])),
    (r'^Type "(.+)" in all (lower|upper) case letters', _enter(_in_case)),
    (r"^Enter (\d\d)/(\d\d)/(\d{4}) as the date", _enter(_date, frozenset({"Date"}))),
    (r"^Enter (\d+):(\d\d) ([AP]M) as the time", _enter(_time, frozenset({"InputTime"}))),
    (r"^Enter the value of (.+) into the text field", _enter(_cell)),
    (r"^Solve for x", _enter(_unknown)),
    (r"^Solve the math problem", _enter(_sum)),
    (r"^Copy the text in the textarea below", _copy),
    (r"^Find the (\d+)\w+ word in the paragraph", _enter(_word)),
    (r"^Mark the numbers below as odd or even", _odd_or_even),
    (r"^Type the text below into the text field", _enter(_letters)),
)
