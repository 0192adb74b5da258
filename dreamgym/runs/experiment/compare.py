"""Trains and measures every arm with every seed, and writes the table."""

from __future__ import annotations

import asyncio
import hashlib
import shlex
import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.util import find_spec
from pathlib import Path

from pydantic import TypeAdapter

from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.errors import InvalidInput, MissingPackage
from dreamgym.files import make_folder, write_whole
from dreamgym.runs.console import say
from dreamgym.runs.experiment.apart import check_apart
from dreamgym.runs.experiment.plan import Plan, name_of, read_plan
from dreamgym.runs.experiment.prepared import Prepared, prepared_seeds
from dreamgym.runs.experiment.process import begin, interrupt
from dreamgym.runs.experiment.running import BEGUN, RESULT, TRAINED, Make, Result, kept, queued
from dreamgym.runs.experiment.spread import spread
from dreamgym.runs.experiment.table import Published, plot, report
from dreamgym.runs.kept import read_kept
from dreamgym.runs.opening import may_be_learned, require_at_least, tasks_of, unrecorded
from dreamgym.runs.train.config import RECORDED
from dreamgym.types import Frozen, Task

ENVIRONMENT = "environment.json"
"""File in a run folder that identifies the environment of its results."""


class KeptEnvironment(Frozen):
    """What identifies the environment of a run folder's results."""

    environment: str
    description: str
    """Digest of its description, tools and tasks."""


def run_folder(file: Path, out: Path | None) -> Path:
    """The run folder of an experiment: `out`, else `runs/` and the file's name."""
    return (out or Path("runs") / file.stem).resolve()


def compare(
    file: Path,
    out: Path | None = None,
    *,
    seeds: int | None = None,
    parallel: int = 1,
    command: str | None = None,
    cluster: str | None = None,
) -> str:
    """Train and measure every arm of an experiment file with every seed. Finished work is kept and not repeated.

    Args:
        file: the experiment, a TOML file.
        out: run folder; None: `runs/` and the file's name. It gets the report as Markdown, JSON and a picture.
        seeds: number of seeds to use, from the first of the file on; None: all.
        parallel: number of arms at once, each in a process of its own; a cluster makes one in each of its workers.
        command: command that the report shows as its origin; None: `dreamgym experiment` and the file as given.
        cluster: address of the Ray cluster that trains and measures; None: this machine.

    Returns:
        The report as Markdown.

    Raises:
        InvalidInput: the file is invalid, `parallel` is given with a cluster, `seeds` or `parallel` is less than 1, or
            the folder contains arms that were made with other settings or in another environment.
        EnvironmentUnavailable: an arm ended early, or real episodes failed. The same call continues the experiment.
    """
    require_at_least(1, seeds=seeds, parallel=parallel)
    if cluster is not None and parallel != 1:
        raise InvalidInput("a cluster trains one arm on each of its CPUs: leave out --parallel or --cluster")
    command = command or shlex.join(["dreamgym", "experiment", str(file)])
    plan = read_plan(file)
    if seeds is not None:
        plan = plan.model_copy(update={"seeds": plan.seeds[:seeds]})
    load_spec(plan.env)  # a folder is made only for an environment that is there
    folder = run_folder(file, out)
    make_folder(folder)
    agree(plan, folder)
    if find_spec("matplotlib") is None:
        say(str(MissingPackage("the picture of the results", "report")))
    with ExitStack() as opened:
        given = opened.enter_context(prepared_seeds(plan, folder))
        check_seeds(plan, given, folder)
        if not (folder / file.name).exists() or not file.samefile(folder / file.name):
            shutil.copyfile(file, folder / file.name)
        make: Make | None = None
        if cluster is not None:
            make, parallel = opened.enter_context(spread(cluster, plan, folder))
        begin()
        pool = ThreadPoolExecutor(parallel)
        results: dict[str, list[Result]] = defaultdict(list)
        text = ""
        try:
            for futures in queued(pool, plan.arm, given, make):
                for future in futures:
                    done = future.result()
                    results[done.arm].append(done)
                done_so_far = tuple(one for some in results.values() for one in some)
                published = Published(file=file.stem, command=command, plan=plan, results=done_so_far)
                text = report(published)
                (folder / f"{file.stem}.json").write_text(published.model_dump_json(indent=1) + "\n", encoding="utf-8")
                (folder / f"{file.stem}.md").write_text(text, encoding="utf-8")
                with suppress(MissingPackage):  # it was said at the start
                    plot(published, folder / f"{file.stem}.png")
        except KeyboardInterrupt:
            running = "stop after their update" if cluster is None else "begin again"
            say(f"no more arms start, and running ones {running}; the same command continues from there")
            interrupt()
            raise
        except BaseException:
            say("no more arms start; running ones finish, and all results are kept")
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        return text


