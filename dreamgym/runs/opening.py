"""Opens an environment, simulated or real, in this process or behind a server in this process.

A dream is grounded in a store, which is opened too unless the caller gives one. Its language model is asked each
question only once. A measurement must leave no trace, so a server of `served` stores nothing unless it gets a buffer.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dreamgym.dream.confidence import Calibration
from dreamgym.dream.model import Part
from dreamgym.dream.task_check import checked_as_described
from dreamgym.embedding import TrigramEncoder, load_encoder
from dreamgym.environment import Behaviour, EnvironmentSpec, RealEnvironment, installed_real, load_spec, real_of
from dreamgym.episode import Agent, check_policy_url, load_agent
from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.evaluation.setting import Setting, setting
from dreamgym.redaction import redact_by, redacted_task
from dreamgym.replay.buffer import ReplayBuffer
from dreamgym.replay.memory import MemoryBuffer, MemoryEpisodeStore
from dreamgym.runs.console import say
from dreamgym.types import Origin, Task, Trajectory

if TYPE_CHECKING:
    from dreamgym_server.sources import Worlds

    from dreamgym.replay.postgres import Store


DSN_VARIABLE = "DREAMGYM_DSN"
POLICY_URL_VARIABLE = "OPENAI_BASE_URL"


SPLITS = ("train", "dev", "test")


class Against(StrEnum):
    """The environment that an episode is played in: a dream or the real one."""

    DREAM = "dream"
    REAL = "real"


def require_at_least(least: int, **numbers: int | None) -> None:
    """Raises InvalidInput if one of the numbers is smaller; None is no number."""
    for name, number in numbers.items():
        if number is not None and number < least:
            raise InvalidInput(f"{name}: expected {least} or more, got {number}")


@asynccontextmanager
async def open_store(dsn: str | None = None, encoder: str | None = None) -> AsyncIterator[Store]:
    """Open the store at `dsn`, else at the DSN in the variable DREAMGYM_DSN, else on the embedded server.

    Raises:
        StoreError: the store cannot be reached, or was filled with another encoder.
    """
    from dreamgym.replay import postgres

    store = await postgres.open_store(dsn or os.environ.get(DSN_VARIABLE) or None, load_encoder(encoder))
    try:
        yield store
    finally:
        await store.close()


async def stored_trajectories(spec: EnvironmentSpec, dsn: str | None) -> Sequence[Trajectory]:
    """Recorded trajectories of an environment in the store, without dreamed ones."""
    async with open_store(dsn) as store:
        return await store.buffer.trajectories(spec.name)


def check_endpoint(agent: Agent, policy_url: str | None) -> None:
    """Check that an agent has the chat completions endpoint that it needs.

    Raises:
        InvalidInput: there is none, or it is no HTTP address. The message does not quote it: it may contain a key.
    """
    check_policy_url(agent, policy_url)
    if policy_url is not None and not policy_url.startswith(("http://", "https://")):
        raise InvalidInput(f"{POLICY_URL_VARIABLE}: expected an address that begins with http:// or https://")


async def check_model(name: str | None, spec: EnvironmentSpec) -> None:
    """Check that the experience model of a dream can be used. It loads no weights yet.

    Raises:
        InvalidInput: the setting or the model cannot be used.
        UnknownName: there is no such model.
    """
    from dreamgym.dream.load import load_model

    if model := dream_setting(name).model:  # the default one can be used, and says which it is when it is loaded
        await load_model(model, env=spec.name).close()


def dream_setting(model: str | None, without: Collection[Part] = (), against: Against | str = Against.DREAM) -> Setting:
    """The setting of a dream: its experience model, and the parts of the method that are left out.

    Args:
        model: as in `--model`, such as `local without history,state`; None: the default model.
        without: further parts to leave out.
        against: the environment to play in, the dream or the real one.

    Raises:
        InvalidInput: the setting has a -k, or there is a model, or parts are left out, for the real environment.
        UnknownName: there is no such part.
    """
    chosen = setting(model or "", without=without)
    if chosen.k is not None:
        raise InvalidInput(
            f"--model {model!r}: -k is for check, fidelity and fit; leave it out here, where the model decides how "
            "many transitions it is shown"
        )
    is_real = Against(against) is Against.REAL
    if chosen.without and is_real:
        raise InvalidInput("without is for dreams: leave it out with --against real")
    if chosen.model and is_real:
        raise InvalidInput(
            f"--model {model!r} is for --against dream: leave it out, because the real environment needs no model"
        )
    return chosen


@asynccontextmanager
async def open_worlds(
    env: EnvironmentSpec | str,
    against: Against | str = Against.DREAM,
    *,
    model: str | None = None,
    store: Store | None = None,
    dsn: str | None = None,
    without: Collection[Part] = (),
    calibration: Calibration | None = None,
    min_confidence: float = 0.0,
) -> AsyncIterator[Worlds]:
    """Open an environment to play in: `worlds.create(id)` makes one world, `served(worlds)` a server of them.

    Args:
        env: the environment, its name, or its folder. For a dream, new recordings in the folder are stored first.
        against: the simulation or the real system.
        model: the experience model, as in `--model`: `local without history`.
        store: store with the recordings of a dream; None: the one at `dsn` is opened.
        dsn: DSN of the store; None: the embedded server.
        without: further parts of the method to leave out.
        calibration: gives answers their confidence.
        min_confidence: an episode ends if the confidence of an answer is lower.

    Raises:
        InvalidInput: the model or the environment cannot be used, a model is given for the real environment, parts are
            left out of it, or the store holds another folder's environment of the same name.
        UnknownName: there is no such environment.
        StoreError: the store cannot be reached.
    """
    from dreamgym_server.sources import DreamWorlds, RealWorlds

    from dreamgym.dream.load import load_model

    wanted = dream_setting(model, without, against)
    is_real, left_out = Against(against) is Against.REAL, frozenset(wanted.without)
    if is_real:
        spec = load_spec(env) if isinstance(env, str) else env
        yield RealWorlds(spec, real_of(spec).create)
        return
    async with open_seeded(env, store, dsn) as (spec, known), AsyncExitStack() as stack:
        predictions = None if Part.CACHE in left_out else known.predictions
        chosen = load_model(wanted.model or None, env=spec.name, predictions=predictions)
        stack.push_async_callback(chosen.close)
        yield DreamWorlds(
            spec,
            chosen,
            known.buffer,
            without=left_out,
            calibration=calibration,
            min_confidence=min_confidence,
        )


@asynccontextmanager
async def open_seeded(
    env: EnvironmentSpec | str, store: Store | None = None, dsn: str | None = None
) -> AsyncIterator[tuple[EnvironmentSpec, Store]]:
    """Open an environment and its store. New recordings in the environment's folder are stored first.

    Args:
        env: the environment, its name, or its folder.
        store: an open store; None: the one at `dsn` is opened.
        dsn: DSN of the store; None: the embedded server.

    Raises:
        InvalidInput: the store holds another folder's environment of the same name.
    """
    from dreamgym.runs import seed

    found = await seed.read_folder(env) if isinstance(env, str) else None
    spec = load_spec(env) if isinstance(env, str) else env  # after its folder was built
    say_if_taken_for_a_game(spec)
    async with AsyncExitStack() as stack:
        known: Store = store if store is not None else await stack.enter_async_context(open_store(dsn))
        if isinstance(env, str) and (folder := seed.folder_of(env)) is not None:
            await seed.claim([folder], known)
        if found is not None:
            await seed.store(found, known)
        yield spec, known


async def seeded(env: EnvironmentSpec | str, dsn: str | None = None) -> EnvironmentSpec:
    """The environment by its name or folder. What is new in the folder is stored first.

    Raises:
        InvalidInput: a file of the folder cannot be used, or the store holds another folder's environment of the same
            name.
        UnknownName: there is no such environment.
        StoreError: the store cannot be reached.
    """
    from dreamgym.runs import seed

    if not isinstance(env, str):
        return env
    if seed.folder_of(env) is None:
        return load_spec(env)
    async with open_seeded(env, dsn=dsn) as (spec, _):
        return spec


@asynccontextmanager
async def served(worlds: Worlds, kept: ReplayBuffer | None = None) -> AsyncIterator[str]:
    """Serve an environment from this process, and yield the server's URL, which contains its token.

    Args:
        worlds: the environment to serve.
        kept: buffer that stores finished episodes; None: they are not stored.
    """
    from dreamgym_client.connection import with_token
    from dreamgym_server.app import build
    from dreamgym_server.running import running

    buffer, token = MemoryBuffer(TrigramEncoder()) if kept is None else kept, secrets.token_hex(32)
    async with running(build([worlds], buffer, MemoryEpisodeStore(), token=token)) as url:
        yield with_token(url, token)


def real_for(env: EnvironmentSpec | str, spec: EnvironmentSpec, against: Against) -> RealEnvironment | None:
    """The real environment, for its tasks and behaviours. Code of an environment folder is run only to play it.

    Args:
        env: the environment as the caller gave it. If it is `module:function`, this code was run already for the spec.
        spec: description of `env`.
        against: the environment to play in, the dream or the real one.
    """
    names_code = isinstance(env, str) and ":" in env and not Path(env).is_dir()
    if against is Against.REAL or names_code:
        return real_of(spec) if spec.adapter is not None else None
    return installed_real(spec)


def behaviour_or_agent(name: str, real: RealEnvironment | None) -> tuple[Behaviour | None, Agent | None]:
    """The environment's behaviour of this name, else the agent. Raises InvalidInput as `load_agent` does."""
    behaviours = {} if real is None else real.behaviours
    if name in behaviours:
        return behaviours[name], None
    try:
        return None, load_agent(name)
    except UnknownName as error:
        known = f"The behaviours of this environment are {', '.join(sorted(behaviours))}"
        raise InvalidInput(f"{error}. {known if behaviours else 'This environment has no behaviours'}") from error


