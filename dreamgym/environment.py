"""Environments: a protocol to play one, a description to simulate it, an entry point to find it.

An environment folder is the description on disk:

    env.toml             name, description, rules, limits, the state's schema, and where the real environment is
    tools.json           a raw `tools/list` result, or a list of them if it came in pages; kept as it is
    server.json          other answers of the real MCP server (see dreamgym.mirror); optional
    tasks.jsonl          one Task per line
    trajectories.jsonl   one Trajectory per line (read by `dreamgym serve` and `seed`, not by the spec)
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import stat
import sys
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from pydantic import Field, JsonValue, ValidationError, field_validator
from pydantic_core import ErrorDetails

from dreamgym.errors import InvalidInput, UnknownName
from dreamgym.mirror import Mirror
from dreamgym.plugins import plugins
from dreamgym.redaction import RedactionRules
from dreamgym.state import StateSchema, parsed
from dreamgym.types import Frozen, JsonObject, StepResult, Task, ToolCall, Trajectory

Row = TypeVar("Row", bound=Frozen)


@runtime_checkable
class Environment(Protocol):
    """Plays one episode at a time. DreamEnvironment, RemoteEnvironment and all real environments implement it.

    A real environment whose reward asks for more than the check of its tasks also has `verdict() -> bool`: whether the
    episode is a success if the agent stops now. No step follows it.
    """

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Raw MCP tool definitions, in the real system's order."""

    async def reset(self, task: Task, *, seed: int | None = None) -> StepResult:
        """Start the task; the result's observation is what the agent sees first."""

    async def step(self, action: ToolCall) -> StepResult:
        """Take one step.

        Raises:
            EpisodeFinished: the episode is over or was never started.
            EnvironmentUnavailable: the environment did not answer; the step does not count.
        """

    async def close(self) -> None:
        """Release what the environment holds; calling it twice is fine."""


Behaviour = Callable[[StepResult, Environment, int], Awaitable[None]]
"""`async (first, environment, seed)`: plays from the result of `reset` to the end with `environment.step`, without an
LLM."""


def fault_of_tools(pages: Sequence[JsonObject]) -> str | None:
    """Why `tools/list` results, one per page, cannot be the tools of an environment; None if they can."""
    lists = [page.get("tools") for page in pages]
    tools = [tool for page in lists if isinstance(page, list) for tool in page]
    if not tools or not all(isinstance(page, list) for page in lists):
        return "expected a tools/list result: an object with a non-empty list 'tools'"
    names = [tool.get("name") if isinstance(tool, dict) else None for tool in tools]
    if not all(isinstance(name, str) and name for name in names):
        return "every tool needs a name"
    return None if len(set(map(str, names))) == len(names) else f"tool names are not unique: {names}"


