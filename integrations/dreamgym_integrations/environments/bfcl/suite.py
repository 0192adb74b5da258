"""The conversations, function docs and API classes of BFCL v4 multi-turn, from the package `bfcl-eval`.

Nothing is copied: files are read and classes are imported from the installed package. Its classes need only `mpmath` of
its dependencies, so none of its model clients has to be installed.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from dreamgym.errors import InvalidInput
from dreamgym.types import JsonObject, ToolCall

INSTALL = "pip install --no-deps bfcl-eval==2026.3.23 && pip install 'mpmath>=1.3'"
CATEGORY = "BFCL_v4_multi_turn_base.json"
CLASSES: Mapping[str, str] = {
    "GorillaFileSystem": "gorilla_file_system",
    "VehicleControlAPI": "vehicle_control",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "MathAPI": "math_api",
}
"""The stateful classes, each with the name of its module and of its docs. Every conversation has one of the first four,
which defines its world, and at most one of the others."""
MAIN = tuple(CLASSES)[:4]


@dataclass(frozen=True)
class Conversation:
    """One user's requests in their order, and how the instances of the API classes start."""

    id: str
    messages: tuple[str, ...]
    calls: tuple[tuple[ToolCall, ...], ...]
    """The calls of the ground truth for each message."""
    classes: tuple[str, ...]
    config: JsonObject
    """How each class starts, by the name of the class."""
    excluded: frozenset[str] = frozenset()
    """Functions that do not work in this conversation."""


@dataclass(frozen=True)
class Suite:
    """Conversations, with the classes that they need."""

    conversations: Mapping[str, Conversation]
    docs: Mapping[str, Sequence[JsonObject]]
    """The functions of each class as the benchmark describes them."""
    make: Callable[[str], object]
    """Makes an instance of a class by its name, without a scenario."""

    @cached_property
    def owners(self) -> Mapping[str, str]:
        """The class that each function belongs to."""
        return {str(doc["name"]): name for name, docs in self.docs.items() for doc in docs}


@cache
def bfcl_suite() -> Suite:
    """All base conversations. Raises InvalidInput if the package is not installed, or is another version."""
    root = _root()
    docs = {name: _rows(root / "data" / "multi_turn_func_doc" / f"{module}.json") for name, module in CLASSES.items()}
    truths = {str(row["id"]): row["ground_truth"] for row in _rows(root / "data" / "possible_answer" / CATEGORY)}
    parameters = {str(doc["name"]): parameters_of(doc) for functions in docs.values() for doc in functions}
    try:
        conversations = [
            conversation_of(row, truths[str(row["id"])], parameters) for row in _rows(root / "data" / CATEGORY)
        ]
    except (KeyError, TypeError, ValueError, SyntaxError) as error:
        raise InvalidInput(
            f"{root}: its multi-turn data differ from those of bfcl-eval 2026.3.23 ({error!r}): {INSTALL}"
        ) from error
    return Suite({one.id: one for one in conversations}, docs, _instance)


def parameters_of(doc: JsonObject) -> tuple[str, ...]:
    """A function's parameters in their order."""
    described = doc["parameters"]
    assert isinstance(described, dict)
    properties = described["properties"]
    assert isinstance(properties, dict)
    return tuple(properties)


def conversation_of(row: JsonObject, truth: object, parameters: Mapping[str, Sequence[str]]) -> Conversation:
    """A conversation from its two rows. Raises KeyError, TypeError, ValueError or SyntaxError for malformed ones."""
    turns = row["question"]
    classes, config, excluded = row["involved_classes"], row["initial_config"], row.get("excluded_function", [])
    if not isinstance(turns, list) or not isinstance(truth, list) or len(turns) != len(truth):
        raise ValueError(f"{row['id']}: expected a list of calls for every message")
    if not isinstance(classes, list) or not isinstance(config, dict) or not isinstance(excluded, list):
        raise TypeError(f"{row['id']}: expected lists of classes and functions, and an object of configurations")
    return Conversation(
        id=str(row["id"]),
        messages=tuple("\n".join(str(message["content"]) for message in turn) for turn in turns),  # type: ignore
        calls=tuple(tuple(tool_call(text, parameters) for text in turn) for turn in truth),
        classes=tuple(map(str, classes)),
        config=config,
        excluded=frozenset(map(str, excluded)),
    )


def tool_call(text: str, parameters: Mapping[str, Sequence[str]]) -> ToolCall:
    """Parse a call in Python's notation with literal arguments; positional ones are in the parameters' order.

    Raises:
        ValueError, SyntaxError: the text is not such a call.
        KeyError: the function is unknown.
    """
    call = ast.parse(text.strip(), mode="eval").body
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(f"expected a call of a function, got {text!r}")
    names = parameters[call.func.id]
    if len(call.args) > len(names):
        raise ValueError(f"{call.func.id} takes {len(names)} arguments, got {text!r}")
    arguments = {name: ast.literal_eval(value) for name, value in zip(names, call.args, strict=False)}
    arguments.update({str(one.arg): ast.literal_eval(one.value) for one in call.keywords})
    return ToolCall(name=call.func.id, arguments=arguments)


def _instance(name: str) -> object:
    place = f"bfcl_eval.eval_checker.multi_turn_eval.func_source_code.{CLASSES[name]}"
    try:
        return getattr(importlib.import_module(place), name)()
    except ImportError as error:
        raise InvalidInput(f"the class {name} of bfcl-eval cannot be imported ({error}): {INSTALL}") from error


def _root() -> Path:
    found = importlib.util.find_spec("bfcl_eval")
    if found is None or not found.submodule_search_locations:
        raise InvalidInput(
            f"the environment 'bfcl' needs the package bfcl-eval, and of its thirty dependencies only mpmath: {INSTALL}"
        )
    return Path(found.submodule_search_locations[0])


def _rows(path: Path) -> list[JsonObject]:
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{path}: cannot be read as lines of JSON ({error}): {INSTALL}") from error