def tasks_of(
    spec: EnvironmentSpec, split: str, real: RealEnvironment | None, recorded: Sequence[Task] = ()
) -> Sequence[Task]:
    """Tasks of a split: those of the real environment, else those of the folder, else the recorded ones.

    Args:
        spec: description of the environment.
        split: name of the split. A task that names none belongs to all.
        real: the real environment, if there is one.
        recorded: the tasks that were recorded.

    Raises:
        UnknownName: the real environment does not know the split.
        InvalidInput: there is no task of the split.
    """
    try:
        own = real.tasks(split) if real is not None else ()
    except KeyError as error:  # an environment may look the split up without a check of its own
        if split in SPLITS:
            raise
        raise UnknownName("split", split, SPLITS) from error
    if own:
        return own
    described = spec.tasks or recorded
    say_tasks_of_no_split(described, split)
    tasks = [task for task in described if task.metadata.get("split", split) == split]
    if not tasks:
        raise InvalidInput(
            f"environment {spec.name!r} has no tasks of split {split!r}: give another --split, or write tasks into "
            "tasks.jsonl in its folder, one per line, as they stand in trajectories.jsonl"
        )
    return tasks


async def recorded_tasks(spec: EnvironmentSpec, dsn: str | None) -> Sequence[Task]:
    """The stored tasks of an environment's recordings; none if its folder lists tasks, which then count alone."""
    if spec.tasks:
        return ()
    async with open_store(dsn) as store:
        return [task for task in await store.buffer.tasks(spec.name) if task.origin is not Origin.GENERATED]


