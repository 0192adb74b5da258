"""BFCL v4 multi-turn as a real environment: 200 conversations over eight stateful API classes, as MCP tools.

A task is a whole conversation, because the benchmark counts success per conversation. The agent gets the user's later
messages from one more tool, `next_request`. All tasks have one list of tools: those of all classes, or only of the
classes in the options, so that an agent with a short context need not read the rest. A tool of a class that a
conversation does not involve refuses its calls. The benchmark has no training set of its own: if you train here, do not
report its figures on the same tasks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from pydantic import Field, field_validator

from dreamgym.environment import Behaviour, Environment, EnvironmentSpec
from dreamgym.types import Frozen, JsonObject, Task
from dreamgym_integrations.environments.base import SPLITS, check_split, checked
from dreamgym_integrations.environments.bfcl.behaviours import behaviours
from dreamgym_integrations.environments.bfcl.environment import BfclEnvironment
from dreamgym_integrations.environments.bfcl.state import SYSTEMS, schema_of
from dreamgym_integrations.environments.bfcl.suite import CLASSES, MAIN, Suite, bfcl_suite
from dreamgym_integrations.environments.bfcl.tasks import split_by_world, task_of
from dreamgym_integrations.environments.bfcl.tools import NEXT, tools_of

RULES = (
    f"Each tool is a function of a stateful system. {NEXT} answers with the text of the next entry of `requests` and "
    "adds 1 to `request`; when there is no next one the conversation is over. The last success is that the systems "
    "are as they should be, which nobody but the real environment knows. A call that a system refuses answers with an "
    "object with the one field `error` and changes nothing."
)


class BfclOptions(Frozen):
    """Options of an environment folder, under [real]."""

    classes: tuple[str, ...] = tuple(CLASSES)
    """Only the conversations that involve no class besides these."""
    max_steps: int = Field(default=40, ge=1)
    """The ground truth takes at most 16 steps."""

    @field_validator("classes")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name not in CLASSES:
                raise ValueError(f"unknown class {name!r}: expected some of {', '.join(CLASSES)}")
        if not set(value) & set(MAIN):
            raise ValueError(f"expected at least one of {', '.join(MAIN)}: every conversation is about one of them")
        return tuple(name for name in CLASSES if name in value)


class Bfcl:
    """BFCL as a real environment: description, tasks, behaviours and new instances."""

    behaviours: Mapping[str, Behaviour] = behaviours(bfcl_suite)

    def __init__(self, options: BfclOptions) -> None:
        self._options = options

    @cached_property
    def spec(self) -> EnvironmentSpec:
        return EnvironmentSpec(
            name=self._name,
            description="A user asks for several things in a row; stateful systems are served by tools.",
            rules=RULES,
            tools_list=({"tools": list(self._tools)},),
            max_steps=self._options.max_steps,
            deterministic=True,
            state=schema_of([SYSTEMS[name] for name in self._options.classes]),
            tasks=tuple(self.tasks("train")),
            adapter="bfcl",
            options=self._options.model_dump(mode="json"),
        )

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split; no world occurs in two splits."""
        check_split(split)
        return self._tasks[split]

    def create(self) -> Environment:
        """A new instance that nobody else uses."""
        return BfclEnvironment(self._suite, SYSTEMS, self._tools)

    @property
    def _name(self) -> str:
        chosen = self._options.classes
        return "bfcl" if len(chosen) == len(CLASSES) else "-".join(["bfcl", *map(str.lower, chosen)])

    @cached_property
    def _suite(self) -> Suite:
        return bfcl_suite()

    @cached_property
    def _tools(self) -> list[JsonObject]:
        return tools_of([doc for name in self._options.classes for doc in self._suite.docs[name]])

    @cached_property
    def _tasks(self) -> Mapping[str, Sequence[Task]]:
        tasks: dict[str, list[Task]] = {split: [] for split in SPLITS}
        for conversation, split in split_by_world(list(self._suite.conversations.values())):
            if set(conversation.classes) <= set(self._options.classes):
                tasks[split].append(task_of(conversation, self._suite, SYSTEMS, env=self._name, split=split))
        return tasks


def bfcl(options: JsonObject) -> Bfcl:
    """The entry point. Raises InvalidInput for an unknown option."""
    return Bfcl(checked(BfclOptions, "bfcl", options))
