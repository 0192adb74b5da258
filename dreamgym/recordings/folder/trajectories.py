"""Makes a trajectory from each run in which the agent called a tool.

Only an answer of the server is an observation: a call that it never answered, because it died or hung, is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from dreamgym.content import result_of, storable, storable_answer, storable_json
from dreamgym.mirror import without_tool
from dreamgym.recordings.folder.listings import ToolLists
from dreamgym.recordings.folder.runs import Run, Say
from dreamgym.recordings.log import Exchange
from dreamgym.types import (
    JsonObject,
    Origin,
    Source,
    StepResult,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Transition,
)

UNNAMED = "unnamed"
"""The task id of a run for which nobody gave a task."""
RECORDED = "recorded"
"""Key in a task's metadata: the task is in tasks.jsonl because of a recording, and is removed with it."""

Call = tuple[ToolCall, StepResult, Exchange]

_CONNECTION_CLOSED = -32000
_UNKNOWN = re.compile(r"unknown|not found|no such|not exist|invalid tool|not available|unsupported", re.IGNORECASE)


class Tasks:
    """The tasks of all runs. Equal instructions are one task; a task written by hand stays as it is.

    Args:
        env: name of the environment.
        by_hand: tasks that do not come from a recording.
        runs: the recordings.
        say: called with each message.
    """

    def __init__(self, env: str, by_hand: Iterable[Task], runs: Sequence[Run], say: Say) -> None:
        self._env, self._say = env, say
        self._tasks = {task.id: task for task in by_hand}
        self._ids = {task.instruction: task.id for task in reversed(self._tasks.values())}
        self._instructions: dict[str, str] = {}
        for instruction, named, _ in map(_asked, runs):
            if named and instruction:
                self._ids.setdefault(instruction, named)
                self._instructions.setdefault(named, instruction)

    @property
    def all(self) -> tuple[Task, ...]:
        """The tasks written by hand, then the recorded ones in the order in which they were played."""
        return tuple(self._tasks.values())

    def start_in(self, starts: Mapping[str, Collection[str]]) -> None:
        """Set the initial state of recorded tasks whose episodes all start in one explicit state."""
        for task_id, states in starts.items():
            task = self._tasks.get(task_id)
            if task is not None and RECORDED in task.metadata and len(states) == 1:
                self._tasks[task_id] = task.model_copy(update={"initial_state": next(iter(states))})

    def of(self, run: Run) -> Task:
        """The task that the agent was given in a run."""
        instruction, named, origin = _asked(run)
        task_id = named or self._ids.get(instruction) or (_task_id(instruction) if instruction else UNNAMED)
        if task_id not in self._tasks:
            task = Task(
                id=task_id,
                env=self._env,
                instruction=self._instructions.get(task_id, instruction),
                origin=origin,
                metadata={RECORDED: True},
            )
            if not task.instruction:
                return task
            self._tasks[task_id] = task
        task = self._tasks[task_id]
        if instruction and task.instruction != instruction:
            self._say(f"{run.id}: task {task_id!r} already has another instruction; the first one is kept")
        return task


def calls_of(run: Run, say: Say) -> list[Call]:
    """The agent's calls in a run and the server's answers, in the order of the calls."""
    return [called for exchange in run.exchanges if (called := _call(run, exchange, say)) is not None]


def trajectory_of(
    run: Run, calls: Sequence[Call], tools: ToolLists, tasks: Tasks, env: str, say: Say
) -> Trajectory | None:
    """The trajectory of a run; None if it has no calls, or if it calls tools that the server does not have."""
    if not calls:
        return None
    gone = sorted({action.name for action, result, _ in calls if not _is_known(action, result, run, tools)})
    if gone:
        say(
            f"{run.id}: left out, because the tool list has no {', '.join(map(repr, gone))}: record a run that lists "
            f"it or, if the server refused the call, delete the call in recordings/{run.id}.jsonl"
        )
        return None
    answer = next((note.answer for note in reversed(run.notes) if note.answer is not None), None)
    success = next((note.success for note in reversed(run.notes) if note.success is not None), None)
    is_finished = answer is not None or success is not None
    return Trajectory(
        id=trajectory_id(env, run.id),
        task=tasks.of(run),
        transitions=Transition.chain("", _timed(calls, run.started_at)),
        source=Source.REAL,
        stop_reason=StopReason.FINISHED if is_finished else StopReason.CLOSED,
        answer=None if answer is None else storable(answer),
        final_reward=None if success is None else float(success),
    )


