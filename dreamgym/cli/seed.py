"""`dreamgym seed`: load recorded trajectories into the buffer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.wiring import Dsn, EnvName, opened_store, say
from dreamgym.environment import load_spec, read_jsonl
from dreamgym.errors import InvalidInput
from dreamgym.types import Trajectory


def seed(
    env: EnvName,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="JSONL, one trajectory per line.")],
    dsn: Dsn = None,
) -> None:
    """Load recorded trajectories. A file with a faulty line is left out whole; loading one twice changes nothing.

    Example: dreamgym seed examples/coin examples/coin/trajectories.jsonl
    """
    spec = load_spec(env)
    asyncio.run(_seed(spec.name, files, dsn))


async def _seed(env: str, files: list[Path], dsn: str | None) -> None:
    read = [(file, _checked(env, file)) for file in files]
    async with opened_store(dsn) as store:
        for file, trajectories in read:
            new = await store.buffer.add(trajectories)
            say(f"{file}: {new} of {len(trajectories)} trajectories are new")


def _checked(env: str, file: Path) -> list[Trajectory]:
    trajectories = read_jsonl(file, Trajectory)
    for number, trajectory in enumerate(trajectories, start=1):
        if trajectory.task.env != env:
            raise InvalidInput(
                f"{file}, trajectory {number}: it is of environment {trajectory.task.env!r}, not {env!r}"
            )
    return trajectories
