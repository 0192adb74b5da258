"""A dream of objects: an environment of words, played on the explicit states that its reader makes of recordings.

It is for an environment whose actions and answers are texts and that has a reader (`dreamgym.reading`). Once per newest
recording it learns from all recordings what each tool does (`dreamgym.synthesis.objects`) and how each recorded world
was at the start (`dreamgym.dream.hindsight`). A step reads the action, runs the rules on the state and puts the answer
into words; it asks neither buffer nor model. If the rules have no answer, another tier answers, and its answer is read
into the state.

The states of transitions stay texts: the last observation. The differences from the start of the recorded world are in
`info["objects"]` of a step's result, so that an episode can be continued elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pydantic import JsonValue

from dreamgym.dream.hindsight import KnownWorld, known_worlds
from dreamgym.dream.model import Prediction
from dreamgym.goals import Goals
from dreamgym.reading import Reader
from dreamgym.schema import Schema, schema_of
from dreamgym.state import natural
from dreamgym.synthesis.objects import MissingFact, ObjectRules, learn_rules, missing_facts
from dreamgym.types import JsonObject, Provenance, StepResult, Task, Tier, ToolCall, Trajectory, Transition

logger = logging.getLogger(__name__)

OBJECTS = "objects"
"""Key in a result's `info`: the differences from the start of the recorded world."""
WORLD = "world"
"""Key among these differences: the id of the recorded world."""


@dataclass(frozen=True)
class ObjectWorlds:
    """The rules and the worlds that the recordings of an environment show.

    Args:
        reader: the environment's reader.
        goals: the environment's goals; None: only a task with a check of its own is played.
        rules: what each tool does.
        worlds: the recorded worlds by their id, with those of their recorded steps that no rule answers.
    """

    reader: Reader
    goals: Goals | None
    rules: ObjectRules
    worlds: Mapping[str, KnownWorld]
    _undecided: set[str] = field(default_factory=set)
    """Ids of the tasks that were logged because no state decides them."""

    @classmethod
    def of(cls, trajectories: Sequence[Trajectory], reader: Reader, goals: Goals | None = None) -> ObjectWorlds:
        """Learn from these recordings. A world whose recordings contradict each other is logged and left out."""
        worlds = known_worlds(trajectories, reader)
        for name, world in worlds.items():
            if world.fault is not None:
                logger.warning("world %r is left out of the dream of objects: %s", name, world.fault)
        steps = [step for world in worlds.values() for step in world.steps]
        rules = learn_rules(steps, reader.schema)
        kept = {name: _with_steps(world, rules) for name, world in worlds.items()}
        for fact in missing_facts(steps, rules, reader.schema):
            kept[fact.world] = _with_fact(kept[fact.world], fact)
        return cls(reader, goals, rules, kept)

    @cached_property
    def shown(self) -> tuple[JsonObject, ...]:
        """States that the recordings show: the start of each world, and how its episodes ended."""
        return tuple(state for world in self.worlds.values() for state in (world.start, *world.ends))

    def is_left_out(self, task: Task) -> bool:
        """True if the recordings of the task's world contradict each other."""
        world = self.worlds.get(task.world)
        return world is not None and world.fault is not None

    def episode(self, task: Task) -> ObjectEpisode | None:
        """A new episode of a task; None if the task cannot be played.

        It cannot be played if its world is not recorded or was left out, if it does not begin at the recorded start, or
        if the environment has no goals and the task no check. If no state decides its goal, its reward is open.
        """
        world = self.worlds.get(task.world)
        if world is None or world.fault is not None:
            return None
        check = check_of(task, self.goals, world.start)
        told = self.reader.start(task, StepResult(observation=task.initial_state or ""))
        if told != world.told or (check is None and self.goals is None):
            return None
        if check is None and task.id not in self._undecided:
            self._undecided.add(task.id)
            logger.warning(
                "task %r has no reward: no state of its recorded world shows that it is accomplished", task.id
            )
        return ObjectEpisode(self, task, world, check)


def _with_steps(world: KnownWorld, rules: ObjectRules) -> KnownWorld:
    """The world without the recorded steps that the rules answer or that changed nothing."""
    steps = (step for step in world.steps if step.after is not step.before)
    return replace(world, steps=tuple(s for s in steps if rules.run(s.tool, s.before, s.arguments) is None))


def _with_fact(world: KnownWorld, fact: MissingFact) -> KnownWorld:
    """The world with one more item in a list of an entity, at the start and after each recorded step."""
    steps = (
        replace(step, before=_with_item(step.before, fact), after=_with_item(step.after, fact)) for step in world.steps
    )
    ends = tuple(_with_item(end, fact) for end in world.ends)
    return replace(world, start=_with_item(world.start, fact), steps=tuple(steps), ends=ends)


def _with_item(start: JsonObject, fact: MissingFact) -> JsonObject:
    """The state with one more item in a list of an entity."""
    part = start[fact.collection]
    entity = part.get(fact.entity) if isinstance(part, dict) else None
    items = entity.get(fact.field) if isinstance(entity, dict) else None
    if not isinstance(part, dict) or not isinstance(entity, dict) or not isinstance(items, list) or fact.item in items:
        return start
    more: JsonObject = {**entity, fact.field: [*sorted([*map(str, items), fact.item], key=natural)]}
    return {**start, fact.collection: {**part, fact.entity: more}}


