"""DreamEnvironment: an experience model and a replay buffer behind the Environment protocol.

An environment whose reader makes objects or pages of its words is played on these (dreamgym.dream.objects,
dreamgym.dream.pages): then that tier is asked first, and what it answers needs no retrieval. The others are asked in
this order: recorded, refused, synthesized, views, of other packages, model. The first that has an answer gives it. The
first two say what reality said. The others infer: what they answer must agree with an explicit state, and what it shows
of entities that are known in part is known from then on. Whether a step ends its task, and what it is worth, is decided
in dreamgym.dream.ending, or in a dream of objects by the task's check, whichever tier answered.

Another package adds a tier by an entry point of the group `dreamgym.tiers`: `(spec) -> StepTier`. All that are
installed are asked, in the order of their names. Their answers have the tier `plugin`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points

from dreamgym.dream.checks import changeable, contradiction
from dreamgym.dream.confidence import Calibration, check_calibration, features
from dreamgym.dream.ending import ended
from dreamgym.dream.mapped import MappedEpisode, MappedTier, mapped_worlds
from dreamgym.dream.model import ExperienceModel, Judge, Part, Prediction, Query, StepTier
from dreamgym.dream.objects import OBJECTS
from dreamgym.dream.recorded import RecordedTier
from dreamgym.dream.refused import RefusedTier
from dreamgym.dream.synthesized import SynthesizedTier
from dreamgym.dream.viewed import ViewsTier
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished, NotRecorded, PredictionError
from dreamgym.replay.buffer import GROUNDED, Demonstration, ReplayBuffer, Retrieval
from dreamgym.spans import TimedSpan
from dreamgym.state import State, shown_in, with_facts
from dreamgym.tools import is_forbidden
from dreamgym.types import JsonObject, Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Transition

ENDED = "The session has ended."
"""The observation of the last step of an episode that is out of support."""
CANDIDATES = 8
"""Transitions retrieved for each that is shown, if there are several tools. Retrieval weighs the state most: on a
recorded file system only a quarter of the nearest transitions were calls of the called tool."""
OF_TOOL = 48
"""Transitions of the called tool that are retrieved at least, if states are explicit."""


class DreamEnvironment:
    """Plays one episode of a simulated environment.

    Args:
        spec: what is simulated.
        model: predicts each step.
        buffer: grounds each prediction in recorded transitions.
        episode_id: the running episode, which retrieval never returns.
        as_of: a watermark of the buffer; what was stored after it is not there. Episodes of one group share it, so that
            they differ by the policy alone.
        without: parts of the method that are left out, to show what they are worth.
        calibration: gives each prediction of the model its confidence.
        min_confidence: an episode ends, out of support, where a prediction has less.
        k: so many recorded transitions are shown to the model; None: as many as it wants.

    Raises:
        InvalidInput: the calibration is none of this model and environment.
    """

    def __init__(
        self,
        spec: EnvironmentSpec,
        model: ExperienceModel,
        buffer: ReplayBuffer,
        *,
        episode_id: str = "",
        as_of: int | None = None,
        without: frozenset[Part] = frozenset(),
        calibration: Calibration | None = None,
        min_confidence: float = 0.0,
        k: int | None = None,
    ) -> None:
        check_calibration(calibration, min_confidence, model=model.name, env=spec.name)
        self._spec = spec
        self._model = model
        self._buffer = buffer
        self._episode_id = episode_id
        self._as_of = as_of
        self._shown = model.demonstrations if k is None else k
        self._tiers = tiers_of(spec, model, buffer, shown=self._shown, without=without)
        self._without = without
        self._calibration = calibration
        self._min_confidence = min_confidence
        self._has_objects = not without & {Part.EFFECTS, Part.STATE, Part.RETRIEVAL}
        self._objects: MappedEpisode | None = None
        self._is_resumed = False
        self._task: Task | None = None
        self._seed = 0
        self._transitions: tuple[Transition, ...] = ()
        self.asked: tuple[Query, Prediction] | None = None
        """The last step's question and what the model answered, for those who measure it; None where it was not asked
        or had no answer. All that was found is in the question, not only what the model was shown."""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The real system's tools, as recorded."""
        return self._spec.tools

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The steps so far, with provenance."""
        return self._transitions

    @property
    def provenance(self) -> Provenance | None:
        """How the last answer came about; None before the first."""
        return self._transitions[-1].provenance if self._transitions else None

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the task in its recorded initial state."""
        self._task, self._seed, self._transitions = task, seed or 0, ()
        self._objects = await self._object_episode(task)
        return self._spec.first(task)

    def resume(self, task: Task, *, seed: int, transitions: Sequence[Transition]) -> None:
        """Continue an episode that another process began."""
        self._task, self._seed, self._transitions = task, seed, tuple(transitions)
        self._objects, self._is_resumed = None, True

    async def _object_episode(self, task: Task) -> MappedEpisode | None:
        """The episode in the dream of objects or pages, as far as it was played; None if it is not played in one."""
        self._is_resumed = False
        known = await mapped_worlds(self._spec, self._buffer) if self._has_objects else None
        episode = None if known is None else known.episode(task)
        return episode if episode is not None and episode.resume(self._transitions) else None

    async def step(self, action: ToolCall) -> StepResult:
        """Predict one step and remember it. Raises EpisodeFinished, PredictionError, StoreError."""
        task = self._playing()
        if self._is_resumed:
            self._objects = await self._object_episode(task)
        self.asked = None
        if self._objects is not None and self._calibration is None:
            prediction = self._mapped(self._objects, action, task)
            if prediction is not None:
                return self._remember(action, self._state(task), prediction, _result(prediction))
        query = await self._query(action)
        objects = [] if self._objects is None else [MappedTier(self._objects)]
        for tier in (*objects, *self._tiers):
            with TimedSpan("tier", asked=_name_of(tier)) as asking:
                prediction = await tier.answer(query)
                asking.note(answered=prediction is not None)
            if prediction is not None:
                break
        else:
            raise PredictionError(f"no tier of environment {self._spec.name!r} answers {action.name!r}")
        if tier.infers:
            self.asked = query, prediction
            if self._calibration is not None and prediction.provenance.tier is not Tier.RECORDED:
                confidence = self._calibration.confidence(features(query, prediction))
                prediction = prediction.noted(confidence=confidence)
                if confidence < self._min_confidence:  # nobody can tell the rest: nothing happened, nothing is made up
                    stop: JsonObject = {"state": self._state(task), "stop": StopReason.OUT_OF_SUPPORT.value}
                    over = StepResult(observation=ENDED, truncated=True, is_error=True, info=stop)
                    return self._remember(action, self._state(task), prediction, over)
        if not isinstance(tier, MappedTier):
            if self._objects is None or not self._objects.decides_ends:
                prediction = await ended(query, prediction, self._model)
            if self._objects is not None:
                prediction = self._objects.read(action, prediction, is_judged=isinstance(self._model, Judge))
        return self._remember(action, self._state(task), prediction, _result(prediction))

    def _mapped(self, objects: MappedEpisode, action: ToolCall, task: Task) -> Prediction | None:
        """The answer on mapped states, which needs no retrieval. Raises NotRecorded where no other tier knows more."""
        prediction = objects.answer(action, self._state(task), seed=self._seed)
        if prediction is None and objects.is_all_recorded and getattr(self._model, "repeats", False):
            raise NotRecorded(f"no recorded page shows what {action.name!r} leads to: record more calls of it")
        return prediction

    def _playing(self) -> Task:
        if self._task is None:
            raise EpisodeFinished("no episode is running: call reset first")
        if self._transitions and self._transitions[-1].result.done:
            raise EpisodeFinished("the episode is over: reset starts a new one")
        return self._task

    def _state(self, task: Task) -> str:
        return self._transitions[-1].next_state if self._transitions else task.initial_state or ""

    async def _query(self, action: ToolCall) -> Query:
        task = self._playing()
        state = self._state(task)
        with TimedSpan("retrieval") as retrieval:
            demonstrations = await self._retrieved(task, state, action)
            retrieval.note(found=len(demonstrations))
        return Query(
            spec=self._spec,
            task=task,
            history=self._transitions,
            state=State.of(state, self._spec.state),
            action=action,
            demonstrations=demonstrations,
            seed=self._seed,
            without=self._without,
        )

    async def _retrieved(self, task: Task, state: str, action: ToolCall) -> tuple[Demonstration, ...]:
        """What was recorded near the step, best first.

        If there are several tools, the same call comes first, then the same tool.
        Explicit states are long and alike, so there the called tool is searched for by itself as well: what it refuses
        and what its answers show is learned from that.
        A recorded call that its tool's schema forbids is not returned for one that it allows: it was refused for its
        form.
        """
        if Part.RETRIEVAL in self._without:
            return ()
        spec, knows_history = self._spec, Part.HISTORY not in self._without
        # a model that wants none is shown none; what was recorded of this very call still answers before it
        wanted = max(1, self._shown)
        retrieval = Retrieval(
            env=spec.name,
            state=state,
            action=action,
            k=wanted if spec.text_argument is not None else wanted * CANDIDATES,
            history=self._transitions if knows_history else None,
            initial_state=task.initial_state or "",
            world=task.world if knows_history and spec.deterministic else "",
            goal=task.goal,
            exclude=self._episode_id,
            sources=GROUNDED | {Source.SYNTHETIC} if self._model.learns_from_dreams else GROUNDED,
            seed=self._seed if knows_history else _step_seed(self._seed, len(self._transitions)),
            as_of=self._as_of,
        )
        found = await self._buffer.nearest(retrieval)
        if spec.text_argument is not None:
            return found
        if spec.state is not None and not any(shown.exact for shown in found):
            of_tool = {"tool": action.name, "k": max(retrieval.k, OF_TOOL)}
            same_tool = await self._buffer.nearest(retrieval.model_copy(update=of_tool))
            found = tuple({shown.id: shown for shown in (*same_tool, *found)}.values())
        if not is_forbidden(spec, action):
            found = tuple(
                shown
                for shown in found
                if not (shown.transition.result.is_error and is_forbidden(spec, shown.transition.action))
            )
        call = action.canonical()

        def of_another_call(demonstration: Demonstration) -> tuple[bool, bool]:
            recorded = demonstration.transition.action
            return recorded.canonical() != call, recorded.name != action.name

        return tuple(sorted(found, key=of_another_call))

    def _remember(self, action: ToolCall, state: str, prediction: Prediction, result: StepResult) -> StepResult:
        if self._objects is not None and self._objects.changed:
            result = result.model_copy(update={"info": {**result.info, OBJECTS: self._objects.changed}})
        transition = Transition(
            state=state,
            action=action,
            result=result,
            next_state=result.state,
            reasoning=prediction.reasoning,
            provenance=prediction.provenance,
        )
        self._transitions = (*self._transitions, transition)
        return result

    async def close(self) -> None:
        """Nothing to release: model and buffer belong to whoever made them."""


