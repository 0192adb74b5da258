"""The lamp as a user has it: an environment folder, the real lamp as a plugin, and the command line around both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import anyio
import pytest
from lamp import COLOURS, TOOL, LampEnvironment

from dreamgym import EnvironmentSpec, StepResult, Task, Trajectory
from dreamgym.cli.app import main
from dreamgym.embedding import load_encoder
from dreamgym.environment import Behaviour
from dreamgym.replay.postgres import open_store
from dreamgym.types import JsonObject

Command = Callable[..., tuple[int, str]]
SPLITS = {"train": 8, "dev": 24, "test": 8}
ENV_TOML = (
    'name = "lamp"\ndescription = "a lamp"\ndeterministic = true\n[limits]\nmax_steps = 3\n[real]\nadapter = "lamp"\n'
)


class StatedLamp(LampEnvironment):
    """A lamp that takes its colour from the task's initial state, as generated tasks require."""

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        colour = (task.initial_state or "").split()[-1]
        return await super().reset(task.model_copy(update={"metadata": {"colour": colour}}), seed=seed)


class RealLamp:
    """The real environment that the entry point returns."""

    spec = EnvironmentSpec(
        name="lamp",
        tools_list=({"tools": [TOOL]},),
        max_steps=3,
        deterministic=True,
        description="a lamp",
        adapter="lamp",
    )
    behaviours: Mapping[str, Behaviour] = {}

    def tasks(self, split: str) -> Sequence[Task]:
        colours = [COLOURS[i % len(COLOURS)] for i in range(SPLITS[split])]
        return [
            Task(id=f"{split}-{i}", env="lamp", instruction="say the colour", initial_state=f"the lamp is {colour}")
            for i, colour in enumerate(colours)
        ]

    def create(self) -> StatedLamp:
        return StatedLamp()


def lamp_adapter(options: JsonObject) -> RealLamp:
    """The entry point of the plugin."""
    return RealLamp()


def furnish(home: Path) -> Path:
    """Create the environment folder and, beside it, the plugin with the real lamp; return the folder."""
    folder, plugin = home / "lamp", home / "lamp-1.0.dist-info"
    folder.mkdir()
    plugin.mkdir()
    (folder / "env.toml").write_text(ENV_TOML)
    (folder / "tools.json").write_text(
        EnvironmentSpec.model_validate(RealLamp.spec).model_dump_json(include={"tools_list"})[
            len('{"tools_list":') : -1
        ]
    )
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: lamp\nVersion: 1.0\n")
    (plugin / "entry_points.txt").write_text("[dreamgym.environments]\nlamp = lamp_home:lamp_adapter\n")
    return folder


def path_with(home: Path) -> str:
    """The `PYTHONPATH` with which other processes find the plugin."""
    return os.pathsep.join([str(home), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])


def fill(dsn: str, recordings: Sequence[Trajectory]) -> None:
    """Store recordings of the lamp."""

    async def add() -> None:
        store = await open_store(dsn, load_encoder(None))
        await store.buffer.add(recordings)
        await store.close()

    anyio.run(add)


def called(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run a command line in this process; return its exit code and stderr."""
    monkeypatch.setattr(sys, "argv", ["dreamgym", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    said = capsys.readouterr()
    return int(exit_.value.code or 0), said.err
