"""`dreamgym check`: replay recorded calls, and print where the dream or the real system answers otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import EnvName, ModelName, Seed
from dreamgym.environment import EnvironmentSpec, load_spec, read_jsonl, real_of
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.calls import (
    Agreement,
    Compared,
    Redact,
    against_dream,
    against_real,
    agreement,
    by_tool,
)
from dreamgym.evaluation.rates import Rate
from dreamgym.recordings.splits import split
from dreamgym.runs.console import say
from dreamgym.runs.opening import Against
from dreamgym.types import Frozen, Source, StepResult, Trajectory

SPEAK_EVERY_S = 5.0
LINE = 110
LEFT_TO_FIDELITY = {"calls": {"__all__": {"before", "after", "accomplished", "predicted", "features", "claimed"}}}
COLUMNS = ("answered", "schema", "errors", "exact", "similarity")


class Report(Frozen):
    """What `--json` prints."""

    env: str
    against: str
    model: str | None
    k: int | None
    seed: int
    known: tuple[str, ...]
    """Ids of the trajectories that the dream was given."""
    held_out: tuple[str, ...]
    complete: bool
    """False where it was interrupted."""
    total: Agreement
    tools: dict[str, Agreement]
    calls: tuple[Compared, ...]


def check(
    env: EnvName,
    against: Annotated[Against, typer.Option(help="Predict the calls, or play them on the real system again.")],
    model: ModelName = None,
    k: Annotated[
        int | None, typer.Option("-k", min=0, help="Show the model so many recorded transitions; 0: none at all.")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that is compared and not known.")
    ] = 0.3,
    trajectories: Annotated[
        Path | None, typer.Option(help="JSONL of recorded trajectories; default: those of the folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Compare answers with recorded ones, per tool. No database is read or written.

    `exact`: error flag, structured content and text are the recorded ones, JSON compared as JSON.
    `similarity`: F1 over words. In brackets 95 % intervals.

    Example: dreamgym check crm/ --against dream --model local -k 5
    """
    if against is Against.REAL and (model is not None or k is not None):
        raise InvalidInput("--model and -k are for --against dream: the real system needs neither")
    spec = load_spec(env)
    known, compared = split(recorded_of(spec, env, trajectories), held_out, seed)
    calls: list[Compared] = []
    interrupted = False
    if against is Against.REAL:
        running = against_real(spec, real_of(spec).create, compared, redact=_redaction(spec))
        name, shown = None, None
    else:
        running, name, shown = _dream(spec, model, k, known, compared, seed)
    try:
        asyncio.run(_collect(running, calls, sum(len(one.transitions) for one in compared)))
    except KeyboardInterrupt:
        interrupted = True
    report = Report(
        env=spec.name,
        against=against.value,
        model=name,
        k=shown,
        seed=seed,
        known=tuple(one.id for one in known),
        held_out=tuple(one.id for one in compared),
        complete=not interrupted,
        total=agreement(calls),
        tools=by_tool(calls),
        calls=tuple(calls),
    )
    typer.echo(report.model_dump_json(indent=2, exclude=LEFT_TO_FIDELITY) if json else render(report))
    if interrupted:
        raise typer.Exit(130)


def _redaction(spec: EnvironmentSpec) -> Redact | None:
    """What takes out of real answers what was taken out of the recordings."""
    if spec.redact is None:
        return None
    from dreamgym.redaction import Redactor, load_key

    return Redactor(spec.redact, key=load_key()).value


def recorded_of(spec: EnvironmentSpec, env: str, file: Path | None) -> list[Trajectory]:
    """The recorded trajectories of a file, or of the folder. Raises InvalidInput where there are none, or others'."""
    file = file or Path(env) / "trajectories.jsonl"
    if not file.is_file():
        raise InvalidInput(f"{file}: there is no such file: name the recorded trajectories with --trajectories")
    recorded = [trajectory for trajectory in read_jsonl(file, Trajectory) if trajectory.source is not Source.SYNTHETIC]
    for trajectory in recorded:
        if trajectory.task.env != spec.name:
            raise InvalidInput(
                f"{file}: {trajectory.id!r} is of environment {trajectory.task.env!r}, not {spec.name!r}"
            )
    return recorded


def _dream(
    spec: EnvironmentSpec,
    name: str | None,
    k: int | None,
    known: Sequence[Trajectory],
    compared: Sequence[Trajectory],
    seed: int,
) -> tuple[AsyncGenerator[Compared, None], str, int]:
    """The running comparison, the model's name, and how many transitions it is shown."""
    from dreamgym.dream.select import load_model
    from dreamgym.embedding import load_encoder
    from dreamgym.replay.memory import MemoryBuffer

    model = load_model(name, env=spec.name)
    buffer = MemoryBuffer(load_encoder())

    async def running() -> AsyncGenerator[Compared, None]:
        await buffer.add(() if k == 0 else known)
        try:
            async with aclosing(against_dream(spec, model, buffer, compared, k=k, seed=seed)) as predicted:
                async for call in predicted:
                    yield call
        finally:
            await model.close()

    return running(), model.name, model.demonstrations if k is None else k


async def _collect(running: AsyncGenerator[Compared, None], calls: list[Compared], total: int) -> None:
    """Fill `calls`, so that what was compared is there when the rest is interrupted."""
    spoken = time.monotonic()
    async with aclosing(running) as compared:
        async for call in compared:
            calls.append(call)
            if time.monotonic() - spoken > SPEAK_EVERY_S:
                spoken = time.monotonic()
                say(f"{len(calls)} of {total} calls")


def render(report: Report) -> str:
    """The table, and each difference in three lines."""
    against = f"dream of {report.model}, {report.k} transitions shown" if report.model else "the real system"
    lines = [
        f"{report.env} against {against}: {len(report.held_out)} trajectories held out, {len(report.known)} known"
        + ("" if report.complete else "; interrupted, this is what there is"),
        "",
        *_table(report),
    ]
    differing = [call for call in report.calls if not call.exact]
    if differing:
        lines += ["", f"{len(differing)} of {len(report.calls)} answers differ:"]
    for call in differing:
        lines += [
            _line(f"  {call.trajectory} step {call.step}: {call.action.canonical()}"),
            _line(f"      recorded  {_answer(call.recorded)}"),
            _line(f"      got       {_answer(call.got) if call.got else 'no answer: ' + str(call.failure)}"),
        ]
        if call.invalid:
            lines.append(_line(f"      invalid   {call.invalid}"))
    return "\n".join(lines)


def _table(report: Report) -> list[str]:
    rows: list[tuple[str, ...]] = [("tool", "calls", *COLUMNS)]
    for name, one in [*report.tools.items(), ("all", report.total)]:
        rates = (one.answered, one.valid, one.errors, one.exact, one.similarity)
        rows.append((name, str(one.calls), *map(_rate, rates)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rate(rate: Rate) -> str:
    return f"{100 * rate.mean:.0f} % [{100 * rate.low:.0f}, {100 * rate.high:.0f}]" if rate.n else "-"


def _answer(result: StepResult) -> str:
    return ("error: " if result.is_error else "") + result.observation


def _line(text: str) -> str:
    text = text.replace("\n", " ⏎ ")
    return text if len(text) <= LINE else f"{text[: LINE - 1]}…"
