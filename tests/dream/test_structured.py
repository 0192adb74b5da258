"""Structured content is asked for under the tool's schema, is never guessed, and agrees with the text beside it."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from queries import query, transition

from dreamgym.dream.answer_form import SCHEMA
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.model import Prediction
from dreamgym.dream.prompt import PromptForm, step_messages
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import PredictionError
from dreamgym.llm import Completion, Message, ScriptedLLM, is_strict
from dreamgym.state.wording import wording_of
from dreamgym.types import JsonObject, StepResult, ToolCall, Transition

pytestmark = pytest.mark.anyio

ENTITY: JsonObject = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "seats": {"type": "integer"}},
}
FIND: JsonObject = {
    "name": "find",
    "inputSchema": {"type": "object"},
    "outputSchema": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "required": ["entities"],
        "properties": {"entities": {"type": "array", "items": {"$ref": "#/$defs/entity"}}},
        "$defs": {"entity": ENTITY},
    },
}
READ: JsonObject = {
    "name": "read",
    "inputSchema": {"type": "object"},
    "outputSchema": {"type": "object", "properties": {"content": {"type": "string"}}},
}
MEMORY = EnvironmentSpec(
    name="memory",
    tools_list=({"tools": [FIND, READ, {"name": "plain", "inputSchema": {"type": "object"}}]},),
)


def find(name: str, seats: int = 1) -> ToolCall:
    return ToolCall(name="find", arguments={"name": name, "seats": seats})


def found(*names: str) -> JsonObject:
    return {"entities": [{"name": name} for name in names]}


def recorded(action: ToolCall, text: str, structured: JsonObject | None, **info: object) -> Transition:
    """A recorded answer of the memory server."""
    step = transition("s", action, text, "s")
    more: JsonObject = {} if structured is None else {"structured": structured}
    result = StepResult.model_validate({**step.result.model_dump(), "info": {**more, **info}})
    return step.model_copy(update={"result": result})


def dumped(structured: JsonObject) -> str:
    return json.dumps(structured, indent=2, ensure_ascii=False)


ANN = recorded(find("Ann"), dumped(found("Ann")), found("Ann"))
WORDED = recorded(find("Ann"), "One entity: Ann.", found("Ann"))


def said(**changed: object) -> str:
    plain = {"reasoning": "r", "observation": None, "structured": found("Bo"), "state": None, "error": False}
    return json.dumps({**plain, "terminated": False, "success": False, **changed})


class Listening(ScriptedLLM):
    """Keeps the schemas of its questions."""

    def __init__(self, script: Sequence[str]) -> None:
        super().__init__(script)
        self.schemas: list[JsonObject] = []

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        schema: JsonObject | None = None,
        max_tokens: int = 512,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Completion:
        self.schemas.append(schema or {})
        return await super().complete(messages)


async def predicted(
    *script: str, shown: Sequence[Transition] = (ANN,), tool: str = "find"
) -> tuple[Prediction, Listening]:
    llm = Listening(script)
    action = ToolCall(name=tool, arguments={"name": "Bo", "seats": 1})
    return await LanguageModel(llm).predict(query(MEMORY, "s", action, *shown)), llm


async def test_a_text_that_follows_from_the_structured_content_is_not_asked_for() -> None:
    prediction, llm = await predicted(said())
    assert prediction.structured == found("Bo")
    assert prediction.observation == prediction.next_state == dumped(found("Bo"))
    properties = llm.schemas[0]["properties"]
    assert isinstance(properties, dict)
    assert properties["observation"] == {"type": ["string", "null"]}


async def test_a_text_that_differs_from_the_structured_content_is_asked_for_beside_it() -> None:
    prediction, llm = await predicted(said(observation="One entity: Bo."), shown=[WORDED])
    assert (prediction.observation, prediction.structured) == ("One entity: Bo.", found("Bo"))
    properties = llm.schemas[0]["properties"]
    assert isinstance(properties, dict)
    assert properties["observation"] == {"type": "string"}


@pytest.mark.parametrize("shown", [[ANN], [WORDED], []], ids=["derived", "worded", "nothing recorded"])
async def test_the_schema_of_the_question_contains_the_tools_own_with_its_references(shown: list[Transition]) -> None:
    _, llm = await predicted(said(observation="x"), shown=shown)
    asked = Draft202012Validator(llm.schemas[0])
    asked.check_schema(llm.schemas[0])
    assert asked.is_valid(json.loads(said(observation="x")))
    assert asked.is_valid(json.loads(said(observation="x", structured=None, error=True)))
    assert not asked.is_valid(json.loads(said(observation="x", structured={"entities": [{"seats": 1}]})))
    assert not asked.is_valid(json.loads(said(observation="x", structured={})))


async def test_a_tool_without_an_output_schema_is_asked_without_structured_content() -> None:
    plain = {key: value for key, value in json.loads(said(observation="x")).items() if key != "structured"}
    prediction, llm = await predicted(json.dumps(plain), tool="plain")
    assert prediction.structured is None
    assert "structured" not in json.dumps(llm.schemas[0])


FAULTS = {
    "off the schema": (
        said(structured={"entities": [{"name": 3}]}),
        '"structured" is off the outputSchema: entities[0].name',
    ),
    "without": (said(structured=None), '"structured" must be an object'),
    "no object": (said(structured=[1]), "structured: Input should be an object"),
    "with a refusal": (said(error=True, observation="no"), '"structured" must be null'),
    "no words for a refusal": (said(error=True, structured=None), '"observation" must be a text'),
}


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS.keys())
async def test_an_answer_that_breaks_the_output_schema_is_asked_for_again_with_its_fault(text: str, fault: str) -> None:
    prediction, llm = await predicted(text, said())
    assert prediction.structured == found("Bo")
    assert len(llm.asked) == 2
    assert f"no valid answer: {fault}" in llm.asked[1][-1].content


@pytest.mark.parametrize("text", [text for text, _ in FAULTS.values()], ids=FAULTS.keys())
async def test_a_second_answer_that_breaks_the_output_schema_is_an_error(text: str) -> None:
    with pytest.raises(PredictionError, match="not even when asked again"):
        await predicted(text, text)


async def test_structured_content_that_no_text_can_be_made_of_is_asked_for_again() -> None:
    shown = [recorded(ToolCall(name="read", arguments={"path": "a"}), "hello", {"content": "hello"})]
    empty, whole = said(structured={}), said(structured={"content": "bye"})
    prediction, llm = await predicted(empty, whole, shown=shown, tool="read")
    assert prediction.observation == "bye"
    assert "there is no 'content' to make the text from" in llm.asked[1][-1].content


async def test_a_refusal_has_words_and_no_structured_content() -> None:
    prediction, _ = await predicted(said(observation="no such entity", structured=None, error=True))
    assert (prediction.is_error, prediction.observation, prediction.structured) == (True, "no such entity", None)
    assert prediction.next_state == "s"


IMAGE: JsonObject = {"type": "image", "data": "Qm8/Ann/2==", "mimeType": "image/png"}


async def test_a_predicted_line_for_a_picture_becomes_the_recorded_picture() -> None:
    drawn = recorded(
        ToolCall(name="plain"), "Look:\n[image image/png]", None, content=[{"type": "text", "text": "Look:"}, IMAGE]
    )
    plain = {key: value for key, value in json.loads(said()).items() if key != "structured"}
    answer = json.dumps({**plain, "observation": "See:\n[image image/png]"})
    prediction, _ = await predicted(answer, shown=[drawn], tool="plain")
    assert prediction.content == ({"type": "text", "text": "See:"}, IMAGE)
    assert prediction.observation == "See:\n[image image/png]"


async def test_the_prompt_contains_structured_content_once() -> None:
    earlier = (recorded(find("Cy"), dumped(found("Cy")), found("Cy")),)
    asked = query(MEMORY, "s", find("Bo"), ANN, history=earlier)
    forms: tuple[PromptForm, ...] = ("data", "turns")
    for form in forms:
        text = "\n".join(message.content for message in step_messages(asked, form))
        assert text.count('{"entities": [{"name": "Ann"}]}') == text.count('{"entities": [{"name": "Cy"}]}') == 1
        assert '\\"entities\\"' not in text
        assert '"structured": for a tool with an outputSchema' in text


async def test_a_text_that_differs_from_its_structured_content_stands_beside_it_in_the_prompt() -> None:
    text = step_messages(query(MEMORY, "s", find("Bo"), WORDED), "data")[-1].content
    assert '"observation": "One entity: Ann.", "structured": {"entities"' in text


async def test_lost_structured_content_of_a_recording_is_read_from_its_text() -> None:
    lost = recorded(find("Ann"), dumped(found("Ann")), None)
    prediction, _ = await predicted(said(), shown=[lost])
    assert prediction.observation == dumped(found("Bo"))


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(min_size=1, max_size=4), values, min_size=1, max_size=3)


@given(objects, objects, st.sampled_from([None, 2, 4, "\t"]), st.booleans())
async def test_a_wording_makes_every_text_that_it_was_learned_from(
    first: JsonObject, second: JsonObject, indent: int | str | None, is_ascii: bool
) -> None:
    results = [
        StepResult(
            observation=json.dumps(structured, indent=indent, ensure_ascii=is_ascii), info={"structured": structured}
        )
        for structured in (first, second)
    ]
    wording = wording_of(results)
    assert wording is not None
    assert [wording.text(structured) for structured in (first, second)] == [result.observation for result in results]


@given(objects, st.text(min_size=1))
async def test_a_wording_is_found_only_if_it_reproduces_the_text(structured: JsonObject, text: str) -> None:
    result = StepResult(observation=f"#{text}#", info={"structured": structured})
    wording = wording_of([result])
    assert wording is None or wording.text(structured) == result.observation


@pytest.mark.parametrize(
    ("text", "structured"),
    [
        ("deleted", {"success": True, "message": "deleted"}),
        ('[\n  "a"\n]', {"results": ["a"]}),
        ('["a","b"]', {"results": ["a", "b"]}),
        ("7", {"result": 7}),
    ],
)
async def test_a_text_may_be_one_field_as_it_is_or_as_json(text: str, structured: JsonObject) -> None:
    wording = wording_of([StepResult(observation=text, info={"structured": structured})])
    assert wording is not None
    assert wording.text(structured) == text


@pytest.mark.parametrize(
    ("output", "strict"),
    [
        ({**ENTITY, "required": ["name", "seats"], "additionalProperties": False}, True),
        ({**ENTITY, "additionalProperties": False}, False),
        ({**ENTITY, "required": ["name", "seats"]}, False),
        ({"type": "object", "properties": {}, "required": [], "additionalProperties": {"type": "string"}}, False),
    ],
)
async def test_hosted_models_are_asked_strictly_only_if_they_accept_the_schema_as_strict(
    output: JsonObject, strict: bool
) -> None:
    spec = EnvironmentSpec(
        name="one", tools_list=({"tools": [{"name": "t", "inputSchema": {"type": "object"}, "outputSchema": output}]},)
    )
    refused = said(observation="no", structured=None, error=True)
    llm = Listening([refused])
    await LanguageModel(llm).predict(query(spec, "s", ToolCall(name="t")))
    assert is_strict(llm.schemas[0]) is strict
    assert is_strict(SCHEMA)
