"""Removes the agent's own words from steps, so that they cannot talk a judge into a success.

A word is the agent's own if it is in an argument, and neither the tools, the task nor an earlier answer used it. If an
answer or the state repeats a text of the agent, the words are removed there too. A word that only answers to calls
with this word have shown, such as an unknown name in an error, counts as known in a short text alone: else an agent
could make all words of a claim known, one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import suppress

from pydantic import JsonValue

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import as_object, as_text, parsed
from dreamgym.types import StepResult, Task, ToolCall

Step = tuple[ToolCall, StepResult]

_WORD = re.compile(r"\w+")
_UNSPACED = "[\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]"
"""A letter of a script without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese."""
_COUNTED = re.compile(rf"{_UNSPACED}|(?:(?!{_UNSPACED})[^\W_])+")
"""What counts as a word of LEAST_WORDS: words may be joined by underscores or written without spaces."""
LEAST_WORDS = 3
"""Least number of words of a text that is looked for in answers. A shorter text claims nothing, and an answer may
contain it by itself."""
MOST_TEXTS = 32
"""Most texts of one call that are looked for as a whole; the longest ones are taken. Answers lose the own words of all
others, wherever they are."""


def without_own_words(
    spec: EnvironmentSpec, task: Task, steps: Sequence[Step], state: str = ""
) -> tuple[list[Step], str]:
    """The steps and the explicit state after them, without the agent's own words in arguments and where they come back.

    Args:
        spec: the environment, whose tools are known words.
        task: the task, whose instruction and start are known words.
        steps: the calls and their results.
        state: the state after the steps; what is not a JSON object is returned as it is.
    """
    known = _words(json.dumps([*spec.tools], ensure_ascii=False), task.instruction, *_read(task.initial_state or ""))
    repeated: set[str] = set()
    """Known words that only answers to calls with these words have shown."""
    left: dict[str, str] = {}
    """Texts of the agent that answers may repeat, in each spelling, and what is left of each without its own words."""
    own: set[str] = set()
    """Own words that are removed from answers one by one."""
    shown = []

    def echoed(text: str) -> str:
        text = _echoed(left, text)
        return _WORD.sub(lambda word: "" if word[0].casefold() in own else word[0], text) if own else text

    def only_known(text: str) -> str:
        return _only(known, text, but=repeated if _is_long(text) else frozenset())

    for action, result in steps:
        given: JsonValue = [action.arguments, action.answers]
        texts = {text.strip() for text in _texts(given)}  # answers often repeat a text without its ends
        reduced = {text: only_known(text) for text in sorted(texts)}
        long = [text for text, rest in reduced.items() if rest != text and _is_long(text)]
        long.sort(key=len, reverse=True)
        left |= {one: rest for text in long[:MOST_TEXTS] for one, rest in _spellings(text, reduced[text])}
        left = dict(sorted(left.items(), key=lambda one: -len(one[0])))  # longest first: one may contain another
        own |= _words(*long[MOST_TEXTS:]) - known
        arguments, answers, info = (
            as_object(_mapped(value, change))
            for value, change in ((action.arguments, only_known), (action.answers, only_known), (result.info, echoed))
        )
        answer = result.model_copy(update={"observation": echoed(result.observation), "info": info})
        shown.append((ToolCall(name=action.name, arguments=arguments, answers=answers), answer))
        told = _words(*_read(answer.observation), *_texts(info.get("structured")))
        asked = _words(*texts)
        repeated |= (told & asked) - known
        repeated -= told - asked
        known |= told
    content = parsed(state)
    return shown, state if content is None else as_text(as_object(_mapped(content, echoed)))


def _is_long(text: str) -> bool:
    return len(_COUNTED.findall(text)) >= LEAST_WORDS


def _read(text: str) -> Iterator[str]:
    """A text, and the texts in it if it is JSON, where they may be escaped."""
    yield text
    with suppress(ValueError, RecursionError):
        yield from _texts(json.loads(text))


def _words(*texts: str) -> set[str]:
    return {word.casefold() for text in texts for word in _WORD.findall(text)}


def _only(known: Set[str], text: str, but: Set[str]) -> str:
    """The text with only the known words, and without some of these."""

    def left(word: re.Match[str]) -> str:
        plain = word[0].casefold()
        return word[0] if plain in known and plain not in but else ""

    return _WORD.sub(left, text)


def _echoed(left: dict[str, str], text: str) -> str:
    """The text with each text of the agent replaced by what is left of it."""
    for said, rest in left.items():
        text = text.replace(said, rest)
    return text


def _spellings(said: str, rest: str) -> Iterator[tuple[str, str]]:
    """A text of the agent and what is left of it: plain, and escaped as in JSON and as in JSON in JSON."""
    yield said, rest
    for ascii_only in (False, True):
        once = _escaped(said, ascii_only), _escaped(rest, ascii_only)
        yield once
        yield _escaped(once[0], ascii_only), _escaped(once[1], ascii_only)


def _escaped(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, dict):
        for name, one in value.items():
            yield name
            yield from _texts(one)


def _mapped(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    """The value with every text in it changed, keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    if isinstance(value, dict):
        return {change(name): _mapped(one, change) for name, one in value.items()}
    return value
