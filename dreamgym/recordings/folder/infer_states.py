"""Infers explicit states of trajectories from the facts that answers show, for servers that do not report states.

A state contains the facts that were known, and those that later answers show to have been true then. A fact holds
backwards from the answer that shows it to the last call that may have changed it, and forwards until an answer shows
another value. Nothing else is concluded. A call may change the entities that it names in its arguments or its answer,
and the entities that name them or are named by them. A call that names no known entity may change everything. A read
or a refused call changes nothing. If a tool without a read-only hint shows an entity whose id is not in the arguments,
the entity may be new.

The tools that only read are inferred too: they have a read-only hint, or no observed change needs them as its cause.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pydantic import JsonValue

from dreamgym.state import StateSchema, as_text, entities, mentioned, shown_in
from dreamgym.tools import hints_of
from dreamgym.types import JsonObject, StepResult, Trajectory, Transition

Place = tuple[str, str, str]
"""The place of a fact: collection, id, field."""
Facts = dict[Place, JsonValue]


class ShownValue(NamedTuple):
    """The value of a fact in one answer."""

    step: int
    value: JsonValue


def answered(result: StepResult) -> JsonValue:
    """An answer as JSON; None for an error, or an answer in words."""
    return None if result.is_error else shown_in(result)


def facts_in(trajectory: Trajectory, schema: StateSchema) -> dict[Place, list[ShownValue]]:
    """Every fact that answers show, in their order. A value that the schema does not allow is not a fact."""
    found: dict[Place, list[ShownValue]] = defaultdict(list)
    for step, transition in enumerate(trajectory.transitions):
        for name, identity, entity in entities(answered(transition.result), schema):
            for field, value in entity.items():
                alone: JsonObject = {schema.collections[name].key: entity[schema.collections[name].key], field: value}
                if schema.fault_of({name: {identity: alone}}) is None:
                    found[name, identity, field].append(ShownValue(step, value))
    return found


def read_only_tools(
    trajectories: Sequence[Trajectory], schema: StateSchema, tools: Mapping[str, JsonObject]
) -> frozenset[str]:
    """The recorded tools that change nothing.

    A tool's `readOnlyHint` decides. Among the other tools, those that explain the observed changes of facts are writes.
    While changes are unexplained, the tool with the largest share of its calls between the two values of such a change
    counts as a write; of several tools with equal shares, all do.
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


def _changes(trajectory: Trajectory, schema: StateSchema, blameless: set[str]) -> Iterator[set[int]]:
    """For each change of a fact, the calls that may have caused it.

    These are the calls between the answers with the old and the new value, and that of the new one. If some of them
    name the entity, only those are yielded.
    """
    named = [mentioned([step.action.arguments, step.result.observation]) for step in trajectory.transitions]
    tools = [step.action.name for step in trajectory.transitions]
    for (_, identity, _), shown in facts_in(trajectory, schema).items():
        for one, other in pairwise(shown):
            if one.value != other.value:
                steps = [step for step in range(one.step + 1, other.step + 1) if tools[step] not in blameless]
                naming = [step for step in steps if identity in named[step]]
                yield set(naming or steps)


def with_inferred_states(
    trajectories: Sequence[Trajectory],
    schema: StateSchema,
    tools: Mapping[str, JsonObject],
    *,
    deterministic: bool = False,
) -> list[Trajectory]:
    """The trajectories with what is known before and after each call, and at the start of the episode.

    Args:
        trajectories: trajectories whose states are words.
        schema: schema of the entities; collections need not be complete.
        tools: tool definitions by name.
        deterministic: a task always starts in the same world, so that its recordings complete each other's start.
    """
    reads = read_only_tools(trajectories, schema, tools)
    sure = frozenset(name for name, is_read in hints_of(tools).items() if is_read)
    found = [_Episode(trajectory, schema, reads, sure) for trajectory in trajectories]
    starts: dict[str, Facts] = defaultdict(dict)
    doubtful: dict[str, set[Place]] = defaultdict(set)
    if deterministic:
        for episode in found:
            world = episode.trajectory.task.world
            for place, value in episode.start.items():
                if starts[world].setdefault(place, value) != value:
                    doubtful[world].add(place)
    known = {world: {p: v for p, v in start.items() if p not in doubtful[world]} for world, start in starts.items()}
    return [episode.stated(known.get(episode.trajectory.task.world, {})) for episode in found]


