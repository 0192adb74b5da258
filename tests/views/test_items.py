"""Answers about the items of a listing: their numbers, counts and names, and whether they exist."""

from __future__ import annotations

import json
from typing import Any

from session_stage import Step, learned, played


def cards(*more: tuple[int, str, str]) -> dict[str, Any]:
    known = [(1, "Mend fence", "todo"), (2, "Buy paint", "done"), (3, "Paint fence", "todo"), *more]
    return {"cards": [{"id": number, "title": title, "lane": lane} for number, title, lane in known]}


BOARD: tuple[list[Step], ...] = (
    [
        ("list_cards", {}, cards()),
        ("board_stats", {}, {"total": 3, "todo": 2, "done": 1}),
        ("create_card", {"title": "Oil hinge"}, {"created": 4}),
        ("list_cards", {}, cards((4, "Oil hinge", "todo"))),
    ],
    [
        ("create_card", {"title": "Cut grass"}, {"created": 4}),
        ("list_cards", {}, cards((4, "Cut grass", "todo"))),
        ("get_card", {"cardId": 9}, "!No card 9"),
    ],
    [
        ("move_card", {"cardId": 3, "lane": "done"}, "Moved 'Paint fence' to done"),
        ("list_cards", {}, {"cards": [*cards()["cards"][:2], {"id": 3, "title": "Paint fence", "lane": "done"}]}),
    ],
    [("get_card", {"cardId": 2}, cards()["cards"][1]), ("get_card", {"cardId": 4}, "!No card 4")],
    [
        ("search_cards", {"query": "oar"}, {"results": [], "count": 0}),
        ("search_cards", {"query": "x"}, {"results": [], "count": 0}),
    ],
)


def test_a_new_item_gets_the_next_number_and_is_counted() -> None:
    answers = played(
        learned(*BOARD),
        ("create_card", {"title": "Sweep"}),
        ("create_card", {"title": "Wash"}),
        ("get_card", {"cardId": 5}),
    )
    assert answers == ['{"created": 4}', '{"created": 5}', '{"id": 5, "title": "Wash", "lane": "todo"}']


def test_the_answer_of_a_write_contains_the_title_of_the_item_that_it_names() -> None:
    answers = played(learned(*BOARD), ("move_card", {"cardId": 1, "lane": "done"}), ("get_card", {"cardId": 1}))
    assert answers == ["Moved 'Mend fence' to done", '{"id": 1, "title": "Mend fence", "lane": "done"}']


def test_a_refusal_is_not_repeated_after_a_write_created_the_missing_item() -> None:
    answers = played(
        learned(*BOARD), ("get_card", {"cardId": 4}), ("create_card", {"title": "Sweep"}), ("get_card", {"cardId": 4})
    )
    assert answers == ["!No card 4", '{"created": 4}', '{"id": 4, "title": "Sweep", "lane": "todo"}']


def test_a_write_to_a_missing_item_has_no_answer_if_all_recorded_items_existed() -> None:
    assert played(learned(*BOARD), ("move_card", {"cardId": 7, "lane": "done"})) == [None]


def test_two_searches_without_results_do_not_predict_a_third() -> None:
    rules = learned(BOARD[4])
    assert played(rules, ("search_cards", {"query": "fence"})) == [None]


CONFIG: tuple[list[Step], ...] = (
    [
        ("show_config", {}, "name: pier\nport: 8080\nmode: fast"),
        ("set_value", {"key": "port", "value": "81"}, "Changed port"),
        ("show_config", {}, "name: pier\nport: 81\nmode: fast"),
    ],
    [
        ("show_config", {}, "name: pier\nport: 8080\nmode: fast"),
        ("get_value", {"key": "name"}, "name = pier"),
        ("get_value", {"key": "mode"}, "mode = fast"),
        ("set_value", {"key": "size", "value": "big"}, "Added size"),
    ],
)


def test_lines_of_keys_and_values_are_looked_up() -> None:
    assert played(learned(*CONFIG), ("get_value", {"key": "port"})) == ["port = 8080"]
    answers = played(learned(*CONFIG), ("set_value", {"key": "mode", "value": "slow"}), ("get_value", {"key": "mode"}))
    assert answers == ["Changed mode", "mode = slow"]


def test_an_existing_key_is_changed_and_a_missing_one_is_added() -> None:
    rules = learned(*CONFIG)
    assert played(rules, ("set_value", {"key": "name", "value": "quay"})) == ["Changed name"]
    assert played(rules, ("set_value", {"key": "colour", "value": "red"})) == ["Added colour"]


def test_counts_follow_the_listing_that_they_count() -> None:
    stats: Step = ("board_stats", {}, {"total": 3, "todo": 2, "done": 1})
    answers = played(learned(*BOARD, [stats]), ("move_card", {"cardId": 1, "lane": "done"}), ("board_stats", {}))
    assert json.loads(answers[1] or "null") == {"total": 3, "todo": 1, "done": 2}
