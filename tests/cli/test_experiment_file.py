"""An experiment file lists arms and seeds. Its faults are reported before anything is trained."""

import fcntl
import io
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TextIO

import pytest
from pydantic import JsonValue, ValidationError

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, load_spec, real_of
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.redaction import RedactionRules
from dreamgym.runs.experiment.compare import (
    agree,
    check_bases,
    check_environment,
    check_held_out,
    check_seeds,
    compare,
)
from dreamgym.runs.experiment.plan import Arm, Comparison, Measured, Plan, Play, flags, name_of, read_plan
from dreamgym.runs.experiment.prepared import Prepared, alone, rewarded, shuffled, unrewarded
from dreamgym.runs.experiment.process import begin, interrupt, logged
from dreamgym.runs.experiment.running import (
    ATTEMPTS,
    Result,
    attempts,
    curve,
    difference,
    inside_curve,
    kept,
    queued,
)
from dreamgym.runs.experiment.running import result as kept_result
from dreamgym.runs.experiment.table import Published, area_under, report
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

EXAMPLES = Path(__file__).parents[2] / "examples" / "experiments"
GOOD = """
title = "A trial"
env = "coin"
seeds = [0, 1]
[[recorded]]
behaviour = "noisy"
tasks = 2
episodes = 4
warm = true
[[arm]]
name = "warm start"
[[arm]]
name = "dream"
train = { steps = 3, algorithm = "ppo", ppo = { epochs = 2 }, without = ["history", "retrieval"] }
[[compare]]
arm = "dream"
against = "warm start"
"""


class Unplayable:
    """A real environment that must not be played."""

    spec: EnvironmentSpec
    behaviours: Mapping[str, Behaviour] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        raise AssertionError(split)

    def create(self) -> Environment:
        raise AssertionError


