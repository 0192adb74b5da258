"""Any MCP server as a real environment: every instance has a server process, or an HTTP session, of its own.

`reset` starts the server anew, and that is all it does: what a server keeps outside its process (files, a database) it
keeps from one episode to the next, unless the command itself makes a fresh copy first. A server that tells its state in
the `_meta` of its answers has it in the `info` of each step, as our dreams have, and never where an agent sees it.
The tools, the tasks and the mirror are those of the environment folder; this adapter knows how to reach the server.

    [real]
    adapter = "mcp"
    command = ["npx", "-y", "@modelcontextprotocol/server-memory"]
    env = ["MEMORY_FILE_PATH"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from dreamgym.content import AFTER, result_of, told
from dreamgym.environment import Behaviour, EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, MissingPackage
from dreamgym.state import as_text, parsed
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.base import checked

if TYPE_CHECKING:
    from dreamgym_integrations.environments.mcp.session import McpSession

NEEDS_FOLDER = (
    "'mcp' is any MCP server and described by an environment folder: make one with `dreamgym record FOLDER -- COMMAND`"
)


class McpOptions(Frozen):
    """The `[real]` table of an env.toml. Values of secrets never stand in it, only the names of variables."""

    command: tuple[str, ...] = ()
    """Starts a stdio server."""
    cwd: str | None = None
    """Where the command runs; default: where we do."""
    env: tuple[str, ...] = ()
    """Names of the environment variables that the command is given, besides PATH, HOME and the like."""
    url: str | None = None
    """An HTTP server, instead of a command."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Header to the name of the environment variable that holds its value."""
    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """How long the start, and each answer, may take."""

    @model_validator(mode="after")
    def _names_one_server(self) -> McpOptions:
        if bool(self.command) == bool(self.url):
            raise ValueError("expected either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"expected an http:// or https:// url, got {self.url!r}")
        return self

    @property
    def server(self) -> str:
        """Name of the server in messages."""
        return f"MCP server {self.url or ' '.join(self.command)!r}"

    def variables(self) -> dict[str, str]:
        """The variables that the command is given. Raises InvalidInput naming one that is not set."""
        return {name: self._variable(name) for name in self.env}

    def header_values(self) -> dict[str, str]:
        """The headers with their values. Raises InvalidInput naming a variable that is not set."""
        return {header: self._variable(name) for header, name in self.headers.items()}

    def _variable(self, name: str) -> str:
        if name not in os.environ:
            raise InvalidInput(f"{self.server} needs the environment variable {name}: set it")
        return os.environ[name]


class McpEnvironment:
    """One real MCP server, played call by call."""

    def __init__(self, options: McpOptions) -> None:
        self._options = options
        self._session: McpSession | None = None
        self._tools: Sequence[JsonObject] | None = None
        self._failure = ""

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools as the server lists them; known once it was started by `reset`."""
        if self._tools is None:
            raise EnvironmentUnavailable("the tools of a real MCP server are known after the first reset")
        return self._tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the server anew. It says nothing by itself: the observation is a task's initial state in words.

        Raises:
            InvalidInput: a variable that the server needs is not set.
            EnvironmentUnavailable: the server does not start, or does not speak MCP.
        """
        from dreamgym_integrations.environments.mcp.session import McpSession

        await self.close()
        session = McpSession(self._options)
        try:
            await session.open()
            self._tools = await session.tools()
        except BaseException:
            await session.close()
            raise
        self._session, self._failure = session, ""
        start = task.initial_state or ""
        if parsed(start) is None:
            return StepResult(observation=start)
        return StepResult(observation="", info={"state": start})

    async def step(self, action: ToolCall) -> StepResult:
        """Call a tool. After a call without an answer nobody knows what the server did, so the episode cannot go on."""
        if self._session is None:
            raise EpisodeFinished("no episode is running: call reset first")
        if self._failure:
            raise EnvironmentUnavailable(f"{self._failure}; reset starts the server anew")
        try:
            answer = await self._session.call(action)
        except EnvironmentUnavailable as error:
            self._failure = str(error)
            raise
        result, state = result_of(answer), told(answer, AFTER)
        if state is None:
            return result
        return result.model_copy(update={"info": {**result.info, "state": as_text(state)}})

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


class McpServer:
    """An MCP server as an entry point gives it; the description is the folder's."""

    behaviours: Mapping[str, Behaviour] = {}

    def __init__(self, options: McpOptions | None) -> None:
        self._options = options

    @property
    def spec(self) -> EnvironmentSpec:
        """There is none without a folder. Raises InvalidInput."""
        raise InvalidInput(NEEDS_FOLDER)

    def tasks(self, split: str) -> Sequence[Task]:
        """None of its own: they are the folder's."""
        return ()

    def create(self) -> McpEnvironment:
        """An environment whose server starts with the first reset."""
        if self._options is None:
            raise InvalidInput(NEEDS_FOLDER)
        try:
            import mcp  # noqa: F401
        except ImportError as error:
            raise MissingPackage("the environment 'mcp'", "client") from error
        return McpEnvironment(self._options)


def mcp(options: JsonObject) -> McpServer:
    """Entry point `mcp` of `dreamgym.environments`. Raises InvalidInput where the options name no server."""
    return McpServer(checked(McpOptions, "mcp", options) if options else None)
