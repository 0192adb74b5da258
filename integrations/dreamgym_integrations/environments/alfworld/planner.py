"""The package's planner, on ALFWorld's problems reduced to the things that a task needs.

Its search is blind: with all cabinets of a kitchen, a task to move two things took minutes and a gigabyte. A plan for
the narrowed problem is also a plan for the whole one, and takes 0.03 to 0.15 CPU seconds. Runs in a worker process.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

FEW = 3
"""Most things, and most places, that are kept of each kind in the goal."""
_APPLIANCES = {"ishot": "MicrowaveType", "iscool": "FridgeType", "isclean": "SinkBasinType"}
_KIND = re.compile(r"\((objectType|receptacleType) (\S+) (\w+)\)")
_INSIDE = re.compile(r"\(inReceptacle (\S+) (\S+)\)")
_THING = re.compile(r"\b(?!loc_bar)\w+_bar_\w+")


def plan(domain: str, problem: str, library: Any) -> list[str]:
    """The planner's operators from the start to the goal; empty if the narrowed problem has no solution."""
    import fast_downward

    _, translated = fast_downward.pddl2sas(domain, narrowed(problem), optimize=True)
    if not library.solve_sas(translated.encode(), False):
        return []
    operators = (fast_downward.Operator * library.get_last_plan_length())()
    library.get_last_plan(operators)
    return [operator.name for operator in operators]


def narrowed(problem: str) -> str:
    """The problem with only a few things of the kinds in its goal, the places that hold them, and the appliances."""
    start, mark, goal = problem.partition("(:goal")
    kinds = {kind for _, _, kind in _KIND.findall(goal)}
    kinds |= {place for change, place in _APPLIANCES.items() if f"({change} " in goal.lower()}
    holders = dict(_INSIDE.findall(start))
    kept: set[str] = set()
    count: Counter[str] = Counter()
    for predicate, thing, kind in _KIND.findall(start):
        if kind in kinds and count[kind] < FEW and (thing in holders or predicate == "receptacleType"):
            count[kind] += 1
            kept |= {thing, holders.get(thing, thing)}
    lines = [line for line in start.splitlines() if "(" not in line or kept.issuperset(_THING.findall(line))]
    return "\n".join(lines) + mark + goal
