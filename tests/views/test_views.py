"""Servers that report no state, in sessions that were not recorded: answers learned from recordings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import JsonValue
from session_stage import Step, learned, played, step

from dreamgym.types import JsonObject, ToolCall, Transition
from dreamgym.views.learn import learn
from dreamgym.views.reads import reading_tools

NOTES: tuple[list[Step], ...] = (
    [
        ("list_notes", {}, ["rope", "tide"]),
        ("add_note", {"title": "lamp", "text": "broken"}, "Added 'lamp'."),
        ("list_notes", {}, ["rope", "tide", "lamp"]),
        ("read_note", {"title": "lamp"}, {"title": "lamp", "text": "broken"}),
    ],
    [
        ("add_note", {"title": "buoy", "text": "paint it"}, "Added 'buoy'."),
        ("read_note", {"title": "buoy"}, {"title": "buoy", "text": "paint it"}),
        ("read_note", {"title": "rope"}, {"title": "rope", "text": "forty metres"}),
    ],
    [
        ("delete_note", {"title": "tide"}, "Deleted 'tide'."),
        ("list_notes", {}, ["rope"]),
        ("read_note", {"title": "tide"}, "!There is no note 'tide'."),
        ("read_note", {"title": "anchor"}, "!There is no note 'anchor'."),
    ],
)


def test_the_same_read_asked_again_is_answered_as_before() -> None:
    read = ("read_note", {"title": "rope"})
    assert played(learned(*NOTES), read, read, read) == [json.dumps({"title": "rope", "text": "forty metres"})] * 3


def test_the_reads_of_a_session_show_its_write() -> None:
    answers = played(
        learned(*NOTES),
        ("add_note", {"title": "sail", "text": "mend it"}),
        ("read_note", {"title": "sail"}),
        ("list_notes", {}),
    )
    assert answers == ["Added 'sail'.", '{"title": "sail", "text": "mend it"}', '["rope", "tide", "sail"]']


def test_the_reads_of_a_session_show_both_of_two_writes() -> None:
    answers = played(
        learned(*NOTES),
        ("add_note", {"title": "sail", "text": "mend it"}),
        ("delete_note", {"title": "rope"}),
        ("list_notes", {}),
        ("read_note", {"title": "rope"}),
        ("read_note", {"title": "sail"}),
    )
    assert answers[2:] == ['["tide", "sail"]', "!There is no note 'rope'.", '{"title": "sail", "text": "mend it"}']


def test_a_write_in_a_recording_does_not_leak_into_another_session() -> None:
    assert played(learned(*NOTES), ("list_notes", {})) == ['["rope", "tide"]']
    assert played(learned(*NOTES), ("read_note", {"title": "lamp"})) == [None]


def test_a_recorded_refusal_is_not_given_to_a_call_with_another_value_for_the_refused_argument() -> None:
    rules = learned(
        [
            ("get_time", {"zone": "Mars/Olympus", "format": "short"}, "!No zone Mars/Olympus is known"),
            ("get_time", {"zone": "Europe/Oslo", "format": "short"}, "12:00"),
        ]
    )
    assert played(rules, ("get_time", {"zone": "Asia/Tokyo", "format": "short"})) == [None]
    refused = "!No zone Mars/Olympus is known"
    assert played(rules, ("get_time", {"zone": "Mars/Olympus", "format": "long"})) == [refused]


def test_a_refused_note_that_the_session_wrote_since_is_not_refused_again() -> None:
    answers = played(
        learned(*NOTES), ("add_note", {"title": "anchor", "text": "heavy"}), ("read_note", {"title": "anchor"})
    )
    assert answers[1] == '{"title": "anchor", "text": "heavy"}'


def test_an_argument_fills_the_field_of_its_own_name_and_calls_are_counted() -> None:
    def thought(number: int, total: int, length: int) -> Step:
        arguments = {"number": number, "total": total, "text": f"thought {number}"}
        return "think", arguments, {"number": number, "total": total, "historyLength": length}

    rules = learned([thought(1, 1, 1)], [thought(1, 2, 1), thought(2, 2, 2)], [thought(1, 3, 1), thought(2, 3, 2)])
    calls = [("think", {"number": n, "total": 3, "text": "x"}) for n in (1, 2, 2)]
    said = [json.loads(answer or "null") for answer in played(rules, *calls)]
    assert said == [{"number": n, "total": 3, "historyLength": i} for i, n in enumerate((1, 2, 2), start=1)]


def test_a_total_is_the_larger_of_two_numbers_if_the_recordings_show_it_grow() -> None:
    def thought(number: int, total: int, **more: str) -> Step:
        arguments = {"number": number, "total": total, **more}
        return "think", arguments, {"number": number, "total": max(number, total)}

    rules = learned([thought(1, 2), thought(2, 2)], [thought(1, 3), thought(4, 3, why="one more")])
    assert played(rules, ("think", {"number": 7, "total": 5})) == ['{"number": 7, "total": 7}']


def test_search_and_replace_is_a_write_and_a_tool_described_with_get_is_a_read() -> None:
    tools: dict[str, JsonObject] = {
        "search_and_replace": {},
        "wipe": {"annotations": {"destructiveHint": True}},
        "open_details": {"description": "Get the details of a task"},
        "find_one": {},
        "frobnicate": {},
    }
    assert reading_tools([], tools) == {"open_details", "find_one"}


PLACES: tuple[list[Step], ...] = (
    [("list_places", {}, "  Bergen\n* Oban")],
    [
        ("create_place", {"name": "Reykjavik"}, "Created Reykjavik"),
        ("move_to", {"name": "Reykjavik"}, "Moved to Reykjavik"),
        ("list_places", {}, "  Bergen\n  Oban\n* Reykjavik"),
    ],
)


def test_the_mark_in_a_list_moves_independently_of_added_items() -> None:
    rules = learned(*PLACES)
    names = ["Rhyl", "Skye"]
    made = [("create_place", {"name": name}) for name in names]
    assert played(rules, *made, ("list_places", {}))[-1] == "  Bergen\n* Oban\n  Rhyl\n  Skye"
    assert played(rules, ("move_to", {"name": "Bergen"}), ("list_places", {}))[-1] == "* Bergen\n  Oban"


def test_the_place_of_a_new_item_is_not_guessed_if_the_recordings_also_fit_a_sorted_list() -> None:
    assert played(learned(*PLACES), ("create_place", {"name": "Cork"}), ("list_places", {}))[-1] is None


def test_a_write_to_one_file_leaves_the_other_as_it_was() -> None:
    recorded: list[Step] = [
        ("read_file", {"path": "a.txt"}, "one"),
        ("read_file", {"path": "b.txt"}, "two"),
        ("write_file", {"path": "a.txt", "content": "three"}, "Wrote a.txt"),
        ("read_file", {"path": "a.txt"}, "three"),
        ("read_file", {"path": "b.txt"}, "two"),
    ]
    answers = played(
        learned(recorded, recorded[:2]),
        ("write_file", {"path": "b.txt", "content": "line\nand line"}),
        ("read_file", {"path": "b.txt"}),
        ("read_file", {"path": "a.txt"}),
    )
    assert answers == ["Wrote b.txt", "line\nand line", "one"]


def test_an_answer_that_depends_on_the_clock_is_not_repeated() -> None:
    rules = learned([("get_time", {}, "12:00:01"), ("get_time", {}, "12:00:02")], hints={"get_time": True})
    assert played(rules, ("get_time", {})) == [None]


def test_recordings_that_contradict_each_other_answer_nothing() -> None:
    rules = learned([("show_price", {"item": "rope"}, "12")], [("show_price", {"item": "rope"}, "13")])
    assert played(rules, ("show_price", {"item": "rope"})) == [None]


def test_a_call_with_an_argument_that_no_recording_has_is_not_answered() -> None:
    assert played(learned(*NOTES), ("add_note", {"title": "sail", "text": "mend", "colour": "red"})) == [None]


def test_a_tool_recorded_only_with_failures_has_no_answer_to_other_calls() -> None:
    rules = learned(
        [("send_mail", {"to": "ada"}, "!No route to ada")], [("send_mail", {"to": "bo"}, "!No route to bo")]
    )
    assert played(rules, ("send_mail", {"to": "ada"}), ("send_mail", {"to": "cy"})) == ["!No route to ada", None]


CUSTOMERS = [{"id": 1, "name": "Ada", "city": "London"}, {"id": 2, "name": "Boris", "city": "Sofia"}]
SQL: tuple[list[Step], ...] = (
    [
        ("read_query", {"query": "SELECT * FROM customers"}, list(CUSTOMERS)),
        ("read_query", {"query": "SELECT name FROM customers WHERE id = 2"}, [{"name": "Boris"}]),
        ("write_query", {"query": "INSERT INTO customers VALUES (3, 'Clara', 'Oslo')"}, [{"affected_rows": 1}]),
        ("read_query", {"query": "SELECT city FROM customers WHERE name = 'Clara'"}, [{"city": "Oslo"}]),
    ],
    [
        ("write_query", {"query": "UPDATE customers SET city = 'Varna'"}, [{"affected_rows": 2}]),
        ("read_query", {"query": "SELECT colour FROM customers"}, "Database error: no such column: colour"),
        ("read_query", {"query": "DELETE FROM customers"}, "Error: only SELECT is allowed"),
    ],
)


def test_sql_is_answered_from_the_tables_that_were_recorded_and_what_the_session_wrote() -> None:
    answers = played(
        learned(*SQL),
        ("write_query", {"query": "INSERT INTO customers VALUES (4, 'Fatima', 'Tunis')"}),
        ("read_query", {"query": "SELECT id FROM customers WHERE city = 'Tunis'"}),
        ("read_query", {"query": "SELECT COUNT(*) AS n FROM customers"}),
        ("read_query", {"query": "SELECT age FROM customers"}),
    )
    assert answers == ['[{"affected_rows": 1}]', '[{"id": 4}]', '[{"n": 3}]', "Database error: no such column: age"]


@pytest.mark.parametrize(
    ("written", "count"),
    [
        (["/* a */ -- b\nDELETE FROM customers WHERE id = 1"], '[{"n": 1}]'),
        (["WITH old AS (SELECT 1 AS id) DELETE FROM customers WHERE id IN (SELECT id FROM old)"], '[{"n": 1}]'),
        (["TRUNCATE TABLE customers"], None),
        (["BEGIN", "DELETE FROM customers", "ROLLBACK"], None),
        (["EXPLAIN SELECT * FROM customers"], '[{"n": 2}]'),
    ],
)
def test_after_a_statement_that_is_not_read_no_table_is_known(written: list[str], count: str | None) -> None:
    before = [("write_query", {"query": statement}) for statement in written]
    counted = ("read_query", {"query": "SELECT COUNT(*) AS n FROM customers"})
    assert played(learned(*SQL), counted, before=before) == [count]


PRODUCTS = [{"id": 1, "name": "rope", "price": 12.0}, {"id": 2, "name": "lamp", "price": 80.5}]


def test_a_column_whose_definition_was_not_recorded_has_the_type_of_its_values() -> None:
    """As in a real table, where an id of the type INTEGER equals the text of its digits."""
    rules = learned([("read_query", {"query": "SELECT * FROM products"}, list(PRODUCTS))])
    (said,) = played(rules, ("read_query", {"query": "SELECT name FROM products WHERE id = '1'"}))
    assert said is not None
    assert json.loads(said) == [{"name": "rope"}]


def test_a_table_without_a_recorded_schema_is_used_until_it_contains_a_value_that_depends_on_the_schema() -> None:
    rules = learned(
        [("read_query", {"query": "SELECT * FROM products"}, list(PRODUCTS))],
        [("read_query", {"query": "SELECT price FROM products WHERE name = 'lamp'"}, [{"price": 80.5}])],
        [
            ("write_query", {"query": "INSERT INTO products (name, price) VALUES ('oar', 9)"}, [{"affected_rows": 1}]),
            ("read_query", {"query": "SELECT id FROM products WHERE name = 'oar'"}, [{"id": 3}]),
        ],
        [
            ("write_query", {"query": "UPDATE products SET price = 13 WHERE id = 1"}, [{"affected_rows": 1}]),
            ("read_query", {"query": "SELECT price FROM products WHERE id = 1"}, [{"price": 13.0}]),
        ],
    )
    assert played(
        rules,
        ("write_query", {"query": "UPDATE products SET price = 90 WHERE name = 'lamp'"}),
        ("read_query", {"query": "SELECT price FROM products WHERE id = 2"}),
        ("write_query", {"query": "INSERT INTO products (name, price) VALUES ('net', 7)"}),
        ("read_query", {"query": "SELECT id FROM products WHERE name = 'net'"}),
    ) == ['[{"affected_rows": 1}]', '[{"price": 90.0}]', '[{"affected_rows": 1}]', None]


def test_a_query_on_a_table_that_no_recording_shows_whole_is_not_answered() -> None:
    rules = learned(*SQL, [("read_query", {"query": "SELECT * FROM orders WHERE id = 1"}, [{"id": 1, "item": "rope"}])])
    assert played(rules, ("read_query", {"query": "SELECT item FROM orders WHERE id = 2"})) == [None]
    assert played(rules, ("read_query", {"query": "SELECT item FROM nowhere"})) == [None]


@pytest.mark.parametrize(
    "statement",
    [
        "ATTACH '/etc/passwd' AS other",
        "PRAGMA writable_schema = 1",
        "SELECT load_extension('x') FROM customers",
        "SELECT hex(zeroblob(500000000)) FROM customers",
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n",
        "SELECT hex(zeroblob(40000)) AS name",
        "SELECT 'a' LIKE '%' || hex(zeroblob(5000)) AS n",
        "SELECT i AS id FROM (WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2001) SELECT i FROM n)",
        "SELECT hex(zeroblob(9000)) AS n FROM "
        "(WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 99) SELECT i FROM n)",
        "WITH n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 9000) SELECT "
        "COUNT(instr(hex(zeroblob(30000)), hex(zeroblob(15000)) || i)) AS n FROM n",
    ],
)
def test_hostile_sql_is_not_run(statement: str) -> None:
    assert played(learned(*SQL), ("read_query", {"query": statement})) == [None]


ITEMS = [{"id": 1, "name": "rope", "price": 12}, {"id": 2, "name": "buoy", "price": 45}, {"id": 3, "name": "lamp"}]
SHOP: tuple[list[Step], ...] = (
    [("list_items", {}, list(ITEMS)), ("get_item", {"id": 1}, ITEMS[0])],
    [("list_items", {}, list(ITEMS)), ("get_item", {"id": 2}, ITEMS[1])],
    [
        ("add_item", {"id": 4, "name": "sail", "price": 90}, "Added sail"),
        ("list_items", {}, [*ITEMS, {"id": 4, "name": "sail", "price": 90}]),
    ],
)


def test_an_item_is_looked_up_in_the_listing_of_this_session() -> None:
    answers = played(
        learned(*SHOP),
        ("add_item", {"id": 9, "name": "oar", "price": 30}),
        ("get_item", {"id": 9}),
        ("get_item", {"id": 7}),
    )
    assert answers == ["Added oar", '{"id": 9, "name": "oar", "price": 30}', None]


def test_the_first_rows_of_a_table_are_not_the_whole_table() -> None:
    rules = learned(
        [("read_query", {"query": "SELECT * FROM customers ORDER BY name LIMIT 2"}, list(CUSTOMERS))],
        [("read_query", {"query": "SELECT name FROM customers WHERE id = 2"}, [{"name": "Boris"}])],
    )
    assert played(rules, ("read_query", {"query": "SELECT COUNT(*) AS n FROM customers"})) == [None]


def test_a_table_that_is_read_in_an_order_is_whole() -> None:
    rules = learned(
        [("read_query", {"query": "SELECT * FROM customers ORDER BY name DESC, id"}, [*reversed(CUSTOMERS)])],
        [("read_query", {"query": "SELECT name FROM customers WHERE id = 2"}, [{"name": "Boris"}])],
    )
    assert played(rules, ("read_query", {"query": "SELECT COUNT(*) AS n FROM customers"})) == ['[{"n": 2}]']


OF_HERE = ("random()", "sqlite_version()", "last_insert_rowid()", "datetime('now')", "date()", "current_date")
WRITTEN_ODDLY = (
    "random /* */ ()",
    "strftime('%Y-%m-%d')",
    'date("now")',
    "date('no' || 'w')",
    "time('12:00', 'localtime')",
    "date(x'6e6f77')",
    "date(CAST('now' AS BLOB))",
    "date('now' || char(0) || 'here')",
)


@pytest.mark.parametrize("value", [*OF_HERE, *WRITTEN_ODDLY])
def test_sql_whose_value_depends_on_chance_the_clock_or_the_connection_is_not_answered(value: str) -> None:
    rules = learned(*SQL)
    write = ("write_query", {"query": f"UPDATE customers SET city = {value} WHERE id = 1"})
    read = ("read_query", {"query": "SELECT city FROM customers WHERE id = 1"})
    assert played(rules, ("read_query", {"query": f"SELECT {value} AS n"})) == [None]
    assert played(rules, write, read)[0] is None


@pytest.mark.parametrize(
    "created",
    [
        "CREATE TABLE log (id INTEGER PRIMARY KEY, made TEXT DEFAULT CURRENT_TIMESTAMP)",
        "CREATE TABLE log (id INTEGER PRIMARY KEY, made TEXT DEFAULT (date('now')))",
        "CREATE TABLE log AS SELECT 1 AS id, date('now') AS made",
    ],
)
def test_a_table_whose_own_definition_reads_the_clock_is_not_known_after_a_write(created: str) -> None:
    answers = played(
        learned(*SQL),
        ("read_query", {"query": "SELECT made FROM log"}),
        ("read_query", {"query": "SELECT name FROM customers WHERE id = 2"}),
        before=[("write_query", {"query": one}) for one in (created, "INSERT INTO log (id) VALUES (7)")],
    )
    assert answers == [None, '[{"name": "Boris"}]']


def test_a_write_that_compares_with_the_clock_of_a_view_is_not_answered() -> None:
    answers = played(
        learned(*SQL),
        ("write_query", {"query": "UPDATE customers SET city = 'Rome' WHERE name > (SELECT hour FROM now)"}),
        before=[("write_query", {"query": "CREATE VIEW now AS SELECT time('now') AS hour"})],
    )
    assert answers == [None]


def test_a_join_of_days_in_a_long_table_is_answered_also_after_the_session_made_an_index_of_days() -> None:
    rows: list[JsonValue] = [{"id": one, "made": f"2024-01-{1 + one % 28:02d}"} for one in range(1, 1501)]
    rules = learned(
        [("read_query", {"query": "SELECT * FROM notes"}, rows)],
        [
            ("read_query", {"query": "SELECT COUNT(*) AS n FROM notes"}, [{"n": 1500}]),
            ("write_query", {"query": "DELETE FROM notes WHERE id = 1"}, [{"affected_rows": 1}]),
        ],
    )
    join = "SELECT COUNT(*) AS n FROM notes a JOIN notes b ON date(a.made) = date(b.made) WHERE a.id <= 10"
    index = ("write_query", {"query": "CREATE INDEX days ON notes (date(made))"})
    assert played(rules, ("read_query", {"query": join})) == ['[{"n": 540}]']
    assert played(rules, ("read_query", {"query": join}), before=[index]) == ['[{"n": 540}]']


def test_a_row_that_gets_the_time_by_default_is_written_and_not_shown() -> None:
    columns = [{"name": "id", "type": "INTEGER", "pk": 1}, {"name": "text", "type": "TEXT"}]
    columns.append({"name": "made", "type": "TEXT", "dflt_value": "CURRENT_TIMESTAMP"})
    rope = {"id": 1, "text": "rope", "made": "2024-01-05 10:00:00"}
    rules = learned(
        [
            ("describe_table", {"table_name": "notes"}, columns),
            ("read_query", {"query": "SELECT * FROM notes"}, [rope]),
        ],
        [
            ("write_query", {"query": "INSERT INTO notes (text) VALUES ('lamp')"}, [{"affected_rows": 1}]),
            ("read_query", {"query": "SELECT text FROM notes WHERE id = 2"}, [{"text": "lamp"}]),
        ],
    )
    answers = played(
        rules,
        ("read_query", {"query": "SELECT strftime('%Y', made) AS year FROM notes"}),
        ("write_query", {"query": "INSERT INTO notes (text) VALUES ('sail')"}),
        ("read_query", {"query": "SELECT * FROM notes WHERE text = 'sail'"}),
    )
    assert answers == ['[{"year": "2024"}]', '[{"affected_rows": 1}]', None]


def test_a_refusal_is_not_repeated_for_another_amount_if_a_recording_accepts_the_named_account() -> None:
    rules = learned(
        [
            ("withdraw", {"account": "acc-1", "amount": 500}, "!Not enough money in acc-1."),
            ("withdraw", {"account": "acc-1", "amount": 10}, "Withdrew 10 from acc-1."),
        ]
    )
    answers = played(rules, ("withdraw", {"account": "acc-1", "amount": 20}))
    assert "!Not enough money in acc-1." not in answers


def test_the_failed_status_of_an_item_and_an_empty_error_are_no_refusals() -> None:
    rules = learned(
        [("get_job", {"id": 7}, {"id": 7, "status": "open"}), ("get_job", {"id": 8}, {"id": 8, "status": "open"})],
        [("update_job", {"id": 7, "status": "failed"}, {"id": 7, "status": "failed"})],
        [("rename_job", {"id": 8, "name": "x"}, {"done": True, "error": ""})],
    )
    update = ("update_job", {"id": 7, "status": "failed"})
    rename = ("rename_job", {"id": 8, "name": "x"})
    assert played(rules, update, ("get_job", {"id": 7})) == ['{"id": 7, "status": "failed"}', None]
    assert played(rules, rename, ("get_job", {"id": 8})) == ['{"done": true, "error": ""}', None]


@pytest.mark.parametrize(
    ("said", "is_refused"),
    [
        *((said, False) for said in ("Removed failed job 3.", "Cleared unknown device 5", "Fixed error 12.")),
        *((said, False) for said in ("Retried failed jobs.", "Restarted 3 failed jobs", "No invalid jobs were left")),
        *(
            (said, True)
            for said in (
                "Retry failed: no such job",
                "Failed jobs are locked",
                "Processing failed as before",
                "Found unknown arguments: force",
                "Ignored unknown arguments: force",
                "Reset failed: device busy",
                "Password reset failed: user not found",
                "Connection closed unknown error",
                "You provided invalid credentials",
            )
        ),
    ],
)
def test_an_answer_that_names_what_had_failed_is_no_refusal(said: str, is_refused: bool) -> None:
    rules = learned([("get_job", {"id": 7}, {"id": 7, "status": "open"})], [("retry_jobs", {"id": 7}, said)])
    answers = played(rules, ("retry_jobs", {"id": 7}), ("get_job", {"id": 7}))
    assert answers == [said, '{"id": 7, "status": "open"}' if is_refused else None]


def test_a_failed_status_with_a_message_is_a_refusal() -> None:
    rules = learned(
        [("get_job", {"id": 7}, {"id": 7, "status": "open"})],
        [("update_job", {"id": 7, "status": "odd"}, {"status": "error", "message": "no status odd"})],
    )
    answers = played(rules, ("update_job", {"id": 7, "status": "odd"}), ("get_job", {"id": 7}))
    assert answers[1] == '{"id": 7, "status": "open"}'


def test_a_write_is_not_taken_to_change_nothing_because_two_recorded_numbers_were_equal_by_chance() -> None:
    def task(number: int, priority: int) -> Step:
        return "get_task", {"id": number}, {"id": number, "priority": priority}

    rules = learned([task(3, 1), task(2, 1), ("set_priority", {"id": 2, "priority": 2}, "ok"), task(2, 2)])
    answers = played(rules, ("set_priority", {"id": 3, "priority": 5}), ("get_task", {"id": 3}))
    assert answers == ["ok", None]


def test_a_note_that_a_sentence_says_was_made_is_not_refused() -> None:
    rules = learned([("get_note", {"id": 4}, "!No note 4.")], [("add_note", {"title": "x"}, "Created note 4.")])
    assert played(rules, ("get_note", {"id": 4})) == ["!No note 4."]
    assert played(rules, ("add_note", {"title": "x"}), ("get_note", {"id": 4})) == ["Created note 4.", None]


def test_a_part_of_a_word_in_a_refusal_does_not_name_the_refused_argument() -> None:
    rules = learned([("define", {"lang": "en", "word": "xyzzy"}, "!No such word in the entries.")])
    assert played(rules, ("define", {"lang": "en", "word": "lamp"})) == [None]


@pytest.mark.parametrize(("empty", "first", "second"), [(0, 5, 2), ("", "ab", "cd")])
def test_a_value_that_was_only_set_where_nothing_was_may_be_added_to_what_is_there(
    empty: JsonValue, first: JsonValue, second: JsonValue
) -> None:
    def put(value: JsonValue) -> tuple[str, dict[str, Any]]:
        return "put", {"box": "x", "what": value}

    read: tuple[str, dict[str, Any]] = ("get_box", {"box": "x"})
    rules = learned([(*read, {"held": empty}), (*put(first), "ok"), (*read, {"held": first})])
    assert played(rules, put(second), read) == ["ok", json.dumps({"held": second})]
    assert played(rules, put(first), put(second), read) == ["ok", "ok", None]


def test_an_item_is_not_added_again_unless_a_recording_shows_that() -> None:
    shown: list[Step] = [
        ("list_tags", {}, ["b", "a"]),
        ("add_tag", {"name": "c"}, "ok"),
        ("list_tags", {}, ["b", "a", "c"]),
    ]
    again: list[Step] = [shown[0], ("add_tag", {"name": "b"}, "ok"), ("list_tags", {}, ["b", "a", "b"])]
    asked: list[tuple[str, dict[str, Any]]] = [("add_tag", {"name": "a"}), ("list_tags", {})]
    assert played(learned(shown), *asked) == ["ok", None]
    assert played(learned(shown, again), *asked) == ["ok", '["b", "a", "a"]']


def test_content_of_an_item_is_not_guessed_after_a_write_to_it_of_unknown_effect() -> None:
    rules = learned(
        [("get_job", {"id": 7}, {"id": 7, "status": "open"}), ("get_job", {"id": 8}, {"id": 8, "status": "open"})],
        [("stop_job", {"id": 9}, "ok")],
    )
    assert played(rules, ("get_job", {"id": 9})) == ['{"id": 9, "status": "open"}']
    assert played(rules, ("stop_job", {"id": 9}), ("get_job", {"id": 9})) == ["ok", None]


def test_refusals_and_content_of_one_world_are_not_given_in_another() -> None:
    first = [
        step("get_user", {"id": 1}, {"id": 1, "org": "acme"}),
        step("get_user", {"id": 2}, {"id": 2, "org": "acme"}),
        step("get_note", {"id": 4}, "!No note 4."),
    ]
    rules = learn([("first", first), ("second", [step("list_notes", {}, ["rope"])])], {})

    def given(tool: str, number: int, world: str) -> str | None:
        known = rules.answer([], ToolCall(name=tool, arguments={"id": number}), world)
        return None if known is None else known.view.observation

    assert given("get_note", 4, "first") == "No note 4."
    assert given("get_note", 4, "second") is None
    assert given("get_user", 3, "first") == '{"id": 3, "org": "acme"}'
    assert given("get_user", 3, "second") is None


def test_a_tool_that_checks_a_guest_in_is_a_write() -> None:
    rules = learned([("check_in", {"id": "B1"}, "Ada is in room 4.")])
    assert rules.reads == frozenset()


def test_a_tool_that_refuses_a_call_that_it_just_took_is_a_write() -> None:
    rules = learned(
        [("select_seat", {"id": "A1"}, "Seat A1 is yours."), ("select_seat", {"id": "A1"}, "!A1 is taken.")]
    )
    assert rules.reads == frozenset()
    assert played(rules, ("select_seat", {"id": "A1"}), ("select_seat", {"id": "A1"})) == [
        "Seat A1 is yours.",
        "!A1 is taken.",
    ]


@pytest.mark.parametrize(
    ("tool", "answers"),
    [
        ("occupancy", [{"taken": 2, "free": 4}] * 2),
        ("cancel", [{"id": "B1", "refund": 126.4}, {"id": "B2", "refund": 126.4}]),
        ("report", ["2 rooms are taken."] * 2),
    ],
)
def test_a_number_that_was_equal_in_two_answers_by_chance_is_not_given_to_a_third_call(
    tool: str, answers: list[Any]
) -> None:
    recorded = [[(tool, {"id": f"B{number}"}, answer)] for number, answer in enumerate(answers, 1)]
    assert played(learned(*recorded), (tool, {"id": "B3"})) == [None]


def test_the_only_recorded_answer_of_a_tool_is_given_to_other_calls_only_if_its_name_is_a_verb() -> None:
    rules = learned([("guest_of", {"room": 4}, "Ada Lovelace"), ("wipe", {"room": 4}, "done")])
    assert played(rules, ("guest_of", {"room": 5}), ("wipe", {"room": 5})) == [None, "done"]


def test_a_call_without_arguments_that_was_answered_alike_in_two_recordings_is_answered_so_again() -> None:
    first = [("add", {"n": 1}, "count 1"), ("secret", {}, "not set")]
    other = [("add", {"n": 2}, "count 2"), ("secret", {}, "not set")]
    assert played(learned(first), ("add", {"n": 3}), ("secret", {}))[1] is None
    assert played(learned(first, other), ("add", {"n": 3}), ("secret", {}))[1] == "not set"


def test_a_tool_that_also_answered_with_several_blocks_has_no_form() -> None:
    def guests(prefix: str, names: list[str]) -> Transition:
        listed = step("send_names", {"prefix": prefix}, "\n".join(names))
        if len(names) == 1:
            return listed
        info: JsonObject = {"content": [{"type": "text", "text": name} for name in names]}
        return listed.model_copy(update={"result": listed.result.model_copy(update={"info": info})})

    rules = learn([("", [guests("A", ["Ada"]), guests("Z", [])])], {})
    assert played(rules, ("send_names", {"prefix": "B"})) == [None]


def test_the_price_of_one_recorded_booking_is_not_that_of_another() -> None:
    def booked(number: int, room: int, total: float) -> JsonObject:
        return {"id": f"BK-{number}", "room": room, "day": "Monday", "total": total}

    rules = learned(
        [
            ("book", {"room": 2, "day": "Monday"}, booked(1, 2, 119.5)),
            ("book", {"room": 5, "day": "Monday"}, booked(2, 5, 249.99)),
        ]
    )
    assert played(rules, ("book", {"room": 2, "day": "Monday"}), ("book", {"room": 3, "day": "Monday"}))[1] is None


def test_a_write_beside_sql_makes_the_tables_unknown_unless_queries_show_that_it_changes_none() -> None:
    ports = [{"code": "OSL"}, {"code": "BER"}]
    whole = ("read_query", {"query": "SELECT * FROM port"}, list(ports))
    rules = learned(
        [whole, ("remove_port", {"code": "OSL"}, "Removed OSL.")],
        [("remove_port", {"code": "AMS"}, "Removed AMS."), ("read_query", {"query": "SELECT 1 AS n"}, [{"n": 1}])],
        [("append_note", {"text": "late"}, "Noted."), whole],
    )
    count = ("read_query", {"query": "SELECT count(*) AS n FROM port"})
    assert played(rules, count, before=[("append_note", {"text": "soon"})]) == ['[{"n": 2}]']
    assert played(rules, count, before=[("remove_port", {"code": "BER"})]) == [None]
    other = ("read_query", {"query": "SELECT * FROM city"}, [{"name": "Oslo"}])
    apart = learned([whole], [other], [("remove_port", {"code": "OSL"}, "Removed OSL."), other])
    cities = ("read_query", {"query": "SELECT count(*) AS n FROM city"})
    assert played(apart, cities, count, before=[("remove_port", {"code": "BER"})]) == ['[{"n": 1}]', None]


def test_rows_are_given_in_the_recorded_order_and_not_at_all_if_it_is_unknown() -> None:
    told = [{"code": "OSL"}, {"code": "BER"}, {"code": "OSL"}]
    some = ("read_query", {"query": "SELECT code FROM port WHERE code < 'P'"})
    first = ("read_query", {"query": "SELECT code FROM port LIMIT 1"})
    in_order = ("read_query", {"query": "SELECT count(*) AS n FROM port"}, [{"n": 3}])
    example = (
        "read_query",
        {"query": "SELECT code FROM port ORDER BY code"},
        [{"code": "BER"}, *[{"code": "OSL"}] * 2],
    )
    plain = learned([("read_query", {"query": "SELECT * FROM port"}, list(told)), in_order, example])
    assert played(plain, some, first) == [json.dumps(told), json.dumps(told[:1])]
    by_code = ("read_query", {"query": "SELECT * FROM port ORDER BY code"}, [{"code": "BER"}, {"code": "OSL"}])
    sorted_alone = learned([by_code], [(*example[:2], [*by_code[2]])])
    assert played(sorted_alone, some, first) == [None, None]
    packed = ("read_query", {"query": "SELECT json_group_array(code) AS c FROM port"})
    inner = ("read_query", {"query": "SELECT (SELECT code FROM port) AS c"})
    tied = ("read_query", {"query": "SELECT code FROM port ORDER BY code <> 'x'"})
    newest = ("read_query", {"query": "SELECT code FROM port ORDER BY code DESC LIMIT 1"})
    assert played(sorted_alone, packed, inner, tied, newest) == [None, None, None, '[{"code": "OSL"}]']


def test_questions_about_the_schema_are_not_answered_from_our_own() -> None:
    listed = ("read_query", {"query": "SELECT name FROM sqlite_master WHERE type = 'table'"})
    assert played(learned(*SQL), listed) == [None]


def test_a_read_is_not_changed_by_a_write_whose_answer_names_another_item() -> None:
    oar, mast = {"id": 4, "title": "oar"}, {"id": 5, "title": "mast"}
    rules = learned(
        [("add_item", {"title": "sail"}, "Added item 5"), ("get_item", {"id": 5}, {"id": 5, "title": "sail"})],
        [("add_item", {"title": "knot"}, "Added item 5"), ("get_item", {"id": 5}, {"id": 5, "title": "knot"})],
        [("add_item", {"title": "keel"}, "Added item 5")],
        [("get_item", {"id": 4}, dict(oar))],
    )
    add = ("add_item", {"title": "mast"})
    assert played(rules, add, ("get_item", {"id": 5})) == ["Added item 5", json.dumps(mast)]
    assert played(rules, add, ("get_item", {"id": 4})) == ["Added item 5", None]


def test_the_effect_of_a_write_on_its_second_item_is_not_that_on_its_first() -> None:
    def balance(account: str, money: int) -> Step:
        return "get_balance", {"account": account}, {"account": account, "balance": money}

    def moved(source: str, target: str, amount: int) -> Step:
        return "transfer", {"source": source, "target": target, "amount": amount}, f"Moved {amount}"

    rules = learned(
        [balance("ann", 100), moved("ann", "bob", 5), balance("ann", 95)],
        [balance("bob", 50), moved("bob", "cyd", 7), balance("bob", 43)],
    )
    paid = ("get_balance", {"account": "ann"})
    assert played(rules, moved("cyd", "ann", 5)[:2], paid) == ["Moved 5", None]


def test_what_was_deleted_and_made_again_can_be_deleted_again() -> None:
    rules = learned(
        [("delete", {"path": "a"}, "Deleted a"), ("delete", {"path": "a"}, "!No such file: a")],
        [("delete", {"path": "b"}, "Deleted b"), ("delete", {"path": "b"}, "!No such file: b")],
        [("create", {"path": "n"}, "Created n"), ("read", {"path": "n"}, "")],
        [("create", {"path": "m"}, "Created m")],
    )
    delete, create = ("delete", {"path": "a"}), ("create", {"path": "a"})
    assert played(rules, delete, delete) == ["Deleted a", "!No such file: a"]
    assert "!No such file: a" not in played(rules, delete, before=[delete, create])


def test_a_clock_beside_a_read_does_not_make_it_a_write() -> None:
    sessions = [
        [step("get_time", {}, "1"), step("read_file", {"path": "a"}, "x"), step("get_time", {}, "2")],
        [step("get_time", {}, "1"), step("get_time", {}, "2")],
    ]
    assert reading_tools(sessions, {}) == {"get_time", "read_file"}
