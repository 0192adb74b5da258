"""A market in memory that follows its own rules: recordings to learn from, and answers to compare with."""

import json
import random
from collections.abc import Iterator
from typing import Any

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import StateSchema, as_text
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, ToolCall, Transition

TOOLS = ("get_stall", "list_lots", "rename", "reserve", "buy", "cancel", "close_stall", "stamp", "say")
SCHEMA = StateSchema.model_validate(
    {
        "people": {"key": "id", "fields": {"purse": "number", "buys": "integer", "city": "string"}},
        "lots": {"key": "lot", "fields": {"stall": "string", "price": "number", "left": "integer", "label": "string"}},
        "stalls": {"key": "stall", "fields": {"open": "boolean", "sold": "integer", "takings": "number"}},
        "deals": {
            "key": "deal",
            "fields": {"person": "string", "lines": "array", "sum": "number", "status": "string", "to": "string"},
        },
        "clock": "integer",
    }
)
SPEC = EnvironmentSpec(name="market", tools_list=({"tools": [{"name": name} for name in TOOLS]},), state=SCHEMA)


def start(draw: random.Random) -> JsonObject:
    """A market with random amounts."""
    stalls = [f"S{number}" for number in range(1, 4)]
    return {
        "clock": draw.randrange(5, 90),
        "people": {
            i: {"id": i, "purse": draw.randrange(20, 400) / 2, "buys": draw.randrange(9), "city": city}
            for i, city in (("ann", "Ulm"), ("bo", "Brno"), ("cy", "Bath"))
        },
        "stalls": {
            i: {"stall": i, "open": draw.random() < 0.8, "sold": draw.randrange(40), "takings": draw.randrange(900) / 4}
            for i in stalls
        },
        "lots": {
            f"L-{n}": {
                "lot": f"L-{n}",
                "stall": draw.choice(stalls),
                "price": draw.randrange(2, 60) / 4,
                "left": draw.randrange(2, 12),
                "label": draw.choice(["blue jug", "oil lamp", "tin cup", "old map"]) + f" no. {n}",
            }
            for n in range(1, 13)
        },
        "deals": {
            f"D-{n}": {
                "deal": f"D-{n}",
                "person": draw.choice(["ann", "bo", "cy"]),
                "lines": [
                    {"lot": f"L-{draw.randrange(1, 6)}", "count": draw.randrange(1, 4)},
                    {"lot": "L-9", "count": 1},
                ],
                "sum": draw.randrange(8, 99) / 4,
                "status": draw.choice(["open", "open", "sent", "void"]),
                "to": "Ulm",
            }
            for n in range(7, 12)
        },
    }


Entity = dict[str, Any]
"""An entity of a collection."""


class Refused(Exception):
    """The market refuses a call."""


def play(state: JsonObject, action: ToolCall, draw: random.Random) -> Transition:
    """Make a call; return it and the market's answer as a recorded transition."""
    after: JsonObject = json.loads(json.dumps(state))
    try:
        said, is_error = json.dumps(_does(after, action, draw)), False
    except Refused as refusal:
        said, is_error, after = str(refusal), True, state
    return Transition(
        state=as_text(state),
        action=action,
        result=StepResult(observation=said, is_error=is_error),
        next_state=as_text(after),
        provenance=Provenance(tier=Tier.REAL),
    )


def _does(state: JsonObject, action: ToolCall, draw: random.Random) -> JsonObject:
    given = action.arguments
    if action.name == "get_stall":
        return _one(state, "stalls", given["stall"])
    if action.name == "list_lots":
        _one(state, "stalls", given["stall"])
        lots = [lot for _, lot in _all(state, "lots") if lot["stall"] == given["stall"]]
        lots.sort(key=lambda lot: (lot["price"], int(str(lot["lot"])[2:])))
        return {"stall": given["stall"], "lots": [{"lot": one["lot"], "label": one["label"]} for one in lots]}
    if action.name == "rename":
        _one(state, "lots", given["lot"])["label"] = given["label"]
        return {"renamed": given["lot"], "label": given["label"]}
    if action.name == "reserve":
        lot, count = _one(state, "lots", given["lot"]), given["count"]
        assert isinstance(count, int)
        if count > lot["left"]:
            raise Refused(f"only {lot['left']} of {lot['lot']} left, {count} wanted")
        lot["left"] -= count
        return {"lot": lot["lot"], "left": lot["left"]}
    if action.name == "buy":
        return _buy(state, given)
    if action.name == "cancel":
        return _cancel(state, given)
    if action.name == "close_stall":
        stall = _one(state, "stalls", given["stall"])
        if not stall["open"]:
            raise Refused(f"{stall['stall']} is closed already")
        stall["open"] = False
        assert isinstance(state["clock"], int)
        state["clock"] += 1
        return {"closed": stall["stall"], "time": state["clock"]}
    if action.name == "stamp":
        _one(state, "deals", given["deal"])["to"] = f"{draw.random()}"
        return {"deal": given["deal"]}
    return {"said": given["words"], "echo": f"{draw.random()}"}


