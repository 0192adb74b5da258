"""The commands do what they promise, and answer misuse with one line that lists the valid choices."""

import asyncio
import gc
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from pathlib import Path

import aiohttp
import pytest
from command_line import Command
from typer import Typer

from dreamgym.cli import main, main_serve
from dreamgym.cli.boundary import run
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import load_real, read_jsonl
from dreamgym.replay.postgres import open_store
from dreamgym.types import Trajectory

COIN = str(Path(__file__).parents[2] / "examples" / "coin")


def test_an_unknown_environment_is_misuse_and_lists_the_known_ones(dreamgym: Command) -> None:
    code, out, err = dreamgym("collect", "chess", "--agent", "expert", "--episodes", "1")
    assert (code, out) == (2, "")
    assert re.search("unknown environment 'chess': expected one of .*coin, ", err)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("check", "a" * 300, "--against", "real"), "File name too long"),
        (("eval", COIN, "--against", "real", "--policy", "a" * 300), "File name too long"),
        (("view", COIN, "--export", f"{COIN}/env.toml/page"), "Not a directory"),
    ],
)
def test_a_path_that_cannot_be_used_is_told_in_one_line(
    dreamgym: Command, arguments: tuple[str, ...], reason: str
) -> None:
    code, out, err = dreamgym(*arguments)
    assert (code, out) == (2, "")
    assert err.endswith(f" cannot be used: {reason}; check the path, and who may read and write it\n")
    assert err.count("\n") == 1