def read(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    return read_plan(file)


def test_an_arm_s_settings_become_options_of_dreamgym_train(tmp_path: Path) -> None:
    plan = read(tmp_path, GOOD)
    assert plan.arm[1].train is not None
    assert flags(plan.arm[1].train) == [
        "--steps",
        "3",
        "--algorithm",
        "ppo",
        "--ppo.epochs",
        "2",
        "--without",
        "history,retrieval",
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("train = { steps = 3", 'fit = { steps = 1 }\ntrain = { model = "nearest"', "and names no model"),
        ("warm = true", "", "the warm start has nothing to imitate"),
        ('name = "dream"', 'name = "warm start"', "two arms are called warm start"),
        ('arm = "dream"', 'arm = "drem"', "names unknown arms: drem"),
        ('name = "dream"', 'name = "dream"\nbehaviour = "random"', "expected behaviour or train, got both"),
        ('name = "warm start"', 'name = "warm start"\nspoiled = "no reward"', "for an arm that trains"),
        ("steps = 3", "steps = 3, model = 'nearest -k 5'", "arm 'dream': .*-k is for check, fidelity and fit"),
        ('name = "warm start"', 'name = "warm start"\nrecordings = 1', "recordings is for an arm that trains"),
        ('name = "dream"', 'name = "dream"\nspoiled_share = 0.5', "expected spoiled to be .*, got None"),
        (
            'name = "dream"',
            'name = "dream"\nspoiled = "no reward"\nspoiled_share = 0.5',
            "expected spoiled to be 'next states' or 'calls and next states', got 'no reward'",
        ),
        ('name = "warm start"', 'name = "warm start"\nafter = "dream"', "after is for an arm that trains"),
        (
            'name = "dream"',
            'name = "dream"\nafter = "warm start"',
            "comes after 'warm start', which is not an arm above",
        ),
        ("seeds = [0, 1]", "seeds = []", "seeds"),
        ("seeds = [0, 1]", "seeds = [0, -1]", "seeds: expected numbers from 0 to 4294967295, got -1"),
        ("seeds = [0, 1]", "seeds = [0, 1, 0]", "seeds: expected different seeds, got 0 more than once"),
        ('name = "warm start"', 'name = "Dream!"\nbehaviour = "random"', "'Dream!', 'dream' .* same folder 'dream'"),
        ('name = "dream"', 'name = "+"', "arm '\\+': name: expected letters or digits"),
        ('name = "dream"', 'name = "Warm!"', "arm 'Warm!': name: expected .* no name of our own folders"),
        ("steps = 3", "steps = 3, seed = 5", "arm 'dream': every arm trains with the seeds of the file"),
        (
            'name = "dream"',
            'name = "dream"\nrates = [1e-3, 0.001]',
            "same folder 'dream_rate_0_001'",
        ),
        (
            'name = "dream"',
            'name = "dream"\nfit = { steps = 1 }\nspoiled = "no reward"',
            "arm 'dream': fit makes a model of all recordings as they are",
        ),
        (
            'name = "dream"',
            'name = "dream"\nfit = { steps = 1 }\nrecordings = 2',
            "leave out spoiled and recordings",
        ),
        (
            'name = "dream"',
            'name = "dream"\nrecordings = 5',
            "only 4 episodes are recorded, and recordings asks for more: dream",
        ),
        (
            'name = "dream"\ntrain = { steps = 3,',
            'name = "dream"\nrates = [1e-3]\ntrain = { probe = 0,',
            "real probes choose among rates",
        ),
        (
            'name = "dream"\ntrain = { steps = 3, algorithm = "ppo", ppo = { epochs = 2 }, '
            'without = ["history", "retrieval"] }',
            'name = "dream"\nrates = [1e-3]\ntrain = { algorithm = "sft" }',
            "arm 'dream': real probes choose among rates",
        ),
        ('name = "dream"', 'name = "dream"\nspoiled = "all"', "arm 'dream': spoiled: Input should be"),
        (
            'name = "dream"\ntrain = { steps = 3,',
            'name = "dream"\nspoiled = "no reward"\ntrain = { against = "real",',
            "arm 'dream': spoiled, recordings and fit change what a dream knows.* leave them out",
        ),
        ("title", "titel", "title"),
        ("behaviour = ", "agent = ", "agent is called behaviour now"),
        ("[[arm]]", "[[arm", "is not valid TOML"),
        ("steps = 3", f"steps = {'[' * 5000}{']' * 5000}", "is not valid TOML: maximum recursion depth"),
        ("steps = 3", f"steps = {'9' * 5000}", "is not valid TOML: Exceeds the limit"),
        ("steps = 3", "stepz = 3", "experiment.toml: arm 'dream': .*stepz"),
        ("steps = 3", "vary = 3", "arm 'dream': .*vary: it was removed: two tasks are varied"),
        ("epochs = 2", "decay = 0.9", "arm 'dream': .*ppo.decay: it was removed"),
        ("steps = 3", "against = 'real'", "arm 'dream': .*settings of dreams"),
        (
            "seeds = [0, 1]\n",
            'seeds = [0]\nheld_out = "a"\n[[arm]]\nname = "there"\ntrain = { against = "real" }\n',
            "would play held-out tasks too; leave out the arms there",
        ),
    ],
)
def test_a_fault_in_the_file_is_named(tmp_path: Path, before: str, after: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        read(tmp_path, GOOD.replace(before, after, 1))
    assert "Value error" not in str(refused.value)


@pytest.mark.parametrize("recorded", ["5", "'x'", "[5]"])
def test_recorded_that_is_no_list_of_tables_is_named(tmp_path: Path, recorded: str) -> None:
    with pytest.raises(InvalidInput, match=r"experiment\.toml: recorded.*: Input should be"):
        read(tmp_path, f"recorded = {recorded}\n{GOOD[: GOOD.index('[[recorded]]')]}")


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.toml")), ids=lambda file: file.stem)
def test_every_published_experiment_can_be_begun(file: Path) -> None:
    assert len(read_plan(file).seeds) >= 1


def test_only_tasks_of_a_held_out_kind_are_tested_and_they_are_never_recorded(tmp_path: Path) -> None:
    tasks = [Task(id=f"{kind}-{n}", env="coin", instruction="go") for n in range(3) for kind in ("wash", "cook")]
    plan = read(tmp_path, GOOD.replace("[[recorded]]", 'held_out = "wash"\n[test]\nepisodes = 2\n[[recorded]]', 1))
    assert [task.id for task in plan.recordable(tasks)] == ["cook-0", "cook-1", "cook-2"]
    assert [task.id for task in plan.tested(tasks)] == ["wash-1", "wash-2"]
    with pytest.raises(InvalidInput, match="no task of the split 'test' has 'wash' in its id"):
        plan.tested(plan.recordable(tasks))


def test_an_experiment_whose_dreams_would_practise_held_out_tasks_is_refused(tmp_path: Path) -> None:
    text = GOOD.replace("coin", "bfcl").replace("[[recorded]]", 'held_out = "7"\n[[recorded]]', 1)
    plan, spec = read(tmp_path, text), load_spec("bfcl")
    seed = Prepared(plan, 0, tmp_path / "seed-0", "", spec, real_of(spec))
    with pytest.raises(
        InvalidInput, match=r"practise \d+ held-out tasks .*'bfcl-train-\d*7\d*'.* leave out the arms dream$"
    ):
        check_seeds(plan, [seed], tmp_path)
    check_held_out(plan.model_copy(update={"held_out": "wash"}), spec)
    check_held_out(plan.model_copy(update={"arm": plan.arm[:1]}), spec)


def test_a_split_that_an_environment_looks_up_without_a_check_is_named(tmp_path: Path) -> None:
    env = f"{EXAMPLES.parent / '02_an_environment.py'}:switches"
    text = GOOD.replace("[[recorded]]", '[test]\nsplit = "tset"\n[[recorded]]', 1)
    plan, spec = read(tmp_path, text.replace('env = "coin"', f'env = "{env}"')), load_spec(env)
    seed = Prepared(plan, 0, tmp_path / "seed-0", "", spec, real_of(spec))
    with pytest.raises(InvalidInput, match="unknown split 'tset': expected one of dev, test, train"):
        check_seeds(plan, [seed], tmp_path)


def test_files_that_agree_in_what_arms_begin_with_may_share_a_folder(tmp_path: Path) -> None:
    plan = read(tmp_path, GOOD)
    agree(
        read(tmp_path, GOOD.replace('title = "A trial"', 'title = "Another"').replace("steps = 3", "steps = 4")),
        tmp_path,
    )
    read(tmp_path, GOOD)
    agree(plan, tmp_path)


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("tasks = 2", "tasks = 3", "differs in recorded"),
        ('env = "coin"', 'env = "twc"', "differs in env"),
        ("[[recorded]]", "[warm]\nsteps = 7\n[test]\nepisodes = 9\n[[recorded]]", "differs in warm, test"),
    ],
)
def test_a_folder_of_other_recordings_is_refused(tmp_path: Path, before: str, after: str, words: str) -> None:
    read(tmp_path, GOOD)
    other = read(tmp_path.parent, GOOD.replace(before, after, 1))
    with pytest.raises(InvalidInput, match=words):
        agree(other, tmp_path)


