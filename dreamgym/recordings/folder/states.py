"""Explicit states for the trajectories of a folder: reported by the server, else inferred from its answers.

States are inferred only if env.toml has a `[state]`, or if a person asks for one to be derived.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from dreamgym.content import AFTER, BEFORE, told
from dreamgym.recordings.folder.env_file import is_deterministic, state_in
from dreamgym.recordings.folder.infer_states import with_inferred_states, with_states
from dreamgym.recordings.folder.runs import Say
from dreamgym.recordings.folder.schema import derive, fitting, follows, infer_schema, written_last
from dreamgym.recordings.log import Exchange
from dreamgym.state import StateSchema, as_text
from dreamgym.types import JsonObject, Trajectory


class RecordedEpisode(NamedTuple):
    """One run's trajectory, with states in words."""

    run: str
    exchanges: tuple[Exchange, ...]
    """One exchange for each transition."""
    trajectory: Trajectory


class Stated(NamedTuple):
    """Trajectories as they are written into the folder."""

    trajectories: list[Trajectory]
    schema: StateSchema | None = None
    """Schema of their states; None if the states are words."""
    write: StateSchema | None = None
    """The new `[state]` of env.toml; None if it stays as it is."""
    written: StateSchema | None = None
    """The schema that we wrote there, now or earlier, for observed.json."""

    @property
    def starts(self) -> dict[str, set[str]]:
        """The known initial states of each task's episodes."""
        found: dict[str, set[str]] = {}
        for trajectory in self.trajectories:
            if trajectory.task.initial_state:
                found.setdefault(trajectory.task.id, set()).add(trajectory.task.initial_state)
        return found


def stated(
    folder: Path, episodes: Sequence[RecordedEpisode], tools: dict[str, JsonObject], say: Say, *, derives_facts: bool
) -> Stated:
    """The trajectories, with explicit states if there are any.

    Args:
        folder: its env.toml may contain the schema of states, or switch them off.
        episodes: the episodes of its recordings.
        tools: tool definitions by name.
        say: called with each message.
        derives_facts: derive a schema from the answers if no answer reports a state.

    Raises:
        InvalidInput: `state` in env.toml is faulty.
    """
    setting, last = state_in(folder), written_last(folder)
    deterministic = is_deterministic(folder)
    words = [episode.trajectory for episode in episodes]
    if setting.is_off:
        if derives_facts:
            say("no state is derived: env.toml has state = false")
        return Stated(words)
    is_told = any(map(_tells, episodes))
    if is_told:
        trajectories = [with_told_states(one.trajectory, one.exchanges) for one in _telling(episodes, say)]
        derived = derive(trajectories)
    else:
        trajectories = words
        derived = infer_schema(words, tools) if derives_facts else None
    may_write = follows(setting, last) and (is_told or derives_facts)
    schema = derived if may_write else setting.schema
    if derives_facts and not may_write:
        say("[state] in env.toml was changed by hand and stays as it is")
    if schema is None:
        if derives_facts:
            say("no state is derived: this needs two entities with ids, each shown by at least two answers")
        return Stated(words, written=last)
    if words and not is_told:
        if derives_facts and may_write:
            names = ", ".join(schema.collections)
            say(f"[state] in env.toml was derived from the answers ({names}): review it before you use it")
        for name in (name for name, collection in schema.collections.items() if collection.complete):
            say(
                f"[state.{name}] in env.toml has complete = true, but the server reports no states: an entity that no "
                "answer shows counts as nonexistent; set complete = false if it may exist"
            )
        trajectories = with_inferred_states(words, schema, tools, deterministic=deterministic)
    runs = {episode.trajectory.id: episode.run for episode in episodes}
    fit = [fitting(trajectory, schema, runs[trajectory.id], say) for trajectory in trajectories]
    usable = [one for one in fit if one is not None]
    return Stated(usable, schema, derived, derived) if may_write else Stated(usable, schema, None, last)


def _tells(episode: RecordedEpisode) -> bool:
    """True if an answer reports the state that its call led to."""
    return any(told(exchange.result or {}, AFTER) is not None for exchange in episode.exchanges)


def _telling(episodes: Iterable[RecordedEpisode], say: Say) -> list[RecordedEpisode]:
    """The episodes whose answers report states; the others would have states of another kind."""
    telling = []
    for episode in episodes:
        if _tells(episode):
            telling.append(episode)
        else:
            say(
                f"{episode.run}: left out, because the server reports no states in this run, but does in others; "
                "set `state = false` in env.toml to ignore states"
            )
    return telling


def with_told_states(trajectory: Trajectory, exchanges: Sequence[Exchange]) -> Trajectory:
    """The trajectory with the states that the answers report; a state that is not known is an empty text.

    A missing state is taken from the calls before and after it. An error without a state, such as a protocol error,
    has changed nothing.

    Args:
        trajectory: the trajectory of these exchanges.
        exchanges: one exchange for each transition.
    """
    answers = [exchange.result or {} for exchange in exchanges]
    before = [told(answer, BEFORE) for answer in answers]
    after = [told(answer, AFTER) for answer in answers]
    for place, transition in enumerate(trajectory.transitions):
        if before[place] is None and place > 0:
            before[place] = after[place - 1]
        if after[place] is None and place + 1 < len(before):
            after[place] = before[place + 1]
        if after[place] is None and transition.result.is_error:
            after[place] = before[place]
        if before[place] is None and transition.result.is_error:
            before[place] = after[place]
    steps = zip(trajectory.transitions, before, after, strict=True)
    transitions = tuple(with_states(transition, _text(start), _text(end)) for transition, start, end in steps)
    start = transitions[0].state
    task = trajectory.task.model_copy(update={"initial_state": start}) if start else trajectory.task
    return trajectory.model_copy(update={"transitions": transitions, "task": task})


def _text(state: JsonObject | None) -> str:
    return "" if state is None else as_text(state)
