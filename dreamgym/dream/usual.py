"""Usual values for entities of which nothing is known, taken from other entities of the same kind."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from dreamgym.state import StateSchema
from dreamgym.types import JsonObject


class UsualValues:
    """The usual values of fields that may be null, by a text field of the same entity: a fridge can be opened.

    The most common values among the entities of this world count first, then those of all worlds.

    Args:
        starts: the known part of the start of each world.
        schema: the schema of the states.
    """

    def __init__(self, starts: Sequence[JsonObject], schema: StateSchema) -> None:
        self._schema = schema
        self._open = {
            name: [field for field, kind in one.fields.items() if kind.endswith("?")]
            for name, one in schema.collections.items()
        }
        self._everywhere: dict[str, Counter[str]] = defaultdict(Counter)
        for start in starts:
            for kind, counts in self._counted(start).items():
                self._everywhere[kind] += counts

    def _counted(self, start: JsonObject) -> dict[str, Counter[str]]:
        """Count each combination of values of the fields, by the kind of the entity."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for name, fields in self._open.items():
            part = start.get(name)
            for entity in part.values() if isinstance(part, dict) and fields else ():
                # null counts as a value if another field of the entity that may be null is known
                if isinstance(entity, dict) and any(entity.get(field) is not None for field in fields):
                    values = json.dumps({field: entity.get(field) for field in fields})
                    for kind in self._kinds(name, entity):
                        counts[kind][values] += 1
        return counts

    def _kinds(self, name: str, entity: JsonObject) -> list[str]:
        texts = [field for field, kind in self._schema.collections[name].fields.items() if kind == "string"]
        return [json.dumps([name, field, entity.get(field)]) for field in texts]

    def filled(self, start: JsonObject) -> JsonObject:
        """The start with the usual values in entities whose fields that may be null are all unknown."""
        filled: JsonObject = dict(start)
        here = self._counted(start)
        for name, fields in self._open.items():
            part = start.get(name)
            if not isinstance(part, dict) or not fields:
                continue
            entities = dict(part)
            for identity, entity in part.items():
                if isinstance(entity, dict) and all(entity.get(field) is None for field in fields):
                    known = [part[kind] for part in (here, self._everywhere) for kind in self._kinds(name, entity)]
                    counts = next((one for one in known if one), None)
                    if counts is not None:
                        values = json.loads(max(sorted(counts), key=lambda text: counts[text]))
                        entities[identity] = {**entity, **values}
            filled[name] = entities
        return filled
