"""`dreamgym fidelity`: how true a simulation is, step by step and in closed loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.check import SPEAK_EVERY_S, recorded_of
from dreamgym.cli.options import EnvName, ModelName, Seed, Without
from dreamgym.dream.model import ExperienceModel
from dreamgym.environment import EnvironmentSpec, load_spec, real_of
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.comparing import paired
from dreamgym.evaluation.cost import Prices
from dreamgym.evaluation.measuring import Material, Measuring, Wanted, material
from dreamgym.evaluation.page import page
from dreamgym.evaluation.report import Report
from dreamgym.evaluation.setting import Setting, setting
from dreamgym.evaluation.tables import as_text
from dreamgym.llm import LLM
from dreamgym.runs.console import say

Compare = Annotated[
    tuple[str, str] | None,
    typer.Option(metavar="A B", help="Two settings instead of --model: 'MODEL' or 'MODEL without history,state -k 0'."),
]
Shown = Annotated[int | None, typer.Option("-k", min=0, help="Show the model so many recorded transitions; 0: none.")]
Recorded = Annotated[
    Path | None,
    typer.Option(help="JSONL of recorded trajectories, as `dreamgym collect --out` writes; default: the folder's."),
]
HeldOut = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="Share of the trajectories that is predicted and not known.")
]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Predict only so many held-out steps, drawn by the seed, and judge theirs.")
]
Known = Annotated[int | None, typer.Option(min=0, help="Know only so many recorded transitions, drawn by the seed.")]
Loop = Annotated[
    int, typer.Option(min=0, help="Play so many held-out tasks in dream and reality, and attack the dream's reward.")
]
JudgeName = Annotated[
    str | None, typer.Option(metavar="MODEL", help="Let this model score the paper's four criteria as well.")
]
Gamma = Annotated[float | None, typer.Option(min=0.0, max=0.9999, help="Of the bound. Default: 1 - 1 / max_steps.")]
Divergence = Annotated[float, typer.Option(min=0.0, help="KL of a policy step, for the bound.")]
PriceIn = Annotated[float | None, typer.Option(min=0.0, help="Money per million prompt tokens.")]
PriceOut = Annotated[float | None, typer.Option(min=0.0, help="Money per million completion tokens.")]
RealSeconds = Annotated[
    float | None, typer.Option(min=1e-9, help="Of a step of the real environment; --closed-loop measures it.")
]
RealPrice = Annotated[float | None, typer.Option(min=0.0, help="Money per step of the real environment.")]
RealParallel = Annotated[int | None, typer.Option(min=1, help="Sessions that the real environment can run at once.")]
EncoderName = Annotated[str | None, typer.Option(help="Encoder of the retrieval keys: minilm or trigram.")]
Parallel = Annotated[int, typer.Option(min=1, help="How many steps are asked for at a time.")]
Out = Annotated[
    Path | None,
    typer.Option(help="Write report.html, report.json and calibration.json here; nothing kept here is asked again."),
]


def fidelity(
    env: EnvName,
    model: ModelName = None,
    compare: Compare = None,
    k: Shown = None,
    without: Without = None,
    trajectories: Recorded = None,
    held_out: HeldOut = 0.3,
    limit: Limit = None,
    known: Known = None,
    closed_loop: Loop = 0,
    judge: JudgeName = None,
    gamma: Gamma = None,
    kl: Divergence = 0.0,
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    real_seconds: RealSeconds = None,
    real_price: RealPrice = None,
    real_parallel: RealParallel = None,
    encoder: EncoderName = None,
    parallel: Parallel = 1,
    out: Out = None,
    json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    seed: Seed = 0,
) -> None:
    """Measure a simulation against recordings that it does not know. No database is read or written.

    Ctrl-C prints what there is; with --out the same command goes on from there.

    Example: dreamgym fidelity crm/ --model local --closed-loop 20 --out runs/crm
    """
    if compare and model is not None:
        raise InvalidInput("--model and --compare: name the models in --compare alone")
    spec = load_spec(env)
    chosen = [setting(text, without=without or (), k=k) for text in compare or (model or "",)]
    models = _models(spec, chosen)
    given = material(
        spec,
        recorded_of(spec, env, trajectories),
        held_out=held_out,
        learned=_learned(chosen),
        known=known,
        limit=limit,
        seed=seed,
    )
    prices = Prices(
        prompt=price_in,
        completion=price_out,
        real_seconds=real_seconds,
        real_price=real_price,
        real_parallel=real_parallel,
    )
    real = real_of(spec) if closed_loop and spec.adapter else None
    wanted = Wanted(
        gamma=1 - 1 / spec.max_steps if gamma is None else gamma,
        divergence=kl,
        prices=prices,
        parallel=parallel,
        judge=_judge(judge),
        closed_loop=closed_loop,
        make_real=real.create if real is not None else None,
        behaviours=real.behaviours if real is not None else {},
    )
    if closed_loop and real is None:
        say(f"{spec.name!r} names no real environment ([real] in env.toml): only the dream's reward is attacked")
    report = _measured(given, wanted, list(zip(chosen, models, strict=True)), encoder, out)
    typer.echo(report.model_dump_json(indent=2) if json else as_text(report))
    if not report.complete:
        raise typer.Exit(130)


def _models(spec: EnvironmentSpec, chosen: Sequence[Setting]) -> list[ExperienceModel]:
    from dreamgym.dream.load import load_model

    return [load_model(one.model or None, env=spec.name) for one in chosen]


def _learned(chosen: Sequence[Setting]) -> frozenset[str] | None:
    """The trajectories that some fitted model has learned; None where none is fitted."""
    from dreamgym.dream.fitted import read_fitting

    fitted = [read_fitting(Path(one.model)) for one in chosen if Path(one.model).is_dir()]
    learned = [one.learned for one in fitted if one is not None]
    if not learned:
        return None
    say("held out are the trajectories that the fitted model has not learned; --held-out is not used")
    return frozenset().union(*learned)


def _judge(name: str | None) -> LLM | None:
    from dreamgym.dream.load import load_llm

    if name is None:
        return None
    llm = load_llm(name)
    if llm is None:
        raise InvalidInput(f"--judge {name} cannot judge: expected a language model")
    return llm


def _measured(
    given: Material,
    wanted: Wanted,
    pairs: Sequence[tuple[Setting, ExperienceModel]],
    encoder: str | None,
    out: Path | None,
) -> Report:
    """Measure the settings one after another; after an interruption none is begun."""
    from dreamgym.embedding import load_encoder

    loaded, speak = load_encoder(encoder), _Spoken()
    running = [
        Measuring(
            given,
            one.model_copy(update={"model": one.model or model.name}),
            model,
            loaded,
            wanted,
            out=out,
            say=say,
            progress=speak,
        )
        for one, model in pairs
    ]

    async def run() -> None:
        try:
            for one in running:
                await one.run()
        finally:
            for _, model in pairs:
                await model.close()
            if wanted.judge is not None:
                await wanted.judge.close()

    try:
        asyncio.run(run())
    except KeyboardInterrupt:
        say("interrupted")
    report = Report(
        env=given.spec.name,
        seed=given.seed,
        known_transitions=sum(len(one.transitions) for one in given.known),
        held_out=tuple(one.id for one in given.held_out),
        contradicted=given.contradicted,
        measured=tuple(one.measured() for one in running),
        differences=paired(running[0].calls, running[1].calls, explicit=given.spec.state is not None, seed=given.seed)
        if len(running) > 1
        else (),
    )
    if out is not None:
        _write(report, running, out)
    return report


def _write(report: Report, running: Sequence[Measuring], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in (("report.json", report.model_dump_json(indent=2)), ("report.html", page(report))):
        part = out / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(out / name)
    if len(running) == 1 and report.complete and running[0].save_calibration(out / "calibration.json"):
        say(f"{out / 'calibration.json'}: for --calibration, with --min-confidence")
    say(f"{out / 'report.html'}")


class _Spoken:
    """Says how far it is, but not more often than a person can read."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, text: str) -> None:
        if time.monotonic() - self._last > SPEAK_EVERY_S:
            self._last = time.monotonic()
            say(text)
