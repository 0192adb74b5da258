"""Lists and describes the real environments, and tests if they work on this machine."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint
from pathlib import Path

from dreamgym.environment import EnvironmentSpec, RealEnvironment, installed_real, load_real, load_spec, real_of
from dreamgym.errors import DreamGymError, InvalidInput, UnknownName, install_command
from dreamgym.plugins import plugins
from dreamgym.runs.opening import SPLITS
from dreamgym.runs.timing import Timing, timed
from dreamgym.runs.versions import GROUP, extra_of, installed, packages_of, point_of
from dreamgym.types import Frozen, JsonObject, Task


class Listed(Frozen):
    """One line of `env list`."""

    name: str
    is_playable: bool
    """True if its packages are installed and it lists its tasks. Only `doctor` tests if it can be played."""
    missing: str | None = None
    """Missing packages with the command that installs them, or the error of loading the environment."""
    description: str = ""


class EnvironmentCard(Frozen):
    """The description that `env show` prints."""

    name: str
    description: str
    rules: str
    tools: tuple[JsonObject, ...]
    tasks: dict[str, int]
    """Number of tasks by split."""
    behaviours: tuple[str, ...]
    max_steps: int
    deterministic: bool
    states: str
    """`explicit` or `text`."""
    options: JsonObject
    """Options that the environment was created with."""
    packages: dict[str, str | None]
    """Version of each package that it needs; None if the package is not installed."""


class Check(Frozen):
    """One test of `env doctor`."""

    what: str
    fault: str | None = None
    is_skipped: bool = False
    """True if the test could not be made; `what` ends with the reason."""


class Diagnosis(Frozen):
    """The result of `env doctor`."""

    name: str
    packages: dict[str, str | None]
    checks: tuple[Check, ...]
    timing: Timing | None = None

    @property
    def is_well(self) -> bool:
        """True if no test failed."""
        return all(check.fault is None for check in self.checks)


def list_all() -> list[Listed]:
    """Every registered environment, in the order of the names, and whether it can be played here."""
    return [listed(point) for _, point in sorted(plugins(GROUP).items())]


def real_named(name: str) -> RealEnvironment:
    """The real environment with this name or folder.

    Raises:
        InvalidInput: the folder has code of its own, which must not run when somebody only looks at the environment.
    """
    if not (Path(name) / "env.toml").is_file():
        return load_real(name)
    spec = EnvironmentSpec.load(Path(name))
    real = installed_real(spec)
    if real is None and spec.adapter is not None:
        raise InvalidInput(
            f"{name} has code of its own, {spec.adapter!r}, which is run only to play the real environment (--real, "
            "--against real). If you trust it, give the code's name instead of the folder"
        )
    return real if real is not None else real_of(spec)


def _packages(point: EntryPoint | None, options: JsonObject | None = None) -> tuple[dict[str, str | None], str | None]:
    """The packages with their versions, and a sentence on what is missing or None."""
    if point is None:
        return {}, None
    packages = installed(packages_of(point, options))
    absent = [name for name, found in packages.items() if found is None]
    extra = extra_of(point)
    if not absent or extra is None:
        return packages, None
    return packages, f"{', '.join(absent)} not installed: {install_command(extra)}"


def listed(point: EntryPoint) -> Listed:
    """Find out whether a registered environment can be played here, without playing it."""
    _, missing = _packages(point)
    if missing is not None:
        return Listed(name=point.name, is_playable=False, missing=missing)
    try:
        real = load_real(point.name)
        description, tasks = real.spec.description, real.tasks("train")
    except (DreamGymError, ImportError) as error:
        return Listed(name=point.name, is_playable=False, missing=str(error))
    except Exception as error:  # noqa: BLE001  # other people's code: the other environments are listed all the same
        return Listed(name=point.name, is_playable=False, missing=f"{type(error).__name__}: {error}")
    what = description if tasks else f"{description or 'described by an environment folder'}: no tasks of its own"
    return Listed(name=point.name, is_playable=True, description=what)


def _tasks(spec: EnvironmentSpec, real: RealEnvironment) -> dict[str, int]:
    """Number of tasks by split: the environment's own, or else those of the folder that describes it."""
    counts = {}
    for split in SPLITS:
        try:
            counts[split] = len(real.tasks(split))
        except UnknownName:
            counts[split] = 0
    if any(counts.values()):
        return counts
    return dict(Counter(str(task.metadata.get("split", "without a split")) for task in spec.tasks)) or counts