def test_results_of_an_environment_that_was_described_otherwise_are_refused(tmp_path: Path) -> None:
    spec, tasks = load_spec("coin"), Listed().tasks("test")
    (tmp_path / "lasting").mkdir()
    for _ in range(2):
        check_environment(tmp_path / "lasting", spec, tasks)
    shorter = spec.model_copy(update={"max_steps": 3})
    moved = [task.model_copy(update={"metadata": {"lamp": "attic"}}) for task in tasks]
    for now, given in ((shorter, tasks), (spec, moved), (spec, tasks[:2])):
        with pytest.raises(InvalidInput, match=r"'coin' have changed since its results were made.*--out"):
            check_environment(tmp_path / "lasting", now, given)
    check_environment(tmp_path / "lasting", spec, tasks)
    for broken in (b"", b"{}", b"\xff", b"[" * 100_000):
        (tmp_path / "lasting" / "environment.json").write_bytes(broken)
        with pytest.raises(InvalidInput, match=r"environment\.json: expected the environment of .*--out"):
            check_environment(tmp_path / "lasting", spec, tasks)


@pytest.mark.parametrize(
    ("before", "after"),
    [('behaviour = "noisy"', 'behaviour = "nosy"'), ('name = "warm start"', 'name = "warm start"\nbehaviour = "nosy"')],
)
def test_a_behaviour_that_the_environment_does_not_have_is_refused_before_anything_runs(
    tmp_path: Path, before: str, after: str
) -> None:
    file = tmp_path / "typo.toml"
    file.write_text(GOOD.replace(before, after, 1))
    with pytest.raises(InvalidInput, match=r"unknown behaviour 'nosy': expected one of .*noisy"):
        compare(file, tmp_path / "run")
    assert not list((tmp_path / "run").iterdir()), "a refused file is not kept"


@pytest.mark.parametrize("out", ["experiment.toml", "experiment.toml/run"])
def test_an_experiment_refuses_a_file_as_its_run_folder(tmp_path: Path, out: str) -> None:
    read(tmp_path, GOOD)
    with pytest.raises(InvalidInput, match="expected a folder for the run"):
        compare(tmp_path / "experiment.toml", tmp_path / out)


def test_a_result_that_other_settings_made_is_refused(tmp_path: Path) -> None:
    plan = read(tmp_path, GOOD)
    seed = Prepared(plan, 0, tmp_path / "seed-0", "", load_spec("coin"), Unplayable())
    (seed.folder / "warm").mkdir(parents=True)
    (seed.folder / "warm" / "config.json").write_text("{}")
    (seed.folder / "recorded.jsonl").write_text("".join(trajectory(n).model_dump_json() + "\n" for n in range(3)))
    made = result("dream", 0, "1").model_copy(update={"made_by": plan.arm[1]})
    (seed.folder / "dream").mkdir()
    (seed.folder / "dream" / "result.json").write_text(made.model_dump_json())
    assert kept_result(seed, plan.arm[1]) == made
    changed = plan.arm[1].model_copy(update={"train": {"steps": 4, "without": ["history"]}})
    with pytest.raises(InvalidInput, match=r"train.steps was 3 and is 4 now, .*give the arm another name"):
        kept_result(seed, changed)
    for broken in (b"", b"{}", b"\xff", b"[" * 100_000):
        (seed.folder / "dream" / "result.json").write_bytes(broken)
        with pytest.raises(InvalidInput, match=r"result\.json: expected the result of an arm, .*remove the file"):
            kept_result(seed, plan.arm[1])
    (seed.folder / "dream" / "result.json").unlink()
    (seed.folder / "dream" / "metrics.jsonl").touch()
    for broken in (b"", b"[]", b"\xff"):
        (seed.folder / "dream" / "begun.json").write_bytes(broken)
        with pytest.raises(InvalidInput, match=r"begun\.json: expected the settings of an arm, .*remove .*dream,"):
            kept(seed, plan.arm[1])


def test_arms_whose_first_arm_was_removed_to_be_trained_again_are_refused_by_name(tmp_path: Path) -> None:
    after = "".join(
        f'[[arm]]\nname = "{name}"\nafter = "{first}"\n{settings}\n'
        for name, first, settings in (
            ("more", "dream", "train = {}"),
            ("most", "more", "train = { against = 'real' }\nrates = [1e-3, 5e-4]"),
        )
    )
    plan, seed = read(tmp_path, GOOD.replace("[[compare]]", f"{after}[[compare]]")), tmp_path / "seed-0"
    check_bases(plan, [seed])
    for arm in ("dream", "more", "most_rate_0_001"):
        (seed / arm).mkdir(parents=True)
        (seed / arm / "result.json").touch()
    check_bases(plan, [seed])
    (seed / "dream" / "result.json").rename(seed / "dream" / "trained.json")
    check_bases(plan, [seed])  # only its test is repeated
    shutil.rmtree(seed / "dream")
    with pytest.raises(InvalidInput, match=r"remove them too.*: \S+/more, \S+/most_rate_0_001$"):
        check_bases(plan, [seed])


