"""Probes of a policy in the real environment while it trains. They decide when to stop and which policy counts."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.runs.opening import Against, open_worlds
from dreamgym.runs.players import player_in
from dreamgym.runs.train.config import TrainConfig
from dreamgym.training.early_stop import RealProbes, Seen
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.probe import evaluate
from dreamgym.training.record import read_record
from dreamgym.training.rollout import Policy
from dreamgym.types import Task

if TYPE_CHECKING:
    from dreamgym_integrations.trainers.policy.model import PolicyCodec


class ProbesInReality:
    """Probes the policy in the real environment, on the same tasks each time. Only the first process does this.

    A probe is a measurement: it decides when to stop and which policy counts, and nothing else is learned from it.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        config: TrainConfig,
        settings: Settings,
        practice: Practice,
        out: Path,
        tasks: Sequence[Task],
    ) -> None:
        self._spec, self._config, self._settings = spec, config, settings
        self._practice, self._out, self._tasks = practice, out, tasks

    @cached_property
    def _probes(self) -> RealProbes:
        """The probes in the record at the first use, and those made since."""
        return self._recorded()

    def _recorded(self) -> RealProbes:
        record = read_record(self._out / "metrics.jsonl")
        every, steps = self._settings.probe_every, self._settings.steps
        # a run that was resumed may have been probed at another interval
        made = {int(str(line["step"])) for line in record if isinstance(line.get("real_outcomes"), list)}
        probes = RealProbes(planned=max(2 + steps // every, len(made | {0, steps, *range(every, steps, every)})))
        for line in record:
            if isinstance(outcomes := line.get("real_outcomes"), list):
                if len(outcomes) != len(self._tasks):
                    raise InvalidInput(
                        f"{self._out} was probed on {len(outcomes)} tasks, and now it would be on {len(self._tasks)}: "
                        f"resume it with --probe {len(outcomes)}"
                    )
                seen = [None if outcome is None else float(str(outcome)) for outcome in outcomes]
                probes.add(int(str(line["step"])), seen)
        return probes

    async def probe(self, policy: Policy, codec: PolicyCodec, update: int) -> Seen:
        """Play the tasks. Return whether this is the best policy so far, and whether to stop."""
        spec, config, probes = self._spec, self._config, self._probes
        async with (
            open_worlds(spec, Against.REAL) as worlds,
            player_in(worlds, policy, codec, agent=config.agent) as player,
        ):
            result = await evaluate(player, self._tasks, seed=self._settings.seed)
        self._practice.note_probe(update, "real", result)
        probes.add(update, result.outcomes)
        return Seen(best=probes.best == update, stop=self.reason is not None)

    @property
    def reason(self) -> str | None:
        """Why training must stop after the last probe; None if it may go on."""
        return self._why(self._probes)

    def recorded_reason(self) -> str | None:
        """The reason to stop in the record of a resumed run. Training may delete the last lines of the record.

        Raises:
            InvalidInput: the record has probes of another number of tasks.
        """
        return self._why(self._recorded())

    def _why(self, probes: RealProbes) -> str | None:
        if probes.fall is None or not self._config.stop:
            return None
        return (
            f"stopped at update {probes.fall.now}: success in the real environment has fallen since update "
            f"{probes.fall.best} (by chance alone {probes.fall.chance:.2g}), so what is learned in the "
            f"{self._config.against} no longer helps; the policy is that of update {probes.best}"
        )

    def settle(self, reason: str | None) -> str | None:
        """Put the policy that counts into `policy`. Return `reason`, or a notice if it is not the last policy."""
        best, policy, part = (self._out / name for name in ("best", "policy", "policy.partial"))
        if not best.is_dir() or (reason is None and self._config.keep == "last"):
            return reason
        update = self._probes.best
        best /= str(update)
        if not best.is_dir():
            return f"the policy of update {update}, the best of the probes, was not kept: the policy is the last one"
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(best, part)
        shutil.rmtree(policy, ignore_errors=True)
        part.rename(policy)
        if reason is None and update != self._settings.steps:
            return f"the policy is that of update {update}, the best of the probes in the real environment"
        return reason
