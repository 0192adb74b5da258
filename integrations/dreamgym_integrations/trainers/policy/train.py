"""A training run: GRPO or PPO over the same rollouts, checkpoints with the curriculum in each, probes, resuming.

Several processes of a launcher such as torchrun can train one policy. Each plays its share of the groups, and all keep
the same curriculum. Only the first one probes and writes the record and the store. Data-parallel training on CPUs has
tests; FSDP and DeepSpeed go through accelerate and were never run here.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal
from datasets import Dataset
from transformers import TrainerCallback, set_seed
from trl import GRPOConfig

from dreamgym.errors import InvalidInput
from dreamgym.training.early_stop import Seen
from dreamgym.training.practice import Practice, Settings
from dreamgym.training.rollout import Player, Policy
from dreamgym.types import JsonObject
from dreamgym_integrations.trainers.common.checkpoints import save_model, step_of
from dreamgym_integrations.trainers.common.distributed import Processes, of_first
from dreamgym_integrations.trainers.common.interrupt import interruptible
from dreamgym_integrations.trainers.common.lora import adapter, merged
from dreamgym_integrations.trainers.common.trl_setup import base_options, known_warnings_ignored, run_trainer
from dreamgym_integrations.trainers.policy.grpo import MOST_WEIGHT, RolloutTrainer, steps_per_update
from dreamgym_integrations.trainers.policy.model import (
    PolicyCodec,
    TransformersPolicy,
    check_pointer,
    load_policy,
    table_of_positions,
)
from dreamgym_integrations.trainers.policy.pointer.model import restore_own_head
from dreamgym_integrations.trainers.policy.ppo import HEAD, PPOTrainer, Values
from dreamgym_integrations.trainers.policy.rounds import Rounds, RoundsAhead, RoundsOnDemand
from dreamgym_integrations.trainers.policy.run_folder import (
    begin,
    complete,
    first_curriculum,
    identity,
    keep_only,
    newest_checkpoint,
    read_curriculum,
)
from dreamgym_integrations.trainers.policy.tinker import train_at_tinker
from dreamgym_integrations.trainers.policy.vllm import VllmPolicy, weights_figures

Probe = Callable[[Policy, PolicyCodec, int], Coroutine[Any, Any, Seen]]
"""Evaluates the policy after a number of updates, on the same event loop as the rollouts."""
BEST = "best"
"""Folder of the policy with the best probe so far, in a folder that is named by its update. The one before stays until
the checkpoint of the new one is whole, since a run that ends before resumes with it."""
LEARNED = ("loss", "grad_norm", "learning_rate", "kl", "entropy", "value_loss", "importance", "truncated_share")
"""Figures of TRL's log that are passed to `on_learned` after an update."""


def train_policy(
    practice: Practice,
    base: Path,
    out: Path,
    settings: Settings,
    *,
    portal: BlockingPortal,
    player: Callable[[Policy, PolicyCodec], Player],
    probe: Probe | None = None,
    resume: bool = False,
    on_learned: Callable[[JsonObject], None] = lambda line: None,
) -> None:
    """Train the policy in `base` for `settings.steps` updates and save it to `out/policy`, an ordinary checkpoint.

    Args:
        practice: plays the groups.
        base: checkpoint folder to start from.
        out: run folder; trainer checkpoints go to `out/checkpoints`.
        settings: see Settings.
        portal: the event loop on which the environments live.
        player: lets the policy play.
        probe: called before the first update, every `probe_every` updates, and after the last; of several processes
            only the first calls its own.
        resume: continue from the newest checkpoint in `out`, curriculum included.
        on_learned: called after each update with its number and those figures of LEARNED that the algorithm has.

    Raises:
        InvalidInput: `out` contains another run, or the settings do not fit together.
        EnvironmentUnavailable: every rollout of an update failed, so nothing can be learned.
        TrainingStopped: there is nothing to learn, a number is not finite, or a checkpoint cannot be saved.
        KeyboardInterrupt: after Ctrl-C, when the running update is done and saved; after a second one, at once.
    """
    processes = Processes()
    if settings.tinker:
        practice.processes = processes
        how = partial(train_at_tinker, portal=portal, player=player, probe=probe, resume=resume, on_learned=on_learned)
        how(practice, base, out, settings)
        return

    def begun() -> tuple[Path | None, str, JsonObject]:
        """Mark the folder as this run's; return its checkpoint, if any, its name, and the curriculum to begin with."""
        check_settings(settings, processes.count)
        mine = identity(practice.spec, base, settings)
        checkpoint = newest_checkpoint(out, mine) if resume else None
        run = begin(out, mine, resume=resume)
        if checkpoint is not None:
            return checkpoint, run, read_curriculum(checkpoint)
        return None, run, first_curriculum(out, practice.curriculum.state(), resume=resume)

    checkpoint, practice.run, curriculum = of_first(processes, begun)
    practice.processes = processes
    done = 0 if checkpoint is None else step_of(checkpoint) // steps_per_update(settings)
    portal.call(practice.rewind, done)
    if done and practice.spent:  # the lost steps have used up the budget
        settings = settings.model_copy(update={"steps": done})
    practice.curriculum.restore(curriculum)
    trainer = _trainer(practice, base, out, settings, portal, player, probe, on_learned)
    with (
        closing(trainer.rounds),
        interruptible(trainer, steps_per_update=steps_per_update(settings)) as interrupt,
    ):
        run_trainer(trainer, checkpoint)
    if interrupt.pressed:
        raise KeyboardInterrupt
    _save(trainer, settings, out / "policy")


