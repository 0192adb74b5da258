"""Test whether the measured errors of a dream predict what practice in it is worth: ten dreams of graded fidelity.

    dreamgym experiment examples/experiments/dose-coin.toml --out runs/coin
    dreamgym experiment examples/experiments/dose-mapreader.toml --out runs/mapreader
    python examples/experiments/dose.py runs/*/dose-*.toml --out docs/results/dose

Before any training, the warm start plays the recorded tasks in the real game, once each. The dream then predicts every
step of that play from the real steps before it. Four shares are measured: errors (the state after the step is wrong, or
there is no answer), false rewards (among the steps without a real reward), false refusals (among the steps that reality
accepts) and missed rewards (among the steps with a real reward). After the training, the policy plays the same tasks,
twice each, in the dream and in reality; the difference is the transfer gap. Plays whose reward is unknown in either,
such as those that the dream could not finish, are left out of both, and their share is shown. All measurements are kept
in the run folder, and a second start continues from there.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from dreamgym_integrations.trainers.policy.model import load_policy

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.load import load_model
from dreamgym.dream.model import Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import Environment, EnvironmentSpec, load_spec, real_of
from dreamgym.episode import Recorder
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.predictions import predict, steps_of
from dreamgym.evaluation.rates import Rate, mean_over_seeds, shares, spearman
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.runs.experiment.plan import Arm, Plan, name_of, read_plan
from dreamgym.runs.experiment.prepared import Prepared
from dreamgym.runs.experiment.running import Result
from dreamgym.runs.experiment.table import percent, points
from dreamgym.runs.versions import commit
from dreamgym.training.probe import evaluate
from dreamgym.training.rollout import TokenPlayer
from dreamgym.types import Frozen, Source, Task, Trajectory

PLAYS = 2
"""How often a trained policy plays each recorded task in the dream, and in reality."""
SEED = 11
START = "warm start"
MEASURES = ("errors", "false rewards", "false refusals", "missed rewards")


class Dose(Frozen):
    """One dream with one seed."""

    game: str
    arm: str
    seed: int
    commit: str
    steps: int
    """Number of steps of real play that the dream predicted."""
    measured: dict[str, float]
    """Shares, by MEASURES."""
    tiers: dict[str, int]
    """Number of these steps by the tier that answered."""
    inside: float
    """Success of the trained policy in the dream."""
    outside: float
    """Success of the trained policy in reality, in the same plays."""
    plays: int = 240
    """Number of plays in the dream, and in reality."""
    left_out: float | None = None
    """Share of the plays whose reward is unknown. None: measured by older code, which left plays out of `inside` alone
    and did not count them."""
    start: float
    """Success of the warm start on the test tasks, in reality."""
    test: float
    """Success of the trained policy on the test tasks, in reality."""

    @property
    def gap(self) -> float:
        """How much the dream overstates the success."""
        return self.inside - self.outside

    @property
    def least_left_out(self) -> float:
        """The share of plays left out; of older code the least one with which its success in the dream fits."""
        if self.left_out is not None:
            return self.left_out
        fitting = (n for n in range(self.plays, 0, -1) if abs(round(self.inside * n) - self.inside * n) < 1e-9)
        return 1 - next(fitting) / self.plays

    @property
    def gain(self) -> float:
        """Gain of success on the test tasks by practice in the dream."""
        return self.test - self.start


@dataclass(frozen=True)
class Dreamt:
    """The dream of one arm with one seed."""

    prepared: Prepared
    arm: Arm

    @property
    def folder(self) -> Path:
        """Run folder of the arm."""
        return self.prepared.folder / name_of(self.arm)

    @property
    def model(self) -> str:
        """Value of `--model`."""
        fit = self.arm.fit
        return "nearest" if fit is None else str(self.prepared.folder / fit.name / "model")

    @property
    def without(self) -> frozenset[Part]:
        """Parts of the dream that the arm leaves out."""
        named = (self.arm.train or {}).get("without", [])
        return frozenset(Part(str(part)) for part in named) if isinstance(named, list) else frozenset()


async def measured(dreamt: Dreamt, play: Sequence[Trajectory], tasks: Sequence[Task]) -> Dose:
    """Let the dream predict the real play, and let the trained policy play in the dream and in reality."""
    prepared, arm, spec = dreamt.prepared, dreamt.arm, dreamt.prepared.spec
    encoder, model = load_encoder(None), load_model(dreamt.model, env=spec.name)
    known = prepared.given(arm)
    buffer = MemoryBuffer(encoder)
    await buffer.add(known)
    try:
        calls = await predict(
            spec, model, known, steps_of(play), encoder, without=dreamt.without, seed=SEED, parallel=16
        )

        def dream() -> Environment:
            return DreamEnvironment(spec, model, buffer, without=dreamt.without)

        inside = await outcomes(dreamt.folder / "policy", spec, dream, tasks)
    finally:
        await model.close()
    outside = await outcomes(dreamt.folder / "policy", spec, prepared.real.create, tasks)
    known_in_both = [pair for pair in zip(inside, outside, strict=True) if None not in pair]
    if not known_in_both:
        raise InvalidInput(f"{spec.name}, {arm.name}: no play has a reward in the dream and in reality")
    plain = [call for call in calls if call.recorded.reward <= 0]
    rewarded = [call for call in calls if call.recorded.reward > 0]
    accepted = [call for call in calls if not call.recorded.is_error]
    tiers: dict[str, int] = {}
    for call in calls:
        tier = call.predicted.provenance.tier.value if call.predicted is not None else "none"
        tiers[tier] = tiers.get(tier, 0) + 1
    shared = {
        "errors": mean(not call.state_is_exact for call in calls),
        "false rewards": mean(call.got is not None and call.got.reward > 0 for call in plain),
        "false refusals": mean(call.got is not None and call.got.is_error for call in accepted),
        "missed rewards": mean(call.got is None or call.got.reward <= 0 for call in rewarded) if rewarded else 0.0,
    }
    return Dose(
        game=spec.name,
        arm=arm.name,
        seed=prepared.seed,
        commit=commit(),
        steps=len(calls),
        measured=shared,
        tiers=tiers,
        inside=mean(one or 0.0 for one, _ in known_in_both),
        outside=mean(other or 0.0 for _, other in known_in_both),
        plays=len(inside),
        left_out=1 - len(known_in_both) / len(inside),
        start=mean(result_of(prepared, START).outcomes_N),
        test=mean(result_of(prepared, arm.name).outcomes_N),
    )


async def outcomes(
    folder: Path, spec: EnvironmentSpec, make: Callable[[], Environment], tasks: Sequence[Task]
) -> list[float | None]:
    """Success of a policy in each of its plays, 1 or 0; None where the reward is unknown."""
    policy, codec = load_policy(folder)
    player = TokenPlayer(policy, codec, spec, lambda version, group: make())
    found = [await evaluate(player, tasks, seed=SEED + number) for number in range(PLAYS)]
    return [outcome for one in found for outcome in one.outcomes]


async def real_play(prepared: Prepared, tasks: Sequence[Task]) -> list[Trajectory]:
    """Let the warm start play in the real game; return the episodes."""
    policy, codec = load_policy(prepared.warm())
    spec, played = prepared.spec, []

    def recorded(version: int, group: str) -> Environment:
        played.append(Recorder(prepared.real.create(), spec.max_steps))
        return played[-1]

    await evaluate(TokenPlayer(policy, codec, spec, recorded), tasks, seed=SEED)
    return [one.trajectory(Source.REAL) for one in played if one.transitions]


def result_of(prepared: Prepared, arm: str) -> Result:
    """The result of an arm."""
    file = prepared.folder / name_of(Arm(name=arm)) / "result.json"
    return Result.model_validate_json(file.read_text(encoding="utf-8"))


def doses(file: Path, plan: Plan) -> Iterator[Dose]:
    """Yield each dream of an experiment with each seed; measure those that are not in their run folders yet."""
    spec = load_spec(plan.env)
    for seed in plan.seeds:
        prepared = Prepared(plan, seed, file.parent / f"seed-{seed}", "", spec, real_of(spec))
        tasks = list({one.task.id: one.task for one in prepared.recorded}.values())
        play: list[Trajectory] = []
        for arm in (arm for arm in plan.arm if arm.train is not None):
            dreamt = Dreamt(prepared, arm)
            kept = dreamt.folder / "dose.json"
            if not kept.exists():
                play = play or asyncio.run(real_play(prepared, tasks))
                print(f"{plan.env}, seed {seed}: {arm.name}", file=sys.stderr, flush=True)
                part = kept.with_suffix(".part")
                part.write_text(asyncio.run(measured(dreamt, play, tasks)).model_dump_json(), encoding="utf-8")
                part.rename(kept)
            yield Dose.model_validate_json(kept.read_text(encoding="utf-8"))


def table(found: Sequence[Dose]) -> Iterator[str]:
    """Lines of a table with one row for each dream."""
    head = (
        "game",
        "dream",
        "answered by",
        *MEASURES,
        "plays left out",
        "success in the dream",
        "in reality",
        "gap, points",
        "gain, points",
    )
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for game, arm in dict.fromkeys((one.game, one.arm) for one in found):
        some = [one for one in found if (one.game, one.arm) == (game, arm)]
        tiers: dict[str, int] = {}
        for one in some:
            tiers = {tier: tiers.get(tier, 0) + one.tiers.get(tier, 0) for tier in tiers | one.tiers}
        left_out = [one.least_left_out for one in some]
        is_counted = all(one.left_out is not None for one in some)
        cells = (
            f"`{game}`",
            arm,
            shares(tiers),
            *(percent(mean_over_seeds([one.measured[name] for one in some])) for name in MEASURES),
            ("" if is_counted else "at least ") + f"{100 * mean(left_out):.1f} %",
            percent(mean_over_seeds([one.inside for one in some])),
            percent(mean_over_seeds([one.outside for one in some])),
            points(mean_over_seeds([one.gap for one in some])),
            points(mean_over_seeds([one.gain for one in some])),
        )
        yield f"| {' | '.join(cells)} |"


def correlations(found: Sequence[Dose]) -> Iterator[str]:
    """Spearman's rank correlation over the dreams of a seed; mean over the seeds with Student's t."""
    yield "| game | measured before training | with the gap of transfer | with the gain in reality |"
    yield "|---|---|---|---|"
    for game in dict.fromkeys(one.game for one in found):
        for name in MEASURES:
            cells = [
                correlation([one for one in found if one.game == game], measure(name), of)
                for of in (lambda one: one.gap, lambda one: one.gain)
            ]
            yield f"| `{game}` | {name} | {' | '.join(cells)} |"


def measure(name: str) -> Callable[[Dose], float]:
    """Function that returns the measure of this name, which was measured before training."""
    return lambda one: one.measured[name]


def correlation(found: Sequence[Dose], one: Callable[[Dose], float], other: Callable[[Dose], float]) -> str:
    """Mean of the rank correlation and its interval; "-" if no seed has one."""
    by_seed = []
    for seed in dict.fromkeys(dose.seed for dose in found):
        some = [dose for dose in found if dose.seed == seed]
        by_seed.append(spearman([one(dose) for dose in some], [other(dose) for dose in some]))
    known = [value for value in by_seed if value is not None]
    if not known:
        return "-"
    rate: Rate = mean_over_seeds(known)
    mark = "**" if rate.low > 0 or rate.high < 0 else ""
    bounds = f" [{rate.low:+.2f}, {rate.high:+.2f}]" if math.isfinite(rate.high) else ""
    return f"{mark}{rate.mean:+.2f}{mark}{bounds}"


def page(found: Sequence[Dose]) -> str:
    """The page: the table, the correlations, and how they were made."""
    commits = ", ".join(sorted({one.commit for one in found}))
    seeds = ", ".join(map(str, sorted({one.seed for one in found})))
    lines = [
        "# Ten dreams of graded fidelity",
        "",
        "Made by `python examples/experiments/dose.py runs/*/dose-*.toml --out docs/results/dose` at commit "
        f"{commits}, with seeds {seeds}. Brackets are 95 % intervals by Student's t over seeds. **Bold**: the interval "
        "does not contain 0. Plays left out: their reward is unknown. Where only their least share is known, they "
        "are left out of the success in the dream alone.",
        "",
        *table(found),
        "",
        "Spearman's rank correlation over the dreams of a game, of each seed; mean and interval over the seeds:",
        "",
        *correlations(found),
    ]
    return "\n".join(lines) + "\n"


def plot(found: Sequence[Dose], file: Path) -> None:
    """Plot gap and gain against the errors: a point for each dream, with intervals of Student's t over its seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    arms = list(dict.fromkeys(one.arm for one in found))
    games = list(dict.fromkeys(one.game for one in found))
    figure, panels = plt.subplots(len(games), 2, figsize=(11, 4.2 * len(games)), layout="constrained", squeeze=False)
    wanted = (("gap", "dream minus reality, points"), ("gain", "gain in reality, points"))
    for game, row in zip(games, panels, strict=True):
        for panel, (name, label) in zip(row, wanted, strict=True):
            for number, arm in enumerate(arms):
                some = [one for one in found if (one.game, one.arm) == (game, arm)]
                if not some:
                    continue
                x = mean_over_seeds([100 * one.measured["errors"] for one in some])
                y = mean_over_seeds([100 * float(getattr(one, name)) for one in some])
                panel.errorbar(
                    [x.mean],
                    [y.mean],
                    xerr=[[x.mean - x.low], [x.high - x.mean]] if len(some) > 1 else None,
                    yerr=[[y.mean - y.low], [y.high - y.mean]] if len(some) > 1 else None,
                    fmt="o",
                    color=mpl.colormaps["tab10"](number % 10),
                    capsize=2,
                    label=arm,
                )
            panel.axhline(0, color="grey", lw=0.6)
            panel.set(title=f"{game}: {name}", xlabel="errors of the dream on real play, %", ylabel=label)
            panel.grid(alpha=0.25)
            panel.spines[["top", "right"]].set_visible(False)
    panels[0][1].legend(fontsize=7, frameon=False)
    figure.savefig(file, dpi=130)
    plt.close(figure)


def main() -> None:
    """Measure, and write OUT.md, OUT.jsonl and OUT.png."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="experiment files in their run folders")
    parser.add_argument("--out", type=Path, required=True, help="path of the files to write, without an ending")
    given = parser.parse_args()
    found = [dose for file in given.files for dose in doses(file, read_plan(file))]
    text = page(found)
    given.out.with_suffix(".md").write_text(text, encoding="utf-8")
    lines = "".join(one.model_dump_json() + "\n" for one in found)
    given.out.with_suffix(".jsonl").write_text(lines, encoding="utf-8")
    plot(found, given.out.with_suffix(".png"))
    print(text)


if __name__ == "__main__":
    main()