def test_a_stored_result_may_name_old_settings_with_the_values_that_are_fixed_now(tmp_path: Path) -> None:
    plan = read(tmp_path, GOOD)
    seed = Prepared(plan, 0, tmp_path / "seed-0", "", load_spec("coin"), Unplayable())
    (seed.folder / "warm").mkdir(parents=True)
    (seed.folder / "warm" / "config.json").write_text("{}")
    (seed.folder / "recorded.jsonl").write_text("".join(trajectory(n).model_dump_json() + "\n" for n in range(3)))
    (seed.folder / "dream").mkdir()

    def stored(**changes: JsonValue) -> Result:
        made_by = plan.arm[1].model_copy(update={"train": {**(plan.arm[1].train or {}), **changes}})
        made = result("dream", 0, "1").model_copy(update={"made_by": made_by})
        (seed.folder / "dream" / "result.json").write_text(made.model_dump_json())
        return made

    old: dict[str, JsonValue] = {"band": [0.2, 0.8], "vary": 2, "then_rate": 0.3, "ppo": {"epochs": 2, "decay": 0.95}}
    made = stored(**old)
    assert kept_result(seed, plan.arm[1]) == made
    stored(vary=4)
    with pytest.raises(InvalidInput, match="vary: it was removed"):
        kept_result(seed, plan.arm[1])


def test_only_one_at_a_time_makes_the_content_of_a_folder(tmp_path: Path) -> None:
    def taken() -> bool:
        with (tmp_path / "seed-0" / ".lock").open() as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with alone(tmp_path / "seed-0"):
        assert taken()
    assert not taken()


class Releasing(io.StringIO):
    """Releases a lock as soon as something is written."""

    def __init__(self, lock: TextIO) -> None:
        super().__init__()
        self._lock = lock

    def write(self, text: str) -> int:
        fcntl.flock(self._lock, fcntl.LOCK_UN)
        return super().write(text)


def test_an_experiment_says_that_it_waits_for_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print(os.getppid(), end="", file=lock, flush=True)
        stderr = Releasing(lock)
        monkeypatch.setattr("sys.stderr", stderr)
        with alone(tmp_path):
            assert stderr.getvalue() == f"waiting for process {os.getppid()}, which works in {tmp_path}\n"
    assert (tmp_path / ".lock").read_text() == str(os.getpid())


def test_recordings_are_told_apart_by_folder_and_content(tmp_path: Path) -> None:
    def digest(folder: str, text: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "recorded.jsonl").write_text(text)
        plan = read(tmp_path, GOOD)
        return Prepared(plan, 0, tmp_path / folder, "", load_spec("coin"), Unplayable()).digest

    assert digest("a", "1") == digest("a", "1")
    assert len({digest("a", "1"), digest("a", "2"), digest("b", "1")}) == 3


class Listed(Unplayable):
    """A real environment with three tasks of each split."""

    def tasks(self, split: str) -> Sequence[Task]:
        return [Task(id=f"{split}-{number}", env="e", instruction="go") for number in range(3)]


FROM_FILE = (
    GOOD.partition("[[recorded]]")[0]
    + """
[[recorded]]
file = "{file}"
[[arm]]
name = "own"
train = {{ policy = "base", algorithm = "sft" }}
"""
)


def test_a_file_of_recordings_is_used_except_for_tasks_that_are_tested_or_probed(tmp_path: Path) -> None:
    tasks = [task for split in ("train", "dev", "test", "sessions") for task in Listed().tasks(split)[:2]]
    episodes = [trajectory(number).model_copy(update={"task": task}) for number, task in enumerate(tasks)]
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{episode.model_dump_json()}\n" for episode in episodes))
    plan = read(tmp_path, FROM_FILE.format(file=file))
    prepared = Prepared(plan, 0, tmp_path, "", load_spec("coin"), Listed())
    assert [one.task.id for one in prepared.recorded] == ["train-0", "train-1", "sessions-0", "sessions-1"]


