"""`dreamgym experiment`: arms times seeds from one file, to one table."""

from __future__ import annotations

import asyncio
import shutil
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.errors import InvalidInput
from dreamgym.runs.console import say
from dreamgym.runs.experiment.plan import Plan, read_plan
from dreamgym.runs.opening import tasks_of


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
    agree(plan, folder)
    if not (folder / file.name).exists() or not file.samefile(folder / file.name):
        shutil.copyfile(file, folder / file.name)
    typer.echo(run(plan, folder, file.stem, parallel))


def agree(plan: Plan, folder: Path) -> None:
    """Raises InvalidInput where the folder's arms were made from other recordings, or tested on something else."""
    for there in sorted(folder.glob("*.toml")):
        if changed := read_plan(there).difference(plan):
            raise InvalidInput(
                f"{folder} holds an experiment that differs in {changed} (see {there.name}): name another folder with "
                "--out"
            )


def run(plan: Plan, folder: Path, name: str, parallel: int = 1) -> str:
    """Go through all seeds and arms; returns the report, which is written after every seed too, under the name."""
    from dreamgym.environment import load_spec, real_of
    from dreamgym.replay.embedded import EmbeddedServer, default_folder
    from dreamgym.runs.experiment.apart import check_apart
    from dreamgym.runs.experiment.prepared import Prepared
    from dreamgym.runs.experiment.running import Result, queued
    from dreamgym.runs.experiment.table import Published, plot, report

    spec = load_spec(plan.env)
    real = real_of(spec)
    trained = [task for split in ("train", "dev") for task in tasks_of(spec, split, real)]
    plays = asyncio.run(check_apart(real, trained, tasks_of(spec, plan.test.split, real)[-plan.test.episodes :]))
    say(f"no world of the test occurs in training: {plays} plays told apart those that begin alike")
    base = default_folder()
    server = EmbeddedServer.start(base.with_name(f"{base.name}-{folder.name}"))
    pool = ThreadPoolExecutor(parallel)
    results: dict[str, list[Result]] = defaultdict(list)
    text = ""
    try:
        seeds = [Prepared(plan, seed, folder / f"seed-{seed}", server.dsn, spec, real) for seed in plan.seeds]
        for futures in queued(pool, plan.arm, seeds):
            for future in futures:
                done = future.result()
                results[done.arm].append(done)
            published = Published(file=name, plan=plan, results=tuple(one for some in results.values() for one in some))
            text = report(published)
            (folder / f"{name}.json").write_text(published.model_dump_json(indent=1) + "\n", encoding="utf-8")
            (folder / f"{name}.md").write_text(text, encoding="utf-8")
            plot(published, folder / f"{name}.png")
    except BaseException:
        say("no more arms are begun; those that run come to their end, and what is done is kept")
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        server.release()
    return text
