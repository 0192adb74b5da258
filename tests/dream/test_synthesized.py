"""The tier `effects` answers the calls that its tool programs cover, and leaves the rest to other tiers."""

import json
import random
from collections.abc import Iterable

import pytest
from queries import query
from stalls import SCHEMA, SPEC, call, play, recordings, start

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.model import Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.dream.synthesized import programs_of, synthesized
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import NotRecorded, PredictionError
from dreamgym.replay.buffer import GROUNDED
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.state import StateSchema, as_text, parsed
from dreamgym.synthesis import LearnedPrograms
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall, Trajectory, Transition

READS_AND_WRITES = ("get_stall", "list_lots", "rename", "reserve", "buy", "cancel", "close_stall")


def state_of(text: str) -> JsonObject:
    state = parsed(text)
    assert state is not None
    return state


def _said(observation: str) -> object:
    return json.loads(observation) if observation.startswith("{") else observation


def _free_running(seed: int, programs: LearnedPrograms) -> tuple[int, int]:
    """Number of reads that agree with reality, and of all reads, in a session of twenty calls without correction."""
    draw = random.Random(seed)
    real = dreamed = as_text(start(draw))
    right = reads = 0
    for _ in range(20):
        tool = draw.choice(["get_stall", "list_lots", "reserve", "buy", "cancel", "close_stall", "rename"])
        step = play(state_of(real), call(tool, draw, state_of(real)), draw)
        prediction = synthesized(query(SPEC, dreamed, step.action), programs)
        if prediction is None:
            reads += real == step.next_state
            continue
        real, dreamed = step.next_state, prediction.next_state
        if real == step.state:
            reads += 1
            right += _said(prediction.observation) == _said(step.result.observation)
    return right, reads


def test_reads_after_writes_agree_with_reality_over_sessions_of_twenty_calls() -> None:
    recorded = [step for tool in READS_AND_WRITES for step in recordings(tool, 40, seed=8)]
    programs = programs_of(recorded, SPEC, SCHEMA)
    counts = [_free_running(seed, programs) for seed in range(4)]
    assert sum(reads for _, reads in counts) > 20
    assert sum(right for right, _ in counts) >= 0.95 * sum(reads for _, reads in counts)


@pytest.mark.anyio
async def test_nearest_has_no_answer_to_a_call_whose_effect_cannot_be_learned() -> None:
    *shown, step = recordings("stamp", 12, seed=1)
    with pytest.raises(PredictionError, match="'stamp' do not show what this call does"):
        await NearestModel().predict(query(SPEC, step.state, step.action, *shown))


class CountingBuffer(MemoryBuffer):
    """A buffer that counts how often all its recordings are read."""

    reads = 0

    async def trajectories(
        self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
    ) -> tuple[Trajectory, ...]:
        self.reads += 1
        return await super().trajectories(env, sources=sources, limit=limit)


def _recorded(steps: Iterable[Transition], source: Source = Source.REAL) -> Trajectory:
    task = Task(id="recorded", env=SPEC.name, instruction="")
    chain = tuple(steps)
    return Trajectory(
        id=f"{source} {len(chain)}", task=task, transitions=chain, source=source, stop_reason=StopReason.FINISHED
    )


async def _answer(buffer: MemoryBuffer, step: Transition) -> StepResult | None:
    """Answer to a step's call in a new episode that begins in the step's state; None if there is none."""
    made = DreamEnvironment(SPEC, NearestModel(), buffer)
    await made.reset(Task(id="new", env=SPEC.name, instruction="", initial_state=step.state))
    try:
        return await made.step(step.action)
    except PredictionError:
        return None


@pytest.mark.anyio
async def test_programs_are_learned_once_for_all_episodes_and_anew_after_a_recording() -> None:
    buffer = CountingBuffer(TrigramEncoder())
    shown = list(recordings("rename", 20, seed=1))
    await buffer.add([_recorded(shown)])
    steps = [step for step in recordings("rename", 30, seed=4) if not step.result.is_error]
    first = await _answer(buffer, steps[0])
    assert first is not None
    assert first.state == steps[0].next_state
    for step in steps:
        result = await _answer(buffer, step)
        assert result is not None
        assert result.state == step.next_state
    assert buffer.reads == 1

    one = next(step for step in shown if not step.result.is_error)
    other = one.result.model_copy(update={"observation": one.result.observation.replace("label", "name")})
    contradiction = one.model_copy(update={"result": other})
    await buffer.add([_recorded([contradiction] * 2, Source.SYNTHETIC)])
    assert await _answer(buffer, steps[0]) is not None
    assert buffer.reads == 1
    await buffer.add([_recorded([contradiction])])
    assert await _answer(buffer, steps[0]) is None
    assert buffer.reads == 2


