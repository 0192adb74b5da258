"""A call reaches the entities that its arguments name: by id, through ids in those entities, and by a unique text."""

import json
from collections.abc import Mapping

from growth import grows_linearly
from pydantic import JsonValue

from dreamgym.state import StateSchema, as_text
from dreamgym.synthesis import ToolProgram, learn
from dreamgym.types import JsonObject, Provenance, StepResult, Tier, ToolCall, Transition

SCHEMA = StateSchema.model_validate(
    {
        "rooms": {"key": "id", "fields": {"name": "string", "seats": "integer", "house": "string"}},
        "houses": {"key": "id", "fields": {"street": "string"}},
    }
)


def state(**names: str) -> JsonObject:
    """Rooms with these names, by id, each with another number of seats, in two houses."""
    rooms: JsonObject = {
        i: {"id": i, "name": name, "seats": 7 * n, "house": f"h{n % 2}"} for n, (i, name) in enumerate(names.items(), 3)
    }
    return {
        "rooms": rooms,
        "houses": {"h0": {"id": "h0", "street": "Elm Row"}, "h1": {"id": "h1", "street": "Oak Lane"}},
    }


def learned(*calls: tuple[JsonObject, Mapping[str, JsonValue], JsonObject | str]) -> ToolProgram:
    """The program learned from reads: state, arguments and answer of each. An answer that is a text is a refusal."""
    program = learn(
        (
            Transition(
                state=as_text(before),
                action=ToolCall(name="look", arguments=dict(arguments)),
                result=StepResult(
                    observation=answer if isinstance(answer, str) else json.dumps(answer),
                    is_error=isinstance(answer, str),
                ),
                next_state=as_text(before),
                provenance=Provenance(tier=Tier.REAL),
            )
            for before, arguments, answer in calls
        ),
        SCHEMA,
    )
    assert program is not None
    return program


def answer(program: ToolProgram, before: JsonObject, **arguments: JsonValue) -> str | None:
    result = program.run(before, arguments)
    return None if result is None else result.observation


def test_an_entity_is_found_by_its_id_and_by_the_ids_in_it() -> None:
    one = state(a="Blue", b="Red")
    program = learned((one, {"room": "a"}, {"street": "Oak Lane"}), (one, {"room": "b"}, {"street": "Elm Row"}))
    assert answer(program, state(x="Green", y="Grey"), room="y") == '{"street": "Elm Row"}'


def test_an_entity_is_found_by_a_text_that_it_alone_has() -> None:
    one, other = state(a="Blue", b="Red"), state(c="White", d="Black")
    program = learned((one, {"called": "Blue"}, {"seats": 21}), (other, {"called": "Black"}, {"seats": 28}))
    assert answer(program, state(x="Green", y="Grey"), called="Grey") == '{"seats": 28}'
    assert answer(program, state(x="Grey", y="Grey"), called="Grey") is None


def test_a_refusal_names_the_first_item_of_a_list_that_does_not_exist() -> None:
    one = state(a="Blue", b="Red")
    program = learned(
        (one, {"rooms": ["a", "b"]}, {"found": 2}),
        (one, {"rooms": ["b", "a"]}, {"found": 2}),
        (one, {"rooms": ["a", "q7"]}, "no room q7"),
        (one, {"rooms": ["r8", "b"]}, "no room r8"),
    )
    assert answer(program, state(x="Green"), rooms=["x", "k9", "m3"]) == "no room k9"


def test_the_time_to_look_for_an_item_that_comes_twice_grows_linearly() -> None:
    one = state(a="Blue", b="Red", c="White")
    program = learned(
        (one, {"rooms": ["a", "b"]}, {"found": 2}),
        (one, {"rooms": ["b", "c"]}, {"found": 2}),
        (one, {"rooms": ["a", "b", "a"]}, "a is there twice"),
        (one, {"rooms": ["c", "c"]}, "c is there twice"),
    )
    assert answer(program, one, rooms=["b", "a", "c", "a"]) == "a is there twice"
    assert grows_linearly(
        lambda text: answer(program, one, rooms=[str(number) for number, _ in enumerate(text)]), lambda size: "x" * size
    )


def test_the_time_to_read_a_call_with_a_long_list_and_a_large_object_grows_linearly() -> None:
    one = state(a="Blue", b="Red")
    program = learned(
        (one, {"rooms": ["a", "b"], "notes": {"x": 1}}, {"found": 2}),
        (one, {"rooms": ["b"], "notes": {"x": 2}}, {"found": 1}),
    )
    assert answer(program, one, rooms=["b", "a"], notes={"x": 3}) == '{"found": 2}'
    assert grows_linearly(
        lambda text: answer(program, one, rooms=["a"] * len(text), notes=dict.fromkeys(map(str, range(len(text))), 1)),
        lambda size: "x" * size,
    )


def test_the_time_to_find_entities_by_their_texts_grows_linearly() -> None:
    one = state(a="Blue", b="Red")
    program = learned((one, {"called": "Blue"}, {"seats": 21}), (one, {"called": "Red"}, {"seats": 28}))

    def looked(text: str) -> str | None:
        names = {str(number): f"room {number}" for number, _ in enumerate(text)}
        return answer(program, state(**names), called="room 2", others=dict(names))

    assert answer(program, state(x="Green", y="Grey"), called="Grey") == '{"seats": 28}'
    assert grows_linearly(looked, lambda size: "x" * size)
