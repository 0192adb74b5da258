"""Trains one arm with one seed, measures it in the real environment, and keeps the result in a file."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from statistics import mean

from pydantic import Field, JsonValue, TypeAdapter

from dreamgym.budget import check_budget
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.episodes import has_succeeded
from dreamgym.evaluation.rates import wilson
from dreamgym.files import write_whole
from dreamgym.replay.postgres import databases
from dreamgym.runs.console import say
from dreamgym.runs.experiment.plan import Arm, Fit, Plan, flags, name_of
from dreamgym.runs.experiment.prepared import Prepared, alone
from dreamgym.runs.experiment.process import check_interrupted, logged
from dreamgym.runs.kept import read_kept
from dreamgym.runs.opening import tasks_of
from dreamgym.runs.play_many import play_in_order
from dreamgym.runs.players import player_in
from dreamgym.runs.server_process import with_dsn
from dreamgym.runs.train.config import TrainConfig
from dreamgym.runs.versions import commit
from dreamgym.training.old_settings import without_old_settings
from dreamgym.training.probe import Evaluation, evaluate
from dreamgym.training.record import read_record, tiers_of
from dreamgym.types import Frozen, JsonObject

SETTINGS: TypeAdapter[JsonObject] = TypeAdapter(JsonObject)
TIMES: TypeAdapter[list[tuple[float, float | None]]] = TypeAdapter(list[tuple[float, float | None]])
PLAYING_SEED = 7
ATTEMPTS = "attempts.json"
RESULT = "result.json"
BEGUN = "begun.json"
"""File with the settings around the training that began in the folder, such as the recordings that its dream knows."""
TRAINED = "trained.json"
"""File with the settings of an arm whose training is complete. If its test is cut off, only the test is repeated."""
LOG = "train.log"
SMOOTHED = 5
"""Number of updates over which success in the dream is averaged, because each update plays other tasks."""
SEEDS_TRIED = 2
"""Number of seeds with which an arm is trained at each of its learning rates."""


class Result(Frozen):
    """The result of one arm with one seed."""

    arm: str
    seed: int
    made_by: Arm
    """The arm as the experiment file describes it."""
    commit: str
    """Commit of the code that trained and measured the policy."""
    outcomes: str = Field(pattern="^[01]+$")
    """1 or 0 for each test task, in their order; 0 if nobody could judge the episode."""
    refused_share: float
    recorded_steps: int
    """Real steps recorded before training, the same for all arms of a seed."""
    real_steps: int
    """Real steps taken while training. Probes are not counted, because nothing is learned from them."""
    dream_steps: int
    tiers: dict[str, int]
    """Number of dream steps that each tier answered, including those of the arm in `after`."""
    unjudged: int
    """Training episodes whose reward could not be determined. Nothing was learned from them."""
    failed: int | None = None
    """Training episodes that ended because nothing could answer a step; None: they were not counted."""
    unjudged_tests: int = 0
    """Test episodes whose reward could not be determined. They count as failures."""
    seconds: float
    """Seconds of training the policy, interrupted attempts included; fitting an experience model is not included."""
    dead_share: float | None
    """Share of the played groups whose known rewards are all the same."""
    curve: tuple[tuple[int, float], ...]
    """Number of updates, and success of the probe in the real environment after them."""
    inside: tuple[tuple[int, float], ...] = ()
    """Number of updates, and mean success in the dream over the last `SMOOTHED` of them."""

    @property
    def outcomes_N(self) -> list[float]:
        """1.0 or 0.0 for each test task."""
        return [float(outcome) for outcome in self.outcomes]


Make = Callable[[Prepared, Arm], Result]
"""Trains and measures an arm with a seed whose warm start is made, and leaves the arm's files in its folder."""


def result(prepared: Prepared, arm: Arm, make: Make | None = None) -> Result:
    """The arm's result with this seed. It is kept in the arm's folder and read from there the next time.

    Args:
        prepared: the seed.
        arm: the arm, as in the experiment file.
        make: makes the result if it is not there yet; None: this process makes it.

    Raises:
        InvalidInput: the folder contains the result of an arm of this name with other settings.
        EnvironmentUnavailable: the experiment was interrupted, the training ended early, or real episodes failed.
    """
    with alone(prepared.folder):
        check_interrupted()
        _ = prepared.recorded
        if arm.begins_warm:
            check_interrupted()
            prepared.warm()
    folder = prepared.folder / name_of(arm)
    file = folder / RESULT
    with alone(folder):
        if not file.exists():
            check_interrupted()
            say(f"seed {prepared.seed}: {arm.name}")
            part = file.with_suffix(".part")
            part.write_text((make or _run)(prepared, arm).model_dump_json(), encoding="utf-8")
            part.rename(file)
    found = kept(prepared, arm)
    assert found is not None, "it was made above"
    return found


