"""A run that cannot go on reports why and what to do, and everything that it saved before stays intact."""

import importlib
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.common.checkpoints import replaced_folder
from dreamgym_integrations.trainers.policy.run_folder import begin, identity, newest_checkpoint
from dreamgym_integrations.trainers.policy.sft import imitate
from dreamgym_integrations.trainers.policy.train import train_policy
from lamp import LampEnvironment
from lamp_runs import broken_after, lamp, same, trained, weights

from dreamgym import EnvironmentSpec, StepResult, ToolCall
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.environment import Environment
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, MissingPackage, TrainingStopped
from dreamgym.training.early_stop import Seen
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.record import read_record
from dreamgym.training.rollout import TokenPlayer

SETTINGS = Settings(steps=4, groups=2, group_size=4, save_every=2, probe_every=1)
Probe = Callable[[Any, Any, int], Any]


class Hopeless(LampEnvironment):
    """A lamp that accepts no colour."""

    async def step(self, action: ToolCall) -> StepResult:
        return StepResult(observation="wrong", is_error=True)


def hopeless(version: int, group: str) -> Environment:
    return Hopeless()


def spoiled_after(step: int) -> Probe:
    """A probe that sets a weight to NaN after the given number of updates."""

    async def spoil(policy: Any, codec: Any, update: int) -> Seen:
        if update == step:
            with torch.no_grad():
                policy.model.lm_head.weight[0, 0] = float("nan")
        return Seen(best=False, stop=False)

    return spoil


def test_a_loss_that_is_not_finite_stops_the_run_and_the_checkpoint_before_it_stays(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    # the probe comes after the check of the weights, so the next loss detects it
    with pytest.raises(TrainingStopped, match=r"the loss is not a finite number in update 3: .*smaller learning_rate"):
        trained(lamp_spec, lamp_policy, tmp_path, SETTINGS, portal, probe=spoiled_after(3))
    found = newest_checkpoint(tmp_path, identity(lamp_spec, lamp_policy, SETTINGS))
    assert found is not None
    assert found.name == "checkpoint-2"
    assert not (tmp_path / "policy").exists()


def test_a_weight_that_is_not_finite_is_never_saved(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"learning_rate": 1e39, "save_every": 1})
    with pytest.raises(TrainingStopped, match=r"is not a finite number in update [12]"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    for folder in (tmp_path / "checkpoints").glob("checkpoint-*"):
        assert all(bool(weight.isfinite().all()) for weight in weights(folder).values())


def test_a_policy_that_learned_a_weight_that_is_not_finite_from_recordings_is_not_saved(
    lamp_policy: Path, tmp_path: Path
) -> None:
    row = {"input_ids": [5, 6, 7, 8], "labels": [5, 6, 7, 8]}
    with pytest.raises(TrainingStopped, match=r"a weight is not a finite number after 2 updates: .*smaller learning_"):
        imitate([row], lamp_policy, tmp_path / "p", steps=2, batch=1, learning_rate=1e39, seed=0)
    assert not (tmp_path / "p" / "config.json").exists()


def test_a_checkpoint_is_saved_with_each_best_policy_so_that_a_resumed_run_still_has_both(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"save_every": 50})

    async def best_at_one(policy: Any, codec: Any, update: int) -> Seen:
        if update == 2:
            raise EnvironmentUnavailable("gone")
        return Seen(best=update == 1, stop=False)

    with pytest.raises(EnvironmentUnavailable):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, probe=best_at_one)
    found = newest_checkpoint(tmp_path, identity(lamp_spec, lamp_policy, settings))
    assert found is not None
    assert same(weights(found), weights(tmp_path / "best" / "1"))


def test_cudnn_attention_whose_gradients_may_be_nan_is_off_while_a_policy_learns(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    before, seen = torch.backends.cuda.cudnn_sdp_enabled(), []

    async def look(policy: Any, codec: Any, update: int) -> Seen:
        seen.append(torch.backends.cuda.cudnn_sdp_enabled())
        return Seen(best=False, stop=False)

    trained(lamp_spec, lamp_policy, tmp_path, SETTINGS, portal, probe=look)
    assert set(seen) == {False}
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


def test_a_run_that_never_succeeds_stops_and_reports_what_helps(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"dead_updates": 2})
    with pytest.raises(TrainingStopped, match=r"no rollout of the last 2 updates .*warm-start .*easier .*larger"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, make=hopeless)
    assert len(read_record(tmp_path / "m.jsonl")) == 2


