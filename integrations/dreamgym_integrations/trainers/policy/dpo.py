"""Direct preference optimisation of a policy on recorded play, through TRL's DPOTrainer.

A preference is about one step of an episode that succeeded. Its action is preferred to an action that was taken in the
same state of the same world and was refused, or belonged to an episode that failed. The codec of the rollout tokenises
the rows. The reference is the start policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from datasets import Dataset
from trl import DPOConfig, DPOTrainer

from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.training.rollout import action_text
from dreamgym.types import StopReason, Trajectory
from dreamgym_integrations.trainers.common.checkpoints import save_model
from dreamgym_integrations.trainers.common.progress import UpdatesDone
from dreamgym_integrations.trainers.common.trl_setup import run_trainer
from dreamgym_integrations.trainers.policy.model import PolicyCodec, load_policy
from dreamgym_integrations.trainers.policy.pointer.model import restore_own_head
from dreamgym_integrations.trainers.policy.sft import options

Place = tuple[str, str, str]
"""World, instruction and state in which two actions are compared."""


def prefer(
    spec: EnvironmentSpec,
    trajectories: Iterable[Trajectory],
    base: Path,
    out: Path,
    *,
    steps: int,
    batch: int,
    learning_rate: float,
    seed: int,
    beta: float = 0.1,
    on_progress: Callable[[int, int], None] = lambda step, steps: None,
) -> None:
    """Train the policy in `base` on the preferences of recordings, and save it to `out`.

    Args:
        beta: how strongly the policy is kept near the start policy.
        on_progress: called now and then with the number of updates done and of all; see `UpdatesDone`.

    Raises:
        InvalidInput: no two recorded actions can be compared.
    """
    policy, codec = load_policy(base)
    rows = preferences(spec, codec, list(trajectories))
    with TemporaryDirectory() as scratch:
        trainer = _Tokenised(
            model=policy.model,
            args=DPOConfig(**options(Path(scratch), steps, batch, learning_rate, seed), beta=beta),
            train_dataset=Dataset.from_list(rows),
            processing_class=policy.tokenizer,
            callbacks=[UpdatesDone(on_progress)],
        )
        restore_own_head(policy.model)
        restore_own_head(trainer.ref_model)
        run_trainer(trainer)
    save_model(policy.model, policy.tokenizer, out)


class _Tokenised(DPOTrainer):  # type: ignore[misc]  # TRL is not typed
    """A DPO trainer for rows that are tokens already; TRL would tokenise text with a template of its own choice."""

    def _prepare_dataset(self, dataset: Dataset, *_: object, **__: object) -> Dataset:
        return dataset


def preferences(
    spec: EnvironmentSpec, codec: PolicyCodec, trajectories: Sequence[Trajectory]
) -> list[dict[str, list[int]]]:
    """All preferences in the recordings, without duplicates: `prompt_ids`, `chosen_ids` and `rejected_ids` of each.

    An episode that nobody judged has not failed. It is left out, unless the environment ends an episode as soon as its
    task is accomplished, and left no end open.

    Raises:
        InvalidInput: there are none.
    """
    valid = [
        trajectory
        for trajectory in trajectories
        if trajectory.stop_reason is not StopReason.ERROR
        and (trajectory.reward is not None or (spec.is_over_when_done and not _has_open_end(trajectory)))
    ]
    good, bad = defaultdict[Place, set[str]](set), defaultdict[Place, set[str]](set)
    for trajectory in valid:
        for step, transition in enumerate(trajectory.transitions):
            led = trajectory.success and not transition.result.is_error
            (good if led else bad)[_place(trajectory, step)].add(action_text(spec, transition.action))
    rows = {}
    for trajectory in valid:
        if trajectory.success:
            talk = codec.talk(trajectory.task, spec.first(trajectory.task))
            if len(talk.prompt) >= codec.max_tokens:
                continue
            for step, transition in enumerate(trajectory.transitions):
                chosen, place = action_text(spec, transition.action), _place(trajectory, step)
                against = sorted(bad[place] - good[place]) if chosen in good[place] else []
                prompt, preferred = talk.prompt, talk.ids_of(chosen)
                for rejected in against:
                    refused = talk.ids_of(rejected)
                    if preferred and refused:
                        row = {"prompt_ids": prompt, "chosen_ids": preferred, "rejected_ids": refused}
                        rows[tuple(map(tuple, row.values()))] = row
                talk.skip(chosen)
                if not talk.hear(transition.result):
                    break
    if not rows:
        succeeded = sum(trajectory.success for trajectory in valid)
        raise InvalidInput(
            f"no preference in the {len(valid)} recorded episodes of {spec.name!r}, of which {succeeded} succeeded: "
            "a preference needs two actions in the same state of the same world, one from a success and one that was "
            "refused or is from a failure; record successes and failures of the same tasks"
        )
    return list(rows.values())


def _has_open_end(trajectory: Trajectory) -> bool:
    return any(step.provenance.open_end for step in trajectory.transitions)


def _place(trajectory: Trajectory, step: int) -> Place:
    return trajectory.world_id, trajectory.task.instruction, trajectory.transitions[step].state
