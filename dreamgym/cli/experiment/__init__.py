"""`dreamgym experiment`: arms times seeds from one file, to one table."""

from __future__ import annotations

import shutil
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.experiment.plan import Plan, read_plan
from dreamgym.cli.wiring import say


def experiment(
    file: Annotated[Path, typer.Argument(help="The experiment: a TOML file, as those in examples/experiments.")],
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/ and the file's name.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds of the file.")] = None,
    parallel: Annotated[
        int, typer.Option(min=1, help="So many arms at once; each trains in a process of its own.")
    ] = 1,
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
    typer.echo(run(plan, folder, parallel))


def run(plan: Plan, folder: Path, parallel: int = 1) -> str:
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
            prepared.warm()
            with ThreadPoolExecutor(parallel) as pool:
                for one in pool.map(partial(result, prepared), plan.arm):
                    results[one.arm].append(one)
            text = report(plan, results)
            (folder / "report.md").write_text(text, encoding="utf-8")
            plot(plan, results, folder / "report.png")
    finally:
        server.release()
    return text
