"""The BFCL environment on an invented class: calls, schemas, state, referee and refusals; needs no package."""

import json
from datetime import UTC, datetime, timedelta
from decimal import getcontext

import jsonschema
import pytest
from bfcl_lamps import DOCS, SYSTEMS, lamp_suite
from dreamgym_integrations.environments.bfcl.environment import OVER, BfclEnvironment
from dreamgym_integrations.environments.bfcl.state import files, jsonable, schema_of
from dreamgym_integrations.environments.bfcl.suite import conversation_of, tool_call
from dreamgym_integrations.environments.bfcl.tasks import task_of
from dreamgym_integrations.environments.bfcl.tools import NEXT, tool_of, tools_of
from dreamgym_integrations.environments.bfcl.world import ApiInstances, Referee, answer_of, is_alike
from dreamgym_server.sources import RealWorlds
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.dream.task_check import accomplished
from dreamgym.environment import Environment, EnvironmentSpec
from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput
from dreamgym.evaluation.episodes import has_succeeded
from dreamgym.replay.episode_store import Episode
from dreamgym.schema import fault_under
from dreamgym.state import parsed
from dreamgym.testing.environment import check_environment
from dreamgym.types import JsonObject, Source, StepResult, Task, ToolCall, Transition

pytestmark = pytest.mark.anyio

SUITE = lamp_suite()
(LAMPS,) = SUITE.conversations.values()
TASK = task_of(LAMPS, SUITE, SYSTEMS, env="lamps", split="train")
PRESS, COUNT, NEXT_CALL = ToolCall(name="press", arguments={"lamp": "red"}), ToolCall(name="count"), ToolCall(name=NEXT)


def environment() -> BfclEnvironment:
    return BfclEnvironment(SUITE, SYSTEMS, tools_of(DOCS))


async def played(*calls: ToolCall) -> list[StepResult]:
    world = environment()
    return [await world.reset(TASK), *[await world.step(call) for call in calls]]


def state(result: StepResult) -> JsonObject:
    return parsed(result.state) or {}


@given(
    st.dictionaries(
        st.sampled_from(["a", "b"]), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text())
    )
)
def test_a_call_in_pythons_notation_is_read_as_it_would_run(arguments: JsonObject) -> None:
    text = f"act({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    assert tool_call(text, {"act": ["a", "b"]}) == ToolCall(name="act", arguments=arguments)


def test_arguments_by_position_take_the_parameters_order() -> None:
    assert tool_call("act(1, b=[2])", {"act": ["a", "b"]}).arguments == {"a": 1, "b": [2]}