def kept(prepared: Prepared, arm: Arm) -> Result | None:
    """The arm's result that is in its folder; None if it is not there yet.

    Raises the InvalidInput of `result`, also if a training that began in the folder knows other recordings, and if the
    file is not a result.
    """
    folder = prepared.folder / name_of(arm)
    file, begun = folder / RESULT, folder / BEGUN
    found, changed = None, None
    if file.exists():
        mend = "remove the file, and the arm is measured again"
        found = read_kept(file, TypeAdapter(Result), "the result of an arm", mend)
        made_by = found.made_by
        if made_by.train is not None:
            made_by = made_by.model_copy(update={"train": without_old_settings(made_by.train)})
        changed = difference(made_by.settings, arm.settings)
    elif begun.exists() and (folder / "metrics.jsonl").exists():
        mend = f"remove {folder}, and the arm is trained again"
        file, changed = begun, difference(read_kept(begun, SETTINGS, "the settings of an arm", mend), _around(arm))
    if changed is not None:
        raise InvalidInput(
            f"{file} was made with other settings: {changed}; give the arm another name, or remove the folder"
        )
    return found


def _around(arm: Arm) -> JsonObject:
    """The settings of an arm that `dreamgym train` does not know, so that it cannot tell if they have changed."""
    return {name: value for name, value in arm.settings.items() if name != "train"}


def difference(was: JsonValue, now: JsonValue, name: str = "") -> str | None:
    """The differences between two settings as text; None if they are equal."""
    if isinstance(was, dict) and isinstance(now, dict):
        inner = [difference(was.get(key), now.get(key), f"{name}.{key}".strip(".")) for key in was | now]
        return ", ".join(one for one in inner if one is not None) or None
    return None if was == now else f"{name} was {was} and is {now} now"


def queued(
    pool: Executor, arms: Sequence[Arm], seeds: Sequence[Prepared], make: Make | None = None
) -> list[list[Future[Result]]]:
    """Submit every arm with every seed to the pool, and return one list per seed. For `make` see `result`.

    There is one queue: free workers begin with the next seed while others still train the last arms of this one.
    """
    tried: dict[str, list[Future[Result]]] = defaultdict(list)

    def at_best_rate(prepared: Prepared, arm: Arm) -> Result:
        known = {one.name: [future.result() for future in tried[one.name]] for one in arm.trained()}
        return result(prepared, best_rate(arm, known), make)

    waiting = []
    for number, prepared in enumerate(seeds):
        futures = []
        for arm in arms:
            if arm.rates and number >= SEEDS_TRIED:
                futures.append(pool.submit(at_best_rate, prepared, arm))
                continue
            for one in arm.trained():
                futures.append(pool.submit(result, prepared, one, make))
                tried[one.name].append(futures[-1])
        waiting.append(futures)
    return waiting


def best_rate(arm: Arm, results: Mapping[str, Sequence[Result]]) -> Arm:
    """The arm at the rate whose last real probes on dev tasks are the best; the arm itself if it has no rates.

    Args:
        arm: the arm, as in the experiment file.
        results: results by name of the trained arm, in the order of the seeds.
    """
    return max(arm.trained(), key=lambda one: _dev_success(results.get(one.name, ())))


def _dev_success(some: Sequence[Result]) -> float:
    """Mean success of the last real probe over the first seeds. One without a probe counts as -1, the worst."""
    tried = some[:SEEDS_TRIED]
    return mean(one.curve[-1][1] if one.curve else -1.0 for one in tried) if tried else -1.0


def probed(some: Sequence[Result]) -> float | None:
    """Mean success of the last real probe over all seeds; None if a seed has no probe."""
    return mean(one.curve[-1][1] for one in some) if some and all(one.curve for one in some) else None


