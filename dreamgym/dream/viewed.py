"""The tier `views`: what recordings and the session's own calls show of a server that tells no state."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.recorded import is_valid
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.tools import completed
from dreamgym.types import Provenance, Task, Tier
from dreamgym.views.learn import learn
from dreamgym.views.rules import Rules
from dreamgym.views.session import calls_of

SESSIONS = 200
"""Most recorded sessions that are learned from, the oldest."""

_learned: WeakKeyDictionary[ReplayBuffer, dict[str, tuple[int, asyncio.Task[Rules]]]] = WeakKeyDictionary()
"""The rules of each environment of a buffer, and the newest recording when they were learned."""


class ViewsTier:
    """Repeats what a session was told, finds what it wrote, and answers nothing that no recording shows.

    Args:
        spec: what is simulated.
        buffer: its recordings.
    """

    infers = True

    def __init__(self, spec: EnvironmentSpec, buffer: ReplayBuffer) -> None:
        self._spec = spec
        self._buffer = buffer

    async def answer(self, query: Query) -> Prediction | None:
        """The answer; None: no recording shows it."""
        rules = await self._rules()
        history = calls_of(query.history, rules.reads)
        known = await asyncio.to_thread(rules.answer, history, query.action, self._world(query.task))
        if known is None:
            return None
        try:
            observation = known.view.observation
        except ValueError:  # the value that the rules make is of another kind than the recorded ones
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

    async def _rules(self) -> Rules:
        """The rules that the recordings show, learned once for all episodes of this buffer."""
        name = self._spec.name
        newest = await self._buffer.newest_recording(name)
        of_buffer = _learned.setdefault(self._buffer, {})
        if name not in of_buffer or of_buffer[name][0] != newest:
            of_buffer[name] = newest, asyncio.create_task(self._learn())
        return await asyncio.shield(of_buffer[name][1])

    async def _learn(self) -> Rules:
        recorded = await self._buffer.trajectories(self._spec.name, limit=SESSIONS)
        sessions = [
            (self._world(one.task), [completed(step, self._spec) for step in one.transitions]) for one in recorded
        ]
        return await asyncio.to_thread(learn, sessions, {str(tool["name"]): tool for tool in self._spec.tools})

    def _world(self, task: Task) -> str:
        """Where a task begins. A server that is not declared to have a world for each task begins alike each time."""
        return task.world if self._spec.deterministic else ""
