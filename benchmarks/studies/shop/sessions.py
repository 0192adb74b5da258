"""Long sessions in the shop, drawn by a seed: requests as on an ordinary day, about a fifth of them refused.

A change is often followed by a read of what changed. The calls of a session are drawn while they are played in a shop
of their own, so that a sensible call fits the state that the earlier ones have left.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from pydantic import JsonValue
from shop import Shop
from tools import call
from worlds import DAYS, World, number

from dreamgym.types import JsonObject, ToolCall

SENSELESS = 0.3
"""Share of calls whose arguments are not chosen to fit; some of them fit by chance, and about a fifth is refused."""
LOOKS = 0.6
"""Share of changes that are followed by a read of what changed."""
WEIGHTS = {
    "get_customer": 5,
    "get_product": 5,
    "get_order": 5,
    "list_orders": 5,
    "list_bookings": 5,
    "check_availability": 6,
    "set_order_address": 7,
    "rename_room": 6,
    "mark_shipped": 5,
    "mark_delivered": 9,
    "cancel_booking": 9,
    "place_order": 14,
    "refund_order": 9,
    "book_room": 13,
    "move_booking": 10,
}
STREETS = ("Ferry Steps", "Salt Road", "Beacon View", "Net Yard", "Pilot Court", "Smokehouse Lane", "Rope Walk")
FIRST = ("North", "South", "Long", "Old", "Upper", "Blue")
SECOND = ("room", "loft", "deck", "cabin", "pier", "hall")


def session(seed: int, length: int = 20, start: int = 0) -> tuple[ToolCall, ...]:
    """The calls of one session in a start world, always the same for the same arguments."""
    draw = random.Random(f"{start}/{seed}")
    shop = Shop(world=start)
    calls: list[ToolCall] = []
    while len(calls) < length:
        before = shop.state()
        action = _drawn(before, draw)
        call(shop, action)
        calls.append(action)
        after = shop.state()
        if before != after and draw.random() < LOOKS and len(calls) < length:
            looked = draw.choice(_looks(before, after, draw))
            call(shop, looked)
            calls.append(looked)
    shop.close()
    return tuple(calls)


def _drawn(world: World, draw: random.Random) -> ToolCall:
    (tool,) = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))
    arguments = _senseless(tool, world, draw) if draw.random() < SENSELESS else _sensible(tool, world, draw)
    return ToolCall(name=tool, arguments=arguments)


def _looks(before: World, after: World, draw: random.Random) -> list[ToolCall]:
    """Reads of what has just changed."""
    looks = []
    for kind, entities in after.items():
        for i, entity in entities.items():
            if entity != before[kind].get(i):
                looks += [ToolCall(name=tool, arguments=arguments) for tool, arguments in _ways(kind, entity, draw)]
    return looks


def _ways(kind: str, entity: JsonObject, draw: random.Random) -> list[tuple[str, JsonObject]]:
    if kind == "customers":
        own: JsonObject = {"customer_id": entity["customer_id"]}
        return [("get_customer", own), ("list_orders", own)]
    if kind == "products":
        return [("get_product", {"product_id": entity["product_id"]})]
    if kind == "orders":
        return [("get_order", {"order_id": entity["order_id"]})]
    room: JsonObject = {"room_id": entity["room_id"]}
    return [("list_bookings", room), ("check_availability", {**room, "day": entity.get("day", draw.randint(1, DAYS))})]


def _sensible(tool: str, world: World, draw: random.Random) -> JsonObject:
    """Arguments that fit the world, if there are any."""
    statuses = {
        "set_order_address": ("placed",),
        "mark_shipped": ("placed",),
        "mark_delivered": ("shipped",),
        "refund_order": ("placed", "delivered"),
        "cancel_booking": ("booked",),
        "move_booking": ("booked",),
    }
    fitting = statuses.get(tool)

    def one(kind: str) -> JsonObject:
        entities = list(world[kind].values())
        return draw.choice([e for e in entities if fitting and e.get("status") in fitting] or entities)

    return _arguments(tool, world, draw, one)


def _arguments(tool: str, world: World, draw: random.Random, one: Callable[[str], JsonObject]) -> JsonObject:
    if tool == "place_order":
        return _basket(one("customers"), world, draw)
    if tool in {"book_room", "move_booking", "check_availability"}:
        room = one("rooms")
        if tool == "check_availability":
            return {"room_id": room["room_id"], "day": draw.randint(1, DAYS)}
        if tool == "book_room":
            return {
                "room_id": room["room_id"],
                "customer_id": _able(world, draw, number(room, "price_cents")),
                "day": _free(world, draw, room["room_id"]),
            }
        booking = one("bookings")
        if draw.random() < 0.25:
            room = world["rooms"][str(booking["room_id"])]
        return {
            "booking_id": booking["booking_id"],
            "room_id": room["room_id"],
            "day": _free(world, draw, room["room_id"]),
        }
    if tool == "rename_room":
        return {"room_id": one("rooms")["room_id"], "name": f"{draw.choice(FIRST)} {draw.choice(SECOND)}"}
    if tool == "set_order_address":
        address = f"{draw.randint(1, 99)} {draw.choice(STREETS)}"
        return {"order_id": one("orders")["order_id"], "address": address}
    kind, key = _NAMED[tool]
    return {key: one(kind)[key]}


_NAMED = {
    "get_customer": ("customers", "customer_id"),
    "list_orders": ("customers", "customer_id"),
    "get_product": ("products", "product_id"),
    "get_order": ("orders", "order_id"),
    "mark_shipped": ("orders", "order_id"),
    "mark_delivered": ("orders", "order_id"),
    "refund_order": ("orders", "order_id"),
    "list_bookings": ("rooms", "room_id"),
    "cancel_booking": ("bookings", "booking_id"),
}


def _senseless(tool: str, world: World, draw: random.Random) -> JsonObject:
    """Unchecked arguments: an id that does not exist, an order in any status, too large a quantity, a wrong day."""
    arguments = _arguments(tool, world, draw, lambda kind: draw.choice(list(world[kind].values())))
    ids = [name for name in arguments if name.endswith("_id")]
    if draw.random() < 0.5:
        name = draw.choice(ids)
        letter, _, count = str(arguments[name]).partition("-")
        return {**arguments, name: f"{letter}-{int(count) + draw.randint(10, 90)}"}
    if "day" in arguments:
        return {**arguments, "day": draw.choice((0, -3, 31, 45, *_taken(world, arguments["room_id"])))}
    if tool == "place_order":
        product = draw.choice(list(world["products"].values()))
        quantity = draw.choice((0, -1, number(product, "stock") + draw.randint(1, 9), 5))
        return {**arguments, "items": [{"product_id": product["product_id"], "quantity": quantity}]}
    if draw.random() < 0.1:
        return {name: value for name, value in arguments.items() if name != ids[0]}
    return arguments


def _basket(customer: JsonObject, world: World, draw: random.Random) -> JsonObject:
    """One to three products in stock, mostly for a customer who can pay for them."""
    there = [one for one in world["products"].values() if number(one, "stock") > 0]
    chosen = draw.sample(there, min(len(there), draw.choice((1, 2, 2, 3))))
    items: list[JsonValue] = [
        {"product_id": product["product_id"], "quantity": draw.randint(1, min(3, number(product, "stock")))}
        for product in chosen
    ]
    cost = sum(number(one, "price_cents") for one in chosen) * 2
    arguments: JsonObject = {"customer_id": _able(world, draw, cost) or customer["customer_id"], "items": items}
    if draw.random() < 0.3:
        arguments["address"] = f"{draw.randint(1, 99)} {draw.choice(STREETS)}"
    return arguments


def _able(world: World, draw: random.Random, cents: int) -> JsonValue:
    able = [i for i, one in world["customers"].items() if number(one, "balance_cents") >= cents]
    return draw.choice(able or list(world["customers"]))


def _taken(world: World, room: JsonValue) -> list[int]:
    bookings = world["bookings"].values()
    return [number(one, "day") for one in bookings if one["room_id"] == room and one["status"] == "booked"]


def _free(world: World, draw: random.Random, room: JsonValue) -> int:
    taken = _taken(world, room)
    return draw.choice([day for day in range(1, DAYS + 1) if day not in taken] or [1])
