"""Tasks for `mcp-server-sqlite` over the database of a ship's chandler: questions and changes, each with its check.

The check lists the answers that the server must have given in the episode. Customers, products and orders of the test
are in no task that is practised or recorded, but all are in the tables, as in a real database.
"""

from __future__ import annotations

import itertools
import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import NamedTuple

from dreamgym.types import JsonObject, Task, ToolCall

ENV = "chandler"
NAMES = (
    *("Ada", "Boris", "Clara", "Dora", "Emil", "Fatima", "Goran", "Hilde", "Ines", "Jakob", "Kirsten", "Luis"),
    *("Marta", "Nils", "Olga", "Pavel", "Rosa", "Sven", "Tamar", "Ulrich", "Vera", "Wanda", "Xenia", "Yusuf"),
)
CITIES = ("London", "Sofia", "Oslo", "Tallinn", "Tunis", "Split", "Bergen", "Porto", "Genoa", "Malmo", "Riga", "Cadiz")
GOODS = (
    *("rope", "buoy", "lamp", "anchor", "compass", "flag", "sail", "oar", "winch", "net", "pump", "chart"),
    *("ladder", "fender", "cleat", "shackle", "hook", "bell", "knife", "paint", "tarp", "whistle", "radio", "mast"),
)
NEWCOMERS = ("Anton", "Berta", "Cyril", "Delia", "Egon", "Flora", "Gustav", "Hanna", "Igor", "Julia", "Karl", "Lena")
ORDERS = 48
TABLES = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, price REAL NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, product_id INTEGER NOT NULL,
                     quantity INTEGER NOT NULL);