class EnvironmentSpec(Frozen):
    """Description of an environment for a simulator: pure data, without code."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    description: str = ""
    rules: str = ""
    """Instructions for the experience model on how the environment answers."""
    tools_list: tuple[JsonObject, ...]
    """The raw `tools/list` results of the real server, one per page. A single object counts as one page."""
    mirror: Mirror = Mirror()
    """Answers of the real server other than `tools/list` and tool calls."""
    redact: RedactionRules | None = None
    """Redaction rules of the recordings, also applied to the calls of a simulation; None if nothing is redacted."""
    max_steps: int = Field(default=50, ge=1)
    deterministic: bool = False
    """True if a task always has the same hidden facts, so that recordings of one task complete each other."""
    ends_itself: bool | None = None
    """True if the environment ends an episode as soon as its task is accomplished. None means True for text
    environments and registered ones, and False for MCP servers."""
    state: StateSchema | None = None
    """Schema of explicit states; None if states are texts."""
    tasks: tuple[Task, ...] = ()
    adapter: str | None = None
    """Name of the real environment in the entry-point group `dreamgym.environments`."""
    options: JsonObject = Field(default_factory=dict)
    """Options that the adapter is created with."""

    @field_validator("tools_list", mode="before")
    @classmethod
    def _as_pages(cls, value: object) -> object:
        return (value,) if isinstance(value, dict) else value

    @field_validator("tools_list")
    @classmethod
    def _has_named_tools(cls, value: tuple[JsonObject, ...]) -> tuple[JsonObject, ...]:
        if fault := fault_of_tools(value):
            raise ValueError(fault)
        return value

    @property
    def tools(self) -> list[JsonObject]:
        """The raw tool definitions, in order."""
        pages = [page["tools"] for page in self.tools_list]
        return [tool for page in pages if isinstance(page, list) for tool in page if isinstance(tool, dict)]

    def tool(self, name: str) -> JsonObject:
        """The definition of one tool. Raises UnknownName."""
        for tool in self.tools:
            if tool["name"] == name:
                return tool
        raise UnknownName("tool", name, [str(tool["name"]) for tool in self.tools])

    @property
    def text_argument(self) -> tuple[str, str] | None:
        """(tool, argument) if the only tool takes one text, see `text_argument_of`; else None."""
        return text_argument_of([(str(tool["name"]), tool.get("inputSchema")) for tool in self.tools])

    @property
    def is_text(self) -> bool:
        """True for a text environment: one tool that takes one text, and no server (mcp, or `ends_itself` is False)."""
        return self.text_argument is not None and self.adapter != "mcp" and self.ends_itself is not False

    @property
    def has_views(self) -> bool:
        """True for a server that reports no state: the answers of its tools are all that is known of its world."""
        return self.state is None and not self.is_text

    @property
    def recordings_are_certain(self) -> bool:
        """True if the same action in the same state has the same answer.

        A recorded MCP server that reports no state shows only its last answer, which does not determine what follows.
        There, `deterministic` says only that each task has a world of its own.
        """
        return self.deterministic and not (self.adapter == "mcp" and self.has_views)

    @property
    def is_over_when_done(self) -> bool:
        """True if an episode ends as soon as its task is accomplished, so that any other end is a failure.

        Otherwise the agent decides when to stop, and the task's check, a judge or the caller decides if it succeeded.
        """
        if self.ends_itself is not None:
            return self.ends_itself
        return self.is_text or self.adapter not in {None, "mcp"}

    def first(self, task: Task) -> StepResult:
        """The first result of an episode: the initial state as observation, or in `info` if states are explicit."""
        start = task.initial_state or ""
        if self.state is None or parsed(start) is None:
            return StepResult(observation=start)
        return StepResult(observation="", info={"state": start})

    def explicit(self, state: str) -> str:
        """A state as the check of a task may read it; empty if the environment has no explicit states.

        The state is then the last observation. An observation may be JSON too, but it is not a state.
        """
        return "" if self.state is None else state

    def task(self, task_id: str) -> Task:
        """One of the tasks by id. Raises UnknownName."""
        for task in self.tasks:
            if task.id == task_id:
                return task
        raise UnknownName("task", task_id, [task.id for task in self.tasks[:20]], f"{len(self.tasks)} in all")

    @classmethod
    def load(cls, folder: Path) -> EnvironmentSpec:
        """Read an environment folder. Raises InvalidInput naming the file, and the line if the file has lines."""
        require_files(folder)
        config = _read_toml(folder / "env.toml")
        real, limits = config.pop("real", {}), config.pop("limits", {})
        for name, table in (("real", real), ("limits", limits)):
            if not isinstance(table, dict):
                raise InvalidInput(f"{folder / 'env.toml'}: expected a table [{name}], got {name} = {table!r}")
        state = state_setting(folder / "env.toml", config.pop("state", None)).schema
        if not (folder / "tools.json").exists():
            raise InvalidInput(
                f"{folder} has no tools.json: record a run whose agent asks for tools/list, or write the server's "
                "answer to it into tools.json"
            )
        try:
            return cls.model_validate(
                {
                    **config,
                    **limits,
                    "state": state,
                    "tools_list": read_json(folder / "tools.json"),
                    "mirror": read_json(folder / "server.json") if (folder / "server.json").exists() else {},
                    "tasks": read_tasks(folder),
                    "adapter": real.pop("adapter", None),
                    "options": real,
                }
            )
        except ValidationError as error:
            reason = first_reason(error, _KEYS)
            field = reason.partition(":")[0].partition(".")[0]
            file = {"tools_list": "tools.json", "mirror": "server.json"}.get(field)
            told = reason.removeprefix(field).lstrip(".: ") if file else reason
            raise InvalidInput(f"{folder / (file or 'env.toml')}: {told}") from error


_KEYS = {*EnvironmentSpec.model_fields, "real", "limits"} - {"tools_list", "mirror", "tasks", "adapter", "options"}
"""Keys and tables of an env.toml."""


def text_argument_of(tools: Sequence[tuple[str, JsonValue]]) -> tuple[str, str] | None:
    """(tool, argument) if the environment has one tool with one text argument, else None.

    Then the policy's whole text is the action. It could not express a second argument, even an optional one.

    Args:
        tools: name and JSON schema of the arguments of each.
    """
    if len(tools) != 1:
        return None
    ((name, schema),) = tools
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or len(properties) != 1:
        return None
    ((argument, definition),) = properties.items()
    is_string = isinstance(definition, dict) and definition.get("type") == "string"
    return (name, argument) if is_string else None


class StateSetting(NamedTuple):
    """The setting `state` of an env.toml."""

    schema: StateSchema | None = None
    is_off: bool = False
    """True for `state = false`: states are texts even if the server reports explicit ones."""


def state_setting(file: Path, value: object) -> StateSetting:
    """Parse `state` of an env.toml. Raises InvalidInput naming the file and the place in it."""
    if value is None or value is False or value == {}:
        return StateSetting(is_off=value is False)
    if not isinstance(value, dict):
        raise InvalidInput(f"{file}: state: expected a table [state], or false, got {value!r}")
    try:
        return StateSetting(StateSchema.model_validate(value))
    except ValidationError as error:
        where = first_reason(error).removeprefix("collections.").removeprefix("values.")
        raise InvalidInput(f"{file}: [state]: {where}") from error


class RealEnvironment(Protocol):
    """A real environment: an entry point of `dreamgym.environments`, called with the folder's options, returns one.

    Three attributes are optional: `reader`, a `dreamgym.reading.Reader` of its words; `goals`, the
    `dreamgym.goals.Goals` over the states of that reader; and `needs_packages`, False for one that plays without the
    packages of its extra.
    """

    @property
    def spec(self) -> EnvironmentSpec:
        """The description, complete without a folder."""

    @property
    def behaviours(self) -> Mapping[str, Behaviour]:
        """Ways to play it without an LLM, by name (`expert`, `random`, ...)."""

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of `train`, `dev` or `test`, in a fixed order. Raises UnknownName for another split."""

    def create(self) -> Environment:
        """A new instance that nobody else uses."""