def _run(prepared: Prepared, arm: Arm) -> Result:
    folder = prepared.folder / name_of(arm)
    seconds, before = 0.0, None
    base = prepared.warm() if arm.begins_warm else None
    earlier = before_it(prepared.plan, arm)
    if earlier is not None:
        before = result(prepared, earlier)
        seconds, base = before.seconds, _trained(prepared.folder / name_of(earlier))
    if arm.train is not None:
        first = first_phase(prepared.plan, arm)
        if first is not None:
            seconds = result(prepared, first).seconds
            _adopt(prepared.folder / name_of(first), folder)
        _train(prepared, arm, base, folder)
        seconds += sum(ended - began for began, ended in attempts(folder))
    check_interrupted()
    measured = asyncio.run(_measured(prepared, arm, folder))
    if measured.failed:
        raise EnvironmentUnavailable(
            f"{measured.failed} real episodes of {arm.name!r} failed: run the same command again to continue"
        )
    phases = phases_of(folder)
    played = [line for record in phases for line in record if "environment_steps" in line]
    groups = sum(_number(line.get("groups", 0)) for line in played)
    tiers = tiers_of(played) + Counter(before.tiers if before else {})
    return Result(
        arm=arm.name,
        seed=prepared.seed,
        made_by=arm,
        commit=commit(),
        outcomes="".join(str(int(outcome or 0)) for outcome in measured.outcomes),
        refused_share=measured.refused_share,
        recorded_steps=prepared.real_steps,
        real_steps=_steps(played, "real") + (before.real_steps if before else 0),
        dream_steps=_steps(played, "dream") + (before.dream_steps if before else 0),
        tiers=dict(sorted(tiers.items())),
        unjudged=_count("unjudged", played) + (before.unjudged if before else 0),
        failed=_count("failed", played) + ((before.failed or 0) if before else 0),
        unjudged_tests=measured.unjudged,
        seconds=round(seconds, 1),
        dead_share=sum(_number(line.get("dead_groups", 0)) for line in played) / groups if groups else None,
        curve=tuple(curve(phases)),
        inside=tuple(inside_curve(phases[0])) if any(line["where"] == "dream" for line in played) else (),
    )


def _count(name: str, played: Sequence[JsonObject]) -> int:
    return int(sum(_number(line.get(name, 0)) for line in played))


def before_it(plan: Plan, arm: Arm) -> Arm | None:
    """The arm that this one comes `after`."""
    return next((one for one in plan.arm if one.name == arm.after), None)


def begins_with(plan: Plan, arm: Arm) -> list[Arm]:
    """The arms whose policies or practice this one continues."""
    return [one for one in (before_it(plan, arm), first_phase(plan, arm)) if one is not None]


def first_phase(plan: Plan, arm: Arm) -> Arm | None:
    """The arm that is the first phase of this one: it has the same settings without `then` and `real_steps`."""
    if arm.train is None or "then" not in arm.train:
        return None
    alone_settings = {key: value for key, value in arm.train.items() if key not in ("then", "real_steps")}
    alike = arm.model_copy(update={"train": alone_settings}).settings
    return next((one for one in plan.arm if not one.rates and one.settings == alike), None)


def _adopt(first: Path, folder: Path) -> None:
    """Begin with the policy and record of another arm, which this arm's own training would reproduce exactly."""
    record = folder / "metrics.jsonl"
    if record.exists():
        return
    shutil.copytree(first / "policy", folder / "policy", dirs_exist_ok=True)
    (folder / "real").mkdir(exist_ok=True)  # so `dreamgym train` begins with the second phase
    part = record.with_suffix(".part")
    shutil.copyfile(first / "metrics.jsonl", part)
    part.rename(record)


def phases_of(folder: Path) -> list[list[JsonObject]]:
    """The records of an arm's practice: of its first phase, and of the phase in the real environment after it."""
    return [read_record(file) for file in (folder / "metrics.jsonl", folder / "real" / "metrics.jsonl")]


def curve(phases: Sequence[Sequence[JsonObject]]) -> Iterator[tuple[int, float]]:
    """Number of updates in all phases so far, and success of the probe in the real environment after them."""
    before = 0
    for number, record in enumerate(phases):
        for line in record:
            # a phase begins with the last one's probe
            if line.get("real_success") is not None and (number == 0 or line["step"]):
                yield before + int(_number(line["step"])), _number(line["real_success"])
        before += sum("rollout_s" in line for line in record)


def inside_curve(record: Sequence[JsonObject]) -> Iterator[tuple[int, float]]:
    """Number of updates so far, and mean success in the dream over the last few of them."""
    successes = [line["inside_success"] for line in record if "inside_success" in line]
    for update in range(1, len(successes) + 1):
        known = [_number(one) for one in successes[max(0, update - SMOOTHED) : update] if one is not None]
        if known:
            yield update, round(mean(known), 4)