def test_a_file_with_two_different_episodes_of_one_id_is_refused_before_anything_is_played(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    other = trajectory(1).model_copy(update={"id": trajectory(0).id})
    file.write_text(f"{trajectory(0).model_dump_json()}\n{other.model_dump_json()}\n")
    plan = read(tmp_path, FROM_FILE.format(file=file))
    with pytest.raises(InvalidInput, match=r"episodes\.jsonl, trajectory 2: an earlier trajectory has the id"):
        _ = Prepared(plan, 0, tmp_path, "", load_spec("coin"), Listed()).recorded


def test_a_file_of_recordings_that_changed_since_a_seed_began_is_named(tmp_path: Path) -> None:
    file = tmp_path / "episodes.jsonl"
    file.write_text(trajectory(0).model_dump_json() + "\n")
    plan = read(tmp_path, FROM_FILE.format(file=file))

    def continued() -> Prepared:
        return Prepared(plan, 0, tmp_path, "", load_spec("coin"), Listed())

    continued().check_files()
    assert len(continued().recorded) == 1
    continued().check_files()
    file.write_text(file.read_text() + trajectory(1).model_dump_json() + "\n")
    with pytest.raises(InvalidInput, match=r"episodes\.jsonl: other episodes than those that .* began with"):
        continued().check_files()
    file.unlink()
    continued().check_files()


def test_tasks_of_a_file_that_are_in_no_split_are_counted_because_their_worlds_are_not_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [Listed().tasks("train")[0], *(Task(id=f"own-{n}", env="e", instruction="go") for n in range(2))]
    episodes = [trajectory(number).model_copy(update={"task": task}) for number, task in enumerate(tasks)]
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{episode.model_dump_json()}\n" for episode in episodes))
    plan = read(tmp_path, FROM_FILE.format(file=file))
    _ = Prepared(plan, 0, tmp_path, "", load_spec("coin"), Listed()).recorded
    assert "2 of its tasks are in no split, such as 'own-0': their worlds" in capsys.readouterr().err


def test_a_file_of_recordings_is_used_except_for_tasks_of_the_held_out_kind(tmp_path: Path) -> None:
    tasks = [Task(id=f"{kind}-{n}", env="e", instruction="go") for n in range(2) for kind in ("wash", "cook")]
    episodes = [trajectory(number).model_copy(update={"task": task}) for number, task in enumerate(tasks)]
    file = tmp_path / "episodes.jsonl"
    file.write_text("".join(f"{episode.model_dump_json()}\n" for episode in episodes))
    plan = read(tmp_path, FROM_FILE.format(file=file).replace("[[recorded]]", 'held_out = "wash"\n[[recorded]]'))
    prepared = Prepared(plan, 0, tmp_path, "", load_spec("coin"), Listed())
    assert [one.task.id for one in prepared.recorded] == ["cook-0", "cook-1"]


@pytest.mark.parametrize(
    ("kept", "words"), [(None, "does not exist"), ("dev", "except of tasks that are tested, probed or held out")]
)
def test_a_file_that_gives_no_recording_is_named_before_anything_is_played(
    tmp_path: Path, kept: str | None, words: str
) -> None:
    file = tmp_path / "episodes.jsonl"
    if kept is not None:
        file.write_text(trajectory(0).model_copy(update={"task": Listed().tasks(kept)[0]}).model_dump_json() + "\n")
    played = '[[recorded]]\nbehaviour = "noisy"\ntasks = 2\nepisodes = 4\n'
    plan = read(tmp_path, FROM_FILE.format(file=file) + played)
    with pytest.raises(InvalidInput, match=words):
        _ = Prepared(plan, 0, tmp_path, "", load_spec("coin"), Listed()).recorded


def test_played_recordings_are_kept_redacted_and_for_their_owner_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))

    class Telling:
        tools: Sequence[JsonObject] = ()

        async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
            return StepResult(observation="a desk")

        async def step(self, action: ToolCall) -> StepResult:
            return StepResult(observation="mail to mia.li@acme-corp.de", terminated=True)

        async def close(self) -> None:
            pass

    async def look(first: StepResult, environment: Environment, seed: int) -> None:
        await environment.step(ToolCall(name="look"))

    class Told(Unplayable):
        behaviours: Mapping[str, Behaviour] = {"noisy": look}

        def tasks(self, split: str) -> Sequence[Task]:
            return [Task(id="one", env="coin", instruction="Look.")]

        create = Telling

    spec = load_spec("coin").model_copy(update={"redact": RedactionRules()})
    played = Prepared(read(tmp_path, GOOD), 0, tmp_path, "", spec, Told()).recorded
    assert len(played) == 4
    assert "mia.li" not in (tmp_path / "recorded.jsonl").read_text()
    assert (tmp_path / "recorded.jsonl").stat().st_mode & 0o777 == 0o600


def test_an_experiment_needs_play_to_imitate_unless_it_brings_a_policy(tmp_path: Path) -> None:
    text = FROM_FILE.format(file="episodes.jsonl")
    assert not read(tmp_path, text).arm[0].begins_warm
    with pytest.raises(InvalidInput, match="the warm start has nothing to imitate"):
        read(tmp_path, text.replace('policy = "base", ', ""))


def test_what_differs_between_settings_is_named() -> None:
    assert difference({"train": {"steps": 3}}, {"train": {"steps": 3}}) is None
    assert difference({"train": None}, {"train": {}}) == "train was None and is {} now"
    assert difference({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}) == "a.b was 1 and is None now, a.c was 2 and is 3 now"


def test_a_default_that_is_written_out_is_the_same_setting() -> None:
    plain, written = Arm(name="a", train={}), Arm(name="a", train={"steps": 100, "ppo": {"epochs": 2}})
    assert difference(plain.settings, written.settings) is None


def trajectory(number: int) -> Trajectory:
    def step(at: int, *, last: bool) -> Transition:
        return Transition(
            state=f"{number}-{at}",
            action=ToolCall(name="act", arguments={"n": 4 * number + at}),
            result=StepResult(observation=f"{number}-{at + 1}", reward=float(last and number % 2), terminated=last),
            next_state=f"{number}-{at + 1}",
            provenance=Provenance(tier=Tier.REAL),
        )

    return Trajectory(
        id=str(number),
        task=Task(id=f"t{number}", env="e", instruction="go"),
        transitions=tuple(step(at, last=at == 3) for at in range(4)),
        source=Source.REAL,
        stop_reason=StopReason.TERMINATED,
    )


