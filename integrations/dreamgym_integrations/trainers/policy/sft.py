"""Supervised fine-tuning of a policy on recorded play: behaviour cloning, and the warm start of a policy from scratch.

Rows are tokenised by the same codec that the rollout uses, so that training and acting see the same ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from datasets import Dataset
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import Generation, Segment, action_text
from dreamgym.types import Trajectory
from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.common.lora import adapter, merged
from dreamgym_integrations.trainers.common.progress import UpdatesDone
from dreamgym_integrations.trainers.common.trl_setup import base_options, known_warnings_ignored, run_trainer
from dreamgym_integrations.trainers.policy.model import PolicyCodec, check_pointer, load_codec, load_policy
from dreamgym_integrations.trainers.policy.pointer.model import restore_own_head

Row = dict[str, list[int]]
"""A conversation: `input_ids`, and `labels`, which are -100 for all tokens that are not the policy's."""


def rows(spec: EnvironmentSpec, codec: PolicyCodec, trajectory: Trajectory, *, mask_refused: bool = False) -> list[Row]:
    """The rows of one recorded episode, one for each segment, as if a policy that acts by itself had played it.

    Args:
        spec: description of the environment.
        codec: codec of the policy. An action for which it has no ids is not learned, nor is an episode whose first
            prompt is longer than its limit.
        trajectory: the episode.
        mask_refused: do not learn refused actions.
    """
    talk = codec.talk(trajectory.task, spec.first(trajectory.task))
    if len(talk.prompt) >= codec.max_tokens:
        return []
    for step, transition in enumerate(trajectory.transitions):
        text = action_text(spec, transition.action)
        ids = talk.ids_of(text)
        if ids is None or (mask_refused and transition.result.is_error):
            talk.skip(text)
        else:
            talk.say(Generation(tuple(ids), (0.0,) * len(ids)))
        if step + 1 < len(trajectory.transitions) and not talk.hear(transition.result):
            break
    return [conversation_row(segment) for segment in talk.segments]


def conversation_row(segment: Segment) -> Row:
    """The row of a conversation of an agent with its policy."""
    said = [id if mine else -100 for id, mine in zip(segment.completion_ids, segment.mask, strict=True)]
    return {"input_ids": segment.ids, "labels": [-100] * len(segment.prompt_ids) + said}


def rows_of(
    spec: EnvironmentSpec, codec: PolicyCodec, trajectories: Iterable[Trajectory], *, mask_refused: bool = False
) -> list[Row]:
    """The rows of several recorded episodes, see `rows`.

    Raises:
        InvalidInput: there is nothing to learn from.
    """
    played = [trajectory for trajectory in trajectories if trajectory.transitions]
    if not played:
        raise InvalidInput(
            f"no recorded step of {spec.name!r} to learn from: run `dreamgym collect` or `dreamgym seed` first"
        )
    found = [row for trajectory in played for row in rows(spec, codec, trajectory, mask_refused=mask_refused)]
    if not found:
        raise InvalidInput(
            f"the policy can learn none of the {len(played)} recorded episodes of {spec.name!r}: a pointer policy "
            "calls tools only with values that the task or an answer has shown, so record episodes that read before "
            "they act; for a language model the first prompts are too long: give --episode-tokens more"
        )
    return found


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
    """Teach the policy in `base` to act as recorded and save it to `out`; see `rows_of` and `imitate`."""
    found = rows_of(spec, load_codec(base), trajectories)
    imitate(found, base, out, steps=steps, batch=batch, learning_rate=learning_rate, seed=seed, on_progress=on_progress)


def imitate(
    rows: Sequence[Row],
    base: Path,
    out: Path,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    lora: int = 0,
    accumulate: int = 1,
    turn_tokens: int | None = None,
    episode_tokens: int | None = None,
    bf16: bool = False,
    gradient_checkpointing: bool = False,
    on_progress: Callable[[int, int], None] = lambda step, steps: None,
) -> None:
    """Teach the policy in `base` the labelled tokens, and save it to `out`.

    Args:
        rows: conversations as tokens.
        base: checkpoint folder to start from.
        out: checkpoint folder that is written.
        steps: number of updates.
        batch: rows per update.
        learning_rate: learning rate of the first update; it falls to zero along a cosine.
        seed: fixes the order of the rows, and an adapter's first weights.
        lora: rank of the adapter that is trained; 0 trains all weights.
        accumulate: number of forward passes that one update's batch is split into.
        turn_tokens: limit that the saved policy keeps, see `load_policy`.
        episode_tokens: limit that the saved policy keeps.
        bf16: learn in 16-bit floats.
        gradient_checkpointing: compute activations again instead of keeping them.
        on_progress: called now and then with the number of updates done and of all; see `UpdatesDone`.

    Raises:
        InvalidInput: the batch does not split into that many passes, or a pointer policy is to learn with an adapter or
            with gradient checkpointing.
    """
    if batch % accumulate:
        raise InvalidInput(f"a batch of {batch} does not split into {accumulate} equal passes")
    set_seed(seed)
    policy, codec = load_policy(base, turn_tokens=turn_tokens, episode_tokens=episode_tokens)
    check_pointer(codec, lora=lora, gradient_checkpointing=gradient_checkpointing)
    memory = {"bf16": bf16, "gradient_checkpointing": gradient_checkpointing}
    with TemporaryDirectory() as scratch:
        shared = options(Path(scratch), steps, batch // accumulate, learning_rate, seed, **memory)
        with known_warnings_ignored():
            trainer = SFTTrainer(
                model=policy.model,
                args=SFTConfig(**shared, gradient_accumulation_steps=accumulate),
                train_dataset=Dataset.from_list([*rows]),
                processing_class=policy.tokenizer,
                peft_config=adapter(lora) if lora else None,
                callbacks=[UpdatesDone(on_progress)],
            )
        restore_own_head(policy.model)
        run_trainer(trainer)
    save_model(merged(trainer.model) if lora else policy.model, policy.tokenizer, out)


def options(scratch: Path, steps: int, batch: int, learning_rate: float, seed: int, **memory: bool) -> dict[str, Any]:
    """Arguments of a trainer's config for learning from recordings: a cosine schedule, and no checkpoints meanwhile.

    The trainer makes a folder at once, even if it saves nothing. It must not be the one of the result, which a run that
    is killed would leave behind.
    """
    return {
        **base_options(scratch, steps=steps, learning_rate=learning_rate, seed=seed, **memory),
        "per_device_train_batch_size": batch,
        "lr_scheduler_type": "cosine",
        "max_length": None,
        "data_seed": seed,
        "save_strategy": "no",
        "logging_steps": 50,
    }
