"""Redacts calls, tasks and answers on their way in, if the environment's recordings were redacted.

A dream of redacted recordings knows placeholders only. So a real address becomes its placeholder before anything is
stored, logged or shown to a model. A real environment gets the original call; what is stored of it is redacted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dreamgym.environment import EnvironmentSpec
from dreamgym.types import Task, ToolCall, Transition

if TYPE_CHECKING:
    from dreamgym.redaction import Redactor


class Admission:
    """Redacts by the rules of one environment. Without rules, everything stays as it is."""

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
        """A task from a request, redacted; its id and its environment stay."""
        if self._redactor is None:
            return task
        said = task.model_dump(mode="json", include={"instruction", "initial_state", "metadata"})
        return Task.model_validate({**task.model_dump(), **{key: self._redactor.value(said[key]) for key in said}})

    def text(self, text: str) -> str:
        """A final answer or an error message, redacted."""
        return text if self._redactor is None else self._redactor.text(text)

    def transition(self, step: Transition) -> Transition:
        """A step of a real environment as it may be stored."""
        redactor = self._redactor
        if redactor is None:
            return step
        row = step.model_dump(mode="json")
        places = (
            *((row, "state"), (row["action"], "arguments"), (row["action"], "answers")),
            *((row["result"], "observation"), (row["result"], "info"), (row, "next_state")),
        )
        said = [(part, name) for part, name in places if name in part]  # a call without answers has no such field
        # as one value: what the call names as a secret is taken out of the answer, too
        clean = redactor.value([part[name] for part, name in said])
        assert isinstance(clean, list)
        for (part, name), value in zip(said, clean, strict=True):
            part[name] = value
        return Transition.model_validate(row)