def check_settings(settings: Settings, processes: int) -> None:
    """Raise InvalidInput if the settings do not fit together, or do not fit the number of processes."""
    if settings.groups % processes:
        raise InvalidInput(
            f"expected groups to be a multiple of the number of processes ({processes}), got {settings.groups}"
        )
    split = settings.accumulate * (settings.ppo.mini_batches if settings.algorithm == "ppo" else 1)
    rollouts = settings.groups // processes * settings.group_size
    if rollouts % split:
        raise InvalidInput(f"{rollouts} rollouts per process and update do not split into {split} equal batches")
    if settings.staleness and processes > 1:
        raise InvalidInput("staleness needs a single process: with several processes, leave it at 0")
    if settings.vllm and processes > 1:
        raise InvalidInput(
            "a vLLM server gets its weights from a single process: with several processes, leave vllm out"
        )


def _trainer(
    practice: Practice,
    base: Path,
    out: Path,
    settings: Settings,
    portal: BlockingPortal,
    player: Callable[[Policy, PolicyCodec], Player],
    probe: Probe | None,
    on_learned: Callable[[JsonObject], None],
) -> RolloutTrainer:
    set_seed(settings.seed)  # for new weights: those of an adapter or a value head
    policy, codec = load_policy(base, turn_tokens=settings.turn_tokens, episode_tokens=settings.episode_tokens)
    checkpointing = settings.gradient_checkpointing
    check_pointer(codec, lora=settings.lora, vllm=settings.vllm, gradient_checkpointing=checkpointing)
    sampler: TransformersPolicy | VllmPolicy = policy
    if settings.vllm:
        save = partial(_save_whole, policy.tokenizer, settings)
        sampler = VllmPolicy(policy.copy(), settings.vllm, out / "vllm", save)
    # a policy that plays ahead uses the server, whose weights are then older than those to probe
    probed = policy if settings.staleness else sampler
    values = Values(policy.model) if settings.algorithm == "ppo" else None
    has_table = table_of_positions(policy.model.config) is not None
    takes_positions = has_table and "position_ids" in inspect.signature(policy.model.forward).parameters

    def look(update: int) -> Seen:
        """Call the probe on the event loop of the environments."""
        return Seen(best=False, stop=False) if probe is None else portal.call(probe, probed, codec, update)

    bookkeeper = _Bookkeeper(practice, settings, look, out / BEST, on_learned)
    besides = HEAD if settings.algorithm == "ppo" else None
    options: dict[str, Any] = {
        "model": policy.model,
        "args": _config(out, settings, policy, practice.processes.count),
        "train_dataset": Dataset.from_dict({"prompt": [f"slot {p}" for p in range(settings.groups)]}),
        "processing_class": policy.tokenizer,
        "callbacks": [_Forgetting(policy, *([] if settings.staleness else [sampler])), bookkeeper],
        "peft_config": adapter(settings.lora, besides=besides) if settings.lora else None,
    }
    with known_warnings_ignored():
        if values is None:
            trainer = RolloutTrainer(practice, settings, **options)
        else:
            trainer = PPOTrainer(practice, settings, values=values, **options)
    if takes_positions:
        for model in (trainer.model, trainer.ref_model):
            if model is not None:
                model.register_forward_pre_hook(_with_positions, with_kwargs=True)
    policy.model = trainer.accelerator.unwrap_model(trainer.model)
    restore_own_head(policy.model)
    restore_own_head(trainer.ref_model)
    sampler.model = policy.model
    trainer.rounds = _rounds(practice, player, portal, sampler, codec, settings)
    bookkeeper.trainer = trainer
    bookkeeper.sampler = sampler
    return trainer


def _rounds(
    practice: Practice,
    player: Callable[[Policy, PolicyCodec], Player],
    portal: BlockingPortal,
    policy: TransformersPolicy | VllmPolicy,
    codec: PolicyCodec,
    settings: Settings,
) -> Rounds:
    if not settings.staleness:
        return RoundsOnDemand(practice, player(policy, codec), portal)
    behind = policy if isinstance(policy, VllmPolicy) else policy.copy()
    ahead = {"staleness": settings.staleness, "updates": settings.steps}
    return RoundsAhead(practice, player(behind, codec), portal, behind, policy.model, **ahead)


