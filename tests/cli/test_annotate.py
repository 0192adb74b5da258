"""`dreamgym annotate ENV --model TEACHER` writes traces into the recorded trajectories, and can resume."""

import asyncio
import fcntl
import json
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from dreamgym_integrations.models.chat_server import Reply, chat_server

from dreamgym.cli.app import main
from dreamgym.environment import read_jsonl
from dreamgym.errors import InvalidInput
from dreamgym.files import write_whole
from dreamgym.runs.play_many import InFile
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

pytestmark = pytest.mark.anyio

Command = Callable[..., Awaitable[tuple[int, str, str]]]


@pytest.fixture
def annotate(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `dreamgym annotate` beside the environment folder `desk`; returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dreamgym", "annotate", "desk", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    async def in_a_thread(*arguments: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(command, *arguments)

    return in_a_thread


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The trajectories of a folder: two episodes of one step, about Ada and about Bob."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "desk"\n')
    (folder / "tools.json").write_text('{"tools": [{"name": "find", "inputSchema": {"type": "object"}}]}')
    path = folder / "trajectories.jsonl"
    path.write_text("".join(f"{episode(name).model_dump_json()}\n" for name in ("Ada", "Bob")))
    return path


def episode(name: str) -> Trajectory:
    step = Transition(
        state="",
        action=ToolCall(name="find", arguments={"name": name}),
        result=StepResult(observation=f"{name} is in."),
        next_state=f"{name} is in.",
        provenance=Provenance(tier=Tier.REAL),
    )
    task = Task(id="t", env="desk", instruction="Find them.")
    return Trajectory(id=name, task=task, transitions=(step,), source=Source.REAL, stop_reason=StopReason.FINISHED)


class Teacher:
    """Writes a trace for every episode except those of `unknown` people; keeps the names that it was asked about."""

    def __init__(self, *unknown: str) -> None:
        self._unknown = unknown
        self.asked: list[str] = []

    def __call__(self, messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        episode = str(messages[1]["content"]) if len(messages) > 1 else ""
        name = "Ada" if "Ada" in episode else "Bob" if "Bob" in episode else "probe"
        self.asked.append(name)
        if name in self._unknown:
            return Reply("I do not know.")
        tutorial = {"overall_plan": "p", "success_mode": "s", "failure_mode": "f"}
        return Reply(json.dumps(tutorial | {"step_1": f"{name} is known."}))


def reasoning(file: Path) -> dict[str, str]:
    return {one.id: one.transitions[0].reasoning for one in read_jsonl(file, Trajectory)}


async def test_traces_are_written_into_the_file_of_the_trajectories(annotate: Command, file: Path) -> None:
    async with chat_server(Teacher()) as url:
        code, out, err = await annotate("--model", url)
    assert (code, out) == (0, "desk/trajectories.jsonl: 2 trajectories annotated, 0 left as they were\n")
    assert "2 of 2" in err
    assert reasoning(file) == {"Ada": "Ada is known.", "Bob": "Bob is known."}


async def test_an_episode_that_fails_is_named_and_unchanged_and_a_second_run_asks_only_for_it(
    annotate: Command, file: Path
) -> None:
    async with chat_server(Teacher("Bob")) as url:
        code, out, err = await annotate("--model", url)
    assert (code, out) == (0, "desk/trajectories.jsonl: 1 trajectories annotated, 1 left as they were\n")
    assert "Bob: left as it was: " in err
    assert reasoning(file) == {"Ada": "Ada is known.", "Bob": ""}
    teacher = Teacher()
    async with chat_server(teacher) as url:
        code, _, _ = await annotate("--model", url)
    assert code == 0
    assert "Ada" not in teacher.asked
    assert reasoning(file)["Bob"] == "Bob is known."


async def test_with_a_useless_teacher_the_command_fails_and_changes_nothing(annotate: Command, file: Path) -> None:
    before = reasoning(file)
    async with chat_server(Teacher("Ada", "Bob")) as url:
        code, out, _ = await annotate("--model", url)
    assert code == 1
    assert "0 trajectories annotated, 2 left" in out
    assert reasoning(file) == before


async def test_a_model_that_is_not_a_language_model_is_refused(annotate: Command, file: Path) -> None:
    code, _, err = await annotate("--model", "nearest")
    assert code != 0
    assert "--model nearest cannot write reasoning: expected a language model" in err


async def test_a_file_that_is_not_there_is_named(annotate: Command, file: Path) -> None:
    file.unlink()
    code, _, err = await annotate("--model", "nearest")
    assert code != 0
    assert "there is no such file" in err


async def test_a_file_that_a_collection_is_writing_to_is_refused(annotate: Command, file: Path) -> None:
    before = file.read_bytes()
    async with chat_server(Teacher()) as url:
        with file.open("ab") as collection:
            fcntl.flock(collection, fcntl.LOCK_EX)
            code, _, err = await annotate("--model", url)
    assert code == 2
    assert "another command is writing to it" in err
    assert file.read_bytes() == before


async def test_a_collection_into_the_file_is_refused_while_a_teacher_annotates_it(
    annotate: Command, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dreamgym.runs.annotate.SAVE_EVERY_S", -1.0)
    refused = []

    def teacher(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        with pytest.raises(InvalidInput, match="another command is writing to it"):
            InFile(file)
        refused.append(1)
        return Teacher()(messages, tools)

    async with chat_server(teacher) as url:
        assert (await annotate("--model", url))[0] == 0
    assert len(refused) >= 2
    assert reasoning(file) == {"Ada": "Ada is known.", "Bob": "Bob is known."}


async def test_what_others_change_in_the_file_while_a_teacher_annotates_it_stays(annotate: Command, file: Path) -> None:
    def teacher(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        ada = episode("Ada").model_copy(update={"final_reward": 1.0})
        write_whole(file, "".join(f"{one.model_dump_json()}\n" for one in (episode("Cid"), ada, episode("Bob"))))
        return Teacher()(messages, tools)

    async with chat_server(teacher) as url:
        assert (await annotate("--model", url))[0] == 0
    assert reasoning(file) == {"Cid": "", "Ada": "Ada is known.", "Bob": "Bob is known."}
    assert [one.final_reward for one in read_jsonl(file, Trajectory)] == [None, 1.0, None]
