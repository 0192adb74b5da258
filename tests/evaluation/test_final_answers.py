"""How recorded final answers would be rewarded."""

import json

import pytest
from desk import SPEC, DeskModel, call, recorded, task

from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.embedding import TrigramEncoder
from dreamgym.evaluation.final_answers import EpisodeVerdict, final_answers, verdicts_on, with_outcome
from dreamgym.evaluation.predictions import predict, steps_of
from dreamgym.llm import ScriptedLLM
from dreamgym.types import Source, StopReason, Trajectory

pytestmark = pytest.mark.anyio

YES, NO = (json.dumps({"reasoning": "", "accomplished": verdict}) for verdict in (True, False))


async def ended(*, done: bool, reward: float | None, checked: bool = True) -> Trajectory:
    """An episode in which order 1 was shipped or only read, with its recorded reward."""
    played = await recorded(task(1, checked=checked), call("ship" if done else "get", "O-1"))
    return played.model_copy(update={"answer": "shipped", "final_reward": reward})


async def verdicts(
    model: ExperienceModel, *episodes: Trajectory, without: tuple[Part, ...] = ()
) -> list[EpisodeVerdict]:
    return [one async for one in verdicts_on(SPEC, model, with_outcome(episodes), without=without)]


async def test_the_check_of_a_task_decides_and_the_judge_is_measured_beside_it() -> None:
    episodes = [await ended(done=True, reward=1.0), await ended(done=False, reward=0.0)]
    found = final_answers(await verdicts(LanguageModel(ScriptedLLM([YES, NO, YES] * 2)), *episodes), known=2)
    assert found is not None
    assert (found.reward.precision.mean, found.reward.recall.mean, found.decided.mean) == (1.0, 1.0, 1.0)
    assert (found.judge.precision.mean, found.judge.recall.mean) == (0.5, 1.0)
    assert (found.disagreed.mean, found.disagreed.n) == (0.5, 2)


@pytest.mark.parametrize("checked", [True, False])
async def test_without_a_check_the_judge_decides(checked: bool) -> None:
    episode = await ended(done=False, reward=0.0, checked=checked)
    without = (Part.CHECKS,) if checked else ()
    (one,) = await verdicts(LanguageModel(ScriptedLLM([YES, NO, YES])), episode, without=without)
    assert (one.recorded, one.rewarded, one.checked) == (False, True, None)


async def test_the_judge_is_also_asked_about_an_agent_that_finished_without_an_answer() -> None:
    episode = await ended(done=True, reward=1.0, checked=False)
    for reason, verdict in ((StopReason.FINISHED, True), (StopReason.CLOSED, None)):
        silent = episode.model_copy(update={"answer": None, "stop_reason": reason})
        (one,) = await verdicts(LanguageModel(ScriptedLLM([YES, NO, YES])), silent)
        assert (one.recorded, one.rewarded) == (True, verdict)


async def test_an_imported_episode_has_its_outcome_in_its_last_step() -> None:
    episode = await ended(done=True, reward=None)
    *others, last = episode.transitions
    over = last.model_copy(update={"result": last.result.model_copy(update={"terminated": True, "reward": 1.0})})
    told = episode.model_copy(update={"source": Source.IMPORTED, "transitions": (*others, over)})
    assert [one.recorded for one in await verdicts(LanguageModel(ScriptedLLM([YES, NO, YES])), told)] == [True]
    assert with_outcome([episode]) == []


async def test_an_answer_that_is_json_is_no_state_for_the_check_if_the_environment_has_no_states() -> None:
    episode, stateless = await ended(done=True, reward=1.0), SPEC.model_copy(update={"state": None})
    assert "success" in episode.task.metadata
    for spec, checked in ((SPEC, True), (stateless, None)):
        (one,) = [one async for one in verdicts_on(spec, DeskModel(), [episode])]
        assert one.checked is checked
        predicted = await predict(spec, DeskModel(), [], steps_of([episode]), TrigramEncoder())
        assert predicted[-1].accomplished is checked


async def test_without_check_and_judge_nothing_is_decided_and_nothing_rewarded() -> None:
    episode = await ended(done=True, reward=1.0, checked=False)
    for model in (DeskModel(), LanguageModel(ScriptedLLM(["no", "verdict"]))):
        found = final_answers(await verdicts(model, episode), known=1)
        assert found is not None
        assert (found.decided.mean, found.reward.recall.mean, found.reward.precision.n) == (0.0, 0.0, 0)


async def test_episodes_without_a_recorded_outcome_are_left_out() -> None:
    unknown = await ended(done=True, reward=None)
    assert await verdicts(DeskModel(), unknown) == []
    assert final_answers([], known=0) is None
