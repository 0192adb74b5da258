"""Supervised fine-tuning of an experience model on recorded transitions (paper, eq. 5), through TRL's SFTTrainer.

The target of a row is the reasoning, then the next state (its changes, where it is explicit), then the outcome. The
loss as printed in the paper has neither a reward term nor the task, although eq. 4 predicts the one and depends on the
other: ours puts `terminated` and `success` into the target after the state, and the task into the prompt.

Every process of a launcher such as `accelerate launch` runs all of this; the first one alone writes what is not TRL's
own.
"""

from __future__ import annotations

import json
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dreamgym.errors import MissingPackage
from dreamgym_integrations.trainers.experience.data import (
    EVALUATIONS,
    FitSettings,
    Prepared,
    Progress,
    Say,
    processes,
    working_folder,
)

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # also keeps TRL from calling home
try:
    import torch
    from datasets import load_from_disk
    from transformers import AutoTokenizer, EarlyStoppingCallback, PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    raise MissingPackage("fitting a model", "train") from error


def is_first_process() -> bool:
    """Of those that a launcher started; true where there is one alone."""
    return bool(processes().is_main_process)


def train(out: Path, prepared: Prepared, *, say: Say = lambda text: None) -> Path:
    """Train, from the newest checkpoint where there is one, and return the folder of the trained model.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the state is saved.
    """
    work = working_folder(out)
    trained = work / "trained"
    if trained.is_dir():
        return trained
    with warnings.catch_warnings():
        # TRL 1.16 and peft 0.21 still ask transformers for this by its old name
        warnings.filterwarnings("ignore", message=".*gradient_checkpointing.*", category=FutureWarning)
        _train(work, trained, prepared, say)
    return trained


def _train(work: Path, trained: Path, prepared: Prepared, say: Say) -> None:
    trainer = _trainer(work, prepared, say)
    checkpoint = _newest_checkpoint(work)
    with _interruptible(trainer) as interrupted:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if interrupted:
        say(f"stopped after {trainer.state.global_step} updates; --resume continues")
        raise KeyboardInterrupt
    trainer.save_model(str(work / "adapter" if prepared.settings.lora else work / "saving"))
    if trainer.is_world_process_zero():
        if prepared.settings.lora:
            _merge(Path(prepared.base), work / "adapter", work / "saving")
        (work / "saving" / "training_args.bin").unlink(missing_ok=True)
        state = json.dumps(trainer.state.log_history)
        (work / "losses.json").write_text(state, encoding="utf-8")
        (work / "saving").rename(trained)
    trainer.accelerator.wait_for_everyone()


def losses(out: Path) -> list[dict[str, float]]:
    """What the trainer logged, oldest first."""
    lines: list[dict[str, float]] = json.loads((working_folder(out) / "losses.json").read_text(encoding="utf-8"))
    return lines


def _trainer(work: Path, prepared: Prepared, say: Say) -> SFTTrainer:
    settings = prepared.settings
    trainer = SFTTrainer(
        model=prepared.base,
        args=_config(work, settings),
        train_dataset=load_from_disk(str(work / "rows" / "train")),
        eval_dataset=load_from_disk(str(work / "rows" / "held_out")),
        processing_class=AutoTokenizer.from_pretrained(prepared.base, local_files_only=True),
        peft_config=_lora() if settings.lora else None,
        callbacks=[_Patience(settings.patience), _Speaker(say)],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _config(work: Path, settings: FitSettings) -> SFTConfig:
    gpu = torch.cuda.is_available()
    count = processes().num_processes
    micro = min(settings.micro_batch, max(1, settings.batch // count))
    every = max(1, settings.steps // EVALUATIONS)
    return SFTConfig(
        output_dir=str(work / "checkpoints"),
        max_steps=settings.steps,
        per_device_train_batch_size=micro,
        per_device_eval_batch_size=micro,
        gradient_accumulation_steps=max(1, settings.batch // (micro * count)),
        learning_rate=settings.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=settings.steps // 20,
        max_length=None,
        model_init_kwargs={"dtype": "bfloat16" if gpu and settings.lora else "float32"},
        seed=settings.seed,
        data_seed=settings.seed,
        use_cpu=not gpu,
        bf16=gpu,
        activation_checkpointing=gpu,
        eval_strategy="steps",
        eval_steps=every,
        prediction_loss_only=True,
        save_strategy="steps",
        save_steps=every,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        greater_is_better=False,
        report_to="none",
        logging_steps=max(1, every // 2),
        disable_tqdm=True,
    )


def _lora() -> Any:
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingPackage("--lora", "train") from error
    return LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")


def _merge(base: Path, adapter: Path, out: Path) -> None:
    """The base with the adapter in its weights: an ordinary checkpoint folder."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, local_files_only=True)
    PeftModel.from_pretrained(model, adapter).merge_and_unload().save_pretrained(out)
    AutoTokenizer.from_pretrained(base, local_files_only=True).save_pretrained(out)


def _newest_checkpoint(work: Path) -> Path | None:
    """The newest complete checkpoint: the trainer writes its own state last."""
    saved = [folder for folder in (work / "checkpoints").glob("checkpoint-*") if _is_complete(folder)]
    return max(saved, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)


def _is_complete(checkpoint: Path) -> bool:
    return (checkpoint / "trainer_state.json").is_file()


@contextmanager
def _interruptible(trainer: SFTTrainer) -> Iterator[list[int]]:
    """Ctrl-C ends the training after the running update, saved; the list is not empty then. Again: at once.

    With several processes it is the launcher's: they would not stop at the same update.
    """
    interrupted: list[int] = []
    if trainer.accelerator.num_processes > 1:
        yield interrupted
        return

    class Stop(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if interrupted:
                control.should_save = control.should_training_stop = True

    def stop(number: int, frame: object) -> None:
        interrupted.append(number)
        signal.signal(signal.SIGINT, before)

    trainer.add_callback(Stop())
    before = signal.signal(signal.SIGINT, stop)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)


class _Patience(EarlyStoppingCallback):  # type: ignore[misc]  # transformers is not typed
    """Early stopping that a resumed run goes on with: what it has counted follows from the log."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        super().on_train_begin(args, state, control, **more)
        best = state.best_global_step or 0
        self.early_stopping_patience_counter = sum(
            "eval_loss" in line and line["step"] > best for line in state.log_history
        )


class _Speaker(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Tells the losses and the time that is left."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._progress = Progress(say, "updates")
        self._losses = ""

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        """Say each held-out loss; remember the training loss."""
        if not state.is_world_process_zero or not logs:
            return
        if "loss" in logs:
            self._losses = f", loss {float(logs['loss']):.3f}"
        if "eval_loss" in logs:
            self._say(f"    update {state.global_step}{self._losses}, held-out loss {float(logs['eval_loss']):.4f}")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Say how far it is."""
        if state.is_world_process_zero:
            self._progress.tell(state.global_step, state.max_steps, self._losses)
