"""`dreamgym train` under a launcher: one run in two processes; only the first opens the store, probes and writes."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from dreamgym.embedding import load_encoder
from dreamgym.environment import read_jsonl
from dreamgym.replay.postgres import open_store
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject, Trajectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.anyio]
HERE = Path(__file__).parent
COIN = HERE.parents[1] / "examples" / "coin"
SMALL = ("--model", "nearest", "--groups", "2", "--group-size", "2", "--save-every", "1")
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc_per_node", "2")
ACCELERATE = "accelerate.commands.launch --num_processes 2 --num_machines 1 --mixed_precision no --dynamo_backend no"
ACCELERATE_ON_CPUS = (*ACCELERATE.split(), "--multi_gpu")
"""Without the last option, it starts only one process on CPUs."""


def launched(*options: str, launcher: Sequence[str] = TORCHRUN, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `dreamgym train` in two processes."""
    path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", *launcher, "-m", "dreamgym", "train", str(COIN), *SMALL, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


async def seeded(dsn: str) -> None:
    store = await open_store(dsn, load_encoder(None))
    recorded = read_jsonl(COIN / "trajectories.jsonl", Trajectory)
    await store.buffer.add([trajectory for trajectory in recorded if len(trajectory.transitions) <= 4])
    await store.close()


def updates(lines: list[JsonObject]) -> list[object]:
    return [line["step"] for line in lines if "inside_success" in line]


def probes(lines: list[JsonObject]) -> list[object]:
    return [line["step"] for line in lines if "real_success" in line]


@pytest.mark.long
async def test_two_processes_train_in_the_dream_then_in_reality_and_resume(dsn: str, tmp_path: Path) -> None:
    await seeded(dsn)
    out = tmp_path / "out"
    dreaming = ("--policy", "tiny", "--steps", "3", "--probe", "4", "--probe-every", "2")
    train = (*dreaming, "--out", str(out), "--then", "real", "--real-steps", "100")

    done = launched(*train)

    assert done.returncode == 0, done.stderr
    dreamed, real = (read_record(folder / "metrics.jsonl") for folder in (out, out / "real"))
    assert (updates(dreamed), probes(dreamed)) == ([0, 1, 2], [0, 2, 3])
    assert updates(real) == [0, 1]
    assert [line["groups"] for line in dreamed if "groups" in line] == [2, 2, 2], "both play, one writes"
    assert [done.stderr.count(words) for words in ("warm start:", "now in the real environment")] == [1, 1]
    assert done.stderr.count(f"policy saved to {out / 'policy'}") == 1
    assert json.loads((out / "settings.json").read_text())["steps"] == 3

    shutil.rmtree(out / "checkpoints" / "checkpoint-3")
    shutil.rmtree(out / "policy")
    shutil.rmtree(out / "real")
    again = launched(*train, "--resume", launcher=ACCELERATE_ON_CPUS)

    assert again.returncode == 0, again.stderr
    resumed = read_record(out / "metrics.jsonl")
    assert (updates(resumed), probes(resumed)) == ([0, 1, 2], [0, 2, 3])
    kept = [line for line in dreamed if int(str(line["step"])) < 2]
    assert resumed[: len(kept)] == kept, "what led to the checkpoint was not played again"
    assert updates(read_record(out / "real" / "metrics.jsonl")) == [0, 1]
    assert "warm start:" not in again.stderr


@pytest.mark.parametrize(
    ("options", "variables", "sentence"),
    [
        (("--algorithm", "sft"), {}, "sft learns from recordings in one process"),
        pytest.param(
            (), {"DREAMGYM_DSN": "postgresql://someone@127.0.0.1:9/none"}, "127.0.0.1", marks=pytest.mark.long
        ),
    ],
)
def test_if_the_first_process_fails_both_end_and_only_the_first_says_why(
    options: tuple[str, ...], variables: dict[str, str], sentence: str, tmp_path: Path
) -> None:
    done = launched("--policy", "tiny", "--probe", "0", "--out", str(tmp_path / "out"), *options, **variables)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("dreamgym: ")]
    assert len(said) == 1, done.stderr
    assert sentence in said[0]


@pytest.mark.long
async def test_if_another_process_dies_the_first_ends_and_so_does_its_server(dsn: str, tmp_path: Path) -> None:
    from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

    await seeded(dsn)
    policy, pipe = tmp_path / "untrained", tmp_path / "pipe"
    create_tiny_policy(read_jsonl(COIN / "trajectories.jsonl", Trajectory), policy, seed=0)
    os.mkfifo(pipe)
    options = ("--policy", str(policy), "--probe", "0", "--steps", "1", "--out", str(tmp_path / "out"))
    done = launched(*options, "--agent", "agent_that_dies:agent", DREAMGYM_TEST_PIPE=str(pipe))
    assert done.returncode != 0
    url = pipe.with_suffix(".url").read_text()
    assert url.startswith("http://127.0.0.1:"), done.stderr
    with pytest.raises(URLError, match="refused"):
        urlopen(url, timeout=5)
