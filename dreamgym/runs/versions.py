"""Versions that a result was made with: the commit of the code, and the packages of a real environment.

By a convention of this project, a distribution has an extra with the packages that the environment needs. The extra is
named like the environment's entry point or like a part of its module.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable
from functools import cache
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, requires, version
from pathlib import Path

from dreamgym.environment import EnvironmentSpec, load_real
from dreamgym.errors import DreamGymError
from dreamgym.plugins import plugins
from dreamgym.types import JsonObject

GROUP = "dreamgym.environments"
_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<range>[^;]*);.*extra == ['\"](?P<extra>[^'\"]+)['\"]"
)


def point_of(name: str | None) -> EntryPoint | None:
    """The entry point of the environment with this name; None if there is none."""
    return plugins(GROUP).get(name) if name is not None else None


def extra_of(point: EntryPoint) -> str | None:
    """The extra that installs what the environment needs; None if there is none."""
    distribution: Distribution | None = point.dist
    extras = (distribution.metadata.get_all("Provides-Extra") or []) if distribution is not None else []
    known = {_plain(extra): extra for extra in extras}
    for name in (point.name, *reversed(point.module.split("."))):
        if (extra := known.get(_plain(name))) is not None:
            return str(extra)
    return None


def packages_of(point: EntryPoint, options: JsonObject | None = None) -> list[str]:
    """Packages of the environment's extra, without extras and version ranges; none if it plays without them."""
    extra = extra_of(point)
    if extra is None or point.dist is None or not _needs_packages(point, options):
        return []
    found = map(_REQUIREMENT.match, requires(point.dist.name) or [])
    return [match["name"] for match in found if match is not None and _plain(match["extra"]) == _plain(extra)]


def installed(packages: Iterable[str]) -> dict[str, str | None]:
    """Version of each package; None if it is not installed."""
    return {name: _version(name) for name in packages}


def version_of(spec: EnvironmentSpec) -> str | None:
    """Packages of a real environment with their versions, for the record; None if nothing is known."""
    point = point_of(spec.adapter)
    if point is None:
        return spec.adapter
    packages = installed(packages_of(point, spec.options))
    own = [f"{point.dist.name} {point.dist.version}"] if point.dist is not None else []
    return ", ".join([*own, *(f"{name} {found}" for name, found in packages.items() if found)])


def _needs_packages(point: EntryPoint, options: JsonObject | None) -> bool:
    try:
        return bool(getattr(load_real(point.name, options), "needs_packages", True))
    except (DreamGymError, ImportError):
        return True


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def commit() -> str:
    """Commit of the running code, with a + if the code was changed since; the version if there is no checkout."""
    import dreamgym

    def git(*words: str) -> str:
        folder = str(Path(dreamgym.__file__).parents[1])
        return subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "dreamgym/__init__.py")  # else the checkout around it is another project's
        changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
        return git("rev-parse", "--short=7", "HEAD") + ("+" if changed else "")
    except (FileNotFoundError, subprocess.CalledProcessError):
        return f"v{dreamgym.__version__}"
