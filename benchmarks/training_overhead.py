"""Measure the CPU time per optimiser step, compared with plain TRL GRPO on the same tokens.

Both trainers get the same prepared rows, so that neither plays nor samples: plain `GRPOTrainer` from a `rollout_func`
and a reward function, ours from a player that hands the episodes out. What remains is the gradient step, TRL's own
bookkeeping, and ours: groups, curriculum, record, advantages, guards. The trainers take turns in one process. CPU is
that between the first and the last step of a run, in the best round. Ours / TRL must stay under 1.1.

    python benchmarks/training_overhead.py --steps 12 --rounds 3
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from anyio.from_thread import BlockingPortal, start_blocking_portal
from datasets import Dataset
from dreamgym_integrations.trainers.policy.model import load_policy
from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy
from dreamgym_integrations.trainers.policy.train import train_policy
from transformers import PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from dreamgym import EnvironmentSpec, Source, StepResult, Task, ToolCall, Trajectory, Transition
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.training.early_stop import Seen
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.rollout import Codec, Policy, Rollout, Segment
from dreamgym.types import Provenance, StopReason, Tier

GROUPS, SIZE, TURNS = 8, 8, 6
WORDS = [f"word{i}" for i in range(60)]
TASKS = tuple(Task(id=f"task-{i}", env="bench", instruction=" ".join(WORDS)) for i in range(GROUPS))
SPEC = EnvironmentSpec(
    name="bench",
    tools_list=({"tools": [{"name": "act", "inputSchema": {"properties": {"command": {"type": "string"}}}}]},),
    tasks=TASKS,
)


def rollouts(update: int) -> list[Rollout]:
    """Rollouts of one update: about 130 tokens each, 18 of them the policy's; one in three succeeds."""
    draw = random.Random(update)
    return [_rollout(TASKS[i // SIZE], draw) for i in range(GROUPS * SIZE)]


def _rollout(task: Task, draw: random.Random) -> Rollout:
    def ids(n: int) -> list[int]:
        return [draw.randrange(5, 5 + len(WORDS)) for _ in range(n)]

    segment = Segment(ids(draw.randrange(40, 70)))
    for _ in range(TURNS):
        segment.hear(ids(draw.randrange(4, 14)))
        segment._append(ids(3), [-1.0] * 3, 1)
    success = draw.random() < 0.33
    return Rollout(task, [segment], actions=["act"] * TURNS, success=success, total_reward=float(success))


class HandsOut:
    """A player that only hands out prepared rollouts."""

    async def play(
        self, tasks: Sequence[Task], *, groups: Sequence[str], seeds: Sequence[int], version: int, sampling_seed: int
    ) -> list[Rollout]:
        """The prepared rollouts of this update."""
        return rollouts(version)


class Clock(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """CPU seconds at the end of each step."""

    def __init__(self) -> None:
        self.ticks: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Read the clock."""
        self.ticks.append(time.process_time())


def plain(base: Path, out: Path, steps: int) -> float:
    """CPU seconds per step of TRL's own trainer."""
    policy, _ = load_policy(base)
    clock = Clock()

    def rolled_out(prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        episodes = rollouts(trainer.state.global_step)
        rows = [episode.segments[0] for episode in episodes]
        return {
            "prompt_ids": [row.prompt_ids for row in rows],
            "completion_ids": [row.completion_ids for row in rows],
            "logprobs": None,
            "env_mask": [row.mask for row in rows],
            "earned": [episode.total_reward for episode in episodes],
        }

    def earned(completions: list[Any], earned: list[float], **_: object) -> list[float]:
        return earned

    trainer = GRPOTrainer(
        model=policy.model,
        reward_funcs=earned,
        rollout_func=rolled_out,
        args=GRPOConfig(
            output_dir=str(out),
            max_steps=steps,
            per_device_train_batch_size=GROUPS * SIZE,
            num_generations=SIZE,
            learning_rate=1e-3,
            use_cpu=True,
            bf16=False,
            activation_checkpointing=False,
            save_strategy="no",
            report_to="none",
            logging_steps=1,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": [task.id for task in TASKS]}),
        processing_class=policy.tokenizer,
        callbacks=[clock],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return _per_step(clock.ticks)


def ours(base: Path, out: Path, steps: int, portal: BlockingPortal) -> float:
    """CPU seconds per step of our trainer."""
    ticks: list[float] = []

    async def tick(policy: Policy, codec: Codec, update: int) -> Seen:
        if update > 0:
            ticks.append(time.process_time())
        return Seen(best=False, stop=False)

    settings = Settings(steps=steps, groups=GROUPS, group_size=SIZE, probe_every=1, save_every=10 * steps)
    practice = Practice(SPEC, Curriculum(TASKS, share=0, seed=0), None, settings, out / "metrics.jsonl")
    out.mkdir()
    train_policy(practice, base, out, settings, portal=portal, player=lambda policy, codec: HandsOut(), probe=tick)
    return _per_step(ticks)


def _per_step(ticks: Sequence[float]) -> float:
    return (ticks[-1] - ticks[0]) / (len(ticks) - 1)


def _recorded() -> Trajectory:
    """A recorded episode that contains every word."""
    step = Transition(
        state="",
        action=ToolCall(name="act", arguments={"command": "word0"}),
        result=StepResult(observation="", terminated=True),
        next_state="",
        provenance=Provenance(tier=Tier.REAL),
    )
    return Trajectory(
        id="words", task=TASKS[0], transitions=(step,), source=Source.REAL, stop_reason=StopReason.TERMINATED
    )


def main() -> None:
    """Measure and print; the exit code is 1 if the ratio is 1.1 or more."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    wanted = parser.parse_args()
    folder = Path(tempfile.mkdtemp())
    try:
        create_tiny_policy([_recorded()], folder / "base", seed=0)
        trl_s, ours_s = [], []
        with start_blocking_portal() as portal:
            for i in range(wanted.rounds):
                trl_s.append(plain(folder / "base", folder / f"trl-{i}", wanted.steps))
                ours_s.append(ours(folder / "base", folder / f"ours-{i}", wanted.steps, portal))
    finally:
        shutil.rmtree(folder)
    result = {
        "trl_s": round(min(trl_s), 4),
        "ours_s": round(min(ours_s), 4),
        "ratio": round(min(ours_s) / min(trl_s), 3),
        "rollouts": GROUPS * SIZE,
        "steps": wanted.steps,
        "rounds": wanted.rounds,
        "torch": torch.__version__,
        "machine": platform.machine(),
    }
    print(json.dumps(result, indent=2))
    raise SystemExit(0 if result["ratio"] < 1.1 else 1)


if __name__ == "__main__":
    main()