def show(name: str) -> EnvironmentCard:
    """Describe an environment. Raises InvalidInput or UnknownName."""
    real, spec = real_named(name), load_spec(name)
    return EnvironmentCard(
        name=spec.name,
        description=spec.description,
        rules=spec.rules,
        tools=tuple(spec.tools),
        tasks=_tasks(spec, real),
        behaviours=tuple(real.behaviours),
        max_steps=spec.max_steps,
        deterministic=spec.deterministic,
        states="text" if spec.state is None else "explicit",
        options=spec.options,
        packages=_packages(point_of(spec.adapter or name), spec.options)[0],
    )


def _tasks_to_play(real: RealEnvironment) -> Sequence[Task]:
    """The tasks of the split `dev`, or else of the first split that has some."""
    for part in ("dev", *SPLITS):
        with suppress(UnknownName):
            if tasks := real.tasks(part):
                return tasks
    return []


async def diagnose(name: str, episodes: int = 3) -> Diagnosis:
    """Test an environment: its packages, its tasks, a few episodes at random, and the contract of an environment.

    If the split `dev` has no tasks, those of another split are played.
    """
    from dreamgym.testing import check_environment

    packages, missing = _packages(point_of(name))
    checks = [Check(what="packages", fault=missing)]
    timing = None
    try:
        real = real_named(name)
        checks.append(Check(what="loads"))
        counts = _tasks(load_spec(name), real)
        tasks = _tasks_to_play(real)
        checks.append(Check(what=f"tasks: {', '.join(f'{part} {count}' for part, count in counts.items())}"))
        if tasks:
            behaviour = "random" if "random" in real.behaviours else next(iter(real.behaviours), None)
            if behaviour is not None:
                timing = await timed(real, behaviour, tasks[:episodes])
                checks.append(Check(what=f"plays {len(tasks[:episodes])} episodes ({behaviour})", fault=timing.fault))
            broken = None
            try:
                await check_environment(real.create, tasks[:2], deterministic=real.spec.deterministic)
            except AssertionError as error:
                broken = str(error)
            checks.append(Check(what="keeps the contract of an environment", fault=broken))
        else:
            what = "plays and keeps the contract: the environment has no tasks of its own"
            checks.append(Check(what=what, is_skipped=True))
    except Exception as error:  # noqa: BLE001  # other people's code: any error is the diagnosis
        checks.append(Check(what="loads and plays", fault=f"{type(error).__name__}: {error}"))
    return Diagnosis(name=name, packages=packages, checks=tuple(checks), timing=timing)


def described(shown: EnvironmentCard) -> str:
    """The description of an environment as text."""
    lines = [
        f"{shown.name}: {shown.description}",
        "",
        f"tasks       {', '.join(f'{split} {count}' for split, count in shown.tasks.items())}",
        f"behaviours  {', '.join(shown.behaviours) or 'none'}",
        f"max_steps   {shown.max_steps}",
        f"worlds      {'the same for the same task' if shown.deterministic else 'may differ for the same task'}",
        f"states      {shown.states}",
        f"options     {json.dumps(shown.options)}",
        *([f"packages    {_versions(shown.packages)}"] if shown.packages else []),
        "",
    ]
    for tool in shown.tools:
        schema = tool.get("inputSchema")
        properties = schema.get("properties") if isinstance(schema, dict) else None
        arguments = ", ".join(properties) if isinstance(properties, dict) else ""
        lines.append(f"tool {tool['name']}({arguments}): {tool.get('description') or ''}")
    return "\n".join([*lines, "", shown.rules]).rstrip()


def _versions(packages: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {found or 'not installed'}" for name, found in packages.items())


def reported(found: Diagnosis) -> str:
    """The diagnosis of an environment as text."""
    lines = [f"{found.name}" + (f" ({_versions(found.packages)})" if found.packages else "")]
    for check in found.checks:
        passed = "skipped" if check.is_skipped else "ok     "
        lines.append(f"  {passed} {check.what}" if check.fault is None else f"  FAILED  {check.what}: {check.fault}")
    if (timing := found.timing) is not None and timing.steps:
        lines.append(
            f"  a reset takes {1000 * timing.reset_s:.0f} ms here, the first {1000 * timing.first_reset_s:.0f} ms; "
            f"a step {1000 * timing.step_s:.1f} ms ({1 / timing.step_s:.0f} a second)"
        )
    return "\n".join(lines)
