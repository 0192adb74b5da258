"""A dream stays in one recorded world, never invents a success, and can be continued anywhere."""

import pytest

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
from dreamgym.dream import DreamEnvironment
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import EpisodeFinished
from dreamgym.experience.model import Prediction, Query
from dreamgym.experience.nearest import NearestModel
from dreamgym.replay.buffer import Demonstration, Retrieval
from dreamgym.replay.memory import MemoryBuffer

pytestmark = pytest.mark.anyio

TOOL = {"name": "act", "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}}}
SPEC = EnvironmentSpec(name="rooms", tools_list={"tools": [TOOL]}, deterministic=True)
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
    """All worlds start alike; in each, `go on` leads to another room, and the way back to the same hall."""
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
    dream = DreamEnvironment(SPEC, NearestModel(), buffer, knows_history=False)
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


async def test_an_action_that_resembles_a_success_is_never_one(buffer: MemoryBuffer) -> None:
    for command in ("take coins", "take  coin", "Take coin", "coin", "take coin now", ""):
        dream = DreamEnvironment(SPEC, NearestModel(), buffer)
        await dream.reset(UNRECORDED, seed=0)
        await dream.step(act("go on"))
        result = await dream.step(act(command))
        assert (result.reward, result.terminated) == (0, False)


async def test_a_recorded_success_is_one_and_ends_the_episode(buffer: MemoryBuffer) -> None:
    dream = DreamEnvironment(SPEC, NearestModel(), buffer)
    await dream.reset(UNRECORDED, seed=0)
    await dream.step(act("go on"))
    result = await dream.step(act("take coin"))
    assert (result.reward, result.terminated) == (1, True)
    assert dream.transitions[-1].provenance.tier is Tier.RECORDED
    with pytest.raises(EpisodeFinished):
        await dream.step(act("take coin"))


async def test_a_dream_continued_elsewhere_goes_on_in_its_world(buffer: MemoryBuffer) -> None:
    first = DreamEnvironment(SPEC, NearestModel(), buffer)
    await first.reset(UNRECORDED, seed=9)
    room = (await first.step(act("go on"))).observation
    second = DreamEnvironment(SPEC, NearestModel(), buffer)
    second.resume(UNRECORDED, seed=9, transitions=first.transitions)
    await second.step(act("go back"))
    assert (await second.step(act("go on"))).observation == room


class Unasked(MemoryBuffer):
    """A buffer that must not be searched."""

    async def nearest(self, retrieval: Retrieval) -> tuple[Demonstration, ...]:
        raise AssertionError("searched")


async def test_a_model_that_wants_no_demonstrations_costs_no_retrieval_and_its_blocks_are_kept() -> None:
    block = {"type": "image", "data": "aGk=", "mimeType": "image/png"}

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

    dream = DreamEnvironment(SPEC, Blind(), Unasked(TrigramEncoder()))
    await dream.reset(Task(id="w1", env="rooms", instruction="look"))
    result = await dream.step(act("look"))
    assert (result.content, result.structured, result.state) == ([block], {"seen": 1}, "dark")
    assert dream.transitions[-1].result == result
