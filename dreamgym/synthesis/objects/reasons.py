"""Facts that refusals reveal: if a call was refused that the rules allow, the reason is a fact that was not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dreamgym.state import StateSchema
from dreamgym.synthesis.objects.calls import ObjectCall
from dreamgym.synthesis.objects.conditions import Has, Not
from dreamgym.synthesis.objects.rules import ObjectRules
from dreamgym.synthesis.objects.search import changes_of, removed_by
from dreamgym.synthesis.objects.terms import found


class MissingFact(NamedTuple):
    """An item that a list of an entity must have."""

    world: str
    collection: str
    entity: str
    field: str
    item: str


def missing_facts(calls: Sequence[ObjectCall], rules: ObjectRules, schema: StateSchema) -> Iterator[MissingFact]:
    """The facts that explain refusals. A refusal that several facts could explain yields none.

    Only a list that no call changes can have had the item all along. For example, two places are at one spot if the way
    from one to the other is refused.

    Args:
        calls: recorded calls.
        rules: rules of their tools.
        schema: schema of the states.
    """
    changed = {(collection, field) for call in calls for (collection, _, field), _ in changes_of(call, schema)}
    changed |= {(collection, field) for call in calls for collection, _, field in removed_by(call, schema)}
    for call in calls:
        tool = rules.tools.get(call.tool) if call.is_error else None
        outcomes = tool.outcomes if tool is not None else ()
        outcome = next((one for one in outcomes if one.holds(call.before, call.arguments)), None)
        asked = [one.condition for one in outcome.conditions if isinstance(one, Not)] if outcome is not None else []
        reasons = [one for one in asked if isinstance(one, Has) and (one.items[-2][1:], one.items[-1]) not in changed]
        if len(reasons) == 1:
            (reason,) = reasons
            entity = found(reason.items[:-2], call.before, call.arguments)
            item = found(reason.one, call.before, call.arguments)
            if isinstance(entity, str) and isinstance(item, str):
                yield MissingFact(call.world, reason.items[-2][1:], entity, reason.items[-1], item)
