"""Fixtures of the training tests: a small text environment, recordings of it, and a policy cloned from them."""

import gc
import random
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from lamp import COLOURS, TOOL, LampEnvironment

from dreamgym import EnvironmentSpec, Source, StepResult, Task, ToolCall, Trajectory
from dreamgym.environment import Environment
from dreamgym.episode import play


@pytest.fixture(scope="module", autouse=True)
def _no_search_for_garbage_in_libraries() -> None:
    """Each trainer collects garbage when it starts, and would search all that was imported since the last time."""
    gc.freeze()


@pytest.fixture(scope="session")
def lamp_spec() -> EnvironmentSpec:
    tasks = tuple(
        Task(
            id=f"lamp-{i}",
            env="lamp",
            instruction="say the colour",
            initial_state=f"the lamp is {colour}",
            metadata={"colour": colour},
        )
        for i, colour in enumerate(COLOURS * 4)
    )
    return EnvironmentSpec(
        name="lamp", tools_list=({"tools": [TOOL]},), max_steps=3, deterministic=True, tasks=tasks, description="a lamp"
    )


@pytest.fixture(scope="session")
def lamp_recordings(lamp_spec: EnvironmentSpec) -> list[Trajectory]:
    draw = random.Random(0)

    async def half_right(first: StepResult, environment: Environment, seed: int) -> None:
        result = first
        while not result.done:
            colour = result.observation.split()[-1] if draw.random() < 0.4 else draw.choice(COLOURS)
            result = await environment.step(ToolCall(name="act", arguments={"command": f"say {colour}"}))

    async def record() -> list[Trajectory]:
        return [
            await play(LampEnvironment(), task, half_right, spec=lamp_spec, seed=i, source=Source.REAL)
            for i in range(20)
            for task in lamp_spec.tasks
        ]

    return anyio.run(record)


@pytest.fixture(scope="session")
def lamp_policy(
    lamp_spec: EnvironmentSpec, lamp_recordings: list[Trajectory], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    from dreamgym_integrations.trainers.policy.sft import clone
    from dreamgym_integrations.trainers.policy.tiny import create_tiny_policy

    folder = tmp_path_factory.mktemp("lamp")
    create_tiny_policy(lamp_recordings, folder / "untrained", seed=0)
    clone(
        lamp_spec,
        lamp_recordings,
        folder / "untrained",
        folder / "warm",
        steps=30,
        batch=32,
        learning_rate=3e-3,
        seed=0,
    )
    return folder / "warm"


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal
