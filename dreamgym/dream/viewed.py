"""The tier `views`: answers from recordings and the session's own calls, for a server that reports no state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain, zip_longest

from dreamgym.dream.learned import LearnedOnce
from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.recorded import is_valid
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import Demonstration, ReplayBuffer
from dreamgym.state import mentioned
from dreamgym.tools import completed
from dreamgym.types import Provenance, Task, Tier, Trajectory
from dreamgym.views.learn import learn
from dreamgym.views.rules import Rules
from dreamgym.views.session import calls_of

_rules = LearnedOnce[Rules]()


class ViewsTier:
    """Repeats what a session has read, applies what it has written, and answers only what recordings show.

    Args:
        spec: the simulated environment.
        buffer: its recordings.
    """

    infers = True

    def __init__(self, spec: EnvironmentSpec, buffer: ReplayBuffer) -> None:
        self._spec = spec
        self._buffer = buffer

    async def answer(self, query: Query) -> Prediction | None:
        """The answer; None if no recording shows it."""
        rules = await self._learned_rules()
        history = calls_of(query.history, rules.reads)
        known = await asyncio.to_thread(rules.answer, history, query.action, self._world(query.task))
        if known is None:
            return None
        try:
            observation = known.view.observation
        except ValueError:  # the rules made a value of another kind than the recorded ones
            return None
        prediction = Prediction(
            observation=observation,
            structured=known.view.structured,
            content=known.view.content,
            next_state=observation,
            is_error=known.view.is_error,
            provenance=Provenance(tier=Tier.VIEWS, seed=query.seed),
        )
        return prediction if is_valid(query, prediction) else None

    async def with_facts(self, query: Query) -> Query:
        """The query with recordings of this world's facts moved to the front, for a model that is shown only a few.

        Recordings of the same call come first. Then calls of the same tool, nearest first, alternate with reads from
        the start of this world, ordered by how many words they share with the call and the session's last three calls.
        """
        rules = await self._learned_rules()
        world = self._world(query.task)
        asked = query.action.canonical()
        said = mentioned([step.action.arguments for step in query.history[-3:]]) | mentioned(query.action.arguments)
        same_call, same_tool, facts = list[Demonstration](), list[Demonstration](), list[tuple[int, Demonstration]]()
        for found in query.demonstrations:
            step = found.transition
            view = rules.known.get((world, (), step.action.canonical()))
            is_fact = (
                view is not None and step.action.name in rules.reads and view.observation == step.result.observation
            )
            one = found.model_copy(update={"world": query.task.world}) if is_fact else found
            if step.action.canonical() == asked:
                same_call.append(one)
            elif is_fact:
                facts.append((len(said & mentioned([step.action.arguments, step.result.observation])), one))
            elif step.action.name == query.action.name:
                same_tool.append(one)
        best = [one for _, one in sorted(facts, key=lambda fact: -fact[0])]
        ordered = [*same_call, *chain.from_iterable(zip_longest(same_tool, best))]
        kept = {one.id: one for one in ordered if one is not None}
        rest = [one for one in query.demonstrations if one.id not in kept]
        return query.model_copy(update={"demonstrations": (*kept.values(), *rest)})

    async def _learned_rules(self) -> Rules:
        return await _rules.of(self._buffer, self._spec.name, self._learned)

    def _learned(self, recorded: Sequence[Trajectory]) -> Rules:
        sessions = [
            (self._world(one.task), [completed(step, self._spec) for step in one.transitions]) for one in recorded
        ]
        return learn(sessions, {str(tool["name"]): tool for tool in self._spec.tools})

    def _world(self, task: Task) -> str:
        """The task's world; empty if the environment is not declared deterministic, since it begins alike each time."""
        return task.world if self._spec.deterministic else ""
