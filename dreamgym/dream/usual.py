"""Usual values: what entities of the same kind are like elsewhere, for those of which nothing is known here."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence

from dreamgym.state import StateSchema
from dreamgym.types import JsonObject


class UsualValues:
    """The usual values of fields that may be null, by a text field of the same entity: a fridge can be opened.

    What is most common among the entities of this world counts first, then what is in all worlds.

    Args:
        starts: what is known of the start of each world.
        schema: of the states.
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
        """How often the fields have which values together, by the kind of the entity."""
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for name, fields in self._open.items():
            part = start.get(name)
            for entity in part.values() if isinstance(part, dict) and fields else ():
                # null is a value if something else that may be null is known of the entity
                if isinstance(entity, dict) and any(entity.get(field) is not None for field in fields):
                    values = json.dumps({field: entity.get(field) for field in fields})
                    for kind in self._kinds(name, entity):
                        counts[kind][values] += 1
        return counts

    def _kinds(self, name: str, entity: JsonObject) -> list[str]:
        texts = [field for field, kind in self._schema.collections[name].fields.items() if kind == "string"]
        return [json.dumps([name, field, entity.get(field)]) for field in texts]

    def filled(self, start: JsonObject) -> JsonObject:
        """The start with the usual values in entities of which nothing that may be null is known."""
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
