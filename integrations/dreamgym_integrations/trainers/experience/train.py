"""Supervised fine-tuning of an experience model on recorded transitions (paper, eq. 5), through TRL's SFTTrainer.

The target of a row is the reasoning, then the next state (its changes, if it is explicit), then the outcome. The loss
as printed in the paper has neither a reward term nor the task, although eq. 4 predicts the reward and depends on the
task. Ours puts `terminated` and `success` into the target after the state, and the task into the prompt.

Every process of a launcher such as `accelerate launch` runs this module. Only the first one writes files of our own;
TRL writes its own files.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from transformers import AutoTokenizer, EarlyStoppingCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from dreamgym.errors import InvalidInput
from dreamgym.files import write_whole
from dreamgym_integrations.trainers.common.checkpoints import newest_with
from dreamgym_integrations.trainers.common.distributed import Processes
from dreamgym_integrations.trainers.common.interrupt import interruptible
from dreamgym_integrations.trainers.common.lora import adapter, merged_into
from dreamgym_integrations.trainers.common.progress import Say, TimeLeft
from dreamgym_integrations.trainers.common.trl_setup import base_options, known_warnings_ignored, run_trainer
from dreamgym_integrations.trainers.experience.data import EVALUATIONS, FitSettings, PreparedFit, working_folder

RANK = 16
"""Rank of the adapter that `--lora` trains."""
LAST_FILE = "trainer_state.json"
"""The file that TRL's trainer writes last into a checkpoint."""


def is_first_process() -> bool:
    """True if this is the first of the processes that a launcher started, or the only one."""
    return Processes().index == 0


def train(out: Path, prepared: PreparedFit, *, say: Say = lambda text: None) -> Path:
    """Train, from the newest checkpoint if there is one, and return the folder of the trained model.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the state is saved.
    """
    work = working_folder(out)
    trained = work / "trained"
    if trained.is_dir():
        return trained
    trainer = _trainer(work, prepared, say)
    with interruptible(trainer) as interrupt:
        run_trainer(trainer, newest_with(work, LAST_FILE))
    if interrupt.pressed:
        say(f"stopped after {trainer.state.global_step} updates; --resume continues")
        raise KeyboardInterrupt
    saving, saved_adapter = work / "saving", work / "adapter"
    trainer.save_model(str(saved_adapter if prepared.settings.lora else saving))
    if trainer.is_world_process_zero():
        if prepared.settings.lora:
            merged_into(Path(prepared.base), saved_adapter).save_pretrained(saving)
            AutoTokenizer.from_pretrained(prepared.base, local_files_only=True).save_pretrained(saving)
        (saving / "training_args.bin").unlink(missing_ok=True)
        write_whole(work / "losses.json", json.dumps(trainer.state.log_history))
        saving.rename(trained)
    trainer.accelerator.wait_for_everyone()
    return trained


def losses(out: Path) -> list[dict[str, float]]:
    """The lines that the trainer logged, oldest first."""
    lines: list[dict[str, float]] = json.loads((working_folder(out) / "losses.json").read_text(encoding="utf-8"))
    return lines


def _trainer(work: Path, prepared: PreparedFit, say: Say) -> SFTTrainer:
    settings = prepared.settings
    with known_warnings_ignored():
        return SFTTrainer(
            model=prepared.base,
            args=_config(work, settings),
            train_dataset=load_from_disk(str(work / "rows" / "train")),
            eval_dataset=load_from_disk(str(work / "rows" / "held_out")),
            processing_class=AutoTokenizer.from_pretrained(prepared.base, local_files_only=True),
            peft_config=adapter(RANK) if settings.lora else None,
            callbacks=[_Patience(settings.patience), _Speaker(say)],
        )


def _config(work: Path, settings: FitSettings) -> SFTConfig:
    gpu = torch.cuda.is_available()
    count = Processes().count
    share, rest = divmod(settings.batch, count)
    if rest:
        raise InvalidInput(
            f"a batch of {settings.batch} does not split over {count} processes: use a multiple of {count}"
        )
    micro = next(size for size in range(min(settings.micro_batch, share), 0, -1) if share % size == 0)
    every = max(1, settings.steps // EVALUATIONS)
    return SFTConfig(
        **base_options(
            work.resolve() / "checkpoints",  # transformers keeps this path of the best one, also for a resumed fit
            steps=settings.steps,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            bf16=gpu,
            gradient_checkpointing=gpu,
        ),
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        lr_scheduler_type="cosine",
        warmup_steps=settings.steps // 20,
        max_length=None,
        model_init_kwargs={"dtype": "bfloat16" if gpu and settings.lora else "float32"},
        data_seed=settings.seed,
        eval_strategy="steps",
        eval_steps=every,
        prediction_loss_only=True,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        logging_steps=max(1, every // 2),
    )


class _Patience(EarlyStoppingCallback):  # type: ignore[misc]  # transformers is not typed
    """Early stopping that survives a resume: its count is recomputed from the log.

    A fit that had stopped, and was killed before it was saved, makes one more update, which is not saved.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_train_begin(args, state, control, **more)
        best = state.best_global_step or 0
        self.early_stopping_patience_counter = sum(
            "eval_loss" in line and line["step"] > best for line in state.log_history
        )
        control.should_training_stop |= self.early_stopping_patience_counter >= self.early_stopping_patience


class _Speaker(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Reports the losses and the remaining time."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._progress = TimeLeft(say, "updates")
        self._losses = ""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Report each held-out loss; remember the training loss."""
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            self._losses = f", loss {float(logs['loss']):.3f}"
        if "eval_loss" in logs:
            self._say(f"    update {state.global_step}{self._losses}, held-out loss {float(logs['eval_loss']):.4f}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Report how many updates are done, and how long the rest will take."""
        if state.is_world_process_zero:
            self._progress.tell(state.global_step, state.max_steps, self._losses)
