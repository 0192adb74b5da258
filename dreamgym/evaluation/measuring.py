"""From recordings and settings to a report: what is held out, what is measured, in which order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from dreamgym.dream.cache import weights_fingerprint
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import ExperienceModel
from dreamgym.embedding import Encoder
from dreamgym.environment import Behaviour, Environment, EnvironmentSpec, Row
from dreamgym.errors import InvalidInput
from dreamgym.evaluation.attacks import Attacks, attacks
from dreamgym.evaluation.bound import bound
from dreamgym.evaluation.calibrating import calibrated, fitted
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.closed_loop import ClosedLoop, closed_loop
from dreamgym.evaluation.consistency import Consistency, consistency
from dreamgym.evaluation.cost import Prices, Stopwatch, cost
from dreamgym.evaluation.criteria import JUDGED, JudgedStep, criteria, judge_steps, judged_sample
from dreamgym.evaluation.finals import Verdict, finals, verdicts_on, with_outcome
from dreamgym.evaluation.players import players_of, sessions, tasks_of
from dreamgym.evaluation.predicting import (
    Kept,
    KeptStep,
    Step,
    compare,
    drawn,
    edition,
    first_known,
    steps_of,
)
from dreamgym.evaluation.report import Measured, worst
from dreamgym.evaluation.setting import Setting
from dreamgym.evaluation.steps import step_fidelity
from dreamgym.llm import LLM
from dreamgym.recordings.contradictions import contradicted
from dreamgym.recordings.splits import split
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.tools import Tools
from dreamgym.types import Trajectory

Say = Callable[[str], None]


class Material(NamedTuple):
    """What all settings are measured on."""

    spec: EnvironmentSpec
    known: tuple[Trajectory, ...]
    held_out: tuple[Trajectory, ...]
    steps: tuple[Step, ...]
    """Of the held-out trajectories, those that are predicted."""
    contradicted: int
    seed: int


class Wanted(NamedTuple):
    """What is measured besides single steps."""

    gamma: float
    divergence: float
    prices: Prices
    parallel: int = 1
    judge: LLM | None = None
    closed_loop: int = 0
    """Tasks that are played in dream and reality."""
    make_real: Callable[[], Environment] | None = None
    behaviours: Mapping[str, Behaviour] = {}


def material(
    spec: EnvironmentSpec,
    recorded: Sequence[Trajectory],
    *,
    held_out: float,
    learned: frozenset[str] | None = None,
    known: int | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Material:
    """Split the recordings, and draw what is known and what is predicted.

    Args:
        spec: what was recorded.
        recorded: all trajectories.
        held_out: share of them that is held out.
        learned: ids of the trajectories that a fitted model has learned; all others are held out instead.
        known: so many transitions of the rest are known; None: all.
        limit: so many held-out steps are predicted; None: all.
        seed: of every draw.

    Raises:
        InvalidInput: nothing is left to predict.
    """
    if learned is None:
        rest, apart = split(recorded, held_out, seed)
    else:
        apart = tuple(one for one in recorded if one.id not in learned and one.transitions)
        rest = tuple(one for one in recorded if one.id in learned)
    if not apart:
        raise InvalidInput(
            f"{spec.name!r} has no held-out transitions: the fitted model has learned all that there are"
        )
    odd = contradicted(spec, recorded)
    steps = steps_of(apart)
    usable = [step for step in steps if (step.trajectory.id, step.number) not in odd]
    if not usable:
        raise InvalidInput(
            f"no held-out transition of {spec.name!r} can be compared: all {len(steps)} were recorded with another "
            "outcome as well"
        )
    return Material(
        spec=spec,
        known=rest if known is None else first_known(rest, known, seed),
        held_out=apart,
        steps=tuple(drawn(usable, limit, seed)),
        contradicted=len(steps) - len(usable),
        seed=seed,
    )


class Measuring:
    """One setting under measurement; what is there can be reported at any time.

    Args:
        given: what it is measured on.
        setting: what is measured.
        model: of the setting; whoever made it closes it.
        encoder: of the retrieval keys.
        wanted: what is measured besides single steps.
        out: predictions and verdicts are kept here, and none that is there is made again.
        say: is told what a person should know.
        progress: is told after every step how far it is.
    """

    def __init__(
        self,
        given: Material,
        setting: Setting,
        model: ExperienceModel,
        encoder: Encoder,
        wanted: Wanted,
        *,
        out: Path | None,
        say: Say,
        progress: Say,
    ) -> None:
        self._given, self._setting, self._model, self._encoder, self._wanted = given, setting, model, encoder, wanted
        self._out, self._say, self._progress = out, say, progress
        self._calls: list[Compared] = []
        self._judged: list[JudgedStep] = []
        self._verdicts: list[Verdict] = []
        self._real = Stopwatch()
        self._loop: ClosedLoop | None = None
        self._long: Consistency | None = None
        self._attacks: Attacks | None = None
        self._complete = False

    async def run(self) -> None:
        """Measure everything that is wanted."""
        await self._predict()
        await self._decide()
        if self._wanted.judge is not None:
            await self._judge(self._wanted.judge)
        if self._wanted.closed_loop:
            await self._play(self._wanted.closed_loop)
        self._complete = True

    @property
    def calls(self) -> list[Compared]:
        """What is predicted so far, in the order of the steps."""
        order = {(step.trajectory.id, step.number): i for i, step in enumerate(self._given.steps)}
        return sorted(self._calls, key=lambda call: order[call.trajectory, call.step])

    def measured(self) -> Measured:
        """The measures over what there is."""
        spec, seed, calls, wanted = self._given.spec, self._given.seed, self.calls, self._wanted
        explicit = spec.state is not None
        prices = wanted.prices
        if prices.real_seconds is None and self._real.steps:
            prices = prices.model_copy(update={"real_seconds": self._real.seconds / self._real.steps})
        return Measured(
            setting=self._setting,
            model=self._model.name,
            complete=self._complete,
            steps=step_fidelity(calls, explicit=explicit),
            calibration=calibrated(calls, model=self._model.name, env=spec.name, seed=seed),
            finals=finals(self._verdicts),
            criteria=criteria(
                calls,
                self._judged,
                explicit=explicit,
                judge=wanted.judge.name if wanted.judge is not None else None,
                seed=seed,
            ),
            bound=bound(
                calls,
                gamma=wanted.gamma,
                divergence=wanted.divergence,
                max_reward=max([1.0, *(abs(call.recorded.reward) for call in calls)]),
                seed=seed,
            ),
            cost=cost(calls, prices, known_transitions=_count(self._given.known), at_a_time=wanted.parallel),
            worst=worst(calls, explicit=explicit),
            closed_loop=self._loop,
            consistency=self._long,
            attacks=self._attacks,
        )

    def save_calibration(self, path: Path) -> bool:
        """Write what `--calibration` takes, fitted on all that was predicted. False where the model was never asked."""
        calibration = fitted(self.calls, model=self._model.name, env=self._given.spec.name)
        if calibration is not None:
            calibration.save(path)
        return calibration is not None

    async def _predict(self) -> None:
        given, chosen = self._given, self._setting
        kept = self._kept(KeptStep, "steps", *self._basis())
        wanted = {(step.trajectory.id, step.number): step.trajectory for step in given.steps}
        tools = Tools(given.spec)
        for one in kept.read() if kept else ():
            if (one.trajectory, one.step) in wanted:
                self._calls.append(one.restored(given.spec, tools, wanted[one.trajectory, one.step]))
        done = {(call.trajectory, call.step) for call in self._calls}
        if done:
            self._say(f"{chosen}: {len(done)} of {len(wanted)} steps were predicted before")

        def keep(call: Compared) -> None:
            self._calls.append(call)
            if kept is not None and (row := KeptStep.of(call)) is not None:
                kept.add(row)
            self._progress(f"{chosen}: {len(self._calls)} of {len(wanted)} steps")

        await compare(
            given.spec,
            self._model,
            given.known,
            [step for step in given.steps if (step.trajectory.id, step.number) not in done],
            self._encoder,
            k=chosen.k,
            without=chosen.without,
            seed=given.seed,
            parallel=self._wanted.parallel,
            on_step=keep,
        )

    async def _decide(self) -> None:
        given = self._given
        episodes = with_outcome({step.trajectory.id: step.trajectory for step in given.steps}.values())[:JUDGED]
        kept = self._kept(Verdict, "verdicts", *self._basis())
        left = {one.id: one for one in episodes}
        for verdict in kept.read() if kept else ():
            if left.pop(verdict.trajectory, None) is not None:
                self._verdicts.append(verdict)
        running = verdicts_on(given.spec, self._model, left.values(), without=self._setting.without, seed=given.seed)
        async with aclosing(running) as verdicts:
            async for verdict in verdicts:
                self._verdicts.append(verdict)
                if kept is not None and verdict.said is not None:
                    kept.add(verdict)
                self._progress(f"{self._setting}: {len(self._verdicts)} of {len(episodes)} episodes decided")

    async def _judge(self, judge: LLM) -> None:
        sample = judged_sample(self.calls, seed=self._given.seed)
        predictions = [call.model_dump_json(exclude={"seconds"}) for call in sample]
        kept = self._kept(JudgedStep, "judged", judge.name, *predictions)
        self._judged += kept.read() if kept else ()
        done = {(one.trajectory, one.step) for one in self._judged}
        left = [call for call in sample if (call.trajectory, call.step) not in done]
        async with aclosing(judge_steps(judge, self._given.spec, left, seed=self._given.seed)) as judged:
            async for one in judged:
                self._judged.append(one)
                if kept is not None:
                    kept.add(one)
                self._progress(f"{self._setting}: {len(self._judged)} of {len(sample)} steps judged")

    async def _play(self, count: int) -> None:
        given, real = self._given, self._wanted.make_real
        buffer, k = MemoryBuffer(self._encoder), self._setting.k
        await buffer.add(() if k == 0 else given.known)
        without = frozenset(self._setting.without)

        def make_dream() -> DreamEnvironment:
            return DreamEnvironment(given.spec, self._model, buffer, without=without, k=k)

        def told(what: str) -> Callable[[int, int], None]:
            return lambda done, total: self._progress(f"{self._setting}: {done} of {total} {what}")

        tasks = tasks_of(given.held_out)[:count]
        if real is not None:
            make_real = self._real.timed(real)
            self._loop = await closed_loop(
                given.spec,
                players_of(given.spec, given.held_out, self._wanted.behaviours),
                tasks,
                make_dream,
                make_real,
                seed=given.seed,
                on_progress=told("episodes in dream and reality"),
            )
            self._long = await consistency(
                given.spec,
                sessions(given.spec, given.held_out),
                tasks,
                make_dream,
                make_real,
                recordings=given.held_out,
                seed=given.seed,
                on_progress=told("long sessions"),
            )
        self._attacks = await attacks(
            given.spec,
            tasks,
            make_dream,
            model=self._model,
            recordings=given.held_out,
            known=given.known,
            make_real=real,
            seed=given.seed,
            on_progress=told("attacks"),
        )

    def _basis(self) -> list[str]:
        """All that a prediction depends on."""
        given = self._given
        known = [f"{one.id} {step.digest().hex()}" for one in given.known for step in one.transitions]
        spec = given.spec.model_dump_json(exclude={"tasks"})
        model = [
            self._model.name,
            weights_fingerprint(self._setting.model),
            str(getattr(self._model, "fingerprint", "")),
        ]
        return [edition(), spec, *model, self._encoder.fingerprint, str(self._setting), str(given.seed), *known]

    def _kept(self, row: type[Row], kind: str, *basis: str) -> Kept[Row] | None:
        return None if self._out is None else Kept(row, self._out, f"{kind}-{self._setting}", basis)


def _count(trajectories: Sequence[Trajectory]) -> int:
    return sum(len(one.transitions) for one in trajectories)
