"""Reasoning traces for recorded transitions, written by a teacher model (paper, appendix C.1).

A trace explains why the recorded answer follows. A fitted model learns to write it first (eq. 5), and a model that is
shown recordings imitates it. It is not part of a transition's identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import create_model

from dreamgym.dream.answer_form import changes_of
from dreamgym.dream.prompt import as_data, filled
from dreamgym.dream.questions import Answer, ask
from dreamgym.environment import EnvironmentSpec
from dreamgym.llm import LLM, Message
from dreamgym.state import State
from dreamgym.types import JsonObject, Trajectory, Transition

TOKENS, TOKENS_PER_STEP = 256, 128
"""Most tokens of an answer: a fixed number, and a number for each step."""


TUTORIAL = ("overall_plan", "success_mode", "failure_mode")
"""Fields that sum up the episode. They are asked for because they make the traces better, and are not kept."""


def form_of(count: int) -> type[Answer]:
    """The form of the teacher's answer for `count` steps: the tutorial, and a trace `step_N` for each step.

    The paper has a list of traces (appendix C.1), which comes out shorter or longer than the episode. With one field
    per step the number is right if the backend obeys the schema, and a small model can write one line for each.
    """
    names = (*TUTORIAL, *(f"step_{number}" for number in range(1, count + 1)))
    fields: dict[str, Any] = dict.fromkeys(names, (str, ...))
    form: type[Answer] = create_model("Annotation", __base__=Answer, **fields)
    return form


def schema_of(count: int) -> JsonObject:
    """The JSON schema of `form_of(count)`."""
    properties: JsonObject = {name: {"type": "string"} for name in form_of(count).model_fields}
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


def is_annotated(trajectory: Trajectory) -> bool:
    """True if every step already has its reasoning."""
    return all(step.reasoning for step in trajectory.transitions)


async def annotate(llm: LLM, spec: EnvironmentSpec, trajectory: Trajectory, *, seed: int = 0) -> Trajectory:
    """The trajectory with the teacher's reasoning in each of its steps.

    Raises:
        PredictionError: the teacher twice gave no valid answer with one trace per step; a partial one is not kept.
    """
    count = len(trajectory.transitions)
    asked = await ask(
        llm,
        annotation_messages(spec, trajectory),
        form_of(count),
        schema_of(count),
        max_tokens=TOKENS + TOKENS_PER_STEP * count,
        seed=seed,
        fault_of=_fault,
    )
    traces = list(asked.answer.model_dump().values())[len(TUTORIAL) :]
    steps = tuple(
        step.model_copy(update={"reasoning": trace.strip()})
        for step, trace in zip(trajectory.transitions, traces, strict=True)
    )
    return trajectory.model_copy(update={"transitions": steps})


def annotation_messages(spec: EnvironmentSpec, trajectory: Trajectory) -> list[Message]:
    """The prompt for the teacher about one trajectory."""
    environment: JsonObject = {"name": spec.name, "description": spec.description, "rules": spec.rules}
    rules = filled(
        "annotation",
        set(),
        environment=as_data(environment),
        tools="\n".join(as_data(tool) for tool in spec.tools),
    )
    episode: JsonObject = {"task": trajectory.task.instruction, "accomplished": _is_accomplished(trajectory)}
    numbered = enumerate(trajectory.transitions, start=1)
    lines = [as_data(episode), *(as_data(_shown(number, step)) for number, step in numbered)]
    return [Message(role="system", content=rules), Message(role="user", content="\n".join(lines))]


def with_traces(trajectories: Iterable[Trajectory], annotated: Iterable[Trajectory]) -> list[Trajectory]:
    """The trajectories with the reasoning that annotated ones of the same id have for the very same steps."""
    known = {trajectory.id: trajectory.transitions for trajectory in annotated}
    return [_with_traces(trajectory, known.get(trajectory.id, ())) for trajectory in trajectories]


def _with_traces(trajectory: Trajectory, known: Sequence[Transition]) -> Trajectory:
    if not any(step.reasoning for step in known):
        return trajectory
    steps = list(trajectory.transitions)
    for at, (step, other) in enumerate(zip(steps, known, strict=False)):
        if not step.reasoning and other.reasoning and step.digest() == other.digest():
            steps[at] = step.model_copy(update={"reasoning": other.reasoning})
    return trajectory.model_copy(update={"transitions": tuple(steps)})


def _fault(answer: Answer) -> str | None:
    for name, text in answer.model_dump().items():
        if not text.strip():
            return f'"{name}" is empty'
        if "\x00" in text:  # with such a trace, the store would leave the recording out
            return f'"{name}" contains a NUL character'
    return None


def _is_accomplished(trajectory: Trajectory) -> bool | None:
    """True if the episode was a success; None if nobody judged it."""
    ended = bool(trajectory.transitions) and trajectory.transitions[-1].result.terminated
    return trajectory.success if ended or trajectory.final_reward is not None else None


def _shown(number: int, step: Transition) -> JsonObject:
    """One step: with its changes if the states are explicit, else with the state before it."""
    before, after = State.of(step.state).content, State.of(step.next_state).content
    if before is not None and after is not None:
        changed: JsonObject = {
            "changes": [one.model_dump(mode="json") for one in changes_of(before, after, step.action.arguments)]
        }
    else:
        changed = {"state": step.state}
    return {
        "step_id": number,
        "tool": step.action.name,
        "arguments": step.action.arguments,
        **({"answers": step.action.answers} if step.action.answers else {}),
        **changed,
        "answer": step.result.observation,
        "error": step.result.is_error,
        "terminated": step.result.terminated,
    }
