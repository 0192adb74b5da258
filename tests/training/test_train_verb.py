"""`dreamgym train` from its command line: the effect of options on the run folder and the store."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio
import pytest
from dreamgym_integrations.trainers.policy import scratch
from lamp import COLOURS
from lamp_home import Command, called, fill, furnish, path_with
from lamp_runs import same, weights

from dreamgym import Source, StepResult, ToolCall, Trajectory
from dreamgym.cli.app import main
from dreamgym.dream.confidence import FEATURES, calibrate
from dreamgym.embedding import load_encoder
from dreamgym.files import alone_in
from dreamgym.replay.postgres import open_store
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject, Provenance, StopReason, Tier, Transition

SMALL = ("--groups", "2", "--group-size", "4", "--probe", "8", "--probe-every", "2")
DREAM = ("--model", "nearest")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The environment folder; this process and those that it starts can find its real environment."""
    folder = furnish(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", path_with(tmp_path))
    return folder


@pytest.fixture
def train(
    home: Path, dsn: str, lamp_policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Trains in the lamp environment."""
    usual = ("train", str(home), "--policy", str(lamp_policy), *SMALL)
    return lambda *options: called(monkeypatch, capsys, *usual, *options)


@pytest.fixture
def recorded(dsn: str, lamp_recordings: list[Trajectory]) -> Sequence[Trajectory]:
    """Recordings of the lamp, which are in the store."""
    fill(dsn, lamp_recordings[:80])
    return lamp_recordings[:80]


def stored(dsn: str, but: Sequence[Trajectory], source: Source = Source.REAL) -> list[Trajectory]:
    """The stored trajectories except `but`."""

    async def read() -> list[Trajectory]:
        store = await open_store(dsn, load_encoder(None))
        found = await store.buffer.trajectories("lamp", sources=frozenset({source}))
        await store.close()
        return [trajectory for trajectory in found if trajectory.id not in {one.id for one in but}]

    return anyio.run(read)


def played(record: Sequence[JsonObject]) -> dict[str, int]:
    """Number of steps of practice, by where they were taken."""
    taken: dict[str, int] = {}
    for line in record:
        if "environment_steps" in line:
            where = str(line["where"])
            taken[where] = taken.get(where, 0) + int(str(line["environment_steps"]))
    return taken


@pytest.mark.long
def test_then_real_goes_on_from_the_dreams_policy_within_its_budget(
    train: Command, recorded: Sequence[Trajectory], dsn: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    last = ("--steps", "2", "--keep", "last")
    code, said = train(*DREAM, *last, "--then", "real", "--real-steps", "60", "--out", str(out))
    assert code == 0, said
    dream, real = (read_record(folder / "metrics.jsonl") for folder in (out, out / "real"))
    assert set(played(dream)) == {"dream"}
    assert set(played(real)) == {"real"}
    new = stored(dsn, recorded)
    assert 0 < played(real)["real"] <= 60
    assert played(real)["real"] == sum(len(trajectory.transitions) for trajectory in new)
    assert played(real)["real"] > 60 - 2 * 4 * 3, "it stops only if another update could take more steps than are left"
    begun = json.loads((out / "real" / "run.json").read_text())
    assert begun["settings"]["steps"] >= len([line for line in real if "rollout_s" in line])
    assert not same(weights(out / "policy"), weights(out / "real" / "policy"))
    assert "now in the real environment" in said


IN_PROCESS = ("--in-process", "true")


@pytest.mark.parametrize(
    "where",
    [pytest.param(DREAM, id="dream"), pytest.param(("--against", "real"), id="real", marks=pytest.mark.long)],
)
def test_practice_in_process_equals_practice_behind_a_server(
    train: Command, recorded: Sequence[Trajectory], dsn: str, tmp_path: Path, where: tuple[str, ...]
) -> None:
    runs: list[list[JsonObject]] = []
    kept: list[list[Trajectory]] = []
    for name, more in (("server", ()), ("here", IN_PROCESS)):
        before = [*recorded, *(trajectory for one in kept for trajectory in one)]
        code, said = train(*where, "--steps", "2", "--share", "0", *more, "--out", str(tmp_path / name))
        assert code == 0, said
        runs.append(read_record(tmp_path / name / "metrics.jsonl"))
        kept.append(stored(dsn, before, Source.REAL if "real" in where else Source.SYNTHETIC))
    assert same(weights(tmp_path / "server" / "policy"), weights(tmp_path / "here" / "policy"))
    timed = {"rollout_s", "update_s", "waited_s"}
    server, here = ([{k: v for k, v in line.items() if k not in timed} for line in record] for record in runs)
    assert server == here
    assert ("tiers" in here[1]) == ("real" not in where)
    assert sorted(map(shown, kept[0])) == sorted(map(shown, kept[1]))
    assert len(kept[1]) == 2 * 2 * 4


def shown(trajectory: Trajectory) -> str:
    """A trajectory without its id, and without the seconds of its answers."""
    steps = [
        step.model_copy(update={"provenance": step.provenance.model_copy(update={"seconds": None})})
        for step in trajectory.transitions
    ]
    return trajectory.model_copy(update={"id": "", "transitions": tuple(steps)}).model_dump_json()


def test_a_share_of_less_than_one_task_generates_none_and_says_so(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    short = ("--steps", "1", "--group-size", "2", "--probe", "0")
    code, said = train(*DREAM, *IN_PROCESS, *short, "--out", str(tmp_path / "run"))
    assert code == 0, said
    assert "no tasks are generated: --share 0.25 of --groups 2 is less than one task; give --groups 4" in said


def test_an_agent_cannot_play_in_process(train: Command, tmp_path: Path) -> None:
    code, said = train(*DREAM, *IN_PROCESS, "--agent", "lamp:agent", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "no URL for an agent" in said


def test_real_steps_that_pay_for_no_update_are_refused_before_the_dream_begins(train: Command, tmp_path: Path) -> None:
    code, said = train(*DREAM, "--then", "real", "--real-steps", "3", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "--real-steps 3 is not enough for one update" in said
    assert not (tmp_path / "run").exists()


def test_practice_in_a_real_environment_that_is_not_there_is_refused_before_the_dream_begins(
    train: Command, home: Path, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    described = (home / "env.toml").read_text()
    (home / "env.toml").write_text(described.partition("[real]")[0])
    code, said = train(*DREAM, "--then", "real", "--real-steps", "900", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "has no real environment: add [real] adapter" in said
    assert not (tmp_path / "run").exists()


def test_a_run_that_diverged_while_it_learned_from_recordings_begins_again_in_its_folder(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    usual = ("--algorithm", "sft", "--steps", "3", "--out", str(tmp_path / "run"))
    code, said = train(*usual, "--learning-rate", "1e30")
    assert code != 0
    assert "start again with a smaller learning_rate" in said
    code, said = train(*usual, "--learning-rate", "0.001")
    assert code == 0, said


def test_a_run_whose_checkpoints_are_gone_is_not_played_again(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    usual = (*DREAM, *IN_PROCESS, "--steps", "1", "--out", str(tmp_path / "run"))
    assert train(*usual)[0] == 0
    before = (tmp_path / "run" / "metrics.jsonl").read_text()
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    code, said = train(*usual, "--resume")
    assert code == 2
    assert "whose checkpoints are gone" in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == before


def unsure(folder: Path) -> tuple[str, str]:
    """Options with a calibration that gives every answer a confidence of 0.3."""
    rows = [((0.0,) * len(FEATURES), k < 30) for k in range(100)]
    made = calibrate(rows, model="nearest", env="lamp").model_copy(update={"weights": (0.0,) * len(FEATURES)})
    made.save(folder / "calibration.json")
    return "--calibration", str(folder / "calibration.json")


def test_unrecorded_answers_get_the_calibrations_confidence_and_a_policy_learns_from_none_below_the_least(
    train: Command, dsn: str, lamp_recordings: list[Trajectory], tmp_path: Path
) -> None:
    known = lamp_recordings[:3]
    fill(dsn, known)
    values = []
    for number, options in enumerate((("0.2", *IN_PROCESS), ("0.9",), ("0.9", *IN_PROCESS))):
        out = tmp_path / str(number)
        more = ("--steps", "1", "--probe", "0", *unsure(tmp_path), "--least-confidence", *options)
        code, said = train(*DREAM, *more, "--out", str(out))
        assert code == 0, said
        values += [str(line["values"]) for line in read_record(out / "metrics.jsonl") if "values" in line]
        dreamt = stored(dsn, known, Source.SYNTHETIC)
        (sure,) = {step.provenance.confidence for one in dreamt for step in one.transitions} - {None}
        assert sure == pytest.approx(0.3, abs=0.02)
        known = [*known, *dreamt]
    trusted, distrusted, in_process = values
    assert "None" not in trusted
    assert distrusted == in_process == "[None, None]"


def inverted(trajectory: Trajectory) -> Trajectory:
    """The trajectory as if the lamp rewarded another colour than the one it shows."""
    wanted = dict(zip(COLOURS, [*COLOURS[1:], COLOURS[0]], strict=True))
    start = trajectory.task.initial_state or ""
    right = f"say {wanted[start.split()[-1]]}"
    steps = []
    for colour in COLOURS:
        command = f"say {colour}"
        won = command == right
        shown = "right" if won else f"wrong, {start}"
        result = StepResult(observation=shown, reward=float(won), terminated=won, is_error=not won)
        for state in (start, f"wrong, {start}"):
            call = ToolCall(name="act", arguments={"command": command})
            steps.append(
                Transition(
                    state=state, action=call, result=result, next_state=shown, provenance=Provenance(tier=Tier.REAL)
                )
            )
    steps.sort(key=lambda step: step.result.terminated)
    return trajectory.model_copy(
        update={"transitions": tuple(steps[:-1]), "stop_reason": StopReason.TERMINATED, "final_reward": None}
    )


@pytest.fixture
def misled(dsn: str, lamp_recordings: list[Trajectory]) -> None:
    """Store recordings that reward the wrong colour, so that a dream of them does, too."""
    fill(dsn, [inverted(trajectory) for trajectory in lamp_recordings[:32]])


WORSE = (
    *(*DREAM, *IN_PROCESS, "--steps", "40", "--groups", "8", "--group-size", "8"),
    *("--learning-rate", "3e-3", "--share", "0"),
)
PROBES = ("--probe", "24", "--probe-every", "5")


@pytest.mark.slow
def test_a_run_whose_success_in_reality_falls_is_stopped_and_leaves_its_best_policy(
    train: Command, misled: None, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, said = train(*WORSE, *PROBES, "--out", str(out))
    assert code == 0, said
    record = read_record(out / "metrics.jsonl")
    probes = {int(str(line["step"])): float(str(line["real_success"])) for line in record if "real_success" in line}
    assert max(probes) < 40, "it was stopped"
    best = max(probes, key=lambda update: (probes[update], update))
    assert best < max(probes)
    assert f"stopped at update {max(probes)}: success in the real environment has fallen since update" in said
    assert f"the policy is that of update {best}" in said
    assert same(weights(out / "policy"), weights(out / "best" / str(best)))
    code, said = train(*WORSE, *PROBES, "--out", str(out), "--resume")
    assert (code, read_record(out / "metrics.jsonl")) == (0, record), "a run that was stopped stays so"
    assert "stopped at update" in said


@pytest.mark.slow
@pytest.mark.long
def test_keep_best_leaves_the_policy_of_the_best_probe_of_a_run_that_is_not_stopped(
    train: Command, misled: None, tmp_path: Path
) -> None:
    left = {}
    for keep in ("last", "best"):
        out = tmp_path / keep
        few = ("--steps", "10", "--stop", "false", "--keep", keep)
        code, said = train(*WORSE, *PROBES, *few, "--out", str(out))
        assert code == 0, said
        left[keep] = weights(out / "policy")
        (best,) = (out / "best").iterdir()
        assert same(left[keep], weights(best)) == (keep == "best")
        assert ("the best of the probes in the real environment" in said) == (keep == "best")
    probes = [line for line in read_record(tmp_path / "best" / "metrics.jsonl") if "real_success" in line]
    assert float(str(probes[0]["real_success"])) > float(str(probes[-1]["real_success"]))
    assert not same(left["last"], left["best"])


def test_the_files_settings_and_the_command_lines_make_one_run_and_tensorboard_has_its_metrics(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    out, file = tmp_path / "run", tmp_path / "train.toml"
    file.write_text('algorithm = "ppo"\nmodel = "nearest"\nsteps = 9\n[ppo]\nepochs = 3\nmini_batches = 1\n')
    options = ("--steps", "2", "--ppo.epochs", "1", "--ppo.mini-batches=2", "--log", "tensorboard")
    code, said = train("--config", str(file), *IN_PROCESS, *options, "--out", str(out))
    assert code == 0, said
    chosen = json.loads((out / "settings.json").read_text())
    assert (chosen["algorithm"], chosen["steps"]) == ("ppo", 2)
    assert (chosen["ppo"]["epochs"], chosen["ppo"]["mini_batches"]) == (1, 2)
    assert (out / "checkpoints" / "checkpoint-4").is_dir(), "2 updates of 1 epoch over 2 mini-batches"
    record = read_record(out / "metrics.jsonl")
    events = accumulator.EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    for name in ("inside_success", "environment_steps", "real_success"):
        written = events.Scalars(name)
        measured = [line for line in record if name in line]
        assert [event.step for event in written] == [line["step"] for line in measured]
        assert [event.value for event in written] == pytest.approx([line[name] for line in measured])
        assert written


@pytest.fixture
def imitate(
    home: Path, dsn: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Path]:
    """Makes a tiny policy from the recordings, in few steps, and returns the folder of its warm start."""
    monkeypatch.setitem(scratch.WARM, "steps", 2)

    def train(out: Path, *options: str) -> Path:
        usual = ("train", str(home), "--policy", "tiny", "--algorithm", "sft", "--steps", "1", "--out", str(out))
        code, said = called(monkeypatch, capsys, *usual, *options)
        assert code == 0, said
        return out / "warm"

    return train


@pytest.fixture
def in_folder(home: Path, dsn: str, lamp_recordings: list[Trajectory]) -> Sequence[Trajectory]:
    """Recordings in the environment folder that are not in the store yet."""
    lines = [one.model_dump_json() for one in lamp_recordings[:8]]
    (home / "trajectories.jsonl").write_text("\n".join(lines) + "\n")
    return lamp_recordings[:8]


@pytest.mark.parametrize("resumed", [(), ("--resume",)])
def test_training_a_given_policy_first_stores_what_is_new_in_the_folder(
    resumed: Sequence[str], train: Command, in_folder: Sequence[Trajectory], dsn: str, tmp_path: Path
) -> None:
    code, said = train("--algorithm", "sft", "--steps", "1", "--out", str(tmp_path / "run"), *resumed)
    assert code == 0, said
    assert {one.id for one in stored(dsn, ())} == {one.id for one in in_folder}


@pytest.mark.parametrize(
    ("options", "rate"),
    [
        (("--algorithm", "sft"), 1e-5),
        (("--algorithm", "sft", "--lora", "2"), 2e-4),
        ((*DREAM, *IN_PROCESS), 2e-6),
        ((*DREAM, *IN_PROCESS, "--learning-rate", "0.001"), 1e-3),
    ],
    ids=["sft", "sft with lora", "grpo", "given"],
)
def test_a_large_policy_learns_slowly_if_no_rate_is_given(
    options: Sequence[str],
    rate: float,
    train: Command,
    recorded: Sequence[Trajectory],
    lamp_policy: Path,
    tmp_path: Path,
) -> None:
    large = tmp_path / "large"
    shutil.copytree(lamp_policy, large)
    with (large / "more.safetensors").open("wb") as more:
        more.truncate(40_000_000)
    code, said = train(*options, "--policy", str(large), "--steps", "1", "--out", str(tmp_path / "run"))
    assert code == 0, said
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["learning_rate"] == rate


def test_weights_of_the_older_kind_count_too(
    train: Command, recorded: Sequence[Trajectory], lamp_policy: Path, tmp_path: Path
) -> None:
    large = tmp_path / "large"
    shutil.copytree(lamp_policy, large)
    with (large / "pytorch_model.bin").open("wb") as weights:
        weights.truncate(40_000_000)
    code, said = train("--algorithm", "sft", "--policy", str(large), "--steps", "1", "--out", str(tmp_path / "run"))
    assert code == 0, said
    assert json.loads((tmp_path / "run" / "settings.json").read_text())["learning_rate"] == 1e-5


def test_a_model_that_is_not_there_is_refused_before_the_policy_is_warmed(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    code, said = train("--model", "neares", "--steps", "1", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "unknown model 'neares'" in said
    assert not (tmp_path / "run").exists()


def test_a_policy_that_is_not_there_is_refused_before_anything_is_stored(
    train: Command, in_folder: Sequence[Trajectory], dsn: str, tmp_path: Path
) -> None:
    code, said = train("--policy", str(tmp_path / "nowhere"), *DREAM, "--out", str(tmp_path / "run"))
    assert code == 2
    assert f"no policy checkpoint in {tmp_path / 'nowhere'}" in said
    assert stored(dsn, ()) == []


def test_a_run_with_stored_only_knows_nothing_of_the_folder(
    train: Command, in_folder: Sequence[Trajectory], dsn: str, tmp_path: Path
) -> None:
    code, said = train("--algorithm", "sft", "--steps", "1", "--stored-only", "true", "--out", str(tmp_path / "run"))
    assert code != 0
    assert "no recorded step of 'lamp' to learn from" in said
    assert stored(dsn, ()) == []


def test_the_list_of_tasks_has_those_of_recordings_that_are_new_in_the_folder(
    in_folder: Sequence[Trajectory], home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["dreamgym", "tasks", str(home), "--json"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    assert {task["id"] for task in json.loads(capsys.readouterr().out)} == {one.task.id for one in in_folder}


def test_a_warm_start_imitates_no_task_of_another_split(
    imitate: Callable[..., Path], dsn: str, lamp_recordings: list[Trajectory], tmp_path: Path
) -> None:
    learned, held_out = lamp_recordings[:8], lamp_recordings[8]
    task = held_out.task.model_copy(update={"instruction": "say it in secret", "metadata": {"split": "test"}})
    fill(dsn, [*learned, held_out.model_copy(update={"task": task})])
    words = (imitate(tmp_path / "run") / "tokenizer.json").read_text()
    assert "colour" in words
    assert "secret" not in words


def test_a_run_that_begins_anew_makes_its_own_warm_start(
    imitate: Callable[..., Path], recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    before = weights(imitate(tmp_path / "used"))
    shutil.rmtree(tmp_path / "used" / "policy")
    again, fresh = imitate(tmp_path / "used", "--seed", "7"), imitate(tmp_path / "fresh", "--seed", "7")
    assert same(weights(again), weights(fresh))
    assert not same(weights(again), before)


@pytest.mark.parametrize("next_run", [("--algorithm", "sft"), ("--algorithm", "sft", "--resume"), DREAM])
def test_a_policy_learned_from_recordings_is_not_replaced(
    next_run: Sequence[str], train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    usual = ("--steps", "1", "--out", str(tmp_path / "run"))
    assert train("--algorithm", "sft", *usual)[0] == 0
    before = weights(tmp_path / "run" / "policy")
    code, said = train(*next_run, *usual)
    assert code == 2
    assert f"{tmp_path / 'run' / 'policy'} is there already: give another folder with --out" in said
    assert same(weights(tmp_path / "run" / "policy"), before)


@pytest.mark.parametrize("resumed", [(), ("--resume",)])
def test_a_run_folder_in_which_another_training_works_is_refused_and_left_as_it_is(
    resumed: Sequence[str], train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with alone_in(out, waits=False):
        code, said = train(*DREAM, "--steps", "1", "--out", str(out), *resumed)
    assert code == 2
    assert f"{out}: another command works in it: wait for its end, or give another folder" in said
    assert list(out.iterdir()) == []
    assert train(*DREAM, "--steps", "1", "--out", str(out), *resumed)[0] == 0


def test_a_run_is_not_resumed_with_another_model_whose_address_or_folder_ends_alike(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    out, settings, models = tmp_path / "run", tmp_path / "run" / "settings.json", [tmp_path / "a" / "model"]
    models.append(tmp_path / "b" / "model")
    for model in models:
        model.mkdir(parents=True)
    code, said = train(*DREAM, *IN_PROCESS, "--steps", "1", "--out", str(out))
    assert code == 0, said
    for was, now in (("http://a.invalid/v1", "http://b.invalid/v1"), ("x/gpt", "y/gpt"), map(str, models)):
        settings.write_text(json.dumps({**json.loads(settings.read_text()), "model": was}))
        code, said = train("--model", now, "--steps", "1", "--out", str(out), "--resume")
        assert code == 2, said
        assert f"contains another run: model was {was} and is {now} now" in said
    settings.write_text('{"model": "nea')
    code, said = train(*DREAM, *IN_PROCESS, "--steps", "1", "--out", str(out), "--resume")
    assert code == 2
    assert f"{settings}: expected the settings of a run, got " in said


def test_a_policy_without_an_agent_is_told_that_a_server_never_ends_its_tasks(
    train: Command, recorded: Sequence[Trajectory], home: Path, tmp_path: Path
) -> None:
    sentence = "'lamp' does not end its tasks, and a policy without an agent never says that it is done"
    usual = (*DREAM, "--steps", "1", "--probe", "0")
    _, said = train(*usual, *IN_PROCESS, "--out", str(tmp_path / "ends"))
    assert sentence not in said
    toml = home / "env.toml"
    toml.write_text("ends_itself = false\n" + toml.read_text())
    _, said = train(*usual, *IN_PROCESS, "--out", str(tmp_path / "alone"))
    assert said.count(sentence) == 1
    assert "its episodes end after 3 steps, which is no success; give an --agent" in said
    _, said = train(*usual, "--agent", "react", "--out", str(tmp_path / "agent"))
    assert sentence not in said


def test_a_run_is_not_resumed_with_another_simulator_agent_or_environment(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, said = train(*DREAM, *IN_PROCESS, "--steps", "1", "--out", str(out))
    assert code == 0, said
    settings = (out / "settings.json").read_text()
    for options, changed in (
        (("--model", "local"), "model was nearest and is local now"),
        ((*DREAM, "--agent", "react"), "agent was None and is react now"),
        (("--model", "nearest without history"), r"without was [] and is ['history'] now"),
        (("--against", "real"), "against was dream and is real now, model was nearest and is None now"),
        ((*DREAM, "--algorithm", "sft"), "algorithm was grpo and is sft now"),
        ((*DREAM, *IN_PROCESS, "--learning-rate", "0.5"), "learning_rate was 0.001 and is 0.5 now"),
        ((*DREAM, *IN_PROCESS, "--seed", "7", "--then", "real", "--real-steps", "24"), "seed was 0 and is 7 now"),
    ):
        code, said = train(*options, "--steps", "1", "--out", str(out), "--resume")
        assert code == 2, said
        assert f"contains another run: {changed}" in said
        assert (out / "settings.json").read_text() == settings


def test_a_run_is_resumed_with_an_agent_whose_file_is_named_in_another_way(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        Path(folder).mkdir()
        Path(folder, "agent.py").write_text("async def act(task, mcp_url, policy_url):\n    return ''\nother = act\n")
    usual = ("--steps", "1", "--out", "run", "--resume")
    code, said = train(*DREAM, *IN_PROCESS, "--steps", "1", "--out", "run")
    assert code == 0, said
    settings = Path("run", "settings.json")
    settings.write_text(json.dumps({**json.loads(settings.read_text()), "agent": "a/agent.py:act"}))
    for named in ("./a/agent.py:act", f"{tmp_path}/a/agent.py:act"):
        _, said = train(*DREAM, "--agent", named, *usual)
        assert "contains another run" not in said
    for named in ("a/agent.py:other", "b/agent.py:act"):
        code, said = train(*DREAM, "--agent", named, *usual)
        assert code == 2
        assert f"contains another run: agent was a/agent.py:act and is {named} now" in said


def test_a_run_is_not_resumed_with_probes_of_another_number_of_tasks(
    train: Command, recorded: Sequence[Trajectory], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    usual = (*DREAM, *IN_PROCESS, "--steps", "1", "--out", str(out))
    assert train(*usual)[0] == 0
    record = (out / "metrics.jsonl").read_text()
    for probe in ("3", "0"):
        code, said = train(*usual, "--resume", "--probe", probe)
        assert code == 2, said
        assert f"was probed on 8 tasks, and now it would be on {probe}: resume it with --probe 8" in said
    assert (out / "metrics.jsonl").read_text() == record
    code, said = train(*usual, "--resume")
    assert code == 0, said


def test_an_agent_that_is_given_by_name_is_trained(
    train: Command, recorded: Sequence[Trajectory], dsn: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    code, said = train(*DREAM, "--agent", "react", "--steps", "2", "--out", str(out))
    assert code == 0, said
    updates = [line for line in read_record(out / "metrics.jsonl") if "rollout_s" in line]
    assert [line["failed"] for line in updates] == [0, 0]
    assert all(int(str(line["sampled_tokens"])) > 0 for line in updates)
    assert played(updates)["dream"] == sum(len(one.transitions) for one in stored(dsn, recorded, Source.SYNTHETIC)) > 0
    assert (out / "policy" / "config.json").is_file()
