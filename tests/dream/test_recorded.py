"""Recorded steps are repeated exactly, and earn nothing if a step before them was invented."""

import pytest
from queries import HOUSE, act, query, transition

from dreamgym import EnvironmentSpec, Source, StepResult, StopReason, Task, ToolCall, Trajectory
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.recorded import repeat
from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import StateSchema, as_text
from dreamgym.types import JsonObject, Provenance, Tier, Transition

pytestmark = pytest.mark.anyio

KITCHEN, HALL = "kitchen. east: hall.", "hall. west: kitchen."
WON = transition(HALL, act("take coin"), "you take the coin.", reward=1.0, terminated=True)


def _made(step: Transition, *, exact: bool, tier: Tier = Tier.MODEL) -> Transition:
    return step.model_copy(update={"provenance": Provenance(tier=tier, exact=exact)})


@pytest.mark.parametrize(("deterministic", "tier"), [(True, Tier.RECORDED), (False, Tier.MODEL)])
def test_only_a_deterministic_environment_has_recorded_answers(deterministic: bool, tier: Tier) -> None:
    asked = query(HOUSE.model_copy(update={"deterministic": deterministic}), HALL, act("take coin"), WON)
    said = repeat(asked, asked.demonstrations[0])
    assert (said.provenance.tier, said.provenance.exact, said.provenance.model) == (tier, True, None)
    assert (said.observation, said.success, said.terminated) == ("you take the coin.", True, True)
    assert said.provenance.retrieved == ("d0",)


def test_a_recording_that_another_one_contradicts_is_a_guess_and_earns_nothing() -> None:
    asked = query(HOUSE, HALL, act("take coin"), WON, transition(HALL, act("take coin"), "the coin is too heavy."))
    said = repeat(asked, asked.demonstrations[0])
    assert (said.provenance.tier, said.provenance.exact) == (Tier.MODEL, False)
    assert (said.success, said.terminated, said.provenance.open_end) == (False, False, True)


async def test_at_a_server_without_state_the_last_answer_does_not_decide_what_a_success_earns() -> None:
    tools: JsonObject = {"tools": [{"name": name, "inputSchema": {}} for name in ("fix", "break", "submit")]}
    spec = EnvironmentSpec(name="ci", tools_list=(tools,), adapter="mcp", deterministic=True)
    task = Task(id="green", env="ci", instruction="Make the build green and submit.")
    fine = StepResult(observation="OK")
    won = StepResult(observation="Submitted", reward=1.0, terminated=True)
    recorded = [
        Trajectory(id=name, task=task, transitions=Transition.chain("", steps), source=Source.REAL, stop_reason=reason)
        for name, steps, reason in (
            ("good", [(ToolCall(name="fix"), fine), (ToolCall(name="submit"), won)], StopReason.TERMINATED),
            ("bad", [(ToolCall(name="break"), fine)], StopReason.CLOSED),
        )
    ]
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(recorded)
    dream = DreamEnvironment(spec, NearestModel(), buffer)
    await dream.reset(task)
    await dream.step(ToolCall(name="break"))
    submitted = await dream.step(ToolCall(name="submit"))
    assert dream.provenance is not None
    assert (submitted.reward, submitted.terminated, dream.provenance.open_end) == (0.0, False, True)


def test_an_end_that_the_real_environment_could_not_judge_stays_open_in_a_dream() -> None:
    sent = transition(HALL, act("say it is one coin"), "sent")
    unjudged = sent.model_copy(update={"provenance": Provenance(tier=Tier.REAL, open_end=True)})
    asked = query(HOUSE, HALL, act("say it is one coin"), unjudged)
    assert repeat(asked, asked.demonstrations[0]).provenance.open_end is True


@pytest.mark.parametrize(
    ("step", "earns"),
    [
        (_made(transition(KITCHEN, act("move east"), HALL), exact=False, tier=Tier.REAL), True),
        (_made(transition(KITCHEN, act("move east"), HALL), exact=True), True),
        (_made(transition(KITCHEN, act("move east"), HALL), exact=False), False),
        (_made(transition(KITCHEN, act("move east"), HALL), exact=False, tier=Tier.CACHE), False),
        (_made(transition(HALL, act("look"), "a hall.", HALL), exact=False), True),
    ],
    ids=["real", "repeated", "invented", "invented and remembered", "changed nothing"],
)
def test_a_recorded_success_after_an_invented_state_earns_nothing(step: Transition, earns: bool) -> None:
    asked = query(HOUSE, HALL, act("take coin"), WON, history=(step,))
    said = repeat(asked, asked.demonstrations[0])
    assert (said.success, said.terminated) == (earns, earns)
    assert said.observation == "you take the coin."


def test_a_recorded_success_may_follow_predicted_changes_if_the_task_checks_the_state_itself() -> None:
    spec = HOUSE.model_copy(update={"state": StateSchema(values={"coins": "integer"})})
    before, after = as_text({"coins": 0}), as_text({"coins": 1})
    won = transition(before, act("take coin"), "taken", after, reward=1.0, terminated=True)
    moved = _made(transition(as_text({"coins": 3}), act("pay"), "paid", before), exact=False)
    check: JsonObject = {"properties": {"coins": {"minimum": 1}}}
    asked = query(spec, before, act("take coin"), won, history=(moved,), metadata={"success": check})
    unchecked = query(spec, before, act("take coin"), won, history=(moved,))
    assert repeat(asked, asked.demonstrations[0]).success is True
    assert repeat(unchecked, unchecked.demonstrations[0]).success is False
