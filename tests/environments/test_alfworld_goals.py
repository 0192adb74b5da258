"""New goals of ALFWorld, in no recording: a check on the state decides them, in the dream as in the game."""

import asyncio
from typing import Any

import pytest
from alfworld_rooms import played, rooms
from dreamgym_integrations.environments.alfworld.goals import AlfworldGoals
from dreamgym_integrations.environments.base import act

from dreamgym.curriculum.generator import content_of
from dreamgym.curriculum.goal_variation import GoalVariation, goal_variation
from dreamgym.dream.objects import ObjectWorlds
from dreamgym.embedding import TrigramEncoder
from dreamgym.errors import DreamGymError, InvalidInput
from dreamgym.replay.postgres import open_store
from dreamgym.runs.tasks import generate_tasks
from dreamgym.schema import schema_of
from dreamgym.types import JsonObject, Origin, StepResult, Task, Trajectory

pytestmark = pytest.mark.anyio
GOALS = AlfworldGoals()


def state(
    things: dict[str, list[str]], *, held: str | None = None, at: str | None = None, **looks: dict[str, bool]
) -> JsonObject:
    """Return the state of a room: where each thing lies, and which things are hot, cool, clean, sliced or on."""
    names = {place for where in things.values() for place in where} | ({at} if at else set())
    places: JsonObject = {
        name: {"place": name, "kind": name.split()[0], "openable": None, "open": None, "seen": True, "beside": []}
        for name in names
    }
    plain: dict[str, bool] = dict.fromkeys(("hot", "cool", "clean", "sliced", "on"), False)
    found: JsonObject = {
        name: {
            "thing": name,
            "kind": name.split()[0],
            "where": [*where],
            **plain,
            **looks.get(name.replace(" ", "_"), {}),
        }
        for name, where in things.items()
    }
    return {"places": places, "things": found, "at": at, "held": held}


def holds(instruction: str, start: JsonObject, later: JsonObject) -> bool:
    check = GOALS.check(instruction, start)
    assert check is not None
    schema_of(check).require_usable()
    assert schema_of(check).allows(later) == (schema_of(check).fault(later) is None)
    return schema_of(check).allows(later)


PUT = "Your task is to: put a clean mug in desk."
TWO = "Your task is to: find two mug and put them in desk."
LOOK = "Your task is to: look at mug under the desklamp."
START = {"mug 1": ["shelf 1"], "mug 12": ["shelf 1"], "cup 1": ["desk 1"], "desklamp 1": ["desk 1"]}


def test_a_name_does_not_match_a_longer_name_that_begins_with_it() -> None:
    start = state({**START, "cupboard 1": ["desk 1"], "mugrack 1": ["desk 1"]})
    moved: Any = state({**START, "mugrack 1": ["desk 1"]}, mugrack_1={"clean": True})
    assert not holds(PUT, start, moved)
    twelfth = state({**START, "mug 12": ["desk 1"]}, mug_12={"clean": True})
    assert holds(PUT, start, twelfth)
    assert not holds(PUT, start, state({**START, "mug 12": ["desk 1"]}, mug_1={"clean": True}))
    other_desk = state({**START, "mug 1": ["desktop 1"]}, mug_1={"clean": True})
    assert not holds(PUT, start, other_desk)


def test_a_goal_of_two_things_requires_both_in_one_place() -> None:
    start = state({**START, "pen 1": ["desk 2"]})
    assert not holds(TWO, start, state({**START, "mug 1": ["desk 1"], "mug 12": ["desk 2"]}))
    assert not holds(TWO, start, state({**START, "mug 1": ["desk 1"], "cup 1": ["desk 1"]}))
    assert holds(TWO, start, state({**START, "mug 1": ["desk 2"], "mug 12": ["desk 2"]}))


def test_a_thing_is_looked_at_if_it_is_held_beside_a_lamp_that_is_on() -> None:
    start, on = state(START), {"on": True}
    assert holds(LOOK, start, state(START, held="mug 12", at="desk 1", desklamp_1=on))
    assert not holds(LOOK, start, state(START, held="cup 1", at="desk 1", desklamp_1=on))
    assert not holds(LOOK, start, state(START, held="mug 1", at="shelf 1", desklamp_1=on))
    assert not holds(LOOK, start, state(START, held="mug 1", at="desk 1"))


@pytest.mark.parametrize(
    "instruction",
    [
        "Tidy up.",  # not in the environment's words
        "Your task is to: look at mug under the floorlamp.",  # nobody has seen such a lamp
        "Your task is to: put two cup in desk.",  # the room has only one cup
        "Your task is to: put a mug in fridge.",  # the room has no fridge
        "Your task is to: do not put a mug in desk.",  # its last words alone would ask for the contrary
        "Your task is to: put a cup and a mug in desk.",
    ],
)
def test_a_goal_that_no_state_of_the_room_can_decide_has_no_check(instruction: str) -> None:
    assert GOALS.check(instruction, state(START)) is None


