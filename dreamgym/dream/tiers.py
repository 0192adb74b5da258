"""The tiers of a dream, in the order in which they are asked: recorded, refused, synthesized, of other packages, model.

The first two say what reality said. The others infer: what they answer must agree with an explicit state, and what it
shows of entities that are known in part is known from then on.

Another package adds a tier by an entry point of the group `dreamgym.tiers`: `(spec) -> StepTier`. All that are
installed are asked, in the order of their names. Their answers have the tier `plugin`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points

from dreamgym.dream.checks import changeable, contradiction
from dreamgym.dream.model import ExperienceModel, Judge, Part, Prediction, Query, StepTier
from dreamgym.dream.recorded import RecordedTier
from dreamgym.dream.refused import RefusedTier
from dreamgym.dream.synthesized import SynthesizedTier
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.state import shown_in
from dreamgym.state.observed import with_facts
from dreamgym.types import Tier


def tiers_of(
    spec: EnvironmentSpec, model: ExperienceModel, *, shown: int, without: frozenset[Part]
) -> tuple[StepTier, ...]:
    """The tiers of an environment.

    Args:
        spec: what is simulated.
        model: the last tier.
        shown: how many recorded transitions the model is shown.
        without: parts of the method that are left out. Without RETRIEVAL no tier reads recordings.
    """
    tiers: list[StepTier] = []
    if spec.deterministic and not without & {Part.RECORDED, Part.RETRIEVAL}:
        tiers.append(RecordedTier())
    if spec.state is not None and not without & {Part.CHECKS, Part.STATE, Part.RETRIEVAL}:
        tiers.append(RefusedTier())
    if spec.state is not None and not without & {Part.EFFECTS, Part.STATE, Part.RETRIEVAL}:
        tiers.append(AgreeingTier(SynthesizedTier()))
    tiers += [AgreeingTier(make(spec), Tier.PLUGIN) for make in of_other_packages()]
    return (*tiers, ModelTier(model, shown))


class AgreeingTier:
    """The answers of another tier that do not contradict the state.

    Args:
        tier: is asked.
        name: what provenance records; None: what the tier itself writes there.
    """

    infers = True

    def __init__(self, tier: StepTier, name: Tier | None = None) -> None:
        self._tier = tier
        self._name = name

    async def answer(self, query: Query) -> Prediction | None:
        """Its answer, None also if that contradicts the state. Raises PredictionError."""
        prediction = await self._tier.answer(query)
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
    """

    infers = True

    def __init__(self, model: ExperienceModel, shown: int) -> None:
        self._model = model
        self._shown = shown

    async def answer(self, query: Query) -> Prediction:
        """The model's prediction. Raises PredictionError, also if that contradicts the state."""
        if query.spec.state is not None:
            # this reads many states, in which time a server would answer nobody else
            query = query.model_copy(update={"changeable": await asyncio.to_thread(changeable, query)})
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


@cache
def of_other_packages() -> tuple[Callable[[EnvironmentSpec], StepTier], ...]:
    """Constructors of the tiers of other packages. Read once: to search installed packages takes 10 ms or more."""
    points = sorted(entry_points(group="dreamgym.tiers"), key=lambda point: point.name)
    return tuple(point.load() for point in points)
