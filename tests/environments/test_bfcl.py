"""BFCL's own conversations and classes: the ground truth wins, and the reward equals the verdict of BFCL's checker."""

import ast
import importlib.util
import inspect
import json
import sys
from collections.abc import Iterator
from decimal import localcontext
from functools import cache
from typing import Any

import pytest
from dreamgym_integrations.environments.bfcl import Bfcl, bfcl
from dreamgym_integrations.environments.bfcl.suite import MAIN, Suite, bfcl_suite, parameters_of
from dreamgym_integrations.environments.bfcl.tools import NEXT

from dreamgym.dream.task_check import accomplished
from dreamgym.episode import play
from dreamgym.errors import EpisodeFinished, InvalidInput, UnknownName
from dreamgym.schema import fault_under
from dreamgym.state import parsed
from dreamgym.testing.environment import check_environment
from dreamgym.tools import Tools
from dreamgym.types import Source, Task, ToolCall, Trajectory

pytestmark = pytest.mark.anyio

IS_HERE = all(importlib.util.find_spec(name) is not None for name in ("bfcl_eval", "mpmath"))
needs_bfcl = pytest.mark.skipif(
    not IS_HERE, reason="needs: pip install --no-deps bfcl-eval==2026.3.23; pip install mpmath"
)
SPLITS = ("train", "dev", "test")


@cache
def real_one() -> Bfcl:
    return bfcl({})


def tasks() -> list[Task]:
    return [task for split in SPLITS for task in real_one().tasks(split)]


async def played(task: Task, way: str, seed: int) -> Trajectory:
    real = real_one()
    return await play(real.create(), task, real.behaviours[way], spec=real.spec, seed=seed, source=Source.REAL)


def by_request(trajectory: Trajectory) -> list[list[ToolCall]]:
    """The calls that were made for each request, without the refused ones."""
    requests: list[list[ToolCall]] = [[]]
    for step in trajectory.transitions:
        if step.action.name == NEXT:
            requests.append([])
        elif not step.result.observation.startswith("Input validation error"):
            requests[-1].append(step.action)
    return requests[:-1]


def as_python(call: ToolCall) -> str:
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"


@needs_bfcl
async def test_the_ground_truth_wins_every_conversation() -> None:
    lost = [task.id for task in tasks() if not (await played(task, "expert", 0)).success]
    assert lost == []
    assert len(tasks()) == 200


@needs_bfcl
@pytest.mark.parametrize("way", ["mixed", "random"])
async def test_the_reward_equals_the_verdict_of_the_benchmarks_own_checker(way: str) -> None:
    from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import multi_turn_checker

    truths = {str(row["id"]): row["ground_truth"] for row in rows("possible_answer")}
    entries = {str(row["id"]): row for row in rows()}
    won = 0
    chosen = tasks()[:: 2 if way == "mixed" else 10]
    for number, task in enumerate(chosen):
        trajectory = await played(task, way, number)
        if not trajectory.transitions[-1].result.terminated:
            continue  # cut at the step limit
        name = str(task.metadata["conversation"])
        requests = [[[as_python(call)] for call in calls] for calls in by_request(trajectory)]
        with localcontext():  # BFCL's calculator sets the decimal precision of its caller
            verdict = multi_turn_checker(requests, truths[name], entries[name], "multi_turn_base", f"{way}{number}")
        assert verdict["valid"] == trajectory.success, (task.id, verdict)
        won += trajectory.success
    assert (0 < won < len(chosen)) == (way == "mixed")


def rows(folder: str = "") -> Iterator[dict[str, Any]]:
    found = importlib.util.find_spec("bfcl_eval")
    assert found is not None
    assert found.submodule_search_locations
    path = f"{found.submodule_search_locations[0]}/data/{folder}/BFCL_v4_multi_turn_base.json"
    with open(path, encoding="utf-8") as file:
        yield from map(json.loads, file)


@needs_bfcl
async def test_bfcl_keeps_the_contract() -> None:
    real = real_one()
    await check_environment(real.create, real.tasks("train")[:60:20], deterministic=True)


