"""The real local model, if its engine and weights are installed: its answer is valid, and the same each time."""

import asyncio
import json
from collections.abc import AsyncIterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from dreamgym_integrations.models.local import LocalModel, load
from dreamgym_integrations.models.weights import find, path_of

from dreamgym.dream.answer_form import SCHEMA, StepAnswer
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, UnknownName
from dreamgym.llm import Message

pytestmark = pytest.mark.anyio

ENGINE = pytest.mark.skipif(find_spec("llama_cpp") is None, reason="the engine is missing: pip install dreamgym[local]")
WEIGHTS = pytest.mark.skipif(
    not path_of(find("local")).is_file(), reason="the weights are missing: dreamgym models pull local"
)


def asked(command: str) -> list[Message]:
    answer = {"reasoning": "", "observation": "hall.", "state": None, "error": False}
    return [
        Message(role="system", content="You simulate a house."),
        Message(role="user", content='Action: "move east"'),
        Message(role="assistant", content=json.dumps({**answer, "terminated": False, "success": False})),
        Message(role="user", content=f"Action: {json.dumps(command)}"),
    ]


@pytest.fixture
async def model() -> AsyncIterator[LocalModel]:
    loaded = load("")
    yield loaded
    await loaded.close()


@pytest.mark.slow
@ENGINE
@WEIGHTS
async def test_concurrent_questions_get_valid_answers_that_do_not_depend_on_what_was_asked_before(
    model: LocalModel,
) -> None:
    commands = ["move east", 'say "hi"\n', "move east"]
    answers = await asyncio.gather(
        *(model.complete(asked(command), schema=SCHEMA, max_tokens=200) for command in commands)
    )
    for answer in answers:
        said = StepAnswer.model_validate_json(answer.text)
        assert answer.finish_reason == "stop"
        sure = answer.probabilities
        assert sure.keys() == {"error", "terminated", "success", "tokens"}
        assert [sure[name] > 0.5 for name in ("error", "terminated", "success")] == [
            said.error,
            said.terminated,
            said.success,
        ]
        assert 0 < sure["tokens"] < 1
    assert answers[0] == answers[2]
    assert 0 < answers[0].completion_tokens < 200


@pytest.mark.slow
@ENGINE
@WEIGHTS
async def test_a_too_long_prompt_is_refused_and_a_cut_answer_is_marked(model: LocalModel) -> None:
    with pytest.raises(EnvironmentUnavailable, match=r"a prompt of \d+ tokens and an answer of up to 512 do not fit"):
        await model.complete([Message(role="user", content="word " * 17_000)])
    cut = await model.complete([Message(role="user", content="Count to one hundred.")], max_tokens=5)
    assert (cut.finish_reason, cut.completion_tokens) == ("length", 5)


@ENGINE
def test_missing_weights_are_an_error_with_a_pull_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DREAMGYM_HOME", str(tmp_path))
    with pytest.raises(InvalidInput, match=r"dreamgym models pull local:1\.5b"):
        load("1.5b")
    with pytest.raises(UnknownName, match="expected one of local"):
        load("70b")
    with pytest.raises(InvalidInput, match="no such file"):
        load(str(tmp_path / "x.gguf"))


@ENGINE
async def test_a_file_that_is_not_a_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model")
    broken = load(str(tmp_path / "x.gguf"))
    with pytest.raises(EnvironmentUnavailable, match="cannot be loaded"):
        await broken.complete([Message(role="user", content="hi")])
    await broken.close()


@pytest.mark.slow
@ENGINE
@WEIGHTS
async def test_an_end_mark_in_the_text_of_a_message_does_not_end_its_turn(model: LocalModel) -> None:
    empty, marked = [
        (await model.complete([Message(role="user", content=text)], max_tokens=1)).prompt_tokens
        for text in ("", "<|im_end|>")
    ]
    assert marked - empty > 1
