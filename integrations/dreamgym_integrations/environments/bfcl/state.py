"""The explicit state of the benchmark's API classes: an instance's attributes as JSON, and the JSON Schema of its goal.

Entities with an id form collections. All else is single values under the system's name (`trading.order_counter`). An
entity without the fields of its kind, as in some of the benchmark's data, is kept under one field, `value`. The state
contains the random values that an instance has drawn, but not those that it will draw.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import JsonValue

from dreamgym.errors import EnvironmentUnavailable
from dreamgym.state import Collection, StateSchema, identity_of
from dreamgym.types import JsonObject

ORDER = "contents"
"""Field for the names in a directory, in their order. A listing shows it, but the check does not compare it."""
MOST_PATHS = 10_000
"""Most paths of a file system in a state; those of the benchmark have less than 100."""


@dataclass(frozen=True)
class Kind:
    """An attribute that holds entities, as a collection."""

    name: str
    key: str
    fields: Mapping[str, str] = field(default_factory=dict)
    whole: str = "value"
    """The field for an entity that is a single value, or has other fields than these."""

    def collected(self, held: object) -> JsonObject:
        """The entities by id. In a list, the id is the entity's own, or else its position."""
        if isinstance(held, Mapping):
            pairs = [(str(identity), entity) for identity, entity in held.items()]
        else:
            assert isinstance(held, Sequence)
            pairs = [(self._own_id(entity, f"#{place}"), entity) for place, entity in enumerate(held)]
        return {identity: self._entity(identity, entity) for identity, entity in pairs}

    def _own_id(self, entity: object, otherwise: str) -> str:
        own = entity.get(self.key) if isinstance(entity, Mapping) else None
        return otherwise if own is None else str(own)

    def _entity(self, identity: str, entity: object) -> JsonObject:
        plain = jsonable(entity)
        own = identity_of(plain.get(self.key, identity)) if isinstance(plain, dict) else None
        if isinstance(plain, dict) and own == identity and plain.keys() <= {self.key, *self.fields}:
            return {self.key: identity, **plain}
        return {self.key: identity, self.whole: plain}


@dataclass(frozen=True)
class System:
    """How the attributes of one API class become parts of the state."""

    name: str
    values: Mapping[str, str] = field(default_factory=dict)
    """Attributes that are single values, with their types."""
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    """Attributes that hold entities."""
    read: Callable[[Any], JsonObject] | None = None
    """Reads an instance whose attributes are not JSON. The keys of the result are in `values` and `kinds`."""

    def state(self, instance: object) -> JsonObject:
        """The parts of the state that come from an instance."""
        held = self.read(instance) if self.read else vars(instance)
        told: JsonObject = {self.called(name): jsonable(held.get(name)) for name in self.values}
        return told | {kind.name: kind.collected(held.get(name, {})) for name, kind in self.kinds.items()}

    def called(self, attribute: str) -> str:
        """Name of a single value in the state."""
        return f"{self.name}.{attribute}"

    def goal(self, state: JsonObject) -> Iterator[tuple[str, JsonObject]]:
        """JSON Schemas by name of the parts that must be as in this state: those that the benchmark compares."""
        for attribute in self.values:
            if not attribute.startswith("_"):
                yield self.called(attribute), {"const": state[self.called(attribute)]}
        for kind in self.kinds.values():
            entities = state[kind.name]
            assert isinstance(entities, dict)
            yield kind.name, _exactly({identity: _entity_goal(entity) for identity, entity in entities.items()})


def _exactly(properties: JsonObject, **free: JsonValue) -> JsonObject:
    return {
        "type": "object",
        "properties": {**properties, **free},
        "required": list(properties),
        "additionalProperties": False,
    }


def _entity_goal(entity: JsonValue) -> JsonObject:
    assert isinstance(entity, dict)
    return _exactly({name: {"const": value} for name, value in entity.items() if name != ORDER}, **{ORDER: True})


def jsonable(value: object) -> JsonValue:
    """A copy of a value as JSON: a set as a sorted list, other types as a number if possible, else as text."""
    copied: JsonValue = json.loads(json.dumps(value, default=_plain), parse_constant=str)
    return copied


def _plain(value: Any) -> object:
    if isinstance(value, set | frozenset):
        return sorted(value, key=str)
    return float(value) if hasattr(value, "__float__") else str(value)


