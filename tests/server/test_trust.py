"""Confidence of answers, rewards of ends, and the end of episodes that the dream cannot continue."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from dreamgym_server.sources import DreamWorlds, RealWorlds, Worlds
from mcp import Client
from server_stage import CounterModel, Stage, counter_spec, told
from websockets.asyncio.client import connect

from dreamgym.dream.confidence import FEATURES, Calibration, calibrate
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Part, Verdict
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import InvalidInput
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.state import State, StateSchema, as_text
from dreamgym.types import (
    JsonObject,
    Provenance,
    Source,
    StepResult,
    StopReason,
    Task,
    Tier,
    ToolCall,
    Trajectory,
    Transition,
)

pytestmark = pytest.mark.anyio

EPISODES = "/envs/counter/episodes"


def sure(probability: float, model: str = CounterModel.name) -> Calibration:
    """Return a calibration that gives every answer about this probability."""
    rows = [((0.0,) * len(FEATURES), k < probability * 100) for k in range(100)]
    fitted = calibrate(rows, model=model, env="counter")
    return fitted.model_copy(update={"weights": (0.0,) * len(FEATURES)})


async def played(http: httpx2.AsyncClient, *adds: int, **order: object) -> tuple[str, list[Any]]:
    """Play an episode that adds these numbers. Returns its path and the answers."""
    made = (await http.post(EPISODES, json=order)).json()
    async with told(made["mcp_url"]) as client:
        answers = [await client.call_tool("add", {"n": n}) for n in adds]
    return f"{EPISODES}/{made['episode']}", answers


async def test_tier_and_confidence_of_each_step_are_shown_to_trainers_and_never_to_the_agent(stage: Stage) -> None:
    world = DreamWorlds(counter_spec(), stage.model, stage.buffer, calibration=sure(0.75))
    async with stage.serve(world) as (_, http):
        path, (trainers,) = await played(http, 1)
        made = (await http.post(EPISODES, json={})).json()
        async with Client(made["mcp_url"]) as client:
            answer = await client.call_tool("add", {"n": 1})
        ended = (await http.post(f"{path}/finish", json={"success": True})).json()
        events = (await http.get(f"{path}/events")).text
    step = json.loads(events.split("data: ")[1].split("\n")[0])
    assert (step["tier"], step["confidence"]) == ("model", pytest.approx(0.75, abs=0.01))
    (kept,) = Trajectory.model_validate(ended["trajectory"]).transitions
    assert kept.provenance.confidence == step["confidence"] == trainers.meta["dreamgym/confidence"]
    told = answer.model_dump_json().lower()
    assert not [word for word in ("confidence", "tier", '"state"', "counter-model") if word in told]


async def test_an_episode_ends_without_reward_if_the_confidence_is_too_low(stage: Stage) -> None:
    world = DreamWorlds(counter_spec(), stage.model, stage.buffer, calibration=sure(0.2), min_confidence=0.5)
    async with stage.serve(world) as (_, http):
        path, (answer, after) = await played(http, 10, 1)
        state = (await http.get(path)).json()
    assert (answer.is_error, answer.content[0].text) == (True, "The session has ended.")
    assert (answer.meta["dreamgym/open_end"], answer.meta["dreamgym/truncated"]) == (True, True)
    assert (after.meta["dreamgym/uncounted"], after.meta["dreamgym/truncated"]) == ("ended", True)
    assert (state["stop_reason"], state["reward"], state["truncated"]) == ("out_of_support", None, True)
    trajectory = Trajectory.model_validate(state["trajectory"])
    assert (trajectory.stop_reason, trajectory.success) == (StopReason.OUT_OF_SUPPORT, False)
    assert trajectory.transitions[0].provenance.confidence is not None


async def test_an_openenv_client_gets_no_reward_for_a_step_with_too_low_confidence(stage: Stage) -> None:
    world = DreamWorlds(counter_spec(), stage.model, stage.buffer, calibration=sure(0.2), min_confidence=0.5)
    step = {"type": "step", "data": {"tool_name": "add", "arguments": {"n": 10}}}
    async with (
        stage.serve(world) as (url, _),
        connect(url.replace("http", "ws", 1) + "/envs/counter/openenv/ws", proxy=None) as websocket,
    ):
        answers = []
        for message in ({"type": "reset"}, step, {"type": "state"}):
            await websocket.send(json.dumps(message))
            answers.append(json.loads(await websocket.recv())["data"])
    _, observed, state = answers
    assert (observed["reward"], observed["done"]) == (None, True)
    assert (state["reward"], state["stop_reason"]) == (None, "out_of_support")


async def test_the_step_with_too_low_confidence_is_not_stored(stage: Stage) -> None:
    certain, doubtful = sure(0.9), sure(0.2)
    world = DreamWorlds(counter_spec(), stage.model, stage.buffer, calibration=certain, min_confidence=0.5)
    async with stage.serve(world) as (_, http):
        path, _ = await played(http, 1)
        episode = await stage.episodes.load(path.rpartition("/")[2])
    world = DreamWorlds(counter_spec(), stage.model, stage.buffer, calibration=doubtful, min_confidence=0.5)
    async with stage.serve(world) as (url, http), told(f"{url}{path}/mcp") as client:
        await client.call_tool("add", {"n": 2})
    (kept,) = await stage.buffer.trajectories("counter", sources=frozenset(Source))
    assert kept.stop_reason is StopReason.OUT_OF_SUPPORT
    assert kept.transitions == episode.transitions


def test_a_calibration_of_another_model_is_refused_at_start(stage: Stage) -> None:
    with pytest.raises(InvalidInput, match="the calibration belongs to model 'other'"):
        DreamWorlds(counter_spec(), stage.model, stage.buffer, calibration=sure(0.5, "other"))
    with pytest.raises(InvalidInput, match="`dreamgym fidelity counter --model M --out DIR`"):
        DreamWorlds(counter_spec(), stage.model, stage.buffer, min_confidence=0.5)


async def test_a_correct_prediction_earns_its_reward_after_a_step_that_was_not_recorded(stage: Stage) -> None:
    """The winning step was recorded, but not the step before it. Model and judge are asked, and the reward is given."""
    add = ToolCall(name="add", arguments={"n": 1})
    won = Transition(
        state="count 9",
        action=add,
        result=StepResult(observation="count 10", reward=1.0, terminated=True),
        next_state="count 10",
        provenance=Provenance(tier=Tier.REAL),
    )
    spec = counter_spec(deterministic=True)
    task = spec.tasks[0]
    recorded = Trajectory(
        id="won", task=task, transitions=(won,), source=Source.REAL, stop_reason=StopReason.TERMINATED, world=task.world
    )
    await stage.buffer.add([recorded])

    def says(messages: Sequence[Message]) -> str:
        if "You check" in messages[0].content:
            return json.dumps({"reasoning": "Is it 10?", "accomplished": '"count 10"' in messages[-1].content})
        done = '"count 9"' in messages[-1].content.split("<state>")[1].split("</state>")[0]
        answer = {"reasoning": "It adds.", "observation": f"count {10 if done else 9}", "state": None, "error": False}
        return json.dumps({**answer, "terminated": done, "success": done})

    llm = ScriptedLLM(says)
    async with stage.serve(DreamWorlds(spec, LanguageModel(llm), stage.buffer)) as (_, http):
        path, (first, second) = await played(http, 9, 1, task_id=task.id)
        state = (await http.get(path)).json()
    assert (first.meta["dreamgym/reward"], second.meta["dreamgym/reward"]) == (0.0, 1.0)
    assert (state["reward"], state["stop_reason"]) == (1.0, "terminated")
    kept = Trajectory.model_validate(state["trajectory"]).transitions
    assert [step.provenance.tier for step in kept] == [Tier.MODEL, Tier.MODEL]
    assert [step.provenance.judged for step in kept] == [False, True]
    assert len(llm.asked) == 6, "the claimed success is put to the judge in three questions"


REACHED: JsonObject = {"properties": {"count": {"minimum": 3}}, "required": ["count"]}
CHECKED = Task(
    id="checked",
    env="counter",
    instruction="Reach 3.",
    initial_state=as_text({"count": 0}),
    metadata={"success": REACHED},
)
STATED = counter_spec(state=StateSchema(values={"count": "integer"}), tasks=[CHECKED])


class StatedCounter:
    """A real counter that returns its state."""

    def __init__(self) -> None:
        self._count = 0

    @property
    def tools(self) -> Sequence[JsonObject]:
        return STATED.tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        return StepResult(observation="", info={"state": as_text({"count": 0})})

    async def step(self, action: ToolCall) -> StepResult:
        self._count += int(str(action.arguments["n"]))
        return StepResult(observation="added", info={"state": as_text({"count": self._count})})

    async def close(self) -> None:
        pass


class StatedModel(CounterModel):
    """The experience model of a dreamed `StatedCounter`."""

    async def predict(self, query: Any) -> Any:
        count = json.loads(query.state.text)["count"] + query.action.arguments["n"]
        as_words = query.model_copy(update={"state": State.of(f"count {json.loads(query.state.text)['count']}")})
        said = await super().predict(as_words)
        return said.model_copy(update={"observation": "added", "next_state": as_text({"count": count})})


class JudgingModel(StatedModel):
    """A `StatedModel` that is also a judge and always gives this verdict."""

    def __init__(self, verdict: bool) -> None:
        super().__init__()
        self.verdict = verdict

    async def judge_step(self, query: Any, prediction: Any) -> Verdict:
        return Verdict(accomplished=self.verdict)

    async def judge(
        self, spec: EnvironmentSpec, task: Task, history: Sequence[Transition], answer: str | None, *, seed: int
    ) -> bool:
        return self.verdict


def counted(calls: int) -> Trajectory:
    """Return a trajectory with this many recorded calls, at counts from 100 on."""
    steps = tuple(
        Transition(
            state=as_text({"count": n}),
            action=ToolCall(name="add", arguments={"n": 1}),
            result=StepResult(observation="added"),
            next_state=as_text({"count": n + 1}),
            provenance=Provenance(tier=Tier.REAL),
        )
        for n in range(100, 100 + calls)
    )
    return Trajectory(
        id="counted", task=STATED.tasks[0], transitions=steps, source=Source.REAL, stop_reason=StopReason.CLOSED
    )


@asynccontextmanager
async def ended(stage: Stage, world: Worlds, n: int, **end: object) -> AsyncIterator[dict[str, Any]]:
    async with stage.serve(world) as (_, http):
        path, _ = await played(http, n)
        yield (await http.post(f"{path}/finish", json=end)).json()


@pytest.mark.parametrize("kind", ["dream", "real"])
@pytest.mark.parametrize(("n", "reward"), [(3, 1.0), (2, 0.0)])
@pytest.mark.parametrize("end", [{"answer": "Done."}, {}])
async def test_the_check_of_a_task_decides_the_reward_of_its_end(
    stage: Stage, kind: str, n: int, reward: float, end: dict[str, str]
) -> None:
    dreams = DreamWorlds(STATED, StatedModel(), stage.buffer)
    world = dreams if kind == "dream" else RealWorlds(STATED, StatedCounter)
    async with ended(stage, world, n, **end) as state:
        assert (state["stop_reason"], state["reward"], state["terminated"]) == ("finished", reward, False)
        assert state["trajectory"]["final_reward"] == reward


@pytest.mark.parametrize("kind", ["dream", "real"])
async def test_an_episode_without_a_call_fails_even_if_its_check_holds_at_the_start(stage: Stage, kind: str) -> None:
    held = CHECKED.model_copy(update={"metadata": {"success": {"required": ["count"]}}})
    dreams = DreamWorlds(STATED, StatedModel(), stage.buffer)
    async with stage.serve(dreams if kind == "dream" else RealWorlds(STATED, StatedCounter)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={"task": held.model_dump(mode="json")})).json()
        state = (await http.post(f"/envs/counter/episodes/{made['episode']}/finish")).json()
    assert (state["stop_reason"], state["reward"]) == ("finished", 0)


async def test_the_callers_own_verdict_comes_before_the_check(stage: Stage) -> None:
    async with ended(stage, RealWorlds(STATED, StatedCounter), 2, success=True) as state:
        assert state["reward"] == 1


@pytest.mark.parametrize(("n", "verdict", "is_logged"), [(3, False, True), (2, True, True), (3, True, False)])
async def test_the_check_decides_against_the_judge_and_their_difference_is_logged(
    stage: Stage, n: int, verdict: bool, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.buffer.add([counted(5)])
    world = DreamWorlds(STATED, JudgingModel(verdict), stage.buffer, without=frozenset({Part.EFFECTS}))
    with caplog.at_level(logging.WARNING):
        async with ended(stage, world, n, answer="Done.") as state:
            assert state["reward"] == float(n == 3)
    assert (f"the judge says {verdict}, the task's own check says {n == 3}" in caplog.text) is is_logged


@pytest.mark.parametrize(("recorded", "verdict", "reward"), [(5, False, 1.0), (4, False, None), (4, True, 1.0)])
async def test_a_state_that_rests_on_a_models_word_earns_a_reward_only_if_a_judge_agrees(
    stage: Stage, recorded: int, verdict: bool, reward: float | None
) -> None:
    await stage.buffer.add([counted(recorded)])
    world = DreamWorlds(STATED, JudgingModel(verdict), stage.buffer, without=frozenset({Part.EFFECTS}))
    async with ended(stage, world, 3) as state:
        assert state["reward"] == reward


async def test_without_checks_the_judge_decides(stage: Stage) -> None:
    world = DreamWorlds(STATED, JudgingModel(True), stage.buffer, without=frozenset({Part.CHECKS}))
    async with ended(stage, world, 1, answer="Done.") as state:
        assert state["reward"] == 1


async def test_an_episode_that_is_closed_is_not_checked(stage: Stage) -> None:
    async with stage.serve(RealWorlds(STATED, StatedCounter)) as (_, http):
        path, _ = await played(http, 3)
        assert (await http.delete(path)).status_code == 204
    (kept,) = await stage.buffer.trajectories("counter")
    assert (kept.stop_reason, kept.final_reward) == (StopReason.CLOSED, None)
