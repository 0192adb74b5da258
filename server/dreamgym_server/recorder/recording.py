"""One recording from its start to its end: the only place that connects tape, front and upstream."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import ValidationError

from dreamgym.environment import first_reason
from dreamgym.errors import DreamGymError, InvalidInput, StoreError
from dreamgym.recordings.folder import start_folder, update_folder
from dreamgym.recordings.folder.env_file import real_in
from dreamgym.redaction import RedactionRules, Redactor, load_key
from dreamgym.types import JsonObject
from dreamgym_server.auth import LOOPBACK, TOKEN_VARIABLE
from dreamgym_server.recorder.runs import Runs, checked, new_run
from dreamgym_server.recorder.secret_sources import MIN_LENGTH, secrets_of_environment, secrets_of_url
from dreamgym_server.recorder.stdio_to_stdio import pump
from dreamgym_server.recorder.writer import Tape, append_event


class Recording:
    """The work of `dreamgym record`.

    Args:
        name: name of the environment.
        folder: the environment folder.
        command: starts the real server; None if `url` is given.
        url: MCP URL of the real server; None if `command` is given.
        headers: header names with the variables that contain their values; sent to the URL with each request.
        dry_run: write nothing.

    Nothing is written before `over_stdio` or `over_http`, which raise InvalidInput if the folder cannot be used.

    Raises:
        InvalidInput: the folder's redaction rules or the server cannot be used.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        *,
        command: list[str] | None,
        url: str | None,
        headers: Mapping[str, str],
        dry_run: bool,
    ) -> None:
        self._folder = None if dry_run else folder
        self._recordings = None if dry_run else folder / "recordings"
        self._command, self._url, self._headers = command, url, header_values(headers)
        _check(command, url, headers)
        rules, key = rules_of(folder), load_key()
        known = secrets_of_environment(os.environ)
        known |= {value: name.lower() for name, value in self._headers.items() if len(value) >= MIN_LENGTH}
        known |= secrets_of_url(url or "")
        redactor = Redactor(rules, key=key, known=known, remembers=True)
        real: JsonObject = {"adapter": "mcp", "url": url} if url else {"adapter": "mcp", "command": [*(command or ())]}
        clean = redactor.value(real)  # in a dry run too: it remembers the secrets, and finds them in the traffic
        assert isinstance(clean, dict)
        if clean != real:
            verb = "would have" if dry_run else "has"
            _say(f"the server's address or command contains a secret; env.toml {verb} a placeholder instead")
        if headers:
            clean["headers"] = dict(headers)  # names of variables, which the rules would take for secrets
        self._name, self._real, self._is_started = name, clean, False
        self.tape = Tape(self._recordings, redactor, server=name)
        self._said: set[str] = set()
        """Messages about the folder that have been printed."""

    def over_stdio(self, run: str | None) -> int:
        """Serve the agent over stdin and stdout until it leaves or the server ends; return the exit code."""
        run = self._unused(checked(run)) if run else new_run()
        self._start()
        if self._command:
            return pump(self._command, self.tape, run, environ=_child_environment())
        assert self._url is not None
        from dreamgym_server.recorder.stdio_to_http import carry  # imports mcp, half of the time of a start

        return asyncio.run(carry(self._url, self._headers, self.tape, run))

    def _unused(self, run: str) -> str:
        """The run's id, with a number if it has a recording: a server that starts again may not know its world."""
        unused, number = run, 1
        while self._recordings is not None and os.path.exists(self._recordings / f"{unused}.jsonl"):
            number += 1
            unused = f"{run}-{number}"
        if unused != run:
            _say(f"run {run} is recorded already, and each start is a run of its own: this one is {unused}")
        return unused

    async def over_http(
        self, *, host: str, port: int, token: str | None, allowed_hosts: Iterable[str], idle_s: float
    ) -> int:
        """Serve agents over HTTP until Ctrl-C or SIGTERM; return the exit code."""
        # imported here, because over stdio nobody needs the packages of HTTP
        from dreamgym_server.recorder.app import Upstream, create_app
        from dreamgym_server.recorder.http_to_http import ReverseProxy
        from dreamgym_server.recorder.http_to_stdio import Bridge
        from dreamgym_server.running import bound, running, stop_signal

        bound(host, port).close()  # a port in use must not leave a new folder behind
        self._start()
        upstream: Upstream
        if self._command:
            upstream = Bridge(self._command, self.tape, environ=_child_environment())
        else:
            assert self._url is not None
            upstream = ReverseProxy(self._url, self.tape, self._headers, keeps_authorization=token is not None)
        runs = Runs(self._recordings, idle_s)
        hosts = {*LOOPBACK, host, *allowed_hosts}
        app = create_app(upstream, runs, self.tape, token=token, hosts=hosts, build=self.build)
        stopped = stop_signal()
        async with running(app, host=host, port=port) as url:
            print(f"{url}/mcp", flush=True)
            _say(f"point the agent at {url}/mcp, or at {url}/record/RUN/mcp to name the run; Ctrl-C ends the recording")
            await stopped.wait()
            upstream.stop()
        return 0

    def _start(self) -> None:
        if self._folder is not None:
            start_folder(self._folder, self._name, self._real)
            kept = real_in(self._folder)
            if kept and any(kept.get(key) != self._real.get(key) for key in ("command", "url")):
                _say(
                    f"[real] in {self._folder / 'env.toml'} stays as it is and has another command or url: "
                    "change it there if the real environment is the server that is recorded now"
                )
        self._is_started = True

    def build(self) -> None:
        """Bring the environment folder up to date with its recordings, and print what was left out of it and why.

        Raises:
            StoreError: the folder could not be updated. The reason is printed, too.
        """
        self.tape.flush()
        self._update()

    def _update(self) -> None:
        if self._folder is None:
            return
        try:
            report = update_folder(self._folder)
        except (DreamGymError, OSError) as error:
            failure = f"the recordings are kept, but {self._folder} could not be updated from them: {error}"
            _say(failure)
            raise StoreError(failure) from error
        for message in report.messages if report is not None else ():
            if message not in self._said:
                self._said.add(message)
                _say(message)

    def close(self) -> None:
        """Write the remaining events, bring the folder up to date, and print a summary, unless nothing was started."""
        summary = self.tape.close()
        if not self._is_started:
            return
        if self.tape.preview is not None:
            _say(self.tape.preview.text)
            return
        with suppress(StoreError):
            self._update()
        is_empty = self._recordings is not None and not any(self._recordings.glob("*.jsonl"))
        where = "nothing was recorded: no agent called" if is_empty else f"Recordings are in {self._recordings}"
        _say(f"{summary.text}. {where}")


