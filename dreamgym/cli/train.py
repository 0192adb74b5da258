"""`dreamgym train`: a policy practises in the dream, in the real environment, or in one after the other."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import Budget, EnvName
from dreamgym.runs.settings import described, settings_of
from dreamgym.runs.train.config import TrainConfig

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": True}
EPILOG = described(TrainConfig)


def train(
    context: typer.Context,
    env: EnvName,
    config: Annotated[Path | None, typer.Option(help="TOML file of settings; options override it.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder.")] = Path("runs/train"),
    resume: Annotated[bool, typer.Option(help="Continue the run in --out, with its curriculum.")] = False,
    budget: Budget = None,
) -> None:
    """Train a policy. Metrics go to metrics.jsonl in the run folder, the policy to its folder `policy`.

    Example: dreamgym train coin --policy tiny --steps 100 --against dream --model nearest --out runs/coin
    """
    from dreamgym.runs.spending import spending
    from dreamgym.runs.train.run import train as run

    with spending(budget, out):
        run(env, partial(settings_of, TrainConfig, config, context.args), out, resume=resume)
