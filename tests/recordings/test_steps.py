"""Episodes of text environments, real and made up, as lists of steps and in InterCode's columns."""

import json
from pathlib import Path
from typing import Any

import pytest
from importer_stage import DATA, imported, only, spec, steps, text_spec
from pydantic import JsonValue

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.recordings.importers import ImportReport, read_file
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import JsonObject, StopReason

STEP: JsonObject = {"action": "look", "observation": "a mug", "reward": 0.5, "done": False}


@pytest.mark.parametrize(
    ("file", "episodes", "transitions"),
    [
        ("alfworld/trajectories_handcoded.jsonl.xz", 40, 907),
        ("alfworld/trajectories_planner.jsonl.xz", 190, 1131),
        ("webshop/trajectories_oracle_random.jsonl.xz", 400, 3100),
        ("scienceworld/gold_trajectories.jsonl.xz", 48, 824),
        ("intercode/ic_bash_multiturn_gpt-4_10_turns_fs_1.json.xz", 60, 401),
        ("intercode/ic_sql_multiturn_gpt-4_10_turns.json.xz", 1034, 5867),
    ],
)
def test_real_recordings_are_imported_whole(file: str, episodes: int, transitions: int) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"the recorded episodes are not at {DATA / file}")
    report = ImportReport()
    report.add(read_file(DATA / file), text_spec())
    scores = sum("is a score between 0 and 1" in one.reason for one in report.left_out)
    assert (report.skipped, len(report.left_out) - scores, report.repeated) == ([], 0, 0)
    assert scores == (73 if file.startswith("webshop") else 0)
    assert report.formats == {"steps": episodes}
    assert sum(len(trajectory.transitions) for trajectory in report.trajectories) == transitions


def test_the_first_state_is_the_initial_observation_and_rewards_stay_with_their_steps(tmp_path: Path) -> None:
    episode = {"goal": "find it", "initial_observation": "a room", "split": "train", "steps": [STEP, STEP]}
    trajectory = only(imported(tmp_path, text_spec(), episode))
    assert [transition.state for transition in trajectory.transitions] == ["a room", "a mug"]
    assert (trajectory.task.instruction, trajectory.task.metadata) == ("find it", {"split": "train"})
    assert (trajectory.total_reward, trajectory.final_reward) == (1.0, None)


def test_a_first_observation_that_is_json_is_read_as_those_of_the_steps_are(tmp_path: Path) -> None:
    first: JsonObject = {"room": 1}
    episode: JsonObject = {"goal": "find it", "initial_observation": first, "steps": [{**STEP, "observation": first}]}
    trajectory = only(imported(tmp_path, text_spec(), episode))
    (step,) = trajectory.transitions
    assert trajectory.task.initial_state == step.state == step.result.observation == '{"room": 1}'


def test_a_first_observation_that_is_an_empty_list_is_kept_as_those_of_the_steps_are(tmp_path: Path) -> None:
    episode: JsonObject = {"goal": "find it", "initial_observation": [], "steps": [{**STEP, "observation": []}]}
    trajectory = only(imported(tmp_path, text_spec(), episode))
    (step,) = trajectory.transitions
    assert trajectory.task.initial_state == step.state == step.result.observation == "[]"


def test_the_instruction_is_the_first_text_and_one_that_is_no_text_before_it_is_reported(tmp_path: Path) -> None:
    instructions: list[tuple[JsonObject, str, list[str]]] = [
        ({"instruction": {"text": "Find"}, "goal": "find it"}, "find it", ["its instruction is not a text"]),
        ({"instruction": "find it", "goal": {"object": "mug"}}, "find it", []),
        ({"query": ["find", "it"], "initial_observation": "a room"}, "a room", ["its query is not a text"]),
        ({"instruction": "", "goal": None}, "", []),
    ]
    for fields, told, reasons in instructions:
        report = imported(tmp_path, text_spec(), {**fields, "steps": [STEP]})
        (trajectory,) = report.trajectories
        assert (trajectory.task.instruction, [one.reason for one in report.left_out]) == (told, reasons)


