"""The tier `effects`: what recorded calls of a tool show to follow from an explicit state and a call of it."""

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
        spec: what is simulated.
        schema: of its states.
        buffer: its recordings.
    """

    infers = True

    def __init__(self, spec: EnvironmentSpec, schema: StateSchema, buffer: ReplayBuffer) -> None:
        self._spec = spec
        self._schema = schema
        self._buffer = buffer

    async def answer(self, query: Query) -> Prediction | None:
        """The result of the program; None: some of it has no explanation."""
        if not is_answerable(query):
            return None
        programs = await _programs.of(self._buffer, self._spec.name, self._learned)
        # learning a program takes a second, in which a server would answer nobody else
        return await asyncio.to_thread(synthesized, query, programs)

    def _learned(self, recorded: Sequence[Trajectory]) -> LearnedPrograms:
        return programs_of([step for one in recorded for step in one.transitions], self._spec, self._schema)


def programs_of(steps: list[Transition], spec: EnvironmentSpec, schema: StateSchema) -> LearnedPrograms:
    """The programs that recorded calls show. A call that its tool's schema forbids was refused for its form."""
    tried = [step for step in steps if not (step.result.is_error and is_forbidden(spec, step.action))]
    return LearnedPrograms((completed(step, spec) for step in tried), schema)


def is_answerable(query: Query) -> bool:
    """True if programs may answer: the state is explicit and the call is one that its tool's schema allows.

    A step that was recorded word for word is left to the other tiers: only a recording can end an episode.
    """
    is_repeated = any(shown.exact for shown in query.demonstrations)
    return query.is_explicit and not is_repeated and not is_forbidden(query.spec, query.action)


def synthesized(query: Query, programs: LearnedPrograms) -> Prediction | None:
    """The answer of the tool's program; None if some of it has no explanation."""
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
