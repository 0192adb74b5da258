"""Reasoning traces for recorded transitions, written by a teacher model (paper, appendix C.1).

A trace says why the recorded answer follows; it is what a fitted model learns to write first (eq. 5), and what a model
that is shown recordings copies. It is no part of a transition's identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.experience.answer import changes_of
from dreamgym.experience.asking import Answer, ask
from dreamgym.experience.prompt import as_data, filled
from dreamgym.llm import LLM, Message
from dreamgym.state import parsed
from dreamgym.types import JsonObject, Trajectory, Transition

TOKENS, TOKENS_PER_STEP = 256, 128
"""How long an answer may be."""


class Tutorial(Answer):
    """What the episode teaches as a whole. Asked for, since it makes the traces better; not kept."""

    overall_plan: str
    success_mode: str
    failure_mode: str


class Trace(Answer):
    """The reasoning of one step."""

    step_id: int
    """From 1."""
    transition_plan: str


class Annotation(Answer):
    """What the teacher answers about one trajectory."""

    task_tutorial: Tutorial
    state_transitions: tuple[Trace, ...]


_TEXT: JsonObject = {"type": "string"}
_TUTORIAL: JsonObject = {"overall_plan": _TEXT, "success_mode": _TEXT, "failure_mode": _TEXT}
_TRACE: JsonObject = {"step_id": {"type": "integer"}, "transition_plan": _TEXT}


def _object(properties: JsonObject) -> JsonObject:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMA: JsonObject = _object(
    {"task_tutorial": _object(_TUTORIAL), "state_transitions": {"type": "array", "items": _object(_TRACE)}}
)


def is_annotated(trajectory: Trajectory) -> bool:
    """Every step has its reasoning already."""
    return all(step.reasoning for step in trajectory.transitions)


async def annotate(llm: LLM, spec: EnvironmentSpec, trajectory: Trajectory, *, seed: int = 0) -> Trajectory:
    """The trajectory with the teacher's reasoning in each of its steps.

    Raises:
        PredictionError: the teacher gave no valid answer with one trace per step, twice; there are no half answers.
    """
    count = len(trajectory.transitions)
    annotation = await ask(
        llm,
        annotation_messages(spec, trajectory),
        Annotation,
        SCHEMA,
        max_tokens=TOKENS + TOKENS_PER_STEP * count,
        seed=seed,
        fault_of=lambda answer: _fault(answer, count),
    )
    steps = tuple(
        step.model_copy(update={"reasoning": trace.transition_plan.strip()})
        for step, trace in zip(trajectory.transitions, annotation.state_transitions, strict=True)
    )
    return trajectory.model_copy(update={"transitions": steps})


def annotation_messages(spec: EnvironmentSpec, trajectory: Trajectory) -> list[Message]:
    """What the teacher is asked about one trajectory."""
    environment: JsonObject = {"name": spec.name, "description": spec.description, "rules": spec.rules}
    rules = filled(
        "annotation",
        set(),
        environment=as_data(environment),
        tools="\n".join(as_data(tool) for tool in spec.tools),
    )
    episode: JsonObject = {"task": trajectory.task.instruction, "accomplished": _is_accomplished(trajectory)}
    lines = [as_data(episode), *(as_data(_shown(number, step)) for number, step in _numbered(trajectory))]
    return [Message(role="system", content=rules), Message(role="user", content="\n".join(lines))]


def with_traces(trajectories: Iterable[Trajectory], annotated: Iterable[Trajectory]) -> list[Trajectory]:
    """The trajectories with the reasoning that others of the same id have for the very same steps."""
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


def _fault(answer: Annotation, count: int) -> str | None:
    ids = [trace.step_id for trace in answer.state_transitions]
    if ids != [*range(1, count + 1)]:
        return f'"state_transitions" must have the step_id 1 to {count}, one for each step in order; they are {ids}'
    empty = [trace.step_id for trace in answer.state_transitions if not trace.transition_plan.strip()]
    return f"the transition_plan of step {empty[0]} is empty" if empty else None


def _is_accomplished(trajectory: Trajectory) -> bool | None:
    """None where nobody said so."""
    ended = bool(trajectory.transitions) and trajectory.transitions[-1].result.terminated
    return trajectory.success if ended or trajectory.final_reward is not None else None


def _numbered(trajectory: Trajectory) -> Iterable[tuple[int, Transition]]:
    return enumerate(trajectory.transitions, start=1)


def _shown(number: int, step: Transition) -> JsonObject:
    """One step; of explicit states what changes, of texts the state before where no answer has shown it."""
    before, after = parsed(step.state), parsed(step.next_state)
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
        **changed,
        "answer": step.result.observation,
        "error": step.result.is_error,
        "terminated": step.result.terminated,
    }
