"""An experiment file says which arms with which seeds; what cannot be is said before anything is trained."""

from pathlib import Path

import pytest

from dreamgym.cli.experiment.plan import Arm, Comparison, Measured, Plan, Play, read_plan
from dreamgym.cli.experiment.prepared import rewarded, shuffled
from dreamgym.cli.experiment.running import Result, flags
from dreamgym.cli.experiment.table import area_under, report
from dreamgym.errors import InvalidInput
from dreamgym.types import Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Trajectory, Transition

GOOD = """
title = "A trial"
env = "coin"
seeds = [0, 1]
[[recorded]]
agent = "noisy"
tasks = 2
episodes = 4
warm = true
[[arm]]
name = "warm start"
[[arm]]
name = "dream"
train = { steps = 3, ppo = { epochs = 2 }, without = ["history", "retrieval"] }
[[compare]]
arm = "dream"
against = "warm start"
"""


def read(tmp_path: Path, text: str) -> Plan:
    file = tmp_path / "experiment.toml"
    file.write_text(text)
    return read_plan(file)


def test_an_arm_s_settings_become_options_of_dreamgym_train(tmp_path: Path) -> None:
    plan = read(tmp_path, GOOD)
    assert plan.arm[1].train is not None
    assert flags(plan.arm[1].train) == ["--steps", "3", "--ppo.epochs", "2", "--without", "history,retrieval"]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("warm = true", "", "the warm start has nothing to imitate"),
        ('name = "dream"', 'name = "warm start"', "two arms are called warm start"),
        ('arm = "dream"', 'arm = "drem"', "names no arm: drem"),
        ('name = "dream"', 'name = "dream"\nbehaviour = "random"', "expected behaviour or train, got both"),
        ('name = "warm start"', 'name = "warm start"\nspoiled = "reward"', "for an arm that trains"),
        ("seeds = [0, 1]", "seeds = []", "seeds"),
        ("title", "titel", "title"),
        ("[[arm]]", "[[arm", "is no TOML"),
    ],
)
def test_a_fault_in_the_file_is_named(tmp_path: Path, before: str, after: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read(tmp_path, GOOD.replace(before, after, 1))


def trajectory(number: int) -> Trajectory:
    def step(at: int, *, last: bool) -> Transition:
        return Transition(
            state=f"{number}-{at}",
            action=ToolCall(name="act"),
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
    assert all(rewarded(one).success for one in given)


def result(arm: str, seed: int, outcomes: tuple[float, ...]) -> Result:
    return Result(
        arm=arm,
        seed=seed,
        outcomes=outcomes,
        refused_share=0.25,
        recorded_steps=1000,
        real_steps=0,
        dream_steps=500,
        seconds=1.0,
        dead_share=0.5,
        curve=((0, 0.0), (10, 1.0)),
    )


def test_the_table_pairs_arms_by_seed_and_task() -> None:
    plan = Plan(
        title="T",
        env="coin",
        seeds=(0, 1),
        recorded=(Play(agent="noisy", episodes=1, tasks=1, warm=True),),
        test=Measured(episodes=4),
        arm=(Arm(name="a"), Arm(name="b", train={})),
        compare=(Comparison(arm="b", against="a", goal="above 0"),),
    )
    better = (1.0, 1.0, 1.0, 0.0)
    worse = (0.0, 1.0, 0.0, 0.0)
    results = {name: [result(name, seed, some) for seed in (0, 1)] for name, some in (("a", worse), ("b", better))}
    text = report(plan, results)
    assert "| b − a | +50.0 [" in text
    assert "| +50.0, +50.0 | above 0 |" in text
    assert "| a | 25.0 % [" in text


def test_the_area_under_a_curve_is_its_mean_height() -> None:
    assert area_under(((0, 0.0), (10, 1.0), (30, 1.0))) == pytest.approx((5 + 20) / 30)
    assert area_under(((0, 0.5),)) is None