def test_a_score_between_0_and_1_is_no_success_unless_the_episode_says_so(tmp_path: Path) -> None:
    end = {**STEP, "reward": 0.25, "done": True}
    scored: dict[str, Any] = {"goal": "find it", "steps": [end]}
    report = imported(tmp_path, text_spec(), scored)
    (unknown,) = report.trajectories
    assert (unknown.success, unknown.reward) == (False, None)
    assert "add `success`, true or false" in report.left_out[0].reason
    for success in (True, False):
        told = only(imported(tmp_path, text_spec(), {**scored, "success": success}))
        assert (told.success, told.reward) == (success, float(success))


@pytest.mark.anyio
@pytest.mark.parametrize("success", [True, False])
@pytest.mark.parametrize("end", [1, 0.25, 0, None])
async def test_a_dream_rewards_the_end_as_success_says_whatever_the_rewards_are(
    end: float | None, success: bool, tmp_path: Path
) -> None:
    rows: list[JsonValue] = [STEP, {"action": "take", "observation": "done", "reward": end, "done": True}]
    told = only(imported(tmp_path, text_spec(), {"goal": "find it", "steps": rows, "success": success}))
    assert (told.success, told.reward) == (success, float(success))
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([told])
    for is_deterministic in (True, False):
        dreamed = text_spec().model_copy(update={"deterministic": is_deterministic})
        environment = DreamEnvironment(dreamed, NearestModel(), buffer)
        await environment.reset(told.task, seed=1)
        results = [await environment.step(step.action) for step in told.transitions]
        assert [(result.reward, result.terminated) for result in results] == [(0, False), (float(success), True)]


def test_success_without_an_end_replaces_the_rewards_of_the_steps(tmp_path: Path) -> None:
    told = only(imported(tmp_path, text_spec(), {"goal": "find it", "steps": [STEP, STEP], "success": False}))
    assert (told.success, told.reward) == (False, 0.0)


@pytest.mark.parametrize(
    ("rewards", "reason"),
    [
        ([0.25, 0], "its last reward is 0, and the sum of its rewards 0.25: add `success`, true or false"),
        ([-2, 1], "its last reward is 1, and the sum of its rewards -1: add `success`, true or false"),
    ],
)
def test_an_end_whose_reward_and_sum_disagree_about_the_success_stays_open(
    rewards: list[float], reason: str, tmp_path: Path
) -> None:
    rows: list[JsonValue] = [{**STEP, "reward": reward, "done": reward == rewards[-1]} for reward in rewards]
    report = imported(tmp_path, text_spec(), {"goal": "find it", "steps": rows})
    (unknown,) = report.trajectories
    assert (unknown.success, unknown.reward) == (False, None)
    assert [one.reason for one in report.left_out] == [reason]


def test_rewards_that_sum_up_to_0_as_decimals_are_no_success(tmp_path: Path) -> None:
    rewards = [0.1, 0.2, -0.3, 0]
    assert sum(rewards) > 0
    rows: list[JsonValue] = [{**STEP, "reward": reward, "done": reward == 0} for reward in rewards]
    report = imported(tmp_path, text_spec(), {"goal": "find it", "steps": rows})
    (told,) = report.trajectories
    assert (told.success, told.reward, report.left_out) == (False, 0.0, [])


def test_a_result_of_intercode_succeeds_only_with_a_score_of_1(tmp_path: Path) -> None:
    for score in (0.0, 0.66, 1.0):
        episode = {"query": "count them", "steps": [{**STEP, "reward": score}], "summary": {"max_reward": score}}
        told = only(imported(tmp_path, text_spec(), episode))
        assert (told.success, told.final_reward) == (score == 1, float(score == 1))


def test_an_outcome_beside_the_steps_is_not_taken_for_the_check_of_the_task(tmp_path: Path) -> None:
    episode = {"goal": "find it", "success": True, "answers": "a mug", "split": "train", "steps": [STEP]}
    assert only(imported(tmp_path, text_spec(), episode)).task.metadata == {"split": "train"}


def test_episodes_of_a_file_that_names_one_world_do_not_share_hidden_facts(tmp_path: Path) -> None:
    told: JsonObject = {"world": "zork", "recorded": True, "split": "train", "steps": [STEP]}
    report = imported(tmp_path, text_spec(), {**told, "goal": "find the mug"}, {**told, "goal": "find the key"})
    tasks = [trajectory.task for trajectory in report.trajectories]
    assert [task.metadata for task in tasks] == [{"split": "train"}] * 2
    assert len({task.world for task in tasks}) == 2


