"""Servers whose tools name cells as spreadsheets do, in sessions that were not recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest
from growth import grows_linearly
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from session_stage import Step, learned, played

from dreamgym.views.cells import Block, Sheet, UnknownCell

STOCK: list[JsonValue] = [["item", "price"], ["rope", 12], ["buoy", 45]]


def shown(area: str, *rows: Any) -> dict[str, JsonValue]:
    return {"area": area, "rows": list(rows)}


SHEETS: tuple[list[Step], ...] = (
    [("get_cells", {"tab": "Stock"}, shown("A1:B3", *STOCK)), ("get_cells", {"tab": "Log"}, shown("A1", ["day"]))],
    [
        ("put_cells", {"tab": "Stock", "from": "B2", "rows": [[13]]}, {"put": "B2", "cells": 1}),
        ("get_cells", {"tab": "Stock", "area": "A2:B2"}, shown("A2:B2", ["rope", 13])),
    ],
    [
        ("put_cells", {"tab": "Stock", "from": "A4", "rows": [["lamp", 80]]}, {"put": "A4:B4", "cells": 2}),
        ("get_cells", {"tab": "Stock"}, shown("A1:B4", *STOCK, ["lamp", 80])),
        ("wipe", {"tab": "Stock", "area": "A4:B4"}, "done"),
        ("get_cells", {"tab": "Stock"}, shown("A1:B3", *STOCK)),
    ],
    [("find_cells", {"text": "rope"}, {"Stock": {"A2": "rope"}}), ("find_cells", {"text": "oar"}, {})],
    [
        ("swap", {"old": "buoy", "new": "float"}, {"swapped": {"Stock": 1}}),
        ("find_cells", {"text": "float"}, {"Stock": {"A3": "float"}}),
    ],
)


def test_cells_that_a_session_wrote_are_read_in_any_range() -> None:
    rows = [["lamp", 80], ["oar", 30]]
    answers = played(
        learned(*SHEETS),
        ("put_cells", {"tab": "Stock", "from": "A4", "rows": rows}),
        ("get_cells", {"tab": "Stock"}),
        ("get_cells", {"tab": "Stock", "area": "A3:A5"}),
        ("find_cells", {"text": "oar"}),
    )
    assert [json.loads(answer or "null") for answer in answers] == [
        {"put": "A4:B5", "cells": 4},
        shown("A1:B5", *STOCK, *rows),
        shown("A3:A5", ["buoy"], ["lamp"], ["oar"]),
        {"Stock": {"A5": "oar"}},
    ]


def test_reads_show_cells_that_a_session_emptied_or_replaced() -> None:
    answers = played(
        learned(*SHEETS),
        ("swap", {"old": "rope", "new": "line"}),
        ("wipe", {"tab": "Stock", "area": "A3:B3"}),
        ("get_cells", {"tab": "Stock"}),
    )
    assert answers == [
        '{"swapped": {"Stock": 1}}',
        "done",
        json.dumps(shown("A1:B2", ["item", "price"], ["line", 12])),
    ]


def test_a_formula_of_known_cells_is_computed_if_a_recording_shows_one_computed() -> None:
    put: Step = ("put_cells", {"tab": "Stock", "from": "C2", "rows": [["=B2*2"]]}, {"put": "C2", "cells": 1})
    rules = learned(*SHEETS, [put, ("get_cells", {"tab": "Stock", "area": "C2"}, shown("C2", [24]))])
    for formula, answer in {"=B2+B3": shown("C3", [57]), "=SUM(B2:B3)": None, "=9**9**9": None}.items():
        write = ("put_cells", {"tab": "Stock", "from": "C3", "rows": [[formula]]})
        said = played(rules, write, ("get_cells", {"tab": "Stock", "area": "C3"}))[1]
        assert (said and json.loads(said)) == answer


@pytest.mark.parametrize("formula", ["=0X10", "=0O17", "=1E2+B2"])
def test_a_number_as_only_python_writes_it_has_no_value_in_a_sheet(formula: str) -> None:
    with pytest.raises(UnknownCell):
        Sheet({(1, 1): formula}, computes=True).value((1, 1))


@pytest.mark.parametrize(
    "formula",
    ["=12*0.5", "=12*1.0", "=999999999999999*99", "=0-999999999999999*99", "=12*0.4-11", "=0.1+0.2"],
)
def test_a_formula_has_no_value_if_a_sheet_may_show_the_number_in_another_way(formula: str) -> None:
    with pytest.raises(UnknownCell):
        Sheet({(1, 1): formula}, computes=True).value((1, 1))


@pytest.mark.parametrize(("formula", "value"), [("=19.99*3", 59.97), ("=0.5-7", -6.5), ("=7*3-30", -9)])
def test_a_formula_has_the_value_that_a_sheet_shows(formula: str, value: float) -> None:
    assert Sheet({(1, 1): formula}, computes=True).value((1, 1)) == value


def test_a_formula_has_no_answer_if_no_recording_shows_that_the_server_computes_it() -> None:
    write = ("put_cells", {"tab": "Stock", "from": "C3", "rows": [["=B2+B3"]]})
    assert played(learned(*SHEETS), write, ("get_cells", {"tab": "Stock", "area": "C3"}))[1] is None


def test_sheets_with_names_like_those_of_cells_are_not_mixed_up() -> None:
    def read(sheet: str, area: str, *rows: Any) -> Step:
        return ("get_cells", {"tab": sheet, "area": area}, shown(area, *rows))

    first: list[Step] = [
        ("get_sheet", {"tab": "Q1"}, shown("A1:B2", ["rev", 10], ["cost", 4])),
        read("Q2", "A1:B2", ["rev", 20], ["cost", 9]),
        read("Q1", "A1:B1", ["rev", 10]),
    ]
    rules = learned(first, first, [("get_sheet", {"tab": "Q1"}, first[0][2]), read("Q1", "A2:B2", ["cost", 4])])
    answers = played(rules, *(("get_cells", {"tab": tab, "area": "A2:B2"}) for tab in ("Q1", "Q2", "Q3")))
    assert [answer and json.loads(answer)["rows"] for answer in answers] == [[["cost", 4]], [["cost", 9]], None]


def test_a_write_with_one_text_makes_a_sheet_only_if_its_name_says_so() -> None:
    sort: Step = ("sort_rows", {"column": "price"}, "Sorted.")
    add: Step = ("add_sheet", {"tab": "Old"}, "Added.")
    read = ("get_cells", {"tab": "Stock", "area": "A2:B2"})
    rules = learned(*SHEETS, [sort], [sort], [add], [("add_sheet", {"tab": "New"}, "Added.")])
    assert played(rules, ("sort_rows", {"column": "item"}), read) == ["Sorted.", None]
    assert played(rules, ("add_sheet", {"tab": "Next"}), read)[1] is not None


def test_a_chain_of_formulas_is_computed_in_linear_time() -> None:
    def sheet(length: int) -> Sheet:
        return Sheet(
            {(1, 1): 0, **{(row, 1): f"={'+'.join([f'A{row - 1}'] * 8)}" for row in range(2, length + 1)}},
            computes=True,
        )

    assert sheet(15).value((15, 1)) == 0, "computed anew for each reference it would be 8 to the 14th computations"
    with pytest.raises(UnknownCell):
        sheet(40).value((40, 1))


@pytest.mark.parametrize("formula", [f"={'*'.join(['B2'] * 30)}*1.5", f"=1.5*{'*'.join(['B2'] * 30)}"])
def test_a_formula_whose_value_is_too_large_has_no_answer(formula: str) -> None:
    put: Step = ("put_cells", {"tab": "Stock", "from": "C2", "rows": [["=B2*2"]]}, {"put": "C2", "cells": 1})
    rules = learned(*SHEETS, [put, ("get_cells", {"tab": "Stock", "area": "C2"}, shown("C2", [24]))])
    write = ("put_cells", {"tab": "Stock", "from": "B2", "rows": [[99_999_999_999_999, formula]]})
    assert played(rules, write, ("get_cells", {"tab": "Stock", "area": "C2"}))[1] is None


def test_a_sheet_that_no_recording_shows_and_an_invalid_range_have_no_answer() -> None:
    rules = learned(*SHEETS)
    assert played(rules, ("get_cells", {"tab": "Crew"})) == [None]
    assert played(rules, ("get_cells", {"tab": "Stock", "area": "A1:"})) == [None]
    assert played(rules, ("get_cells", {"tab": "Stock", "area": "A1:ZZZ9999999"})) == [None]
    assert played(rules, ("get_cells", {"tab": "Log", "area": "B7"})) == [None]


def test_a_write_that_no_recording_explains_makes_a_sheet_unknown() -> None:
    sorted_: Step = ("sort_tab", {"tab": "Log", "by": "day"}, "sorted")
    rules = learned(*SHEETS, [sorted_])
    assert played(rules, ("sort_tab", {"tab": "Stock", "by": "day"}), ("get_cells", {"tab": "Stock"}))[1] is None


@given(st.integers(1, 900_000), st.integers(1, 18_000), st.integers(0, 50), st.integers(0, 50))
def test_a_block_is_read_from_its_own_name(row: int, column: int, rows: int, columns: int) -> None:
    block = Block((row, column), (row + rows, column + columns))
    assert Block.of(block.name) == block


@pytest.mark.parametrize("text", ["", "A", "1", "A0", "a1", "A1:", "B2:A1", "A1:B2:C3", "A1 ", "ÄA1"])
def test_a_text_that_does_not_name_cells_is_not_a_block(text: str) -> None:
    assert Block.of(text) is None


def test_learning_grows_linearly_with_the_size_of_sheets() -> None:
    def asked(rows: str) -> None:
        table: list[JsonValue] = [[one, one] for one in rows.split()]
        read: Step = ("get_cells", {"tab": "Stock"}, shown(f"A1:B{len(table)}", *table))
        put: Step = ("put_cells", {"tab": "Stock", "from": "A1", "rows": [["x"]]}, {"put": "A1", "cells": 1})
        played(learned([read], [read, put], [read]), ("find_cells", {"text": "x"}), ("get_cells", {"tab": "Stock"}))

    assert grows_linearly(asked, lambda n: " ".join(f"item{i}" for i in range(max(1, n // 8))))