def say_tasks_of_no_split(tasks: Iterable[Task], wanted: str = SPLITS[0]) -> None:
    """Print, once, how many tasks have a `metadata.split` that is neither one of SPLITS nor `wanted`, if any has."""
    splits = {task.id: task.metadata["split"] for task in tasks if "split" in task.metadata}
    if odd := [name for name, split in splits.items() if split not in (*SPLITS, wanted)]:
        _say_once(
            f"tasks that belong to no split: {len(odd)}, for example {odd[0]!r}: expected its metadata.split to be "
            f"{', '.join(SPLITS)} or absent, got {splits[odd[0]]!r}; they are neither trained nor tested on"
        )


def say_if_taken_for_a_game(spec: EnvironmentSpec) -> None:
    """Print, once, that a folder with one tool of one text counts as a game, if it does not say what it is."""
    if spec.is_text and spec.ends_itself is None and spec.adapter is None:
        _say_once(
            f"{spec.name!r} counts as a text game, since its only tool takes one text: write ends_itself into its "
            "env.toml, false for a server of tools, true for a game"
        )


@cache
def _say_once(text: str) -> None:
    say(text)


def may_be_learned(task: Task) -> bool:
    """True if the task belongs to the split `train` or to no split."""
    return task.metadata.get("split", "train") == "train"


def as_described(spec: EnvironmentSpec, recorded: Sequence[Trajectory]) -> list[Trajectory]:
    """The trajectories with the checks of the described tasks (`checked_as_described`), and with their splits.

    A recording moves no task to training. So if the described task with its id belongs to another split than `train`,
    the trajectory's task does too.
    """
    apart = {task.id: task.metadata["split"] for task in spec.tasks if not may_be_learned(task)}

    def described(one: Trajectory) -> Trajectory:
        if one.task.id not in apart:
            return one
        metadata = {**one.task.metadata, "split": apart[one.task.id]}
        return one.model_copy(update={"task": one.task.model_copy(update={"metadata": metadata})})

    return list(map(described, checked_as_described(spec, recorded)))


def unrecorded(spec: EnvironmentSpec) -> list[Task]:
    """The described tasks that a dream can practise without a recording of them, of all splits."""
    return [
        task
        for task in spec.tasks
        if (task.initial_state is not None or not spec.deterministic)
        and (task.metadata.get("success") is not None or task.metadata.get("answers"))
    ]


async def dream_tasks(spec: EnvironmentSpec, tasks: Sequence[Task], dsn: str | None) -> Sequence[Task]:
    """The tasks as a dream needs them: redacted, and a task without an initial state gets the one that was recorded.

    Tasks of a text environment that nobody recorded have no start to show: they are left out and reported.

    Raises:
        InvalidInput: none of the tasks is left.
    """
    redact = redact_by(spec.redact)  # a dream of redacted recordings knows placeholders only
    tasks = [redacted_task(task, redact) for task in tasks]
    if all(task.initial_state is not None for task in tasks):
        return tasks
    async with open_store(dsn) as store:
        starts = {task.id: task.initial_state for task in await store.buffer.tasks(spec.name)}
    unknown = {task.id for task in tasks if spec.is_text and task.initial_state is None and task.id not in starts}
    if unknown:
        told = f"{len(unknown)} of {len(tasks)} tasks were never recorded, such as {min(unknown)!r}"
        if len(unknown) == len(tasks):
            raise InvalidInput(
                f"{told}: a dream does not know where they start. Record them with `dreamgym collect`, or take a split "
                "that was recorded, such as train"
            )
        say(f"{told}: they are left out, because a dream does not know where they start")
    return [
        task.model_copy(update={"initial_state": starts.get(task.id)}) if task.initial_state is None else task
        for task in tasks
        if task.id not in unknown
    ]