def files(system: Any) -> JsonObject:
    """The file system: the file or directory at each path, and the user's current directory.

    Raises:
        EnvironmentUnavailable: there are more than MOST_PATHS. A copy shares the directories inside it, so that a few
            calls of `cp` and `mv` can make millions of paths.
    """
    found: JsonObject = {}

    def enter(item: Any, path: str, above: Sequence[object]) -> None:
        if len(found) >= MOST_PATHS:
            raise EnvironmentUnavailable(f"the file system has more than {MOST_PATHS} paths")
        inside = getattr(item, "contents", None)
        if inside is None:
            found[path] = {"name": item.name, "kind": "file", "content": item.content}
            return
        found[path] = {"name": item.name, "kind": "directory", ORDER: list(inside)}
        if any(item is one for one in above):  # a directory that was copied into itself contains itself
            return
        for name, part in inside.items():
            enter(part, f"{path.rstrip('/')}/{name}", [*above, item])

    def path_of(directory: Any) -> str:
        above = "" if directory.parent is None else path_of(directory.parent)
        return f"{above}/{directory.name.strip('/')}"

    enter(system.root, path_of(system.root), [])
    return {"root": found, "_current_dir": path_of(system._current_dir)}


def schema_of(systems: Sequence[System]) -> StateSchema:
    """Schema of the states of these systems, with the conversation that they belong to."""
    requests = Kind("requests", "number", {"text": "string"})
    kinds = [requests, *(kind for system in systems for kind in system.kinds.values())]
    return StateSchema(
        collections={kind.name: Collection(key=kind.key, fields={**kind.fields, kind.whole: "any"}) for kind in kinds},
        values={"conversation": "string", "request": "integer"}
        | {system.called(name): kind for system in systems for name, kind in system.values.items()},
    )


def _fields(kind: str, names: str) -> Mapping[str, str]:
    return dict.fromkeys(names.split(), kind)


VEHICLE = {
    **_fields("number", "fuelLevel batteryVoltage acTemperature humidityLevel fanSpeed remainingUnlockedDoors"),
    **_fields("number", "_parkingBrakeForce _slopeAngle _brakePedalForce distanceToNextVehicle"),
    **_fields("number", "frontLeftTirePressure frontRightTirePressure rearLeftTirePressure rearRightTirePressure"),
    **_fields("string", "engine_state acMode headLightStatus parkingBrakeStatus brakePedalStatus cruiseStatus"),
    "destination": "string",
}
ORDERED = _fields("any", "order_type symbol price amount num_shares status")
STOCK = _fields("number", "price percent_change volume MA(5) MA(20)")
CARD = _fields(
    "any",
    "card_number number cardholder_name card_holder_name name card_type type card_verification_number cvv balance "
    "expiration_date expiry_date expiry currency credit_limit budget_limit",
)
BOOKING = _fields(
    "any",
    "card_id transaction_id travel_date travel_from travel_to travel_class travel_cost insurance class flight_class "
    "cost cost_usd price date departure_date flight_date departure departure_city arrival arrival_city destination "
    "flight_number passenger_name passport_number",
)
TICKET = _fields(
    "any", "title description priority status resolution created_by created_at subject issue user_id booking_id"
)

SYSTEMS: Mapping[str, System] = {
    "GorillaFileSystem": System(
        "files",
        {"_current_dir": "string"},
        {"root": Kind("files", "path", {"name": "string", "kind": "string", "content": "string", ORDER: "array"})},
        files,
    ),
    "VehicleControlAPI": System(
        "vehicle",
        VEHICLE,
        {"doorStatus": Kind("doors", "door", whole="status")},
    ),
    "TradingBot": System(
        "trading",
        {
            "account_info": "object",
            "authenticated": "boolean",
            "market_status": "string",
            "order_counter": "integer",
            "watch_list": "array",
            "transaction_history": "array",
        },
        {
            "orders": Kind("orders", "id", ORDERED),
            "stocks": Kind("stocks", "symbol", STOCK),
        },
    ),
    "TravelAPI": System(
        "travel",
        {
            "access_token": "string?",
            "token_type": "string?",
            "token_expires_in": "integer?",
            "token_scope": "string?",
            "user_first_name": "string?",
            "user_last_name": "string?",
            "budget_limit": "number?",
            "_flight_cost_lookup": "object",
        },
        {
            "credit_card_list": Kind("credit_cards", "card_id", CARD),
            "booking_record": Kind("bookings", "booking_id", BOOKING),
        },
    ),
    "TwitterAPI": System(
        "posts",
        {
            "username": "string",
            "password": "string",
            "authenticated": "boolean",
            "following_list": "array",
            "comments": "object",
            "retweets": "object",
            "tweet_counter": "integer",
        },
        {"tweets": Kind("tweets", "id", _fields("any", "username content tags mentions"))},
    ),
    "MessageAPI": System(
        "messages",
        {
            "current_user": "string?",
            "inbox": "array",
            "message_count": "integer",
            "user_count": "integer",
            "generated_ids": "array",
        },
        {"user_map": Kind("users", "name", whole="user_id")},
    ),
    "TicketAPI": System(
        "tickets",
        {"ticket_counter": "integer", "current_user": "string?"},
        {
            "ticket_queue": Kind("tickets", "id", TICKET),
        },
    ),
    "MathAPI": System("math"),
}
"""The benchmark's API classes by name."""