def tiers_of(
    spec: EnvironmentSpec, model: ExperienceModel, buffer: ReplayBuffer, *, shown: int, without: frozenset[Part]
) -> tuple[StepTier, ...]:
    """The tiers of an environment.

    Args:
        spec: what is simulated.
        model: the last tier.
        buffer: the recordings.
        shown: how many recorded transitions the model is shown.
        without: parts of the method that are left out. Without RETRIEVAL no tier reads recordings.
    """
    tiers: list[StepTier] = []
    if spec.deterministic and not without & {Part.RECORDED, Part.RETRIEVAL}:
        tiers.append(RecordedTier())
    if spec.state is not None and not without & {Part.CHECKS, Part.STATE, Part.RETRIEVAL}:
        tiers.append(RefusedTier())
    if spec.state is not None and not without & {Part.EFFECTS, Part.STATE, Part.RETRIEVAL}:
        tiers.append(AgreeingTier(SynthesizedTier(spec, spec.state, buffer)))
    has_views = spec.has_views or (spec.state is not None and Part.STATE in without)
    views = ViewsTier(spec, buffer) if has_views and Part.RETRIEVAL not in without else None
    if views is not None and Part.VIEWS not in without:
        tiers.append(views)
    tiers += [AgreeingTier(make(spec), Tier.PLUGIN) for make in of_other_packages()]
    return (*tiers, ModelTier(model, shown, views))