"""


class Plan(NamedTuple):
    """A task and the calls that do it."""

    task: Task
    calls: tuple[ToolCall, ...]
    answer: str


def fill(database: sqlite3.Connection) -> None:
    """Create and fill the tables, as at the start of every episode."""
    draw = random.Random(0)
    database.executescript(TABLES)
    people = [(n, name, draw.choice(CITIES)) for n, name in enumerate(NAMES, start=1)]
    goods = [(n, name, draw.randrange(10, 400) / 2, draw.randrange(60)) for n, name in enumerate(GOODS, start=1)]
    halves = [range(1, len(NAMES) // 2 + 1), range(len(NAMES) // 2 + 1, len(NAMES) + 1)]
    orders = [
        (n, draw.choice(halves[n > ORDERS // 2]), draw.choice(halves[n > ORDERS // 2]), draw.randrange(1, 12))
        for n in range(1, ORDERS + 1)
    ]
    database.executemany("INSERT INTO customers VALUES (?, ?, ?)", people)
    database.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", goods)
    database.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
    database.commit()


def read(query: str) -> ToolCall:
    return ToolCall(name="read_query", arguments={"query": f"SELECT {query}"})


def write(query: str) -> ToolCall:
    return ToolCall(name="write_query", arguments={"query": query})


class Half(NamedTuple):
    """The names and numbers that the tasks of one split may use."""

    draw: random.Random
    customers: tuple[str, ...]
    goods: tuple[str, ...]
    orders: range
    newcomers: tuple[str, ...]


Drawn = tuple[str, tuple[ToolCall, ...]]
Kind = Callable[[Half, sqlite3.Connection], Drawn]


def price(half: Half, _: sqlite3.Connection) -> Drawn:
    what = half.draw.choice(half.goods)
    return f"What is the price of the {what}?", (read(f"price FROM products WHERE name = '{what}'"),)


def city(half: Half, _: sqlite3.Connection) -> Drawn:
    who = half.draw.choice(half.customers)
    return f"Where does {who} live?", (read(f"city FROM customers WHERE name = '{who}'"),)


def ordered(half: Half, database: sqlite3.Connection) -> Drawn:
    what = half.draw.choice(half.goods)
    ((number,),) = database.execute("SELECT id FROM products WHERE name = ?", (what,)).fetchall()
    calls = (
        read(f"id FROM products WHERE name = '{what}'"),
        read(f"SUM(quantity) AS total FROM orders WHERE product_id = {number}"),
    )
    return f"How many of the {what} were ordered in all?", calls


def orderer(half: Half, database: sqlite3.Connection) -> Drawn:
    order = half.draw.choice(half.orders)
    ((number,),) = database.execute("SELECT customer_id FROM orders WHERE id = ?", (order,)).fetchall()
    calls = (
        read(f"customer_id FROM orders WHERE id = {order}"),
        read(f"name FROM customers WHERE id = {number}"),
    )
    return f"Who placed order {order}?", calls


def changed(table: str, column: str, value: str, name: str) -> tuple[ToolCall, ...]:
    """Calls that set a column of the row with this name, and read it back."""
    row = f"WHERE name = '{name}'"
    return write(f"UPDATE {table} SET {column} = {value} {row}"), read(f"{column} FROM {table} {row}")


def delivery(half: Half, _: sqlite3.Connection) -> Drawn:
    what, more = half.draw.choice(half.goods), half.draw.randrange(2, 40)
    calls = changed("products", "stock", f"stock + {more}", what)
    return f"{more} of the {what} were delivered. Add them to the stock, and read it back.", calls


def dearer(half: Half, _: sqlite3.Connection) -> Drawn:
    what, now = half.draw.choice(half.goods), half.draw.randrange(10, 400) / 2
    calls = changed("products", "price", f"{now:g}", what)
    return f"The {what} costs {now:g} from today. Change it, and read it back.", calls


def move(half: Half, _: sqlite3.Connection) -> Drawn:
    who, where = half.draw.choice(half.customers), half.draw.choice(CITIES)
    calls = changed("customers", "city", f"'{where}'", who)
    return f"{who} has moved to {where}. Change it, and read it back.", calls


def newcomer(half: Half, _: sqlite3.Connection) -> Drawn:
    who, where = half.draw.choice(half.newcomers), half.draw.choice(CITIES)
    calls = (
        write(f"INSERT INTO customers (name, city) VALUES ('{who}', '{where}')"),
        read(f"id FROM customers WHERE name = '{who}'"),
    )
    return f"{who} from {where} is a new customer. Enter the name, and find the number.", calls


def cancelled(half: Half, _: sqlite3.Connection) -> Drawn:
    order = half.draw.choice(half.orders)
    calls = (write(f"DELETE FROM orders WHERE id = {order}"), read("COUNT(*) AS n FROM orders"))
    return f"Order {order} was cancelled. Delete it, and count those that are left.", calls


KINDS: tuple[Kind, ...] = (price, city, ordered, orderer, delivery, dearer, move, newcomer, cancelled)


def plans(split: str, count: int) -> Iterator[Plan]:
    """Yield `count` different tasks of a split, the kinds in turn; always the same.

    The test tasks use one half of the names and orders, those of the other splits the other half.
    """
    half = _half(tested=split == "test", draw=random.Random(f"{split} tasks"))
    asked: set[str] = set()
    made = 0
    for kind in itertools.cycle(KINDS):
        with closing(sqlite3.connect(":memory:")) as database:
            fill(database)
            instruction, calls = kind(half, database)
            if instruction in asked:
                continue
            answers = [answered(database, call) for call in calls]
        asked.add(instruction)
        metadata: JsonObject = {"split": split, "answers": [*answers]}
        task = Task(id=f"{split}-{kind.__name__}-{made}", env=ENV, instruction=instruction, metadata=metadata)
        yield Plan(task, calls, answers[-1])
        made += 1
        if made == count:
            return


def browsing() -> Iterator[Plan]:
    """Further recordings for the dream: each table described and read whole, and the answers to mistakes."""
    for table in ("customers", "products", "orders"):
        task = Task(id=f"browse-{table}", env=ENV, instruction=f"Show me all {table}.", metadata={"split": "browsing"})
        described = ToolCall(name="describe_table", arguments={"table_name": table})
        yield Plan(task, (described, read(f"* FROM {table}")), "There they are.")
    task = Task(id="browse-mistakes", env=ENV, instruction="Try what is refused.", metadata={"split": "browsing"})
    mistakes = (
        read("colour FROM products"),
        read("name FROM people"),
        read("price FROM products WHERE name = rope"),
        ToolCall(name="read_query", arguments={"query": "DELETE FROM orders WHERE id = 1"}),
        write("UPDATE products SET cost = 3 WHERE name = 'rope'"),
        write("UPDATE people SET city = 'Oslo' WHERE name = 'Ada'"),
        write("SELECT stock FROM products"),
        write("INSERT INTO products (name, price, stock) VALUES ('rope', 5, 5)"),
    )
    yield Plan(task, mistakes, "They are refused.")


def answered(database: sqlite3.Connection, call: ToolCall) -> str:
    """The answer that the server must give; it is compared with the server's own answer while recording."""
    cursor = database.execute(str(call.arguments["query"]))
    if cursor.description is None:
        return str([{"affected_rows": cursor.rowcount}])
    names = [column[0] for column in cursor.description]
    return str([dict(zip(names, row, strict=True)) for row in cursor])


def _half(*, tested: bool, draw: random.Random) -> Half:
    def mine(names: tuple[str, ...]) -> tuple[str, ...]:
        middle = len(names) // 2
        return names[middle:] if tested else names[:middle]

    orders = range(ORDERS // 2 + 1, ORDERS + 1) if tested else range(1, ORDERS // 2 + 1)
    return Half(draw, mine(NAMES), mine(GOODS), orders, mine(NEWCOMERS))
