"""`dreamgym fit`: fine-tune an experience model on the recordings of one environment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import EnvName, Seed


def fit(
    env: EnvName,
    base: Annotated[
        str,
        typer.Option(
            metavar="SETTING",
            help="Model to start from: tiny (made here), local, FILE.gguf, or a folder. Each row shows 3 recorded "
            "transitions; 'tiny without history -k 5' shows 5 and leaves out the history.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The fitted model, as --model takes it; must not exist yet.")],
    lora: Annotated[bool, typer.Option("--lora", help="Train low-rank adapters and merge them at the end.")] = False,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Number of updates at most. Default: 1500 for tiny, else 600.")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Learning rate. Default: 3e-3 for tiny, 2e-4 with --lora, else 2e-5.")
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(min=16, help="Tokens of a row at most; longer rows are left out and counted.")
    ] = 2048,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that is kept out of training.")
    ] = 0.1,
    card_steps: Annotated[
        int, typer.Option(min=0, help="Number of held-out steps that are predicted for the model card.")
    ] = 200,
    trajectories: Annotated[
        Path | None,
        typer.Option(help="JSONL to learn from. Default: the file of the folder ENV, else the replay buffer."),
    ] = None,
    resume: Annotated[bool, typer.Option(help="Continue an interrupted fit from its newest checkpoint.")] = False,
    seed: Seed = 0,
) -> None:
    """Fit an experience model to recorded transitions. Ctrl-C saves; --resume continues with the same updates.

    On several GPUs: accelerate launch --no_python dreamgym fit …

    Example: dreamgym fit coin --base tiny --out runs/coin-model
    """
    from dreamgym.evaluation.setting import setting
    from dreamgym.runs.fit import SHOWN
    from dreamgym.runs.fit import fit as run

    chosen = setting(base)
    run(
        env,
        chosen.model,
        out,
        lora=lora,
        k=SHOWN if chosen.k is None else chosen.k,
        without=chosen.without,
        steps=steps,
        learning_rate=learning_rate,
        max_tokens=max_tokens,
        held_out=held_out,
        card_steps=card_steps,
        trajectories=trajectories,
        resume=resume,
        seed=seed,
    )
