"""Importer for episodes of text environments as lists of steps, and for InterCode's results, the same in columns.

    {instruction, initial_observation, steps: [{action, observation, reward, done}]}
    {"0": {query, turn_history: {actions, observations, rewards, valid_action}, summary}}

An action is a text, or a call as {name, arguments}. A step with `is_error` true is a tool error. InterCode's reward of
a turn is the score so far, not a part of a sum. The episode gets the best one, as InterCode's own summary does. An
action that InterCode marks as not valid could not be run, so it is a tool error. `success` (true or false) says how the
episode ended, and replaces the rewards of its steps. Without it, the step with `done` does so by its reward. If that
step has no reward, if its reward and the sum of all disagree, or if one of the rewards or `success` cannot be read, the
reward of the episode is not known.
"""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import JsonValue

from dreamgym.dream.task_check import PARTS
from dreamgym.recordings.folder.trajectories import RECORDED
from dreamgym.recordings.importers.base import (
    Command,
    Document,
    Found,
    ImportedEpisode,
    ImportedStep,
    Importer,
    Skipped,
    each,
    keys_of,
    number,
)
from dreamgym.recordings.importers.base import text as string
from dreamgym.recordings.importers.messages import ToolRequest, action_of, result_from
from dreamgym.state import objects
from dreamgym.types import JsonObject, StepResult, StopReason

_INSTRUCTIONS = ("instruction", "task_description", "query", "goal")
_COLUMNS = {"action": "actions", "observation": "observations", "valid": "valid_action"}
_SHORT = 200
"""Longest text beside the steps that counts as a description of the task, in characters."""
_EXPECTED = 'expected {"action": {"name": TOOL, "arguments": {}}, "observation": TEXT}'
_OTHERS = ("messages", "conversations", "conversation", "traj", "transitions", "values", "items", "input", "output")
"""Keys of other formats. An object with one of them beside `steps` is of this format only if one of its steps has both
`action` and `observation`."""


def matches(value: JsonValue) -> bool:
    """True for an episode with steps, or an object with InterCode's results by index."""
    return any(_rows(episode) for _, episode in _episodes(value))


def read(document: Document) -> Iterator[Found]:
    """The episodes of one document."""
    episodes = list(_episodes(document.value))
    for key, fields in episodes:
        yield _episode(fields, f"{document.where}, {key!r}" if key else document.where)
    if not episodes:
        yield Skipped(document.where, "has no steps with action and observation")


def _episode(fields: JsonObject, where: str) -> ImportedEpisode:
    steps: list[ImportedStep] = []
    left_out: list[Skipped] = []
    rows = _rows(fields)
    rewards: list[float | None] = []
    done, readable = False, True
    for index, row in enumerate(rows):
        step = _step(row)
        if done:
            left_out.append(Skipped(f"{where}, step {index}", "comes after the end of the episode"))
        elif isinstance(step, str):
            left_out.append(Skipped(f"{where}, step {index}", step))
        else:
            steps.append(step)
            rewards.append(number(row.get("reward")))
            if rewards[-1] is None and row.get("reward") is not None:
                readable = False
                left_out.append(Skipped(f"{where}, step {index}", "its reward is not a finite number"))
            done = row.get("done") is True
            if not isinstance(row.get("done", False), bool | None):
                left_out.append(Skipped(f"{where}, step {index}", "its done is neither true nor false"))
    final = _verdict(fields)
    if fields.get("success") not in (None, 0, 1):
        readable = False
        left_out.append(Skipped(where, "its success is neither true nor false"))
    # a step that ends the task has a known reward; without a reward, the end must stay open
    is_rated = readable and (final is not None or rewards[-1:] not in ([], [None]))
    if done and is_rated and final is None:
        known = [reward or 0.0 for reward in rewards]
        if doubt := _doubt(known):
            is_rated = False
            steps[-1] = ImportedStep(steps[-1].action, steps[-1].result.model_copy(update={"reward": 0.0}))
            left_out.append(Skipped(where, f"{doubt}: add `success`, true or false"))
        elif known[-1] <= 0 < sum(known):  # 0.1 + 0.2 - 0.3 is not quite 0, and any positive sum is a success
            final = 0.0
    if done and is_rated:
        ended = steps[-1].result.model_copy(update={"terminated": True})
        steps[-1] = ImportedStep(steps[-1].action, ended)
    opening = _observed(fields.get("initial_observation")).observation
    instruction, passed_over = _instruction(fields)
    left_out += [Skipped(where, f"its {name} is not a text") for name in passed_over]
    return ImportedEpisode(
        where=where,
        instruction=instruction or opening,
        opening=opening or None,
        steps=tuple(steps),
        stop_reason=StopReason.TERMINATED if done and is_rated else StopReason.CLOSED,
        final_reward=final,
        metadata={name: value for name, value in fields.items() if _describes(name, value)},
        left_out=tuple(left_out),
    )


