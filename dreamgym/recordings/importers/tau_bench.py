"""Importer for runs of tau-bench: {task_id, trial, reward, info, traj}; traj is chat messages with tool calls.

Speaking to the user is an action, `respond`, whose observation is the simulated user's reply. The run ends with the
reply that contains ###STOP### or with the transfer to a human. A tool that fails answers with a text that starts with
"Error:" or "Unknown action ". If the reward is neither 0 nor 1, the outcome is not known, and the run has no end.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from pydantic import JsonValue

from dreamgym.recordings.importers.base import (
    Document,
    Found,
    ImportedEpisode,
    ImportedStep,
    Importer,
    Skipped,
    each,
    number,
    text,
)
from dreamgym.recordings.importers.messages import with_last_terminated
from dreamgym.recordings.importers.openai_chat import chat_episode
from dreamgym.state import as_object, objects
from dreamgym.types import JsonObject, StopReason, ToolCall

_STOP = "###STOP###"
_TRANSFER = "transfer_to_human_agents"
_ERRORS = ("Error:", "Unknown action ")


def matches(value: JsonValue) -> bool:
    """True for an object with a list `traj` and a `task_id`."""
    return isinstance(value, dict) and isinstance(value.get("traj"), list) and "task_id" in value


def read(document: Document) -> Iterator[Found]:
    """The episode of one run."""
    run = as_object(document.value)
    messages = objects(run.get("traj"))
    episode = chat_episode(messages, document.where)
    if not isinstance(episode, ImportedEpisode):
        yield episode
        return
    task = as_object(as_object(run.get("info")).get("task"))
    reward = number(run.get("reward"))
    is_rated = reward in {0.0, 1.0}
    episode = replace(
        episode,
        instruction=text(task.get("instruction")) or episode.instruction,
        opening=episode.instruction,
        steps=tuple(_with_error(step) for step in episode.steps),
        final_reward=reward if is_rated else None,
        metadata={"tau_bench_task": run.get("task_id")},
    )
    if is_rated:
        yield _ended(episode, messages)
    else:
        given = json.dumps(run.get("reward"))[:40]
        reason = f"its outcome is not known: expected the reward 0 or 1, got {given}"
        yield replace(episode, left_out=(*episode.left_out, Skipped(document.where, reason)))


def _with_error(step: ImportedStep) -> ImportedStep:
    if not isinstance(step.action, ToolCall) or not step.result.observation.startswith(_ERRORS):
        return step
    return replace(step, result=step.result.model_copy(update={"is_error": True}))


def _ended(episode: ImportedEpisode, messages: list[JsonObject]) -> ImportedEpisode:
    last = messages[-1]
    stopped = last.get("role") == "user" and _STOP in text(last.get("content"))
    transferred = last.get("role") == "tool" and last.get("name") == _TRANSFER
    if (stopped or transferred) and not episode.left_out:
        return with_last_terminated(episode)
    reason = StopReason.TERMINATED if stopped or transferred else StopReason.MAX_STEPS
    return replace(episode, stop_reason=episode.stop_reason if episode.answer is not None else reason)


TAU_BENCH = Importer("tau-bench", "runs of tau-bench", matches, each(read))