class AgreeingTier:
    """The answers of another tier that do not contradict the state.

    Args:
        tier: is asked.
        name: what provenance records; None: what the tier itself writes there.
    """

    infers = True

    def __init__(self, tier: StepTier, name: Tier | None = None) -> None:
        self.tier = tier
        self._name = name

    async def answer(self, query: Query) -> Prediction | None:
        """Its answer, None also if that contradicts the state. Raises PredictionError."""
        prediction = await self.tier.answer(query)
        if prediction is None or contradiction(query, prediction):
            return None
        if self._name is not None:
            prediction = prediction.noted(tier=self._name)
        return _with_shown_facts(query, prediction)


class ModelTier:
    """The experience model, which answers or raises.

    Args:
        model: is asked.
        shown: how many of the transitions that were found it is shown.
        views: puts those first that hold the facts of this world; None: they stay as they were found.
    """

    infers = True

    def __init__(self, model: ExperienceModel, shown: int, views: ViewsTier | None = None) -> None:
        self._model = model
        self._shown = shown
        self._views = views

    async def answer(self, query: Query) -> Prediction:
        """The model's prediction. Raises PredictionError, also if that contradicts the state."""
        if query.spec.state is not None:
            # this reads many states, in which time a server would answer nobody else
            query = query.model_copy(update={"changeable": await asyncio.to_thread(changeable, query)})
        if self._views is not None:
            query = await self._views.with_facts(query)
        shown = query.model_copy(update={"demonstrations": query.demonstrations[: self._shown]})
        prediction = await self._model.predict(shown)
        # what holds under the recordings that a model was shown holds under all of them
        if not getattr(self._model, "checks_state", False) and (fault := contradiction(query, prediction)):
            raise PredictionError(f"model {self._model.name!r}: {fault}")
        learned = _with_shown_facts(query, prediction)
        return learned.noted(unbounded=True) if self._is_unbounded(query, prediction, learned) else learned

    def _is_unbounded(self, query: Query, prediction: Prediction, learned: Prediction) -> bool:
        """True if the model's word alone changed the state, or added to it what its answer shows.

        A model that is no judge is no language model, which can be talked into facts; if nothing is recorded, there is
        nobody but it to believe.
        """
        is_invented = prediction.provenance.tier in {Tier.MODEL, Tier.CACHE} and not prediction.provenance.exact
        if query.spec.state is None or prediction.is_error or not is_invented:
            return False
        if query.without & {Part.STATE, Part.CHECKS}:
            return False
        is_changed = prediction.next_state != query.state.text and query.changeable is None
        if isinstance(self._model, Judge):
            return is_changed or learned.next_state != prediction.next_state
        return is_changed and bool(query.demonstrations)


