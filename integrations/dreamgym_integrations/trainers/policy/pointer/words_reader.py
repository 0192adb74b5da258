"""A reader for text environments without one: a policy points at words of the last observation and copies them.

`say red`, recorded after "the lamp is red", has the form `say {word}` with the word *red*. At most one word of a
command is copied: the last one that is in the observation or the task. Commands are written in lower case. Only the
last observation is remembered. The id of a word has quotes around it, since its text is not an id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from dreamgym.environment import EnvironmentSpec
from dreamgym.state import StateSchema
from dreamgym.types import JsonObject, StepResult, Task, ToolCall, Trajectory
from dreamgym_integrations.trainers.policy.pointer.mapped_state import words_of

MOST_FORMS = 32
"""Most forms of commands of a policy: those that were recorded most often."""
SLOT = "{word}"
NEAR = 32
"""Words before and after a word that are kept with it, so that a long text takes time in proportion to its length."""
SCHEMA = StateSchema.model_validate(
    {"words": {"key": "word", "fields": {"text": "string", "among": "string"}, "complete": False}}
)
"""`among` contains the words near the word in all sentences that contain it."""
_SENTENCE = re.compile(r"[.!?;:\n]+")


class WordsReader:
    """See `dreamgym.reading.Reader`.

    Args:
        spec: description of an environment with one tool that takes one text.
        forms: forms of commands.
    """

    schema = SCHEMA

    def __init__(self, spec: EnvironmentSpec, forms: Sequence[str]) -> None:
        assert spec.text_argument is not None, "an environment without a reader acts in words"
        self._tool, self._argument = spec.text_argument
        self.tools: Sequence[JsonObject] = [{"name": form, "inputSchema": {"type": "object"}} for form in forms]
        self._patterns = {form: re.compile(re.escape(form).replace(re.escape(SLOT), r"(\w+)")) for form in forms}

    def call(self, action: ToolCall) -> ToolCall:
        command = " ".join(str(action.arguments.get(self._argument, "")).casefold().split())
        for form, pattern in self._patterns.items():
            if action.name == self._tool and (found := pattern.fullmatch(command)):
                return ToolCall(name=form, arguments={"word": quoted(found[1])} if SLOT in form else {})
        return action

    def action(self, call: ToolCall) -> ToolCall:
        if call.name not in self._patterns:
            return call
        command = call.name.replace(SLOT, str(call.arguments.get("word", "")).strip("'"))
        return ToolCall(name=self._tool, arguments={self._argument: command})

    def result(self, call: ToolCall, result: StepResult) -> StepResult:
        return result

    def observation(self, call: ToolCall, answer: JsonObject, instruction: str) -> str | None:
        return None

    def start(self, task: Task, first: StepResult) -> JsonObject:
        return {"words": read_words(first.observation)}

    def after(self, state: JsonObject, call: ToolCall, result: StepResult) -> JsonObject:
        return {"words": read_words(result.observation)}


def read_words(text: str) -> JsonObject:
    """The words of a text as entities, each among the words nearest to it in its sentence."""
    among: dict[str, dict[str, None]] = {}
    for sentence in _SENTENCE.split(text):
        words = words_of(sentence)
        for at, word in enumerate(words):
            near = words[max(0, at - NEAR) : at + NEAR + 1]
            among.setdefault(word, {}).update(dict.fromkeys(other for other in near if other != word))
    return {
        quoted(word): {"word": quoted(word), "text": word, "among": " ".join(others)} for word, others in among.items()
    }


def quoted(word: str) -> str:
    """The id of a word."""
    return f"'{word}'"


def learn_forms(spec: EnvironmentSpec, trajectories: Iterable[Trajectory]) -> list[str]:
    """The forms of the accepted commands, the most frequent first."""
    assert spec.text_argument is not None, "an environment without a reader acts in words"
    argument, forms = spec.text_argument[1], Counter[str]()
    for trajectory in trajectories:
        seen: Mapping[str, object] = read_words(spec.first(trajectory.task).observation)
        told = set(words_of(trajectory.task.instruction))
        for step in trajectory.transitions:
            words = str(step.action.arguments.get(argument, "")).casefold().split()
            copied = [number for number, word in enumerate(words) if quoted(word) in seen or word in told]
            if copied:
                words[copied[-1]] = SLOT
            if not step.result.is_error and " ".join(words).count(SLOT) <= 1:  # a command may contain it itself
                forms[" ".join(words)] += 1
            seen = read_words(step.result.observation)
    return [form for form, _ in forms.most_common(MOST_FORMS)]
