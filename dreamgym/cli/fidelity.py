"""`dreamgym fidelity`: how true a simulation is, step by step."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.agreement import Compared, split
from dreamgym.cli.check import SPEAK_EVERY_S, recorded_of
from dreamgym.cli.wiring import EnvName, ModelName, Seed, say
from dreamgym.environment import EnvironmentSpec, load_spec
from dreamgym.errors import InvalidInput
from dreamgym.experience.model import Part
from dreamgym.fidelity.predicting import Kept, Step, compare, contradicted, drawn, first_known, steps_of
from dreamgym.fidelity.report import Report, step_table
from dreamgym.fidelity.setting import Setting, setting
from dreamgym.fidelity.steps import step_fidelity
from dreamgym.types import Frozen, Trajectory


class Material(Frozen):
    """What all settings are measured on."""

    spec: EnvironmentSpec
    known: tuple[Trajectory, ...]
    steps: tuple[Step, ...]
    contradicted: int
    seed: int
    encoder: str | None
    parallel: int
    out: Path | None


def fidelity(
    env: EnvName,
    model: ModelName = None,
    k: Annotated[
        int | None, typer.Option("-k", min=0, help="Show the model so many recorded transitions; 0: none at all.")
    ] = None,
    without: Annotated[
        list[Part] | None, typer.Option(help="Leave a part of the method out; may be given several times.")
    ] = None,
    trajectories: Annotated[
        Path | None, typer.Option(help="JSONL of recorded trajectories; default: those of the folder.")
    ] = None,
    held_out: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that is predicted and not known.")
    ] = 0.3,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Predict only so many held-out steps, drawn by the seed.")
    ] = None,
    known: Annotated[
        int | None, typer.Option(min=0, help="Know only so many recorded transitions, drawn by the seed.")
    ] = None,
    encoder: Annotated[str | None, typer.Option(help="Encoder of the retrieval keys: minilm or trigram.")] = None,
    parallel: Annotated[int, typer.Option(min=1, help="How many steps are asked for at a time.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Keep report and predictions here; what is predicted is not asked again.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Measure a simulation against recordings that it does not know. No database is read or written.

    Example: dreamgym fidelity crm/ --model local --out runs/crm
    """
    spec = load_spec(env)
    material = _material(
        spec, recorded_of(spec, env, trajectories), held_out, limit, known, seed, encoder, parallel, out
    )
    report = _measured(material, setting(model or "", without=without or (), k=k))
    typer.echo(report.model_dump_json(indent=2) if json else "\n".join(step_table(report)))
    if not report.complete:
        raise typer.Exit(130)


def _material(
    spec: EnvironmentSpec,
    recorded: Sequence[Trajectory],
    held_out: float,
    limit: int | None,
    known: int | None,
    seed: int,
    encoder: str | None,
    parallel: int,
    out: Path | None,
) -> Material:
    """Split the recordings, and draw what is known and what is predicted."""
    known_T, held_out_T = split(recorded, held_out, seed)
    odd = contradicted(spec, recorded)
    steps = steps_of(held_out_T)
    usable = [step for step in steps if (step.trajectory.id, step.number) not in odd]
    if not usable:
        raise InvalidInput(
            f"no held-out step of {spec.name!r} can be compared: all {len(steps)} are recorded with several outcomes"
        )
    return Material(
        spec=spec,
        known=known_T if known is None else first_known(known_T, known, seed),
        steps=tuple(drawn(usable, limit, seed)),
        contradicted=len(steps) - len(usable),
        seed=seed,
        encoder=encoder,
        parallel=parallel,
        out=out,
    )


def _measured(material: Material, chosen: Setting) -> Report:
    """Predict what is not predicted yet and measure all; an interruption leaves what there is."""
    from dreamgym.embedding import load_encoder
    from dreamgym.experience.select import load_model

    spec, steps = material.spec, material.steps
    model, encoder = load_model(chosen.model or None), load_encoder(material.encoder)
    chosen = chosen.model_copy(update={"model": chosen.model or model.name})
    basis = (spec.model_dump_json(), str(chosen), model.name, str(material.seed), encoder.fingerprint)
    kept = Kept(material.out, str(chosen), (*basis, *_digests(material.known))) if material.out else None
    wanted = {(step.trajectory.id, step.number) for step in steps}
    calls = [call for call in (kept.read() if kept else []) if (call.trajectory, call.step) in wanted]
    done = {(call.trajectory, call.step) for call in calls}
    todo = [step for step in steps if (step.trajectory.id, step.number) not in done]
    if done:
        say(f"{len(done)} of {len(steps)} steps were predicted before")
    progress = _Progress(calls, kept, len(steps))

    async def run() -> None:
        try:
            await compare(
                spec,
                model,
                material.known,
                todo,
                encoder,
                k=chosen.k,
                without=chosen.without,
                seed=material.seed,
                parallel=material.parallel,
                on_step=progress,
            )
        finally:
            await model.close()

    interrupted = False
    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        interrupted = True
    return Report(
        env=spec.name,
        setting=chosen,
        model=model.name,
        seed=material.seed,
        known_transitions=sum(len(one.transitions) for one in material.known),
        held_out=tuple(dict.fromkeys(step.trajectory.id for step in steps)),
        contradicted=material.contradicted,
        complete=not interrupted,
        steps=step_fidelity(sorted(calls, key=lambda c: (c.trajectory, c.step)), explicit=spec.state is not None),
    )


class _Progress:
    """Keeps what is predicted, and says now and then how far it is."""

    def __init__(self, calls: list[Compared], kept: Kept | None, total: int) -> None:
        self._calls, self._kept, self._total = calls, kept, total
        self._spoken = time.monotonic()

    def __call__(self, call: Compared) -> None:
        self._calls.append(call)
        if self._kept is not None:
            self._kept.add(call)
        if time.monotonic() - self._spoken > SPEAK_EVERY_S:
            self._spoken = time.monotonic()
            say(f"{len(self._calls)} of {self._total} steps")


def _digests(known: Sequence[Trajectory]) -> list[str]:
    return [f"{one.id} {step.digest().hex()}" for one in known for step in one.transitions]
