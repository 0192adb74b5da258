"""Where a dream, or the real system played again, answers otherwise than was recorded.

Every held-out call is predicted given what was recorded before it (teacher forcing), so one mistake is counted once.
The recordings are split by trajectory: no call is predicted from its own episode.
An answer is exact where error flag, structured content and text agree, JSON compared as JSON and a block that is no
text by its kind. The similarity is an F1 over words; in JSON a word counts together with the keys that lead to it.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

from pydantic import JsonValue

from dreamgym.dream import confidence
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.dream.success import accomplished
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.tools import Tools, output_schema
from dreamgym.types import Frozen, Provenance, StepResult, Tier, ToolCall, Trajectory, Transition

Redact = Callable[[JsonValue], JsonValue]

_WORD = re.compile(r"\w+|[^\w\s]")


class Compared(Frozen):
    """One recorded call, and how it was answered this time."""

    trajectory: str
    step: int
    """Counted from 1."""
    action: ToolCall
    recorded: StepResult
    got: StepResult | None = None
    failure: str | None = None
    """Why there is no answer."""
    invalid: str | None = None
    """What is wrong with the answer under the tool's output schema."""
    has_schema: bool = False
    """There is an answer that the tool's output schema speaks of: errors need not follow it."""
    before: str = ""
    """The recorded state in which the call was made."""
    after: str = ""
    """The recorded state that it led to."""
    accomplished: bool | None = None
    """In reality this call accomplished the task, by the task's own check of the state; None where it has none."""
    predicted: Transition | None = None
    """The step as the dream remembers it; None without an answer, and where the real system answered."""
    features: tuple[float, ...] = ()
    """What is known of how sure the model was (dreamgym.dream.confidence); empty where it was not asked."""
    seconds: float = 0.0
    """Until the answer, or until there was none."""

    claimed: bool | None = None
    """The same of the predicted state; None too where there is no such state."""

    @property
    def errors_agree(self) -> bool:
        """Refused as recorded, or answered as recorded."""
        return self.got is not None and self.got.is_error == self.recorded.is_error

    @property
    def exact(self) -> bool:
        """The recorded answer."""
        return self.got is not None and _canonical(self.got) == _canonical(self.recorded)

    @property
    def similarity(self) -> float:
        """Between 0 and 1; 0 without an answer."""
        return 0.0 if self.got is None else similarity(self.recorded, self.got)


class Agreement(Frozen):
    """The calls of one tool, or of all. A call without an answer agrees with nothing."""

    calls: int
    answered: Rate
    valid: Rate
    """Of the answers that an output schema speaks of."""
    errors: Rate
    exact: Rate
    similarity: Rate


async def against_dream(
    spec: EnvironmentSpec,
    model: ExperienceModel,
    buffer: ReplayBuffer,
    trajectories: Sequence[Trajectory],
    *,
    k: int | None = None,
    seed: int = 0,
) -> AsyncGenerator[Compared, None]:
    """Predict each call of the trajectories, none of which the buffer may hold; `k` is that of DreamEnvironment."""
    tools = Tools(spec)
    for trajectory in trajectories:
        for step in range(1, len(trajectory.transitions) + 1):
            yield await predicted(spec, tools, model, buffer, trajectory, step, k=k, seed=seed)


async def predicted(
    spec: EnvironmentSpec,
    tools: Tools,
    model: ExperienceModel,
    buffer: ReplayBuffer,
    trajectory: Trajectory,
    step: int,
    *,
    k: int | None = None,
    seed: int = 0,
    without: frozenset[Part] = frozenset(),
) -> Compared:
    """Predict one call (counted from 1) of a trajectory that the buffer does not hold, given what was recorded before.

    What the tool's own schema forbids is refused without asking the model, as a server does.
    """
    recorded = trajectory.transitions[step - 1]
    refusal = tools.refusal(recorded.action, recorded.action.canonical())
    if refusal is not None:
        result = StepResult(observation=refusal, is_error=True)
        refused = Transition(
            state=recorded.state,
            action=recorded.action,
            result=result,
            next_state=recorded.state,
            provenance=Provenance(tier=Tier.CHECK, seed=seed),
        )
        return compared(spec, tools, trajectory, step, result, predicted=refused)
    dream = DreamEnvironment(spec, model, buffer, without=without, k=k)
    dream.resume(trajectory.task, seed=seed, transitions=trajectory.transitions[: step - 1])
    started = time.perf_counter()
    try:
        result = await dream.step(recorded.action)
    except (EnvironmentUnavailable, EpisodeFinished) as error:
        unanswered = _unanswered(trajectory, step, str(error))
        return unanswered.model_copy(update={"seconds": time.perf_counter() - started})
    return compared(
        spec,
        tools,
        trajectory,
        step,
        result,
        predicted=dream.transitions[-1],
        features=confidence.features(*dream.asked) if dream.asked else (),
        seconds=time.perf_counter() - started,
    )


