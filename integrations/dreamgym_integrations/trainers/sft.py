"""Supervised fine-tuning of a policy on recorded play: behaviour cloning, and the warm start of the demonstration.

Rows are tokenised by the same codec that the rollout uses, so that training and acting see the same ids.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from dreamgym.environment import EnvironmentSpec
from dreamgym.episode import user_message
from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym.types import Trajectory
from dreamgym_integrations.trainers.checkpoints import save_policy
from dreamgym_integrations.trainers.policy import ChatCodec, load_policy

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # also keeps TRL from calling home
try:
    from datasets import Dataset
    from transformers import PrinterCallback, TrainerCallback
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    raise MissingPackage("training", "train") from error


def action_text(spec: EnvironmentSpec, trajectory: Trajectory, step: int) -> str:
    """What the policy would have to say for this step's action."""
    action = trajectory.transitions[step].action
    if spec.text_argument is not None:
        return str(action.arguments.get(spec.text_argument[1], ""))
    return action.model_dump_json()


def row(spec: EnvironmentSpec, codec: ChatCodec, trajectory: Trajectory) -> dict[str, list[int]]:
    """One episode as `input_ids` and `labels`; labels are -100 wherever the environment speaks."""
    input_ids = codec.start(user_message(trajectory.task, spec.first(trajectory.task)))
    labels = [-100] * len(input_ids)
    for step, transition in enumerate(trajectory.transitions):
        said = codec.answer(action_text(spec, trajectory, step))
        heard = codec.turn(transition.result.observation, ended=True) if step + 1 < len(trajectory.transitions) else []
        input_ids += [*said, *heard]
        labels += [*said, *([-100] * len(heard))]
    return {"input_ids": input_ids, "labels": labels}


def clone(
    spec: EnvironmentSpec,
    trajectories: Iterable[Trajectory],
    base: Path,
    out: Path,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    on_progress: Callable[[int, int], None] = lambda step, steps: None,
) -> None:
    """Teach the policy in `base` to act as recorded and save it to `out`; `on_progress` hears of every 25th step.

    Raises:
        InvalidInput: there is nothing to learn from.
    """
    policy, codec = load_policy(base)
    rows = [row(spec, codec, trajectory) for trajectory in trajectories if trajectory.transitions]
    if not rows:
        raise InvalidInput(
            f"no recorded step of {spec.name!r} to learn from: run `dreamgym collect` or `dreamgym seed` first"
        )
    trainer = SFTTrainer(
        model=policy.model,
        args=SFTConfig(
            output_dir=str(out / "trainer"),
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=learning_rate,
            lr_scheduler_type="cosine",
            max_length=None,
            seed=seed,
            data_seed=seed,
            use_cpu=not _has_gpu(),
            bf16=False,
            activation_checkpointing=False,
            save_strategy="no",
            report_to="none",
            logging_steps=50,
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=policy.tokenizer,
        callbacks=[Progress(on_progress)],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    save_policy(policy.model, policy.tokenizer, out)


class Progress(TrainerCallback):  # type: ignore[misc]  # transformers is not typed
    """Tells how far the training is."""

    def __init__(self, tell: Callable[[int, int], None]) -> None:
        self._tell = tell

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Tell every 25 steps."""
        if state.global_step % 25 == 0:
            self._tell(state.global_step, state.max_steps)


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())
