"""Where a dream's reward comes from: the task's own check, a recording of a task with this goal, or a judge."""

import json
from collections.abc import Callable, Sequence

import pytest
from queries import HOUSE

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import ExperienceModel, Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.task_check import accomplished, require_usable_check
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.testing.replay import sample_trajectory, sample_transition
from dreamgym.types import JsonObject, Provenance, Source, StepResult, Task, Tier, ToolCall

pytestmark = pytest.mark.anyio

WORLD = HOUSE.model_copy(update={"name": "contract", "deterministic": True})
KITCHEN, HALL = "kitchen", "hall"
TO_HALL = sample_transition(KITCHEN, "north", HALL)
WIN = sample_transition(HALL, "focus on dove", "You focus on the dove.", reward=1.0, terminated=True)
LIVING, LIFELESS = "Focus on a living thing.", "Focus on a NON-living thing."

Says = Callable[[str], dict[str, object]]
"""Maps an action's text to the keys of the model's answer that a test sets."""


def task(instruction: str = LIVING, **metadata: object) -> Task:
    return Task.model_validate(
        {"id": "t", "env": WORLD.name, "instruction": instruction, "initial_state": KITCHEN, "metadata": metadata}
    )


VERDICTS = [((True, False, True), 1.0), ((True, False, False), 0.0), ((True, True), 0.0), ((False,), 0.0)]
"""Verdicts on the steps, on the start alone, and on the steps without the agent's words; and the reward."""


class Scripted(ScriptedLLM):
    """Predicts by a rule, judges by a list, and keeps the questions."""

    def __init__(self, says: Says | None = None, verdicts: Sequence[bool | str] = ()) -> None:
        self._left = list(verdicts)
        self.predicted: list[str] = []
        self.judged: list[str] = []
        self._says = says or (lambda action: {})
        super().__init__(self._answer)

    def _answer(self, messages: Sequence[Message]) -> str:
        text = messages[-1].content
        if "You check" in messages[0].content:
            self.judged.append(text)
            verdict = self._left.pop(0)
            return verdict if isinstance(verdict, str) else json.dumps({"reasoning": "So.", "accomplished": verdict})
        self.predicted.append(text)
        action = json.loads(text.split("<action>")[1].split("</action>")[0])["arguments"]["command"]
        said = {"reasoning": "", "observation": "nothing", "state": None, "error": False, "terminated": False}
        return json.dumps({**said, "success": False, **self._says(action)})


async def dream(
    model: ExperienceModel, running: Task, *, recorded_for: str = LIVING, without: frozenset[Part] = frozenset()
) -> DreamEnvironment:
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([sample_trajectory("win", TO_HALL, WIN, world="w", instruction=recorded_for)])
    made = DreamEnvironment(WORLD, model, buffer, without=without)
    await made.reset(running, seed=1)
    return made


async def played(made: DreamEnvironment, *commands: str) -> StepResult:
    for command in commands:
        result = await made.step(ToolCall(name="act", arguments={"command": command}))
    return result


@pytest.mark.parametrize("without", [frozenset(), frozenset({Part.RECORDED})], ids=["recorded", "nearest"])
@pytest.mark.parametrize(("instruction", "reward"), [(LIVING, 1.0), (LIFELESS, 0.0)])
async def test_a_recorded_success_is_repeated_only_for_a_task_with_its_goal(
    instruction: str, reward: float, without: frozenset[Part]
) -> None:
    made = await dream(NearestModel(), task(instruction), without=without)
    result = await played(made, "north", "focus on dove")
    assert (result.observation, result.reward, result.terminated) == (WIN.result.observation, reward, reward > 0)
    assert made.transitions[-1].provenance.open_end is (reward == 0)


@pytest.mark.parametrize(
    ("recorded_for", "running", "reward"), [("", "", 1.0), ("", LIVING, 0.0), (LIVING, "", 0.0), ("", "other", 0.0)]
)
async def test_a_success_that_was_recorded_without_an_instruction_is_repeated_only_for_the_same_open_task(
    recorded_for: str, running: str, reward: float
) -> None:
    recorded = sample_trajectory("win", WIN, instruction=recorded_for).task
    asked = task(running).model_copy(update={"id": recorded.id if running != "other" else "t"})
    asked = asked.model_copy(update={"instruction": "" if running == "other" else running})
    result = await played(await dream(NearestModel(), asked, recorded_for=recorded_for), "north", "focus on dove")
    assert result.reward == reward


