"""Start worlds of the shop: customers, products, orders, rooms and bookings.

World 0 is always the one written in this file. Any other number gives the same people and goods with other amounts,
other owners and other dates, always the same for the same number.
"""

from __future__ import annotations

import random
from collections.abc import Mapping

from dreamgym.state import as_text
from dreamgym.types import JsonObject

DAYS = 30
"""The calendar of the rooms: days 1 to 30."""
OPEN = ("placed", "shipped")

World = dict[str, dict[str, JsonObject]]
"""Entities by kind and id; each contains its own id."""

CUSTOMERS = (  # id, name, address, balance
    ("C-1", "Ada Quist", "4 Mill Lane", 42000),
    ("C-2", "Ben Osei", "17 Quay Street", 9500),
    ("C-3", "Cleo Marsh", "2 Orchard Row", 31000),
    ("C-4", "Dov Lindt", "88 Station Road", 60500),
    ("C-5", "Esme Rook", "9 Chapel Hill", 18250),
    ("C-6", "Finn Hale", "31 Dyke End", 27800),
)
PRODUCTS = (  # id, name, price, stock
    ("P-1", "rope 20 m", 1200, 14),
    ("P-2", "buoy", 4500, 3),
    ("P-3", "deck lamp", 8000, 5),
    ("P-4", "tide table", 650, 40),
    ("P-5", "anchor 6 kg", 5200, 7),
    ("P-6", "oar", 2350, 12),
    ("P-7", "life vest", 3900, 9),
    ("P-8", "sail patch", 400, 25),
)
ORDERS = (  # id, customer, status, items
    ("O-1001", "C-1", "placed", (("P-1", 2), ("P-4", 1))),
    ("O-1002", "C-2", "shipped", (("P-2", 1),)),
    ("O-1003", "C-3", "placed", (("P-6", 2), ("P-7", 1), ("P-8", 3))),
    ("O-1004", "C-4", "delivered", (("P-3", 1), ("P-5", 1))),
    ("O-1005", "C-1", "delivered", (("P-7", 2),)),
    ("O-1006", "C-5", "placed", (("P-5", 1), ("P-8", 2))),
    ("O-1007", "C-6", "refunded", (("P-4", 3),)),
    ("O-1008", "C-4", "shipped", (("P-1", 1), ("P-6", 2))),
)
ROOMS = (  # id, name, seats, price of a day
    ("R-1", "Harbour", 6, 3000),
    ("R-2", "Lighthouse", 12, 5500),
    ("R-3", "Chart room", 4, 2500),
    ("R-4", "Boathouse", 30, 9000),
    ("R-5", "Galley", 8, 4000),
)
BOOKINGS = (  # id, room, customer, day, status
    ("B-201", "R-1", "C-1", 5, "booked"),
    ("B-202", "R-2", "C-3", 12, "booked"),
    ("B-203", "R-2", "C-4", 20, "booked"),
    ("B-204", "R-3", "C-2", 7, "cancelled"),
    ("B-205", "R-5", "C-6", 12, "booked"),
    ("B-206", "R-1", "C-5", 18, "booked"),
)


def start(number: int = 0) -> World:
    """One start world."""
    draw = random.Random(number)
    prices = {row[0]: row[2] for row in PRODUCTS}
    world: World = {
        "customers": {
            i: {"customer_id": i, "name": name, "address": address, "balance_cents": cents, "points": 0}
            for i, name, address, cents in CUSTOMERS
        },
        "products": {
            i: {"product_id": i, "name": name, "price_cents": cents, "stock": stock}
            for i, name, cents, stock in PRODUCTS
        },
        "orders": {},
        "rooms": {
            i: {"room_id": i, "name": name, "seats": seats, "price_cents": cents} for i, name, seats, cents in ROOMS
        },
        "bookings": {},
    }
    if number:
        _other_amounts(world, draw)
    owners = _other_owners(draw) if number else {row[0]: row[0] for row in CUSTOMERS}
    for i, customer, status, items in ORDERS:
        total = sum(prices[product] * quantity for product, quantity in items)
        world["orders"][i] = {
            "order_id": i,
            "customer_id": owners[customer],
            "status": status,
            "items": [{"product_id": product, "quantity": quantity} for product, quantity in items],
            "total_cents": total,
            "refunded_cents": total if status == "refunded" else 0,
            "address": str(world["customers"][owners[customer]]["address"]),
        }
    days = draw.sample(range(1, DAYS + 1), len(BOOKINGS)) if number else [row[3] for row in BOOKINGS]
    for (i, room, customer, _, status), day in zip(BOOKINGS, days, strict=True):
        world["bookings"][i] = {
            "booking_id": i,
            "room_id": room,
            "customer_id": owners[customer],
            "day": day,
            "price_cents": world["rooms"][room]["price_cents"],
            "status": status,
        }
    _count(world)
    return world


def _other_amounts(world: World, draw: random.Random) -> None:
    for customer in world["customers"].values():
        customer["balance_cents"] = draw.randrange(8000, 70000, 50)
    for product in world["products"].values():
        product["stock"] = draw.randrange(2, 45)


def _other_owners(draw: random.Random) -> dict[str, str]:
    ids = [row[0] for row in CUSTOMERS]
    return dict(zip(ids, draw.sample(ids, len(ids)), strict=True))


def _count(world: World) -> None:
    """Fill in what follows from orders and bookings: open orders, points, active bookings, free days."""
    orders, bookings = world["orders"].values(), world["bookings"].values()
    for i, customer in world["customers"].items():
        own = [order for order in orders if order["customer_id"] == i]
        arrived = [order for order in own if order["status"] == "delivered"]
        customer["points"] = sum(points(order) for order in arrived)
        customer["open_orders"] = sum(order["status"] in OPEN for order in own)
        customer["bookings"] = sum(one["customer_id"] == i and one["status"] == "booked" for one in bookings)
    for i, room in world["rooms"].items():
        room["free_days"] = DAYS - sum(one["room_id"] == i and one["status"] == "booked" for one in bookings)


def points(order: Mapping[str, object]) -> int:
    """Points that a customer earns when an order arrives: one for every full hundred cents."""
    return number(order, "total_cents") // 100


def number(entity: Mapping[str, object], field: str) -> int:
    """The value of an entity's field, which must be a whole number."""
    value = entity[field]
    assert isinstance(value, int)
    return value


def text(world: World) -> str:
    """A world as the text of a state in a trajectory."""
    return as_text({kind: {**entities} for kind, entities in world.items()})