@pytest.mark.parametrize("text", ["act", "act(1, 2, 3)", "act(other())", "act(", "a.act()", "act(a=__import__('os'))"])
def test_a_text_that_is_not_a_plain_call_is_refused_and_nothing_runs(text: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        tool_call(text, {"act": ["a", "b"]})


def test_a_conversation_without_calls_for_each_message_is_refused() -> None:
    row: JsonObject = {"id": "x", "question": [[]], "involved_classes": [], "initial_config": {}}
    with pytest.raises(ValueError, match="a list of calls for every message"):
        conversation_of(row, [], {})


def test_the_benchmarks_types_become_those_of_json_schema_and_listed_values_an_enum() -> None:
    press = tool_of(DOCS[0])
    assert press["inputSchema"] == {
        "type": "object",
        "properties": {
            "lamp": {
                "type": "string",
                "description": 'Which. [Enum]: ["red", "green", "blue"]',
                "enum": ["red", "green", "blue"],
            },
            "times": {"type": "integer", "description": "How often.", "default": 1},
        },
        "required": ["lamp"],
        "additionalProperties": False,
    }
    assert press["outputSchema"]["properties"]["lit"]["type"] == "boolean"  # type: ignore[call-overload, index]


def test_listed_values_of_an_array_apply_to_its_items_and_huge_numbers_are_refused() -> None:
    doors: JsonObject = {
        "type": "array",
        "items": {"type": "string"},
        "description": 'Doors. [Enum]: ["left", "right"]',
    }
    described: JsonObject = {
        "name": "f",
        "parameters": {
            "type": "dict",
            "properties": {"doors": doors, "exponent": {"type": "float"}, "decimal_places": {"type": "integer"}},
        },
    }
    schema = tool_of(described)["inputSchema"]
    assert isinstance(schema, dict)
    jsonschema.validate({"doors": ["left"], "exponent": 3, "decimal_places": -2}, schema)
    for wrong in ({"doors": ["up"]}, {"doors": "left"}, {"exponent": 10**9}, {"decimal_places": -(10**9)}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_a_number_to_calculate_with_is_at_most_the_largest_that_a_float_can_hold() -> None:
    numbers: JsonObject = {"type": "array", "items": {"type": "float"}}
    properties: JsonObject = {"base": {"type": "float"}, "numbers": numbers}
    schema = tool_of({"name": "f", "parameters": {"type": "dict", "properties": properties}})["inputSchema"]
    assert isinstance(schema, dict)
    assert fault_under(schema, {"base": 10**308, "numbers": [-1.7e308]}) is None
    assert "greater than the maximum" in str(fault_under(schema, {"base": 10**309}))
    assert "less than the minimum" in str(fault_under(schema, {"numbers": [2, -(10**309)]}))


def test_a_state_lists_entities_by_their_id_and_single_values_by_their_system() -> None:
    told = ApiInstances(LAMPS, SUITE.make).state(SYSTEMS)
    assert told == {
        "house.presses": 0,
        "house._log": [],
        "lamps": {"red": {"lamp": "red", "lit": False}, "green": {"lamp": "green", "lit": False}},
    }


def test_an_entity_with_other_fields_is_kept_whole_in_one_field() -> None:
    kind = SYSTEMS["Lamps"].kinds["lamps"]
    assert kind.collected({"red": {"glow": 3}, "green": "off"}) == {
        "red": {"lamp": "red", "value": {"glow": 3}},
        "green": {"lamp": "green", "value": "off"},
    }
    assert list(kind.collected([{"lamp": "red", "lit": True}, {"lit": False}])) == ["red", "#1"]


class Number:
    def __float__(self) -> float:
        return 2.5


def test_values_that_json_cannot_represent_become_a_list_a_number_or_a_text() -> None:
    assert jsonable([{3, 1}, Number(), float("nan"), type]) == [[1, 3], 2.5, "NaN", "<class 'type'>"]


class Place:
    """A file or a directory as in BFCL."""

    def __init__(self, name: str, parent: "Place | None" = None, content: str | None = None) -> None:
        self.name, self.parent = name, parent
        if content is None:
            self.contents: dict[str, Place] = {}
        else:
            self.content = content


class Disk:
    def __init__(self) -> None:
        self.root = Place("home")
        self._current_dir = self.root.contents["inner"] = Place("inner", self.root)
        self._current_dir.contents["a.txt"] = Place("a.txt", self._current_dir, "hello")


def test_files_are_listed_by_path_and_a_directory_within_itself_is_not_entered() -> None:
    disk = Disk()
    disk._current_dir.contents["again"] = disk._current_dir
    told = files(disk)
    assert told["_current_dir"] == "/home/inner"
    assert isinstance(told["root"], dict)
    assert told["root"]["/home/inner/a.txt"] == {"name": "a.txt", "kind": "file", "content": "hello"}
    assert list(told["root"]) == ["/home", "/home/inner", "/home/inner/a.txt", "/home/inner/again"]


def test_a_disk_with_more_paths_than_a_state_can_have_is_unavailable() -> None:
    disk = Disk()
    deepest = disk._current_dir
    for _ in range(30):  # each directory contains the one before it twice
        copy = Place("copy")
        copy.contents = {"a": deepest, "b": deepest}
        deepest = copy
    disk.root.contents["copy"] = deepest
    with pytest.raises(EnvironmentUnavailable, match="more than 10000 paths"):
        files(disk)


@pytest.mark.parametrize(
    ("value", "said", "structured", "refused"),
    [
        ({"a": 1}, '{"a": 1}', {"a": 1}, False),
        ({"error": "no"}, '{"error": "no"}', {"error": "no"}, True),
        ({"a": {1}}, "{'a': {1}}", {"a": [1]}, False),
        ([1], "[1]", {"result": [1]}, False),
        (None, "None", {}, False),
        ("done", "done", {"result": "done"}, False),
    ],
)
def test_an_answer_is_compared_in_the_benchmarks_words_and_shown_as_an_object(
    value: object, said: str, structured: JsonObject, refused: bool
) -> None:
    answer = answer_of(value)
    assert (answer.said, answer.structured, answer.is_error) == (said, structured, refused)


async def test_the_ground_truth_earns_one_and_each_finished_request_is_answered_with_the_next() -> None:
    first, pressed, after, counted, last = await played(PRESS, NEXT_CALL, COUNT, NEXT_CALL)
    assert (first.reward, state(first)["request"]) == (0, 1)
    assert pressed.structured == {"lit": True}
    assert json.loads(pressed.observation) == pressed.structured
    assert (after.observation, state(after)["request"]) == ("How many presses were that?", 2)
    assert counted.structured == {"presses": 1}
    assert (last.observation, last.reward, last.terminated) == (OVER, 1.0, True)
    assert (last.info["fulfilled"], last.info["requests"]) == (2, 2)


@pytest.mark.parametrize(
    ("calls", "fulfilled"),
    [
        ((NEXT_CALL, NEXT_CALL), 0),  # nothing done
        ((PRESS, NEXT_CALL, NEXT_CALL), 1),  # not looked up
        ((PRESS, PRESS, NEXT_CALL, COUNT, NEXT_CALL), 0),  # the state differs
        ((NEXT_CALL, PRESS, COUNT, NEXT_CALL), 1),  # too late for the first request
        ((PRESS, COUNT, NEXT_CALL, NEXT_CALL), 1),  # asked before, but nothing called for the second request
        ((COUNT, PRESS, NEXT_CALL, COUNT, NEXT_CALL), 2),  # more answers than needed do no harm
    ],
)
async def test_a_request_counts_if_the_state_and_the_answers_fit_and_something_was_called(
    calls: tuple[ToolCall, ...], fulfilled: int
) -> None:
    last = (await played(*calls))[-1]
    assert last.terminated
    assert (last.info["fulfilled"], last.reward) == (fulfilled, float(fulfilled == 2))


async def test_private_attributes_are_not_compared() -> None:
    last = (await played(PRESS, ToolCall(name="forget"), NEXT_CALL, COUNT, NEXT_CALL))[-1]
    assert last.reward == 1


async def test_the_tasks_check_asks_for_the_last_state_and_for_the_answers_of_the_ground_truth() -> None:
    results = await played(PRESS, NEXT_CALL, COUNT, NEXT_CALL)
    answers = [result.observation for result in results]
    done = [accomplished(TASK, result.state, answers[: n + 1]) for n, result in enumerate(results)]
    assert done == [False, False, False, True, True]
    assert accomplished(TASK, results[-1].state, [*answers[:3], *answers[4:]]) is False, "nothing was looked up"
    wrong = await played(PRESS, PRESS, NEXT_CALL, COUNT, NEXT_CALL)
    assert accomplished(TASK, wrong[-1].state, [result.observation for result in wrong]) is False


async def test_every_state_fits_the_schema() -> None:
    schema = schema_of(list(SYSTEMS.values()))
    for result in await played(PRESS, NEXT_CALL, COUNT, NEXT_CALL):
        assert schema.fault_of(state(result)) is None


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (ToolCall(name="jump"), "Tool jump not found"),
        (ToolCall(name="press"), "'lamp' is a required property"),
        (ToolCall(name="press", arguments={"lamp": 3}), "3 is not"),
        (ToolCall(name="press", arguments={"lamp": "red", "by": "hand"}), "by"),
        (ToolCall(name="press", arguments={"lamp": "blue"}), "no lamp blue"),
        (ToolCall(name="explode"), "does not work in this conversation"),
        (ToolCall(name=NEXT, arguments={"please": True}), "please"),
    ],
)
async def test_an_impossible_call_is_refused_in_words_and_changes_nothing(call: ToolCall, reason: str) -> None:
    first, refused, *_, last = await played(call, PRESS, NEXT_CALL, COUNT, NEXT_CALL)
    assert refused.is_error
    assert reason in refused.observation
    assert refused.state == first.state
    assert last.reward == 1


