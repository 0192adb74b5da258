"""`dreamgym record`: stand between an agent and a real MCP server, and write down what both say.

With a pipe on stdin (an agent started us, as a `command` in its configuration) it speaks stdio and nothing but the
protocol goes to stdout; else it serves HTTP and prints the URL to point the agent at.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import AllowedHosts, Host, TokenFile
from dreamgym.errors import InvalidInput

DEFAULT_PORT = 8100
IDLE_S = 300.0


def record(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the environment shall be called.")],
    out: Annotated[Path, typer.Option(help="The environment folder; made where there is none.")],
    command: Annotated[
        list[str] | None, typer.Argument(metavar="-- COMMAND...", help="Starts the real server, which speaks stdio.")
    ] = None,
    upstream: Annotated[str | None, typer.Option(help="The real server's MCP URL, instead of a command.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VARIABLE", help="Send this header to the URL, with that variable's value."),
    ] = None,
    stdio: Annotated[bool, typer.Option("--stdio", help="Speak stdio to the agent, whatever stdin is.")] = False,
    run: Annotated[str | None, typer.Option(help="Id of the run, in stdio. Default: one by the time.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve HTTP on this port; 0 takes a free one. Default: 8100.")
    ] = None,
    host: Host = "127.0.0.1",
    token_file: TokenFile = None,
    allowed_host: AllowedHosts = None,
    idle_s: Annotated[
        float, typer.Option(min=1, help="Silence after which a call at the bare URL begins another run.")
    ] = IDLE_S,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; print at the end what would be redacted.")
    ] = False,
) -> None:
    """Record an agent at work with a real MCP server: redacted, and without a change for either.

    Example: dreamgym record crm --out crm/ -- npx -y @modelcontextprotocol/server-memory
    """
    from dreamgym_server.auth import check_bind, read_token
    from dreamgym_server.recorder.recording import Recording

    _check(command, upstream, header, port, stdio)
    headers, token = _headers(header), read_token(token_file)
    over_stdio = stdio or (port is None and _is_fed())
    if not over_stdio:
        check_bind(host, token)
    recording = Recording(name, out, command=command, url=upstream, headers=headers, dry_run=dry_run)
    try:
        if over_stdio:
            code = recording.over_stdio(run)
        else:
            code = asyncio.run(
                recording.over_http(
                    host=host,
                    port=DEFAULT_PORT if port is None else port,
                    token=token,
                    allowed_hosts=allowed_host or (),
                    idle_s=idle_s,
                )
            )
    finally:
        recording.close()
    raise typer.Exit(code)


def _check(
    command: list[str] | None, upstream: str | None, header: list[str] | None, port: int | None, stdio: bool
) -> None:
    if bool(command) == bool(upstream):
        raise InvalidInput("expected the real server once: a COMMAND after --, or --upstream URL")
    if command and shutil.which(command[0]) is None:
        raise InvalidInput(f"the command {command[0]!r} is not found: install it, or give its path")
    if upstream and not upstream.startswith(("http://", "https://")):
        raise InvalidInput("expected --upstream http://… or https://…")
    if header and not upstream:
        raise InvalidInput("--header is for --upstream; a command takes its secrets from the environment")
    if stdio and port is not None:
        raise InvalidInput("expected --stdio or --port, not both")


def _headers(given: list[str] | None) -> dict[str, str]:
    """Header values out of the environment, so that no secret stands on a command line."""
    headers = {}
    for one in given or ():
        name, _, variable = one.partition("=")
        if not name or variable not in os.environ:
            raise InvalidInput(f"--header {name}=VARIABLE: expected the name of a variable that is set")
        headers[name] = os.environ[variable]
    return headers


def _is_fed() -> bool:
    """Stdin is a pipe or a socket: an agent is at its other end."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