def test_steps_after_the_end_and_steps_without_an_observation_are_reported(tmp_path: Path) -> None:
    rows = [{"action": "look"}, {**STEP, "reward": 1.0, "done": True}, STEP]
    report = imported(tmp_path, text_spec(), {"instruction": "go", "steps": rows})
    (trajectory,) = report.trajectories
    assert (len(trajectory.transitions), trajectory.stop_reason) == (1, StopReason.TERMINATED)
    assert [skipped.where for skipped in report.left_out] == [
        "file.jsonl, line 1, step 0",
        "file.jsonl, line 1, step 2",
    ]


@pytest.mark.parametrize("given", [{}, {"reward": None}])
def test_an_episode_that_is_done_but_has_no_reward_gets_no_reward(given: JsonObject, tmp_path: Path) -> None:
    row: JsonObject = {"action": "look", "observation": "solved!", "done": True, **given}
    trajectory = only(imported(tmp_path, text_spec(), {"instruction": "go", "steps": [row]}))
    assert trajectory.reward is None
    rated = only(imported(tmp_path, text_spec(), {"instruction": "go", "steps": [{**row, "reward": 0}]}))
    assert (rated.reward, rated.stop_reason) == (0.0, StopReason.TERMINATED)


def test_an_episode_whose_end_has_no_reward_gets_its_reward_from_success_alone(tmp_path: Path) -> None:
    rows: list[JsonValue] = [STEP, {"action": "look", "observation": "solved!", "done": True}]
    unknown = only(imported(tmp_path, text_spec(), {"instruction": "go", "steps": rows}))
    assert (unknown.reward, unknown.stop_reason) == (None, StopReason.CLOSED)
    for success in (True, False, 1, 0):
        told = only(imported(tmp_path, text_spec(), {"instruction": "go", "steps": rows, "success": success}))
        assert (told.success, told.stop_reason) == (bool(success), StopReason.TERMINATED)


@pytest.mark.parametrize("success", ["no", 0.5, [], {}])
def test_a_success_that_is_neither_true_nor_false_is_reported_and_the_reward_is_unknown(
    success: JsonValue, tmp_path: Path
) -> None:
    row: JsonObject = {**STEP, "reward": 1.0, "done": True}
    report = imported(tmp_path, text_spec(), {"instruction": "go", "steps": [row], "success": success})
    assert (report.trajectories[0].reward, report.trajectories[0].success) == (None, False)
    assert [one.reason for one in report.left_out] == ["its success is neither true nor false"]


def test_a_reward_that_is_not_a_number_is_reported_and_the_reward_is_unknown(tmp_path: Path) -> None:
    rows: list[JsonValue] = [STEP, {**STEP, "reward": "1.0", "done": True}]
    report = imported(tmp_path, text_spec(), {"instruction": "go", "steps": rows})
    (trajectory,) = report.trajectories
    assert (trajectory.reward, len(trajectory.transitions)) == (None, 2)
    assert [(one.where, one.reason) for one in report.left_out] == [
        ("file.jsonl, line 1, step 1", "its reward is not a finite number")
    ]


def test_a_done_that_is_neither_true_nor_false_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    report = imported(tmp_path, text_spec(), {"goal": "find it", "steps": [{**STEP, "done": 1}]})
    assert report.trajectories[0].stop_reason is StopReason.CLOSED
    assert [one.reason for one in report.left_out] == ["its done is neither true nor false"]


def test_an_action_may_be_a_call(tmp_path: Path) -> None:
    row: JsonObject = {**STEP, "action": {"name": "find", "arguments": {"q": 1}}}
    assert steps(only(imported(tmp_path, spec("find"), {"steps": [row]}))) == [("find", {"q": 1}, "a mug")]


def test_answers_that_are_json_and_errors_that_are_marked_are_kept(tmp_path: Path) -> None:
    action: JsonObject = {"name": "find", "arguments": '{"q": 1}'}
    rows = [{"action": action, "observation": {"id": 7}}, {"action": action, "observation": "no", "is_error": True}]
    rows.append({"action": action, "observation": []})
    trajectory = only(imported(tmp_path, spec("find"), {"instruction": "go", "steps": rows}))
    assert steps(trajectory) == [("find", {"q": 1}, '{"id": 7}'), ("find", {"q": 1}, "no"), ("find", {"q": 1}, "[]")]
    assert [step.result.is_error for step in trajectory.transitions] == [False, True, False]