def check_seeds(plan: Plan, given: Sequence[Prepared], folder: Path) -> None:
    """Raises InvalidInput if a world of the test or a held-out task occurs in training, or if results do not compare.

    The folder's results do not compare with new ones if they were made in another environment, with other settings or
    recordings, or after an arm that is not there any more.
    """
    spec, real = given[0].spec, given[0].real
    check_held_out(plan, spec)
    trained = [task for split in ("train", "dev") for task in tasks_of(spec, split, real)]
    tested = plan.tested(tasks_of(spec, plan.test.split, real))
    plays = asyncio.run(check_apart(real, trained, tested))
    say(f"no world of the test occurs in training: {plays} plays told apart those that begin alike")
    check_environment(folder, spec, [*trained, *tested])
    for prepared in given:
        prepared.check_files()
        for arm in (one for named in plan.arm for one in named.trained()):
            kept(prepared, arm)
    check_bases(plan, [prepared.folder for prepared in given])


def check_bases(plan: Plan, folders: Sequence[Path]) -> None:
    """Raises InvalidInput if arms in the seeds' folders began with the policy of an arm that is not there any more.

    That arm would be trained again, perhaps with other settings, and those after it would not compare with it.
    """
    stale: list[Path] = []
    for folder in folders:
        gone: set[str] = set()
        for arm in plan.arm:
            made = [folder / name_of(one) for one in arm.trained()]
            if arm.after in gone:
                stale += [one for one in made if (one / RESULT).exists() or (one / BEGUN).exists()]
            if arm.after in gone or not any((one / file).exists() for one in made for file in (RESULT, TRAINED)):
                gone.add(arm.name)
    if stale:
        raise InvalidInput(
            "the arms in these folders began with the policy of an arm that is not there any more and would be trained "
            f"again: remove them too, so that they begin with the new one: {', '.join(map(str, stale))}"
        )


def check_held_out(plan: Plan, spec: EnvironmentSpec) -> None:
    """Raises InvalidInput if the dream of an arm would practise held-out tasks that nobody recorded."""
    arms = [arm.name for arm in plan.arm if arm.train is not None and arm.train.get("algorithm") not in RECORDED]
    if not plan.held_out or not arms:
        return
    if held_out := [task.id for task in unrecorded(spec) if may_be_learned(task) and not plan.recordable([task])]:
        raise InvalidInput(
            f"held_out: dreams of {spec.name!r} would practise {len(held_out)} held-out tasks that nobody recorded, "
            f"for example {held_out[0]!r}: give them another metadata.split than train, or leave out the arms "
            f"{', '.join(arms)}"
        )


def agree(plan: Plan, folder: Path) -> None:
    """Raises InvalidInput if the folder's arms were made from other recordings, or tested on something else."""
    for there in sorted(folder.glob("*.toml")):
        if changed := read_plan(there).difference(plan):
            raise InvalidInput(
                f"{folder} holds an experiment that differs in {changed} (see {there.name}): give another folder with "
                "--out"
            )


def check_environment(folder: Path, spec: EnvironmentSpec, tasks: Iterable[Task]) -> None:
    """Keep what identifies the environment in the run folder. Raises InvalidInput if another one is kept there.

    Only its description, tools and tasks identify it. Its code may change unseen. A folder of an earlier version keeps
    nothing, so its results count as made in this environment.
    """
    # a version that adds a field with a default leaves the digest as it is
    told = "\n".join(one.model_dump_json(exclude_defaults=True) for one in (spec, *tasks))
    digest = hashlib.sha256(told.encode()).hexdigest()
    file = folder / ENVIRONMENT
    mend = "remove the file if the environment is still the same, or give another folder with --out"
    expected = "the environment of the results in this folder"
    if file.exists() and read_kept(file, TypeAdapter(KeptEnvironment), expected, mend).description != digest:
        raise InvalidInput(
            f"{folder}: the description, tools or tasks of {spec.name!r} have changed since its results were made, so "
            "that new ones do not compare: give another folder with --out"
        )
    write_whole(file, KeptEnvironment(environment=spec.name, description=digest).model_dump_json() + "\n")
