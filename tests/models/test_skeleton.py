"""Skeleton decoding: whatever a model writes, the answer has the schema's fields and reads back as it was shown."""

import json
from collections.abc import Sequence

from dreamgym_integrations.models.skeleton import as_lines, fill
from hypothesis import given
from hypothesis import strategies as st

from dreamgym.dream.answer_form import SCHEMA, StepAnswer
from dreamgym.llm import Message
from dreamgym.types import JsonObject


class Typist:
    """Writes given lines and choices, and keeps the whole text."""

    def __init__(self, answers: Sequence[str]) -> None:
        self._answers = iter(answers)
        self.text = ""

    def feed(self, text: str) -> None:
        self.text += text

    def line(self) -> str:
        written = " " + next(self._answers)
        self.text += written
        return written

    def choose(self, texts: Sequence[str]) -> tuple[str, float]:
        chosen = next(self._answers)
        assert chosen in texts
        self.text += f" {chosen}"
        return chosen, 0.75


def test_the_program_writes_the_names_and_the_model_the_values() -> None:
    typist = Typist(["East is an exit.", "hall.\\nwest: kitchen.", "-", "no", "no", "no"])
    answer, probabilities = fill(SCHEMA, typist)
    assert probabilities == {"error": 0.25, "terminated": 0.25, "success": 0.25}
    assert answer == {
        "reasoning": "East is an exit.",
        "observation": "hall.\nwest: kitchen.",
        "state": None,
        "error": False,
        "terminated": False,
        "success": False,
    }
    assert typist.text.splitlines() == [
        "reasoning: East is an exit.",
        "observation: hall.\\nwest: kitchen.",
        "state: -",
        "error: no",
        "terminated: no",
        "success: no",
    ]


def test_choices_numbers_and_optional_fields_follow_the_schema() -> None:
    schema: JsonObject = {
        "type": "object",
        "properties": {
            "next": {"type": "string", "enum": ["act", "final"]},
            "seats": {"type": "integer"},
            "note": {"type": "string"},
            "rubbish": {"type": "integer"},
        },
        "required": ["next", "seats", "rubbish"],
    }
    assert fill(schema, Typist(["act", "3", "many"]))[0] == {"next": "act", "seats": 3, "rubbish": "many"}


REFUSAL: JsonObject = {
    "type": "object",
    "properties": {
        "error": {"type": "boolean"},
        "changes": {"type": "array"},
        "observation": {"type": ["string", "null"]},
        "structured": {"anyOf": [{"type": "object"}, {"type": "null"}]},
    },
    "if": {"properties": {"error": {"const": True}}},
    "then": {"properties": {"changes": {"const": []}, "structured": {"const": None}}},
    "else": {"properties": {"observation": {"const": None}}},
}


def test_a_refusal_leaves_only_its_words_to_the_model() -> None:
    typist = Typist(["yes", "not found"])
    answer, probabilities = fill(REFUSAL, typist)
    assert answer == {"error": True, "changes": [], "observation": "not found", "structured": None}
    assert typist.text.splitlines() == ["error: yes", "changes: []", "observation: not found", "structured: -"]
    assert probabilities == {"error": 0.75}


def test_a_field_only_of_refusals_is_not_asked_for_if_the_action_is_done() -> None:
    change = '[{"op": "set", "path": "/rooms/R-1/name", "value": "Kombüse"}]'
    answer, _ = fill(REFUSAL, Typist(["no", change, '{"name": "Kombüse"}']))
    assert answer == {
        "error": False,
        "changes": json.loads(change),
        "observation": None,
        "structured": {"name": "Kombüse"},
    }
    (shown,) = as_lines([Message(role="assistant", content=json.dumps(answer))])
    assert f"changes: {change}" in shown.content.splitlines()


def test_a_dash_for_a_list_is_an_empty_one() -> None:
    assert fill(REFUSAL, Typist(["no", "-", "{}"]))[0]["changes"] == []


def test_only_json_answers_are_shown_as_lines() -> None:
    messages = [
        Message(role="user", content='{"a": "stays"}'),
        Message(role="assistant", content='{"error": true, "state": null, "seats": 3}'),
        Message(role="assistant", content="plain"),
        Message(role="assistant", content="[1]"),
    ]
    shown = [message.content for message in as_lines(messages)]
    assert shown == ['{"a": "stays"}', "error: yes\nstate: -\nseats: 3", "plain", "[1]"]


lines = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]) | st.sampled_from(" \n\\n"))


@given(lines.map(str.strip), lines.map(str.strip).filter(lambda state: state not in ("", "-", "null")), st.booleans())
def test_an_answer_shown_as_lines_reads_back_as_it_was(observation: str, state: str, error: bool) -> None:
    given: JsonObject = {
        "reasoning": "",
        "observation": observation,
        "state": state,
        "error": error,
        "terminated": False,
        "success": False,
    }
    (shown,) = as_lines([Message(role="assistant", content=json.dumps(given))])
    values = [line.partition(":")[2].removeprefix(" ") for line in shown.content.split("\n")]
    assert fill(SCHEMA, Typist(values))[0] == given
    assert StepAnswer.model_validate_json(json.dumps(given)).observation == observation