def test_spoiled_recordings_keep_the_calls_and_lose_what_followed_them() -> None:
    given = [trajectory(number) for number in range(6)]
    spoiled = shuffled(given, seed=0)
    pairs = [
        (a, b) for one, other in zip(given, spoiled, strict=True)
        for a, b in zip(one.transitions, other.transitions, strict=True)
    ]  # fmt: skip
    assert all((a.state, a.action) == (b.state, b.action) for a, b in pairs)
    assert sorted(a.next_state for a, _ in pairs) == sorted(b.next_state for _, b in pairs)
    assert sum(a.next_state == b.next_state for a, b in pairs) < len(pairs) / 4
    without_calls = [step for one in shuffled(given, seed=0, calls=True) for step in one.transitions]
    assert [step.state for step in without_calls] == [a.state for a, _ in pairs]
    assert sorted(step.action.canonical() for step in without_calls) == sorted(a.action.canonical() for a, _ in pairs)
    assert sum(step.action == a.action for step, (a, _) in zip(without_calls, pairs, strict=True)) < len(pairs) / 2
    few = [step for one in shuffled(given, seed=0, share=0.25) for step in one.transitions]
    assert [(step.state, step.action) for step in few] == [(a.state, a.action) for a, _ in pairs]
    assert 0 < sum(step.next_state != a.next_state for step, (a, _) in zip(few, pairs, strict=True)) <= 6
    alike = [episode for one in given for episode in rewarded(one)]
    assert [step for one in alike for step in one.transitions if step.result.reward != 1.0] == []
    assert [one.transitions[0].action for one in alike] == [step.action for one in given for step in one.transitions]
    assert all(one.success for one in alike)
    lost = [unrewarded(one) for one in given]
    assert any(one.success for one in given)
    assert not any(one.success for one in lost)
    ends = [step.result.terminated for one in given for step in one.transitions]
    assert [step.result.terminated for one in lost for step in one.transitions] == ends


def result(arm: str, seed: int, outcomes: str) -> Result:
    return Result(
        arm=arm,
        seed=seed,
        made_by=Arm(name=arm),
        commit="abc1234",
        outcomes=outcomes,
        refused_share=0.25,
        recorded_steps=1000,
        real_steps=0,
        dream_steps=500,
        tiers={"recorded": 400, "model": 100},
        unjudged=0,
        seconds=1.0,
        dead_share=0.5,
        curve=((0, 0.0), (10, 1.0)),
    )


def test_the_table_pairs_arms_by_seed_and_task() -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        test=Measured(episodes=4),
        arm=(Arm(name="a"), Arm(name="b", train={})),
        compare=(Comparison(arm="b", against="a", goal="above 0"),),
    )
    results = [result(name, seed, some) for name, some in (("a", "0100"), ("b", "1110")) for seed in (0, 1)]
    text = report(Published(file="t", plan=plan, results=tuple(results)))
    assert "| b − a | +50.0 [" in text
    assert "| +50.0, +50.0 | +0.0 | +0.0 | above 0 |" in text
    assert "| a | 25.0 % [" in text
    assert "| 500 | recorded 80 %, model 20 % |" in text
    assert "Made by `dreamgym experiment examples/experiments/t.toml` at commit abc1234." in text


def test_a_name_with_a_bar_stays_in_its_cell_of_the_table() -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        arm=(Arm(name="a"), Arm(name="k=1|2", rates=(1e-3,), train={})),
        compare=(Comparison(arm="k=1|2", against="a", goal="|difference| above 0"),),
    )
    results = [result(name, seed, "01") for name in ("a", "k=1|2, rate 0.001") for seed in (0, 1)]
    text = report(Published(file="t", plan=plan, results=tuple(results)))
    rows = [line for line in text.splitlines() if "k=1" in line]
    assert [row.split(" | ")[0] for row in rows] == [r"| k=1\|2", r"| k=1\|2", r"| k=1\|2 − a"]
    assert rows[-1].endswith(r" | \|difference\| above 0 |")


@pytest.mark.parametrize(
    ("seeds", "over"), [(1, "t: over tasks alone for success, because a single seed"), (2, "t: over seeds and tasks")]
)
def test_the_page_of_a_single_seed_says_that_its_intervals_are_over_tasks_alone(seeds: int, over: str) -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=tuple(range(seeds)),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        test=Measured(episodes=4),
        arm=(Arm(name="a"), Arm(name="b", train={})),
    )
    results = [result(name, seed, some) for name, some in (("a", "0000"), ("b", "1111")) for seed in range(seeds)]
    text = report(Published(file="t", plan=plan, results=tuple(results)))
    assert over in text
    assert "| a | 0.0 % [0.0, 49.0] |" in text, "other tasks could be won"
    assert "| b | 100.0 % [51.0, 100.0] |" in text
    assert "inf" not in text


