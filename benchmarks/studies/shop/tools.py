"""The shop's fifteen tools as MCP lists them, and a call of one as MCP answers it.

How many fields of the world a call changes: 0 for the six that read, 1 for `set_order_address`, `rename_room` and
`mark_shipped`, 3 for `mark_delivered` and `cancel_booking`, 5 or more for `place_order`, `refund_order`, `book_room`
and a `move_booking` to another room (1 to another day).
"""

from __future__ import annotations

import json

import jsonschema
from shop import Refusal, Shop
from worlds import World

from dreamgym.types import JsonObject, ToolCall

TEXT: JsonObject = {"type": "string"}
WHOLE: JsonObject = {"type": "integer"}


def _object(**properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _several(schema: JsonObject) -> JsonObject:
    return {"type": "array", "items": schema}


ITEM = _object(product_id=TEXT, quantity=WHOLE)
CUSTOMER = _object(
    customer_id=TEXT, name=TEXT, address=TEXT, balance_cents=WHOLE, points=WHOLE, open_orders=WHOLE, bookings=WHOLE
)
PRODUCT = _object(product_id=TEXT, name=TEXT, price_cents=WHOLE, stock=WHOLE)
ORDER = _object(
    order_id=TEXT,
    customer_id=TEXT,
    status=TEXT,
    items=_several(ITEM),
    total_cents=WHOLE,
    refunded_cents=WHOLE,
    address=TEXT,
)
ROOM = _object(room_id=TEXT, name=TEXT, seats=WHOLE, price_cents=WHOLE, free_days=WHOLE)
BOOKING = _object(booking_id=TEXT, room_id=TEXT, customer_id=TEXT, day=WHOLE, price_cents=WHOLE, status=TEXT)
FREE: JsonObject = _object(
    room_id=TEXT,
    name=TEXT,
    seats=WHOLE,
    price_cents=WHOLE,
    free_days=WHOLE,
    day=WHOLE,
    available={"type": "boolean"},
)
ORDERS = _object(orders=_several(_object(order_id=TEXT, status=TEXT, total_cents=WHOLE)))
BOOKINGS = _object(bookings=_several(BOOKING))


def _tool(
    name: str, description: str, answer: JsonObject, /, *, reads: bool = False, **arguments: JsonObject
) -> JsonObject:
    return {
        "name": name,
        "description": description,
        "inputSchema": {**_object(**arguments), "additionalProperties": False},
        "outputSchema": answer,
        "annotations": {"readOnlyHint": reads},
    }


def _place_order() -> JsonObject:
    paid = "Order products for a customer, who pays from the balance. They go to the customer's address or another one."
    tool = _tool("place_order", paid, ORDER, customer_id=TEXT, items=_several(ITEM), address=TEXT)
    schema = tool["inputSchema"]
    assert isinstance(schema, dict)
    return {**tool, "inputSchema": {**schema, "required": ["customer_id", "items"]}}


TOOLS: tuple[JsonObject, ...] = (
    _tool(
        "get_customer", "A customer: address, balance, points and what is open.", CUSTOMER, reads=True, customer_id=TEXT
    ),
    _tool("get_product", "A product: price and stock.", PRODUCT, reads=True, product_id=TEXT),
    _tool("get_order", "An order: its items, status, total and address.", ORDER, reads=True, order_id=TEXT),
    _tool("list_orders", "All orders of a customer.", ORDERS, reads=True, customer_id=TEXT),
    _tool("list_bookings", "The bookings of a room, but for cancelled ones.", BOOKINGS, reads=True, room_id=TEXT),
    _tool("check_availability", "A room, and whether it is free on a day.", FREE, reads=True, room_id=TEXT, day=WHOLE),
    _tool("set_order_address", "Send an order that is not shipped elsewhere.", ORDER, order_id=TEXT, address=TEXT),
    _tool("rename_room", "Give a room another name.", ROOM, room_id=TEXT, name=TEXT),
    _tool("mark_shipped", "An order has left the house.", ORDER, order_id=TEXT),
    _tool(
        "mark_delivered",
        "A shipped order has arrived. It is no longer open, and the customer earns a point for every 100 cents.",
        ORDER,
        order_id=TEXT,
    ),
    _tool("cancel_booking", "Cancel a booking; its price is not given back.", BOOKING, booking_id=TEXT),
    _place_order(),
    _tool(
        "refund_order",
        "Cancel an order that is not shipped, or take a delivered one back: the goods return to stock, the money to "
        "the customer's balance; points earned with it are lost.",
        ORDER,
        order_id=TEXT,
    ),
    _tool(
        "book_room",
        "Book a room for a day; the customer pays from the balance.",
        BOOKING,
        room_id=TEXT,
        customer_id=TEXT,
        day=WHOLE,
    ),
    _tool(
        "move_booking",
        "Move a booking to another room or day; the customer pays or gets back the difference.",
        BOOKING,
        booking_id=TEXT,
        room_id=TEXT,
        day=WHOLE,
    ),
)
_CHECKS = {str(tool["name"]): jsonschema.Draft202012Validator(tool["inputSchema"]) for tool in TOOLS}


class UnknownTool(Exception):
    """The shop has no such tool."""


def call(shop: Shop, action: ToolCall) -> JsonObject:
    """A `tools/call` result without `_meta`. Raises UnknownTool."""
    if action.name not in _CHECKS:
        raise UnknownTool(action.name)
    fault = jsonschema.exceptions.best_match(_CHECKS[action.name].iter_errors(action.arguments))
    if fault is not None:
        where = f"{fault.json_path.removeprefix('$.')}: " if fault.path else ""
        return _said(f"Input validation error: {where}{fault.message}", isError=True)
    try:
        with shop.changing():
            answer: JsonObject = getattr(shop, action.name)(**action.arguments)
    except Refusal as refusal:
        return _said(str(refusal), isError=True)
    return _said(json.dumps(answer, ensure_ascii=False), structuredContent=answer, isError=False)


def told(before: World, after: World) -> JsonObject:
    """The `_meta` with the world before and after a call, for measuring; no agent needs it."""
    return {"dreamgym/before": json.loads(json.dumps(before)), "dreamgym/state": json.loads(json.dumps(after))}


def _said(text: str, **more: JsonObject | bool) -> JsonObject:
    return {"content": [{"type": "text", "text": text}], **more}
