"""What comes in from agents and trainers, as an environment whose recordings were redacted takes it.

In a dream of such recordings a real address would meet nobody: it becomes its recorded placeholder at the door, before
anything is stored, logged or shown to a model. A real environment is given what was said; what is stored is redacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec
from dreamgym.types import StepResult, Task, ToolCall, Transition

if TYPE_CHECKING:
    from dreamgym.redaction import Redactor


class Admission:
    """Redacts by the rules of one environment; without rules, everything stays as it is."""

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._redactor: Redactor | None = None
        if spec.redact is not None:
            from dreamgym.redaction import Redactor, load_key

            self._redactor = Redactor(spec.redact, key=load_key())
            self._redactor.text("loads the rules before the first episode")

    def call(self, action: ToolCall) -> ToolCall:
        """A call as it may be stored."""
        if self._redactor is None:
            return action
        said = {"arguments": action.arguments, "answers": action.answers}
        return ToolCall.model_validate({"name": action.name, **{key: self._redactor.value(said[key]) for key in said}})

    def task(self, task: Task) -> Task:
        """A task that somebody brought along; its id and its environment stay."""
        if self._redactor is None:
            return task
        said = task.model_dump(mode="json", include={"instruction", "initial_state", "metadata"})
        return Task.model_validate({**task.model_dump(), **{key: self._redactor.value(said[key]) for key in said}})

    def text(self, text: str) -> str:
        """A final answer, or why something failed."""
        return text if self._redactor is None else self._redactor.text(text)

    def transition(self, step: Transition) -> Transition:
        """A step of a real environment as it may be stored."""
        redactor = self._redactor
        if redactor is None:
            return step
        result = step.result.model_dump(mode="json")
        said = {"observation": redactor.text(step.result.observation), "info": redactor.value(result["info"])}
        return step.model_copy(
            update={
                "state": redactor.text(step.state),
                "action": self.call(step.action),
                "result": StepResult.model_validate({**result, **said}),
                "next_state": redactor.text(step.next_state),
            }
        )
