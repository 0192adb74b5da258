"""DreamEnvironment: an experience model and a replay buffer behind the Environment protocol.

If the environment's reader turns its words into objects or pages, the dream is played on these (dreamgym.dream.objects,
dreamgym.dream.pages). That tier is then asked first, and its answers need no retrieval. The other tiers are asked in
this order: recorded, refused, synthesized, views, tiers of other packages, model. The first tier that has an answer
gives it. The tiers recorded and refused repeat recordings. The others infer: their answers must agree with an explicit
state. Facts that an answer shows of partly known entities are added to the state, but not from the tier synthesized:
its answers show only what is in the state and in the call, which the agent wrote. dreamgym.dream.ending decides whether
a step ends its task and what it is worth, whichever tier answered; in a dream of objects the task's check does.

Another package adds a tier with an entry point of the group `dreamgym.tiers`: `(spec) -> StepTier`. All installed
tiers are asked, in the order of their names. Their answers have the tier `plugin`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from time import perf_counter

from dreamgym.dream.checks import changeable, contradiction
from dreamgym.dream.confidence import Calibration, check_calibration, features
from dreamgym.dream.ending import ended
from dreamgym.dream.fitted import FittedModel
from dreamgym.dream.mapped import MappedEpisode, MappedTier, mapped_worlds
from dreamgym.dream.model import ExperienceModel, Judge, Part, Prediction, Query, StepTier
from dreamgym.dream.objects import OBJECTS, ObjectWorlds
from dreamgym.dream.recorded import RecordedTier
from dreamgym.dream.refused import RefusedTier
from dreamgym.dream.synthesized import SynthesizedTier
from dreamgym.dream.viewed import ViewsTier
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EpisodeFinished, NotRecorded, PredictionError
from dreamgym.plugins import plugins
from dreamgym.replay.buffer import GROUNDED, Demonstration, ReplayBuffer, Retrieval
from dreamgym.spans import TimedSpan
from dreamgym.state import State, shown_in, with_facts
from dreamgym.tools import is_forbidden
from dreamgym.types import JsonObject, Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Transition

ENDED = "The session has ended."
"""Observation of the last step of an episode that ended because a prediction was too unsure."""
CANDIDATES = 8
"""Number of transitions retrieved for each one shown, if there are several tools. Retrieval weighs the state most: on a
recorded file system only a quarter of the nearest transitions were calls of the called tool."""
IDENTICAL = 16
"""Least number of recordings of this very step to retrieve, however few the model is shown: they may contradict each
other."""
LANGUAGE_MODELS = (Judge, FittedModel)
"""These can be talked into facts. A judge is a language model; a fitted one cannot judge."""
OF_TOOL = 48
"""Least number of transitions of the called tool to retrieve, if states are explicit."""


class DreamEnvironment:
    """Plays one episode of a simulated environment.

    Args:
        spec: the simulated environment.
        model: predicts each step.
        buffer: grounds each prediction in recorded transitions.
        episode_id: the running episode, which retrieval never returns.
        as_of: a watermark of the buffer; later entries are ignored. Episodes of one group share it, so that they differ
            by the policy alone.
        without: parts of the method that are left out, to show what they are worth.
        calibration: gives each prediction of the model its confidence.
        min_confidence: an episode ends, out of support, if a prediction has a lower confidence.
        k: number of recorded transitions that the model is shown; None: as many as it wants.
        timed: note in the provenance of each step how long its answer took.

    Raises:
        InvalidInput: the calibration does not belong to this model and environment.
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
        timed: bool = False,
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
        self._is_left_out = False
        self._is_resumed = False
        self._task: Task | None = None
        self._seed = 0
        self._transitions: tuple[Transition, ...] = ()
        self._timed = timed
        self._asked_at = 0.0
        self.asked: tuple[Query, Prediction] | None = None
        """Query and prediction of the last step, for measurements; None unless a tier that infers answered the query.
        The query contains all retrieved transitions, not only those that the model was shown."""

    @property
    def spec(self) -> EnvironmentSpec:
        """The simulated environment."""
        return self._spec

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
        """Start the task in its `initial_state`. A recorded task, such as `buffer.tasks` returns, has one."""
        self._task, self._seed, self._transitions = task, seed or 0, ()
        self._objects = await self._object_episode(task)
        return self._spec.first(task)

    def resume(self, task: Task, *, seed: int, transitions: Sequence[Transition]) -> None:
        """Continue an episode that another process began."""
        self._task, self._seed, self._transitions = task, seed, tuple(transitions)
        self._objects, self._is_resumed = None, True

    async def _object_episode(self, task: Task) -> MappedEpisode | None:
        """The episode in its dream of objects or pages, after the steps so far; None if there is no such dream."""
        known = await mapped_worlds(self._spec, self._buffer) if self._has_objects else None
        self._is_resumed = False
        self._is_left_out = isinstance(known, ObjectWorlds) and known.is_left_out(task)
        episode = None if known is None else known.episode(task)
        return episode if episode is not None and episode.resume(self._transitions) else None

    async def step(self, action: ToolCall) -> StepResult:
        """Predict one step and remember it. Raises EpisodeFinished, PredictionError, StoreError."""
        task, self._asked_at = self._playing(), perf_counter()
        if self._is_resumed:
            self._objects = await self._object_episode(task)
        self.asked = None
        if self._objects is not None and self._calibration is None:
            prediction = self._mapped(self._objects, action, task)
            if prediction is not None:
                return self._remember(action, self._state(task), prediction, _result(prediction))
        query = await self._query(task, action)
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
                if confidence < self._min_confidence:  # too unsure: the state stays as it is, nothing is made up
                    stop: JsonObject = {"state": self._state(task), "stop": StopReason.OUT_OF_SUPPORT.value}
                    over = StepResult(observation=ENDED, truncated=True, is_error=True, info=stop)
                    return self._remember(action, self._state(task), prediction, over)
        if not isinstance(tier, MappedTier):
            if self._objects is None or not self._objects.decides_ends:
                prediction = await ended(query, prediction, self._model, is_left_out=self._is_left_out)
            if self._objects is not None:
                prediction = self._objects.read(action, prediction)
        return self._remember(action, self._state(task), prediction, _with_recorded_fields(query, _result(prediction)))

    def _mapped(self, objects: MappedEpisode, action: ToolCall, task: Task) -> Prediction | None:
        """The answer on mapped states, without retrieval. Raises NotRecorded if no other tier can answer either."""
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

    async def _query(self, task: Task, action: ToolCall) -> Query:
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
        """Return the recorded transitions nearest to the step, best first.

        If only a dream made this very step, its answer comes first and the nearest recordings follow: what a dream
        made up hides no recording.
        If there are several tools, recordings of the same call come first, then those of the same tool.
        Explicit states are long and alike, so then a second search is for the called tool only: from its recordings the
        dream learns what it refuses and what its answers show.
        If the tool's schema allows the call, refusals of calls that a schema forbids are dropped: those calls were
        refused for their form.
        """
        if Part.RETRIEVAL in self._without:
            return ()
        spec, knows_history = self._spec, Part.HISTORY not in self._without
        # at least one: a recording of this very call answers before the model, even if that wants to be shown none
        wanted = max(1, self._shown)
        retrieval = Retrieval(
            env=spec.name,
            state=state,
            action=action,
            k=max(wanted, IDENTICAL) if spec.is_text else wanted * CANDIDATES,
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
        is_recorded = any(shown.exact and shown.source in GROUNDED for shown in found)
        if found and found[0].exact and not is_recorded:
            recorded = await self._buffer.nearest(retrieval.model_copy(update={"sources": GROUNDED}))
            found = (found[0], *recorded)
        if spec.is_text:
            return found if is_recorded else found[:wanted]
        if spec.state is not None and not is_recorded:
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
            made = demonstration.transition.action
            return made.canonical() != call, made.name != action.name

        return tuple(sorted(found, key=of_another_call))

    def _remember(self, action: ToolCall, state: str, prediction: Prediction, result: StepResult) -> StepResult:
        if self._objects is not None and self._objects.changed:
            result = result.model_copy(update={"info": {**result.info, OBJECTS: self._objects.changed}})
        provenance = prediction.provenance
        if self._timed:
            provenance = provenance.model_copy(update={"seconds": round(perf_counter() - self._asked_at, 4)})
        transition = Transition(
            state=state,
            action=action,
            result=result,
            next_state=result.state,
            reasoning=prediction.reasoning,
            provenance=provenance,
        )
        self._transitions = (*self._transitions, transition)
        return result

    async def close(self) -> None:
        """Release nothing: model and buffer belong to the caller."""


def tiers_of(
    spec: EnvironmentSpec, model: ExperienceModel, buffer: ReplayBuffer, *, shown: int, without: frozenset[Part]
) -> tuple[StepTier, ...]:
    """The tiers of an environment, in the order in which they are asked.

    Args:
        spec: the simulated environment.
        model: the last tier.
        buffer: the recordings.
        shown: number of recorded transitions that the model is shown.
        without: parts of the method that are left out. Without RETRIEVAL no tier reads recordings.
    """
    tiers: list[StepTier] = []
    if spec.recordings_are_certain and not without & {Part.RECORDED, Part.RETRIEVAL}:
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
    """Wraps another tier and drops its answers that contradict the state.

    Args:
        tier: the wrapped tier.
        name: the tier that provenance records; None: the one that the wrapped tier records.
    """

    def __init__(self, tier: StepTier, name: Tier | None = None) -> None:
        self.tier, self.infers = tier, tier.infers
        self._name = name

    async def answer(self, query: Query) -> Prediction | None:
        """The wrapped tier's answer; None also if it contradicts the state. Raises PredictionError.

        The facts that it shows are added to the state only if the tier is of another package (`name`).
        """
        prediction = await self.tier.answer(query)
        if prediction is None or contradiction(query, prediction):
            return None
        if self._name is None:
            return prediction
        return _with_shown_facts(query, prediction.noted(tier=self._name))


class ModelTier:
    """The experience model as the last tier: it answers or raises.

    Args:
        model: the experience model.
        shown: number of retrieved transitions that it is shown.
        views: puts transitions with facts of this world first; None: they stay in the order of retrieval.
    """

    infers = True

    def __init__(self, model: ExperienceModel, shown: int, views: ViewsTier | None) -> None:
        self._model = model
        self._shown = shown
        self._views = views

    async def answer(self, query: Query) -> Prediction:
        """The model's prediction. Raises PredictionError, also if the prediction contradicts the state."""
        if query.spec.state is not None:
            # in a thread: it reads many states, and meanwhile a server must answer others
            query = query.model_copy(update={"changeable": await asyncio.to_thread(changeable, query)})
        if self._views is not None:
            query = await self._views.with_facts(query)
        # a model that only repeats must see all recordings of this very step, since they may contradict each other
        repeats = self._shown > 0 and getattr(self._model, "repeats", False)
        demonstrations = [
            shown
            for place, shown in enumerate(query.demonstrations)
            if place < self._shown or (repeats and shown.exact)
        ]
        shown = query.model_copy(update={"demonstrations": tuple(demonstrations)})
        prediction = await self._model.predict(shown)
        # more recordings only loosen the check: a model that checked its prediction need not be checked again
        if not getattr(self._model, "checks_state", False) and (fault := contradiction(query, prediction)):
            raise PredictionError(f"model {self._model.name!r}: {fault}")
        learned = _with_shown_facts(query, prediction)
        return learned.noted(unbounded=True) if self._is_unbounded(query, prediction, learned) else learned

    def _is_unbounded(self, query: Query, prediction: Prediction, learned: Prediction) -> bool:
        """True if the state changed, or gained facts that the answer shows, on the model's word alone.

        A language model can be talked into facts. The facts in the answers of another model are believed; if nothing is
        recorded, so are its changes, because there is no other source.
        """
        is_invented = prediction.provenance.tier in {Tier.MODEL, Tier.CACHE} and not prediction.provenance.exact
        if query.spec.state is None or prediction.is_error or not is_invented:
            return False
        if query.without & {Part.STATE, Part.CHECKS}:
            return False
        is_changed = prediction.next_state != query.state.text and query.changeable is None
        if isinstance(self._model, LANGUAGE_MODELS):
            return is_changed or learned.next_state != prediction.next_state
        return is_changed and bool(query.demonstrations)


def _with_shown_facts(query: Query, prediction: Prediction) -> Prediction:
    """The prediction with the facts that its answer shows of partly known entities added to its state."""
    schema = query.spec.state
    if schema is None or Part.STATE in query.without or prediction.is_error:
        return prediction
    return prediction.model_copy(update={"next_state": with_facts(prediction.next_state, shown_in(prediction), schema)})


def _name_of(tier: StepTier) -> str:
    """Class name of a tier, for traces."""
    return type(tier.tier if isinstance(tier, AgreeingTier) else tier).__name__


def of_other_packages() -> tuple[Callable[[EnvironmentSpec], StepTier], ...]:
    """Constructors of the tiers of other packages, in the order of their names."""
    found = plugins("dreamgym.tiers")
    return tuple(found[name].load() for name in sorted(found))


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
    is_open = prediction.terminated and prediction.provenance.open_end  # it is over, but its worth is unknown
    return StepResult(
        observation=prediction.observation,
        reward=1.0 if prediction.success and prediction.terminated else 0.0,
        terminated=prediction.terminated and not is_open,
        truncated=is_open,
        is_error=prediction.is_error,
        info=info,
    )


def _with_recorded_fields(query: Query, result: StepResult) -> StepResult:
    """The result with what no prediction has, from the same answer to the same call in a recording."""
    said = query.action, result.observation, result.is_error
    for one in query.demonstrations:
        known = one.transition.result
        unpredicted: JsonObject = {name: known.info[name] for name in ("meta", "fields") if name in known.info}
        if known.structured is None and "structured" in known.info:  # models predict objects only
            unpredicted["structured"] = known.info["structured"]
        is_same = (one.transition.action, known.observation, known.is_error) == said
        if unpredicted and is_same and one.source in GROUNDED:
            return result.model_copy(update={"info": {**unpredicted, **result.info}})
    return result


def _step_seed(seed: int, step: int) -> int:
    return int.from_bytes(hashlib.blake2b(f"{seed}:{step}".encode(), digest_size=7).digest(), "big")