def _train(prepared: Prepared, arm: Arm, base: Path | None, folder: Path) -> None:
    """Run `dreamgym train` in a process and a database of its own. If `base` is None, the arm names the policy."""
    trained = folder / TRAINED
    mend = "remove the file, and the training goes on from its record"
    if trained.exists() and read_kept(trained, SETTINGS, "the settings of an arm", mend) == arm.settings:
        return
    run = f"run_{prepared.seed}_{hashlib.sha256(arm.name.encode()).hexdigest()[:12]}_{prepared.digest}"
    going_on = (folder / "metrics.jsonl").exists()
    if not going_on:
        databases.drop(prepared.dsn, run)
        shutil.rmtree(folder / "policy", ignore_errors=True)  # of a training that was not noted as done
    command = ["train", prepared.plan.env, "--out", str(folder), "--seed", str(prepared.seed)]
    # a run that learns nothing or gets worse is a result too: it goes on to its end, and its last policy is measured
    plain: JsonObject = {"dead_updates": 0, "stop": False, "keep": "last", "probe": TrainConfig().probe}
    plain["stored_only"] = True  # the plan says what the arm knows
    if base is not None:
        plain["policy"] = str(base)
    # many arms are trained: only those with an agent need a server of their own
    plain["in_process"] = "agent" not in (arm.train or {})
    command += flags(plain | (arm.train or {}))
    command += ["--model", str(fitted(prepared, arm.fit))] if arm.fit is not None else []
    command += ["--resume"] if going_on else []
    folder.mkdir(parents=True, exist_ok=True)
    before, began, started = attempts(folder), time.time(), time.monotonic()
    write_whole(folder / BEGUN, json.dumps(_around(arm)))
    write_whole(folder / ATTEMPTS, json.dumps([*before, (began, None)]))
    environ = with_dsn(os.environ, prepared.database(run, arm))
    returncode = logged(command, folder / LOG, f"seed {prepared.seed}: {arm.name}", environ)
    ended = began + time.monotonic() - started  # the machine's clock may have been set
    write_whole(folder / ATTEMPTS, json.dumps([*before, (began, ended)]))
    if returncode:
        check_budget()
        raise EnvironmentUnavailable(f"{arm.name!r} with seed {prepared.seed} ended early: {_last_line(folder)}")
    write_whole(trained, json.dumps(arm.settings))
    databases.drop(prepared.dsn, run)


def fitted(prepared: Prepared, fit: Fit) -> Path:
    """Folder of an experience model of the seed's recordings; `dreamgym fit` makes it if it is not there yet."""
    folder = prepared.folder / fit.name
    model = folder / "model"
    with alone(folder):
        if not model.exists():
            say(f"seed {prepared.seed}: fitting an experience model")
            command = ["fit", prepared.plan.env, "--base", f"{fit.base} -k {fit.k}"]
            command += ["--steps", str(fit.steps), "--seed", str(prepared.seed), "--out", str(model), "--resume"]
            command += ["--trajectories", str(prepared.folder / "recorded.jsonl"), "--card-steps", "0"]
            if logged(command, folder / LOG, f"seed {prepared.seed}: {fit.name}", os.environ):
                raise EnvironmentUnavailable(f"{fit.name} of seed {prepared.seed} ended early: {_last_line(folder)}")
    return model


def _last_line(folder: Path) -> str:
    return (folder / LOG).read_text(encoding="utf-8").strip().rpartition("\n")[2]


def attempts(folder: Path) -> list[tuple[float, float]]:
    """Start and end time of each attempt at an arm's training. A killed one ended when its record was last written."""
    file = folder / ATTEMPTS
    mend = "remove the file, and the times of the attempts so far do not count"
    known = read_kept(file, TIMES, "the times of an arm's attempts", mend) if file.exists() else []
    records = [path.stat().st_mtime for path in folder.glob("**/metrics.jsonl")]
    return [(began, max([began, *records]) if ended is None else ended) for began, ended in known]


async def _measured(prepared: Prepared, arm: Arm, folder: Path) -> Evaluation:
    tasks = prepared.plan.tested(tasks_of(prepared.spec, prepared.plan.test.split, prepared.real))
    if arm.behaviour is not None:
        behaviour = prepared.real.behaviours[arm.behaviour]
        episodes = await play_in_order(prepared.worlds, behaviour, tasks, len(tasks), seed=PLAYING_SEED)
        steps = [step.result for episode in episodes for step in episode.transitions]
        successes = [has_succeeded(prepared.spec, one) for one in episodes]
        return Evaluation(
            success=wilson(successes.count(True), len(episodes)),
            refused_share=sum(step.is_error for step in steps) / max(1, len(steps)),
            mean_steps=len(steps) / len(episodes),
            steps=len(steps),
            failed=sum(episode.error is not None for episode in episodes),
            unjudged=sum(
                one is None and episode.error is None for one, episode in zip(successes, episodes, strict=True)
            ),
            outcomes=tuple(float(one is True) for one in successes),
        )
    from dreamgym_integrations.trainers.policy.model import load_policy

    policy, codec = load_policy(_trained(folder) if arm.train is not None else prepared.warm())
    agent = (arm.train or {}).get("agent")
    async with player_in(prepared.worlds, policy, codec, agent=None if agent is None else str(agent)) as player:
        return await evaluate(player, tasks, seed=PLAYING_SEED)


def _steps(played: Sequence[JsonObject], where: str) -> int:
    return int(sum(_number(line["environment_steps"]) for line in played if line["where"] == where))


def _trained(folder: Path) -> Path:
    """Policy folder of a run's last phase."""
    last = folder / "real" / "policy"
    return last if last.is_dir() else folder / "policy"


def _number(value: JsonValue) -> float:
    return float(str(value))
