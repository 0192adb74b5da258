"""Describes as text what a store contains of each environment, and deletes it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.recordings.folder.env_file import name_in
from dreamgym.runs.console import listed, say
from dreamgym.runs.opening import DSN_VARIABLE
from dreamgym.runs.play import render, rendered_steps

if TYPE_CHECKING:
    from dreamgym.replay.episode_store import Episode
    from dreamgym.replay.postgres.database import Database
    from dreamgym.replay.postgres.forget import Forgotten, Held, HeldTrajectory

LISTED = 20
"""Maximum number of trajectories that are listed of an environment. Those of a run are all listed."""


@asynccontextmanager
async def _database() -> AsyncIterator[Database]:
    from dreamgym.replay.postgres.store import open_database

    async with open_database(os.environ.get(DSN_VARIABLE) or None) as database:
        yield database


def env_named(env: str) -> str:
    """The name of an environment, which may be given as its folder."""
    return name_in(Path(env)) if (Path(env) / "env.toml").is_file() else env


def contained(folder: Path, ids: Iterable[str]) -> list[str]:
    """Those of these ids that the trajectories.jsonl of a folder contains, whether its other lines are valid or not."""
    file = folder / "trajectories.jsonl"
    content = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    there = set(re.findall(r'"id": ?("(?:[^"\\]|\\.)*")', content))
    return [one for one in ids if json.dumps(one, ensure_ascii=False) in there]


async def forget(env: str, name: str | None) -> Forgotten:
    """Delete what is stored of an environment, a run or one trajectory; all or nothing. Say what its folder keeps.

    Args:
        env: name of the environment.
        name: a trajectory's id, a recorded run, or a training run; None: all of the environment.

    Raises:
        UnknownName: nothing is stored under this name.
    """
    from dreamgym.replay.postgres import forget as stored

    async with _database() as database:
        found = await stored.held_trajectories(database, env, name) if name is not None else []
        folder = (await stored.held_of(database, env)).folder if found else None
        done = await stored.forget(database, env, name)
    if folder is not None and (kept := contained(Path(folder), [one.id for one in found])):
        say(
            f"{folder} still contains {listed(kept)}, and the next command that reads it stores them again. To prevent "
            "that, delete their files in recordings/; if they have none, delete their lines in trajectories.jsonl, and "
            "their tasks in tasks.jsonl"
        )
    return done


async def described(env: str | None, name: str | None) -> str:
    """Describe as text what is stored: of all environments, of one, of a run, or one whole episode.

    Args:
        env: name of the environment; None: one line for each environment.
        name: an episode's id, a recorded run, or a training run; None: all of the environment.

    Raises:
        UnknownName: nothing is stored under this name.
    """
    from dreamgym.replay.postgres import forget as stored
    from dreamgym.replay.postgres import vector_index
    from dreamgym.replay.postgres.upsert import READ, trajectory_of

    async with _database() as database:
        if env is None:
            return _overview(await stored.held(database))
        of_env = await stored.held_of(database, env)
        if name is None:
            newest = await stored.held_trajectories(database, env, limit=LISTED)
            return _environment(of_env, newest, await vector_index.described(database, env))
        found = await stored.held_trajectories(database, env, name)
        if not found:  # no trajectory is made of episodes that run or failed
            return _kept(await stored.kept_episodes(database, env, name))
        if len(found) != 1:
            return "\n".join(_line(one) for one in found)
        ((number,),) = await database.fetch("SELECT id FROM environments WHERE name = %(env)s", {"env": env})
        query = f"{READ.format(env=number)} AND trajectory.id = %(id)s"
        rows = await database.fetch(query, {"id": found[0].id})
    return "\n".join([_line(found[0]), *(render(trajectory_of(body, steps)) for body, steps in rows)])


def _overview(found: list[Held]) -> str:
    if not found:
        return "nothing is stored"
    rows: list[tuple[str, ...]] = [("environment", "recorded", "imported", "dreamed", "tasks", "last stored", "folder")]
    for one in found:
        counts = (f"{count:,}" for count in (one.real, one.imported, one.synthetic, one.tasks))
        rows.append((one.env, *counts, _when(one), one.folder or ""))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    numbers = range(1, 5)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _environment(of: Held, newest: list[HeldTrajectory], search: str) -> str:
    lines = [
        f"environment   {of.env}",
        f"folder        {of.folder or 'unknown'}",
        f"trajectories  {of.real:,} recorded, {of.imported:,} imported, {of.synthetic:,} dreamed",
        f"tasks         {of.tasks:,}",
        f"episodes      {of.episodes:,} on servers, running or over",
        f"training runs {', '.join(of.runs) or 'none'}",
        f"last stored   {_when(of)}",
        f"search        {search}",
    ]
    total = of.real + of.imported + of.synthetic
    lines += ["", *map(_line, newest)]
    return "\n".join([*lines, f"and {total - len(newest):,} older ones"] if total > len(newest) else lines).rstrip()


def _kept(episodes: list[Episode]) -> str:
    lines = [f"{one.id}  episode  {_what(one.version, one.task.instruction)}" for one in episodes]
    if len(episodes) != 1:
        return "\n".join(lines)
    (one,) = episodes
    error = f": {one.error}" if one.error else ""
    return "\n".join(
        [*lines, *rendered_steps(one.task, one.transitions), f"end    {one.stop_reason or 'running'}{error}"]
    )


def _line(one: HeldTrajectory) -> str:
    kind = {"real": "recorded", "imported": "imported", "synthetic": "dreamed"}[one.source]
    return f"{one.id}  {kind}  {one.stored_at:%Y-%m-%d %H:%M}  {_what(one.steps, one.instruction)}"


def _what(steps: int, instruction: str) -> str:
    task = instruction.partition("\n")[0][:60] or "no task"
    return f"{steps} {'step' if steps == 1 else 'steps'}  {task}"


def _when(of: Held) -> str:
    return f"{of.stored_at:%Y-%m-%d %H:%M}" if of.stored_at else "never"
