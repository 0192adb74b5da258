"""Measure a simulation of the shop where state changes: by changed fields, over long sessions, by known recordings.

    python benchmarks/studies/shop/cliff.py --setting nearest --setting "nearest without state"
    python benchmarks/studies/shop/cliff.py --setting local --setting "local without state" --limit 100 --without-curve
    python benchmarks/studies/shop/cliff.py --fit "--base tiny"

`dreamgym.evaluation` measures steps and sessions; `dreamgym fit` fits models on the known recordings alone. Results are
kept in `runs/shop`, and a second start continues from there.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import record
from plans import ENV

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.load import load_model
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, read_jsonl, real_of
from dreamgym.evaluation.consistency import Consistency, consistency
from dreamgym.evaluation.episodes import repeating
from dreamgym.evaluation.material import Material, material
from dreamgym.evaluation.measurement import Measurement
from dreamgym.evaluation.players import ScriptedPlayer, tasks_of
from dreamgym.evaluation.rates import Rate, wilson
from dreamgym.evaluation.setting import WITHOUT, Setting, setting
from dreamgym.evaluation.steps import BUCKETS, StepFidelity
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import Trajectory

DREAMGYM = str(Path(sys.executable).with_name("dreamgym"))
HELD_OUT = 0.2
RECORDED_SEED = 2
SPEAK_EVERY_S = 30
ALONE = "retrieval,recorded"
"""Parts that a fitted model does without if it is to know by its weights alone."""


class Plan(NamedTuple):
    """Options of the measurement, with the folders of recordings and results."""

    folder: Path
    out: Path
    seeds: tuple[int, ...]
    limit: int | None
    sessions: int
    encoder: str


class Cell(NamedTuple):
    """One setting with one seed and `known` transitions (None: all that are not held out)."""

    setting: Setting
    seed: int
    known: int | None = None

    def file(self, plan: Plan, kind: str) -> Path:
        """The file in which its result of this kind is kept."""
        name = "".join(letter if letter.isalnum() or letter in ".-" else "-" for letter in str(self.setting))[-100:]
        known = "all" if self.known is None else self.known
        size = plan.sessions if kind == "sessions" else plan.limit or "all"
        return plan.out / f"{kind}-{name}-known-{known}-of-{size}-{plan.encoder}-seed-{self.seed}.json"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


class Spoken:
    """Prints progress at most every half minute."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        """Print the text, if half a minute has passed."""
        if time.monotonic() - self._last > SPEAK_EVERY_S:
            self._last = time.monotonic()
            say(text)


def steps(plan: Plan, cell: Cell) -> StepFidelity:
    """Measure single steps for one cell, unless the result is kept."""
    file = cell.file(plan, "steps")
    if not file.exists():
        say(f"steps: {cell.setting}, {'all' if cell.known is None else cell.known} known, seed {cell.seed}")
        keep(file, asyncio.run(_steps(plan, cell)).model_dump_json(indent=2))
    return StepFidelity.model_validate_json(file.read_text(encoding="utf-8"))


async def _steps(plan: Plan, cell: Cell) -> StepFidelity:
    model, encoder = load_model(cell.setting.model, env=ENV), load_encoder(plan.encoder)
    try:
        running = Measurement(
            drawn(plan, cell),
            cell.setting,
            model,
            encoder,
            out=plan.out / "predicted",
            say=say,
            progress=Spoken(),
        )
        await running.run()
        return running.report().steps
    finally:
        await model.close()


def sessions(plan: Plan, cell: Cell) -> Consistency:
    """Play held-out sessions freely in the dream and again in the real shop, unless the result is kept."""
    file = cell.file(plan, "sessions")
    if not file.exists():
        say(f"sessions: {cell.setting}, seed {cell.seed}")
        keep(file, asyncio.run(_sessions(plan, cell)).model_dump_json(indent=2))
    return Consistency.model_validate_json(file.read_text(encoding="utf-8"))


async def _sessions(plan: Plan, cell: Cell) -> Consistency:
    given = drawn(plan, cell)
    played = given.held_out[: plan.sessions]
    calls = {one.task.id: repeating([step.action for step in one.transitions]) for one in played}
    buffer = MemoryBuffer(load_encoder(plan.encoder))
    await buffer.add(given.known)
    model, without = load_model(cell.setting.model, env=ENV), frozenset(cell.setting.without)
    speak = Spoken()
    try:
        return await consistency(
            given.spec,
            ScriptedPlayer("sessions", lambda task: calls.get(task.id)),
            tasks_of(given.spec, played),
            lambda: DreamEnvironment(given.spec, model, buffer, without=without),
            real_of(given.spec).create,
            recordings=given.known,
            seed=cell.seed,
            on_progress=lambda done, total: speak(f"{done} of {total} sessions"),
        )
    finally:
        await model.close()


def drawn(plan: Plan, cell: Cell) -> Material:
    """The known and the held-out recordings, the same for every setting of a seed."""
    recorded = read_jsonl(plan.folder / "trajectories.jsonl", Trajectory)
    spec = EnvironmentSpec.load(plan.folder)
    return material(spec, recorded, held_out=HELD_OUT, known=cell.known, limit=plan.limit, seed=cell.seed)


def fitted(plan: Plan, known: int, options: str, *, alone: bool) -> str:
    """Folder of a model fitted on the known recordings of the first seed; with `alone` it is never shown any."""
    folder = plan.out / f"fitted-{'alone-' if alone else ''}{known}"
    if not folder.exists():
        say(f"fit: {known} transitions known{', none shown' if alone else ''}")
        material = plan.out / f"known-{known}.jsonl"
        chosen = drawn(plan, Cell(setting(""), plan.seeds[0], known)).known
        keep(material, "".join(f"{one.model_dump_json()}\n" for one in chosen))
        command = [DREAMGYM, "fit", str(plan.folder), "--out", str(folder), "--trajectories", str(material)]
        words = shlex.split(options)
        if alone:
            words[words.index("--base") + 1] += " without retrieval"
        command += words
        command += ["--resume"] if folder.with_name(f"{folder.name}.partial").exists() else []
        if subprocess.run(command, check=False).returncode:
            sys.exit("dreamgym fit ended with an error; see above")
    return str(folder)


def keep(file: Path, text: str) -> None:
    """Write the file as a whole or not at all."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(file)


