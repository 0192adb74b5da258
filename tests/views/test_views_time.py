"""The time to learn from the answers of a stranger's server grows in proportion to their size and number."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from growth import grows_linearly
from session_stage import Step, learned, played

SAID: dict[str, Callable[[int], str]] = {
    "lines": lambda n: "\n".join(f"line {i}" for i in range(n // 8)),
    "items": lambda n: json.dumps([{"id": i, "name": f"item {i}"} for i in range(n // 24)]),
    "one word again and again": lambda n: "lamp " * (n // 5),
    "brackets": lambda n: "[" * n,
    "a literal": lambda n: repr([f"item {i}" for i in range(n // 10)]),
}


def learned_and_asked(said: str) -> None:
    session: list[Step] = [
        ("list_all", {}, said),
        ("add_one", {"name": "lamp"}, "Added lamp"),
        ("list_all", {}, f"{said}\nlamp"),
    ]
    played(learned(session, session), ("add_one", {"name": "lamp"}), ("list_all", {}))


@pytest.mark.parametrize("kind", SAID)
def test_learning_grows_linearly_with_the_size_of_answers(kind: str) -> None:
    assert grows_linearly(learned_and_asked, SAID[kind])


@pytest.mark.parametrize(
    "statement", ["SELECT * FROM notes ORDER BY id", "SELECT * FROM notes WHERE id = 1;", "SELECT COUNT(*) FROM notes"]
)
def test_learning_grows_linearly_with_the_blanks_in_a_recorded_statement(statement: str) -> None:
    def learn(blanks: str) -> None:
        learned([("read_query", {"query": f"{statement}{blanks}-- done"}, [{"id": 1}])])

    assert grows_linearly(learn, lambda n: " " * n)


def test_learning_grows_linearly_with_the_number_of_sessions() -> None:
    def learn(names: str) -> None:
        learned(*([("add_one", {"name": name}, f"Added {name}"), ("list_all", {}, name)] for name in names.split()))

    assert grows_linearly(learn, lambda n: " ".join(f"name{i}" for i in range(n // 100)))
