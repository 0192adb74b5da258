"""The explicit state: what an environment knows, as typed JSON, and the only ways in which it may change.

A state is an object of collections and single values: `{"orders": {"O-1": {"order_id": "O-1", "status": "paid"}},
"clock": 3}`. A collection holds entities by their id. In transitions a state is the text that `as_text` makes of it,
so that equal states are equal texts. Paths are JSON pointers (RFC 6901): `/orders/O-1/status`.
"""

from dreamgym.state.answers import shown_in, with_facts
from dreamgym.state.changes import ImpossibleChange, Operation, apply, changed_fields, difference
from dreamgym.state.json_values import (
    as_object,
    equal,
    fields,
    is_number,
    leaves,
    mentioned,
    natural,
    objects,
    pointer,
    same,
    unescaped,
)
from dreamgym.state.schema import Collection, StateSchema, entities, identity_of
from dreamgym.state.value import State, as_text, parsed, relevant

__all__ = [
    "Collection",
    "ImpossibleChange",
    "Operation",
    "State",
    "StateSchema",
    "apply",
    "as_object",
    "as_text",
    "changed_fields",
    "difference",
    "entities",
    "equal",
    "fields",
    "identity_of",
    "is_number",
    "leaves",
    "mentioned",
    "natural",
    "objects",
    "parsed",
    "pointer",
    "relevant",
    "same",
    "shown_in",
    "unescaped",
    "with_facts",
]
