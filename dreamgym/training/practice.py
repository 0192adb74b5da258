"""One iteration of practice: choose tasks, play each G times, record their values, vary the best ones.

This module does not depend on a trainer: a trainer asks `Practice.iterate` for rollouts and does its own gradient step
with them. If the environment is a dream, nothing here shows whether the policy gets better; the probe in the real
environment does.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, Protocol, TypeVar
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from dreamgym.budget import check_budget
from dreamgym.curriculum.generator import TaskGenerator
from dreamgym.curriculum.sampler import Curriculum
from dreamgym.curriculum.strategy import Strategy
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import BudgetSpent, DreamGymError, EnvironmentUnavailable, InvalidInput
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.training.advantages import trusted
from dreamgym.training.examples import EXAMPLES, KeptRollouts
from dreamgym.training.old_settings import refuse_old_settings
from dreamgym.training.probe import Evaluation
from dreamgym.training.record import dead_updates, read_record, real_steps
from dreamgym.training.rollout import Player, Rollout, draw_seed, summary
from dreamgym.types import Frozen, JsonObject, Task, Trajectory

T = TypeVar("T")
ATTEMPTS = 3
"""Attempts at one update. After the last one, a server or database that goes away again ends the run."""
RETIRE_EVERY = 25
"""Updates between two deletions of dreams of tasks that are always solved."""
VARIED = 2
"""Number of the most valuable tasks that are varied after each update (m)."""
SEEDS = 1 << 32
"""Number of seeds: numpy's generator, which a trainer sets, takes no others."""


