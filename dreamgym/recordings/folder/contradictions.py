"""The same call in the same state with another outcome: where an environment is declared deterministic, a lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.types import Trajectory, Transition

SHOWN = 3
_MAX_CHARACTERS = 80

Seen = tuple[str, int, Transition]
"""Trajectory, number of the call, and what it was."""


def contradictions(spec: EnvironmentSpec, trajectories: Iterable[Trajectory]) -> list[str]:
    """One sentence for each transition that contradicts an earlier one of its world.

    A state that is told whole is all that there is to a world, so that trajectories of different worlds are compared.
    """
    is_whole = spec.state is not None and all(one.complete for one in spec.state.collections.values())
    first: dict[tuple[str, str, str], Seen] = {}
    found = []
    for trajectory in trajectories:
        for number, transition in enumerate(trajectory.transitions, start=1):
            place = ("" if is_whole else trajectory.world_id, transition.state, transition.action.canonical())
            seen: Seen = (trajectory.id, number, transition)
            if _outcome(first.setdefault(place, seen)[2]) != _outcome(transition):
                found.append(_sentence(first[place], seen))
    return found


def summary(found: Sequence[str]) -> list[str]:
    """Their number and the first few; nothing where there are none."""
    if not found:
        return []
    what = "1 call contradicts" if len(found) == 1 else f"{len(found)} calls contradict"
    return [
        f"{what} an earlier one in the same state, although env.toml says deterministic = true; all stay stored",
        *found[:SHOWN],
        *([f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []),
    ]


def _outcome(transition: Transition) -> tuple[object, ...]:
    result = transition.result
    return transition.next_state, result.observation, result.is_error, result.reward, result.terminated


def _sentence(first: Seen, second: Seen) -> str:
    (one, step, before), (other, number, after) = first, second
    answers = _short(before.result.observation), _short(after.result.observation)
    if answers[0] != answers[1]:
        how = f"answered {answers[0]} and then {answers[1]}"
    else:
        how = f"answered {answers[0]} both times, but what came of it differs"
    return f"{one}, call {step}, and {other}, call {number}: {_short(before.action.canonical())} {how}"


def _short(text: str) -> str:
    return repr(text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 3]}...")
