"""Several processes train one policy: each plays its share, and all end with the same weights and curriculum."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal
from lamp_runs import same, trained, weights

from dreamgym import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.training.practice import Settings
from dreamgym.training.record import read_record

SETTINGS = Settings(steps=3, groups=4, group_size=4, save_every=2)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_two_processes_train_one_policy(
    algorithm: str, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path
) -> None:
    settings = SETTINGS.model_copy(update={"algorithm": algorithm})
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(lamp_spec.model_dump_json())
    script = [str(Path(__file__).with_name("two_processes.py")), str(spec), str(lamp_policy), str(out)]
    done = subprocess.run(
        [sys.executable, *script, settings.model_dump_json()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((out / f"process-{i}.json").read_text()) for i in range(2))
    assert first == second
    lines = read_record(out / "m.jsonl")
    assert [line["step"] for line in lines] == [0, 1, 2], "one process writes the record"
    assert {path.name for path in (out / "checkpoints").iterdir() if path.is_dir()} >= {
        f"checkpoint-{step * (4 if algorithm == 'ppo' else 1)}" for step in (2, 3)
    }
    assert not same(weights(lamp_policy), weights(out / "policy"))


def test_groups_that_do_not_split_over_the_processes_are_refused() -> None:
    from dreamgym_integrations.trainers.policy.train import check_settings

    with pytest.raises(InvalidInput, match=r"a multiple of the number of processes \(3\), got 4"):
        check_settings(SETTINGS, 3)
    with pytest.raises(InvalidInput, match="a vLLM server gets its weights from a single process"):
        check_settings(SETTINGS.model_copy(update={"vllm": "http://127.0.0.1:1"}), 2)


def test_a_single_process_writes_the_whole_record(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    played = trained(lamp_spec, lamp_policy, tmp_path, SETTINGS, portal)
    assert (played.processes.index, played.processes.count) == (0, 1)
    assert len(read_record(tmp_path / "m.jsonl")) == 3
