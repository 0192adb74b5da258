"""`mcp-server-sqlite`: SQL on the database of a small shop. Refusals come as ordinary text."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from public_server import Kind, Plan, Server, Session, call, world

from dreamgym.types import ToolCall

NAME = "sqlite"
DATABASE = "shop.db"
SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL, city TEXT);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT UNIQUE NOT NULL, price REAL NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER NOT NULL, product_id INTEGER NOT NULL,
                     quantity INTEGER NOT NULL);
INSERT INTO customers VALUES (1, 'Ada', 'London'), (2, 'Boris', 'Sofia'), (3, 'Clara', 'Oslo'), (4, 'Dora', 'Sofia');
INSERT INTO products VALUES (1, 'rope', 12.0, 40), (2, 'buoy', 45.5, 3), (3, 'lamp', 80.0, 0), (4, 'anchor', 150.0, 2);
INSERT INTO orders VALUES (1, 1, 1, 10), (2, 1, 3, 1), (3, 2, 2, 2), (4, 3, 1, 5), (5, 4, 4, 1);
"""


def prepare(place: Path, installed: Path) -> None:
    """Make the shop's database."""
    with closing(sqlite3.connect(place / DATABASE)) as database:
        database.executescript(SCHEMA)


def select(query: str) -> ToolCall:
    return call("read_query", query=f"SELECT {query}")


def write(query: str) -> ToolCall:
    return call("write_query", query=query)


def create(query: str) -> ToolCall:
    return call("create_table", query=query)


def describe(table: str) -> ToolCall:
    return call("describe_table", table_name=table)


TABLES = call("list_tables")

PLANS = (
    Plan(
        "price-of-lamp",
        "What does a lamp cost?",
        (TABLES, describe("products"), select("price FROM products WHERE name = 'lamp'")),
        r"'price': ([\d.]+)",
        "80.0",
    ),
    Plan(
        "all-customers",
        "Who are our customers, and who lives in Oslo?",
        (describe("customers"), select("* FROM customers"), select("name FROM customers WHERE city = 'Oslo'")),
        r"^\[\{'name': '(\w+)'\}\]$",
        "Clara",
    ),
    Plan(
        "new-customer",
        "Emil from Tallinn is a new customer. Enter him and tell me his number.",
        (
            describe("customers"),
            write("INSERT INTO customers (name, city) VALUES ('Emil', 'Tallinn')"),
            select("id FROM customers WHERE name = 'Emil'"),
            select("COUNT(*) AS n FROM customers"),
        ),
        r"^\[\{'id': (\d+)\}\]$",
        "5",
    ),
    Plan(
        "raise-price-of-rope",
        "Rope costs 13.5 from today. Change it and read it back.",
        (
            call("read_query", query="UPDATE products SET price = 13.5 WHERE name = 'rope'"),
            write("UPDATE products SET price = 13.5 WHERE name = 'rope'"),
            select("name, price FROM products WHERE name = 'rope'"),
        ),
        r"'price': ([\d.]+)",
        "13.5",
    ),
    Plan(
        "delete-order",
        "Order 3 was cancelled. Delete it, and tell me how many orders are left.",
        (
            select("* FROM orders"),
            write("DELETE FROM orders WHERE id = 3"),
            select("COUNT(*) AS n FROM orders"),
        ),
        r"'n': (\d+)",
        "4",
    ),
    Plan(
        "second-anchor",
        "Add a product named anchor for 99, unless there is one.",
        (
            write("INSERT INTO products (name, price, stock) VALUES ('anchor', 99, 1)"),
            select("* FROM products WHERE name = 'anchor'"),
        ),
        r"'price': ([\d.]+)",
        "150.0",
    ),
    Plan(
        "suppliers",
        "Make a table of suppliers with id and name, and enter Harbour Ltd.",
        (
            TABLES,
            create("CREATE TABLE suppliers (id INTEGER PRIMARY KEY, name TEXT)"),
            write("INSERT INTO suppliers (name) VALUES ('Harbour Ltd')"),
            select("* FROM suppliers"),
        ),
        r"'name': '([^']+)'\}\]$",
        "Harbour Ltd",
    ),
    Plan(
        "sales-of-rope",
        "How much rope was ordered in all?",
        (
            select("SUM(amount) AS total FROM orders WHERE product_id = 1"),
            describe("orders"),
            select("SUM(quantity) AS total FROM orders WHERE product_id = 1"),
        ),
        r"'total': (\d+)",
        "15",
    ),
    Plan(
        "stock-of-buoys",
        "Two buoys were delivered. What is the stock now?",
        (
            select("* FROM products"),
            write("UPDATE products SET stock = stock + 2 WHERE name = 'buoy'"),
            select("stock FROM products WHERE name = 'buoy'"),
        ),
        r"^\[\{'stock': (\d+)\}\]$",
        "5",
    ),
    Plan(
        "who-ordered-an-anchor",
        "Who ordered an anchor? Note it as an insight.",
        (
            call("read_query", sql="SELECT * FROM orders"),
            select("c.name FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.product_id = 4"),
            call("append_insight", insight="Dora ordered an anchor"),
        ),
        r"'name': '(\w+)'",
        "Dora",
    ),
)

