"""`dreamgym tasks ENV` lists the value of each task, and varies those that are solved only sometimes."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from dreamgym_integrations.models.chat_server import Reply, chat_server

from dreamgym.cli.app import main
from dreamgym.embedding import load_encoder
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.replay.postgres import Store, open_store
from dreamgym.types import (
    JsonObject,
    Origin,
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
WAYS = {"east": ["hall", "kitchen", "cellar"], "west": ["porch", "attic"]}
"""Each task, and the states of its recorded episode; the step from the last one wins."""


@pytest.fixture
def tasks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, dsn: str) -> Command:
    """Runs `dreamgym tasks` on the deterministic environment `rooms`; returns exit code, stdout and stderr."""
    folder = tmp_path / "rooms"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "rooms"\ndeterministic = true\n')
    (folder / "tools.json").write_text('{"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}')
    (folder / "tasks.jsonl").write_text(task("north").model_dump_json() + "\n")
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dreamgym", "tasks", "rooms", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        said = capsys.readouterr()
        return int(exit_.value.code or 0), said.out, said.err

    async def in_a_thread(*arguments: str) -> tuple[int, str, str]:
        return await asyncio.to_thread(command, *arguments)

    return in_a_thread


@pytest.fixture
async def filled(dsn: str) -> AsyncIterator[Store]:
    """A store with the two recorded tasks, neither of which a policy has tried."""
    store = await open_store(dsn, load_encoder(None))
    await store.buffer.add([played(name, way) for name, way in WAYS.items()])
    yield store
    await store.close()


def task(name: str) -> Task:
    return Task(id=name, env="rooms", instruction="find the coin", initial_state=WAYS.get(name, [""])[0])


def played(name: str, way: list[str]) -> Trajectory:
    steps = [
        Transition(
            state=state,
            action=ToolCall(name="go", arguments={"to": there}),
            result=StepResult(observation=there, reward=float(there == "won"), terminated=there == "won"),
            next_state=there,
            provenance=Provenance(tier=Tier.REAL),
        )
        for state, there in zip(way, [*way[1:], "won"], strict=True)
    ]
    return Trajectory(
        id=f"play {name}",
        task=task(name),
        transitions=tuple(steps),
        source=Source.REAL,
        stop_reason=StopReason.TERMINATED,
        world=name,
    )


async def test_tasks_are_listed_with_the_outcomes_of_the_last_policy(tasks: Command, filled: Store) -> None:
    for version, rewards in ((1, [0.0] * 4), (2, [1.0, 0.0, 1.0, 1.0])):
        await filled.buffer.record_outcomes("rooms", "west", version, rewards)
    code, out, _ = await tasks("--sort", "value", "--json")
    assert code == 0
    west, east, north = json.loads(out)
    assert (west["id"], east["id"], north["id"]) == ("west", "east", "north"), (
        "'north' is only in the folder, not in the store"
    )
    assert (west["attempts"], west["version"], west["tried"], west["value"]) == (8, 2, 4, 0.1875)
    assert west["success"] == pytest.approx({"mean": 0.75, "low": 0.3006, "high": 0.9544, "n": 4}, abs=1e-4)
    assert (east["attempts"], east["success"], east["value"]) == (0, None, None)
    code, out, _ = await tasks()
    head, *rows = out.splitlines()
    assert head.split() == ["task", "origin", "parent", "attempts", "success", "value", "instruction"]
    assert rows[0].split() == ["east", "seed", "0", "find", "the", "coin"]
    assert " ".join(rows[1].split()) == "west seed 8 75.0 % [30.1, 95.4] 0.188 find the coin"


async def test_the_hardest_and_the_most_tried_come_first_when_asked_for(tasks: Command, filled: Store) -> None:
    await filled.buffer.record_outcomes("rooms", "east", 1, [1.0] * 3)
    await filled.buffer.record_outcomes("rooms", "west", 1, [0.0] * 2)
    for by, order in (("success", ["west", "east", "north"]), ("attempts", ["east", "west", "north"])):
        _, out, _ = await tasks("--sort", by, "--json")
        assert [listed["id"] for listed in json.loads(out)] == order


async def test_new_tasks_start_elsewhere_in_the_worlds_of_the_valuable_ones_and_are_stored_once(
    tasks: Command, filled: Store
) -> None:
    await filled.buffer.record_outcomes("rooms", "east", 1, [1.0, 0.0])
    await filled.buffer.record_outcomes("rooms", "west", 1, [0.0, 0.0])
    code, out, _ = await tasks("--generate", "1", "--model", "nearest", "--json")
    (made,) = json.loads(out)
    assert (code, made["origin"], made["parent"]) == (0, "generated", "east")
    code, out, err = await tasks("--generate", "5", "--model", "nearest", "--json")
    starts = {made["initial_state"], *(task["initial_state"] for task in json.loads(out))}
    assert (code, starts) == (0, {"kitchen", "cellar"})
    assert "made 1 of 5 tasks: found no other new task that can be played" in err
    stored = [task for task in await filled.buffer.tasks("rooms") if task.origin is Origin.GENERATED]
    assert {task.initial_state for task in stored} == starts
    code, out, err = await tasks("--generate", "1", "--model", "nearest")
    assert (code, out) == (1, "")
    assert "no new task came from varying the tasks of 'rooms' that are solved only sometimes (1)" in err


async def test_if_no_task_is_solved_only_sometimes_the_message_has_the_number_of_tried_ones(
    tasks: Command, filled: Store
) -> None:
    await filled.buffer.record_outcomes("rooms", "east", 1, [1.0, 1.0])
    code, out, err = await tasks("--generate", "1", "--model", "nearest")
    assert (code, out) == (2, "")
    assert "no task of 'rooms' is known to be solved only sometimes (1 of 3 were tried)" in err


async def test_a_task_of_the_test_is_not_varied(tasks: Command, filled: Store) -> None:
    tested = task("south").model_copy(update={"initial_state": "yard", "metadata": {"split": "test"}})
    episode = played("south", ["yard", "shed"]).model_copy(update={"task": tested})
    await filled.buffer.add([episode])
    await filled.buffer.record_outcomes("rooms", "south", 1, [1.0, 0.0])
    code, out, err = await tasks("--generate", "1", "--model", "nearest")
    assert (code, out) == (2, "")
    assert "no task of 'rooms' is known to be solved only sometimes (0 of 3 were tried)" in err


async def test_without_a_language_model_only_a_deterministic_environment_can_be_varied(
    tasks: Command, filled: Store
) -> None:
    Path("rooms/env.toml").write_text('name = "rooms"\n')
    code, _, err = await tasks("--generate", "1", "--model", "nearest")
    assert code == 2
    assert "there is no language model to write new tasks" in err
    assert "give a language model with --model" in err


async def test_a_language_model_words_new_tasks_and_its_failure_is_reported(tasks: Command, filled: Store) -> None:
    await filled.buffer.record_outcomes("rooms", "east", 1, [1.0, 0.0])
    Path("rooms/env.toml").write_text('name = "rooms"\n')

    def proposes(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        if "candidates" in str(messages[0]["content"]):
            return Reply('{"reasoning": "hard", "selection": 1}')
        return Reply('{"variations": [{"instruction": "find the coin", "initial_state": "cellar"}]}')

    async with chat_server(proposes) as url:
        code, out, _ = await tasks("--generate", "1", "--model", url, "--json")
    assert code == 0
    assert [task["initial_state"] for task in json.loads(out)] == ["cellar"]
    async with chat_server(lambda messages, tools: Reply("no idea")) as url:
        code, out, err = await tasks("--generate", "1", "--model", url)
    assert (code, out) == (1, "")
    assert "east: " in err
    assert "no new task came from varying" in err


async def test_tasks_of_the_folder_and_those_stored_before_are_listed_and_shown_to_a_model_redacted(
    tasks: Command, filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    Path("rooms/env.toml").write_text('name = "rooms"\n[redact]\n')
    before, told = [
        task(name).model_copy(update={"instruction": f"ask ann.lee@corp.net in the {name}"})
        for name in ("north", "south")
    ]
    await filled.buffer.add_tasks([before])  # as a version that did not redact tasks stored it
    await filled.buffer.record_outcomes("rooms", "north", 1, [1.0, 0.0])
    Path("rooms/tasks.jsonl").write_text(told.model_dump_json() + "\n")
    asked: list[str] = []

    def proposes(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        asked.append(str(messages[0]["content"]))
        if "candidates" in asked[-1]:
            return Reply('{"reasoning": "hard", "selection": 1}')
        return Reply('{"variations": [{"instruction": "ask Bob", "initial_state": null}]}')

    async with chat_server(proposes) as url:
        code, out, err = await tasks("--generate", "1", "--model", url, "--json")
    (made,) = json.loads(out)
    assert (code, made["parent"], made["instruction"]) == (0, "north", "ask Bob"), err
    listed = [row["instruction"] for row in json.loads((await tasks("--json"))[1])]
    assert sum(text.startswith("ask user-") for text in listed) == 2
    assert any("ask user-" in text for text in asked)
    assert "ann.lee" not in "".join((*asked, *listed))


INN = """
class Inn:
    spec = {"name": "rooms", "tools_list": [{"tools": [{"name": "go"}]}], "adapter": "inn"}
    behaviours = {}

    def tasks(self, split):
        from dreamgym import Task

        return [Task(id=split, env="rooms", instruction=f"ask ann.lee@corp.net for the {split} key")]

    def create(self):
        raise RuntimeError("only its tasks are wanted")


