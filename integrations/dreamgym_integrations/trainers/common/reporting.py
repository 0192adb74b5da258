"""Metrics for other programs: the lines of metrics.jsonl also go to TensorBoard or Weights & Biases."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from dreamgym.errors import MissingPackage
from dreamgym.training.record import read_record
from dreamgym.types import JsonObject

Report = Callable[[JsonObject], None]


@contextmanager
def reporting(kinds: Sequence[str], out: Path, config: JsonObject) -> Iterator[Report]:
    """Yield a function that reports one line of the record. Raises MissingPackage if a package is not installed."""
    with ExitStack() as stack:
        opened = {"tensorboard": _tensorboard, "wandb": _wandb}
        reports = [stack.enter_context(opened[kind](out, config)) for kind in kinds]

        def report(line: JsonObject) -> None:
            for one in reports:
                one(line)

        yield report


@contextmanager
def _tensorboard(out: Path, config: JsonObject) -> Iterator[Report]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingPackage("log = tensorboard", "tensorboard") from error
    with ExitStack() as stack:
        writer: SummaryWriter | None = None

        def report(line: JsonObject) -> None:
            nonlocal writer
            lines = [line]
            if writer is None:  # a resumed run plays updates again: what an earlier writer had of them is replaced
                lines = read_record(out / "metrics.jsonl")
                shutil.rmtree(out / "tensorboard", ignore_errors=True)
                writer = stack.enter_context(SummaryWriter(str(out / "tensorboard")))
            for one in lines:
                for name, value in numbers(one).items():
                    writer.add_scalar(name, value, int(str(one["step"])))

        yield report


@contextmanager
def _wandb(out: Path, config: JsonObject) -> Iterator[Report]:
    try:
        import wandb
    except ImportError as error:
        raise MissingPackage("log = wandb", "wandb") from error
    with wandb.init(project="dreamgym", name=out.name, dir=str(out), config=config) as run:
        # with staleness a later update is played before an earlier one has learned, and wandb's own steps never go back
        run.define_metric("update")
        run.define_metric("*", step_metric="update")
        yield lambda line: run.log({**numbers(line), "update": int(str(line["step"]))})


def numbers(line: JsonObject) -> dict[str, float]:
    """The numbers of a line of the record, which can be drawn as curves.

    Each tier's number of steps is `tiers/NAME`. `values` is the mean value of the groups that have one.
    """
    tiers, values = line.get("tiers"), line.get("values")
    flat = {**line, **({f"tiers/{name}": steps for name, steps in tiers.items()} if isinstance(tiers, dict) else {})}
    known = [float(str(value)) for value in values if value is not None] if isinstance(values, list) else []
    if known:
        flat["values"] = sum(known) / len(known)
    return {
        name: float(value)
        for name, value in flat.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
