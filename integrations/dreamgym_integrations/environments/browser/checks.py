"""WebArena's checks of success: `string_match` on the answer, `url_match` on the page, `program_html` on contents.

All checks of a task must hold. In the original a language model judges a `fuzzy_match`. Here an answer passes if it
equals the reference apart from case, spaces and punctuation. Any other answer is `unjudged`: the episode then ends with
an unknown reward.
"""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlparse

from pydantic import JsonValue

from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject

TYPES = ("string_match", "url_match", "program_html")
HOW = ("exact_match", "must_include", "fuzzy_match")
"""How a text is compared."""
_OR = " |OR| "
_CALL = re.compile(r"func:(\w+)\((.*)\)")
_ARGUMENT = re.compile(r"'([^']*)'|\"([^\"]*)\"")

Helper = Callable[..., str]
"""Function that a `func:` of a check calls, with the page and the arguments in quotes."""


class CheckResult(NamedTuple):
    """Result of a task's checks."""

    succeeded: bool
    unjudged: bool = False
    """True if a language model would have had to compare texts."""


class Checks:
    """The checks of one task."""

    def __init__(self, types: Sequence[str], answers: JsonObject, url: str, targets: Sequence[JsonObject]) -> None:
        self._types = types
        self._answers = answers
        self._url = url
        self._targets = targets

    @classmethod
    def of(cls, evaluation: JsonObject) -> Checks:
        """Parse a task's `eval`. Raises InvalidInput for an unknown kind of check, or one that compares nothing."""
        types = evaluation.get("eval_types")
        if not isinstance(types, list) or not types or not set(map(str, types)) <= set(TYPES):
            raise InvalidInput(f"eval.eval_types: expected some of {', '.join(TYPES)}, got {types!r}")
        answers, targets = evaluation.get("reference_answers") or {}, evaluation.get("program_html") or []
        if not isinstance(answers, dict) or not isinstance(targets, list):
            raise InvalidInput("eval: expected an object as reference_answers and a list as program_html")
        if (note := evaluation.get("url_note")) and note != "GOLD in PRED":
            raise InvalidInput(f"eval.url_note: expected 'GOLD in PRED', got {note!r}")
        rows = [target for target in targets if isinstance(target, dict) and target.get("required_contents")]
        if len(rows) < len(targets):
            raise InvalidInput("eval.program_html: expected objects with required_contents")
        for wanted in ([answers] if "string_match" in types else []) + [target["required_contents"] for target in rows]:
            _require_references(wanted)
        url = str(evaluation.get("reference_url") or "")
        compared = {
            "string_match": ("reference_answers", answers),
            "url_match": ("reference_url", url),
            "program_html": ("program_html", rows),
        }
        for field, value in (compared[str(kind)] for kind in types):
            if not value:  # every answer would be a success
                raise InvalidInput(f"eval.{field}: expected what the answer is compared with, got {value!r}")
        return cls([str(kind) for kind in types], answers, url, rows)

    def verdict(self, answer: str, page: Any, helpers: Mapping[str, Helper]) -> CheckResult:
        """The result of all checks. `page` is Playwright's; a check of another page opens it in a tab of its own."""
        verdicts = []
        if "string_match" in self._types:
            verdicts.append(text_verdict(self._answers, answer))
        if "url_match" in self._types:
            verdicts.append(CheckResult(is_at(page.url, self._url)))
        if "program_html" in self._types:
            verdicts.extend(_content_verdict(target, page, helpers) for target in self._targets)
        succeeded = all(verdict.succeeded for verdict in verdicts)
        failed_surely = any(not verdict.succeeded and not verdict.unjudged for verdict in verdicts)
        return CheckResult(succeeded, not succeeded and not failed_surely)


def _require_references(wanted: JsonValue) -> None:
    """Raises InvalidInput for an unknown kind of check of a text, or one without a text to compare with."""
    if not isinstance(wanted, dict) or not set(wanted) <= set(HOW):
        raise InvalidInput(f"a check of WebArena: expected some of {', '.join(HOW)}, got {wanted!r}")
    for how, value in wanted.items():
        texts = value if isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise InvalidInput(f"a check of WebArena: {how}: expected texts to compare with, got {value!r}")