SESSIONS = (
    Session(
        "insert-fatima",
        Kind.READ_AFTER_WRITE,
        (
            write("INSERT INTO customers (name, city) VALUES ('Fatima', 'Tunis')"),
            select("id, city FROM customers WHERE name = 'Fatima'"),
            select("COUNT(*) FROM customers"),
        ),
    ),
    Session(
        "price-of-anchor",
        Kind.READ_AFTER_WRITE,
        (
            write("UPDATE products SET price = 175.25 WHERE name = 'anchor'"),
            select("price FROM products WHERE name = 'anchor'"),
            select("name, price FROM products WHERE name = 'anchor'"),
        ),
    ),
    Session(
        "shelves",
        Kind.READ_AFTER_WRITE,
        (
            create("CREATE TABLE shelves (code TEXT PRIMARY KEY, room INTEGER)"),
            TABLES,
            describe("shelves"),
            write("INSERT INTO shelves VALUES ('S-7', 3)"),
            select("* FROM shelves"),
        ),
    ),
    Session(
        "delete-order-five",
        Kind.READ_AFTER_WRITE,
        (
            write("DELETE FROM orders WHERE id = 5"),
            select("COUNT(*) AS n FROM orders"),
            select("* FROM orders"),
        ),
    ),
    Session(
        "boris-moves",
        Kind.READ_AFTER_WRITE,
        (
            write("UPDATE customers SET city = 'Varna' WHERE id = 2"),
            select("* FROM customers WHERE id = 2"),
            select("* FROM customers"),
        ),
    ),
    Session(
        "lamps-delivered",
        Kind.READ_AFTER_WRITE,
        (
            write("UPDATE products SET stock = stock + 12 WHERE name = 'lamp'"),
            select("stock FROM products WHERE name = 'lamp'"),
        ),
    ),
    Session(
        "two-new-customers",
        Kind.READ_AFTER_WRITE,
        (
            write("INSERT INTO customers (name, city) VALUES ('Goran', 'Split')"),
            write("INSERT INTO customers (name, city) VALUES ('Hilde', 'Bergen')"),
            select("* FROM customers WHERE name = 'Hilde'"),
            select("name FROM customers WHERE city = 'Split'"),
        ),
    ),
    Session(
        "new-product",
        Kind.READ_AFTER_WRITE,
        (
            write("INSERT INTO products (name, price, stock) VALUES ('compass', 33.75, 6)"),
            select("* FROM products WHERE name = 'compass'"),
            select("price FROM products WHERE name = 'compass'"),
        ),
    ),
    Session(
        "new-order",
        Kind.READ_AFTER_WRITE,
        (
            write("INSERT INTO orders (customer_id, product_id, quantity) VALUES (2, 1, 7)"),
            select("SUM(quantity) AS total FROM orders WHERE product_id = 1"),
            select("* FROM orders WHERE customer_id = 2"),
        ),
    ),
    Session(
        "city-of-ada",
        Kind.REPEATED_READS,
        (
            select("city FROM customers WHERE name = 'Ada'"),
            select("city FROM customers WHERE name = 'Ada'"),
            select("city FROM customers WHERE name = 'Ada'"),
        ),
    ),
    Session(
        "customers-and-rope",
        Kind.REPEATED_READS,
        (
            select("* FROM customers"),
            write("UPDATE products SET price = 11 WHERE name = 'rope'"),
            select("* FROM customers"),
            describe("orders"),
            write("DELETE FROM products WHERE id = 3"),
            describe("orders"),
        ),
    ),
    Session(
        "tables-twice",
        Kind.REPEATED_READS,
        (
            TABLES,
            describe("products"),
            TABLES,
            select("COUNT(*) AS n FROM orders"),
            select("COUNT(*) AS n FROM orders"),
        ),
    ),
    Session(
        "other-questions",
        Kind.NEW_ARGUMENTS,
        (
            select("price FROM products WHERE name = 'buoy'"),
            select("name FROM customers WHERE city = 'London'"),
            select("* FROM products WHERE id = 2"),
            select("* FROM orders WHERE quantity > 4"),
            select("MAX(price) AS most FROM products"),
            call("append_insight", insight="Rope sells best"),
        ),
    ),
    Session(
        "other-writes",
        Kind.NEW_ARGUMENTS,
        (
            write("UPDATE orders SET quantity = 4 WHERE id = 1"),
            write("INSERT INTO customers (name, city) VALUES ('Ines', 'Porto')"),
            write("DELETE FROM customers WHERE name = 'Clara'"),
            create("CREATE TABLE returns (id INTEGER PRIMARY KEY, order_id INTEGER)"),
        ),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            call("read_query", query="DELETE FROM customers"),
            write("SELECT * FROM customers"),
            select("colour FROM products"),
            create("DROP TABLE orders"),
            write("INSERT INTO products (name, price, stock) VALUES ('rope', 5, 5)"),
            call("describe_table", name="orders"),
        ),
    ),
)

SERVER = Server(
    name=NAME,
    package="PyPI mcp-server-sqlite 2025.4.25",
    command=lambda there: (str(there / "sqlite/bin/mcp-server-sqlite"), "--db-path", str(world(NAME) / DATABASE)),
    prepare=prepare,
    plans=PLANS,
    sessions=SESSIONS,
    reads=frozenset({"read_query", "list_tables", "describe_table"}),
    refuses=r"Error: |Database error: |Input validation error: |Unknown tool",
)