class ObjectEpisode:
    """One episode of a dream of objects.

    Args:
        known: what the recordings show.
        task: the task that is played.
        world: its recorded world.
        check: decides whether the task is accomplished; None: nothing can decide it.
    """

    is_all_recorded = False
    """False: recordings of a world that was left out of the rules may show what the rules do not answer."""
    decides_ends = True
    """True: the task's check decides every end, whichever tier answered."""

    def __init__(self, known: ObjectWorlds, task: Task, world: KnownWorld, check: Schema | None) -> None:
        self._known = known
        self._start = world.start
        self._world = task.world
        self._recorded = world.steps
        self._instruction = task.instruction
        self.state = world.start
        """All that is known of the world now; it must not be changed in place."""
        self.rests_on_other_tiers = False
        """True if an answer that no rule gave changed the state as no recording shows it."""
        self._check = check

    def resume(self, transitions: Sequence[Transition]) -> bool:
        """Continue after some steps; False if their states do not belong to this dream.

        A step that was not taken in this dream has no such state: its answer is read into the state before it. If it is
        not of the real environment, it counts like the answer of another tier (see `read`).
        """
        for step in transitions:
            if OBJECTS in step.result.info:
                if not self._restore(step.result.info[OBJECTS]):
                    return False
                is_doubtful = step.provenance.unbounded
            else:
                is_doubtful = self._take(step.action, step.result) and step.provenance.tier is not Tier.REAL
            self.rests_on_other_tiers = self.rests_on_other_tiers or is_doubtful
        return True

    def _restore(self, told: JsonValue) -> bool:
        """Take over a state that `changed` told; False if it is not one of this world."""
        if not isinstance(told, dict) or told.get(WORLD) != self._world:
            return False
        changed = {name: value for name, value in told.items() if name != WORLD}
        state: JsonObject = {**self._start}
        for name, value in changed.items():
            base = self._start.get(name)
            is_part = name in self._known.reader.schema.collections
            state[name] = {**base, **value} if is_part and isinstance(base, dict) and isinstance(value, dict) else value
        self.state = state
        return True

    def _take(self, action: ToolCall, told: StepResult) -> bool:
        """Read an answer that no rule gave into the state; True if this changes it as no recording shows."""
        before, call = self.state, self._known.reader.call(action)
        self.state = self._known.reader.after(before, call, self._known.reader.result(call, told))
        return self.state is not before and not self._is_recorded(call, before)

    @property
    def changed(self) -> JsonObject:
        """The differences from the start of the recorded world: all single values, and each entity that differs."""
        changed: JsonObject = {WORLD: self._world}
        for name, value in self.state.items():
            base = self._start.get(name)
            if name in self._known.reader.schema.collections and isinstance(base, dict) and isinstance(value, dict):
                if value is not base:
                    part: JsonObject = {i: e for i, e in value.items() if (o := base.get(i)) is not e and o != e}
                    if part:
                        changed[name] = part
            else:
                changed[name] = value
        return changed

    def answer(self, action: ToolCall, words: str = "", *, seed: int = 0) -> Prediction | None:
        """The answer of the rules; None if the recordings do not show it, and then nothing changes.

        Args:
            action: the agent's action.
            words: the state before it as a text; a refusal leaves it as it is.
            seed: seed of the episode, for provenance.
        """
        reader = self._known.reader
        call = reader.call(action)
        result = self._known.rules.run(call.name, self.state, call.arguments)
        if result is None:
            return None
        observation = result.words
        if result.answer is not None:
            observation = reader.observation(call, result.answer, self._instruction)
        if observation is None:
            return None
        is_changed = result.after is not self.state
        self.state = result.after
        is_met = is_changed and self.is_accomplished
        is_won = is_met and not self.rests_on_other_tiers
        return Prediction(
            observation=observation,
            next_state=words if result.is_error else observation,
            success=is_won,
            terminated=is_won,
            is_error=result.is_error,
            provenance=Provenance(
                tier=Tier.EFFECTS,
                seed=seed,
                checked=True if is_won else None,
                open_end=is_met != is_won or self._check is None,
            ),
        )

    @property
    def is_accomplished(self) -> bool:
        """True if the task's check holds now."""
        return self._check is not None and self._check.allows(self.state)

    def read(self, action: ToolCall, prediction: Prediction) -> Prediction:
        """Read the answer of another tier into the state; return the prediction with its end decided by the check.

        If such an answer changed the state, a success is open: a language model can be talked into facts, `nearest`
        replaces words, and a recorded answer is repeated after the same last words, whatever the state says. It is not
        open if this very change of this very state is recorded.
        """
        before, told = self.state, StepResult(observation=prediction.observation, is_error=prediction.is_error)
        is_doubtful = self._take(action, told)
        self.rests_on_other_tiers = self.rests_on_other_tiers or is_doubtful
        prediction = prediction.model_copy(update={"success": False, "terminated": False})
        is_won = self.state is not before and self.is_accomplished
        if self._check is None or (is_won and self.rests_on_other_tiers):
            return prediction.noted(open_end=True, unbounded=is_doubtful)
        return prediction.noted(checked=is_won, open_end=False, unbounded=is_doubtful).model_copy(
            update={"success": is_won, "terminated": is_won}
        )

    def _is_recorded(self, call: ToolCall, before: JsonObject) -> bool:
        """True if a recording shows that the call led from that state to this one."""
        return any(
            (step.tool, step.arguments) == (call.name, call.arguments)
            and step.before == before
            and step.after == self.state
            for step in self._recorded
        )


def check_of(task: Task, goals: Goals | None, start: JsonObject) -> Schema | None:
    """The check that decides a task: its own, else one made from its instruction; None if there is none.

    Args:
        task: the task that is played.
        goals: the environment's goals.
        start: the state at the start.

    Raises:
        InvalidInput: the task's own check cannot be used.
    """
    check = task.metadata.get("success")
    if check is None and goals is not None:
        check = goals.check(task.instruction, start)
    return None if check is None else schema_of(check)
