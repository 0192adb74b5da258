"""Contract test for environments, to run on your own.

    async def test_my_environment_keeps_its_promises() -> None:
        real = load_real("mine")
        await check_environment(real.create, real.tasks("train")[:3], deterministic=True)

A broken promise raises an AssertionError that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pydantic import JsonValue

from dreamgym.environment import Environment
from dreamgym.errors import DreamGymError, EpisodeFinished, InvalidInput
from dreamgym.schema import fault_under, schema_of
from dreamgym.types import JsonObject, StepResult, Task, ToolCall

STEPS = 3
"""How many steps of an episode are compared with its repetition."""
LONG = 200
"""An episode that has not ended after so many steps has no end of its own; its player sets the limit."""

_PLAINEST: dict[str, JsonValue] = {
    "string": "look",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "array": [],
    "object": {},
    "null": None,
}


async def check_environment(
    make: Callable[[], Environment],
    tasks: Sequence[Task],
    *,
    action: ToolCall | None = None,
    deterministic: bool = False,
) -> None:
    """Check every promise of the Environment protocol.

    Args:
        make: returns a new environment that nobody else uses.
        tasks: some of its tasks; with two or more, one is played while another runs.
        action: a call that fits a tool's schema; if None, the simplest call of the first tool is used.
        deterministic: the same task and actions must give the same answers.
    """
    assert tasks, "expected at least one task to check with"
    environment = make()
    try:
        check_tools(environment.tools)
        action = action or plainest_call(environment.tools[0])
        await _check_life(environment, tasks[0], action)
    finally:
        await environment.close()
    await environment.close()  # a second call must be allowed
    await _check_two_do_not_meet(make, tasks, action)
    if deterministic:
        await _check_repetition(make, tasks, action)


def check_tools(tools: Sequence[JsonObject]) -> None:
    """Check MCP tool definitions: names must be unique, and input schemas must be JSON Schemas of an object."""
    assert tools, "an environment needs at least one tool"
    names = [tool.get("name") for tool in tools]
    assert all(isinstance(name, str) and name for name in names), f"every tool needs a name, got {names}"
    assert len(set(map(str, names))) == len(names), f"tool names are not unique: {names}"
    for tool in tools:
        schema = tool.get("inputSchema")
        assert isinstance(schema, dict), f"tool {tool['name']!r}: expected an object as inputSchema, got {schema!r}"
        assert schema.get("type") == "object", f"tool {tool['name']!r}: inputSchema needs the type 'object'"
        try:
            schema_of(schema)
        except InvalidInput as error:
            raise AssertionError(f"tool {tool['name']!r}: inputSchema: {error}") from error


def plainest_call(tool: JsonObject) -> ToolCall:
    """A call with the tool's required arguments: the first listed value of each, or the plainest that it may have."""
    schema = tool["inputSchema"]
    assert isinstance(schema, dict)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    assert isinstance(properties, dict)
    assert isinstance(required, list)
    optional: JsonObject = {keyword: part for keyword, part in schema.items() if keyword != "required"}
    arguments: JsonObject = {}
    for name in map(str, required):
        found = properties.get(name)
        definition = found if isinstance(found, dict) else {}
        listed = [definition["const"]] if "const" in definition else definition.get("enum")
        usual = _PLAINEST.get(str(definition.get("type")), "look")
        values = [*(listed if isinstance(listed, list) else []), usual, *_PLAINEST.values(), definition.get("default")]
        arguments[name] = next((value for value in values if _fits(optional, {name: value})), usual)
    return ToolCall(name=str(tool["name"]), arguments=arguments)


def _fits(schema: JsonObject, arguments: JsonObject) -> bool:
    try:
        return fault_under(schema, arguments) is None
    except InvalidInput:  # a pattern that only another language can read
        return False


async def _check_life(environment: Environment, task: Task, action: ToolCall) -> None:
    await _expect_refusal(environment, action, "before the first reset")
    _check_start(await environment.reset(task))
    await _check_unknown_tool(environment)
    for _ in range(LONG):
        result = await environment.step(action)
        assert isinstance(result, StepResult), f"step must return a StepResult, got {type(result).__name__}"
        if result.done:
            await _expect_refusal(environment, action, "after the end of an episode")
            break
    _check_start(await environment.reset(task))


def _check_start(start: StepResult) -> None:
    assert isinstance(start, StepResult), f"reset must return a StepResult, got {type(start).__name__}"
    is_told = start.observation or "state" in start.info
    assert is_told, "the first observation is empty and reports no state: the agent would start blind"
    assert not start.done, "an episode must not be over before its first step"
    assert start.reward == 0, f"nothing was done yet, but reset gave a reward of {start.reward}"


async def _expect_refusal(environment: Environment, action: ToolCall, when: str) -> None:
    try:
        result = await environment.step(action)
    except EpisodeFinished:
        return
    raise AssertionError(f"a step {when} must raise EpisodeFinished, got {result!r}")


async def _check_unknown_tool(environment: Environment) -> None:
    names = {str(tool["name"]) for tool in environment.tools}
    unknown = "no-such-" + "-".join(sorted(names))
    try:
        result = await environment.step(ToolCall(name=unknown))
    except EpisodeFinished as error:
        raise AssertionError("an unknown tool must not be reported as the end of the episode") from error
    except DreamGymError:
        return
    assert result.is_error, f"an unknown tool must be an error, got {result!r}"
    assert not result.done, f"an unknown tool must not end the episode, got {result!r}"


async def _check_two_do_not_meet(make: Callable[[], Environment], tasks: Sequence[Task], action: ToolCall) -> None:
    one, other = make(), make()
    assert one is not other, "make must give a new environment each time"
    try:
        await one.reset(tasks[0])
        await other.reset(tasks[-1])
        await other.step(action)
        await other.close()
        try:
            await one.step(action)
        except DreamGymError as error:
            raise AssertionError(f"an environment must go on when another one is closed, but: {error}") from error
    finally:
        await one.close()
        await other.close()


async def _check_repetition(make: Callable[[], Environment], tasks: Sequence[Task], action: ToolCall) -> None:
    """Check that each task, played twice by itself, gives the answers that it gives step by step beside the others."""
    alone: list[list[StepResult]] = []
    environment = make()
    try:
        for task in tasks:
            once, again = [await _play([environment], [task], action) for _ in range(2)]
            different = f"task {task.id!r} gave different answers the second time: {once[0]}, then {again[0]}"
            assert again == once, different
            alone.extend(once)
    finally:
        await environment.close()
    environments = [make() for _ in tasks]
    try:
        together = await _play(environments, tasks, action)
    finally:
        for environment in environments:
            await environment.close()
    for task, by_itself, beside in zip(tasks, alone, together, strict=True):
        different = f"task {task.id!r} gave different answers beside other tasks: {by_itself} alone, then {beside}"
        assert beside == by_itself, different


async def _play(environments: Sequence[Environment], tasks: Sequence[Task], action: ToolCall) -> list[list[StepResult]]:
    played = [[await environment.reset(task)] for environment, task in zip(environments, tasks, strict=True)]
    for _ in range(STEPS):
        for environment, results in zip(environments, played, strict=True):
            if not results[-1].done:
                results.append(await environment.step(action))
    return played