def _with_positions(
    model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Count the positions of a row from its first token, as sampling does.

    TRL pads on the left and counts the padding too. A model that looks its positions up in a table, such as GPT-2,
    would then give other log-probabilities.
    """
    mask = kwargs.get("attention_mask")
    if mask is None or mask.dim() != 2 or kwargs.get("position_ids") is not None or kwargs.get("past_key_values"):
        return args, kwargs
    return args, {**kwargs, "position_ids": (mask.long().cumsum(-1) - 1).clamp(min=0)}


def _config(out: Path, settings: Settings, policy: TransformersPolicy, processes: int) -> GRPOConfig:
    ppo = settings.ppo if settings.algorithm == "ppo" else None
    batches = settings.accumulate * (ppo.mini_batches if ppo else 1)
    updates = steps_per_update(settings)
    return GRPOConfig(
        **base_options(
            out / "checkpoints",
            steps=settings.steps * updates,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            bf16=settings.bf16,
            gradient_checkpointing=settings.gradient_checkpointing,
        ),
        per_device_train_batch_size=settings.groups * settings.group_size // (processes * batches),
        gradient_accumulation_steps=settings.accumulate,
        steps_per_generation=batches,
        num_iterations=ppo.epochs if ppo else 1,
        num_generations=settings.group_size,
        lr_scheduler_type="linear",
        beta=settings.beta,
        delta=MOST_WEIGHT if settings.staleness or settings.vllm else None,
        max_grad_norm=1.0,
        disable_dropout=True,  # as where it plays: else the same weights would give other log-probabilities
        temperature=policy.temperature,
        save_steps=settings.save_every * updates,
        save_total_limit=2,
        ddp_find_unused_parameters=False,  # the search does not see that the values come from the same forward pass
        logging_steps=updates,
    )


def _save(trainer: RolloutTrainer, settings: Settings, folder: Path) -> None:
    """Save the current policy without anything that is only for training; an adapter is merged into a copy of its base.

    So all readers of a policy (evaluation, the start of the next run, a server) read the same kind of folder.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    state = None if settings.lora else trainer.accelerator.get_state_dict(trainer.model)
    if trainer.is_world_process_zero():
        _save_whole(trainer.processing_class, settings, model, folder, state)
    trainer.accelerator.wait_for_everyone()


def _save_whole(
    tokenizer: Any, settings: Settings, model: Any, folder: Path, state: dict[str, Any] | None = None
) -> None:
    """Save an unwrapped model with the weights in `state`, or with its own if that is None."""
    if settings.lora:
        model = merged(model)
    weights = model.state_dict() if state is None else state
    weights = {name: weight for name, weight in weights.items() if not name.startswith(HEAD)}
    save_model(model, tokenizer, folder, weights)


class _Forgetting(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Drops everything that was computed with the old weights, after each optimiser step."""

    def __init__(self, *policies: TransformersPolicy | VllmPolicy) -> None:
        self._policies = policies

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Make the policies forget, since they have new weights now."""
        for policy in self._policies:
            policy.forget()


@dataclass(eq=False)
class _Bookkeeper(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Checks the weights, probes, passes figures on, and completes checkpoints with the curriculum."""

    practice: Practice
    settings: Settings
    look: Callable[[int], Seen]
    best: Path
    on_learned: Callable[[JsonObject], None]
    trainer: RolloutTrainer = field(init=False)
    sampler: TransformersPolicy | VllmPolicy = field(init=False)
    kept: int | None = None
    """Update of the best policy that was saved last."""
    since: float = field(default_factory=time.monotonic)
    """Time of the last line of figures."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Probe the policy before the first update; a resumed run has already done so."""
        if state.global_step == 0:
            self._look(0, control)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Check the weights after every step; probe when it is due, and at the end."""
        self.trainer.check_weights()
        update, within = divmod(state.global_step, steps_per_update(self.settings))
        if within:
            return
        self.trainer.rounds.updated(update)
        spent = self.trainer.round.is_last
        control.should_training_stop |= spent
        control.should_save |= spent  # the trainer itself saves at the last planned update only
        if update % self.settings.probe_every == 0 or update == self.settings.steps or spent:
            self._look(update, control)

    def _look(self, update: int, control: Any) -> None:
        """Probe in the first process; all processes act on the verdict."""
        seen = of_first(self.practice.processes, partial(self.look, update))
        control.should_training_stop |= seen.stop
        if seen.best:
            _save(self.trainer, self.settings, self.best / str(update))
            self.kept = update
            control.should_save = True  # a resumed run does not go back behind the best policy

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Pass the trainer's figures on."""
        if state.is_world_process_zero and logs and "loss" in logs:
            told = (name for name in LEARNED if name in logs and (name != "entropy" or self.trainer.learns))
            figures = {name: logs[name] for name in told}
            now = time.monotonic()
            times = {"update_s": round(now - self.since, 3), "waited_s": round(self.trainer.waited_s, 3)}
            self.since = now
            engine = weights_figures(self.sampler) if isinstance(self.sampler, VllmPolicy) else {}
            self.on_learned({"step": self.trainer.updates, **times, **figures, **engine})

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the curriculum into the checkpoint that all processes have just written."""
        self.trainer.accelerator.wait_for_everyone()
        if state.is_world_process_zero:
            complete(Path(args.output_dir) / f"checkpoint-{state.global_step}", self.trainer.round.curriculum)
            if self.kept is not None:  # no run resumes from an earlier checkpoint now
                keep_only(self.best, str(self.kept))