def test_a_resumed_run_counts_the_updates_without_a_success_before_it(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"dead_updates": 3, "save_every": 1, "steps": 8})
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, make=hopeless, probe=broken_after(2))
    with pytest.raises(TrainingStopped, match="no rollout of the last 3 updates"):
        trained(lamp_spec, lamp_policy, tmp_path, settings, portal, make=hopeless, resume=True)
    assert len(read_record(tmp_path / "m.jsonl")) == 3


def test_dead_updates_can_be_allowed(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"dead_updates": 0})
    played = trained(lamp_spec, lamp_policy, tmp_path, settings, portal, make=hopeless)
    assert played.dead_updates == 4
    assert same(weights(lamp_policy), weights(tmp_path / "policy")), "nothing was learned from nothing"


def test_a_disk_that_is_full_while_saving_costs_only_what_was_not_saved(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def fill(policy: Any, codec: Any, step: int) -> Seen:
        if step == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        return Seen(best=False, stop=False)

    straight, full = tmp_path / "straight", tmp_path / "full"
    trained(lamp_spec, lamp_policy, straight, SETTINGS, portal)
    try:
        with pytest.raises(TrainingStopped, match=r"checkpoint-4 cannot be saved: .*make room and resume"):
            trained(lamp_spec, lamp_policy, full, SETTINGS, portal, probe=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (full / "checkpoints" / "checkpoint-4").exists(), "half of it is there"
    trained(lamp_spec, lamp_policy, full, SETTINGS, portal, resume=True)
    assert same(weights(straight / "policy"), weights(full / "policy"))


@pytest.mark.parametrize("algorithm", ["grpo", pytest.param("ppo", marks=pytest.mark.long)])
def test_ctrl_c_saves_after_the_running_update_and_the_run_goes_on_from_there(
    algorithm: str, lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"steps": 3, "save_every": 50, "algorithm": algorithm})

    async def press(policy: Any, codec: Any, step: int) -> Seen:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return Seen(best=False, stop=False)

    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    trained(lamp_spec, lamp_policy, straight, settings, portal)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        trained(lamp_spec, lamp_policy, stopped, settings, portal, probe=press)
    assert signal.getsignal(signal.SIGINT) is before
    found = newest_checkpoint(stopped, identity(lamp_spec, lamp_policy, settings))
    assert found is not None
    assert not (stopped / "policy").exists()
    trained(lamp_spec, lamp_policy, stopped, settings, portal, resume=True)
    assert same(weights(straight / "policy"), weights(stopped / "policy"))
    assert [line["step"] for line in read_record(stopped / "m.jsonl")] == [0, 1, 2]


def test_a_finished_run_that_is_resumed_does_not_change(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"steps": 2})
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal)
    before, record = weights(tmp_path / "policy"), (tmp_path / "m.jsonl").read_text()
    trained(lamp_spec, lamp_policy, tmp_path, settings, portal, resume=True)
    assert same(before, weights(tmp_path / "policy"))
    assert (tmp_path / "m.jsonl").read_text() == record


@pytest.mark.parametrize("room", ["policy", "experience"])
@pytest.mark.parametrize("package", ["torch", "trl"])
def test_without_its_packages_a_trainer_names_the_extra(
    room: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"dreamgym_integrations.trainers.{room}", raising=False)
    with pytest.raises(MissingPackage, match=r"pip install -c constraints.txt '\.\[train\]'"):
        importlib.import_module(f"dreamgym_integrations.trainers.{room}")


def test_a_line_of_the_record_that_was_cut_off_is_ignored(tmp_path: Path) -> None:
    (tmp_path / "m.jsonl").write_text('{"step": 0}\n{"step": 1')
    assert read_record(tmp_path / "m.jsonl") == [{"step": 0}]
    (tmp_path / "m.jsonl").write_text('{"ste')
    assert read_record(tmp_path / "m.jsonl") == []


def test_the_last_update_that_the_real_steps_pay_for_is_saved(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"steps": 50, "save_every": 50})
    curriculum = Curriculum(lamp_spec.tasks, share=0, seed=0)
    record = tmp_path / "m.jsonl"
    played = Practice(lamp_spec, curriculum, None, settings, record, where="real", real_steps=60)
    player = partial(TokenPlayer, spec=lamp_spec, make_environment=lamp)
    train_policy(played, lamp_policy, tmp_path, settings, portal=portal, player=player)
    updates = [line["step"] for line in read_record(record) if "rollout_s" in line]
    found = newest_checkpoint(tmp_path, identity(lamp_spec, lamp_policy, settings))
    assert found is not None
    assert found.name == f"checkpoint-{len(updates)}"


