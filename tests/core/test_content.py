"""Conversion of MCP results to steps and back, and recorded blocks in place of predicted lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from dreamgym.content import observation_of, result_of, tool_result, with_stand_ins
from dreamgym.types import JsonObject

TEXT: JsonObject = {"type": "text", "text": "a\nb"}
IMAGE: JsonObject = {"type": "image", "data": "aGk=", "mimeType": "image/png", "_meta": {"v": None}}
OTHER: JsonObject = {"type": "image", "data": "eW8=", "mimeType": "image/png"}
LINK: JsonObject = {"type": "resource_link", "uri": "demo://1", "name": "one"}
HELD: JsonObject = {"type": "resource", "resource": {"uri": "demo://2", "mimeType": "text/plain", "text": "two"}}
NOTED: JsonObject = {"type": "text", "text": "careful", "annotations": {"priority": 1}}

blocks = st.lists(st.sampled_from([TEXT, IMAGE, OTHER, LINK, HELD, NOTED]), max_size=4)


json_values = st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2)


@given(
    blocks,
    st.booleans(),
    json_values | st.dictionaries(st.text(max_size=3), st.integers()),
    st.dictionaries(st.sampled_from(["x-cost", "citations"]), json_values),
)
def test_a_result_becomes_a_step_and_the_same_result_again(
    content: list[JsonObject], is_error: bool, structured: JsonValue, own: JsonObject
) -> None:
    answer: JsonObject = {**own, "content": list(content), "isError": is_error}
    if structured is not None:
        answer["structuredContent"] = structured
    assert tool_result(result_of(answer)) == answer


def test_a_single_text_needs_no_blocks_of_its_own() -> None:
    result = result_of({"content": [TEXT]})
    assert (result.observation, result.info) == ("a\nb", {})


def test_the_meta_of_an_answer_is_kept_without_the_told_state_and_what_the_protocol_writes() -> None:
    meta: JsonObject = {"vendor/view": 1, "dreamgym/state": {}, "io.modelcontextprotocol/serverInfo": {}}
    assert result_of({"content": [TEXT], "_meta": meta}).info == {"meta": {"vendor/view": 1}}
    assert result_of({"content": [TEXT], "_meta": {"dreamgym/state": {}}}).info == {}


def test_a_block_that_is_not_text_becomes_one_line_of_the_observation_and_an_embedded_text_follows_it() -> None:
    assert observation_of([TEXT, IMAGE, LINK, HELD]) == (
        "a\nb\n[image image/png]\n[resource_link demo://1]\n[resource text/plain demo://2]\ntwo"
    )


@pytest.mark.parametrize(
    ("observation", "content"),
    [
        ("nothing to see", None),
        ("[image image/jpeg]", None),
        ("[image image/png]", [IMAGE]),
        (
            "one\ntwo\n[image image/png]\nthree",
            [{"type": "text", "text": "one\ntwo"}, IMAGE, {"type": "text", "text": "three"}],
        ),
        ("[resource text/plain demo://2]\ntwo\n[image image/png]", [HELD, IMAGE]),
        ("[resource text/plain demo://2]\nthree", None),
        ("careful", [NOTED]),
        ("careful now", None),
    ],
)
def test_recorded_blocks_replace_their_lines(observation: str, content: list[JsonObject] | None) -> None:
    assert with_stand_ins(observation, [TEXT, IMAGE, OTHER, HELD, NOTED]) == content


@given(blocks)
def test_rebuilt_content_gives_the_predicted_observation(content: list[JsonObject]) -> None:
    observation = observation_of(content)
    again = with_stand_ins(observation, [IMAGE, LINK, HELD, NOTED])
    assert again is None or observation_of(again) == observation
