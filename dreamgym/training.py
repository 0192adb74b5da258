"""The iteration: choose tasks, play each G times, learn what each was worth, vary the best.

Knows no trainer: a trainer asks `Practice.iterate` for rollouts and does its own gradient step with them. Where the
environment is a dream nothing here can tell whether the policy gets better; the probe in the real environment does.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import Field

from dreamgym.curriculum.generator import TaskGenerator
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.environment import EnvironmentSpec
from dreamgym.evaluation import Evaluation
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.rollout import Player, Rollout, draw_seed
from dreamgym.types import Frozen, JsonObject, Task


class Settings(Frozen):
    """How to train. The defaults are what the published results of the demonstration were made with."""

    steps: int = Field(default=100, ge=1)
    """Policy updates."""
    groups: int = Field(default=8, ge=1)
    """Tasks per update (P)."""
    group_size: int = Field(default=8, ge=2)
    """Rollouts per task (G)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """At the first update; it falls linearly to zero at the last."""
    share: float = Field(default=0.25, ge=0, le=1)
    """Lambda: at most this share of the tasks is generated."""
    vary: int = Field(default=2, ge=0)
    """How many of the most valuable tasks are varied after each update (m)."""
    seed: int = 0
    probe_every: int = Field(default=25, ge=1)
    """Updates between two evaluations in the real environment."""
    save_every: int = Field(default=25, ge=1)
    """Updates between two checkpoints."""


class Practice:
    """Plays the groups of each iteration and keeps the curriculum and the record.

    Args:
        spec: the environment's description.
        curriculum: chooses tasks.
        generator: varies tasks; None leaves the given ones.
        settings: how many, how often, which seed.
        record: JSONL file of metrics; one line per iteration and per probe.
        buffer: keeps generated tasks and the outcomes of every group; None keeps neither.
        on_note: called with each line of the record, to show progress.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        curriculum: Curriculum,
        generator: TaskGenerator | None,
        settings: Settings,
        record: Path,
        *,
        buffer: ReplayBuffer | None = None,
        on_note: Callable[[JsonObject], None] = lambda line: None,
    ) -> None:
        self._spec = spec
        self.curriculum = curriculum
        self._generator = generator
        self._settings = settings
        self._record = record
        self._buffer = buffer
        self._on_note = on_note
        self._run = secrets.token_hex(8)
        """Groups of another run are others."""

    async def iterate(self, player: Player, iteration: int) -> list[Rollout]:
        """Play P groups of G and return the P*G rollouts, groups adjacent."""
        settings, began = self._settings, time.monotonic()
        tasks_P = self.curriculum.sample(settings.groups, iteration)
        slots = [p for p in range(len(tasks_P)) for _ in range(settings.group_size)]
        episodes = await player.play(
            [tasks_P[p] for p in slots],
            groups=[f"{self._run}-{iteration}-{p}" for p in slots],
            seeds=[draw_seed(settings.seed, iteration, p) for p in slots],
            version=iteration,
            sampling_seed=draw_seed(settings.seed, iteration, -1),
        )
        values = await self._learn_values(tasks_P, episodes, iteration)
        if self._generator is not None and settings.share > 0:
            await self._vary(self._generator, iteration)
        self.note(_summary(iteration, episodes, values, time.monotonic() - began))
        return episodes

    async def _learn_values(
        self, tasks_P: Sequence[Task], episodes: Sequence[Rollout], iteration: int
    ) -> list[float | None]:
        size, values = self._settings.group_size, []
        if self._buffer is not None:
            await self._buffer.add_tasks(tasks_P)
        for p, task in enumerate(tasks_P):
            rewards_G = [episode.reward for episode in episodes[p * size : (p + 1) * size]]
            values.append(self.curriculum.record(task, rewards_G))
            if self._buffer is not None:
                valid = [reward for reward in rewards_G if reward is not None]
                await self._buffer.record_outcomes(self._spec.name, task.id, iteration, valid)
        return values

    async def _vary(self, generator: TaskGenerator, iteration: int) -> None:
        parents = self.curriculum.most_valuable(self._settings.vary)
        self.curriculum.add(await generator.vary(parents, seed=draw_seed(self._settings.seed, iteration, -2)))

    def rewind(self, iteration: int) -> None:
        """Keep of the record what led to an iteration that training now continues from; of 0, nothing."""

        def led_here(line: JsonObject) -> bool:
            step = int(str(line["step"]))
            return step < iteration or (step == iteration > 0 and "rollout_s" not in line)

        kept = [line for line in read_record(self._record) if led_here(line)]
        self._record.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")

    def note(self, line: JsonObject) -> None:
        """Append one line to the record."""
        with self._record.open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
        self._on_note(line)

    def note_probe(self, iteration: int, where: str, evaluation: Evaluation) -> None:
        """Append an evaluation to the record."""
        rate = evaluation.success
        self.note(
            {
                "step": iteration,
                f"{where}_success": rate.mean,
                f"{where}_low": rate.low,
                f"{where}_high": rate.high,
                f"{where}_episodes": rate.n,
                f"{where}_refused_share": evaluation.refused_share,
                f"{where}_steps": evaluation.steps,
            }
        )


def _summary(iteration: int, episodes: Sequence[Rollout], values: Sequence[float | None], seconds: float) -> JsonObject:
    valid = [episode for episode in episodes if episode.error is None]
    actions = sum(len(episode.actions) for episode in valid)
    return {
        "step": iteration,
        "inside_success": sum(episode.success for episode in valid) / max(1, len(valid)),
        "refused_share": sum(episode.refused for episode in valid) / max(1, actions),
        "dead_groups": sum(value == 0 for value in values),
        "failed": len(episodes) - len(valid),
        "environment_steps": actions,
        "rollout_s": round(seconds, 3),
    }


def read_record(path: Path) -> list[JsonObject]:
    """All lines of a metrics file, oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