def text_verdict(wanted: JsonObject, text: str) -> CheckResult:
    """The result of `exact_match`, `must_include` and `fuzzy_match` on a text."""
    unjudged = False
    for how, value in wanted.items():
        references = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        if how == "exact_match":
            held = cleaned(references[0]) == cleaned(text)
        elif how == "must_include":
            held = all(
                any(_includes(text, part, len(references) == 1) for part in ref.split(_OR)) for ref in references
            )
        elif how == "fuzzy_match":
            held = all(_bare(reference) == _bare(text) for reference in references)
            unjudged = unjudged or not held
            continue
        else:
            raise InvalidInput(f"a check of WebArena: expected some of {', '.join(HOW)}, got {how!r}")
        if not held:
            return CheckResult(False)
    return CheckResult(not unjudged, unjudged)


def is_at(url: str, references: str) -> bool:
    """True if one of the references is in the address, and each of their parameters has one of its values there."""
    shown = urlparse(url.rstrip("/"))
    wanted = [urlparse(reference.rstrip("/")) for reference in references.split(_OR)]
    if not any(reference.netloc + reference.path in shown.netloc + shown.path for reference in wanted):
        return False
    allowed: dict[str, set[str]] = {}
    for reference in wanted:
        for name, values in parse_qs(reference.query).items():
            allowed.setdefault(name, set()).update(values)
    given = parse_qs(shown.query)
    return all(values & set(given.get(name, ())) for name, values in allowed.items())


def cleaned(text: str) -> str:
    """The text in lower case, without the quotes around it."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def _includes(text: str, reference: str, alone: bool) -> bool:
    wanted, shown = cleaned(reference), cleaned(text)
    if alone and len(wanted) == 1:  # `0` must match neither `10` nor `0.00`
        return wanted in re.findall(r"\w+(?:[.,/:'-]\w+)*|[^\w\s]", shown)
    return wanted in shown


def _bare(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _content_verdict(target: JsonObject, page: Any, helpers: Mapping[str, Helper]) -> CheckResult:
    url = _called(str(target["url"]), page, helpers)
    opened = None
    if url != "last":
        opened = page.context.new_page()
        opened.goto(url)
    try:
        content = _content(target, opened or page, helpers)
    finally:
        if opened is not None:
            opened.close()
    if content is None:
        return CheckResult(False)
    wanted = target["required_contents"]
    if not isinstance(wanted, dict):
        raise InvalidInput("a check of WebArena: expected an object as required_contents")
    return text_verdict(wanted, html.unescape(content))


def _content(target: JsonObject, page: Any, helpers: Mapping[str, Helper]) -> str | None:
    """The text that a check is about; None if the page does not have it."""
    from playwright.sync_api import Error

    locator = str(target["locator"]).strip()
    if not locator:
        return str(page.content())
    if locator.startswith("func:"):
        return _called(locator, page, helpers)
    code = locator.removeprefix("lambda:") if locator.startswith("lambda:") else f"() => {locator}"
    preparations = target.get("prep_actions")
    try:
        for preparation in preparations if isinstance(preparations, list) else []:
            page.evaluate(f"() => {preparation}")
        value = page.evaluate(code)
    except Error:  # the page is not the expected one
        return None
    return None if value is None else str(value)


def _called(text: str, page: Any, helpers: Mapping[str, Helper]) -> str:
    match = _CALL.fullmatch(text)
    if match is None:
        return text
    if match[1] not in helpers:
        raise InvalidInput(f"a check of WebArena calls {match[1]!r}: expected one of {', '.join(sorted(helpers))}")
    arguments = [one or other for one, other in _ARGUMENT.findall(match[2])]
    return helpers[match[1]](page, *(argument.replace("__last_url__", page.url) for argument in arguments))