class PPOSettings(Frozen):
    """Settings of PPO that GRPO does not have."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    epochs: int = Field(default=2, ge=1)
    """Passes over the rollouts of an update."""
    mini_batches: int = Field(default=2, ge=1)
    """Optimiser steps in each of these passes."""

    @model_validator(mode="before")
    @classmethod
    def _no_old_settings(cls, given: object) -> object:
        if isinstance(given, Mapping):
            refuse_old_settings(given, "ppo.")
        return given


def _is_address(given: str) -> bool:
    try:
        parts = urlsplit(given)
        return parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number, or a bracket is not closed
        return False


def _check_for_secrets(given: str, key: str) -> None:
    """Raise ValueError if an address may contain a secret, which is not shown: a run stores and prints its address."""
    if "@" in given or "?" in given:  # a `/` or `#` in a password ends what `urlsplit` takes for the host
        raise ValueError(
            "expected the address without a user, a password or a query (?…), since the run's settings contain it: "
            f"put the key into {key}"
        )


class Settings(Frozen):
    """Settings of a training run, whatever its algorithm."""

    model_config = ConfigDict(use_attribute_docstrings=True, hide_input_in_errors=True)

    algorithm: Literal["grpo", "ppo", "sft", "dpo"] = "grpo"
    """`grpo` and `ppo` learn from rollouts; `sft` and `dpo` learn from recordings alone."""
    steps: int = Field(default=100, ge=1)
    """Number of policy updates; each one plays a round of episodes and learns from it."""
    groups: int = Field(default=8, ge=1)
    """Number of tasks per update (P)."""
    group_size: int = Field(default=8, ge=2)
    """Number of rollouts per task (G)."""
    learning_rate: float = Field(default=1e-3, gt=0)
    """Learning rate of the first update. It falls linearly, and the last of n updates has 1/n of it. For `sft` and
    `dpo` it falls as a cosine. If it is not given, a policy of 40 MB or more begins lower: at 2e-6 (with `lora` or
    `tinker` 2e-5), and for `sft` and `dpo` at 1e-5 (`sft` with `lora` 2e-4)."""
    strategy: Strategy = Strategy.VALUE
    """Strategy that chooses the next tasks."""
    share: float = Field(default=0.25, ge=0, le=1)
    """Highest share of generated tasks among the tasks of an update (lambda); 0 generates none."""
    seed: int = Field(default=0, ge=0, lt=SEEDS)
    """Seed of every random draw."""
    probe_every: int = Field(default=25, ge=1)
    """Updates between two evaluations in the real environment."""
    save_every: int = Field(default=1, ge=1)
    """Updates between two checkpoints: a run that is killed repeats those since the last one."""
    lora: int = Field(default=0, ge=0)
    """Rank of the LoRA adapter; 0 trains all weights."""
    turn_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of one answer of the policy. The saved policy keeps this limit; default: the checkpoint's limit, or
    64."""
    episode_tokens: int | None = Field(default=None, ge=1)
    """Most tokens of an episode, which is cut there. The saved policy keeps this limit; default: the checkpoint's
    limit, or 4096."""
    bf16: bool = False
    """Learn in 16-bit floats (bfloat16). Weights and optimiser keep 32 bits."""
    gradient_checkpointing: bool = False
    """Compute the values inside a layer again when its gradient is due, instead of keeping them: less memory, more
    time."""
    staleness: int = Field(default=0, ge=0)
    """Number of updates by which the policy that plays is behind the one that learns, so that both work at once; 0:
    they take turns. Each token is weighted by its probability under the newer policy divided by that under the older
    one; nothing is learned from a token whose weight is above 2."""
    beta: float = Field(default=0.0, ge=0)
    """Weight of the KL divergence from the start policy in the loss; 0 leaves the term out."""
    accumulate: int = Field(default=1, ge=1)
    """Number of forward passes per optimiser step; more passes need less memory."""
    vllm: str | None = None
    """Address of a vLLM server to sample with, which loads the weights after each update; None samples with
    transformers in this process."""
    tinker: str | None = None
    """Address of a server of the Tinker API, which samples and trains; `policy` is then its base model's name."""
    weigh_confidence: bool = False
    """Multiply each advantage by the dream's calibrated confidence in its episode."""
    least_confidence: float = Field(default=0.0, ge=0, le=1)
    """Lowest calibrated confidence of an episode whose reward counts; a less certain one has no reward and counts as
    not judged."""
    dead_updates: int = Field(default=20, ge=0)
    """Stop after this many updates in a row without a success and without a group to learn from; 0: never."""
    ppo: PPOSettings = PPOSettings()

    @model_validator(mode="before")
    @classmethod
    def _no_old_settings(cls, given: object) -> object:
        if isinstance(given, Mapping):
            refuse_old_settings(given)
        return given

    @field_validator("tinker")
    @classmethod
    def _server(cls, given: str | None) -> str | None:
        if given is None:
            return None
        _check_for_secrets(given, "TINKER_API_KEY")
        if not _is_address(given):
            raise ValueError(f"expected the address of a Tinker server, such as http://127.0.0.1:8000, got {given!r}")
        return given.rstrip("/")

    @field_validator("vllm")
    @classmethod
    def _address(cls, given: str | None) -> str | None:
        if given is None:
            return None
        _check_for_secrets(given, "VLLM_API_KEY")
        if not _is_address(given):
            raise ValueError(
                f"expected the address of a vLLM server, such as http://127.0.0.1:8000, got {given!r}: "
                "TRL's engines (server, colocate) are no longer supported; start a server with `vllm serve`, as "
                "described in docs/training.md"
            )
        return given


class ProcessGroup(Protocol):
    """The processes that train one policy together; each plays its share of the groups."""

    index: int
    """Index of this process. Process 0 writes the record and the store."""
    count: int

    def gather(self, mine: Sequence[T]) -> list[T]:
        """The items of all processes, in the order of their indices. Blocking; every process must call it."""


class Alone:
    """The process group of a single process."""

    index, count = 0, 1

    def gather(self, mine: Sequence[T]) -> list[T]:
        return list(mine)


class Backing(Protocol):
    """The server and the store behind practice. Either may go away during training."""

    async def recover(self) -> bool:
        """Wait until server and database answer again; return True if one had gone away since the last call.

        Raises:
            EnvironmentUnavailable: the server does not come back.
            StoreError: the database does not come back.
        """

    async def take_back(self, run: str, iteration: int) -> int:
        """Delete what a run stored in an iteration and later ones; return the number of real steps taken in them."""

    async def tiers(self, run: str, iteration: int) -> dict[str, int]:
        """Number of steps of an iteration that each tier answered."""

    async def examples(self, run: str, iteration: int, most: int) -> list[tuple[str, Trajectory]]:
        """A few rollouts of an iteration, each of another group, with the names of the groups."""