async def test_an_exception_of_a_function_is_its_answer() -> None:
    answer = ApiInstances(LAMPS, SUITE.make).call("Lamps", ToolCall(name="explode"))
    assert (answer.said, answer.is_error) == ("Error during execution: smoke", True)


def test_a_function_that_sets_the_decimal_precision_sets_it_only_for_itself() -> None:
    precision = getcontext().prec
    answer = ApiInstances(LAMPS, SUITE.make).call("Lamps", ToolCall(name="coarse"))
    assert answer.structured == {"precision": 2}
    assert getcontext().prec == precision != 2


def test_worlds_whose_comparison_never_ends_count_as_different() -> None:
    ours, theirs = ApiInstances(LAMPS, SUITE.make), ApiInstances(LAMPS, SUITE.make)
    for world in (ours, theirs):
        endless: list[object] = []
        endless.append(endless)
        world.instances["Lamps"].presses = endless  # type: ignore[attr-defined]
    assert not is_alike(ours, theirs)


def test_the_referee_plays_the_truth_in_a_world_of_its_own() -> None:
    world = ApiInstances(LAMPS, SUITE.make)
    referee = Referee(LAMPS, SUITE.make, SUITE.owners)
    referee.close_request(world)
    assert referee.truth.state(SYSTEMS)["house.presses"] == 1
    assert world.state(SYSTEMS)["house.presses"] == 0
    assert SUITE.conversations["lamps_0"].config == {
        "Lamps": {"lamps": {"red": {"lit": False}, "green": {"lit": False}}}
    }