def inn(options):
    return Inn()
"""


@pytest.mark.parametrize("is_redacted", [False, True])
async def test_no_new_task_has_the_words_of_a_test_task_of_the_installed_environment(
    tasks: Command, filled: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_redacted: bool
) -> None:
    (tmp_path / "inn.py").write_text(INN)
    (tmp_path / "inn-1.0.dist-info").mkdir()
    (tmp_path / "inn-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: inn\nVersion: 1.0\n")
    (tmp_path / "inn-1.0.dist-info/entry_points.txt").write_text("[dreamgym.environments]\ninn = inn:inn\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    Path("rooms/env.toml").write_text('name = "rooms"\n[real]\nadapter = "inn"\n' + "[redact]\n" * is_redacted)
    await filled.buffer.add_tasks([task("north")])
    await filled.buffer.record_outcomes("rooms", "north", 1, [1.0, 0.0])
    words = [f"ask ann.lee@corp.net for the {split} key" for split in ("test", "dev", "train")]
    if is_redacted:  # the model knows placeholders only
        words = [Redactor(RedactionRules(), key=load_key()).text(text) for text in words]

    def proposes(messages: list[JsonObject], tools: list[JsonObject]) -> Reply:
        if "candidates" in str(messages[0]["content"]):
            return Reply('{"reasoning": "hard", "selection": 1}')
        return Reply(json.dumps({"variations": [{"instruction": text, "initial_state": None} for text in words]}))

    async with chat_server(proposes) as url:
        code, out, err = await tasks("--generate", "1", "--model", url, "--json")
    assert code == 0, err
    assert [made["instruction"] for made in json.loads(out)] == words[2:]
