"""Measure what a pointer policy learns by imitation for rooms that it has not seen, and what its marks are worth.

    python benchmarks/studies/pointer.py --env alfworld --behaviour handcoded --games 260 --test 200

The first training games are played once each. A policy made from them imitates the episodes that succeeded, and then
plays games of the test split in the real environment, with sampled actions. CPU seconds are those of the whole
imitation, on one thread.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

from dreamgym_integrations.trainers.policy.model import load_policy
from dreamgym_integrations.trainers.policy.pointer.create import create_pointer_policy
from dreamgym_integrations.trainers.policy.sft import clone
from dreamgym_server.sources import RealWorlds

from dreamgym.environment import load_spec, real_of
from dreamgym.runs.opening import tasks_of
from dreamgym.runs.play_many import play_in_order
from dreamgym.runs.players import player_in
from dreamgym.training.probe import Evaluation, evaluate


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="alfworld")
    parser.add_argument("--behaviour", default="handcoded")
    parser.add_argument("--games", type=int, default=260)
    parser.add_argument("--test", type=int, default=200)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    spec = load_spec(given.env)
    real = real_of(spec)
    worlds = RealWorlds(spec, real.create)
    tasks = tasks_of(spec, "train", real)[: given.games]
    behaviour = real.behaviours[given.behaviour]
    played = asyncio.run(play_in_order(worlds, behaviour, tasks, len(tasks), seed=given.seed))
    succeeded = [episode for episode in played if episode.success]
    steps = sum(len(episode.transitions) for episode in succeeded)

    async def measured(folder: Path) -> Evaluation:
        policy, codec = load_policy(folder)
        async with player_in(worlds, policy, codec, agent=None) as player:
            return await evaluate(player, tasks_of(spec, "test", real)[: given.test], seed=7)

    print(
        f"| told what the task names | imitated steps | parameters | CPU s | success in {given.test} games | refused |"
    )
    print("|---|---|---|---|---|---|")
    for marks in (True, False):
        with tempfile.TemporaryDirectory() as folder:
            untrained, taught = Path(folder, "untrained"), Path(folder, "taught")
            create_pointer_policy(spec, played, untrained, seed=given.seed, marks=marks)
            before = time.process_time()
            clone(
                spec,
                succeeded,
                untrained,
                taught,
                steps=given.steps,
                batch=64,
                learning_rate=2e-3,
                seed=given.seed,
            )
            seconds = time.process_time() - before
            parameters = load_policy(taught)[0].model.num_parameters()
            result = asyncio.run(measured(taught))
        cells = (
            "yes" if marks else "no",
            f"{steps:,}",
            f"{parameters:,}",
            f"{seconds:.0f}",
            str(result.success),
            f"{100 * result.refused_share:.0f} %",
        )
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
