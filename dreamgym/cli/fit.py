"""`dreamgym fit`: fine-tune an experience model on what was recorded of one environment."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Dsn, EnvName, Seed
from dreamgym.dream.model import Part
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.errors import InvalidInput
from dreamgym.runs.console import say
from dreamgym.runs.fidelity import recorded_of
from dreamgym.runs.opening import open_store
from dreamgym.types import Trajectory

TRAINED_PARTS = (Part.HISTORY, Part.RETRIEVAL, Part.REASONING, Part.STATE)
"""What a row can lack; the other parts are none of the model's."""


def fit(
    env: EnvName,
    base: Annotated[
        str, typer.Option(help="Model to start from: `tiny` (made here), `local`, FILE.gguf, or a folder.")
    ],
    out: Annotated[Path, typer.Option(help="The fitted model, as --model takes it; must not exist yet.")],
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank adapters and merge them at the end.")] = False,
    k: Annotated[int, typer.Option("-k", min=0, help="Recorded transitions that each row shows.")] = 3,
    without: Annotated[
        list[Part] | None,
        typer.Option(help="Leave out of every row: history, retrieval, reasoning, state. Repeatable."),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Updates at most. Default: 1500 for tiny, else 600.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Rows of an update, over all processes.")] = 16,
    micro_batch: Annotated[int, typer.Option(min=1, help="Rows that a process computes at once.")] = 8,
    learning_rate: Annotated[
        float | None, typer.Option(help="Default: 3e-3 for tiny, 2e-4 with --lora, else 2e-5.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=16, help="Longer rows are left out, and counted.")] = 2048,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that is not learned.")
    ] = 0.1,
    patience: Annotated[
        int, typer.Option(min=1, help="Ends when the held-out loss has not fallen for so many of 20 measurements.")
    ] = 4,
    card_steps: Annotated[int, typer.Option(min=0, help="Held-out steps that are predicted for the model card.")] = 200,
    trajectories: Annotated[
        Path | None, typer.Option(help="JSONL to learn from. Default: that of the folder ENV, else the replay buffer.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue an interrupted fit from its newest checkpoint.")] = False,
    dsn: Dsn = None,
    seed: Seed = 0,
) -> None:
    """Fit an experience model to recorded transitions. Ctrl-C saves; --resume goes on with the same updates.

    On several GPUs: accelerate launch --no_python dreamgym fit …

    Example: dreamgym fit coin --base tiny --out runs/coin-model
    """
    if unknown := [part.value for part in without or [] if part not in TRAINED_PARTS]:
        raise InvalidInput(
            f"--without {unknown[0]}: rows can lack {', '.join(TRAINED_PARTS)}; the rest is none of the model's"
        )
    from dreamgym_integrations.trainers.experience import is_first_process, losses, train
    from dreamgym_integrations.trainers.experience_data import FitSettings, prepare
    from dreamgym_integrations.trainers.experience_result import finish

    tell = say if is_first_process() else _silent
    spec = load_spec(env)
    recorded = _recorded(spec, env, trajectories, dsn)
    settings = FitSettings(
        base=base,
        demonstrations=k,
        without=tuple(part for part in TRAINED_PARTS if part in (without or [])),
        lora=lora,
        steps=steps or (1500 if base == "tiny" else 600),
        batch=batch,
        micro_batch=micro_batch,
        learning_rate=learning_rate or _learning_rate(base, lora=lora),
        max_tokens=max_tokens,
        held_out=held_out,
        patience=patience,
        seed=seed,
    )
    encoder = load_encoder()
    prepared = prepare(spec, recorded, out, settings, encoder, resume=resume, say=tell)
    tell(
        f"{prepared.rows} rows of {len(prepared.known)} trajectories to learn, {prepared.held_out_rows} held out, "
        f"{prepared.too_long} left out as too long; {prepared.tokens} tokens, prepared in {prepared.seconds:.0f} s"
    )
    train(out, prepared, say=tell)
    if is_first_process():
        finish(spec, recorded, out, prepared, losses(out), encoder, steps=card_steps, say=tell)
        tell(f"fitted model in {out}: dreamgym-serve --env {env} --model {out}")


def _silent(text: str) -> None:
    """Only the first of several processes talks."""


def _learning_rate(base: str, *, lora: bool) -> float:
    return 3e-3 if base == "tiny" else 2e-4 if lora else 2e-5


def _recorded(spec: EnvironmentSpec, env: str, file: Path | None, dsn: str | None) -> Sequence[Trajectory]:
    """Recorded trajectories, none of them dreamed. Raises InvalidInput where there are none."""
    if file is not None or (Path(env) / "trajectories.jsonl").is_file():
        return recorded_of(spec, env, file)
    if found := asyncio.run(_stored(spec, dsn)):
        return found
    raise InvalidInput(
        f"nothing is recorded of {spec.name!r}: run `dreamgym collect` or `dreamgym seed` first, or name a file with "
        "--trajectories"
    )


async def _stored(spec: EnvironmentSpec, dsn: str | None) -> Sequence[Trajectory]:
    async with open_store(dsn) as store:
        return await store.buffer.trajectories(spec.name)
