"""The order in which every buffer returns retrieved transitions.

These functions are pure: a buffer finds candidates, and `rank` decides. A buffer that drops candidates earlier must use
the same order (retrieval.sql repeats it).
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple
from uuid import UUID

from dreamgym.embedding import trigram_cosines
from dreamgym.replay.buffer import GROUNDED, Retrieval
from dreamgym.replay.keys import SOURCE_CODES, Key
from dreamgym.types import Source, Transition

EXACT_SCORE = 1.5
DIGITS = 5
"""Decimals of a score that order similar transitions. The others depend on how a buffer adds floats up."""
SIMILAR_KEYS = 64
"""How many of the nearest keys, by cosine, are ranked again with the lexical term."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One stored transition as seen in one world."""

    id: UUID
    outcome: UUID
    """Equal for transitions that show the same action, next state and observation."""
    world: str
    source: Source
    agreement: int
    """Number of states seen by the running episode that belong to this world."""
    score: float
    exact: bool
    goal: UUID
    """Id of the goal that the transition was recorded for (keys.goal_id)."""
    same_goal: bool
    """True if the transition was recorded for the goal of the query, perhaps besides others. If a recording contains
    it, dreams that contain it too do not count."""
    recorded: bool
    """True if a recording contains the transition, False if only dreams do."""
    rivals: tuple[UUID, ...] = ()
    """Ids of the other recorded transitions with the same outcome, of the same world and for the goal of the query."""


class Likeness(NamedTuple):
    """How like the query a candidate is; smaller is better."""

    similar: bool
    score: float


class Standing(NamedTuple):
    """Sort key of a candidate among those of the same likeness; smaller is better."""

    dreamed: bool
    disagreement: int
    foreign: bool
    another_goal: bool
    distance: float
    draw: str
    world: str
    source: int
    id: UUID
    goal: UUID


def rank(candidates: Iterable[Candidate], retrieval: Retrieval) -> Sequence[Candidate]:
    """The best k, best first, no two with the same outcome.

    A transition that was seen in several worlds is represented by the world that agrees best; worlds in which it was
    only dreamed count if it was never recorded. If its outcome was also seen for the query's goal, in a state as
    similar, the reward and the end seen for that goal are used; those of a dream are not used for a recording.
    Scores of similar transitions count as equal if they agree to two decimals.
    """
    alike: defaultdict[Likeness, list[Candidate]] = defaultdict(list)
    for candidate in candidates:
        alike[Likeness(not candidate.exact, -round(candidate.score, 2))].append(candidate)
    best: dict[UUID, Candidate] = {}
    worlds: defaultdict[UUID, dict[UUID, str]] = defaultdict(dict)  # of recordings for the query's goal, by outcome
    for likeness in sorted(alike):
        if len(best) >= retrieval.k:
            break
        for candidate in sorted(alike[likeness], key=lambda candidate: _standing(candidate, retrieval)):
            first = best.setdefault(candidate.outcome, candidate)
            is_as_similar = candidate.score == first.score
            if is_as_similar and candidate.same_goal and not first.same_goal and candidate.recorded >= first.recorded:
                best[candidate.outcome] = replace(first, id=candidate.id, goal=candidate.goal, same_goal=True)
            if candidate.exact and candidate.same_goal and candidate.recorded:
                worlds[candidate.outcome].setdefault(candidate.id, candidate.world)
    shown = list(best.values())[: retrieval.k]
    return [
        replace(one, rivals=_rivals(one.id, worlds[one.outcome])) if one.outcome in worlds else one for one in shown
    ]


def is_disputed(shown: Transition, rivals: Iterable[Transition]) -> bool:
    """True if a rival (see `Candidate.rivals`) ended otherwise, or only one of the two was a success."""

    def end(transition: Transition) -> tuple[bool, bool]:
        return transition.result.terminated, transition.result.reward > 0

    return any(end(rival) != end(shown) for rival in rivals)


def _rivals(identity: UUID, worlds: Mapping[UUID, str]) -> tuple[UUID, ...]:
    world = worlds.get(identity)
    return tuple(other for other, its_world in worlds.items() if other != identity and its_world == world)


def _standing(candidate: Candidate, retrieval: Retrieval) -> Standing:
    return Standing(
        dreamed=candidate.source not in GROUNDED,
        disagreement=-candidate.agreement,
        foreign=candidate.world != retrieval.world,
        another_goal=not candidate.same_goal,
        distance=-round(candidate.score, DIGITS),
        draw=draw(retrieval.seed, str(candidate.id) if retrieval.history is None else candidate.world),
        world=candidate.world,
        source=SOURCE_CODES[candidate.source],
        id=candidate.id,
        goal=candidate.goal,
    )


@lru_cache(maxsize=2**16)
def draw(seed: int, name: str) -> str:
    """A random-looking text that orders names by `seed`. The database computes the same: md5(seed || ':' || name)."""
    return hashlib.md5(f"{seed}:{name}".encode(), usedforsecurity=False).hexdigest()


def seen_states(retrieval: Retrieval) -> frozenset[str]:
    """The states that the running episode has seen so far; empty if its history is withheld."""
    if retrieval.history is None:
        return frozenset()
    initial = [retrieval.initial_state] if retrieval.initial_state else []
    return frozenset(initial + [transition.next_state for transition in retrieval.history])


def similarities(asked: Key, keys: Sequence[Key], cosines: Sequence[float]) -> list[float]:
    """The scores of stored keys: cosine of the vectors plus half the trigram cosine of the texts."""
    spelled = trigram_cosines("\n".join(asked), ["\n".join(key) for key in keys])
    return [cosine + 0.5 * alike for cosine, alike in zip(cosines, spelled, strict=True)]
