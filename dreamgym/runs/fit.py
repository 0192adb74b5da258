"""Fits an experience model to the recordings of one environment."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import ValidationError

from dreamgym.dream.model import Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, first_reason
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.measurement import silent
from dreamgym.runs.console import say
from dreamgym.runs.fidelity import recorded_of
from dreamgym.runs.opening import stored_trajectories
from dreamgym.runs.seed import load_updated
from dreamgym.training.practice import SEEDS
from dreamgym.types import Trajectory

SHOWN = 3
"""Default number of recorded transitions that each training row shows."""
TRAINED_PARTS = (Part.HISTORY, Part.RETRIEVAL, Part.REASONING, Part.STATE)
"""Parts of the method that a training row can leave out. The other parts do not belong to the model."""


def fit(
    env: str,
    base: str,
    out: Path,
    *,
    lora: bool = False,
    k: int = SHOWN,
    without: Collection[Part] = (),
    steps: int | None = None,
    batch: int = 16,
    learning_rate: float | None = None,
    max_tokens: int = 2048,
    held_out: float = 0.1,
    card_steps: int = 200,
    trajectories: Path | None = None,
    resume: bool = False,
    dsn: str | None = None,
    seed: int = 0,
) -> Path:
    """Fit an experience model to recorded transitions. Ctrl-C saves; `resume` continues with the same updates.

    Args:
        env: the environment's name, or its folder.
        base: the model to start from: `tiny`, `local`, a .gguf file, or a checkpoint folder.
        out: folder of the fitted model; must not exist yet.
        lora: train low-rank adapters and merge them at the end.
        k: number of recorded transitions that each row shows.
        without: parts among TRAINED_PARTS that every row leaves out.
        steps: maximum number of updates; None: 1500 for tiny, else 600. The fit ends earlier if the held-out loss no
            longer falls.
        batch: number of rows per update, over all processes.
        learning_rate: None: 3e-3 for tiny, 2e-4 with `lora`, else 2e-5.
        max_tokens: longer rows are left out, and counted.
        held_out: share of the trajectories that is not trained on.
        card_steps: number of held-out steps that are predicted for the model card.
        trajectories: JSONL file to learn from; None: the file of the folder, else the replay buffer.
        resume: continue an interrupted fit from its newest checkpoint.
        dsn: DSN of the store; None: the embedded server.
        seed: fixes every random draw.

    Returns:
        The folder of the fitted model.

    Raises:
        InvalidInput: nothing is recorded, or a setting cannot be used.
    """
    if unknown := [part.value for part in without if part not in TRAINED_PARTS]:
        raise InvalidInput(
            f"without {unknown[0]}: rows can leave out {', '.join(TRAINED_PARTS)}; the other parts do not "
            "belong to the model"
        )
    if not 0 <= seed < SEEDS:
        raise InvalidInput(f"seed: expected a number from 0 to {SEEDS - 1}, got {seed}")
    from dreamgym_integrations.trainers.experience.data import FitSettings, prepare
    from dreamgym_integrations.trainers.experience.result import finish
    from dreamgym_integrations.trainers.experience.train import is_first_process, losses, train

    tell = say if is_first_process() else silent  # only the first of several processes talks
    spec = load_updated(env)
    recorded = _recorded(spec, env, trajectories, dsn)
    if steps is None:
        steps = 1500 if base == "tiny" else 600
    if learning_rate is None:
        learning_rate = 3e-3 if base == "tiny" else 2e-4 if lora else 2e-5
    try:
        settings = FitSettings(
            base=base,
            demonstrations=k,
            without=tuple(part for part in TRAINED_PARTS if part in without),
            lora=lora,
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            max_tokens=max_tokens,
            held_out=held_out,
            seed=seed,
        )
    except ValidationError as error:
        raise InvalidInput(f"a fit cannot have these settings: {first_reason(error)}") from error
    encoder = load_encoder()
    prepared = prepare(spec, recorded, out, settings, encoder, resume=resume, say=tell)
    tell(
        f"{prepared.rows} rows of {len(prepared.known)} trajectories to learn, {prepared.held_out_rows} held out, "
        f"{prepared.too_long} left out as too long; {prepared.tokens} tokens, prepared in {prepared.seconds:.0f} s"
    )
    train(out, prepared, say=tell)
    if is_first_process():
        finish(spec, recorded, out, prepared, losses(out), encoder, steps=card_steps, say=tell)
        tell(f"fitted model in {out}; serve it with: dreamgym serve {env} --model {out}")
    return out


def _recorded(spec: EnvironmentSpec, env: str, file: Path | None, dsn: str | None) -> Sequence[Trajectory]:
    """Recorded trajectories without dreamed ones. Raises InvalidInput if there are none."""
    if file is not None or (Path(env) / "trajectories.jsonl").is_file():
        return recorded_of(spec, env, file)
    if found := asyncio.run(stored_trajectories(spec, dsn)):
        return found
    raise InvalidInput(
        f"{spec.name!r} has no recordings: run `dreamgym collect` or `dreamgym seed` first, or give a file with "
        "--trajectories"
    )
