"""The figures of the demonstration: every policy on the same tasks, in the dream and in the real game."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from dreamgym.cli.collect import play_behaviour
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.environment import Environment
from dreamgym.evaluation.rates import Rate, paired_difference, wilson
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.runs.opening import open_store
from dreamgym.training.practice import read_record, tiers_of
from dreamgym.training.probe import Evaluation, evaluate
from dreamgym.training.rollout import TokenPlayer
from dreamgym.types import JsonObject, Source, Task

if TYPE_CHECKING:
    from dreamgym.runs.demo.stages import Arm, Demo

WARM = "warm start"


async def measure(demo: Demo, dsn: str) -> JsonObject:
    """Rows and curves of the report. Real test tasks here are others than those of the curves."""
    final = demo.real.tasks("test")[-demo.size.final_tasks :]
    dreamed = demo.real.tasks("train")[: demo.size.worlds]
    async with open_store(dsn) as store:
        rows: list[JsonValue] = [
            {
                "policy": "random",
                "dream": _rate(await _random(demo, _dreams(demo, store.buffer, knows_history=True), dreamed)),
                "real": _rate(await _random(demo, demo.real.create, final)),
            }
        ]
        outcomes: dict[str, Sequence[float]] = {}
        for name, folder, arm in _policies(demo):
            real = await _evaluate(demo, folder, demo.real.create, final)
            make = _dreams(demo, store.buffer, knows_history=arm is None or arm.knows_history)
            inside = await _evaluate(demo, folder, make, dreamed)
            if real.failed or inside.failed:
                raise RuntimeError(f"{real.failed + inside.failed} episodes of {name} failed with the environment")
            outcomes[name] = [outcome or 0.0 for outcome in real.outcomes]
            rows.append({"policy": name, "dream": _shown(inside), "real": _shown(real), **_cost(demo, arm)})
            demo.say(f"    {name:<10} in the dream {inside.success}, in the real game {real.success}")
    return {"rows": rows, "gain": _gains(demo, outcomes), "curves": _curves(demo)}


def _policies(demo: Demo) -> list[tuple[str, Path, Arm | None]]:
    trained: list[tuple[str, Path, Arm | None]] = [
        (arm.name, demo.folder / arm.name / "policy", arm) for arm in demo.arms
    ]
    return [(WARM, demo.folder / "warm", None), *trained]


def _dreams(demo: Demo, buffer: ReplayBuffer, *, knows_history: bool) -> Callable[[], Environment]:
    spec, model = demo.real.spec, NearestModel()
    without = frozenset() if knows_history else frozenset({Part.HISTORY})
    return lambda: DreamEnvironment(spec, model, buffer, without=without)


async def _random(demo: Demo, make: Callable[[], Environment], tasks: Sequence[Task]) -> Rate:
    behaviour = demo.real.behaviours["random"]
    played = play_behaviour(demo.real.spec, make, behaviour, tasks, len(tasks), seed=7, source=Source.REAL)
    return wilson(sum([trajectory.success async for trajectory in played]), len(tasks))


async def _evaluate(demo: Demo, folder: Path, make: Callable[[], Environment], tasks: Sequence[Task]) -> Evaluation:
    from dreamgym_integrations.trainers.policy.model import load_policy

    policy, codec = load_policy(folder)
    return await evaluate(TokenPlayer(policy, codec, demo.real.spec, lambda version, group: make()), tasks)


def _gains(demo: Demo, outcomes: dict[str, Sequence[float]]) -> JsonObject:
    """Paired difference in the real game to the warm start: per run (for other tasks), and over all runs of a kind."""
    gains: JsonObject = {}
    for kind in ("dream", "control"):
        after_SN = [outcome for name, outcome in outcomes.items() if name.startswith(kind)]
        gains[kind] = _rate(paired_difference([outcomes[WARM]] * len(after_SN), after_SN))
    for arm in demo.arms:
        gains[arm.name] = _rate(paired_difference([outcomes[WARM]], [outcomes[arm.name]]))
    return gains


def _curves(demo: Demo) -> JsonObject:
    return {arm.name: list(read_record(demo.folder / arm.name / "metrics.jsonl")) for arm in demo.arms}


def _cost(demo: Demo, arm: Arm | None) -> JsonObject:
    if arm is None:
        return {"seconds": demo.seconds["warm start"], "dream_steps": 0}
    record = read_record(demo.folder / arm.name / "metrics.jsonl")
    steps = sum(int(str(line["environment_steps"])) for line in record if "environment_steps" in line)
    seconds = json.loads((demo.folder / arm.name / "seconds.json").read_text(encoding="utf-8"))
    return {"seconds": seconds, "dream_steps": steps, "tiers": {**tiers_of(record)}}


def _rate(rate: Rate) -> JsonObject:
    return rate.model_dump()


def _shown(evaluation: Evaluation) -> JsonObject:
    return {**evaluation.success.model_dump(), "refused_share": evaluation.refused_share, "steps": evaluation.steps}