@pytest.mark.parametrize(("verdicts", "reward"), VERDICTS)
async def test_a_judge_decides_the_end_that_was_recorded_for_another_goal(
    verdicts: tuple[bool, ...], reward: float
) -> None:
    llm = Scripted(verdicts=verdicts)
    made = await dream(LanguageModel(llm), task(LIFELESS))
    result = await played(made, "north", "focus on dove")
    assert (result.observation, result.reward, result.terminated) == (WIN.result.observation, reward, reward > 0)
    assert (llm.predicted, len(llm.judged)) == ([], len(verdicts))
    assert LIFELESS in llm.judged[0]
    assert "focus on dove" in llm.judged[0]
    assert all("focus on dove" not in asked for asked in llm.judged[1:]), "the second time without the agent's words"
    last = made.transitions[-1].provenance
    assert (last.tier, last.judged, last.open_end) == (Tier.RECORDED, reward > 0, False)


@pytest.mark.parametrize("k", [None, 1])
async def test_a_success_that_other_recordings_of_its_world_contradict_is_not_repeated(k: int | None) -> None:
    """Something hidden decides the outcome: the same thermometer shows another temperature."""
    other = sample_transition(HALL, "focus on dove", "You focus on the dove, which sleeps.")
    for world, reward in (("w", 0.0), ("another", 1.0)):
        buffer = MemoryBuffer(TrigramEncoder())
        await buffer.add([sample_trajectory("win", TO_HALL, WIN, world="w", instruction=LIVING)])
        await buffer.add([sample_trajectory("other", other, world=world, instruction=LIVING)])
        made = DreamEnvironment(WORLD, NearestModel(), buffer, k=k)
        await made.reset(task(), seed=1)
        assert (await played(made, "north", "focus on dove")).reward == reward


@pytest.mark.parametrize("number", range(4))
async def test_an_end_that_its_own_world_recorded_with_and_without_success_is_open(number: int) -> None:
    """Nothing decides but the draw of an id, so each of several wordings draws anew."""
    buffer, told = MemoryBuffer(TrigramEncoder()), f"Your answer {number} was recorded."
    for name, reward in (("right", 1.0), ("wrong", 0.0)):
        submit = sample_transition(KITCHEN, "submit", told, reward=reward, terminated=True)
        await buffer.add([sample_trajectory(name, submit, world="w", instruction=LIVING)])
    made = DreamEnvironment(WORLD, NearestModel(), buffer)
    await made.reset(task(), seed=1)
    result = await played(made, "submit")
    assert (result.observation, result.reward, result.terminated) == (told, 0.0, False)
    assert result.info["open_end"] is True


@pytest.mark.parametrize("reward", [0.0, 1.0])
async def test_the_success_of_a_dream_is_not_repeated_as_a_recorded_one(reward: float) -> None:
    recorded = sample_transition(KITCHEN, "focus on dove", "You focus.", reward=reward, terminated=reward > 0)
    dreamed = sample_transition(KITCHEN, "focus on dove", "You focus.", reward=1.0, terminated=True)
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([sample_trajectory("recorded", recorded, world="t", instruction=LIFELESS)])
    await buffer.add([sample_trajectory("dreamed", dreamed, instruction=LIVING, source=Source.SYNTHETIC)])
    llm = Scripted(verdicts=[False])
    made = DreamEnvironment(WORLD, LanguageModel(llm), buffer)
    await made.reset(task(), seed=1)
    result = await played(made, "focus on dove")
    assert (result.observation, result.reward, result.terminated) == ("You focus.", 0.0, False)
    assert (llm.predicted, len(llm.judged)) == ([], 1 if reward else 0)


async def test_a_model_that_is_right_earns_its_reward_after_a_step_that_it_invented() -> None:
    def right(action: str) -> dict[str, object]:
        if action == "jump":
            return {"observation": HALL}
        return {"observation": WIN.result.observation, "terminated": True, "success": True}

    llm = Scripted(right, verdicts=[True, False, True])
    made = await dream(LanguageModel(llm), task())
    result = await played(made, "jump", "focus on dove")
    assert (result.reward, result.terminated) == (1.0, True)
    assert [step.provenance.tier for step in made.transitions] == [Tier.MODEL, Tier.MODEL]
    assert (len(llm.predicted), len(llm.judged)) == (2, 3)
    assert made.transitions[-1].state == HALL


async def test_the_judge_sees_the_text_of_the_state_that_the_deciding_step_led_to() -> None:
    lit = {"observation": "Done.", "state": "hall. lamp: lit.", "terminated": True, "success": True}
    llm = Scripted(lambda action: lit, verdicts=[True, False, True])
    made = await dream(LanguageModel(llm), task("Light the lamp."))
    result = await played(made, "light the lamp")
    assert (result.state, result.reward) == ("hall. lamp: lit.", 1.0)
    with_words, _, without_words = llm.judged
    assert "lamp: lit." in with_words
    assert "lamp: lit." in without_words


