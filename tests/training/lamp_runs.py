"""A whole training run in the lamp environment, for the tests of every trainer."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from anyio.from_thread import BlockingPortal
from dreamgym_integrations.trainers.policy.model import load_policy
from dreamgym_integrations.trainers.policy.train import train_policy
from lamp import LampEnvironment

from dreamgym import EnvironmentSpec
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.environment import Environment
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.training.early_stop import Seen
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.rollout import Player, TokenPlayer


def practice(spec: EnvironmentSpec, settings: Settings, record: Path) -> Practice:
    return Practice(spec, Curriculum(spec.tasks, share=0, seed=settings.seed), None, settings, record)


def lamp(version: int, group: str) -> Environment:
    return LampEnvironment()


def trained(
    spec: EnvironmentSpec,
    base: Path,
    out: Path,
    settings: Settings,
    portal: BlockingPortal,
    *,
    make: Callable[[int, str], Environment] = lamp,
    within: Callable[[Player], Player] = lambda player: player,
    **more: Any,
) -> Practice:
    """Train in the folder `out`, with the record in `out/m.jsonl`."""
    out.mkdir(exist_ok=True)
    played = practice(spec, settings, out / "m.jsonl")
    train_policy(
        played,
        base,
        out,
        settings,
        portal=portal,
        player=lambda policy, codec: within(TokenPlayer(policy, codec, spec, make)),
        **more,
    )
    return played


def broken_after(update: int) -> Callable[[Any, Any, int], Any]:
    """A probe that ends the run after the given number of updates."""

    async def interrupt(policy: Any, codec: Any, step: int) -> Seen:
        if step == update:
            raise EnvironmentUnavailable("gone")
        return Seen(best=False, stop=False)

    return interrupt


def weights(folder: Path) -> dict[str, torch.Tensor]:
    policy, _ = load_policy(folder)
    return dict(policy.model.state_dict())


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
