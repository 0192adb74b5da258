"""The steps of a run folder: search by text, and the map of which actions are recorded in which states.

The answers are those that a store gives for the same episodes (`dreamgym.replay.postgres.search`, `coverage`).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

from dreamgym.errors import UnknownEpisode
from dreamgym.replay.keys import transition_id
from dreamgym.replay.listing import EpisodeFilter
from dreamgym.replay.postgres.coverage import ACTIONS, FEW_TOOLS, STATES, CoverageMap, ToolCoverage
from dreamgym.replay.postgres.listing import Recorded
from dreamgym.replay.postgres.search import FOUND, LOOKED, Found
from dreamgym.types import Source
from dreamgym_server.view.folders import EpisodeFile, RunFolder
from dreamgym_server.view.parameters import whole


class FolderSteps:
    """The steps of the episodes of a run folder, for reading."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._maps: dict[str, tuple[object, CoverageMap | None]] = {}

    def holding(self, chosen: EpisodeFilter, text: str, after: str | None = None) -> Found:
        """A page of the steps whose state, call, answer or reasoning contains a text, newest episodes first.

        Upper and lower case are the same. `tier` is a condition on the step itself. Raises InvalidInput if `after` is
        not a place in a search.
        """
        begins = whole({"after": after or ""}, "after", 0)
        episodes = [
            (file, one.id, one.outcome.steps)
            for file in self._folder.episode_files()
            for one in reversed(file.episodes.values())
            if one.passes(chosen)
        ]
        looked, found = 0, dict[str, Recorded]()
        for number, (file, episode, steps) in enumerate(episodes[begins:], start=begins + 1):
            looked += steps
            for one in _steps_holding(file, episode, chosen, text):
                found.setdefault(one.id, one)
            if (len(found) >= FOUND or looked >= LOOKED) and number < len(episodes):
                return Found(recorded=tuple(found.values()), looked=looked, next=str(number))
        return Found(recorded=tuple(found.values()), looked=looked, next=None)

    def coverage(self, env: str) -> CoverageMap | None:
        """The map of an environment; None if the folder has no steps of it."""
        files = self._folder.episode_files()
        stamp = [(file.place, file.stamp) for file in files]
        if self._maps.get(env, (None, None))[0] != stamp:
            self._maps[env] = (stamp, _map_of(_keys(files, env)))
        return self._maps[env][1]


def _steps_holding(file: EpisodeFile, episode: str, chosen: EpisodeFilter, text: str) -> Iterator[Recorded]:
    wanted, escaped = text.lower(), json.dumps(text, ensure_ascii=False)[1:-1].lower()
    try:
        if text.isascii() and escaped not in file.text(episode).lower():  # most are excluded without being parsed
            return
        trajectory = file.trajectory(episode)
    except (OSError, UnknownEpisode):  # the file was changed meanwhile
        return
    for step, transition in enumerate(trajectory.transitions, start=1):
        if chosen.tier not in {None, transition.provenance.tier}:
            continue
        action = transition.action
        texts = (transition.state, action.name, transition.result.observation, transition.next_state)
        arguments = action.canonical().lower()
        if any(wanted in one.lower() for one in (*texts, transition.reasoning)) or escaped in arguments:
            yield Recorded(
                id=str(transition_id(transition)),
                place=file.place,
                episode=episode,
                step=step,
                transition=transition,
                instruction=trajectory.task.instruction,
                source=trajectory.source,
            )


def _keys(files: list[EpisodeFile], env: str) -> dict[tuple[str, str, str], bool]:
    """The pairs of state and action, with the tool; True if one was recorded and not only dreamed."""
    found: dict[tuple[str, str, str], bool] = {}
    for file in files:
        for one in file.episodes.values():
            if one.task.env != env:
                continue
            is_recorded = one.source is not Source.SYNTHETIC
            try:
                steps = file.trajectory(one.id).transitions
            except UnknownEpisode:  # the file was changed meanwhile
                continue
            for step in steps:
                key = (step.state, step.action.name, step.action.canonical())
                found[key] = found.get(key, False) or is_recorded
    return found


def _map_of(keys: dict[tuple[str, str, str], bool]) -> CoverageMap | None:
    if not keys:
        return None
    tools: dict[str, list[tuple[str, bool]]] = {}
    for (state, tool, _), is_recorded in keys.items():
        tools.setdefault(tool, []).append((state, is_recorded))
    by_action = len(tools) <= FEW_TOOLS
    recorded, dreamed = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for (state, tool, canonical), is_recorded in keys.items():
        (recorded if is_recorded else dreamed)[state, canonical if by_action else tool] += 1
    by_state, by_column = Counter[str](), Counter[str]()
    for (state, column), count in recorded.items():
        by_state[state] += count
        by_column[column] += count
    states, columns = _first(by_state, STATES), _first(by_column, ACTIONS)
    return CoverageMap(
        tools=tuple(
            ToolCoverage(
                tool=tool,
                keys=len(found),
                recorded=sum(is_recorded for _, is_recorded in found),
                states=len({state for state, _ in found}),
            )
            for tool, found in sorted(tools.items(), key=lambda one: (-len(one[1]), one[0]))
        ),
        states=states,
        states_in_all=len({state for state, _, _ in keys}),
        actions=columns,
        recorded=tuple(tuple(recorded[state, column] for column in columns) for state in states),
        dreamed=tuple(tuple(dreamed[state, column] for column in columns) for state in states),
    )


def _first(counts: Counter[str], most: int) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda name: (-counts[name], name))[:most])