class Practice:
    """Plays the groups of each iteration and keeps the curriculum and the record.

    Args:
        spec: the environment's description.
        curriculum: chooses tasks.
        generator: varies tasks; None: only the given tasks are played.
        settings: how many tasks and rollouts, how often, which seed.
        record: JSONL file of metrics; one line per iteration and per probe. A few rollouts are kept beside it.
        where: `dream` or `real`, for the record.
        real_steps: budget of real steps. The last update is made smaller to fit; no update starts that could exceed it.
        buffer: stores generated tasks and the outcomes of every group; None stores neither.
        backing: if it goes away during an update, that update is played again; None: it is never checked.
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
        where: Literal["dream", "real"] = "dream",
        real_steps: int | None = None,
        buffer: ReplayBuffer | None = None,
        backing: Backing | None = None,
        on_note: Callable[[JsonObject], None] = lambda line: None,
    ) -> None:
        self._where = where
        self._real_steps = real_steps
        self._taken = 0
        """Number of real steps taken so far by all processes."""
        self.spec = spec
        self.curriculum = curriculum
        self._generator = generator
        self._settings = settings
        self._record = record
        self._examples = KeptRollouts(record.parent)
        self._buffer = buffer
        self._backing = backing
        self._on_note = on_note
        self.run = secrets.token_hex(8)
        """Id of the run, part of each group's name. A trainer that resumes from a checkpoint sets it to the old id."""
        self.processes: ProcessGroup = Alone()
        """The processes that train together with the same curriculum. A trainer with several processes sets it."""
        self.dead_updates = 0
        """Number of last updates, in a row, without a success and without a group to learn from."""

    async def iterate(self, player: Player, iteration: int, *, version: int | None = None) -> list[list[Rollout]]:
        """Play P groups of G episodes, one task per group, and return the groups that this process played.

        Args:
            player: plays the episodes.
            iteration: number of rounds before this one.
            version: number of updates that the policy has had; None: as many as rounds.

        Raises:
            EnvironmentUnavailable: every rollout failed, so there is nothing to learn from.
            InvalidInput: no reward of the update is known, or the budget of real steps does not suffice.
        """
        settings, began = self._settings, time.monotonic()
        version = iteration if version is None else version
        tasks_P, groups, outcomes_P = await self._undisturbed(player, iteration, version)
        outcomes = list(chain(*outcomes_P))
        if self._where == "real":
            self._taken += sum(len(outcome.actions) for outcome in outcomes)
        rewards = self.rewards(outcomes)
        values = [
            self.curriculum.record(task, self.rewards(outcomes_G))
            for task, outcomes_G in zip(tasks_P, outcomes_P, strict=True)
        ]
        if self._generator is not None and settings.share > 0:
            await self._vary(self._generator, iteration)
        mine = sum(sum(segment.mask) for episode in chain(*groups) for segment in episode.segments)
        tokens = sum(await asyncio.to_thread(self.processes.gather, [mine]))
        line: JsonObject = (
            {"step": iteration, "where": self._where}
            | summary(outcomes, rewards, values)
            | await self._tiers(iteration)
            | {"sampled_tokens": tokens, "rollout_s": round(time.monotonic() - began, 3), "version": version}
        )
        if self._backing is not None and self.processes.index == 0:
            self._examples.add(await self._backing.examples(self.run, iteration, EXAMPLES))
        self.note(line)  # comes last: the steps of a round that is cancelled before are counted when it is taken back
        known = [outcome for outcome, reward in zip(outcomes, rewards, strict=True) if reward is not None]
        dead = not any(values) and not any(outcome.success for outcome in known)
        self.dead_updates = self.dead_updates + 1 if dead else 0
        return groups

    async def _tiers(self, iteration: int) -> JsonObject:
        """The tier counts of an iteration for the record; empty outside a dream."""
        if self._where != "dream" or self._backing is None:
            return {}
        return {"tiers": {**await self._backing.tiers(self.run, iteration)}}

    async def _undisturbed(
        self, player: Player, iteration: int, version: int
    ) -> tuple[Sequence[Task], list[list[Rollout]], list[list[Rollout]]]:
        """Play and store an update; return its tasks, this process's groups, and all groups (without tokens).

        If the server or the database went away, the update is played again, whether or not an episode failed: the
        database may have lost steps that it had acknowledged. With several processes it is not played again: an error
        ends them.
        """
        for _ in range(ATTEMPTS):
            try:
                played = await self._played_and_kept(player, iteration, version)
            except BudgetSpent:  # a resumed run plays the whole update
                await self.take_back(iteration)
                raise
            except DreamGymError:
                if not await self._was_disturbed():
                    raise
            else:
                if not await self._was_disturbed():
                    return played
            await self.take_back(iteration)
        raise EnvironmentUnavailable(f"the server or the database went away {ATTEMPTS} times in update {iteration}")

    async def _was_disturbed(self) -> bool:
        return self._backing is not None and self.processes.count == 1 and await self._backing.recover()

    async def _played_and_kept(
        self, player: Player, iteration: int, version: int
    ) -> tuple[Sequence[Task], list[list[Rollout]], list[list[Rollout]]]:
        settings = self._settings
        if self.spent:
            raise InvalidInput(
                f"{self._real_steps} real steps are not enough for another update: a group of {settings.group_size} "
                f"episodes may take {settings.group_size * self.spec.max_steps}, and {self._taken} are already used; "
                "raise real_steps or lower group_size"
            )
        tasks_P = self.curriculum.sample(min(settings.groups, self._affordable()), iteration)
        try:
            groups = await self._played(player, tasks_P, iteration, version)
        finally:
            check_budget()  # a server only reports that it is unavailable
        outcomes_P = await asyncio.to_thread(
            self.processes.gather, [[replace(episode, segments=[]) for episode in group] for group in groups]
        )
        outcomes = list(chain(*outcomes_P))
        if all(outcome.reward is None for outcome in outcomes):
            failures = [outcome.error for outcome in outcomes if outcome.error is not None]
            errors = sorted(set(failures))
            if len(failures) == len(outcomes):
                advice = "; if recordings lack the answers, record more, or give a language model as --model"
                raise EnvironmentUnavailable(
                    f"every rollout of an update failed: {'; '.join(errors).rstrip('.')}"
                    f"{advice if self._where == 'dream' else ''}"
                )
            failed = f" ({len(failures)} of {len(outcomes)} failed: {'; '.join(errors)})" if failures else ""
            raise InvalidInput(
                f"no episode of an update has a known reward{failed}: give the tasks a check of their own "
                "(metadata.success), practise with a language model as --model, which can judge, or write "
                "ends_itself = true into env.toml if the environment ends every task that is accomplished"
            )
        if self._buffer is not None and self.processes.index == 0:
            await self._keep(self._buffer, tasks_P, outcomes_P, iteration)
        return tasks_P, groups, outcomes_P

    @property
    def spent(self) -> bool:
        """True if the remaining real steps do not suffice for another update."""
        return self._affordable() <= 0

    def _affordable(self) -> int:
        """Number of groups that the remaining real steps pay for, if every episode takes all its steps.

        It is negative if more steps were taken than a resumed run may take in all.
        """
        if self._real_steps is None or self._where != "real":
            return self._settings.groups
        groups = (self._real_steps - self._taken) // (self._settings.group_size * self.spec.max_steps)
        return groups - groups % self.processes.count

    async def _played(
        self, player: Player, tasks_P: Sequence[Task], iteration: int, version: int
    ) -> list[list[Rollout]]:
        settings, index, count = self._settings, self.processes.index, self.processes.count
        share, size = len(tasks_P) // count, settings.group_size
        slots = [p for p in range(index * share, (index + 1) * share) for _ in range(size)]
        apart = (index,) if index else ()
        episodes = await player.play(
            [tasks_P[p] for p in slots],
            groups=[f"{self.run}-{iteration}-{p}" for p in slots],
            seeds=[draw_seed(settings.seed, iteration, p) for p in slots],
            version=version,
            sampling_seed=draw_seed(settings.seed, iteration, -1, *apart),
        )
        return [episodes[start : start + size] for start in range(0, len(episodes), size)]

    def rewards(self, episodes: Sequence[Rollout]) -> list[float | None]:
        """The reward to learn from of each episode: None if it failed, or if the dream was not sure enough of it."""
        return trusted(
            [episode.reward for episode in episodes],
            [episode.confidence for episode in episodes],
            least=self._settings.least_confidence,
        )

    async def _keep(
        self, buffer: ReplayBuffer, tasks_P: Sequence[Task], groups_P: Sequence[Sequence[Rollout]], iteration: int
    ) -> None:
        """Store the tasks, redacted, and the outcomes of their groups."""
        redact = redact_by(self.spec.redact)
        await buffer.add_tasks([redacted_task(task, redact) for task in tasks_P])
        for task, group in zip(tasks_P, groups_P, strict=True):
            valid = [reward for reward in self.rewards(group) if reward is not None]
            await buffer.record_outcomes(self.spec.name, task.id, iteration, valid, run=self.run)
        if (iteration + 1) % RETIRE_EVERY == 0:
            await buffer.retire(self.spec.name)

    async def _vary(self, generator: TaskGenerator, iteration: int) -> None:
        """Vary tasks in process 0 and give the new ones to all processes."""
        tasks: list[Task] = []
        if self.processes.index == 0:
            parents = self.curriculum.most_valuable(VARIED)
            tasks = await generator.vary(parents, seed=draw_seed(self._settings.seed, iteration, -2))
        self.curriculum.add(await asyncio.to_thread(self.processes.gather, tasks))

    async def rewind(self, iteration: int) -> None:
        """Cut the record and the store back to an iteration that training continues from.

        Real steps that were taken stay counted, although what was learned from them is lost.
        """

        def led_here(line: JsonObject) -> bool:
            step = int(str(line["step"]))
            return "lost" in line or step < iteration or (step == iteration > 0 and "rollout_s" not in line)

        kept = [line for line in read_record(self._record) if led_here(line)]
        self._taken, self.dead_updates = real_steps(kept), dead_updates(kept)
        if self.processes.index == 0:
            part = self._record.with_suffix(".part")
            part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            part.replace(self._record)
            self._examples.rewind(iteration)
        await self.take_back(iteration)

    async def take_back(self, iteration: int) -> None:
        """Delete from the store what is about to be played again; add its real steps to the record."""
        is_first = self.processes.index == 0
        steps = await self._backing.take_back(self.run, iteration) if self._backing is not None and is_first else 0
        (lost,) = await asyncio.to_thread(self.processes.gather, [steps] if is_first else [])
        if lost:
            self._taken += lost
            self.note({"step": iteration, "where": "real", "environment_steps": lost, "lost": True})

    def note(self, line: JsonObject) -> None:
        """Append one line to the record. Only process 0 writes it."""
        if self.processes.index != 0:
            return
        with self._record.open("a", encoding="utf-8") as record:
            record.write(json.dumps(line) + "\n")
        self._on_note(line)

    def note_probe(self, iteration: int, where: str, evaluation: Evaluation) -> None:
        """Add a probe to the record. If no reward is known, its success is null."""
        rate = evaluation.success
        self.note(
            {
                "step": iteration,
                f"{where}_success": rate.mean if rate.n else None,
                f"{where}_low": rate.low if rate.n else None,
                f"{where}_high": rate.high if rate.n else None,
                f"{where}_episodes": rate.n,
                f"{where}_refused_share": evaluation.refused_share,
                f"{where}_steps": evaluation.steps,
                f"{where}_outcomes": [*evaluation.outcomes],
            }
        )
