"""Terms: names for the values that a rule can refer to, and the values that they have in one call.

A term is a tuple of steps. `("arg", "thing", ">things", "where")` is the field `where` of the thing that the argument
`thing` names; `("value", "at")` is a single value of the state.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from dreamgym.types import JsonObject

Term = tuple[str, ...]


class _Missing:
    """Stands for a value that is not there, since None is a JSON value."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING = _Missing()
Found = JsonValue | _Missing


def found(term: Term, state: JsonObject, arguments: JsonObject) -> Found:
    """The value of a term in a call; MISSING if there is none."""
    root, name, *rest = term
    at: Found = (arguments if root == "arg" else state).get(name, MISSING)
    for step in rest:
        if step[0] == ">":
            part = state.get(step[1:])
            at = part.get(at, MISSING) if isinstance(part, dict) and isinstance(at, str) else MISSING
        else:
            at = at.get(step, MISSING) if isinstance(at, dict) else MISSING
        if at is MISSING:
            return MISSING
    return at


def terms_in(state: JsonObject, arguments: JsonObject, collections: tuple[str, ...]) -> Iterator[Term]:
    """Every term that has a value in a call: arguments, single values, and the fields of the entities they name."""
    roots: list[tuple[Term, JsonValue]] = [(("arg", name), value) for name, value in arguments.items()]
    roots += [(("value", name), value) for name, value in state.items() if name not in collections]
    for term, value in roots:
        yield term
        if isinstance(value, str):
            for name in collections:
                part = state.get(name)
                entity = part.get(value) if isinstance(part, dict) else None
                if isinstance(entity, dict):
                    yield (*term, f">{name}")
                    yield from ((*term, f">{name}", field) for field, known in entity.items() if known != value)


def worded(term: Term) -> str:
    """A term as people read it: `things[thing].where`, `state.at`."""
    root, name, *rest = term
    text = name if root == "arg" else f"state.{name}"
    for step in rest:
        text = f"{step[1:]}[{text}]" if step[0] == ">" else f"{text}.{step}"
    return text