def load_spec(name_or_folder: str) -> EnvironmentSpec:
    """The spec of an environment folder, or of a real environment by name. Raises UnknownName listing the names."""
    folder = Path(name_or_folder)
    if (folder / "env.toml").is_file():
        return EnvironmentSpec.load(folder)
    if folder.is_dir():
        is_known = name_or_folder in plugins("dreamgym.environments")
        hint = f". For the registered environment {name_or_folder!r}, run this in a folder without one of that name"
        raise InvalidInput(f"{folder} is not an environment folder: it has no env.toml{hint if is_known else ''}")
    spec = load_real(name_or_folder).spec
    # the name finds the environment again; an adapter in the spec does so too, unless the name is a place
    is_known = spec.adapter is not None and ":" not in name_or_folder
    return spec if is_known else spec.model_copy(update={"adapter": name_or_folder})


def load_real(name: str, options: JsonObject | None = None) -> RealEnvironment:
    """The real environment by entry point, `module:function` or `file.py:function`.

    Raises:
        UnknownName: nothing has this name; the message lists the registered environments.
        InvalidInput: the module or file cannot be loaded or returns no real environment, or the folder is not there;
            for an adapter that moved, the message has the new name.
    """
    found = plugins("dreamgym.environments")
    if name not in found and ":" not in name:
        if "/" in name:
            raise InvalidInput(
                f"no folder {name} in {Path.cwd()}: an environment is a folder with an env.toml, a name that "
                "`dreamgym env list` shows, module:function or file.py:function"
            )
        hint = (
            f"There is no folder {Path(name)} in {Path.cwd()}; a folder with an env.toml works, and so do "
            "module:function and file.py:function"
        )
        raise UnknownName("environment", name, found, hint)
    if name in found:
        make = found[name].load()
    else:
        try:
            make = from_place("environment", name)
        except InvalidInput as error:
            # An adapter that moved within its package kept its name. An env.toml may still have its old place.
            point = found.get(name.rpartition(":")[2])
            if point is None or point.value == name or point.module.split(".")[0] != name.split(".", maxsplit=1)[0]:
                raise
            raise InvalidInput(f'{error}. It moved: write adapter = "{point.name}" (now {point.value})') from error
    if not _takes_options(make):
        raise InvalidInput(
            f"environment {name!r}: expected a function that takes one mapping of options and returns a RealEnvironment"
        )
    real: RealEnvironment = make(options or {})
    if not {"spec", "tasks", "create"} <= {*dir(real)}:
        raise InvalidInput(
            f"environment {name!r}: expected a function that returns a RealEnvironment, with spec, behaviours, tasks "
            f"and create, got {type(real).__name__}"
        )
    return real