def test_a_time_before_all_dates_of_the_database_is_refused_in_one_line(dreamgym: Command, dsn: str) -> None:
    code, out, err = dreamgym("db", "prune", "--days", "99999999999")
    assert (code, out) == (2, "")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    "verb", [("train", "--steps", "1", "--without", "history"), ("train", "--steps", "1"), ("eval",)]
)
def test_nothing_can_be_left_out_of_the_real_environment(
    dreamgym: Command, verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *rest = verb
    code, _, err = dreamgym(
        name, "coin", *rest, "--policy", "p", "--against", "real", "--model", "nearest without history"
    )
    assert code == 2
    assert re.search("without is for dreams: leave it out with --against|leave out model, without with against", err)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "verb",
    [("eval", "--policy", "p"), ("collect", "--agent", "expert", "--episodes", "1"), ("play", "--agent", "expert")],
)
def test_a_model_for_the_real_environment_is_refused(
    dreamgym: Command, verb: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name, *rest = verb
    code, out, err = dreamgym(name, "coin", *rest, "--against", "real", "--model", "nearest")
    assert (code, out) == (2, "")
    assert "--model 'nearest' is for --against dream: leave it out" in err
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_agent_lists_the_known_ones(dreamgym: Command, dsn: str) -> None:
    code, _, err = dreamgym("play", "coin", "--agent", "nobody", "--model", "nearest")
    assert code == 2
    assert "unknown agent 'nobody': expected one of langgraph, openai_agents, react" in err
    assert "The behaviours of this environment are expert, expert_40, expert_60, " in err


def test_a_dream_of_a_folder_that_lists_no_tasks_plays_those_of_its_recordings(
    dreamgym: Command, dsn: str, tmp_path: Path
) -> None:
    folder = tmp_path / "crm"
    folder.mkdir()
    (folder / "env.toml").write_text('name = "crm"\n')
    tool = {"name": "find", "inputSchema": {"type": "object", "properties": {"q": {"type": "string"}}}}
    (folder / "tools.json").write_text(json.dumps({"tools": [tool]}))
    said = {"action": {"name": "find", "arguments": {"q": "Mia"}}, "observation": "7"}
    (tmp_path / "episodes.json").write_text(json.dumps([{"instruction": "Who is Mia?", "steps": [said]}]))
    (tmp_path / "mine.py").write_text("async def agent(task, mcp_url):\n    return task\n")
    recorded = folder / "trajectories.jsonl"
    err = dreamgym("import", str(tmp_path / "episodes.json"), "--env", str(folder), "--out", str(recorded))[2]
    assert "'crm' counts as a text game" in err
    code, out, err = dreamgym("play", str(folder), "--agent", f"{tmp_path}/mine.py:agent", "--model", "nearest")
    assert code == 0, err
    assert "Who is Mia?" in out


@pytest.mark.parametrize("parameters", ["task", "task, mcp_url, policy_url, more", "task, *, mcp_url"])
def test_a_function_that_takes_other_parameters_than_an_agent_is_refused_before_anything_is_played(
    dreamgym: Command, dsn: str, tmp_path: Path, parameters: str
) -> None:
    (tmp_path / "mine.py").write_text(f"async def agent({parameters}): ...\n")
    code, _, err = dreamgym("play", "coin", "--agent", f"{tmp_path}/mine.py:agent", "--model", "nearest")
    assert code == 2
    assert f"(task, mcp_url, policy_url) or (task, mcp_url), got one of ({parameters})" in err


@pytest.mark.parametrize("parameters", ["task, mcp_url", "task, mcp_url, policy_url=''"])
def test_an_agent_that_is_not_async_gives_one_sentence(
    dreamgym: Command, dsn: str, tmp_path: Path, parameters: str
) -> None:
    (tmp_path / "mine.py").write_text(f"def agent({parameters}): return 'done'\n")
    _, _, err = dreamgym("play", "coin", "--agent", f"{tmp_path}/mine.py:agent", "--model", "nearest")
    assert "expected an async function; write `async def`" in err
    assert "Traceback" not in err


def test_an_unknown_split_lists_the_splits(dreamgym: Command, dsn: str) -> None:
    code, _, err = dreamgym("collect", "coin", "--agent", "expert", "--episodes", "1", "--split", "x")
    assert code == 2
    assert "unknown split 'x': expected one of dev, test, train" in err


def test_a_database_that_cannot_be_reached_gives_one_sentence_without_the_password(
    dreamgym: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_DSN", "postgresql://someone:hunter2@127.0.0.1:9/none")
    code, _, err = dreamgym("seed", COIN, f"{COIN}/trajectories.jsonl")
    assert code == 1
    assert "hunter2" not in err
    assert len(err.strip().splitlines()) == 1


def test_collected_episodes_are_written_as_lines_that_seed_stores_once(
    dreamgym: Command, dsn: str, tmp_path: Path
) -> None:
    file = tmp_path / "played.jsonl"
    collect = ("collect", "coin", "--agent", "expert", "--episodes", "6", "--out", str(file))
    assert dreamgym(*collect)[0] == 0
    played = read_jsonl(file, Trajectory)
    assert [trajectory.task.id for trajectory in played] == [task.id for task in load_real("coin").tasks("train")[:6]]
    assert "6 of 6 trajectories are new" in dreamgym("seed", "coin", str(file))[2]
    assert "0 of 6 trajectories are new" in dreamgym("seed", "coin", str(file))[2]


def test_one_malformed_line_keeps_the_whole_file_out_and_is_named(dreamgym: Command, dsn: str, tmp_path: Path) -> None:
    good = Path(COIN, "trajectories.jsonl").read_text().splitlines()
    file = tmp_path / "broken.jsonl"
    file.write_text("\n".join([good[0], good[1].replace('"stop_reason":"', '"stop_reason":"no-'), good[2]]))
    code, _, err = dreamgym("seed", COIN, str(file))
    assert code == 2
    assert "broken.jsonl, line 2: stop_reason" in err
    file.write_text("\n".join(good[:3]))
    assert "3 of 3 trajectories are new" in dreamgym("seed", COIN, str(file))[2]


def test_a_trajectory_of_another_environment_is_refused(dreamgym: Command, dsn: str, tmp_path: Path) -> None:
    line = json.loads(Path(COIN, "trajectories.jsonl").read_text().splitlines()[0])
    line["task"]["env"] = "chess"
    file = tmp_path / "chess.jsonl"
    file.write_text(json.dumps(line))
    code, _, err = dreamgym("seed", COIN, str(file))
    assert code == 2
    assert "it belongs to environment 'chess', not 'coin'" in err


def test_play_first_stores_what_is_new_in_the_folder_and_prints_an_episode_with_where_each_answer_came_from(
    dreamgym: Command, dsn: str
) -> None:
    code, out, err = dreamgym("play", COIN, "--agent", "expert", "--model", "nearest")
    assert code == 0
    assert "trajectories are new" in err
    assert "task   Search the house for the coin and take it." in out
    assert "[recorded]" in out
    assert out.splitlines()[-1].startswith("end    ")


def test_play_that_fails_leaves_no_connection_open(dreamgym: Command, dsn: str) -> None:
    code, _, _ = dreamgym("play", COIN, "--agent", "expert", "--model", "nearest without retrieval")
    assert code == 1
    assert [one for one in gc.get_objects() if type(one) is aiohttp.ClientSession and not one.closed] == []


def test_an_agent_that_asks_no_model_needs_no_endpoint_and_any_other_is_refused_without_one(
    dreamgym: Command, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    agents = tmp_path / "agents.py"
    agents.write_text(
        "async def alone(task, mcp_url): return 'nothing to do'\n"
        "async def either(task, mcp_url, policy_url=''): return f'asked {policy_url!r}'\n"
        "async def asking(task, mcp_url, policy_url): return 'never'\n"
    )
    play = ("play", COIN, "--model", "nearest", "--agent")
    for agent, answer in (("alone", "nothing to do"), ("either", "asked ''")):
        code, out, _ = dreamgym(*play, f"{agents}:{agent}")
        assert (code, f"answer {answer}" in out) == (0, True)
    code, _, err = dreamgym(*play, f"{agents}:asking")
    assert code == 2
    assert "this agent needs a chat model: set OPENAI_BASE_URL" in err
    collect = ("collect", COIN, "--episodes", "1", "--against", "dream", "--model", "nearest", "--agent")
    assert dreamgym(*collect, f"{agents}:alone")[0] == 0
    assert dreamgym(*collect, f"{agents}:asking")[0] == 2


async def recordings(dsn: str) -> list[str]:
    """Ids of the stored recordings of coin."""
    store = await open_store(dsn, TrigramEncoder())
    found = await store.buffer.trajectories("coin")
    await store.close()
    return [one.id for one in found]


def test_play_prints_an_episode_of_the_real_game_and_stores_it_as_a_recording_only_when_told_to(
    dreamgym: Command, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    real = ("play", "coin", "--agent", "expert", "--against", "real")
    code, out, err = dreamgym(*real)
    assert (code, err) == (0, "not stored; --store stores a real episode as a recording\n")
    assert "[real]" in out
    assert asyncio.run(recordings(dsn)) == []
    assert dreamgym(*real, "--store")[::2] == (0, "stored as a recording\n")
    assert len(asyncio.run(recordings(dsn))) == 1
    code, _, err = dreamgym("play", "coin", "--agent", "expert", "--store")
    assert (code, "--store is for --against real" in err) == (2, True)


def test_play_finds_a_task_of_any_split_by_its_id(dreamgym: Command, dsn: str) -> None:
    task = load_real("coin").tasks("dev")[3]
    code, out, _ = dreamgym("play", "coin", "--agent", "expert", "--against", "real", "--task", task.id)
    assert code == 0
    assert f"start  {(task.initial_state or '').splitlines()[0]}" in out
    code, _, err = dreamgym("play", "coin", "--agent", "expert", "--against", "real", "--task", "nope")
    assert code == 2
    assert re.search("unknown task 'nope': train has .* … .*, dev has .*, test has ", err)


def test_a_folder_without_a_policy_is_misuse(dreamgym: Command, tmp_path: Path) -> None:
    code, _, err = dreamgym("eval", "coin", "--policy", str(tmp_path), "--against", "real")
    assert code == 2
    assert "no policy checkpoint" in err


@pytest.mark.slow
@pytest.mark.long
def test_a_tiny_policy_is_trained_in_the_dream_resumed_and_evaluated_in_reality(
    dreamgym: Command, dsn: str, tmp_path: Path
) -> None:
    lines = Path(COIN, "trajectories.jsonl").read_text().splitlines()
    few = tmp_path / "short.jsonl"
    few.write_text("\n".join(line for line in lines if len(json.loads(line)["transitions"]) <= 4))
    assert dreamgym("seed", COIN, str(few))[0] == 0
    out = tmp_path / "run"
    train = ("train", COIN, "--policy", "tiny", "--model", "nearest", "--out", str(out), "--probe", "10")
    assert dreamgym(*train, "--steps", "2")[0] == 0
    code, _, err = dreamgym(*train, "--steps", "2")
    assert code == 2
    assert "--resume" in err
    code, _, err = dreamgym(*train, "--steps", "3", "--resume")
    assert code == 2
    assert "steps was 2 and is 3 now" in err
    assert dreamgym(*train, "--steps", "2", "--resume")[0] == 0
    record = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in record if "inside_success" in line] == [0, 1]
    evaluate = ("eval", "coin", "--policy", str(out / "policy"), "--against", "real", "--episodes", "20", "--json")
    results = [json.loads(dreamgym(*evaluate)[1]) for _ in range(2)]
    assert results[0] == results[1]
    assert results[0]["success"]["n"] == 20


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_verb_runs_ends_the_program_without_a_traceback(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Starting(Typer):
        def __call__(self, *args: object, **kwargs: object) -> None:
            signal.raise_signal(number)

    monkeypatch.setattr(sys, "argv", ["dreamgym", "models"])
    with pytest.raises(SystemExit) as exit_:
        run(Starting())
    assert exit_.value.code == 130


@pytest.mark.parametrize(("program", "module"), [(main, "dreamgym.cli.app"), (main_serve, "dreamgym.cli.serve")])
def test_ctrl_c_while_the_program_is_imported_ends_it_without_a_traceback(
    program: Callable[[], None], module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Importing(MetaPathFinder):
        def find_spec(self, name: str, path: object, target: object = None) -> None:
            if name == module:
                signal.raise_signal(signal.SIGINT)

    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Importing(), *sys.meta_path])
    with pytest.raises(SystemExit) as exit_:
        program()
    assert exit_.value.code == 130


@pytest.mark.parametrize(
    "start",
    ["from dreamgym.cli import main; main()", "import runpy; runpy.run_module('dreamgym', run_name='__main__')"],
)
def test_ctrl_c_while_the_first_package_is_imported_ends_the_program_without_a_traceback(start: str) -> None:
    pressing = (
        "import signal, sys\n"
        "class Pressing:\n"
        "    def find_spec(name, path, target=None):\n"
        "        if name == 'pydantic':\n"
        "            signal.raise_signal(signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressing)\n"
        "sys.argv = ['dreamgym', 'models']\n"
    )
    done = subprocess.run([sys.executable, "-c", pressing + start], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")