def _buy(state: JsonObject, given: JsonObject) -> JsonObject:
    person, lines = _one(state, "people", given["person"]), given["lines"]
    assert isinstance(lines, list)
    total = 0.0
    for line in lines:
        assert isinstance(line, dict)
        lot, count = _one(state, "lots", line["lot"]), line["count"]
        assert isinstance(count, int)
        if count > lot["left"]:
            raise Refused(f"only {lot['left']} of {lot['lot']} left, {count} wanted")
        total += lot["price"] * count
    if total > person["purse"]:
        raise Refused(f"{person['id']} has {person['purse']:.2f} and needs {total:.2f}")
    deals = _all(state, "deals")
    identity = f"D-{max(int(i[2:]) for i, _ in deals) + 1}"
    deal: Entity = {
        "deal": identity,
        "person": person["id"],
        "lines": lines,
        "sum": total,
        "status": "open",
        "to": given.get("to") or person["city"],
    }
    assert isinstance(state["deals"], dict)
    state["deals"][identity] = deal
    person["purse"] -= total
    person["buys"] += 1
    for line in deal["lines"]:
        _one(state, "lots", line["lot"])["left"] -= line["count"]
    return deal


def _cancel(state: JsonObject, given: JsonObject) -> JsonObject:
    deal = _one(state, "deals", given["deal"])
    if deal["status"] != "open":
        raise Refused(f"{deal['deal']} is {deal['status']}, not open")
    deal["status"] = "void"
    person = _one(state, "people", deal["person"])
    person["purse"] += deal["sum"]
    person["buys"] -= 1
    for line in deal["lines"]:
        _one(state, "lots", line["lot"])["left"] += line["count"]
    return deal


def _one(state: JsonObject, collection: str, identity: object) -> Entity:
    entities = state[collection]
    assert isinstance(entities, dict)
    if identity not in entities:
        raise Refused(f"no {collection[:-1]} {identity}")
    entity = entities[str(identity)]
    assert isinstance(entity, dict)
    return entity


def _all(state: JsonObject, collection: str) -> list[tuple[str, Entity]]:
    entities = state[collection]
    assert isinstance(entities, dict)
    return [(i, one) for i, one in entities.items() if isinstance(one, dict)]


def call(tool: str, draw: random.Random, state: JsonObject) -> ToolCall:
    """A call of a tool, sometimes with an id that does not exist."""
    lots, deals = [i for i, _ in _all(state, "lots")], [i for i, _ in _all(state, "deals")]
    stall = draw.choice(["S1", "S2", "S3", "S1", "S2", "S3", f"S{draw.randrange(4, 99)}"])
    lot = draw.choice([*lots, f"L-{draw.randrange(20, 99)}"])
    each: dict[str, JsonObject] = {
        "get_stall": {"stall": stall},
        "list_lots": {"stall": stall},
        "rename": {"lot": lot, "label": f"thing {draw.randrange(1000)}"},
        "reserve": {"lot": lot, "count": draw.randrange(1, 14)},
        "buy": {
            "person": draw.choice(["ann", "bo", "cy", "ann", "bo", "cy", f"zed{draw.randrange(99)}"]),
            "lines": [{"lot": one, "count": draw.randrange(1, 5)} for one in draw.sample(lots, draw.randrange(1, 4))],
        },
        "cancel": {"deal": draw.choice([*deals, f"D-{draw.randrange(50, 99)}"])},
        "close_stall": {"stall": draw.choice(["S1", "S2", "S3"])},
        "stamp": {"deal": draw.choice(deals)},
        "say": {"words": f"hello {draw.randrange(999)}"},
    }
    arguments = each[tool]
    if tool == "buy" and draw.random() < 0.4:
        arguments["to"] = draw.choice(["Metz", "Como", "Oulu"])
    return ToolCall(name=tool, arguments=arguments)


def recordings(tool: str, count: int, seed: int) -> Iterator[Transition]:
    """Recorded calls of one tool, each in a new market."""
    draw = random.Random(seed)
    for _ in range(count):
        state = start(draw)
        yield play(state, call(tool, draw, state), draw)