@needs_bfcl
async def test_a_refused_reset_ends_the_conversation_before_it() -> None:
    environment, task = real_one().create(), real_one().tasks("train")[0]
    await environment.reset(task)
    with pytest.raises(InvalidInput, match="expected the id of a conversation"):
        await environment.reset(task.model_copy(update={"metadata": {}}))
    with pytest.raises(EpisodeFinished):
        await environment.step(ToolCall(name=NEXT))


@needs_bfcl
async def test_every_state_fits_the_schema_and_every_answer_fits_its_tool() -> None:
    spec = real_one().spec
    tools, schema = Tools(spec), spec.state
    assert schema is not None
    for number, task in enumerate(tasks()[::8]):
        for step in (await played(task, "random", number)).transitions:
            state = parsed(step.next_state)
            assert state is not None
            assert schema.fault_of(state) is None
            assert tools.refusal(step.action, step.action.canonical()) is None
            assert tools.violation(step.action.name, step.result) is None
            assert (
                step.result.is_error
                or step.action.name == NEXT
                or step.result.structured == json.loads(step.result.observation)
            )


@needs_bfcl
async def test_no_world_is_in_two_splits() -> None:
    suite = bfcl_suite()
    worlds: dict[str, set[str]] = {}
    for task in tasks():
        conversation = suite.conversations[str(task.metadata["conversation"])]
        (main,) = set(conversation.classes) & set(MAIN)
        world = json.dumps([main, conversation.config.get(main)], sort_keys=True)
        worlds.setdefault(world, set()).add(str(task.metadata["split"]))
    assert all(len(splits) == 1 for splits in worlds.values())
    assert len({task.id for task in tasks()}) == 200
    assert [len(real_one().tasks(split)) for split in SPLITS] == [116, 40, 44]


@needs_bfcl
def test_the_checks_of_tasks_are_not_satisfied_at_the_start() -> None:
    assert [accomplished(task, task.initial_state or "") for task in tasks()] == [False] * 200


@needs_bfcl
def test_the_docs_list_positional_arguments_in_the_functions_own_order() -> None:
    suite: Suite = bfcl_suite()
    parameters = {str(doc["name"]): parameters_of(doc) for docs in suite.docs.values() for doc in docs}
    calls = [
        ast.parse(call.strip(), mode="eval").body
        for row in rows("possible_answer")
        for turn in row["ground_truth"]
        for call in turn
    ]
    by_position = {call.func.id: len(call.args) for call in calls if call.args}
    assert by_position
    for function, count in by_position.items():
        own = inspect.signature(getattr(suite.make(suite.owners[function]), function)).parameters
        assert tuple(own)[:count] == parameters[function][:count]


@needs_bfcl
def test_the_ground_truth_fits_the_tools_schemas() -> None:
    spec = real_one().spec
    for conversation in bfcl_suite().conversations.values():
        for call in (call for calls in conversation.calls for call in calls):
            schema = spec.tool(call.name)["inputSchema"]
            assert isinstance(schema, dict)
            assert fault_under(schema, call.arguments) is None
            assert call.name not in conversation.excluded


@needs_bfcl
def test_a_choice_of_classes_has_only_their_conversations_and_tools() -> None:
    vehicles = bfcl({"classes": ["VehicleControlAPI", "MathAPI"]})
    assert vehicles.spec.name == "bfcl-vehiclecontrolapi-mathapi"
    assert sum(len(vehicles.tasks(split)) for split in SPLITS) == 25
    assert len(vehicles.spec.tools) == 1 + 22 + 17
    with pytest.raises(UnknownName, match="unknown split"):
        vehicles.tasks("all")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"classes": ["Cars"]}, "unknown class 'Cars'"),
        ({"classes": ["MathAPI"]}, "at least one of GorillaFileSystem"),
        ({"steps": 3}, "steps"),
        ({"max_steps": 0}, "max_steps"),
    ],
)
def test_options_are_checked_by_name(options: dict[str, object], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        bfcl(options)  # type: ignore[arg-type]


def test_a_missing_package_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bfcl_eval", None)
    bfcl_suite.cache_clear()
    with pytest.raises(InvalidInput, match="pip install --no-deps bfcl-eval"):
        bfcl({}).tasks("train")
    bfcl_suite.cache_clear()
