"""Runs of tau-bench: the real gpt-4o airline runs, if they are available, and small made-up ones."""

import json
import lzma
from typing import Any

import pytest
from importer_stage import DATA, spec
from pydantic import JsonValue

from dreamgym.recordings.importers import FORMATS, Document, ImportReport, read_file
from dreamgym.types import JsonObject, Source, StopReason

RECORDED = DATA / "tau_bench/gpt-4o-airline.json.xz"
TOOLS = [
    "book_reservation",
    "calculate",
    "cancel_reservation",
    "get_reservation_details",
    "get_user_details",
    "list_all_airports",
    "search_direct_flight",
    "search_onestop_flight",
    "send_certificate",
    "think",
    "transfer_to_human_agents",
    "update_reservation_baggages",
    "update_reservation_flights",
    "update_reservation_passengers",
]


@pytest.fixture(scope="module")
def recorded() -> list[dict[str, Any]]:
    if not RECORDED.exists():
        pytest.skip(f"the recorded runs are not at {RECORDED}")
    with lzma.open(RECORDED, "rt") as file:
        runs: list[dict[str, Any]] = json.load(file)
    return runs


def test_all_recorded_runs_are_read_with_every_message_to_the_user_as_an_action(recorded: list[dict[str, Any]]) -> None:
    report = ImportReport()
    report.add(read_file(RECORDED), spec(*TOOLS, "respond"))
    assert (len(report.trajectories), report.skipped, report.left_out, report.replies) == (200, [], [], 0)
    assert report.formats == {"tau-bench": 200}
    steps = [step for trajectory in report.trajectories for step in trajectory.transitions]
    assert len(steps) == 2454 == sum(m["role"] == "assistant" for run in recorded for m in run["traj"])
    assert sum(trajectory.success for trajectory in report.trajectories) == 84
    assert sum(step.result.is_error for step in steps) == 73
    assert {trajectory.source for trajectory in report.trajectories} == {Source.IMPORTED}


@pytest.mark.usefixtures("recorded")
def test_without_a_tool_to_respond_the_calls_remain_and_omitted_messages_are_counted() -> None:
    report = ImportReport()
    report.add(read_file(RECORDED), spec(*TOOLS))
    steps = [step for trajectory in report.trajectories for step in trajectory.transitions]
    assert (len(report.trajectories), len(report.skipped), report.repeated) == (181, 18, 1)
    assert {skipped.reason for skipped in report.skipped} == {"has no tool call with a result"}
    assert (len(steps), report.replies) == (1153, 1157)


def run(*messages: JsonObject, reward: JsonValue = 1.0) -> JsonObject:
    task: JsonObject = {"instruction": "You are Mia and want a refund."}
    return {"task_id": 7, "trial": 0, "reward": reward, "info": {"task": task}, "traj": list(messages)}


def call(name: str, answer: str) -> list[JsonObject]:
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "1", "function": {"name": name, "arguments": ""}}],
        },
        {"role": "tool", "tool_call_id": "1", "name": name, "content": answer},
    ]


def test_the_first_words_of_the_user_are_the_first_state_and_the_scenario_is_the_instruction() -> None:
    report = ImportReport()
    found = FORMATS["tau-bench"].read([Document("x", run({"role": "user", "content": "Hi!"}, *call("think", "")))])
    report.add((("tau-bench", item) for item in found), spec("think"))
    (trajectory,) = report.trajectories
    assert trajectory.task.instruction == "You are Mia and want a refund."
    assert trajectory.task.initial_state == trajectory.transitions[0].state == "Hi!"
    assert trajectory.stop_reason is StopReason.MAX_STEPS


@pytest.mark.parametrize("reward", [1.0, 0.0])
def test_a_transfer_to_a_human_ends_the_run_and_is_rewarded_as_the_run_was(reward: float) -> None:
    report = ImportReport()
    talk = [*call("think", ""), *call("transfer_to_human_agents", "Transfer successful")]
    traj = run({"role": "user", "content": "Hi!"}, *talk, reward=reward)
    report.add(
        (("", item) for item in FORMATS["tau-bench"].read([Document("x", traj)])),
        spec("think", "transfer_to_human_agents"),
    )
    (trajectory,) = report.trajectories
    ends = [(step.result.reward, step.result.terminated) for step in trajectory.transitions]
    assert ends == [(0.0, False), (reward, True)], "a dream repeats single steps"
    assert (trajectory.stop_reason, trajectory.reward) == (StopReason.TERMINATED, reward)


@pytest.mark.parametrize("reward", [None, "1.0", 0.2])
def test_a_run_whose_reward_is_neither_0_nor_1_has_no_known_outcome(reward: JsonValue) -> None:
    report = ImportReport()
    traj = run({"role": "user", "content": "Hi!"}, *call("transfer_to_human_agents", "done"), reward=reward)
    found = FORMATS["tau-bench"].read([Document("x", traj)])
    report.add((("tau-bench", item) for item in found), spec("transfer_to_human_agents"))
    (trajectory,) = report.trajectories
    assert (trajectory.reward, trajectory.stop_reason) == (None, StopReason.CLOSED)
    assert not trajectory.transitions[-1].result.terminated
    assert [one.reason for one in report.left_out] == [
        f"its outcome is not known: expected the reward 0 or 1, got {json.dumps(reward)}"
    ]
