"""The dream of a server that shows no state: sessions through the environment, over recordings in a buffer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Part
from dreamgym.dream.nearest import NearestModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import NotRecorded, PredictionError, StoreError
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.buffer import GROUNDED
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.tools import Tools
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

SEATS: JsonObject = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "seats": {"type": "integer"}},
    "required": ["name", "seats"],
}
TOOLS: JsonObject = {
    "tools": [
        {"name": "list_bookings", "inputSchema": {"type": "object"}},
        {"name": "book", "inputSchema": SEATS, "outputSchema": SEATS},
        {"name": "show_map", "inputSchema": {"type": "object"}},
    ]
}
SPEC = EnvironmentSpec(name="desk", tools_list=(TOOLS,))
IMAGE: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png"}


def step(tool: str, arguments: dict[str, Any], text: str, info: JsonObject | None = None) -> Transition:
    return Transition(
        state="",
        action=ToolCall(name=tool, arguments=arguments),
        result=StepResult(observation=text, info=info or {}),
        next_state=text,
        provenance=Provenance(tier=Tier.REAL),
    )


def booking(name: str, seats: int) -> Transition:
    booked: JsonObject = {"name": name, "seats": seats}
    return step("book", booked, json.dumps(booked), {"structured": booked})


def recorded(number: int, *steps: Transition, source: Source = Source.REAL, spec: EnvironmentSpec = SPEC) -> Trajectory:
    task = Task(id=f"task {number}", env=spec.name, instruction="")
    return Trajectory(
        id=f"{source} {number}", task=task, transitions=steps, source=source, stop_reason=StopReason.FINISHED
    )


RECORDINGS = (
    recorded(0, step("list_bookings", {}, "Ann"), booking("Bo", 2), step("list_bookings", {}, "Ann\nBo")),
    recorded(1, step("show_map", {}, "", {"content": [IMAGE]}), booking("Cy", 4), step("list_bookings", {}, "Ann\nCy")),
)


async def dream(*more: Trajectory, without: frozenset[Part] = frozenset()) -> tuple[DreamEnvironment, MemoryBuffer]:
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([*RECORDINGS, *more])
    made = DreamEnvironment(SPEC, NearestModel(), buffer, without=without)
    await made.reset(Task(id="new", env="desk", instruction=""))
    return made, buffer


async def test_a_recorded_answer_has_its_meta_its_own_fields_and_its_structured_list_and_another_answer_has_none() -> (
    None
):
    said: JsonObject = {"meta": {"vendor/view": {"page": 2}}, "fields": {"x-cost": 3}, "structured": ["Zoe"]}
    made, _ = await dream(recorded(2, step("list_bookings", {"page": 2}, "Zoe", said)))
    same = await made.step(ToolCall(name="list_bookings", arguments={"page": 2}))
    without = await made.step(ToolCall(name="list_bookings"))
    assert (same.observation, same.info) == ("Zoe", said)
    assert (without.observation, without.info) == ("Ann", {})


async def test_structured_content_has_the_arguments_in_place_and_the_read_after_it_finds_the_booking() -> None:
    made, _ = await dream()
    booked = await made.step(ToolCall(name="book", arguments={"name": "Dora", "seats": 7}))
    assert booked.structured == {"name": "Dora", "seats": 7}
    assert json.loads(booked.observation) == booked.structured
    assert (await made.step(ToolCall(name="list_bookings"))).observation == "Ann\nDora"
    assert [one.provenance.tier for one in made.transitions] == [Tier.VIEWS, Tier.VIEWS]


async def test_a_recorded_server_whose_only_tool_takes_one_text_is_no_text_game() -> None:
    city: JsonObject = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool: JsonObject = {"name": "weather", "inputSchema": city, "annotations": {"readOnlyHint": True}}
    spec = EnvironmentSpec(name="desk", tools_list=({"tools": [tool]},), adapter="mcp")
    buffer = MemoryBuffer(TrigramEncoder())
    seen = (
        step("weather", {"city": "Oslo"}, "Oslo: -3 degrees"),
        step("weather", {"city": "Rome"}, "Rome: 20 degrees"),
    )
    await buffer.add([recorded(0, *seen, spec=spec)])
    made = DreamEnvironment(spec, NearestModel(), buffer)
    await made.reset(Task(id="new", env="desk", instruction=""))
    with pytest.raises(NotRecorded):
        await made.step(ToolCall(name="weather", arguments={"city": "London"}))
    rome = await made.step(ToolCall(name="weather", arguments={"city": "Rome"}))
    assert rome.observation == "Rome: 20 degrees"


async def test_an_answer_whose_output_schema_is_a_list_is_given_as_recorded() -> None:
    tool: JsonObject = {"name": "ids", "inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}}
    spec = EnvironmentSpec(name="desk", tools_list=({"tools": [tool]},))
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([recorded(0, step("ids", {}, "[1, 2]", {"structured": [1, 2]}), spec=spec)])
    made = DreamEnvironment(spec, NearestModel(), buffer)
    await made.reset(Task(id="new", env="desk", instruction=""))
    answer = await made.step(ToolCall(name="ids"))
    assert (answer.observation, answer.info["structured"]) == ("[1, 2]", [1, 2])
    assert Tools(spec).violation("ids", answer) is None


async def test_a_recorded_call_is_answered_though_its_schemas_refer_to_another_document() -> None:
    elsewhere: JsonObject = {"type": "object", "properties": {"id": {"$ref": "https://example.com/id.json"}}}
    tool: JsonObject = {"name": "get", "inputSchema": elsewhere, "outputSchema": elsewhere}
    spec = EnvironmentSpec(name="desk", tools_list=({"tools": [tool]},))
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add([recorded(0, step("get", {"id": 1}, '{"id": 1}'), spec=spec)])
    made = DreamEnvironment(spec, NearestModel(), buffer)
    await made.reset(Task(id="new", env="desk", instruction=""))
    call = ToolCall(name="get", arguments={"id": 1})
    assert Tools(spec).refusal(call, call.canonical()) is None
    answer = await made.step(call)
    assert (answer.observation, answer.info["structured"]) == ('{"id": 1}', {"id": 1})
    assert Tools(spec).violation("get", answer) is None


async def test_a_picture_is_repeated_to_the_letter() -> None:
    made, _ = await dream()
    assert (await made.step(ToolCall(name="show_map"))).content == [IMAGE]


async def test_a_call_that_no_recording_shows_is_not_answered_and_the_session_goes_on() -> None:
    made, _ = await dream()
    with pytest.raises(NotRecorded, match="record more calls"):
        await made.step(ToolCall(name="cancel", arguments={"name": "Ann"}))
    assert (await made.step(ToolCall(name="list_bookings"))).observation == "Ann"


async def test_a_dream_teaches_nothing_and_a_new_recording_does() -> None:
    made, buffer = await dream(recorded(2, step("list_bookings", {}, "what a dream says"), source=Source.SYNTHETIC))
    assert (await made.step(ToolCall(name="list_bookings"))).observation == "Ann"
    with pytest.raises(NotRecorded):
        await made.step(ToolCall(name="cancel", arguments={"name": "Ann"}))
    await buffer.add([recorded(3, step("cancel", {"name": "Ann"}, "Cancelled Ann"))])
    assert (await made.step(ToolCall(name="cancel", arguments={"name": "Ann"}))).observation == "Cancelled Ann"


async def test_recordings_that_could_not_be_read_once_are_learned_from_at_the_next_call() -> None:
    class FailingOnce(MemoryBuffer):
        fails = True

        async def trajectories(
            self, env: str, *, sources: frozenset[Source] = GROUNDED, limit: int | None = None
        ) -> tuple[Trajectory, ...]:
            if self.fails:
                self.fails = False
                raise StoreError("the database is restarting")
            return await super().trajectories(env, sources=sources, limit=limit)

    buffer = FailingOnce(TrigramEncoder())
    await buffer.add(RECORDINGS)
    made = DreamEnvironment(SPEC, NearestModel(), buffer)
    await made.reset(Task(id="new", env="desk", instruction=""))
    with pytest.raises(StoreError):
        await made.step(ToolCall(name="list_bookings"))
    assert (await made.step(ToolCall(name="list_bookings"))).observation == "Ann"


async def test_an_answer_that_breaks_its_output_schema_is_not_given() -> None:
    made, _ = await dream(recorded(4, step("book", {"name": "Eve"}, "no seats were told", {})))
    with pytest.raises(NotRecorded):
        await made.step(ToolCall(name="book", arguments={"name": "Eve"}))


async def test_an_answer_that_is_nested_too_deeply_to_be_json_does_not_disable_the_other_tools() -> None:
    made, _ = await dream(recorded(4, step("book", {"name": "Eve", "seats": 1}, "[" * 100_000, {})))
    assert (await made.step(ToolCall(name="list_bookings"))).observation == "Ann"


async def test_without_views_nothing_is_concluded() -> None:
    made, _ = await dream(without=frozenset({Part.VIEWS}))
    with pytest.raises(NotRecorded):
        await made.step(ToolCall(name="list_bookings"))


async def test_recordings_of_one_world_do_not_answer_for_another() -> None:
    spec = SPEC.model_copy(update={"deterministic": True})
    buffer = MemoryBuffer(TrigramEncoder())
    await buffer.add(
        [recorded(n, step("list_bookings", {}, f"guest {n}"), step("show_map", {}, "x")) for n in range(2)]
    )
    made = DreamEnvironment(spec, NearestModel(), buffer, without=frozenset({Part.RECORDED}))
    await made.reset(Task(id="task 1", env="desk", instruction=""))
    assert (await made.step(ToolCall(name="list_bookings"))).observation == "guest 1"
    await made.reset(Task(id="another", env="desk", instruction=""))
    with pytest.raises(NotRecorded):
        await made.step(ToolCall(name="list_bookings"))


async def test_a_language_model_is_shown_what_was_read_in_the_world_of_this_session() -> None:
    said: list[str] = []

    def answer(messages: Sequence[Message]) -> str:
        said.append(messages[-1].content)
        return "no answer"

    buffer = MemoryBuffer(TrigramEncoder())
    others = [recorded(n, booking(f"guest {n}", n), booking(f"guest {n}", n + 1)) for n in range(10, 20)]
    await buffer.add([*RECORDINGS, *others])
    made = DreamEnvironment(SPEC, LanguageModel(ScriptedLLM(answer), 3), buffer)
    await made.reset(Task(id="new", env="desk", instruction=""))
    with pytest.raises(PredictionError):
        await made.step(ToolCall(name="cancel", arguments={"name": "Ann"}))
    shown = [json.loads(line) for line in said[0].split("<recorded>")[1].split("</recorded>")[0].strip().splitlines()]
    assert sorted(one["world"] for one in shown) == ["another", "another", "this"]
    (own,) = [one for one in shown if one["world"] == "this"]
    assert (own["action"]["tool"], own["answer"]["observation"]) == ("list_bookings", "Ann")
