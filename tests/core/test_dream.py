"""A dream stays in one recorded world, never invents a success, and can be continued by another instance."""

import pytest
from pydantic import JsonValue

from dreamgym import (
    EnvironmentSpec,
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
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Part, Prediction, Query
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import EpisodeFinished, NotRecorded
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import JsonObject

pytestmark = pytest.mark.anyio

TOOL: JsonObject = {"name": "act", "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}}}
SPEC = EnvironmentSpec(name="rooms", tools_list=({"tools": [TOOL]},), deterministic=True)
WORLDS = 12


def act(command: str) -> ToolCall:
    return ToolCall(name="act", arguments={"command": command})


def step(state: str, command: str, said: str, after: str, reward: float = 0, refused: bool = False) -> Transition:
    return Transition(
        state=state,
        action=act(command),
        result=StepResult(observation=said, reward=reward, terminated=reward > 0, is_error=refused),
        next_state=after,
        provenance=Provenance(tier=Tier.REAL),
    )


def world(number: int) -> Trajectory:
    """A play of one world. All worlds start alike; `go on` leads to a room of its own, `go back` to the same hall."""
    room = f"room {number}"
    return Trajectory(
        id=f"e{number}",
        task=Task(id=f"w{number}", env="rooms", instruction="take the coin", initial_state="hall"),
        transitions=(
            step("hall", "fly", "what? hall", "hall", refused=True),
            step("hall", "go on", room, room),
            step(room, "go back", "hall", "hall"),
            step("hall", "go on", room, room),
            step(room, "take coin", "yours", "yours", reward=1),
        ),
        source=Source.REAL,
        stop_reason=StopReason.TERMINATED,
        world=f"w{number}",
    )


@pytest.fixture
async def buffer() -> MemoryBuffer:
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([world(number) for number in range(WORLDS)])
    return buffer


async def walk(environment: DreamEnvironment, task: Task, seed: int) -> list[str]:
    await environment.reset(task, seed=seed)
    return [(await environment.step(act(c))).observation for c in ("go on", "go back", "go on", "go back", "go on")]


UNRECORDED = Task(id="new", env="rooms", instruction="take the coin", initial_state="hall")


async def test_an_episode_stays_in_the_world_it_began_in(buffer: MemoryBuffer) -> None:
    for seed in range(10):
        seen = await walk(DreamEnvironment(SPEC, NearestModel(), buffer), UNRECORDED, seed)
        assert seen[0] == seen[2] == seen[4]
        assert seen[0].startswith("room ")


async def test_without_its_history_the_dream_changes_worlds_under_the_agent(buffer: MemoryBuffer) -> None:
    dream = DreamEnvironment(SPEC, NearestModel(), buffer, without=frozenset({Part.HISTORY}))
    seen = [await walk(dream, UNRECORDED, seed) for seed in range(10)]
    assert any(len({walked[0], walked[2], walked[4]}) > 1 for walked in seen)


async def test_a_recorded_task_is_dreamed_in_its_own_world(buffer: MemoryBuffer) -> None:
    for number in range(WORLDS):
        seen = await walk(DreamEnvironment(SPEC, NearestModel(), buffer), world(number).task, seed=0)
        assert seen[0] == f"room {number}"


async def test_the_same_seed_dreams_the_same(buffer: MemoryBuffer) -> None:
    walks = [await walk(DreamEnvironment(SPEC, NearestModel(), buffer), UNRECORDED, seed=4) for _ in range(2)]
    assert walks[0] == walks[1]


async def test_an_action_that_was_never_recorded_is_refused_as_the_recordings_refuse(buffer: MemoryBuffer) -> None:
    dream = DreamEnvironment(SPEC, NearestModel(), buffer)
    await dream.reset(UNRECORDED, seed=0)
    await dream.step(act("go on"))
    result = await dream.step(act("coin take"))
    assert result.is_error
    assert result.state == dream.transitions[0].next_state
    assert result.observation == f"what? {result.state}"


async def test_an_action_that_only_resembles_a_success_earns_nothing(buffer: MemoryBuffer) -> None:
    for command in ("take coins", "take  coin", "Take coin", "coin", "take coin now", ""):
        dream = DreamEnvironment(SPEC, NearestModel(), buffer)
        await dream.reset(UNRECORDED, seed=0)
        await dream.step(act("go on"))
        result = await dream.step(act(command))
        assert (result.reward, result.terminated) == (0, False)


async def test_a_recorded_success_earns_its_reward_and_ends_the_episode(buffer: MemoryBuffer) -> None:
    dream = DreamEnvironment(SPEC, NearestModel(), buffer)
    await dream.reset(UNRECORDED, seed=0)
    await dream.step(act("go on"))
    result = await dream.step(act("take coin"))
    assert (result.reward, result.terminated) == (1, True)
    assert dream.transitions[-1].provenance.tier is Tier.RECORDED
    with pytest.raises(EpisodeFinished):
        await dream.step(act("take coin"))


async def test_a_dream_that_another_instance_resumes_stays_in_its_world(buffer: MemoryBuffer) -> None:
    first = DreamEnvironment(SPEC, NearestModel(), buffer)
    await first.reset(UNRECORDED, seed=9)
    room = (await first.step(act("go on"))).observation
    second = DreamEnvironment(SPEC, NearestModel(), buffer)
    second.resume(UNRECORDED, seed=9, transitions=first.transitions)
    await second.step(act("go back"))
    assert (await second.step(act("go on"))).observation == room


async def test_a_model_that_wants_no_demonstrations_is_shown_none_and_its_blocks_are_kept() -> None:
    block: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png"}

    class Blind(NearestModel):
        demonstrations = 0

        async def predict(self, query: Query) -> Prediction:
            assert query.demonstrations == ()
            return Prediction(
                observation="[image image/png]",
                structured={"seen": 1},
                content=(block,),
                next_state="dark",
                provenance=Provenance(tier=Tier.MODEL),
            )

    buffer = MemoryBuffer(TrigramEncoder())
    task = Task(id="w1", env="rooms", instruction="look", initial_state="hall")
    seen = step("hall", "look", "a hall, recorded", "hall")
    await buffer.add(
        [Trajectory(id="0", task=task, transitions=(seen,), source=Source.REAL, stop_reason=StopReason.CLOSED)]
    )
    dream = DreamEnvironment(SPEC.model_copy(update={"deterministic": False}), Blind(), buffer)
    await dream.reset(task)
    result = await dream.step(act("look"))
    assert (result.content, result.structured, result.state) == ([block], {"seen": 1}, "dark")
    assert dream.transitions[-1].result == result
    declared = DreamEnvironment(SPEC, Blind(), buffer)
    await declared.reset(task)
    assert (await declared.step(act("look"))).observation == "a hall, recorded", (
        "the recorded answer comes before the model's"
    )


async def test_with_several_tools_the_same_call_is_shown_first_and_then_the_same_tool() -> None:
    tools: list[JsonValue] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("read", "list")]
    spec = EnvironmentSpec(name="files", tools_list=({"tools": tools},))
    state = "a state that many a recorded step begins in, word for word but for its last one: "
    others = [step_of("list", "/", state + str(number), f"listing {number}") for number in range(8)]
    wanted = [step_of("read", "b.txt", "elsewhere", "text of b"), step_of("read", "a.txt", "nowhere", "text of a")]
    buffer = MemoryBuffer(TrigramEncoder())
    task = Task(id="t", env="files", instruction="", initial_state=state + "x")
    await buffer.add(
        [
            Trajectory(id=str(n), task=task, transitions=(seen,), source=Source.REAL, stop_reason=StopReason.CLOSED)
            for n, seen in enumerate([*others, *wanted])
        ]
    )
    asked: list[Query] = []

    class Listening(NearestModel):
        demonstrations = 3

        async def predict(self, query: Query) -> Prediction:
            asked.append(query)
            return await super().predict(query)

    dream = DreamEnvironment(spec, Listening(), buffer, without=frozenset({Part.VIEWS}))
    await dream.reset(task, seed=0)
    with pytest.raises(NotRecorded):
        await dream.step(ToolCall(name="read", arguments={"path": "a.txt"}))
    shown = [demonstration.transition.action for demonstration in asked[0].demonstrations]
    assert shown[:2] == [wanted[1].action, wanted[0].action]
    assert len(shown) == 3


async def test_a_refusal_of_forbidden_arguments_is_not_repeated_for_allowed_ones() -> None:
    by_number: JsonObject = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    tools: list[JsonValue] = [
        {"name": "book", "inputSchema": by_number},
        {"name": "other", "inputSchema": {"type": "object"}},
    ]
    spec = EnvironmentSpec(name="rooms", tools_list=({"tools": tools},))
    task = Task(id="t", env="rooms", instruction="", initial_state="start")
    refused = ToolCall(name="book", arguments={"n": "two"})
    recorded = [
        Transition(
            state="start",
            action=refused,
            result=StepResult(observation="two is no number", is_error=True),
            next_state="start",
            provenance=Provenance(tier=Tier.REAL),
        ),
        Transition(
            state="elsewhere",
            action=ToolCall(name="book", arguments={"n": 12}),
            result=StepResult(observation="12 booked"),
            next_state="12 booked",
            provenance=Provenance(tier=Tier.REAL),
        ),
    ]
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(
        [
            Trajectory(id=str(n), task=task, transitions=(seen,), source=Source.REAL, stop_reason=StopReason.CLOSED)
            for n, seen in enumerate(recorded)
        ]
    )
    dream = DreamEnvironment(spec, NearestModel(), buffer)
    await dream.reset(task, seed=0)
    allowed = await dream.step(ToolCall(name="book", arguments={"n": 13}))
    assert (allowed.observation, allowed.is_error) == ("13 booked", False)
    await dream.reset(task, seed=0)
    assert (await dream.step(refused)).observation == "two is no number"


def step_of(tool: str, path: str, state: str, said: str) -> Transition:
    """A recorded call of one of two tools."""
    action = ToolCall(name=tool, arguments={"path": path})
    result = StepResult(observation=said)
    return Transition(state=state, action=action, result=result, next_state=said, provenance=Provenance(tier=Tier.REAL))