def test_the_page_counts_the_episodes_that_were_not_learned_from_and_those_that_nobody_could_judge() -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        arm=(Arm(name="a"), Arm(name="b", train={})),
    )
    told: list[JsonObject] = [{"unjudged": 1_000, "failed": 2}, {"unjudged": 0, "failed": None, "unjudged_tests": 3}]
    results = [
        result(name, seed, "0100").model_copy(update=counts)
        for name, counts in zip("ab", told, strict=True)
        for seed in (0, 1)
    ]
    text = report(Published(file="t", plan=plan, results=tuple(results)))
    assert "whose reward could not be determined; the policy did not learn from them: a 2,000." in text
    assert "that ended because no tier had an answer; the policy did not learn from them: a 4." in text
    assert "Test episodes whose reward could not be determined; they count as failures: b 6." in text


def test_of_an_arm_with_several_rates_the_one_that_is_best_on_dev_tasks_counts() -> None:
    arm = Arm(name="real", rates=(1e-3, 5e-4), train={"against": "real"})
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        test=Measured(episodes=4),
        arm=(Arm(name="a"), arm),
        compare=(Comparison(arm="real", against="a"),),
    )
    assert [one.train for one in arm.trained()] == [
        {"against": "real", "learning_rate": 1e-3},
        {"against": "real", "learning_rate": 5e-4},
    ]
    probes = {"real, rate 0.001": (0.5, 0.5), "real, rate 0.0005": (0.3, 0.8)}
    tested = {"real, rate 0.001": "1111", "real, rate 0.0005": "1100"}
    results = [result("a", seed, "0000") for seed in (0, 1)] + [
        result(name, seed, tested[name]).model_copy(update={"curve": ((0, 0.9), (10, dev))})
        for name, devs in probes.items()
        for seed, dev in enumerate(devs)
    ]
    text = report(Published(file="t", plan=plan, results=tuple(results)))
    assert "| real | 50.0 % [" in text, "dev decides, whatever the test says"
    assert "| real | 0.001 | 50.0 % | 100.0 %" in text
    assert "| real | 0.0005, taken | 55.0 % | 50.0 %" in text
    with pytest.raises(ValidationError, match="names no learning_rate"):
        Arm(name="real", rates=(1e-3,), train={"learning_rate": 1e-3})


def test_a_dream_may_know_a_part_of_the_recordings_and_smaller_parts_are_in_larger_ones(tmp_path: Path) -> None:
    seed = Prepared(read(tmp_path, GOOD), 0, tmp_path / "seed-0", "", load_spec("coin"), Unplayable())
    seed.folder.mkdir()
    (seed.folder / "recorded.jsonl").write_text("".join(trajectory(n).model_dump_json() + "\n" for n in range(9)))
    few, more, every = (
        {one.id for one in seed.given(Arm(name="a", train={}, recordings=count))} for count in (3, 6, None)
    )
    assert few < more < every
    assert [len(some) for some in (few, more, every)] == [3, 6, 9]


def test_areas_and_dead_groups_are_compared_over_seeds() -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1, 2),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        test=Measured(episodes=1),
        arm=(
            Arm(name="a"),
            Arm(name="b", train={}),
            Arm(name="longer", train={}),
            Arm(name="random", behaviour="random"),
        ),
        compare=tuple(Comparison(arm="b", against=other) for other in ("a", "longer", "random")),
    )

    def made(name: str, seed: int, height: float, dead: float | None) -> Result:
        curve = () if dead is None else ((0, height), (20 if name == "longer" else 10, height))
        return result(name, seed, "1").model_copy(update={"curve": curve, "dead_share": dead})

    heights = (0.2, 0.4, 0.3)
    results = {
        "a": [made("a", seed, height, 0.5) for seed, height in enumerate(heights)],
        "b": [made("b", seed, height + 0.1 * (seed + 1), 0.4) for seed, height in enumerate(heights)],
        "longer": [made("longer", seed, 0.2, 0.4) for seed in range(3)],
        "random": [made("random", seed, 0.0, None) for seed in range(3)],
    }
    flat = [one for some in results.values() for one in some]
    text = report(Published(file="t", plan=plan, results=tuple(flat)))
    # the areas differ by 10, 20 and 30 points: 20 +- 4.303 * 10 / sqrt(3)
    assert "| +20.0 [-4.8, +44.8] | -10.0 |" in text, "seeds that agree by chance give no interval"
    assert "| 30.0 % [5.2, 54.8] |" in text
    assert "| b − random | +0.0 [-79.3, +79.3] | +0.0, +0.0, +0.0 |  |  |  |" in text
    longer = "| b − longer | +0.0 [-79.3, +79.3] | +0.0, +0.0, +0.0 |  | +0.0 |  |"
    assert longer in text, "areas over other numbers of updates do not compare"


def test_the_interval_of_a_share_ends_at_0_and_100_percent_and_no_zero_has_a_minus() -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        arm=(Arm(name="a"), Arm(name="b", train={})),
        compare=(Comparison(arm="b", against="a"),),
    )
    dead = {"a": (0.5, 1.0), "b": (0.4999, 0.9998)}
    results = [
        result(name, seed, outcomes).model_copy(update={"dead_share": dead[name][seed]})
        for name in "ab"
        for seed, outcomes in enumerate(("1110", "0010"))
    ]
    text = report(Published(file="t", plan=plan, results=tuple(results)))
    assert "| a | 50.0 % [0.0, 100.0] | 25 % | 0 | 500 | recorded 80 %, model 20 % | 75.0 % [0.0, 100.0] |" in text
    assert "| +0.0 [-0.1, +0.0] |  |" in text
    assert "-0.0" not in text