@pytest.mark.parametrize(
    "answer",
    [
        {"id": 7, "title": "Plan", "content": []},
        {"type": "doc", "content": [{"type": "paragraph", "content": [{"type": "text", "text": "hi"}]}]},
        {"id": "m1", "content": [{"type": "text", "text": "hi"}], "usage": {"tokens": 3}},
        [{"type": "invoice", "id": 1}],
        [{"type": "text", "label": "Name"}],
    ],
)
def test_an_answer_with_content_of_its_own_keeps_all_its_fields(answer: JsonValue, tmp_path: Path) -> None:
    trajectory = only(
        imported(tmp_path, text_spec(), {"instruction": "go", "steps": [{**STEP, "observation": answer}]})
    )
    assert json.loads(trajectory.transitions[0].result.observation) == answer


NO_USER: JsonObject = {"type": "text", "text": "no such user"}


def test_an_answer_in_the_form_of_an_mcp_result_is_read_as_one(tmp_path: Path) -> None:
    rows: list[JsonValue] = [
        {**STEP, "observation": {"content": [{"type": "text", "text": "hi"}], "_meta": {"a": 1}}},
        {**STEP, "observation": {"content": [], "isError": True}},
        {**STEP, "observation": {"content": [NO_USER], "structured_content": None, "is_error": True, "meta": None}},
        {**STEP, "observation": [NO_USER, {"type": "document", "source": "…"}]},
        {**STEP, "observation": {"content": [NO_USER], "isError": True, "id": 3}},
    ]
    said, failed, *others = only(imported(tmp_path, text_spec(), {"instruction": "go", "steps": rows})).transitions
    assert (said.result.observation, said.result.info["meta"]) == ("hi", {"a": 1})
    assert (failed.result.observation, failed.result.is_error) == ("", True)
    assert [(one.result.observation, one.result.is_error) for one in others] == [
        ("no such user", True),
        ("no such user\n[document]", False),
        ("no such user", True),
    ]


CALL: JsonObject = {"name": "find", "arguments": {}}
EXPECTED = 'expected {"action": {"name": TOOL, "arguments": {}}, "observation": TEXT}, got an'


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"tool": "find", "args": {}, "result": "#7"},
            f"has no 'action' and no 'observation'; {EXPECTED} object with 'tool', 'args', 'result'",
        ),
        ({"action": CALL, "result": "#7"}, f"has no 'observation'; {EXPECTED} object with 'action', 'result'"),
        (
            {"action": {"tool": "find", "args": {}}, "observation": "#7"},
            f"its action has no 'name' and no 'arguments'; {EXPECTED} action with 'tool', 'args'",
        ),
        (
            {"action": {"name": "find", "args": {"q": 1}}, "observation": "#7"},
            f"its action has no 'arguments'; {EXPECTED} action with 'name', 'args'",
        ),
    ],
)
def test_a_step_that_is_nearly_right_is_reported_with_its_missing_fields(
    row: JsonObject, reason: str, tmp_path: Path
) -> None:
    alone = imported(tmp_path, spec("find"), {"instruction": "go", "steps": [row]})
    assert alone.skipped[0].reason == f"has no tool call with a result; file.jsonl, line 1, step 0: {reason}"
    good: JsonObject = {"action": CALL, "observation": "#7"}
    beside = imported(tmp_path, spec("find"), {"instruction": "go", "steps": [good, row]})
    assert [(one.where, one.reason) for one in beside.left_out] == [("file.jsonl, line 1, step 1", reason)]


def test_intercodes_score_below_1_is_a_failure_and_an_invalid_action_an_error(tmp_path: Path) -> None:
    history = {
        "actions": ["ls", "cat"],
        "observations": ["", "x"],
        "rewards": [0.6, 0.9],
        "valid_action": [False, True],
    }
    episode = {"query": "list", "turn_history": history, "summary": {"max_reward": 0.9}}
    trajectory = only(imported(tmp_path, text_spec(), {"0": episode}))
    assert (trajectory.total_reward, trajectory.final_reward) == (0.0, 0.0)
    assert [transition.result.is_error for transition in trajectory.transitions] == [True, False]
