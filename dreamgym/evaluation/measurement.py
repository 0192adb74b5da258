"""Measures one setting on held-out recordings: single steps first, then the other measures that are wanted."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from dreamgym.dream.model import ExperienceModel
from dreamgym.dream.questions import weights_fingerprint
from dreamgym.embedding import Encoder
from dreamgym.environment import Behaviour, Environment, Row
from dreamgym.errors import EnvironmentUnavailable, InvalidInput
from dreamgym.evaluation.attacks import Attacks, attacks
from dreamgym.evaluation.bound import bound
from dreamgym.evaluation.calibration import calibrated, fitted
from dreamgym.evaluation.calls import Compared
from dreamgym.evaluation.closed_loop import ClosedLoop, closed_loop
from dreamgym.evaluation.consistency import Consistency, consistency
from dreamgym.evaluation.cost import Prices, cost
from dreamgym.evaluation.criteria import JUDGED, JudgedStep, criteria, judge_steps, judged_sample
from dreamgym.evaluation.episodes import Make, perform
from dreamgym.evaluation.final_answers import EpisodeVerdict, final_answers, verdicts_on, with_outcome
from dreamgym.evaluation.kept import KeptRows, KeptStep, edition, other_editions
from dreamgym.evaluation.material import Material
from dreamgym.evaluation.players import ScriptedPlayer, players_of, sessions, tasks_of
from dreamgym.evaluation.predictions import MakeDream, Predict, RecordedStep, dream_of, in_order, predictions
from dreamgym.evaluation.report import SettingReport, worst
from dreamgym.evaluation.report.behind import StepBehind, behind
from dreamgym.evaluation.setting import Setting
from dreamgym.evaluation.steps import step_fidelity
from dreamgym.evaluation.stopwatch import Stopwatch
from dreamgym.files import make_folder
from dreamgym.llm import LLM, Pingable, Reachable
from dreamgym.prices import price_of
from dreamgym.tools import Tools
from dreamgym.types import Source, Task, Trajectory

Say = Callable[[str], None]

TIMED = 3
"""Number of real episodes that are played to time a step."""


def silent(text: str) -> None:
    """Say nothing."""


class Wanted(NamedTuple):
    """The measures to take besides single steps, and their settings."""

    prices: Prices = Prices()
    parallel: int = 1
    """Number of steps that are asked for at a time."""
    judge: LLM | None = None
    closed_loop: int = 0
    """Number of tasks that are played in dream and reality."""
    make_real: Callable[[], Environment] | None = None
    behaviours: Mapping[str, Behaviour] = {}


class Measurement:
    """Measures one setting; the results so far can be reported at any time.

    Args:
        given: the recordings that it is measured on.
        setting: the setting that is measured.
        model: the setting's model; the caller closes it.
        encoder: encoder of the retrieval keys.
        wanted: the measures besides single steps.
        out: folder that keeps predictions and verdicts; those already in it are not made again.
        say: called with messages for a person.
        progress: called with the progress after every step.
    """

    def __init__(
        self,
        given: Material,
        setting: Setting,
        model: ExperienceModel,
        encoder: Encoder,
        wanted: Wanted = Wanted(),  # noqa: B008  it is a tuple
        *,
        out: Path | None = None,
        say: Say = silent,
        progress: Say = silent,
    ) -> None:
        self._given, self._setting, self._model, self._encoder, self._wanted = given, setting, model, encoder, wanted
        self._out, self._say, self._progress = out, say, progress
        self._calls: list[Compared] = []
        self._judged: list[JudgedStep] = []
        self._verdicts: list[EpisodeVerdict] = []
        self._real_steps_s: list[float] = []
        self._loop: ClosedLoop | None = None
        self._long: Consistency | None = None
        self._attacks: Attacks | None = None
        self.played: list[tuple[str, Trajectory]] = []
        """The episodes that were played for the closed loop and the attacks, each with the name of its measure."""
        self._complete = False
        self._with_outcome = 0
        self._asked_together: set[int] = set()
        """The numbers of steps that were asked for at a time, here and when the kept ones were predicted."""
        self._at_a_time = wanted.parallel

    async def run(self, elsewhere: Predict | None = None, *, places: int | None = None) -> None:
        """Take every measure that is wanted.

        Args:
            elsewhere: predicts the steps; None: this process does.
            places: number of steps that `elsewhere` predicts at a time; None: `wanted.parallel`.
        """
        self._at_a_time = places or self._at_a_time
        make_dream = await self.predict(elsewhere)
        await self._decide()
        if self._wanted.judge is not None:
            await self._judge(self._wanted.judge)
        if self._wanted.closed_loop:
            await self._play(make_dream)
        self._complete = True

    @property
    def calls(self) -> list[Compared]:
        """The calls that are predicted so far, in the order of the steps."""
        return in_order(self._calls, self._given.steps)

    def report(self) -> SettingReport:
        spec, seed, calls, wanted = self._given.spec, self._given.seed, self.calls, self._wanted
        explicit = spec.state is not None
        prices = wanted.prices
        steps_s = self._real_steps_s
        if prices.real_seconds is None and steps_s:
            prices = prices.model_copy(update={"real_seconds": sum(steps_s) / len(steps_s)})
        known = sum(len(one.transitions) for one in self._given.known_with(self._setting.k))
        judge = wanted.judge.name if wanted.judge is not None else None
        return SettingReport(
            setting=self._setting,
            model=self._model.name,
            complete=self._complete,
            steps=step_fidelity(calls, explicit=explicit),
            calibration=calibrated(calls, model=self._model.name, env=spec.name, seed=seed),
            final_answers=final_answers(self._verdicts, known=self._with_outcome),
            criteria=criteria(calls, self._judged, explicit=explicit, judge=judge, seed=seed),
            bound=bound(calls, gamma=1 - 1 / spec.max_steps, max_reward=self._largest_reward),
            cost=cost(
                calls,
                prices,
                known_transitions=known,
                price=price_of(self._setting.model),
                at_a_time=next(iter(together))
                if len(together := self._asked_together or {self._at_a_time}) == 1
                else None,
            ),
            worst=worst(calls, explicit=explicit),
            closed_loop=self._loop,
            consistency=self._long,
            attacks=self._attacks,
        )

    def behind(self) -> Iterator[StepBehind]:
        """The steps behind the numbers of the report."""
        given = self._given
        return behind(
            str(self._setting),
            self.calls,
            explicit=given.spec.state is not None,
            judged=self._judged,
            verdicts=self._verdicts,
            price=price_of(self._setting.model),
            max_reward=self._largest_reward,
            seed=given.seed,
        )

    @property
    def _largest_reward(self) -> float:
        return max([1.0, *(abs(call.recorded.reward) for call in self.calls)])

    def save_calibration(self, path: Path) -> bool:
        """Write the file for `--calibration`, fitted on all predictions. False if no prediction has features."""
        calibration = fitted(self.calls, model=self._model.name, env=self._given.spec.name)
        if calibration is not None:
            calibration.save(path)
        return calibration is not None

    def left(self) -> list[RecordedStep]:
        """The steps that were not predicted before."""
        kept = self._kept(KeptStep, "steps", *self._basis())
        made = {(row.trajectory, row.step) for row in kept.read()} if kept else set()
        return [step for step in self._given.steps if step.key not in made]

    async def require_reachable(self) -> None:
        """Check that the model and the judge can be asked, unless every step was predicted before.

        Raises:
            InvalidInput: one of them cannot be asked. A model would be measured as one that is never right.
        """
        if not self.left():
            return
        for asked in (self._model, self._wanted.judge):
            try:
                if isinstance(asked, Reachable):
                    await asked.check_reachable()
            except EnvironmentUnavailable as error:
                raise InvalidInput(f"no call was predicted: {error}") from error

    async def predict(self, elsewhere: Predict | None = None) -> MakeDream:
        """Predict the steps, here or elsewhere. Returns a function that makes dreams of this setting.

        Raises:
            EnvironmentUnavailable: the model's endpoint stopped answering. What was predicted until then counts.
            InvalidInput: `out` cannot be a folder.
        """
        if self._out is not None:
            make_folder(self._out)
        given, chosen = self._given, self._setting
        kept = self._kept(KeptStep, "steps", *self._basis())
        left = {step.key: step for step in given.steps}
        tools = Tools(given.spec)
        for row in kept.read() if kept else ():
            if (step := left.pop((row.trajectory, row.step), None)) is not None:
                self._calls.append(row.restored(given.spec, tools, step.trajectory))
                self._asked_together.add(row.at_a_time)
        if self._calls:
            self._say(f"{chosen}: {len(self._calls)} of {len(given.steps)} steps were predicted before")
        make_dream = await dream_of(
            given.spec,
            self._model,
            given.known,
            self._encoder,
            recorded=given.recorded,
            k=chosen.k,
            without=chosen.without,
        )
        running = (
            predictions(make_dream, left.values(), seed=given.seed, parallel=self._wanted.parallel)
            if elsewhere is None
            else elsewhere(left.values())
        )
        async with aclosing(running) as calls:
            async for call in calls:
                if call.got is None:
                    await self._require_answering(self._model)
                self._calls.append(call)
                self._asked_together.add(self._at_a_time)
                if kept is not None and (row_ := KeptStep.of(call, self._at_a_time)) is not None:
                    kept.add(row_)
                self._progress(f"{chosen}: {len(self._calls)} of {len(given.steps)} steps")
        return make_dream

    @staticmethod
    async def _require_answering(model: object) -> None:
        """Raises EnvironmentUnavailable if the model's endpoint is down: its silence is not a wrong answer."""
        if isinstance(model, Pingable):
            await model.ping()

    async def _decide(self) -> None:
        given = self._given
        episodes = with_outcome({step.trajectory.id: step.trajectory for step in given.steps}.values())
        self._with_outcome = len(episodes)
        episodes = random.Random(given.seed).sample(episodes, min(JUDGED, len(episodes)))
        kept = self._kept(EpisodeVerdict, "verdicts", *self._basis())
        left = {one.id: one for one in episodes}
        for verdict in kept.read() if kept else ():
            if left.pop(verdict.trajectory, None) is not None:
                self._verdicts.append(verdict)
        running = verdicts_on(given.spec, self._model, left.values(), without=self._setting.without, seed=given.seed)
        async with aclosing(running) as verdicts:
            async for verdict in verdicts:
                if verdict.rewarded is None:
                    await self._require_answering(self._model)
                self._verdicts.append(verdict)
                if kept is not None and verdict.rewarded is not None:
                    kept.add(verdict)
                self._progress(f"{self._setting}: {len(self._verdicts)} of {len(episodes)} episodes decided")

    async def _judge(self, judge: LLM) -> None:
        sample = judged_sample(self.calls, seed=self._given.seed)
        shown = [call.model_dump_json(exclude={"seconds"}) for call in sample]
        kept = self._kept(JudgedStep, "judged", *self._basis(), judge.name, *shown)
        self._judged += kept.read() if kept else ()
        done = {(one.trajectory, one.step) for one in self._judged}
        left = [call for call in sample if (call.trajectory, call.step) not in done]
        async with aclosing(judge_steps(judge, self._given.spec, left, seed=self._given.seed)) as judged:
            async for one in judged:
                self._judged.append(one)
                if kept is not None:
                    kept.add(one)
                self._progress(f"{self._setting}: {len(self._judged)} of {len(sample)} steps judged")
        await self._require_answering(judge)

    async def _play(self, make_dream: MakeDream) -> None:
        given, real = self._given, self._wanted.make_real

        def counting(what: str) -> Callable[[int, int], None]:
            return lambda done, total: self._progress(f"{self._setting}: {done} of {total} {what}")

        def keep(measure: str, episode: Trajectory) -> None:
            self.played.append((f"{self._setting}/{measure}", episode))

        tasks = tasks_of(given.spec, given.held_out)[: self._wanted.closed_loop]
        if real is not None:
            players = players_of(given.spec, given.held_out, self._wanted.behaviours)
            loop = await closed_loop(
                given.spec,
                players,
                tasks,
                make_dream,
                real,
                seed=given.seed,
                on_progress=counting("episodes in dream and reality"),
                keep=keep,
            )
            long = await consistency(
                given.spec,
                sessions(given.spec, given.held_out),
                tasks,
                make_dream,
                real,
                recordings=given.held_out,
                seed=given.seed,
                on_progress=counting("long sessions"),
                keep=keep,
            )
            if self._wanted.prices.real_seconds is None:
                await self._time(real, players, tasks)
            await self._require_answering(self._model)
            self._loop, self._long = loop, long
        attacked = await attacks(
            given.spec,
            tasks,
            make_dream,
            model=self._model,
            recordings=given.held_out,
            known=given.known,
            make_real=real,
            seed=given.seed,
            on_progress=counting("attacks"),
            keep=keep,
        )
        await self._require_answering(self._model)
        self._attacks = attacked

    async def _time(self, real: Make, players: Sequence[ScriptedPlayer], tasks: Sequence[Task]) -> None:
        """Time real steps in a few more episodes, one at a time: other episodes at the same time delay the answers."""
        watches: list[Stopwatch] = []

        def watched() -> Stopwatch:
            watches.append(Stopwatch(real()))
            return watches[-1]

        for number, task in enumerate(tasks[:TIMED]):
            behaviour = next(filter(None, (player.behaviour(task) for player in players)), None)
            if behaviour is not None:
                seed = self._given.seed + number
                await perform(self._given.spec, watched, task, behaviour, seed=seed, source=Source.REAL)
        self._real_steps_s = [seconds for watch in watches for seconds in watch.steps_s]

    def _basis(self) -> list[str]:
        """Everything that predictions, verdicts and scores depend on: the whole recordings with their labels, too."""
        given, model = self._given, self._model
        known, held_out = (",".join(one.digest().hex() for one in some) for some in (given.known, given.held_out))
        weights = (weights_fingerprint(self._setting.model), str(getattr(model, "fingerprint", "")))
        spec = given.spec.model_dump_json(exclude={"tasks"})
        of_setting = (str(self._setting), str(given.seed))
        code = [edition(), *other_editions(given.spec)]
        return [*code, spec, model.name, *weights, self._encoder.fingerprint, *of_setting, known, held_out]

    def _kept(self, row: type[Row], kind: str, *basis: str) -> KeptRows[Row] | None:
        return None if self._out is None else KeptRows(row, self._out, f"{kind}-{self._setting}", basis)