async def against_real(
    spec: EnvironmentSpec,
    make: Callable[[], Environment],
    trajectories: Sequence[Trajectory],
    *,
    redact: Redact | None = None,
) -> AsyncGenerator[Compared, None]:
    """Play the calls of each trajectory in their order. After a call without an answer the rest has none either.

    Args:
        redact: takes out of the answers what was taken out of the recordings, or they could not be the same.
    """
    tools = Tools(spec)
    environment = make()
    try:
        for trajectory in trajectories:
            step, failure = 1, ""
            try:
                await environment.reset(trajectory.task)
                for transition in trajectory.transitions:
                    got = await environment.step(transition.action)
                    yield compared(spec, tools, trajectory, step, _redacted(got, redact) if redact else got)
                    step += 1
            except (EnvironmentUnavailable, EpisodeFinished) as error:
                failure = str(error)
            for missed in range(step, len(trajectory.transitions) + 1):
                yield _unanswered(trajectory, missed, failure)
    finally:
        await environment.close()


def by_tool(calls: Sequence[Compared]) -> dict[str, Agreement]:
    """The agreement of each tool, in alphabetical order."""
    names = sorted({call.action.name for call in calls})
    return {name: agreement([call for call in calls if call.action.name == name]) for name in names}


def agreement(calls: Sequence[Compared]) -> Agreement:
    """The agreement over some calls."""
    n = len(calls)
    spoken_of = [call for call in calls if call.has_schema]
    return Agreement(
        calls=n,
        answered=wilson(sum(call.got is not None for call in calls), n),
        valid=wilson(sum(call.invalid is None for call in spoken_of), len(spoken_of)),
        errors=wilson(sum(call.errors_agree for call in calls), n),
        exact=wilson(sum(call.exact for call in calls), n),
        similarity=wilson(sum(call.similarity for call in calls), n),
    )


def compared(
    spec: EnvironmentSpec,
    tools: Tools,
    trajectory: Trajectory,
    step: int,
    got: StepResult,
    *,
    predicted: Transition | None = None,
    features: tuple[float, ...] = (),
    seconds: float = 0.0,
) -> Compared:
    """A recorded call (counted from 1) beside an answer to it."""
    transition = trajectory.transitions[step - 1]
    return Compared(
        trajectory=trajectory.id,
        step=step,
        action=transition.action,
        recorded=transition.result,
        before=transition.state,
        after=transition.next_state,
        accomplished=_accomplishes(trajectory, step, transition.next_state, transition.result.observation),
        got=got,
        invalid=tools.violation(transition.action.name, got),
        has_schema=not got.is_error and output_schema(spec, transition.action.name) is not None,
        predicted=predicted,
        features=features,
        seconds=seconds,
        claimed=None if predicted is None else _accomplishes(trajectory, step, predicted.next_state, got.observation),
    )


def similarity(recorded: StepResult, got: StepResult) -> float:
    """F1 over the words of two answers; where both are JSON, each word together with the keys that lead to it."""
    ours, theirs = facts(recorded, got)
    total = ours.total() + theirs.total()
    return 2 * (ours & theirs).total() / total if total else 1.0


def facts(recorded: StepResult, got: StepResult) -> tuple[Counter[object], Counter[object]]:
    """The words of two answers; where both are JSON, each word together with the keys that lead to it."""
    values = _value(recorded), _value(got)
    if values[0] is None or values[1] is None:
        return Counter(_WORD.findall(recorded.observation)), Counter(_WORD.findall(got.observation))
    return Counter(_leaves(values[0])), Counter(_leaves(values[1]))


def _accomplishes(trajectory: Trajectory, step: int, after: str, answer: str) -> bool | None:
    """Whether the task is accomplished by this step (counted from 1), and was not before it."""
    task, before = trajectory.task, [one.result.observation for one in trajectory.transitions[: step - 1]]
    done = accomplished(task, after, [*before, answer])
    state = trajectory.transitions[step - 1].state
    return None if done is None else done and accomplished(task, state, before) is not True


def _redacted(got: StepResult, redact: Redact) -> StepResult:
    fields = {"observation": redact(got.observation), "info": redact(got.info)}
    return StepResult.model_validate({**got.model_dump(), **fields})


def _unanswered(trajectory: Trajectory, step: int, failure: str) -> Compared:
    transition = trajectory.transitions[step - 1]
    return Compared(
        trajectory=trajectory.id,
        step=step,
        action=transition.action,
        recorded=transition.result,
        before=transition.state,
        after=transition.next_state,
        accomplished=_accomplishes(trajectory, step, transition.next_state, transition.result.observation),
        failure=failure,
    )


def _canonical(result: StepResult) -> tuple[bool, str, str]:
    structured = json.dumps(result.structured, sort_keys=True)
    try:
        observation = json.dumps(json.loads(result.observation), sort_keys=True)
    except ValueError:
        observation = result.observation
    return result.is_error, structured, observation


def _value(result: StepResult) -> JsonValue:
    """The answer as JSON: the structured content, or a text that is an object or a list; None for any other text."""
    if result.structured is not None:
        return result.structured
    try:
        value: JsonValue = json.loads(result.observation)
    except ValueError:
        return None
    return value if isinstance(value, (dict, list)) else None


def _leaves(value: JsonValue, path: str = "") -> Iterator[tuple[str, str]]:
    """Each word with the keys above it; positions in a list do not count, so one more entry shifts nothing."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, f"{path}.{key}")
    elif isinstance(value, list):
        yield path, "[]"
        for inner in value:
            yield from _leaves(inner, f"{path}[]")
    else:
        text = value if isinstance(value, str) else json.dumps(value)
        for word in _WORD.findall(text):
            yield path, word
