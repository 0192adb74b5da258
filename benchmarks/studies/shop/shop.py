"""A small shop with rooms to rent, in SQLite: the work of its tools, without any protocol around them.

Nothing depends on chance or on the clock: ids are numbered consecutively, days are days of a fixed calendar, money is
in whole cents. A tool makes all of its changes or, with a Refusal, none.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager

import worlds
from worlds import DAYS, World, points

from dreamgym.types import JsonObject

Row = dict[str, int | str]
"""One row of a table."""
Item = dict[str, int | str]
"""Product and quantity of an order's line."""

TABLES = """
CREATE TABLE customers (customer_id TEXT PRIMARY KEY, name TEXT, address TEXT, balance_cents INTEGER, points INTEGER,
                        open_orders INTEGER, bookings INTEGER);
CREATE TABLE products  (product_id TEXT PRIMARY KEY, name TEXT, price_cents INTEGER, stock INTEGER);
CREATE TABLE orders    (order_id TEXT PRIMARY KEY, customer_id TEXT, status TEXT, items TEXT, total_cents INTEGER,
                        refunded_cents INTEGER, address TEXT);
CREATE TABLE rooms     (room_id TEXT PRIMARY KEY, name TEXT, seats INTEGER, price_cents INTEGER, free_days INTEGER);
CREATE TABLE bookings  (booking_id TEXT PRIMARY KEY, room_id TEXT, customer_id TEXT, day INTEGER, price_cents INTEGER,
                        status TEXT);
"""
KEYS = {
    "customers": "customer_id",
    "products": "product_id",
    "orders": "order_id",
    "rooms": "room_id",
    "bookings": "booking_id",
}


class Refusal(Exception):
    """The shop does not do what it was asked; nothing was changed."""


