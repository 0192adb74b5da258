"""Learning from the recordings alone: behaviour cloning and preferences."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from dreamgym.cli.train.config import TrainConfig
from dreamgym.cli.wiring import opened_store, say
from dreamgym.environment import EnvironmentSpec


async def learn_from_recordings(
    spec: EnvironmentSpec, config: TrainConfig, base: Path, out: Path, dsn: str | None
) -> None:
    """Teach the policy in `base` from what is recorded and save it to `out`.

    `sft` imitates what succeeded; `dpo` prefers it to what failed from the same state.
    """
    async with opened_store(dsn) as store:
        recorded = await store.buffer.trajectories(spec.name)
    if config.algorithm == "sft":
        from dreamgym_integrations.trainers.sft import clone as learn

        recorded = tuple(trajectory for trajectory in recorded if trajectory.success)
    else:
        from dreamgym_integrations.trainers.dpo import prefer as learn
    learn(
        spec,
        recorded,
        base,
        out,
        steps=config.steps,
        batch=config.batch,
        learning_rate=config.learning_rate,
        seed=config.seed,
        on_progress=partial(_say, config.algorithm),
    )
    say(f"policy saved to {out}")


def _say(algorithm: str, step: int, steps: int) -> None:
    say(f"{algorithm}: {step} of {steps} steps")