def headers_of(given: Iterable[str] | None) -> dict[str, str]:
    """Header names with their variables, from `NAME=VARIABLE`, so that no secret is on a command line.

    Raises:
        InvalidInput: a variable is not set, is empty, or has a value that cannot be in a header.
    """
    headers = {}
    for one in given or ():
        name, _, variable = one.partition("=")
        value = os.environ.get(variable, "").strip()
        if not name or not value:
            raise InvalidInput(f"--header {name}=VARIABLE: expected the name of a variable that is set and not empty")
        if not (value.isascii() and value.isprintable()):  # the error of an HTTP client would contain the secret
            raise InvalidInput(f"--header {name}={variable}: expected printable ASCII characters on one line")
        headers[name] = variable
    return headers


def header_values(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with the values of their variables, which must be set, without white space around them."""
    return {name: os.environ[variable].strip() for name, variable in headers.items()}


def is_fed() -> bool:
    """True if standard input is a pipe or a socket, so that an agent is at its other end."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _check(command: list[str] | None, url: str | None, headers: Mapping[str, str]) -> None:
    if bool(command) == bool(url):
        raise InvalidInput("expected one real server: either a COMMAND after --, or --upstream URL")
    if command and shutil.which(command[0]) is None:
        raise InvalidInput(f"the command {command[0]!r} is not found: install it, or give its path")
    if url and not (url.startswith(("http://", "https://")) and _has_host(url)):
        raise InvalidInput("expected --upstream http://HOST… or https://HOST…")
    if headers and not url:
        raise InvalidInput("--header is for --upstream; a command takes its secrets from the environment")


def _has_host(url: str) -> bool:
    """True if an address has a host, and either no port or one that is valid."""
    try:
        parts = urlsplit(url)
        return bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def add_notes(folder: Path, notes: Iterable[JsonObject], environ: Mapping[str, str]) -> None:
    """Add notes to the recordings of their runs, redacted. Raises InvalidInput if one cannot be written."""
    redactor = Redactor(rules_of(folder), key=load_key(), known=secrets_of_environment(environ))
    try:
        for note in notes:
            said = {name: value if name in {"kind", "run"} else redactor.value(value) for name, value in note.items()}
            append_event(folder / "recordings", said)
    except OSError as error:
        raise InvalidInput(f"{folder / 'recordings'} cannot be written: {error.strerror}") from error


def rules_of(folder: Path) -> RedactionRules:
    """The redaction rules of an environment folder; the defaults if it has none. Raises InvalidInput."""
    file = folder / "env.toml"
    if not file.is_file():
        return RedactionRules()
    try:
        return RedactionRules.model_validate(tomllib.loads(file.read_text(encoding="utf-8")).get("redact", {}))
    except ValidationError as error:
        raise InvalidInput(f"{file}, [redact]: {first_reason(error)}") from error
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise InvalidInput(f"{file}: {error}") from error


def _child_environment() -> dict[str, str]:
    """Our environment variables, except the token of this recorder."""
    return {name: value for name, value in os.environ.items() if name != TOKEN_VARIABLE}


def _say(text: str) -> None:
    print(f"dreamgym record: {text}", file=sys.stderr, flush=True)
