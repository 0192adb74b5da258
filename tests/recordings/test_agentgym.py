"""Conversations with Thought, Action and Observation, in the words of real ALFWorld and WebShop episodes."""

import json
import lzma
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from importer_stage import DATA, imported, only, spec, steps, text_spec

from dreamgym.recordings.importers import ImportReport
from dreamgym.types import JsonObject

OPENING = "You are in the middle of a room.\nYour task is to: put some mug on desk."
RULES: JsonObject = {"from": "human", "value": "Interact with a household. Write Thought and Action.", "loss": None}


def human(value: str) -> JsonObject:
    return {"from": "human", "value": value, "loss": None}


def agent(value: str, loss: bool = True) -> JsonObject:
    return {"from": "gpt", "value": value, "loss": loss}


TURNS: list[JsonObject] = [
    RULES,
    agent("OK. I'll follow your instructions.", loss=False),
    human(OPENING),
    agent("Thought:\nI look.\n\nAction:\nlook"),
    human("Observation: You see a mug 1."),
    agent("Thought: take it. Action: no\nAction: take mug 1\nObservation: I have it!"),
    human("You pick up the mug 1."),
]


def test_the_prelude_is_not_part_of_the_episode(tmp_path: Path) -> None:
    trajectory = only(imported(tmp_path, text_spec(), {"conversations": TURNS, "item_id": "alfworld_3", "reward": 1}))
    assert trajectory.task.instruction == trajectory.task.initial_state == trajectory.transitions[0].state == OPENING
    assert steps(trajectory) == [
        ("act", {"command": "look"}, "You see a mug 1."),
        ("act", {"command": "take mug 1"}, "You pick up the mug 1."),
    ]
    assert (trajectory.final_reward, trajectory.task.metadata) == (1.0, {"agentgym_item": "alfworld_3"})


def test_a_worked_example_that_the_file_marks_is_not_part_of_the_episode(tmp_path: Path) -> None:
    example = [human("a room"), agent("Action: dance", loss=False), human("Nothing happens.")]
    trajectory = only(imported(tmp_path, text_spec(), {"conversations": [*TURNS[:2], *example, *TURNS[2:]]}))
    assert [step[1]["command"] for step in steps(trajectory)] == ["look", "take mug 1"]


def test_roles_and_content_are_the_same_as_from_and_value(tmp_path: Path) -> None:
    roles = {"human": "user", "gpt": "assistant"}
    turns = [{"role": roles[str(turn["from"])], "content": turn["value"]} for turn in TURNS]
    report = imported(tmp_path, text_spec(), turns)
    assert report.formats == {"agentgym": 1}
    assert len(only(report).transitions) == 2


def test_a_last_action_without_an_observation_is_left_out_and_reported(tmp_path: Path) -> None:
    report = imported(tmp_path, text_spec(), {"conversations": [*TURNS, agent("Action: put mug 1 on desk 1")]})
    assert len(report.trajectories[0].transitions) == 2
    assert report.left_out[0].where == "file.jsonl, line 1, turn 7"
    assert report.left_out[0].reason == "the action 'put mug 1 on desk 1' has no observation"


def test_actions_as_texts_do_not_fit_an_environment_with_several_tools(tmp_path: Path) -> None:
    report = imported(tmp_path, spec("look", "take"), {"conversations": TURNS})
    assert "its actions are texts, but environment 'crm' has no single tool" in report.skipped[0].reason


@pytest.mark.parametrize(
    "file", ["alfworld/trajectories_handcoded.jsonl.xz", "webshop/trajectories_oracle_random.jsonl.xz"]
)
def test_real_episodes_written_as_conversations_are_imported_exactly(file: str, tmp_path: Path) -> None:
    if not (DATA / file).exists():
        pytest.skip(f"the recorded episodes are not at {DATA / file}")
    with lzma.open(DATA / file, "rt", encoding="utf-8") as lines:
        episodes: list[dict[str, Any]] = [json.loads(line) for line in islice(lines, 40)]
    told = [
        [RULES, agent("OK", loss=False), human(episode["initial_observation"])]
        + [
            turn
            for step in episode["steps"]
            for turn in (agent(f"Thought: hm\nAction: {step['action']}"), human(f"Observation: {step['observation']}"))
        ]
        for episode in episodes
    ]
    report: ImportReport = imported(tmp_path, text_spec(), *({"conversations": turns} for turns in told))
    assert (len(report.trajectories), report.skipped, report.left_out) == (len(episodes), [], [])
    for trajectory, episode in zip(report.trajectories, episodes, strict=True):
        real = [(step["action"].strip(), step["observation"].lstrip()) for step in episode["steps"]]
        assert [(arguments["command"], seen) for _, arguments, seen in steps(trajectory)] == real
