"""A shared environment folder runs none of its own code, unless the command line asks for the real environment."""

import shutil
from pathlib import Path

import pytest
from command_line import Command

COIN = Path(__file__).parents[2] / "examples" / "coin"
DREAMS = [
    ("play", "--agent", "AGENT", "--model", "nearest"),
    ("collect", "--agent", "expert", "--episodes", "1", "--against", "dream", "--model", "nearest"),
    ("eval", "--policy", "POLICY", "--episodes", "1", "--model", "nearest"),
    ("fidelity", "--model", "nearest", "--limit", "2"),
    ("check", "--against", "dream", "--model", "nearest"),
    ("train", "--policy", "POLICY", "--model", "nearest", "--steps", "1"),
    ("tasks",),
]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder whose real environment is code that leaves a mark when it is imported."""
    folder = shutil.copytree(COIN, tmp_path / "shared")
    code = folder / "mine.py"
    code.write_text(
        f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\ndef make(options): raise SystemExit\n"
    )
    (folder / "env.toml").write_text(
        "\n".join(
            f'adapter = "{code}:make"' if line.startswith("adapter") else line
            for line in (folder / "env.toml").read_text().splitlines()
        )
    )
    assert "mine.py:make" in (folder / "env.toml").read_text()
    return folder


@pytest.mark.parametrize("verb", DREAMS, ids=lambda verb: verb[0])
def test_a_dream_of_the_folder_does_not_run_its_code(
    dreamgym: Command, dsn: str, shared: Path, verb: tuple[str, ...], tmp_path: Path
) -> None:
    agent = tmp_path / "agent.py"
    agent.write_text("async def act(task, mcp_url, policy_url): return 'done'\n")
    name, *rest = (f"{agent}:act" if word == "AGENT" else word for word in verb)
    out = ("--out", str(tmp_path / "out")) if name in {"train", "fidelity"} else ()
    dreamgym(name, str(shared), *rest, *out)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("verb", ["show", "doctor"])
def test_looking_at_the_folder_does_not_run_its_code_and_says_so(
    dreamgym: Command, shared: Path, verb: str, tmp_path: Path
) -> None:
    code, out, err = dreamgym("env", verb, str(shared))
    assert code != 0
    assert "has code of its own" in out + err
    assert not (tmp_path / "ran").exists()


def test_its_code_runs_if_the_real_environment_is_asked_for(dreamgym: Command, shared: Path, tmp_path: Path) -> None:
    dreamgym("collect", str(shared), "--agent", "expert", "--episodes", "1", "--against", "real")
    assert (tmp_path / "ran").exists()
