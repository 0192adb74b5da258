"""Which tools only read: they say so, or no change that was seen needs them for an explanation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from dreamgym.recordings.folder.shown import facts_in
from dreamgym.state import StateSchema, mentioned
from dreamgym.types import JsonObject, Trajectory


def reads_in(
    trajectories: Sequence[Trajectory], schema: StateSchema, tools: Mapping[str, JsonObject]
) -> frozenset[str]:
    """The recorded tools that change nothing.

    `readOnlyHint` counts. Of the other tools those are writes that explain the changes: again and again the one with
    the largest share of its calls between two different values of a fact; of equal ones all.
    """
    hints = hints_of(tools)
    calls = Counter(step.action.name for one in trajectories for step in one.transitions)
    writes = {name for name in calls if hints.get(name) is False}
    blameless = {name for name, is_read in hints.items() if is_read}
    changes = [
        {(number, step) for step in between}
        for number, trajectory in enumerate(trajectories)
        for between in _changes(trajectory, schema, blameless)
    ]

    def names(between: set[tuple[int, int]]) -> list[str]:
        return [trajectories[number].transitions[step].action.name for number, step in between]

    while unexplained := [between for between in changes if between and writes.isdisjoint(names(between))]:
        blamed = Counter(names(set().union(*unexplained)))
        most = max(count / calls[name] for name, count in blamed.items())
        writes |= {name for name, count in blamed.items() if count / calls[name] == most}
    return frozenset(calls) - writes


def hints_of(tools: Mapping[str, JsonObject]) -> dict[str, bool]:
    """What tools say of themselves: True for a read, False for none."""
    return {name: hint for name, tool in tools.items() if (hint := _hint(tool)) is not None}


def _changes(trajectory: Trajectory, schema: StateSchema, blameless: set[str]) -> Iterator[set[int]]:
    """The calls from after one value of a fact to the next one, which differs, that may be to blame.

    Where some of these calls name the entity, the others are not.
    """
    named = [mentioned([step.action.arguments, step.result.observation]) for step in trajectory.transitions]
    tools = [step.action.name for step in trajectory.transitions]
    for (_, identity, _), shown in facts_in(trajectory, schema).items():
        for one, other in pairwise(shown):
            if one.value != other.value:
                steps = [step for step in range(one.step + 1, other.step + 1) if tools[step] not in blameless]
                naming = [step for step in steps if identity in named[step]]
                yield set(naming or steps)


def _hint(tool: JsonObject) -> bool | None:
    annotations = tool.get("annotations")
    hint = annotations.get("readOnlyHint") if isinstance(annotations, dict) else None
    return hint if isinstance(hint, bool) else None
