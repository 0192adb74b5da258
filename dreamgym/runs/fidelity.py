"""Measures how true a simulation is. `check` makes a short report and `fidelity` a long one from the same measurement.

Neither reads or writes a database. The dream knows only the recorded trajectories that are not held out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dreamgym.dream.fitted import read_fitting
from dreamgym.dream.load import load_llm, load_model
from dreamgym.dream.model import ExperienceModel
from dreamgym.embedding import load_encoder
from dreamgym.environment import EnvironmentSpec, read_jsonl, real_of
from dreamgym.errors import BudgetSpent, EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.calls import Compared, agreement, by_tool
from dreamgym.evaluation.cost import Prices
from dreamgym.evaluation.differences import paired
from dreamgym.evaluation.final_answers import with_outcome
from dreamgym.evaluation.material import Material, material
from dreamgym.evaluation.measurement import Measurement, Say, Wanted, silent
from dreamgym.evaluation.predictions import RecordedStep, as_done, dream_of, played_again, predictions
from dreamgym.evaluation.report import CHECK_FILE, CheckReport, FidelityReport, behind
from dreamgym.evaluation.report.page import page
from dreamgym.evaluation.setting import Setting, setting
from dreamgym.files import alone_in, make_folder, write_whole
from dreamgym.redaction import redact_by, redacted
from dreamgym.replay.grouped import as_line
from dreamgym.runs.cluster import Crew, workers
from dreamgym.runs.console import now_and_then
from dreamgym.runs.estimate import of_steps, say_estimate
from dreamgym.runs.opening import Against, require_at_least
from dreamgym.runs.seed import load_updated
from dreamgym.types import Frozen, Source, StopReason, Trajectory

HELD_OUT_FILE = "held_out.jsonl"


def check(
    env: str,
    against: Against | str,
    model: str | None = None,
    *,
    trajectories: Path | None = None,
    held_out: float = 0.3,
    out: Path | None = None,
    seed: int = 0,
    say: Say = silent,
) -> CheckReport:
    """Compare answers to held-out recorded calls with the recorded answers.

    After Ctrl-C, a spent budget or a model that stops answering, the report covers the calls that were compared until
    then.

    Args:
        env: the environment, or its folder.
        against: a dream predicts the answers, or the calls are played again on the real system.
        model: model of the dream, as a setting: `nearest without history -k 5`; None: the default model.
        trajectories: JSONL file of recorded trajectories; None: the file of the folder.
        held_out: share of the trajectories that is compared; a dream knows the others.
        out: folder for the report and the held-out trajectories, which `dreamgym view` shows; None: no files.
        seed: seed of the split.
        say: is called with the progress.

    Raises:
        InvalidInput: nothing can be held out, a model is given for the real system, the model's endpoint cannot be
            asked, `trajectories` is missing, or `out` cannot be a folder.
    """
    against = Against(against)
    if against is Against.REAL and model is not None:
        raise InvalidInput("--model is for --against dream: leave it out, because the real system needs no model")
    spec, chosen = load_updated(env), setting(model or "")
    recorded, learned = recorded_of(spec, env, trajectories), _learned([chosen], say)
    given = material(spec, recorded, held_out=held_out, learned=learned, all_steps=True, seed=seed)
    if out is not None:
        make_folder(out)
    if against is Against.REAL:
        name, shown, (calls, complete) = None, None, _play_again(spec, given, say)
    else:
        loaded = load_model(chosen.model or None, env=spec.name)
        name = str(chosen.model_copy(update={"model": loaded.name, "k": None}))
        shown = loaded.demonstrations if chosen.k is None else chosen.k
        calls, complete = _predict(given, chosen, loaded, say)
    known = given.known_with(chosen.k)
    report = CheckReport(
        env=spec.name,
        against=against.value,
        model=name,
        k=shown,
        seed=seed,
        known=tuple(one.id for one in known),
        known_transitions=sum(len(one.transitions) for one in known),
        held_out=tuple(one.id for one in given.held_out),
        complete=complete,
        total=agreement(calls),
        tools=by_tool(calls),
        calls=tuple(calls),
    )
    if out is not None:
        _write_files(out, {CHECK_FILE: report.as_json(), HELD_OUT_FILE: _lines(given.held_out)})
        say(f"{out / CHECK_FILE}: dreamgym view {out}")
    return report


def _play_again(spec: EnvironmentSpec, given: Material, say: Say) -> tuple[list[Compared], bool]:
    """Play the held-out calls on the real system. False if that was interrupted.

    Raises:
        EnvironmentUnavailable: the real system answered no call.
    """
    real, calls, progress = real_of(spec), list[Compared](), now_and_then(say)
    # redacts the real answers as the recordings were redacted
    redact = redact_by(spec.redact)

    async def compare() -> None:
        async with aclosing(played_again(spec, real.create, given.held_out, redact=redact)) as running:
            async for call in running:
                calls.append(call)
                progress(f"{len(calls)} of {len(given.steps)} calls")

    complete = _uninterrupted(compare(), say)
    if complete and all(call.got is None for call in calls):
        raise EnvironmentUnavailable(f"no call was played: {calls[0].failure}")
    return calls, complete


def _predict(given: Material, chosen: Setting, model: ExperienceModel, say: Say) -> tuple[list[Compared], bool]:
    """Predict the held-out calls, and close the model. False if that was interrupted."""
    measurement = Measurement(given, chosen, model, load_encoder(), progress=now_and_then(say))

    async def predict() -> None:
        try:
            say_estimate(await of_steps(given.spec, chosen, given.known, given.steps, seed=given.seed), say)
            await measurement.require_reachable()
            await measurement.predict()
        finally:
            await model.close()

    complete = _uninterrupted(predict(), say)
    return measurement.calls, complete


def fidelity(
    env: str,
    models: Sequence[str] = ("",),
    *,
    trajectories: Path | None = None,
    held_out: float = 0.3,
    limit: int | None = None,
    known: int | None = None,
    closed_loop: int = 0,
    judge: str | None = None,
    prices: Prices = Prices(),  # noqa: B008  it is frozen
    parallel: int = 1,
    out: Path | None = None,
    seed: int = 0,
    cluster: str | None = None,
    say: Say = silent,
) -> FidelityReport:
    """Measure one setting, or compare two, on held-out recordings.

    After Ctrl-C, a spent budget or a model that stops answering, the report covers what was measured until then. The
    same call with `out` goes on from there.

    Args:
        env: the environment, or its folder.
        models: one or two settings, such as `nearest without history -k 5`; an empty string: the default model.
        trajectories: JSONL file of recorded trajectories; None: the file of the folder.
        held_out: share of the trajectories that is predicted and that the dream does not know.
        limit: number of held-out steps to predict, drawn by the seed; None: all.
        known: number of recorded transitions that the dream knows, drawn by the seed; None: all that are not held out.
        closed_loop: number of held-out tasks to play in dream and reality. If it is not 0, the dream's reward is
            attacked too.
        judge: model that scores the paper's four criteria as well.
        prices: prices of reality.
        parallel: number of steps that are asked for at a time; on a cluster, by each of its workers.
        out: folder for the report, its page and the calibration. Answers that are kept there are not asked for again.
        seed: seed of every random draw.
        cluster: address of the Ray cluster that predicts the steps; None: this process. This process does the rest.
        say: is called with the progress.

    Raises:
        InvalidInput: nothing can be held out or compared, a model or the judge cannot be asked, the judge is not a
            language model, there are more than two settings or none, a number is too small, or `out` cannot be a
            folder, or another command works in it.
    """
    if len(models) not in (1, 2):
        raise InvalidInput(f"expected one --model, or two to compare, got {len(models)}")
    require_at_least(1, limit=limit, parallel=parallel)
    require_at_least(0, known=known, closed_loop=closed_loop)
    spec, chosen = load_updated(env), [setting(text) for text in models]
    loaded = [load_model(one.model or None, env=spec.name) for one in chosen]
    given = material(
        spec,
        recorded_of(spec, env, trajectories),
        held_out=held_out,
        learned=_learned(chosen, say),
        known=known,
        limit=limit,
        seed=seed,
    )
    wanted = _wanted(spec, judge, closed_loop, prices, parallel, say)
    answered = any(
        one.answer is not None or one.stop_reason is StopReason.FINISHED for one in with_outcome(given.held_out)
    )
    more = {"final answers": answered, "the judge": judge, "closed loop and attacks": closed_loop}
    names = ", ".join(name for name, is_asked in more.items() if is_asked)
    beyond = f"; not counted: {names}" if names else ""
    encoder, progress = load_encoder(), now_and_then(say)
    running = [
        Measurement(
            given,
            one.model_copy(update={"model": one.model or model.name}),
            model,
            encoder,
            wanted,
            out=out,
            say=say,
            progress=progress,
        )
        for one, model in zip(chosen, loaded, strict=True)
    ]

    async def measure() -> None:
        try:
            for one, asked in zip(running, chosen, strict=True):
                if left := one.left():
                    estimate = await of_steps(spec, asked, given.known, left, seed=seed)
                    say_estimate(estimate and estimate._replace(basis=estimate.basis + beyond), say)
            await _measure(running, chosen, given, cluster, parallel, out)
        finally:
            for closing in (*loaded, *([wanted.judge] if wanted.judge is not None else ())):
                await closing.close()

    _uninterrupted(measure(), say)
    differences = (
        paired(running[0].calls, running[1].calls, explicit=spec.state is not None, seed=seed)
        if len(running) > 1
        else ()
    )
    measured = tuple(one.report() for one in running)
    report = FidelityReport(
        env=spec.name,
        seed=seed,
        known_transitions=max(one.cost.known_transitions for one in measured),
        held_out=tuple(one.id for one in given.held_out),
        contradicted=given.contradicted,
        measured=measured,
        differences=differences,
    )
    if out is not None:
        _write(report, given, running, out, say)
    return report


def _wanted(
    spec: EnvironmentSpec, judge: str | None, closed_loop: int, prices: Prices, parallel: int, say: Say
) -> Wanted:
    """The measures that `fidelity` takes besides single steps, as far as the environment has them.

    Raises:
        InvalidInput: the judge is not a language model.
    """
    llm = load_llm(judge) if judge is not None else None
    if judge is not None and llm is None:
        raise InvalidInput(f"--judge {judge} cannot judge: expected a language model")
    real = real_of(spec) if closed_loop and spec.adapter else None
    if closed_loop and real is None:
        say(f"{spec.name!r} has no real environment ([real] in env.toml): only the dream's reward is attacked")
    return Wanted(
        prices=prices,
        parallel=parallel,
        judge=llm,
        closed_loop=closed_loop,
        make_real=real.create if real is not None else None,
        behaviours=real.behaviours if real is not None else {},
    )


async def _measure(
    running: Sequence[Measurement],
    chosen: Sequence[Setting],
    given: Material,
    cluster: str | None,
    parallel: int,
    out: Path | None,
) -> None:
    """Run the measurements of the settings one after another, in this process or on a cluster.

    Raises:
        InvalidInput: another command works in `out`: both would keep the same answers.
    """
    for one in running:
        await one.require_reachable()
    with ExitStack() as held:
        if out is not None:
            make_folder(out)
            held.enter_context(alone_in(out, waits=False))
        for one, of_setting in zip(running, chosen, strict=True):
            if cluster is None:
                await one.run()
                continue
            async with workers(cluster, Predicting(given, of_setting), parallel) as crew:
                await one.run(partial(_spread, crew, given), places=crew.places)


@dataclass(frozen=True)
class Predicting:
    """The job of predicting held-out steps with a setting, for the workers of a cluster."""

    given: Material
    setting: Setting

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Callable[[int], Awaitable[Compared]]]:
        """Load the model. The function that it yields predicts the held-out step with a given index."""
        given, chosen = self.given, self.setting
        model = load_model(chosen.model or None, env=given.spec.name)
        try:
            make_dream = await dream_of(
                given.spec,
                model,
                given.known,
                load_encoder(),
                recorded=given.recorded,
                k=chosen.k,
                without=chosen.without,
            )

            async def predict(number: int) -> Compared:
                async with aclosing(predictions(make_dream, [given.steps[number]], seed=given.seed)) as calls:
                    return await anext(calls)

            yield predict
        finally:
            await model.close()


def _spread(
    crew: Crew[int, Compared], given: Material, steps: Iterable[RecordedStep]
) -> AsyncGenerator[Compared, None]:
    """Have the workers predict these held-out steps."""
    numbers = {step.key: number for number, step in enumerate(given.steps)}
    return as_done(crew.do, [numbers[step.key] for step in steps], crew.places)


def _write(report: FidelityReport, given: Material, running: Sequence[Measurement], out: Path, say: Say) -> None:
    """Write the report and its page, the steps and episodes behind its numbers and, for one setting, its calibration.

    Each file is written whole or not at all.
    """
    redact = redact_by(given.spec.redact)  # calls and errors in episodes of the dream are not redacted yet
    files = {
        behind.FILE: _lines(step for one in running for step in one.behind()),
        HELD_OUT_FILE: _lines(given.held_out),
        "played.jsonl": "".join(
            as_line(name, redacted(episode, redact)) for one in running for name, episode in one.played
        ),
        "report.html": page(report),
        "report.json": report.model_dump_json(indent=2),
    }
    _write_files(out, files)
    if len(running) == 1 and report.complete and running[0].save_calibration(out / "calibration.json"):
        say(f"{out / 'calibration.json'}: use it with --calibration and --min-confidence")
    say(f"{out / 'report.html'}, or dreamgym view {out}")


def _lines(some: Iterable[Frozen]) -> str:
    return "".join(f"{one.model_dump_json()}\n" for one in some)


def _write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder, each whole or not at all, for their owner alone: they quote the recordings."""
    make_folder(folder)  # an interrupted measurement may not have made it
    for name, text in files.items():
        write_whole(folder / name, text)