def _takes_options(make: Callable[..., object]) -> bool:
    try:
        signature(make).bind({})
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def from_place(kind: str, name: str) -> Any:
    """Import the object that `module:function` or `file.py:function` names. Raises InvalidInput if that fails."""
    place, _, function = name.rpartition(":")
    if not place.endswith(".py") and ("/" in place or not all(place.split("."))):
        raise InvalidInput(f"{kind} {name!r} cannot be loaded: expected module:function or path/to/file.py:function")
    try:
        if place.endswith(".py"):
            # under its path, so that it hides no other module; in sys.modules, where dataclasses look their module up
            description = importlib.util.spec_from_file_location(str(Path(place).resolve()), place)
            assert description is not None
            assert description.loader is not None
            module = sys.modules[description.name] = importlib.util.module_from_spec(description)
            description.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
        made = getattr(module, function)
        if not callable(made):
            raise AttributeError(f"{function!r} of {place} is not a function")
        return made
    except (ImportError, OSError, AttributeError, SyntaxError) as error:
        raise InvalidInput(f"{kind} {name!r} cannot be loaded: {error}") from error


def real_of(spec: EnvironmentSpec) -> RealEnvironment:
    """The real environment that a spec points to. Raises InvalidInput if it points to none."""
    if spec.adapter is None:
        raise InvalidInput(f"environment {spec.name!r} has no real environment: add [real] adapter = … to its env.toml")
    return load_real(spec.adapter, spec.options)


def installed_real(spec: EnvironmentSpec) -> RealEnvironment | None:
    """The real environment if its adapter is an installed entry point; None if the folder names code by its path.

    A dream may ask this one for tasks and behaviours, because it runs no code of a shared folder.
    """
    return real_of(spec) if spec.adapter in plugins("dreamgym.environments") else None


