"""Servers whose answers are documents: lists of items that other calls look up, search, add to and edit."""

from __future__ import annotations

import json
from typing import Any

import pytest
from growth import grows_linearly
from session_stage import Step, learned, played

LINES = ["Log of the Tern", "Wind from the north", "Crew is well"]


def listed(*lines: tuple[str, str]) -> dict[str, Any]:
    kinds = [("Log of the Tern", "title"), ("Wind from the north", "plain"), ("Crew is well", "plain"), *lines]
    return {
        "lines": [{"no": i, "text": text, "kind": kind} for i, (text, kind) in enumerate(kinds, start=1)],
        "notes": [],
    }


def line(no: int, text: str) -> dict[str, Any]:
    return {"no": no, "text": text, "kind": "plain", "locked": False}


LOG: tuple[list[Step], ...] = (
    [("show_log", {"log": "tern"}, listed()), ("show_text", {"log": "tern"}, "\n".join(LINES))],
    [("show_line", {"log": "tern", "no": 2}, line(2, LINES[1]))],
    [("show_line", {"log": "tern", "no": 3}, line(3, LINES[2]))],
    [
        ("swap_words", {"log": "tern", "old": "gale", "new": "storm"}, "No 'gale' there."),
        ("swap_words", {"log": "tern", "old": "north", "new": "south"}, "Swapped 'north' for 'south' 1 time(s)."),
        ("show_line", {"log": "tern", "no": 2}, line(2, "Wind from the south")),
    ],
    [
        ("add_title", {"log": "tern", "title": "Day two"}, "Title added"),
        ("add_line", {"log": "tern", "text": "Sea is calm"}, "Line added"),
        ("show_log", {"log": "tern"}, listed(("Day two", "title"), ("Sea is calm", "plain"))),
    ],
    [
        ("add_lines", {"log": "tern", "many": [["one"], ["two"]]}, "Lines added"),
        ("show_text", {"log": "tern"}, "\n".join([*LINES, "one", "two"])),
    ],
    [
        (
            "search_log",
            {"log": "tern", "words": "well"},
            {"words": "well", "hits": [{"lineNo": 3, "text": LINES[2], "position": 8}], "hitCount": 1},
        )
    ],
)


def test_a_line_that_a_session_added_is_shown_listed_and_found() -> None:
    answers = played(
        learned(*LOG),
        ("add_line", {"log": "tern", "text": "Land in sight"}),
        ("show_log", {"log": "tern"}),
        ("show_line", {"log": "tern", "no": 4}),
        ("search_log", {"log": "tern", "words": "sight"}),
        ("search_log", {"log": "tern", "words": "whale"}),
    )
    hit = {"lineNo": 4, "text": "Land in sight", "position": 8}
    assert [json.loads(answer or "null") for answer in answers[1:]] == [
        listed(("Land in sight", "plain")),
        line(4, "Land in sight"),
        {"words": "sight", "hits": [hit], "hitCount": 1},
        {"words": "whale", "hits": [], "hitCount": 0},
    ]


def test_writes_that_were_recorded_together_are_distinguished_by_the_values_that_they_add() -> None:
    answers = played(learned(*LOG), ("add_title", {"log": "tern", "title": "Harbour"}), ("show_log", {"log": "tern"}))
    assert answers[1] == json.dumps(listed(("Harbour", "title")))


def test_words_that_were_replaced_are_replaced_in_every_view() -> None:
    answers = played(
        learned(*LOG),
        ("swap_words", {"log": "tern", "old": "Crew", "new": "Ship"}),
        ("swap_words", {"log": "tern", "old": "Crew", "new": "Dog"}),
        ("show_text", {"log": "tern"}),
        ("show_line", {"log": "tern", "no": 3}),
        ("search_log", {"log": "tern", "words": "Ship"}),
    )
    assert answers[:3] == [
        "Swapped 'Crew' for 'Ship' 1 time(s).",
        "No 'Crew' there.",
        "\n".join([*LINES[:2], "Ship is well"]),
    ]
    assert json.loads(answers[3] or "null") == line(3, "Ship is well")
    assert json.loads(answers[4] or "null")["hits"] == [{"lineNo": 3, "text": "Ship is well", "position": 0}]


def test_a_text_that_a_replacement_makes_too_long_is_not_shown() -> None:
    replaced = ("swap_words", {"log": "tern", "old": "Crew", "new": "x" * 1_000_001})
    said, text = played(learned(*LOG), replaced, ("show_text", {"log": "tern"}))
    assert said is not None
    assert text is None


def test_the_rows_of_an_argument_are_added_as_lines() -> None:
    rows = [["a", "b"], ["c", "d"], ["e", "f"]]
    answers = played(learned(*LOG), ("add_lines", {"log": "tern", "many": rows}), ("show_text", {"log": "tern"}))
    assert answers[1] == "\n".join([*LINES, *"abcdef"])


def test_an_item_unlike_those_that_recordings_show_is_not_answered() -> None:
    assert played(learned(*LOG), ("show_line", {"log": "tern", "no": 1})) == [None]  # a title may well be locked


def test_whether_a_search_ignores_case_is_not_guessed() -> None:
    assert played(learned(*LOG), ("search_log", {"log": "tern", "words": "crew"})) == [None]


def test_the_lines_of_one_log_are_not_those_of_another() -> None:
    assert played(learned(*LOG), ("show_line", {"log": "puffin", "no": 2})) == [None]


@pytest.mark.parametrize("said", ["line {}", "the same line"])
def test_learning_to_look_up_and_to_search_grows_linearly(said: str) -> None:
    def asked(text: str) -> None:
        lines = [{"no": i, "text": one} for i, one in enumerate(text.split("\n"))]
        read: list[Step] = [("show_log", {"log": "tern"}, {"lines": lines}), ("show_line", {"no": 2}, lines[0])]
        swap: Step = ("swap_words", {"log": "tern", "old": "line", "new": "word"}, "Swapped.")
        played(
            learned(read, [*read, swap, *read]),
            ("search_log", {"log": "tern", "words": "line"}),
            ("show_line", {"no": 1}),
        )

    assert grows_linearly(asked, lambda n: "\n".join(said.format(i) for i in range(max(1, n // 16))))