def _with_shown_facts(query: Query, prediction: Prediction) -> Prediction:
    """The prediction with what its answer shows of entities that the state knows in part."""
    schema = query.spec.state
    if schema is None or Part.STATE in query.without or prediction.is_error:
        return prediction
    return prediction.model_copy(update={"next_state": with_facts(prediction.next_state, shown_in(prediction), schema)})


def _name_of(tier: StepTier) -> str:
    """The class of a tier, as traces name it."""
    return type(tier.tier if isinstance(tier, AgreeingTier) else tier).__name__


@cache
def of_other_packages() -> tuple[Callable[[EnvironmentSpec], StepTier], ...]:
    """Constructors of the tiers of other packages. Read once: to search installed packages takes 10 ms or more."""
    points = sorted(entry_points(group="dreamgym.tiers"), key=lambda point: point.name)
    return tuple(point.load() for point in points)


def _result(prediction: Prediction) -> StepResult:
    info: JsonObject = {}
    if prediction.next_state != prediction.observation:
        info["state"] = prediction.next_state
    if prediction.provenance.open_end:
        info["open_end"] = True
    if prediction.content is not None:
        info["content"] = list(prediction.content)
    if prediction.structured is not None:
        info["structured"] = prediction.structured
    is_open = prediction.terminated and prediction.provenance.open_end  # it is over, and nobody knows what it is worth
    return StepResult(
        observation=prediction.observation,
        reward=1.0 if prediction.success and prediction.terminated else 0.0,
        terminated=prediction.terminated and not is_open,
        truncated=is_open,
        is_error=prediction.is_error,
        info=info,
    )


def _step_seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=7).digest(), "big")