def pooled(rates: Iterable[Rate]) -> Rate:
    """One proportion over all seeds."""
    given = list(rates)
    return wilson(sum(rate.mean * rate.n for rate in given), sum(rate.n for rate in given))


def shown(rate: Rate) -> str:
    return f"{100 * rate.mean:.0f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}] ({rate.n})" if rate.n else "-"


def by_changes(plan: Plan, settings: Sequence[Setting]) -> Iterator[str]:
    """The table of the state-change cliff."""
    yield from head("state right after the call, by fields changed", *BUCKETS, "all", "observation exact")
    for one in settings:
        found = [steps(plan, Cell(one, seed)) for seed in plan.seeds]
        states = [pooled(each.state[name].exact for each in found) for name in (*BUCKETS, "all")]
        yield row(str(one), *states, pooled(each.observation for each in found))


def over_sessions(plan: Plan, settings: Sequence[Setting]) -> Iterator[str]:
    """The table of reads after writes in sessions of 20 calls."""
    yield from head("reads in free-running sessions", "as in reality", "consistent with the dream", "calls answered")
    for one in settings:
        found = [sessions(plan, Cell(one, seed)) for seed in plan.seeds]
        steps_made = sum(each.steps for each in found)
        answered = wilson(steps_made, steps_made + sum(each.unanswered_calls for each in found))
        yield row(str(one), pooled(each.agree for each in found), pooled(each.consistent for each in found), answered)


def by_known(plan: Plan, counts: Sequence[int], retrieval: str, options: str | None) -> Iterator[str]:
    """The table of fidelity by the number of recorded transitions."""
    once = plan._replace(seeds=plan.seeds[:1])
    makers: dict[str, Callable[[int], str]] = {f"retrieval only ({retrieval})": lambda known: retrieval}
    if options is not None:
        makers["fitted only"] = lambda known: f"{fitted(plan, known, options, alone=True)}{WITHOUT}{ALONE}"
        makers["fitted, and retrieval"] = lambda known: fitted(plan, known, options, alone=False)
    yield from head("state right, by transitions known", *map(str, counts))
    for name, make in makers.items():
        cells: dict[str, list[Rate | None]] = {"state": [], "observation": []}
        for known in counts:
            if known == 0 and name.startswith("fitted"):  # nothing to fit on
                found = None
            else:
                used = once if name.startswith("fitted") else plan  # one fit, for the first seed's split
                found = [steps(used, Cell(setting(make(known)), seed, known)) for seed in used.seeds]
            cells["state"].append(pooled(each.state["all"].exact for each in found) if found else None)
            cells["observation"].append(pooled(each.observation for each in found) if found else None)
        for measure, rates in cells.items():
            yield row(f"{name}: {measure}", *rates)


def head(*cells: str) -> tuple[str, str]:
    return f"| {' | '.join(cells)} |", "|---" * len(cells) + "|"


def row(name: str, *rates: Rate | None) -> str:
    return f"| {name} | {' | '.join('-' if rate is None else shown(rate) for rate in rates)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--setting", action="append", help='as "MODEL" or "MODEL without state,checks"; repeatable')
    parser.add_argument("--out", type=Path, default=Path("runs") / "shop", help="default: runs/shop")
    parser.add_argument(
        "--recorded", type=int, default=260, help="number of recorded sessions of 20 calls; default: 260"
    )
    parser.add_argument("--seeds", default="0,1,2", help="seeds of the splits of the recordings; default: 0,1,2")
    parser.add_argument("--limit", type=int, help="held-out steps per cell; default: all")
    parser.add_argument("--sessions", type=int, default=20, help="free-running sessions per seed; default: 20")
    parser.add_argument("--encoder", default="trigram", help="default: trigram, which reads a state to its end")
    parser.add_argument("--known", default="0,250,1000,2000,4000", help="numbers of known transitions, for the curve")
    parser.add_argument("--retrieval", default="nearest", help="the model of the curve without fitting")
    parser.add_argument("--fit", metavar="OPTIONS", help='fit models for the curve, such as "--base tiny"')
    parser.add_argument("--without-curve", action="store_true", help="leave the curve out")
    given = parser.parse_args()
    folder, seeds = given.out / "recordings", tuple(map(int, given.seeds.split(",")))
    if not (folder / "trajectories.jsonl").exists():
        runs = list(record.session_runs(given.recorded, RECORDED_SEED, 1))
        record.prepare(folder, runs)
        record.play_directly(folder, runs)
    plan = Plan(folder, given.out, seeds, given.limit, given.sessions, given.encoder)
    settings = [setting(text) for text in given.setting or ("nearest", f"nearest{WITHOUT}state")]
    parts = [by_changes(plan, settings), over_sessions(plan, settings)]
    if not given.without_curve:
        parts.append(by_known(plan, tuple(map(int, given.known.split(","))), given.retrieval, given.fit))
    report = "\n\n".join("\n".join(part) for part in parts)
    note = f"Each cell: share, 95 % interval, (n), over seeds {given.seeds}; {HELD_OUT:.0%} of the sessions held out."
    keep(given.out / "report.md", f"{report}\n\n{note}\n")
    print(f"{report}\n\n{note}")


if __name__ == "__main__":
    main()