class _Episode:
    """One trajectory, and the states in which each of its facts was true. State k is the one before call k."""

    def __init__(
        self, trajectory: Trajectory, schema: StateSchema, reads: frozenset[str], sure: frozenset[str]
    ) -> None:
        self.trajectory, self._schema, self._sure = trajectory, schema, sure
        self._shown = facts_in(trajectory, schema)
        self._links = self._linked()
        refused = [(n, one) for n, one in enumerate(trajectory.transitions) if one.result.is_error]
        self._refused = {name: n for n, one in reversed(refused) for name in mentioned(one.action.arguments)}
        """The first refused call that names an id."""
        self._writes = {
            step: self._touched(transition)
            for step, transition in enumerate(trajectory.transitions)
            if transition.action.name not in reads and not transition.result.is_error
        }

    @property
    def start(self) -> Facts:
        """The facts that the answers show to have been true from the start."""
        return {place: shown[0].value for place, shown in self._shown.items() if self._first(place, shown[0]) == 0}

    def stated(self, start: Facts) -> Trajectory:
        """The trajectory with its inferred states.

        Args:
            start: facts that were true from the start, besides those that its own answers show.
        """
        steps = self.trajectory.transitions
        states: list[Facts] = [{} for _ in range(len(steps) + 1)]
        for place in self._shown.keys() | start.keys():
            for first, value in self._values(place, start):
                for state in states[first:]:
                    state[place] = value
        texts = [as_text(self._state(state)) for state in states]
        transitions = tuple(
            with_states(step, before, after) for step, before, after in zip(steps, texts, texts[1:], strict=False)
        )
        task = self.trajectory.task.model_copy(update={"initial_state": texts[0]})
        return self.trajectory.model_copy(update={"transitions": transitions, "task": task})

    def _values(self, place: Place, start: Facts) -> list[tuple[int, JsonValue]]:
        """The values of a fact, each with the first state that has it."""
        values: list[tuple[int, JsonValue]] = [(0, start[place])] if place in start else []
        last = 0
        for shown in self._shown.get(place, ()):
            if not values:
                values.append((self._first(place, shown), shown.value))
            elif shown.value != values[-1][1]:
                first = self._since(place, shown.step, last)
                values.append((first if first > last else self._latest(shown, last), shown.value))
            last = shown.step + 1
        return values

    def _first(self, place: Place, shown: ShownValue) -> int:
        """The first state that is known to have had a fact, given the answer that showed it first."""
        action = self.trajectory.transitions[shown.step].action
        was_refused = self._refused.get(place[1], shown.step) < shown.step  # it may not have existed then
        if action.name not in self._sure and (was_refused or place[1] not in mentioned(action.arguments)):
            return shown.step + 1
        return self._since(place, shown.step, 0)

    def _since(self, place: Place, step: int, last: int) -> int:
        """The state after the last call in `last` to `step` that may have changed the fact; `last` if there is none."""
        touching = (write for write, about in self._writes.items() if last <= write <= step)
        return max((write + 1 for write in touching if self._may_change(write, place)), default=last)

    def _latest(self, shown: ShownValue, last: int) -> int:
        """The state after the last write since `last`, up to the answer; if there is none, the one after the answer."""
        return max((write + 1 for write in self._writes if last <= write <= shown.step), default=shown.step + 1)

    def _may_change(self, write: int, place: Place) -> bool:
        return not self._writes[write] or place[1] in self._writes[write]

    def _touched(self, transition: Transition) -> frozenset[str]:
        """Ids that a call names, and those linked to them."""
        said = mentioned([transition.action.arguments, answered(transition.result) or transition.result.observation])
        named = said & self._links.keys()
        return frozenset(named).union(*(self._links[identity] for identity in named))

    def _linked(self) -> dict[str, frozenset[str]]:
        """Each id of the episode with the ids that its entity names, or whose entities name it."""
        links: dict[str, set[str]] = {identity: set() for _, identity, _ in self._shown}
        for (_, identity, _), found in self._shown.items():
            for other in mentioned([shown.value for shown in found]) & links.keys():
                links[identity].add(other)
                links[other].add(identity)
        return {identity: frozenset(others) for identity, others in links.items()}

    def _state(self, facts: Facts) -> JsonObject:
        state: dict[str, dict[str, JsonObject]] = {name: {} for name in self._schema.collections}
        for (name, identity, field), value in facts.items():
            state[name].setdefault(identity, self._bare(name, identity))[field] = value
        return {name: dict(found) for name, found in state.items()}

    def _bare(self, name: str, identity: str) -> JsonObject:
        """An entity of which only the id is known."""
        key = self._schema.collections[name].key
        shown = self._shown.get((name, identity, key))
        return {key: shown[0].value if shown else identity}


def with_states(transition: Transition, before: str, after: str) -> Transition:
    """The transition between these states."""
    result = transition.result.model_copy(update={"info": {**transition.result.info, "state": after}})
    return transition.model_copy(update={"state": before, "next_state": after, "result": result})