@pytest.fixture
def begun(lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path, portal: BlockingPortal) -> Path:
    """A run that was interrupted after its first checkpoint."""
    with pytest.raises(EnvironmentUnavailable, match="gone"):
        trained(lamp_spec, lamp_policy, tmp_path / "run", SETTINGS, portal, probe=broken_after(3))
    return tmp_path / "run"


def test_a_checkpoint_of_another_run_is_refused_with_the_difference(
    begun: Path, lamp_spec: EnvironmentSpec, lamp_policy: Path, portal: BlockingPortal
) -> None:
    def refused(why: str, spec: EnvironmentSpec = lamp_spec, base: Path = lamp_policy, **changes: object) -> None:
        with pytest.raises(InvalidInput, match=why):
            trained(spec, base, begun, SETTINGS.model_copy(update=changes), portal, resume=True)

    other = lamp_spec.model_copy(update={"name": "lantern"})
    refused("its environment was 'lamp' and is 'lantern' now", spec=other)
    changed = lamp_spec.model_copy(update={"max_steps": 2})
    refused("the description, tools or tasks of 'lamp' have changed since", spec=changed)
    refused("it started from another policy", base=lamp_policy.parent / "untrained")
    refused("group_size was 4 and is 8 now, seed was 0 and is 1 now", group_size=8, seed=1)


def test_a_run_from_before_a_setting_was_fixed_goes_on_if_it_had_that_value(
    begun: Path, lamp_spec: EnvironmentSpec, lamp_policy: Path
) -> None:
    mine, file = identity(lamp_spec, lamp_policy, SETTINGS), begun / "run.json"
    told = json.loads(file.read_text())
    told["settings"] |= {"band": [0.2, 0.8], "vary": 2, "ppo": {**told["settings"]["ppo"], "decay": 0.95}}
    file.write_text(json.dumps(told))
    assert newest_checkpoint(begun, mine) is not None
    told["settings"] |= {"vary": 4}
    file.write_text(json.dumps(told))
    with pytest.raises(InvalidInput, match="contains another run: vary was 4"):
        newest_checkpoint(begun, mine)


def test_how_often_a_run_saves_and_probes_may_change(
    begun: Path, lamp_spec: EnvironmentSpec, lamp_policy: Path, portal: BlockingPortal
) -> None:
    settings = SETTINGS.model_copy(update={"save_every": 1, "probe_every": 4})
    trained(lamp_spec, lamp_policy, begun, settings, portal, resume=True)
    assert (begun / "policy").exists()


def test_a_policy_that_was_cut_off_while_it_was_saved_is_removed_when_the_run_goes_on(
    lamp_spec: EnvironmentSpec, lamp_policy: Path, tmp_path: Path
) -> None:
    with replaced_folder(tmp_path / "best") as new:
        new.mkdir()
        left = shutil.copytree(new, new.with_name(new.name.replace("best", "policy")))  # as a kill leaves it
    assert left.exists()
    begin(tmp_path, identity(lamp_spec, lamp_policy, SETTINGS), resume=True)
    assert {path.name for path in tmp_path.iterdir()} == {"best", "run.json"}


def test_a_folder_with_checkpoints_is_not_begun_anew(
    begun: Path, lamp_spec: EnvironmentSpec, lamp_policy: Path, portal: BlockingPortal
) -> None:
    with pytest.raises(InvalidInput, match="has checkpoints already: resume the run, or name another folder"):
        trained(lamp_spec, lamp_policy, begun, SETTINGS, portal)
    (begun / "run.json").unlink()
    with pytest.raises(InvalidInput, match=r"has checkpoints but no run\.json"):
        trained(lamp_spec, lamp_policy, begun, SETTINGS, portal, resume=True)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"groups": 3, "group_size": 3, "accumulate": 2}, "9 rollouts per process and update do not split into 2"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused_before_anything_is_written(
    changes: dict[str, object],
    why: str,
    lamp_spec: EnvironmentSpec,
    lamp_policy: Path,
    tmp_path: Path,
    portal: BlockingPortal,
) -> None:
    with pytest.raises(InvalidInput, match=why):
        trained(lamp_spec, lamp_policy, tmp_path / "run", SETTINGS.model_copy(update=changes), portal)
    assert not (tmp_path / "run" / "run.json").exists()
