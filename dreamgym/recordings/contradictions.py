"""Recorded calls that contradict each other: their outcomes differ, but everything that may decide them is the same.

The reward and the end also depend on the task's goal. In a deterministic environment with a complete explicit state,
the state and the call decide the rest. Otherwise the task's world, the start of the episode and all calls up to this
one do. A state that shows only a part of the world, such as the last answer of a text game, may be the same after
different calls and rightly lead to different outcomes.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import parsed
from dreamgym.types import Trajectory, Transition

SHOWN = 3
_MAX_CHARACTERS = 80

Place = tuple[str, int]
"""A trajectory's id and the number of a call in it, counted from 1."""
Seen = tuple[Place, str, Transition]
"""A call's place, the goal of its task, and the call."""


def contradicted(spec: EnvironmentSpec, trajectories: Iterable[Trajectory]) -> frozenset[Place]:
    """The calls that another recording contradicts: no prediction could be right for both."""
    groups: dict[tuple[str, object, str], list[Seen]] = defaultdict(list)
    for key, seen in _keyed(spec, trajectories):
        groups["answer", key, ""].append(seen)
        groups["verdict", key, seen[1]].append(seen)  # of another goal, the reward and the end may be others
    return frozenset(
        place
        for (kind, *_), group in groups.items()
        if len({_OUTCOMES[kind](transition) for *_, transition in group}) > 1
        for place, *_ in group
    )


def contradictions(spec: EnvironmentSpec, trajectories: Iterable[Trajectory]) -> list[str]:
    """One sentence for each call whose outcome differs from the first one recorded under the same conditions."""
    first: dict[object, Seen] = {}
    found = []
    for key, seen in _keyed(spec, trajectories):
        for kind, group in (("answer", key), ("verdict", (key, seen[1]))):
            before = first.setdefault((kind, group), seen)
            if _OUTCOMES[kind](before[2]) != _OUTCOMES[kind](seen[2]):
                found.append(_sentence(before, seen))
                break
    return found


def summary(found: Sequence[str]) -> list[str]:
    """The number of contradictions and the first few of them, one line each; empty if there are none."""
    if not found:
        return []
    what = "1 call contradicts" if len(found) == 1 else f"{len(found)} calls contradict"
    return [
        f"{what} an earlier one in the same state, although env.toml has deterministic = true; all of them are kept",
        *found[:SHOWN],
        *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []),
    ]


def _keyed(spec: EnvironmentSpec, trajectories: Iterable[Trajectory]) -> Iterator[tuple[object, Seen]]:
    """Every call with a key of all that may decide its outcome."""
    complete = (
        spec.deterministic and spec.state is not None and all(one.complete for one in spec.state.collections.values())
    )
    for trajectory in trajectories:
        calls = hashlib.sha256()
        for number, transition in enumerate(trajectory.transitions, start=1):
            action = transition.action.canonical()
            calls.update(f"{len(action)} {action}".encode())
            key: tuple[object, ...] = (trajectory.task.world, trajectory.task.initial_state or "", calls.digest())
            if complete and parsed(transition.state) is not None:
                key = (transition.state, action)
            yield key, ((trajectory.id, number), trajectory.task.goal, transition)


def _answer(transition: Transition) -> tuple[object, ...]:
    return transition.next_state, transition.result.observation, transition.result.is_error


def _verdict(transition: Transition) -> tuple[object, ...]:
    return transition.result.reward, transition.result.terminated


_OUTCOMES: Mapping[str, Callable[[Transition], tuple[object, ...]]] = {"answer": _answer, "verdict": _verdict}


def _sentence(first: Seen, second: Seen) -> str:
    ((one, step), _, before), ((other, number), _, after) = first, second
    answers = _short(before.result.observation), _short(after.result.observation)
    if answers[0] != answers[1]:
        how = f"answered {answers[0]} and then {answers[1]}"
    else:
        how = f"answered {answers[0]} both times, but the rest of the outcome differs"
    return f"{one}, call {step}, and {other}, call {number}: {_short(before.action.canonical())} {how}"


def _short(text: str) -> str:
    return repr(text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}...")
