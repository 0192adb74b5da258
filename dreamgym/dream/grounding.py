"""Which recorded transitions ground one step of a dream."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from dreamgym.dream.model import Part
from dreamgym.dream.synthesized import RECORDINGS
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import GROUNDED, Demonstration, ReplayBuffer, Retrieval
from dreamgym.tools import is_forbidden
from dreamgym.types import Source, Task, ToolCall, Transition

CANDIDATES = 8
"""Transitions retrieved for each that is shown, if there are several tools. Retrieval weighs the state most: on a
recorded file system only a quarter of the nearest transitions were calls of the called tool."""


class Grounding:
    """Finds what was recorded near a step.

    Args:
        spec: what is simulated.
        wanted: how many transitions the model is shown of what is found. For one that wants none there is still a
            search: what was recorded of this very call answers before any model.
        learns_from_dreams: synthetic transitions are found too.
        buffer: where it is found.
        episode_id: the running episode, of which nothing is returned.
        as_of: a watermark of the buffer; nothing that was stored after it is returned. None: everything is there.
        without: without HISTORY the search does not know it; without RETRIEVAL nothing is found.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        buffer: ReplayBuffer,
        *,
        wanted: int,
        learns_from_dreams: bool,
        episode_id: str,
        as_of: int | None,
        without: frozenset[Part],
    ) -> None:
        self._spec = spec
        self._wanted = max(1, wanted)
        self._sources = GROUNDED | {Source.SYNTHETIC} if learns_from_dreams else GROUNDED
        self._buffer = buffer
        self._episode_id = episode_id
        self._as_of = as_of
        self._knows_history = Part.HISTORY not in without
        self._searches = Part.RETRIEVAL not in without

    async def find(
        self, task: Task, history: tuple[Transition, ...], state: str, action: ToolCall, *, seed: int
    ) -> tuple[Demonstration, ...]:
        """Best first. Where the tools are several, the same call comes first, then the same tool.

        Explicit states are long and alike, so there the called tool is searched for by itself as well: what it refuses
        and what its answers show is learned from that.
        A recorded call that its tool's schema forbids is not returned for one that it allows: it was refused for its
        form.
        """
        if not self._searches:
            return ()
        retrieval = self._retrieval(task, history, state, action, seed)
        if self._spec.text_argument is not None:
            return await self._buffer.nearest(retrieval)
        retrieval = retrieval.model_copy(update={"k": self._wanted * CANDIDATES})
        found = await self._buffer.nearest(retrieval)
        if self._spec.state is not None and not any(shown.exact for shown in found):
            of_tool = {"tool": action.name, "k": max(retrieval.k, RECORDINGS)}
            same_tool = await self._buffer.nearest(retrieval.model_copy(update=of_tool))
            found = tuple({shown.id: shown for shown in (*same_tool, *found)}.values())
        if not is_forbidden(self._spec, action):
            found = tuple(
                shown
                for shown in found
                if not (shown.transition.result.is_error and is_forbidden(self._spec, shown.transition.action))
            )
        return _same_call_first(found, action)

    def _retrieval(
        self, task: Task, history: tuple[Transition, ...], state: str, action: ToolCall, seed: int
    ) -> Retrieval:
        return Retrieval(
            env=self._spec.name,
            state=state,
            action=action,
            k=self._wanted,
            history=history if self._knows_history else None,
            initial_state=task.initial_state or "",
            world=task.world if self._knows_history and self._spec.deterministic else "",
            goal=task.goal,
            exclude=self._episode_id,
            sources=self._sources,
            seed=seed if self._knows_history else _step_seed(seed, len(history)),
            as_of=self._as_of,
        )


def _same_call_first(found: Sequence[Demonstration], action: ToolCall) -> tuple[Demonstration, ...]:
    wanted = action.canonical()

    def of_another_call(demonstration: Demonstration) -> tuple[bool, bool]:
        recorded = demonstration.transition.action
        return recorded.canonical() != wanted, recorded.name != action.name

    return tuple(sorted(found, key=of_another_call))


def _step_seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=7).digest(), "big")