def _instruction(fields: JsonObject) -> tuple[str, list[str]]:
    """The first instruction that is a text, and the names of those before it that are not; "" if there is none."""
    passed_over: list[str] = []
    for name in _INSTRUCTIONS:
        if instruction := string(fields.get(name)):
            return instruction, passed_over
        if fields.get(name):
            passed_over.append(name)
    return "", passed_over


def _verdict(fields: JsonObject) -> float | None:
    """The final reward; None if the episode does not tell whether it succeeded. InterCode succeeds with a score of 1.

    A score is no reward: any positive reward counts as a success.
    """
    summary, success = fields.get("summary"), fields.get("success")
    if success is not None:
        return float(success) if success in (0, 1) else None
    score = number(summary.get("max_reward")) if isinstance(summary, dict) else None
    return None if score is None else float(score == 1)


def _doubt(rewards: list[float]) -> str:
    """The reason why the rewards of an episode that has ended do not tell whether it succeeded; "" if they do.

    A trajectory succeeds with a positive sum, and in a dream its last step does with a positive reward.
    """
    last, total = rewards[-1], round(sum(rewards), 9)
    if 0 < last < 1:
        return "its last reward is a score between 0 and 1"
    if (last > 0) != (total > 0):
        return f"its last reward is {last:g}, and the sum of its rewards {total:g}"
    return ""


def _step(row: JsonObject) -> ImportedStep | str:
    """The step, or the reason why it cannot be used."""
    missing = [repr(name) for name in ("action", "observation") if row.get(name) is None]
    if missing:
        return f"has no {' and no '.join(missing)}; {_EXPECTED}, got an object with {keys_of(row)}"
    result = _observed(row["observation"], is_error=row.get("valid") is False or row.get("is_error") is True)
    result = result.model_copy(update={"reward": number(row.get("reward")) or 0.0})
    action = row["action"]
    if isinstance(action, str) and action.strip():
        return ImportedStep(Command(action), result)
    if not isinstance(action, dict):
        return f"its action is neither a text nor a call; {_EXPECTED}"
    missing = [repr(name) for name in ("name", "arguments") if name not in action]
    if missing and set(action) != {"name"}:
        return f"its action has no {' and no '.join(missing)}; {_EXPECTED}, got an action with {keys_of(action)}"
    call = action_of(ToolRequest(string(action.get("name")), action.get("arguments")))
    return call if isinstance(call, str) else ImportedStep(call, result)


def _observed(observation: JsonValue, *, is_error: bool = False) -> StepResult:
    """The result with this observation. An empty list is an answer, rather than content without a block."""
    return result_from("[]" if observation == [] else observation, is_error=is_error)


def _episodes(value: JsonValue) -> Iterator[tuple[str, JsonObject]]:
    """The episodes in a document, each with its key; "" if the document itself is the episode."""
    if not isinstance(value, dict):
        return
    if _rows(value):
        yield "", value
        return
    for key, inner in value.items():
        if isinstance(inner, dict) and isinstance(inner.get("turn_history"), dict):
            yield key, inner


def _rows(fields: JsonObject) -> list[JsonObject]:
    history = fields.get("turn_history")
    if not isinstance(history, dict):
        rows = objects(fields.get("steps"))
        is_ours = not fields.keys() & set(_OTHERS) or any("action" in row and "observation" in row for row in rows)
        return rows if is_ours else []
    columns = {name: history.get(column) for name, column in _COLUMNS.items()}
    actions = columns["action"]
    length = len(actions) if isinstance(actions, list) else 0
    return [
        {name: column[index] for name, column in columns.items() if isinstance(column, list) and index < len(column)}
        for index in range(length)
    ]


def _describes(name: str, value: JsonValue) -> bool:
    # `success` and `answers` of a file say how its episode ended; in the metadata they would be the task's own check.
    # Its `world` and `recorded` are words of its own too, which the metadata would give another meaning.
    if name in (*_INSTRUCTIONS, "initial_observation", *PARTS, "world", RECORDED):
        return False
    return isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= _SHORT)


STEPS = Importer("steps", "episodes as lists of action, observation and reward", matches, each(read))
