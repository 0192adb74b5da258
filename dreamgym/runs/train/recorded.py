"""Learning from the recordings alone: behaviour cloning and preferences."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec
from dreamgym.episode import load_agent
from dreamgym.errors import InvalidInput
from dreamgym.runs.console import say
from dreamgym.runs.opening import as_described, may_be_learned, say_tasks_of_no_split, served, stored_trajectories
from dreamgym.runs.train.config import LIMITS, NEW, TrainConfig
from dreamgym.runs.train.memory import say_memory
from dreamgym.types import Trajectory

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.policy.model import ChatCodec


async def learn_from_recordings(
    spec: EnvironmentSpec, config: TrainConfig, base: Path, out: Path, dsn: str | None
) -> None:
    """Train the policy in `base` on the recordings and save it to `out`.

    `sft` imitates what succeeded; with an agent, it does so in the agent's own conversations. `dpo` prefers what
    succeeded to what failed from the same state. Nothing is learned from tasks of a split other than `train`.
    """
    stored = as_described(spec, await stored_trajectories(spec, dsn))
    say_tasks_of_no_split(one.task for one in stored)
    recorded = [one for one in stored if may_be_learned(one.task)]
    learn: Callable[..., None]
    if config.algorithm == "dpo":
        from dreamgym_integrations.trainers.policy.dpo import prefer

        learn = partial(prefer, spec, recorded)
    else:
        from dreamgym_integrations.trainers.policy.memory import of_imitation
        from dreamgym_integrations.trainers.policy.model import ChatCodec, load_codec
        from dreamgym_integrations.trainers.policy.sft import imitate, rows_of

        succeeded = [trajectory for trajectory in recorded if trajectory.success and trajectory.transitions]
        if stored and not succeeded:
            raise InvalidInput(
                f"no success to imitate in {len(stored)} recorded episodes of {spec.name!r}, of which "
                f"{len(stored) - len(recorded)} are of another split than train: record successes, or mark them with "
                "`dreamgym label`"
            )
        codec = load_codec(base, episode_tokens=config.episode_tokens)
        # a policy on mapped states sees the same with and without an agent
        if config.agent is None or not succeeded or not isinstance(codec, ChatCodec):
            rows = rows_of(spec, codec, succeeded, mask_refused=config.mask_refused)
        else:
            rows = await _conversations(spec, config, config.agent, codec, succeeded)
        if config.policy not in NEW:
            longest = max(len(row["input_ids"]) for row in rows)
            tokens = longest * min(len(rows), max(1, config.batch // config.accumulate))
            say_memory(of_imitation(base, config.settings(), tokens=tokens))
        asked = {name: getattr(config, name) for name in ("lora", "accumulate", *LIMITS)}
        learn = partial(imitate, rows, **asked)
    learn(
        base,
        out,
        steps=config.steps,
        batch=config.batch,
        learning_rate=config.learning_rate,
        seed=config.seed,
        on_progress=lambda step, steps: say(f"{config.algorithm}: {step} of {steps} steps"),
    )
    say(f"policy saved to {out}")


async def _conversations(
    spec: EnvironmentSpec, config: TrainConfig, agent: str, codec: ChatCodec, succeeded: Sequence[Trajectory]
) -> list[dict[str, list[int]]]:
    """As many recorded episodes as the updates can learn from, drawn at random, as conversations of the agent."""
    from dreamgym_integrations.trainers.policy.replay_through_agent import RecordedEnvironment, replay_through_agent
    from dreamgym_integrations.trainers.policy.sft import conversation_row
    from dreamgym_server.sources import RealWorlds

    some = random.Random(config.seed).sample(succeeded, min(len(succeeded), config.steps * config.batch))
    say(f"{agent} plays {len(some)} recorded episodes again")
    async with served(RealWorlds(spec, lambda: RecordedEnvironment(spec, some))) as url:
        segments = await replay_through_agent(load_agent(agent), codec, spec, some, url=url)
    say(f"{len(segments)} conversations of {max(len(segment.ids) for segment in segments)} tokens at most")
    return [conversation_row(segment) for segment in segments]