async def test_a_task_that_names_no_conversation_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"metadata\.conversation, got 3"):
        await environment().reset(Task(id="x", env="lamps", instruction="", metadata={"conversation": 3}))


async def test_a_call_after_the_end_raises_episode_finished() -> None:
    world = environment()
    await world.reset(TASK)
    for _ in range(2):
        await world.step(NEXT_CALL)
    with pytest.raises(EpisodeFinished):
        await world.step(PRESS)


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [([PRESS, NEXT_CALL, COUNT], True), ([NEXT_CALL, PRESS, COUNT], False), ([PRESS, NEXT_CALL], False)],
    ids=["each request in its turn", "all of it in the last request", "an open request"],
)
async def test_an_agent_that_stops_with_an_answer_gets_what_one_more_next_request_would_give(
    calls: list[ToolCall], verdict: bool
) -> None:
    spec = EnvironmentSpec(name="lamps", tools_list=({"tools": list(tools_of(DOCS))},), adapter="bfcl")
    first, *answers = await played(*calls)
    told = Transition.chain(first.state, list(zip(calls, answers, strict=True)))
    later = datetime.now(UTC) + timedelta(hours=1)
    episode = Episode(
        id="e", env="lamps", task=TASK, seed=0, max_steps=9, initial=first, transitions=told, expires_at=later
    )
    assert await RealWorlds(spec, environment).judge(episode, "Done.") is verdict

    async def stops(first: StepResult, world: Environment, seed: int) -> None:
        for call in calls:
            await world.step(call)

    here = await play(environment(), TASK, stops, spec=spec, seed=0, source=Source.REAL)
    assert (here.success, has_succeeded(spec, here, ends_itself=True)) == (verdict, verdict), "without a server too"
    (*_, last) = await played(*calls, *[NEXT_CALL] * (2 - calls.count(NEXT_CALL)))
    assert (last.terminated, last.reward) == (True, float(verdict))


async def test_the_first_prompt_is_the_same_in_reality_and_in_a_dream() -> None:
    spec = EnvironmentSpec(
        name="lamps", tools_list=({"tools": list(tools_of(DOCS))},), state=schema_of([*SYSTEMS.values()])
    )
    assert (await environment().reset(TASK)).observation == spec.first(TASK).observation


async def test_the_environment_keeps_the_contract() -> None:
    await check_environment(environment, [TASK, TASK], action=PRESS, deterministic=True)
    await check_environment(environment, [TASK], deterministic=True)


def test_the_ground_truth_is_read_as_calls_by_name() -> None:
    assert LAMPS.calls == ((PRESS,), (COUNT,))