async def test_a_claim_that_the_agent_dictates_to_the_state_does_not_convince_the_judge_alone() -> None:
    claim = "you have won this game"
    dictated = {"observation": "Done.", "state": f"hall. {claim}.", "terminated": True, "success": True}
    llm = Scripted(lambda action: dictated, verdicts=[True, False, False])
    result = await played(await dream(LanguageModel(llm), task()), claim)
    assert (result.reward, len(llm.judged)) == (0.0, 3)
    assert "won" not in llm.judged[-1]


async def test_after_an_invented_step_nearest_repeats_the_words_and_leaves_the_end_open() -> None:
    made = await dream(NearestModel(), task())
    invented = sample_transition(KITCHEN, "jump", HALL)
    provenance = invented.provenance.model_copy(update={"tier": Tier.MODEL})
    made.resume(task(), seed=1, transitions=[invented.model_copy(update={"provenance": provenance})])
    result = await played(made, "focus on dove")
    assert (result.observation, result.reward, result.terminated) == (WIN.result.observation, 0.0, False)
    assert result.info["open_end"] is True


@pytest.mark.parametrize(("verdicts", "reward"), VERDICTS)
async def test_an_end_that_the_model_missed_is_put_to_the_judge_if_similar_steps_ended_tasks(
    verdicts: tuple[bool, ...], reward: float
) -> None:
    llm = Scripted(lambda action: {"observation": f"You do it: {action.split()[0]}."}, verdicts)
    made = await dream(LanguageModel(llm), task())
    result = await played(made, "focus on lamp")
    assert (result.reward, result.terminated) == (reward, reward > 0)
    assert len(llm.judged) == len(verdicts)
    if reward == 0:
        assert not (await played(made, "walk")).done
        assert len(llm.judged) == len(verdicts), "no similar step ever ended a task"


async def test_a_judge_that_answers_rubbish_leaves_the_end_open_and_it_can_be_decided_later() -> None:
    claim = {"observation": "done", "terminated": True, "success": True}
    llm = Scripted(lambda action: claim, verdicts=["yes", "no", True, False, True])
    made = await dream(LanguageModel(llm), task())
    first = await played(made, "sing")
    assert (first.reward, first.terminated, first.info["open_end"]) == (0.0, False, True)
    second = await played(made, "sing again")
    assert (second.reward, second.terminated, "open_end" in second.info) == (1.0, True, False)


async def test_a_recorded_end_of_unknown_worth_stays_an_end_if_the_judge_answers_rubbish() -> None:
    left = WIN.result.model_copy(update={"reward": 0.0})
    unjudged = WIN.model_copy(update={"result": left, "provenance": Provenance(tier=Tier.REAL, open_end=True)})
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([sample_trajectory("left", TO_HALL, unjudged, instruction=LIVING)])
    made = DreamEnvironment(WORLD, LanguageModel(Scripted(verdicts=["yes", "no"])), buffer)
    await made.reset(task(), seed=1)
    result = await played(made, "north", "focus on dove")
    assert (result.observation, result.done, result.reward) == (WIN.result.observation, True, 0.0)
    assert result.info["open_end"] is True


async def test_the_judge_is_not_asked_about_a_step_that_a_recording_of_this_goal_shows_not_to_end() -> None:
    buffer = MemoryBuffer(TrigramEncoder())
    stays = sample_transition(KITCHEN, "focus on dove", "There is no dove.")
    await buffer.add(
        [
            sample_trajectory("win", TO_HALL, WIN, instruction=LIVING),
            sample_trajectory("stays", stays, world="other", instruction=LIVING),
        ]
    )
    llm = Scripted()
    made = DreamEnvironment(WORLD, LanguageModel(llm), buffer)
    await made.reset(task(), seed=1)
    assert not (await played(made, "focus on dove")).done
    assert (llm.predicted, llm.judged) == ([], [])


@pytest.mark.parametrize(("needed", "reward"), [(["hall"], 1.0), (["hall", "hall"], 0.0), (["cellar"], 0.0)])
async def test_a_check_may_require_answers_of_the_environment(needed: list[str], reward: float) -> None:
    made = await dream(NearestModel(), task(LIFELESS, answers=needed))
    result = await played(made, "north", "focus on dove")
    assert (result.reward, made.transitions[-1].provenance.checked) == (reward, reward > 0)


@pytest.mark.parametrize("answers", [None, []])
async def test_a_check_that_asks_for_no_answer_decides_nothing(answers: list[str] | None) -> None:
    made = await dream(NearestModel(), task(LIFELESS, answers=answers))
    result = await played(made, "north", "focus on dove")
    assert (result.reward, result.terminated, result.info["open_end"]) == (0.0, False, True)
    assert accomplished(task(answers=answers, success={"required": ["n"]}), '{"n": 1}') is True


@pytest.mark.parametrize("check", [{}, True])
def test_a_check_that_every_state_satisfies_decides_nothing(check: object) -> None:
    assert accomplished(task(success=check), '{"n": 1}') is None
    assert accomplished(task(success=check, answers=["hall"]), '{"n": 1}', ["hall"]) is True
    assert accomplished(task(success=check, answers=["hall"]), '{"n": 1}', ["attic"]) is False


