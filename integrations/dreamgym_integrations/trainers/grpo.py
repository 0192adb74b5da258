"""A training run: trainer checkpoints, the curriculum in each of them, probes, resuming."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal

from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym.rollout import Codec, Player, Policy
from dreamgym.training import Practice, Settings
from dreamgym_integrations.trainers.policy import ChatCodec, TransformersPolicy, load_policy
from dreamgym_integrations.trainers.rollout_trainer import RolloutTrainer

try:
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import GRPOConfig
except ImportError as error:
    raise MissingPackage("training", "train") from error

CURRICULUM_FILE = "curriculum.json"
Probe = Callable[[TransformersPolicy, ChatCodec, int], Coroutine[Any, Any, None]]
"""Looks at the policy after so many updates, on the same event loop as the rollouts."""


def train_grpo(
    practice: Practice,
    base: Path,
    out: Path,
    settings: Settings,
    *,
    portal: BlockingPortal,
    player: Callable[[Policy, Codec], Player],
    probe: Probe | None = None,
    resume: bool = False,
) -> None:
    """Train the policy in `base` for `settings.steps` updates and save it to `out/policy`.

    Args:
        practice: plays the groups.
        base: checkpoint folder to start from.
        out: run folder; trainer checkpoints go to `out/checkpoints`.
        settings: see Settings.
        portal: the event loop on which the environments live.
        player: lets the policy play.
        probe: called before the first update, every `probe_every` updates, and after the last.
        resume: continue from the newest checkpoint in `out`, curriculum included.

    Raises:
        EnvironmentUnavailable: every rollout of an update failed; nothing can be learned from that.
    """
    policy, codec = load_policy(base)
    checkpoint = _newest_checkpoint(out) if resume else None
    practice.rewind(0 if checkpoint is None else _update(checkpoint))
    if checkpoint is not None:
        practice.curriculum.restore(json.loads((checkpoint / CURRICULUM_FILE).read_text(encoding="utf-8")))
    trainer = RolloutTrainer(
        practice,
        player(policy, codec),
        portal,
        model=policy.model,
        args=_config(out, settings, policy.temperature),
        train_dataset=Dataset.from_dict({"prompt": [f"slot {p}" for p in range(settings.groups)]}),
        processing_class=policy.tokenizer,
        callbacks=[_Bookkeeper(practice, policy, codec, portal, settings, probe)],
    )
    if trainer.accelerator.num_processes > 1:
        raise InvalidInput("training runs in one process so far: start it without a multi-process launcher")
    policy.model = trainer.accelerator.unwrap_model(trainer.model)
    trainer.remove_callback(PrinterCallback)
    with warnings.catch_warnings():
        # TRL 1.16 still asks transformers for this by its old name
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    policy.model.save_pretrained(out / "policy")
    policy.tokenizer.save_pretrained(out / "policy")


def _config(out: Path, settings: Settings, temperature: float) -> GRPOConfig:
    import torch

    return GRPOConfig(
        output_dir=str(out / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=settings.groups * settings.group_size,
        num_generations=settings.group_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type="linear",
        max_grad_norm=1.0,
        temperature=temperature,
        seed=settings.seed,
        save_steps=settings.save_every,
        save_total_limit=2,
        use_cpu=not torch.cuda.is_available(),
        bf16=False,
        activation_checkpointing=False,
        report_to="none",
        logging_steps=10,
        disable_tqdm=True,
    )


class _Bookkeeper(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Saves the curriculum with each checkpoint, probes, and shows progress."""

    def __init__(
        self,
        practice: Practice,
        policy: TransformersPolicy,
        codec: ChatCodec,
        portal: BlockingPortal,
        settings: Settings,
        probe: Probe | None,
    ) -> None:
        self._practice = practice
        self._policy = policy
        self._codec = codec
        self._portal = portal
        self._settings = settings
        self._probe = probe

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Look at the policy before the first update; a resumed run has already done so."""
        if state.global_step == 0:
            self._look(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Probe when it is time, and at the end."""
        if state.global_step % self._settings.probe_every == 0 or state.global_step == self._settings.steps:
            self._look(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Put the curriculum into the checkpoint that was just written."""
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        (folder / CURRICULUM_FILE).write_text(json.dumps(self._practice.curriculum.state()), encoding="utf-8")

    def _look(self, step: int) -> None:
        if self._probe is not None:
            self._portal.call(self._probe, self._policy, self._codec, step)


def _newest_checkpoint(out: Path) -> Path | None:
    """The newest complete checkpoint: one without its curriculum was cut off while it was written."""
    saved = [folder for folder in (out / "checkpoints").glob("checkpoint-*") if (folder / CURRICULUM_FILE).is_file()]
    return max(saved, key=_update, default=None)


def _update(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])