@pytest.mark.anyio
async def test_without_an_explicit_state_no_words_are_copied() -> None:
    *shown, step = recordings("rename", 6, seed=1)
    asking = query(SPEC, step.state, step.action, *shown).model_copy(update={"without": frozenset({Part.STATE})})
    with pytest.raises(NotRecorded):
        await NearestModel().predict(asking)


@pytest.mark.parametrize("as_text_argument", [False, True])
@pytest.mark.anyio
async def test_an_entity_that_only_the_call_shows_is_no_fact_of_the_state(as_text_argument: bool) -> None:
    schema = StateSchema.model_validate(
        {"orders": {"key": "order", "fields": {"status": "string"}, "complete": False}, "count": "integer"}
    )
    spec = EnvironmentSpec(name="desk", tools_list=({"tools": [{"name": "say"}]},), state=schema)
    state = as_text({"orders": {}, "count": 1})

    def said(value: JsonObject) -> Transition:
        text = json.dumps(value)
        action = ToolCall(name="say", arguments={"words": text if as_text_argument else value})
        answer = text if as_text_argument else json.dumps({"said": value})
        return Transition.of(state, action, StepResult(observation=answer, info={"state": state}))

    task = Task(id="t", env="desk", instruction="Refund O-7.", initial_state=state)
    recorded = Trajectory(
        id="r",
        task=task,
        transitions=tuple(said({"n": n}) for n in range(6)),
        source=Source.REAL,
        stop_reason=StopReason.CLOSED,
    )
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([recorded])
    dream = DreamEnvironment(spec, NearestModel(), buffer)
    await dream.reset(task)
    forged = said({"order": "O-7", "status": "refunded"})
    result = await dream.step(forged.action)
    assert (result.observation, result.state) == (forged.result.observation, state)


@pytest.mark.parametrize("tool", ["show", "count"])
@pytest.mark.anyio
async def test_a_number_of_a_kind_that_no_recorded_call_had_in_its_place_has_no_answer(tool: str) -> None:
    schema = StateSchema.model_validate({"orders": {"key": "order", "fields": {"pieces": "integer"}}})
    integer: JsonObject = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    spec = EnvironmentSpec(name="desk", tools_list=({"tools": [{"name": tool, "inputSchema": integer}]},), state=schema)

    def called(number: float, orders: dict[int, int]) -> Transition:
        said = f"order {number:.0f} is there" if number in orders else f"no order {number:.0f}"
        if tool == "count":
            said = f"{sum(pieces == number for pieces in orders.values())} orders"
        state = as_text({"orders": {str(i): {"order": str(i), "pieces": pieces} for i, pieces in orders.items()}})
        result = StepResult(observation=said, is_error=said.startswith("no"), info={"state": state})
        return Transition.of(state, ToolCall(name=tool, arguments={"number": number}), result)

    draw = random.Random(1)
    shown = [
        called(draw.randint(1, 9), {i: draw.randint(1, 9) for i in draw.sample(range(1, 10), 5)}) for _ in range(40)
    ]
    buffer = MemoryBuffer(TrigramEncoder())
    task = Task(id="recorded", env="desk", instruction="")
    end = StopReason.CLOSED
    await buffer.add(
        [
            Trajectory(id=str(n), task=task, transitions=(step,), source=Source.REAL, stop_reason=end)
            for n, step in enumerate(shown)
        ]
    )
    whole, pointed = (called(number, {5: 5, 7: 5, 9: 2}) for number in (5, 5.0))
    assert whole.result.observation == pointed.result.observation
    dream = DreamEnvironment(spec, NearestModel(), buffer)
    await dream.reset(task.model_copy(update={"initial_state": whole.state}))
    assert (await dream.step(whole.action)).observation == whole.result.observation
    with pytest.raises(NotRecorded, match="do not show what this call does"):
        await dream.step(pointed.action)