class Shop:
    """The shop. All tools are methods; each returns the structured answer.

    Args:
        database: a SQLite file, kept as it is if it contains a shop already; default: in memory.
        world: number of the start world of a new shop.
    """

    def __init__(self, database: str = ":memory:", world: int = 0) -> None:
        self._db = sqlite3.connect(database)
        self._db.row_factory = sqlite3.Row
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'orders'").fetchone():
            self._db.executescript(TABLES)
            self._fill(worlds.start(world))

    def state(self) -> World:
        """The whole world."""
        return {
            table: {str(row[key]): _entity(row) for row in self._db.execute(f"SELECT * FROM {table} ORDER BY {key}")}
            for table, key in KEYS.items()
        }

    def changing(self) -> AbstractContextManager[object]:
        """A context in which a tool's changes are made as a whole, or not at all if it raises."""
        return self._db

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def get_customer(self, customer_id: str) -> JsonObject:
        """Read a customer."""
        return _shown(self._one("customers", customer_id))

    def get_product(self, product_id: str) -> JsonObject:
        """Read a product."""
        return _shown(self._one("products", product_id))

    def get_order(self, order_id: str) -> JsonObject:
        """Read an order."""
        return _shown(self._one("orders", order_id))

    def list_orders(self, customer_id: str) -> JsonObject:
        """List the orders of a customer."""
        self._one("customers", customer_id)
        found = self._rows(
            "SELECT order_id, status, total_cents FROM orders WHERE customer_id = ? ORDER BY order_id", customer_id
        )
        return {"orders": [_shown(row) for row in found]}

    def list_bookings(self, room_id: str) -> JsonObject:
        """List the active bookings of a room, by day."""
        self._one("rooms", room_id)
        found = self._rows("SELECT * FROM bookings WHERE room_id = ? AND status = 'booked' ORDER BY day", room_id)
        return {"bookings": [_shown(row) for row in found]}

    def check_availability(self, room_id: str, day: int) -> JsonObject:
        """Read a room, and whether it is free on a day."""
        room = self._one("rooms", room_id)
        _check_day(day)
        return {**_shown(room), "day": int(day), "available": self._booked(room_id, day) is None}

    def set_order_address(self, order_id: str, address: str) -> JsonObject:
        """Change the address of an order that is not shipped yet."""
        order = self._one("orders", order_id)
        if not address.strip():
            raise Refusal("The address is empty")
        if order["status"] != "placed":
            raise Refusal(f"Order {order_id} is already {order['status']} and its address cannot be changed")
        self._set("orders", order_id, address=address)
        return self.get_order(order_id)

    def rename_room(self, room_id: str, name: str) -> JsonObject:
        """Rename a room; two rooms cannot have the same name."""
        self._one("rooms", room_id)
        if not name.strip():
            raise Refusal("The name is empty")
        for other in self._rows("SELECT room_id FROM rooms WHERE name = ? AND room_id != ?", name, room_id):
            raise Refusal(f"Room {other['room_id']} is already called {name}")
        self._set("rooms", room_id, name=name)
        return _shown(self._one("rooms", room_id))

    def mark_shipped(self, order_id: str) -> JsonObject:
        """Change an order from placed to shipped."""
        order = self._one("orders", order_id)
        if order["status"] != "placed":
            raise Refusal(f"Order {order_id} is already {order['status']} and cannot be shipped")
        self._set("orders", order_id, status="shipped")
        return self.get_order(order_id)

    def mark_delivered(self, order_id: str) -> JsonObject:
        """Change an order from shipped to delivered, and the customer, who earns points."""
        order = self._one("orders", order_id)
        if order["status"] != "shipped":
            raise Refusal(f"Order {order_id} is {order['status']}, only a shipped order can be delivered")
        self._set("orders", order_id, status="delivered")
        self._add("customers", order["customer_id"], open_orders=-1, points=points(order))
        return self.get_order(order_id)

    def cancel_booking(self, booking_id: str) -> JsonObject:
        """Cancel a booking; changes booking, room and customer. Nothing is paid back."""
        booking = self._active(booking_id)
        self._set("bookings", booking_id, status="cancelled")
        self._add("rooms", booking["room_id"], free_days=1)
        self._add("customers", booking["customer_id"], bookings=-1)
        return _shown(self._one("bookings", booking_id))

    def place_order(self, customer_id: str, items: Sequence[Item], address: str = "") -> JsonObject:
        """Make an order; changes each product's stock, and the customer, who pays."""
        customer = self._one("customers", customer_id)
        total = sum(self._price(item) for item in _distinct(items))
        self._check_balance(customer, total, "the order costs")
        order_id = self._next("orders")
        self._insert(
            "orders",
            order_id=order_id,
            customer_id=customer_id,
            status="placed",
            items=json.dumps([{"product_id": item["product_id"], "quantity": int(item["quantity"])} for item in items]),
            total_cents=total,
            refunded_cents=0,
            address=address or customer["address"],
        )
        for item in items:
            self._add("products", item["product_id"], stock=-int(item["quantity"]))
        self._add("customers", customer_id, balance_cents=-total, open_orders=1)
        return self.get_order(order_id)

    def refund_order(self, order_id: str) -> JsonObject:
        """Undo an order that is not shipped or has arrived: stocks, balance, and open orders or points."""
        order = self._one("orders", order_id)
        total, status = order["total_cents"], order["status"]
        if status == "shipped":
            raise Refusal(f"Order {order_id} is already shipped and cannot be cancelled")
        if status == "refunded":
            raise Refusal(f"Order {order_id} is already refunded")
        self._set("orders", order_id, status="refunded", refunded_cents=total)
        for item in json.loads(str(order["items"])):
            self._add("products", item["product_id"], stock=item["quantity"])
        self._add("customers", order["customer_id"], balance_cents=int(total))
        if status == "placed":
            self._add("customers", order["customer_id"], open_orders=-1)
        else:
            self._add("customers", order["customer_id"], points=-points(order))
        return self.get_order(order_id)

    def book_room(self, room_id: str, customer_id: str, day: int) -> JsonObject:
        """Make a booking; changes the room and the customer, who pays."""
        room, customer = self._one("rooms", room_id), self._one("customers", customer_id)
        self._check_free(room_id, day)
        price = int(room["price_cents"])
        self._check_balance(customer, price, "the room costs")
        booking_id = self._next("bookings")
        self._insert(
            "bookings",
            booking_id=booking_id,
            room_id=room_id,
            customer_id=customer_id,
            day=day,
            price_cents=price,
            status="booked",
        )
        self._add("rooms", room_id, free_days=-1)
        self._add("customers", customer_id, balance_cents=-price, bookings=1)
        return _shown(self._one("bookings", booking_id))

    def move_booking(self, booking_id: str, room_id: str, day: int) -> JsonObject:
        """Move a booking; with another room, changes both rooms and the customer's balance too."""
        booking, room = self._active(booking_id), self._one("rooms", room_id)
        if (booking["room_id"], booking["day"]) == (room_id, day):
            raise Refusal(f"Booking {booking_id} is already for room {room_id} on day {day}")
        self._check_free(room_id, day)
        price = int(room["price_cents"])
        more = price - int(booking["price_cents"])
        self._check_balance(self._one("customers", str(booking["customer_id"])), more, "the move costs")
        self._set("bookings", booking_id, room_id=room_id, day=day, price_cents=price)
        self._add("rooms", booking["room_id"], free_days=1)
        self._add("rooms", room_id, free_days=-1)
        self._add("customers", booking["customer_id"], balance_cents=-more)
        return _shown(self._one("bookings", booking_id))

    # The rules that several tools share

    def _active(self, booking_id: str) -> Row:
        booking = self._one("bookings", booking_id)
        if booking["status"] != "booked":
            raise Refusal(f"Booking {booking_id} is already {booking['status']}")
        return booking

    def _check_free(self, room_id: str, day: int) -> None:
        _check_day(day)
        if self._booked(room_id, day) is not None:
            raise Refusal(f"Room {room_id} is already booked on day {day}")

    def _booked(self, room_id: str, day: int) -> Row | None:
        active = "SELECT * FROM bookings WHERE room_id = ? AND day = ? AND status = 'booked'"
        return next(iter(self._rows(active, room_id, day)), None)

    def _price(self, item: Item) -> int:
        """The price of one line of an order."""
        product, quantity = self._one("products", str(item["product_id"])), int(item["quantity"])
        if quantity < 1:
            raise Refusal(f"The quantity of {product['product_id']} must be at least 1, got {quantity}")
        if quantity > int(product["stock"]):
            raise Refusal(f"Not enough stock of {product['product_id']}: {product['stock']} left, {quantity} asked for")
        return quantity * int(product["price_cents"])

    def _check_balance(self, customer: Row, cents: int, what: str) -> None:
        if cents > int(customer["balance_cents"]):
            has = customer["balance_cents"]
            raise Refusal(f"Customer {customer['customer_id']} has {has} cents, {what} {cents}")

    # The tables

    def _one(self, table: str, identity: str) -> Row:
        found = self._rows(f"SELECT * FROM {table} WHERE {KEYS[table]} = ?", identity)
        if not found:
            raise Refusal(f"{table[:-1].capitalize()} {identity} not found")
        return found[0]

    def _rows(self, query: str, *values: int | str) -> list[Row]:
        return [dict(row) for row in self._db.execute(query, values)]

    def _set(self, table: str, identity: int | str, **fields: int | str) -> None:
        names = ", ".join(f"{name} = ?" for name in fields)
        self._db.execute(f"UPDATE {table} SET {names} WHERE {KEYS[table]} = ?", (*fields.values(), identity))

    def _add(self, table: str, identity: int | str, **fields: int) -> None:
        names = ", ".join(f"{name} = {name} + ?" for name in fields)
        self._db.execute(f"UPDATE {table} SET {names} WHERE {KEYS[table]} = ?", (*fields.values(), identity))

    def _insert(self, table: str, **fields: int | str) -> None:
        marks = ", ".join("?" * len(fields))
        self._db.execute(f"INSERT INTO {table} ({', '.join(fields)}) VALUES ({marks})", tuple(fields.values()))

    def _next(self, table: str) -> str:
        """The id of the next new entity."""
        ids = [str(row["id"]) for row in self._rows(f"SELECT {KEYS[table]} AS id FROM {table}")]
        letter, _, _ = ids[0].partition("-")
        return f"{letter}-{max(int(one.partition('-')[2]) for one in ids) + 1}"

    def _fill(self, world: World) -> None:
        for table, entities in world.items():
            for entity in entities.values():
                row = {k: json.dumps(v) if isinstance(v, list) else v for k, v in entity.items()}
                self._insert(table, **row)  # type: ignore[arg-type]
        self._db.commit()


def _check_day(day: int) -> None:
    if not 1 <= day <= DAYS:
        raise Refusal(f"Day {day} is not in the calendar: it has days 1 to {DAYS}")


def _distinct(items: Sequence[Item]) -> Iterable[Item]:
    if not items:
        raise Refusal("An order needs at least one item")
    seen: set[int | str] = set()
    for item in items:
        if item["product_id"] in seen:
            raise Refusal(f"Product {item['product_id']} is listed twice")
        seen.add(item["product_id"])
    return items


def _entity(row: sqlite3.Row) -> JsonObject:
    return _shown({name: row[name] for name in row.keys()})  # noqa: SIM118 - a Row iterates over its values


def _shown(row: Row) -> JsonObject:
    return {name: json.loads(str(value)) if name == "items" else value for name, value in row.items()}
