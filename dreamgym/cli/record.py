"""`dreamgym record`: a proxy between an agent and a real MCP server that records their traffic.

With a pipe on stdin (an agent started it, as a `command` in its configuration) it speaks stdio, and only the protocol
goes to stdout. Otherwise it serves HTTP and prints the URL for the agent.
"""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from dreamgym.cli.options import AllowedHosts, Host, TokenFile
from dreamgym.errors import InvalidInput

DEFAULT_PORT = 8100
IDLE_S = 300.0
"""Seconds of silence after which a call at the bare URL begins a new run."""


def record(
    folder: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER",
            help="The environment folder; it is made if it does not exist. Its name is the environment's.",
        ),
    ],
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- COMMAND...", help="Command that starts the real server, which must speak stdio."),
    ] = None,
    upstream: Annotated[str | None, typer.Option(help="The real server's MCP URL, instead of a command.")] = None,
    header: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VARIABLE", help="Send this header to the URL, with that variable's value."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The folder, if it is not called like the environment: crm --out recorded/.")
    ] = None,
    run: Annotated[str | None, typer.Option(help="Id of the run, for stdio. Default: one made from the time.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve HTTP on this port; 0 takes a free one. Default: 8100.")
    ] = None,
    host: Host = "127.0.0.1",
    token_file: TokenFile = None,
    allowed_host: AllowedHosts = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write nothing; print at the end what would be redacted.")
    ] = False,
) -> None:
    """Record an agent at work with a real MCP server. The recording is redacted; agent and server stay unchanged.

    Example: dreamgym record ./crm -- npx -y @modelcontextprotocol/server-memory
    """
    from dreamgym_server.auth import check_bind, read_token
    from dreamgym_server.recorder.recording import Recording, headers_of, is_fed

    from dreamgym.recordings.folder import name_for

    token, over_stdio = read_token(token_file), port is None and is_fed()
    if not over_stdio:
        check_bind(host, token)
        if run is not None:
            raise InvalidInput(
                f"--run {run} is for an agent on stdin and stdout: leave it out, and name the run in the agent's URL, "
                f"/record/{run}/mcp"
            )
    place = Path(folder) if out is None else out
    name = name_for(place) if out is None else folder
    recording = Recording(name, place, command=command, url=upstream, headers=headers_of(header), dry_run=dry_run)
    with closing(recording):
        if over_stdio:
            code = recording.over_stdio(run)
        else:
            port, hosts = DEFAULT_PORT if port is None else port, allowed_host or ()
            served = recording.over_http(host=host, port=port, token=token, allowed_hosts=hosts, idle_s=IDLE_S)
            code = asyncio.run(served)
    raise typer.Exit(code)