def require_files(folder: Path) -> None:
    """Raises InvalidInput if an environment folder has a pipe or a device: reading it might never end."""
    for path in (*folder.glob("*"), *folder.glob("recordings/*")):
        try:
            mode = path.stat().st_mode
        except OSError:  # a file that another process has just removed, or a link to nothing
            continue
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise InvalidInput(f"{path}: expected a file, got a pipe or a device: remove it from the folder")


def read_jsonl(path: Path, model: type[Row]) -> list[Row]:
    """All rows of a JSONL file. Raises InvalidInput with file, line and reason for the first bad line."""
    rows: list[Row] = []
    try:
        lines = path.read_text(encoding="utf-8").split("\n")  # splitlines() would break at U+2028 inside of a text
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
    if lines[0].startswith("\ufeff"):
        raise InvalidInput(f"{path} begins with a byte order mark (BOM): save it as UTF-8 without one")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            rows.append(model.model_validate_json(line))
        except ValidationError as error:
            raise InvalidInput(f"{path}, line {number}: {first_reason(error)}") from error
    return rows


def read_tasks(folder: Path) -> list[Task]:
    """The tasks in a folder's tasks.jsonl; none if there is no such file.

    Raises InvalidInput for the first bad line, and if two different tasks have the same id.
    """
    file = folder / "tasks.jsonl"
    tasks = read_jsonl(file, Task) if file.exists() else []
    _require_own_ids(file, "task", tasks)
    return tasks


def read_trajectories(file: Path) -> list[Trajectory]:
    """The trajectories in a file.

    Raises InvalidInput for the first bad line, and if two different trajectories have the same id.
    """
    trajectories = read_jsonl(file, Trajectory)
    _require_own_ids(file, "trajectory", trajectories)
    return trajectories


def _require_own_ids(file: Path, what: str, rows: Sequence[Task | Trajectory]) -> None:
    known: dict[str, Task | Trajectory] = {}
    for number, row in enumerate(rows, start=1):
        if not row.has_json_of(known.setdefault(row.id, row)):
            raise InvalidInput(
                f"{file}, {what} {number}: an earlier {what} has the id {row.id!r} and other content; "
                "give one another id"
            )


MAX_FAULTS = 1_000
"""Most faults of a validation error that are formatted. pydantic formats all or none; a megabyte takes 0.25 s."""


def first_fault(error: ValidationError) -> ErrorDetails:
    """The first unknown key, since the key that was meant is missing then; without one, the first fault."""
    faults = error.errors(include_url=False, include_input=False)
    return next((one for one in faults if one["type"] == "extra_forbidden"), faults[0])


def first_reason(error: Exception, keys: Iterable[str] = ()) -> str:
    """The chosen fault of a validation error in one line: its place, and what was expected.

    Args:
        error: the error.
        keys: the keys of the outermost object, which are listed if one is unknown.
    """
    if isinstance(error, ValidationError):
        if error.error_count() > MAX_FAULTS:
            return f"it has {error.error_count()} faults, too many to list"
        fault = first_fault(error)
        where = ".".join(str(part) for part in fault["loc"])
        what = str(fault["msg"]).removeprefix("Value error, ")
        if fault["type"] == "extra_forbidden":
            known = sorted(keys) if len(fault["loc"]) == 1 else ()
            what = f"unknown key; the keys are {', '.join(known)}" if known else "unknown key"
        return f"{where}: {what}" if where else what
    return str(error)


def _read_toml(path: Path) -> dict[str, JsonObject]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number with too many digits
        raise InvalidInput(f"{path}: {error}") from error


def read_json(path: Path) -> JsonObject | list[JsonObject]:
    """The object in a file, or its list of objects. Raises InvalidInput naming the file."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{path}: {error}") from error
    pages = value if isinstance(value, list) else [value]
    if not all(isinstance(page, dict) for page in pages):
        raise InvalidInput(f"{path}: expected a JSON object, or a list of them, got {json.dumps(value)[:60]}")
    return value  # type: ignore[no-any-return]
