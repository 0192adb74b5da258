"""Any MCP server as a real environment: every instance has a server process, or an HTTP session, of its own.

`reset` only starts the server anew. What a server keeps outside its process (files, a database) stays from one episode
to the next, unless the command itself makes a fresh copy first. If a server reports its state in the `_meta` of its
answers, the state is in the `info` of each step, as in our dreams; an agent never sees it. The tools, the tasks and the
server presentation are those of the environment folder. This adapter only connects to the server.

    [real]
    adapter = "mcp"
    command = ["npx", "-y", "@modelcontextprotocol/server-memory"]
    env = ["MEMORY_FILE_PATH"]
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from dreamgym.content import AFTER, result_of, told
from dreamgym.environment import Behaviour, EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, EpisodeFinished, InvalidInput, MissingPackage
from dreamgym.state import as_text, parsed
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall
from dreamgym_integrations.environments.base import checked

if TYPE_CHECKING:
    from dreamgym_integrations.environments.mcp.session import McpSession

NEEDS_FOLDER = "the environment 'mcp' needs an environment folder: make one with `dreamgym record FOLDER -- COMMAND`"
_SCRIPT = re.compile(r"@[\w.-]+/[\w.-]+|[\w./-]+\.(?:py|js|mjs|cjs|ts|sh|jar)")
"""The package or the script in a command."""


class McpOptions(Frozen):
    """The `[real]` table of an env.toml. It never contains the values of secrets, only the names of variables."""

    command: tuple[str, ...] = ()
    """Command that starts a stdio server."""
    cwd: str | None = None
    """Folder in which the command runs; None: the current one."""
    env: tuple[str, ...] = ()
    """Names of the environment variables that the command gets, besides PATH, HOME and the like."""
    url: str | None = None
    """Address of an HTTP server, instead of a command."""
    headers: dict[str, str] = Field(default_factory=dict)
    """By header: the name of the environment variable that contains its value."""
    timeout_s: float = Field(default=60.0, gt=0, allow_inf_nan=False)
    """How long the start, and each answer, may take."""

    @model_validator(mode="after")
    def _names_one_server(self) -> McpOptions:
        if bool(self.command) == bool(self.url):
            raise ValueError("expected either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"expected an http:// or https:// url, got {self.url!r}")
        if self.url is not None:
            urlsplit(self.url)  # raises ValueError for one that nothing can be sent to
        return self

    @property
    def server(self) -> str:
        """Name of the server in messages: its host, or its program and script. The rest may be secret."""
        if self.url is not None:
            parts = urlsplit(self.url)
            return f"MCP server '{parts.scheme}://{parts.netloc.rpartition('@')[2]}'"
        program, *words = self.command
        if "-m" in words[:-1]:
            words = words[words.index("-m") + 1 :][:1]
        else:
            words = [word for word in words if _SCRIPT.fullmatch(word)][:1]
        return f"MCP server {' '.join([program, *words])!r}"

    def variables(self) -> dict[str, str]:
        """The variables that the command gets. Raises InvalidInput with the name of one that is not set."""
        return {name: self._variable(name) for name in self.env}

    def header_values(self) -> dict[str, str]:
        """The headers with their values, without white space around them, such as the line break of a secret's file.

        Raises:
            InvalidInput: a variable is not set, or its value cannot be in a header. Only its name is in the message.
        """
        values = {header: self._variable(name).strip() for header, name in self.headers.items()}
        for header, value in values.items():
            if not (value.isascii() and value.isprintable()):
                raise InvalidInput(
                    f"{self.server}: the environment variable {self.headers[header]} cannot be the header {header!r}: "
                    "expected printable ASCII characters on one line"
                )
        return values

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
    def begins_anew(self) -> bool:
        """True if `reset` starts a new server; False for a URL, behind which one server goes on."""
        return self._options.url is None

    @property
    def tools(self) -> Sequence[JsonObject]:
        """The tools as the server lists them; known after the first `reset`."""
        if self._tools is None:
            raise EnvironmentUnavailable("the tools of a real MCP server are known after the first reset")
        return self._tools

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the server anew. The observation is the task's initial state; empty if that is explicit.

        An explicit state is in `info` instead. The server itself gives no first observation.

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
        """Call a tool. If there is no answer, what the server did is unknown, so the episode cannot go on."""
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
    """An MCP server as a real environment; its description is in the environment folder."""

    behaviours: Mapping[str, Behaviour] = {}

    def __init__(self, options: McpOptions | None) -> None:
        self._options = options

    @property
    def spec(self) -> EnvironmentSpec:
        """Always raises InvalidInput: the description is in the environment folder."""
        raise InvalidInput(NEEDS_FOLDER)

    def tasks(self, split: str) -> Sequence[Task]:
        """Always empty: the tasks are in the environment folder."""
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
    """Entry point `mcp` of `dreamgym.environments`. Raises InvalidInput for options without a server."""
    return McpServer(checked(McpOptions, "mcp", options) if options else None)
