"""Lets a language model word a task for recorded episodes without an instruction."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.resources import files
from string import Template

from dreamgym.dream.prompt import as_data
from dreamgym.dream.questions import Answer, ask
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.llm import LLM, Message
from dreamgym.types import Frozen, JsonObject, Origin, Task, Trajectory

MAX_TOKENS = 256
MAX_STEPS = 20
"""Steps of an episode that the model is shown: the first ones, which show the purpose, and the last one."""
MAX_CHARACTERS = 400
"""Characters of each call and of each answer that the model is shown."""


class Proposals(Frozen):
    """The proposed tasks, and the episodes for which there is none."""

    tasks: dict[str, Task]
    """Trajectory id to its proposed task."""
    failures: dict[str, str]
    """Trajectory id to the reason why it has no task."""


class _Proposal(Answer):
    instruction: str


async def propose_tasks(
    llm: LLM, spec: EnvironmentSpec, trajectories: Sequence[Trajectory], *, seed: int = 0
) -> Proposals:
    """Ask the model once per trajectory without an instruction. An answer that cannot be used becomes a failure."""
    tasks, failures = {}, {}
    for trajectory in trajectories:
        if trajectory.task.instruction or not trajectory.transitions:
            continue
        try:
            instruction = await _ask(llm, spec, trajectory, seed)
        except PredictionError as error:
            failures[trajectory.id] = str(error)
            continue
        digest = hashlib.sha256(instruction.encode()).hexdigest()[:12]
        tasks[trajectory.id] = Task(
            id=f"proposed-{digest}", env=spec.name, instruction=instruction, origin=Origin.PROPOSED
        )
    return Proposals(tasks=tasks, failures=failures)


async def _ask(llm: LLM, spec: EnvironmentSpec, trajectory: Trajectory, seed: int) -> str:
    """The instruction that the model proposes. Raises PredictionError if its answer cannot be used."""
    text = files("dreamgym.curriculum").joinpath("proposal.txt").read_text(encoding="utf-8")
    environment: JsonObject = {"description": spec.description, "rules": spec.rules}
    prompt = Template(text).substitute(environment=as_data(environment), data=as_data(_shown(trajectory)))
    asked = await ask(
        llm,
        [Message(role="user", content=prompt)],
        _Proposal,
        _Proposal.model_json_schema(),
        max_tokens=MAX_TOKENS,
        seed=seed,
        fault_of=_fault_of,
    )
    return asked.answer.instruction.strip()


def _fault_of(proposal: _Proposal) -> str | None:
    if "\x00" in proposal.instruction:  # with such a task, the store would leave the recording out
        return "the instruction contains a NUL character"
    return None if proposal.instruction.strip() else "the instruction is empty"


def _shown(trajectory: Trajectory) -> JsonObject:
    steps = trajectory.transitions
    if len(steps) > MAX_STEPS:
        steps = (*steps[: MAX_STEPS - 1], steps[-1])
    return {
        "calls": [
            {
                "tool": step.action.name,
                "arguments": json.dumps(step.action.arguments | step.action.answers, ensure_ascii=False)[
                    :MAX_CHARACTERS
                ],
                "answer": step.result.observation[:MAX_CHARACTERS],
                "error": step.result.is_error,
            }
            for step in steps
        ],
        "final_answer": trajectory.answer,
    }
