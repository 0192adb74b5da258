"""Policies from scratch, by the names that `--policy` takes: made from recordings, and trained on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.types import Trajectory
from dreamgym_integrations.trainers.policy.pointer.create import create_pointer_policy
from dreamgym_integrations.trainers.policy.sft import clone
from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

POINTER = "pointer"
WARM = {"steps": 200, "batch": 32, "learning_rate": 3e-3}
WARM_POINTER = {"steps": 400, "batch": 64, "learning_rate": 2e-3}
"""Settings for learning from recordings. A batch of a pointer policy has steps, not episodes."""


def create_policy(
    named: str, spec: EnvironmentSpec, trajectories: Sequence[Trajectory], folder: Path, *, seed: int
) -> None:
    """Write an untrained policy.

    Args:
        named: `tiny`, `pointer` or `pointer without marks`.
        spec: description of the environment.
        trajectories: recorded play; the policy knows its words.
        folder: folder to write; replaced if it exists.
        seed: seed of the weights.

    Raises:
        InvalidInput: such a policy cannot act in this environment.
    """
    if named.startswith(POINTER):
        create_pointer_policy(spec, trajectories, folder, seed=seed, marks=named == POINTER)
    elif spec.text_argument is None:
        offered = ", ".join(sorted(str(tool["name"]) for tool in spec.tools))
        raise InvalidInput(
            f"a tiny policy acts with one tool that takes one text, and {spec.name!r} has {offered}: use the folder of "
            "a language model"
        )
    else:
        create_tiny_policy(trajectories, folder, seed=seed)


def warm_start(
    named: str,
    spec: EnvironmentSpec,
    trajectories: Sequence[Trajectory],
    folder: Path,
    *,
    seed: int,
    on_progress: Callable[[int, int], None],
) -> None:
    """Write an untrained policy to `folder/untrained`, and one that imitates the trajectories to `folder/warm`."""
    create_policy(named, spec, trajectories, folder / "untrained", seed=seed)
    how = WARM_POINTER if named.startswith(POINTER) else WARM
    clone(
        spec,
        trajectories,
        folder / "untrained",
        folder / "warm",
        steps=int(how["steps"]),
        batch=int(how["batch"]),
        learning_rate=how["learning_rate"],
        seed=seed,
        on_progress=on_progress,
    )