def test_success_in_the_dream_is_drawn_as_a_mean_over_the_last_updates() -> None:
    record: list[JsonObject] = [{"step": n, "inside_success": float(n)} for n in range(7)]
    assert list(inside_curve([*record[:2], {"step": 2, "real_success": 1.0}, *record[2:]])) == [
        (1, 0.0),
        (2, 0.5),
        (3, 1.0),
        (4, 1.5),
        (5, 2.0),
        (6, 3.0),
        (7, 4.0),
    ]


def test_the_curve_of_two_phases_goes_on_where_the_first_ended() -> None:
    dream: list[JsonObject] = [
        {"step": 0, "real_success": 0.2},
        {"step": 0, "rollout_s": 1.0},
        {"step": 1, "rollout_s": 1.0},
        {"step": 2, "real_success": 0.4},
    ]
    real: list[JsonObject] = [
        {"step": 0, "real_success": 0.4},
        {"step": 0, "rollout_s": 1.0},
        {"step": 1, "real_success": 0.5},
    ]
    assert list(curve([dream, real])) == [(0, 0.2), (2, 0.4), (3, 0.5)]
    assert list(curve([dream, []])) == [(0, 0.2), (2, 0.4)]


def test_curves_leave_out_updates_and_probes_whose_success_is_unknown() -> None:
    record: list[JsonObject] = [
        {"step": 0, "real_success": None},
        {"step": 0, "rollout_s": 1.0, "inside_success": None},
        {"step": 1, "rollout_s": 1.0, "inside_success": 0.5},
        {"step": 2, "real_success": 0.4},
    ]
    assert list(curve([record])) == [(2, 0.4)]
    assert list(inside_curve(record)) == [(2, 0.5)]


def test_the_area_under_a_curve_is_its_mean_height() -> None:
    assert area_under(((0, 0.0), (10, 1.0), (30, 1.0))) == pytest.approx((5 + 20) / 30)
    assert area_under(((0, 0.5),)) is None


def test_an_attempt_that_was_killed_counts_until_the_last_line_of_its_record(tmp_path: Path) -> None:
    (tmp_path / ATTEMPTS).write_text("[[10.0, 14.0], [100.0, null]]")
    assert attempts(tmp_path)[-1] == (100.0, 100.0), "it wrote nothing"
    record = tmp_path / "metrics.jsonl"
    record.write_text("{}\n")
    os.utime(record, (130.0, 130.0))
    assert attempts(tmp_path) == [(10.0, 14.0), (100.0, 130.0)]


def test_output_of_a_training_that_is_not_utf_8_is_logged_with_replaced_bytes(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(r"import os; os.write(1, b'update 1: caf\xe9\n')")
    log = tmp_path / "train.log"
    assert logged(["--version"], log, "seed 0: dream", {**os.environ, "PYTHONPATH": str(tmp_path)}) == 0
    printed, version = log.read_text(encoding="utf-8").splitlines()
    assert printed == "update 1: caf\ufffd"
    assert version, "the process went on to its end"


def test_after_an_interrupt_no_process_starts_until_the_next_experiment_begins(tmp_path: Path) -> None:
    seed = Prepared(read(tmp_path, GOOD), 0, tmp_path / "seed-0", "", load_spec("coin"), Unplayable())
    log = tmp_path / "train.log"
    interrupt()
    with pytest.raises(EnvironmentUnavailable, match="interrupted: run the same command again to continue"):
        logged(["--version"], log, "seed 0: dream", os.environ)
    with pytest.raises(EnvironmentUnavailable, match="interrupted"):
        kept_result(seed, seed.plan.arm[1])
    assert not (seed.folder / "recorded.jsonl").exists(), "nor is anything played"
    begin()
    assert logged(["--version"], log, "seed 0: dream", os.environ) == 0


def test_seeds_after_the_second_train_at_the_better_rate_alone(tmp_path: Path) -> None:
    arm = Arm(name="real", rates=(1e-3, 5e-4), train={"against": "real"})
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1, 2),
        recorded=(Play(behaviour="noisy", episodes=1, tasks=1, warm=True),),
        arm=(arm,),
    )
    fast, slow = arm.trained()
    spec = load_spec("coin")
    seeds = [Prepared(plan, seed, tmp_path / f"seed-{seed}", "", spec, real_of(spec)) for seed in plan.seeds]
    kept = [
        (seeds[0], fast, 0.5),
        (seeds[0], slow, 0.3),
        (seeds[1], fast, 0.5),
        (seeds[1], slow, 0.8),
        (seeds[2], slow, 0.1),
    ]
    for prepared, trained, dev in kept:
        (prepared.folder / "warm").mkdir(parents=True, exist_ok=True)
        (prepared.folder / "warm" / "config.json").write_text("{}")
        one = result(trained.name, prepared.seed, "1").model_copy(update={"made_by": trained, "curve": ((10, dev),)})
        folder = prepared.folder / name_of(trained)
        folder.mkdir()
        (folder / "result.json").write_text(one.model_dump_json())

    with ThreadPoolExecutor(2) as pool:
        found = [[future.result().arm for future in futures] for futures in queued(pool, plan.arm, seeds)]

    assert found == [[fast.name, slow.name], [fast.name, slow.name], [slow.name]], (
        "an arm without a stored result cannot be trained in this test"
    )