async def test_a_check_of_the_state_does_not_read_an_answer_that_happens_to_be_json() -> None:
    found = sample_transition(KITCHEN, "search", '{"results": []}', reward=1.0, terminated=True)
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([sample_trajectory("found", found, instruction=LIVING)])
    made = DreamEnvironment(WORLD, NearestModel(), buffer)
    await made.reset(task(LIFELESS, success={"type": "object"}), seed=1)
    result = await played(made, "search")
    assert (result.reward, result.terminated, result.info["open_end"]) == (0.0, False, True)


@pytest.mark.parametrize(("verdicts", "reward"), VERDICTS)
async def test_a_judge_must_agree_if_a_check_needs_an_answer_that_a_language_model_made_up(
    verdicts: tuple[bool, ...], reward: float
) -> None:
    llm = Scripted(lambda action: {"observation": "Order O-7 is paid.", "terminated": True}, verdicts)
    made = await dream(LanguageModel(llm), task(LIFELESS, answers=["Order O-7 is paid."]))
    result = await played(made, "say: Order O-7 is paid.")
    assert (result.reward, result.terminated) == (reward, reward > 0)
    assert len(llm.judged) == len(verdicts)
    assert made.transitions[-1].provenance.open_end is (reward == 0)


def test_a_check_of_answers_compares_json_as_json_and_counts() -> None:
    wanted = task(answers=['{"a": 1, "b": 2}', "yes"])
    assert accomplished(wanted, "", ['{"b":2,"a":1}', "yes", "more"]) is True
    assert accomplished(wanted, "", ["yes", '{"a": 1.0, "b": 2e0}']) is True, "1 and 1.0 are one number"
    assert accomplished(wanted, "", ["yes", '{"a": 1.5, "b": 2}']) is False
    assert accomplished(wanted, "", ["yes", "yes"]) is False
    assert accomplished(task(), "", ["yes"]) is None
    assert accomplished(task(answers="yes"), "") is None
    with pytest.raises(InvalidInput, match="list of texts in metadata"):
        require_usable_check(task(answers="yes"))


def test_a_check_of_answers_reads_an_answer_that_is_nested_too_deeply_as_a_text() -> None:
    assert accomplished(task(answers=["yes"]), "", ["[" * 100_000, "yes"]) is True


@pytest.mark.parametrize(
    "check",
    [
        {"$ref": "http://127.0.0.1:9/x"},
        {"properties": {"n": {"$ref": "#/$defs/none"}}},
        {"$ref": "#"},
        {"properties": {"n": {"$ref": "#/properties/n"}}},
        {"properties": {"n": {"pattern": "("}}},
    ],
)
def test_an_unusable_check_gives_no_verdict(check: JsonObject) -> None:
    assert accomplished(task(success=check), '{"n": "x"}') is None


@pytest.mark.parametrize("check", [{"pattern": "("}, {"properties": {"n": {"patternProperties": {"(": {}}}}}])
def test_a_check_with_a_pattern_that_cannot_be_read_is_refused_before_the_episode(check: JsonObject) -> None:
    with pytest.raises(InvalidInput, match="cannot be read"):
        require_usable_check(task(success=check))
    require_usable_check(task(success={"properties": {"n": {"pattern": r"^\p{L}+$"}}}))


def test_tasks_share_a_goal_if_instruction_and_check_are_the_same() -> None:
    same = task(), task().model_copy(update={"id": "other", "initial_state": HALL}), task(seed=3)
    assert len({one.goal for one in same}) == 1
    others = task(LIFELESS), task(success={"const": 1}), task(success={"const": 2}), task(answers=["x"]), task("")
    assert len({one.goal for one in (*same, *others)}) == 6
    varied = task("", world="t").model_copy(update={"id": "varied"})
    assert varied.goal == task("").goal, "a start that was varied in the world of an open task"
    assert task("  ").goal == task("").goal


def test_only_an_environment_that_ends_its_tasks_is_over_when_they_are_done() -> None:
    tools = EnvironmentSpec(name="crm", tools_list=({"tools": [{"name": "a"}, {"name": "b"}]},))
    assert HOUSE.is_over_when_done
    assert not HOUSE.model_copy(update={"adapter": "mcp"}).is_over_when_done, "a recorded server with one tool"
    assert not tools.is_over_when_done
    assert not tools.model_copy(update={"adapter": "mcp"}).is_over_when_done
    assert tools.model_copy(update={"adapter": "bfcl"}).is_over_when_done
    assert tools.model_copy(update={"ends_itself": True}).is_over_when_done
    assert not HOUSE.model_copy(update={"ends_itself": False}).is_over_when_done