def recorded_of(spec: EnvironmentSpec, env: str, file: Path | None) -> list[Trajectory]:
    """The recorded trajectories of a file, or of the folder; dreamed and repeated ones are left out.

    Raises:
        InvalidInput: there is no such file, a trajectory is of another environment, or two trajectories have one id.
    """
    file = file or Path(env) / "trajectories.jsonl"
    if not file.is_file():
        raise InvalidInput(
            f"{file}: there is no such file: give recorded trajectories with --trajectories, as `dreamgym collect "
            "--out` writes them"
        )
    recorded: dict[str, Trajectory] = {}
    for trajectory in read_jsonl(file, Trajectory):
        if trajectory.source is Source.SYNTHETIC:
            continue
        if trajectory.task.env != spec.name:
            raise InvalidInput(
                f"{file}: {trajectory.id!r} belongs to environment {trajectory.task.env!r}, not {spec.name!r}"
            )
        # an episode that is known and held out would be predicted from itself
        if recorded.setdefault(trajectory.id, trajectory) != trajectory:
            raise InvalidInput(f"{file}: {trajectory.id!r} is there twice with different content: keep one of the two")
    return list(recorded.values())


def _learned(chosen: Sequence[Setting], say: Say) -> frozenset[str] | None:
    """Ids of the trajectories that a fitted model has learned; None if no model is fitted."""
    fitted = [read_fitting(Path(one.model)) for one in chosen if one.model and Path(one.model).is_dir()]
    learned = [one.learned for one in fitted if one is not None]
    if not learned:
        return None
    say(
        "the trajectories that the fitted model has not learned are held out; --held-out is ignored. Those of its own "
        "fit chose its weights too, so its figures may be a little too good"
    )
    return frozenset().union(*learned)


def _uninterrupted(work: Coroutine[None, None, None], say: Say) -> bool:
    """Do the work. Say why, and return False, if Ctrl-C, a spent budget or a model that stopped answering ended it."""
    try:
        asyncio.run(work)
    except (BudgetSpent, KeyboardInterrupt):
        say("interrupted")
        return False
    except EnvironmentUnavailable as error:
        say(f"interrupted: {error}")
        return False
    return True
