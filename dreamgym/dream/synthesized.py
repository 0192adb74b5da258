"""The tier `effects`: runs programs that are learned from a tool's recorded calls on an explicit state and a call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dreamgym.dream.learned import LearnedOnce
from dreamgym.dream.model import Prediction, Query
from dreamgym.dream.recorded import is_valid
from dreamgym.environment import EnvironmentSpec
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.state import StateSchema, as_text
from dreamgym.synthesis import LearnedPrograms
from dreamgym.tools import completed, is_forbidden
from dreamgym.types import Provenance, Tier, Trajectory, Transition

_programs = LearnedOnce[LearnedPrograms]()


class SynthesizedTier:
    """Runs the program that explains all recorded calls of the tool.

    Args:
        spec: the simulated environment.
        schema: the schema of its states.
        buffer: its recordings.
    """

    infers = True

    def __init__(self, spec: EnvironmentSpec, schema: StateSchema, buffer: ReplayBuffer) -> None:
        self._spec = spec
        self._schema = schema
        self._buffer = buffer

    async def answer(self, query: Query) -> Prediction | None:
        """The result of the program; None if no program explains all of it."""
        if not is_answerable(query):
            return None
        programs = await _programs.of(self._buffer, self._spec.name, self._learned)
        # in a thread: learning a program takes a second, and meanwhile a server must answer others
        return await asyncio.to_thread(synthesized, query, programs)

    def _learned(self, recorded: Sequence[Trajectory]) -> LearnedPrograms:
        return programs_of([step for one in recorded for step in one.transitions], self._spec, self._schema)


def programs_of(steps: list[Transition], spec: EnvironmentSpec, schema: StateSchema) -> LearnedPrograms:
    """Learn programs from recorded calls, without calls that were refused because the tool's schema forbids them."""
    tried = [step for step in steps if not (step.result.is_error and is_forbidden(spec, step.action))]
    return LearnedPrograms((completed(step, spec) for step in tried), schema)


def is_answerable(query: Query) -> bool:
    """True if programs may answer: the state is explicit, and the tool's schema allows the call.

    A step that was recorded word for word is left to the other tiers: only a recording can end an episode.
    """
    is_repeated = any(shown.exact for shown in query.demonstrations)
    return query.is_explicit and not is_repeated and not is_forbidden(query.spec, query.action)


def synthesized(query: Query, programs: LearnedPrograms) -> Prediction | None:
    """The answer of the tool's program; None if no program explains all of it."""
    state = query.state.content
    if state is None or not is_answerable(query):
        return None
    program = programs.of(query.action.name)
    result = None if program is None else program.run(state, query.action.arguments)
    if result is None:
        return None
    answer = Prediction(
        observation=result.observation,
        structured=result.structured,
        next_state=as_text(result.after) if result.operations else query.state.text,
        is_error=result.is_error,
        provenance=Provenance(tier=Tier.EFFECTS, seed=query.seed),
    )
    return answer if is_valid(query, answer) else None