def trajectory_id(env: str, run: str) -> str:
    """Id of the trajectory of a recorded run."""
    return f"{env}-{run}"


def unlisted(names: Collection[str], trajectory: Trajectory) -> list[str]:
    """Tools that a trajectory calls and `names` does not have, except those that the server refused as unknown."""
    calls = ((transition.action, transition.result) for transition in trajectory.transitions)
    return sorted({action.name for action, result in calls if action.name not in names and not refused(action, result)})


def refused(action: ToolCall, result: StepResult) -> bool:
    """True if the server answered that it has no such tool."""
    said = without_tool(result.observation, action.name)
    return result.is_error and "{tool}" in said and _UNKNOWN.search(said.replace("{tool}", "")) is not None


def _is_known(action: ToolCall, result: StepResult, run: Run, tools: ToolLists) -> bool:
    if action.name in tools.definitions:
        return True
    return action.name not in tools.named_in(run) and refused(action, result)


def _call(run: Run, exchange: Exchange, say: Say) -> Call | None:
    if exchange.method != "tools/call":
        return None
    name, arguments = exchange.params.get("name"), exchange.params.get("arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        say(f"{run.id}: a tools/call without a tool's name, or with arguments that are not an object, is left out")
        return None
    result = _result(exchange)
    if isinstance(result, str):
        say(f"{run.id}: the call of {name!r} is left out: {result}")
        return None
    try:
        json.dumps([arguments, result.info], allow_nan=False)
    except ValueError:
        say(f"{run.id}: the call of {name!r} is left out: it has NaN or an infinite number, which JSON does not allow")
        return None
    return ToolCall(name=name, arguments=storable_json(arguments)), storable_answer(result), exchange


def _result(exchange: Exchange) -> StepResult | str:
    """The server's answer, or the reason why there is none."""
    if exchange.result is not None:
        if not isinstance(exchange.result.get("content"), list) and "structuredContent" not in exchange.result:
            if "inputRequests" in exchange.result:
                return "the server asked for more input, and the call that gave it is recorded on its own"
            return "the answer is not a tool result"
        return result_of(exchange.result)
    error = exchange.error
    if error is None:
        return "the server never answered"
    message = str(error.get("message", ""))
    if error.get("code") == _CONNECTION_CLOSED and message.startswith("Connection closed"):
        return "the connection to the server was lost"
    return StepResult(observation=message, is_error=True, info={"error": error})


def _timed(calls: Sequence[Call], started_at: float) -> Iterator[tuple[ToolCall, StepResult]]:
    for action, result, exchange in calls:
        times: JsonObject = {
            "started_s": round(exchange.started_at - started_at, 6),
            "ended_s": round(exchange.ended_at - started_at, 6),
        }
        yield action, result.model_copy(update={"info": {**result.info, **times}})


def _asked(run: Run) -> tuple[str, str | None, Origin]:
    """Instruction, task id and origin. A task that somebody gave takes precedence over one that a model proposed."""
    about = [note for note in run.notes if _text(note.task) or _text(note.task_id)]
    given = [note for note in about if not note.proposed] or about
    instruction = next((text for note in reversed(given) if (text := _text(note.task))), "")
    task_id = next((text for note in reversed(given) if (text := _text(note.task_id))), None)
    return instruction, task_id, Origin.PROPOSED if given and given[0].proposed else Origin.SEED


def _text(label: str | None) -> str | None:
    """A label as PostgreSQL can store it; None if it is blank."""
    return storable(label) if label and label.strip() else None


def _task_id(instruction: str) -> str:
    """A readable id, the same for the same instruction."""
    words = re.findall(r"[a-z0-9]+", instruction.lower())
    return "-".join([*words[:5], sha256(instruction.encode()).hexdigest()[:8]])