@pytest.fixture(scope="module")
def recorded() -> list[Trajectory]:
    return [*asyncio.run(played("mixed", 8)), *asyncio.run(played("random", 3))]


@pytest.fixture(scope="module")
def known(recorded: list[Trajectory]) -> ObjectWorlds:
    return ObjectWorlds.of(recorded, rooms().reader, rooms().goals)


def variation(known: ObjectWorlds, failures: list[str] | None = None) -> GoalVariation:
    def failed(parent: Task, reason: str) -> None:
        assert failures is not None, reason
        failures.append(reason)

    made = goal_variation(rooms().spec, known, failed)
    assert isinstance(made, GoalVariation)
    return made


async def test_new_goals_of_a_recorded_room_are_reached_in_the_game_too(known: ObjectWorlds) -> None:
    real = rooms()
    for parent in real.tasks("train"):
        made = [task async for task in variation(known).new_goals(parent, seed=0)]
        assert made
        assert len({content_of(task) for task in made}) == len(made)
        for task in made:
            assert (task.origin, task.parent_id, task.world) == (Origin.GENERATED, parent.id, parent.id)
            assert task.initial_state == parent.initial_state
            assert await is_reached(task, known), task.instruction


async def is_reached(task: Task, known: ObjectWorlds) -> bool:
    """True if the dream's plan for the goal also reaches it in the game, judged by the reader's state."""
    real, episode = rooms(), known.episode(task)
    assert episode is not None
    assert not episode.is_accomplished, "it holds at the start"
    answer, commands = episode.answer, list[str]()

    class Tried:
        tools = ()
        task: Task

        async def step(self, action: Any) -> StepResult:
            commands.append(str(action.arguments["command"]))
            prediction = answer(action)
            assert prediction is not None
            return StepResult(
                observation=prediction.observation, terminated=prediction.terminated or len(commands) == 50
            )

    tried = Tried()
    tried.task = task
    await real.behaviours["handcoded"](real.spec.first(task), tried, 0)  # type: ignore[arg-type]
    game = real.create()
    with pytest.raises(InvalidInput, match="a goal of its own"):
        await game.reset(task)
    (parent,) = (one for one in real.tasks("train") if one.metadata["game"] == task.metadata["game"])
    first = await game.reset(parent)
    reader, shown = real.reader, known.worlds[task.world].start
    assert first.observation == task.initial_state
    for command in commands:
        call = reader.call(act(command))
        result = await game.step(act(command))
        shown = reader.after(shown, call, reader.result(call, result))
        if result.done:
            break
    return schema_of(task.metadata["success"]).allows(shown)


async def test_variations_are_drawn_by_the_seed_and_are_not_the_parents_own_goal(known: ObjectWorlds) -> None:
    parents = list(rooms().tasks("train"))
    once, again = [await variation(known).vary(parents, seed=1) for _ in range(2)]
    assert once == again
    assert len(once) == len(parents)
    for parent, task in zip(parents, once, strict=True):
        start = known.worlds[parent.id].start
        assert GOALS.check(task.instruction, start) != GOALS.check(parent.instruction, start)
        assert task.metadata["success"] == GOALS.check(task.instruction, start)


async def test_a_room_recorded_too_thinly_for_any_goal_is_named(recorded: list[Trajectory]) -> None:
    parent = rooms().tasks("train")[0]
    others = [one for one in recorded if one.task.id != parent.id]
    barely = next(one for one in recorded if one.task.id == parent.id)
    barely = barely.model_copy(update={"transitions": ()})
    failures: list[str] = []
    thin = variation(ObjectWorlds.of([*others, barely], rooms().reader, rooms().goals), failures)
    assert thin.is_recorded(parent)
    assert await thin.vary([parent], seed=0) == []
    assert parent.id in failures[0]
    assert "could be reached in the dream" in failures[0]


async def test_an_environment_without_goals_has_no_goal_variation(recorded: list[Trajectory]) -> None:
    assert goal_variation(rooms().spec, ObjectWorlds.of(recorded[:2], rooms().reader)) is None
    assert goal_variation(rooms().spec, None) is None


async def test_the_verb_tasks_stores_new_goals_of_recorded_rooms_that_nobody_has_tried(
    recorded: list[Trajectory], dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DREAMGYM_ENCODER", "trigram")
    with pytest.raises(DreamGymError, match=r"that were recorded \(0\).*record more"):
        await generate_tasks(rooms().spec, 4, dsn=dsn)
    store = await open_store(dsn, TrigramEncoder())
    try:
        await store.buffer.add(recorded)
        made = await generate_tasks(rooms().spec, 4, dsn=dsn)
        stored = {task.id: task for task in await store.buffer.tasks("alfworld")}
    finally:
        await store.close()
    assert len({row.id for row in made}) == 4
    tried = {(one.task.instruction, one.task.initial_state) for one in recorded}
    assert tried.isdisjoint({(row.instruction, row.initial_state) for row in made})
    assert all("success" in stored[row.id].metadata and row.origin is Origin.GENERATED for row in made)
