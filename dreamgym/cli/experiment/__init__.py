"""`dreamgym experiment`: arms times seeds from one file, to one table."""

from __future__ import annotations

import shutil
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.experiment.plan import Plan, read_plan
from dreamgym.cli.wiring import say


def experiment(
    file: Annotated[Path, typer.Argument(help="The experiment: a TOML file, as those in examples/experiments.")],
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/ and the file's name.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds of the file.")] = None,
) -> None:
    """Train and measure every arm with every seed, and print the table. What is done is kept; Ctrl-C and go on later.

    Example: dreamgym experiment examples/experiments/coin.toml
    """
    plan = read_plan(file)
    if seeds is not None:
        plan = plan.model_copy(update={"seeds": plan.seeds[:seeds]})
    folder = (out or Path("runs") / file.stem).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, folder / "experiment.toml")
    typer.echo(run(plan, folder))


def run(plan: Plan, folder: Path) -> str:
    """Go through all seeds and arms; returns the report, which is written after every seed too."""
    from dreamgym.cli.experiment.prepared import Prepared
    from dreamgym.cli.experiment.running import Result, disjoint, result
    from dreamgym.cli.experiment.table import plot, report
    from dreamgym.environment import load_spec, real_of
    from dreamgym.replay.embedded import EmbeddedServer, default_folder

    spec = load_spec(plan.env)
    base = default_folder()
    server = EmbeddedServer.start(base.with_name(f"{base.name}-{folder.name}"))
    results: dict[str, list[Result]] = defaultdict(list)
    text = ""
    try:
        for seed in plan.seeds:
            prepared = Prepared(plan, seed, folder / f"seed-{seed}", server.dsn, spec, real_of(spec))
            say(f"seed {seed}: {disjoint(prepared)}")
            for arm in plan.arm:
                results[arm.name].append(result(prepared, arm))
            text = report(plan, results)
            (folder / "report.md").write_text(text, encoding="utf-8")
            plot(plan, results, folder / "report.png")
    finally:
        server.release()
    return text
