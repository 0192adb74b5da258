"""Sixty tasks for a clerk of the shop, and how each is played.

A task is made for a start world: each kind of task looks for orders, rooms and customers that fit it. The task's check
is derived from what the competent run changes and leaves alone. The poor runs are the slips of that run that fail.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

import worlds
from outcomes import GIVES_UP, Calls, check, left_by, slips
from pydantic import JsonValue
from worlds import DAYS, World, number

from dreamgym.dream.task_check import accomplished
from dreamgym.state import as_text
from dreamgym.types import JsonObject, Task, ToolCall

ENV = "shop"
DONE, GIVEN_UP = "It is done.", "I could not do it."
SPLITS = ("train", "train", "train", "dev", "test")
PLACES = ("5 Ferry Steps", "70 Salt Road", "12 Beacon View", "3 Net Yard", "21 Smokehouse Lane", "8 Pilot Court")
NAMES = ("Crow's nest", "Sail loft", "Map room", "Long pier", "Gull", "Compass")
TRIES = 20


class Played(NamedTuple):
    """One way to play a task."""

    calls: Calls
    answer: str


class Plan(NamedTuple):
    """One task and how it is played."""

    task: Task
    runs: dict[str, Played]
    """The run `done`, and the poor runs by their faults."""


def act(tool: str, /, **arguments: JsonValue) -> ToolCall:
    """One call."""
    return ToolCall(name=tool, arguments=arguments)


Drawn = tuple[str, Calls]
"""The instruction, and the calls that fulfil it."""
Kind = Callable[[World, random.Random], Drawn]


def pick(world: World, draw: random.Random, kind: str, **like: JsonValue) -> JsonObject:
    """A random entity with these fields."""
    fitting = [one for one in world[kind].values() if all(one[name] == value for name, value in like.items())]
    return draw.choice(fitting)


def free_day(world: World, draw: random.Random, *rooms: JsonValue) -> int:
    """A random day on which none of these rooms is booked."""
    taken = {one["day"] for one in world["bookings"].values() if one["room_id"] in rooms and one["status"] == "booked"}
    return draw.choice([day for day in range(1, DAYS + 1) if day not in taken])


def able_to_pay(world: World, draw: random.Random, cents: int, but: JsonValue = None) -> JsonValue:
    """A random customer other than `but` whose balance is enough."""
    able = [i for i, one in world["customers"].items() if number(one, "balance_cents") >= cents and i != but]
    return draw.choice(able)


def cancel(world: World, draw: random.Random) -> Drawn:
    order = pick(world, draw, "orders", status="placed")["order_id"]
    calls = (act("get_order", order_id=order), act("refund_order", order_id=order))
    return f"Cancel order {order} and refund it.", calls


def send_back(world: World, draw: random.Random) -> Drawn:
    order = pick(world, draw, "orders", status="delivered")
    calls = (
        act("get_order", order_id=order["order_id"]),
        act("refund_order", order_id=order["order_id"]),
        act("get_customer", customer_id=order["customer_id"]),
    )
    return f"Customer {order['customer_id']} has sent order {order['order_id']} back. Give the money back.", calls


def redirect(world: World, draw: random.Random) -> Drawn:
    order, place = pick(world, draw, "orders", status="placed")["order_id"], draw.choice(PLACES)
    calls = (act("set_order_address", order_id=order, address=place), act("get_order", order_id=order))
    return f"Order {order} shall go to {place}.", calls


def ship(world: World, draw: random.Random) -> Drawn:
    order, place = pick(world, draw, "orders", status="placed")["order_id"], draw.choice(PLACES)
    calls = (
        act("get_order", order_id=order),
        act("set_order_address", order_id=order, address=place),
        act("mark_shipped", order_id=order),
    )
    return f"Order {order} has been sent, but to {place}: note where it goes and that it is on its way.", calls


def arrive(world: World, draw: random.Random) -> Drawn:
    order = pick(world, draw, "orders", status="placed")
    calls = (
        act("mark_shipped", order_id=order["order_id"]),
        act("mark_delivered", order_id=order["order_id"]),
        act("get_customer", customer_id=order["customer_id"]),
    )
    return f"Order {order['order_id']} was taken to its customer today. Note that it is shipped and delivered.", calls


def deliver(world: World, draw: random.Random) -> Drawn:
    order = pick(world, draw, "orders", status="shipped")["order_id"]
    calls = (act("get_order", order_id=order), act("mark_delivered", order_id=order))
    return f"Order {order} has arrived. Note it.", calls


def book(world: World, draw: random.Random) -> Drawn:
    room = pick(world, draw, "rooms")
    day = free_day(world, draw, room["room_id"])
    customer = able_to_pay(world, draw, number(room, "price_cents"))
    calls = (
        act("check_availability", room_id=room["room_id"], day=day),
        act("book_room", room_id=room["room_id"], customer_id=customer, day=day),
    )
    return f"Book room {room['room_id']} for customer {customer} on day {day}.", calls


def unbook(world: World, draw: random.Random) -> Drawn:
    booking = pick(world, draw, "bookings", status="booked")
    calls = (
        act("list_bookings", room_id=booking["room_id"]),
        act("cancel_booking", booking_id=booking["booking_id"]),
    )
    asked = f"Customer {booking['customer_id']} does not need room {booking['room_id']} on day {booking['day']}."
    return f"{asked} Cancel that booking.", calls


def postpone(world: World, draw: random.Random) -> Drawn:
    booking = pick(world, draw, "bookings", status="booked")
    day = free_day(world, draw, booking["room_id"])
    calls = (
        act("check_availability", room_id=booking["room_id"], day=day),
        act("move_booking", booking_id=booking["booking_id"], room_id=booking["room_id"], day=day),
    )
    return f"Move booking {booking['booking_id']} to day {day}; the room stays.", calls


def change_room(world: World, draw: random.Random) -> Drawn:
    booking = pick(world, draw, "bookings", status="booked")
    room = draw.choice([i for i in world["rooms"] if i != booking["room_id"]])
    day = free_day(world, draw, room)
    calls = (
        act("check_availability", room_id=room, day=day),
        act("move_booking", booking_id=booking["booking_id"], room_id=room, day=day),
        act("get_customer", customer_id=booking["customer_id"]),
    )
    return f"Move booking {booking['booking_id']} to room {room} on day {day}.", calls


def rename(world: World, draw: random.Random) -> Drawn:
    room, name, day = pick(world, draw, "rooms")["room_id"], draw.choice(NAMES), draw.randint(1, DAYS)
    calls = (act("rename_room", room_id=room, name=name), act("check_availability", room_id=room, day=day))
    return f"Room {room} is now called {name}. Change it, and look whether the room is free on day {day}.", calls


def order(world: World, draw: random.Random) -> Drawn:
    items, cost = _basket(world, draw, draw.choice((2, 3)))
    customer = able_to_pay(world, draw, cost)
    wanted = ", ".join(f"{item['quantity']} of {item['product_id']}" for item in items)
    looks = tuple(act("get_product", product_id=item["product_id"]) for item in items)
    calls = (*looks, act("place_order", customer_id=customer, items=list(items)))
    return f"Customer {customer} orders {wanted}. See that there is enough of each, and place the order.", calls


def exchange(world: World, draw: random.Random) -> Drawn:
    old = pick(world, draw, "orders", status="delivered")
    items, _ = _basket(world, draw, 1)
    customer = old["customer_id"]
    calls = (
        act("get_order", order_id=old["order_id"]),
        act("refund_order", order_id=old["order_id"]),
        act("get_product", product_id=items[0]["product_id"]),
        act("place_order", customer_id=customer, items=list(items)),
        act("get_customer", customer_id=customer),
    )
    wanted = f"{items[0]['quantity']} of {items[0]['product_id']}"
    return f"Customer {customer} sends {old['order_id']} back and wants {wanted} instead: refund, then order.", calls


def hand_over(world: World, draw: random.Random) -> Drawn:
    booking = pick(world, draw, "bookings", status="booked")
    room, day = booking["room_id"], booking["day"]
    price = number(world["rooms"][str(room)], "price_cents")
    other = able_to_pay(world, draw, price, but=booking["customer_id"])
    calls = (
        act("list_bookings", room_id=room),
        act("cancel_booking", booking_id=booking["booking_id"]),
        act("book_room", room_id=room, customer_id=other, day=day),
        act("list_bookings", room_id=room),
    )
    return f"Customer {other} takes room {room} on day {day}. Cancel who has it now, and book it.", calls


def clear(world: World, draw: random.Random) -> Drawn:
    order, booking = pick(world, draw, "orders", status="placed"), pick(world, draw, "bookings", status="booked")
    calls = (
        act("list_orders", customer_id=order["customer_id"]),
        act("refund_order", order_id=order["order_id"]),
        act("list_bookings", room_id=booking["room_id"]),
        act("cancel_booking", booking_id=booking["booking_id"]),
        act("get_customer", customer_id=booking["customer_id"]),
        act("get_customer", customer_id=order["customer_id"]),
    )
    asked = f"Cancel the order of customer {order['customer_id']} that is placed as {order['order_id']}"
    return f"{asked}, refund it, and cancel booking {booking['booking_id']} too.", calls


KINDS: tuple[Kind, ...] = (
    cancel,
    send_back,
    redirect,
    ship,
    arrive,
    deliver,
    book,
    unbook,
    postpone,
    change_room,
    rename,
    order,
    exchange,
    hand_over,
    clear,
)


def plans(count: int = 60, start: int = 0) -> Iterator[Plan]:
    """Yield `count` different tasks for a start world, the kinds in turn while they have new ones; always the same."""
    world, draw = worlds.start(start), random.Random(start)
    asked: set[str] = set()
    made: Counter[str] = Counter()
    for kind in itertools.islice(itertools.cycle(KINDS), TRIES * count):
        instruction, calls = kind(world, draw)
        if instruction in asked:
            continue
        name = kind.__name__.replace("_", "-")
        made[name] += 1
        yield _plan(f"{name}-{made[name]}", instruction, calls, start, SPLITS[len(asked) % len(SPLITS)])
        asked.add(instruction)
        if len(asked) == count:
            return


def _plan(name: str, instruction: str, calls: Calls, world: int, split: str) -> Plan:
    start, end = left_by((), world), left_by(calls, world)
    metadata: JsonObject = {"split": split, "success": check(start, end)}
    task = Task(id=name, env=ENV, instruction=instruction, initial_state=as_text(start), metadata=metadata)
    runs = {"done": Played(calls, DONE)}
    for fault, badly in slips(calls).items():
        if badly and not accomplished(task, as_text(left_by(badly, world))):
            runs[fault] = Played(badly, GIVEN_UP if fault == GIVES_UP else DONE)
    return Plan(task, runs)


def _basket(world: World, draw: random.Random, kinds: int) -> tuple[list[JsonObject], int]:
    """Items of random products that are in stock, and their price."""
    products = draw.sample([one for one in world["products"].values() if number(one, "stock") >= 2], kinds)
    items: list[JsonObject] = [{"product_id": one["product_id"], "quantity": draw.choice((1, 2))} for one in products]
    prices = [number(one, "price_cents") for one in products]
    return items, sum(price * number(item, "quantity") for price, item in zip(prices, items, strict=True))
