"""Local models: how answers end, with a fake engine; and the real model, if its engine and weights are installed."""

import asyncio
import ctypes
import json
import sys
from collections.abc import AsyncIterator, Callable
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
from dreamgym_integrations.models.local import LocalModel, load
from dreamgym_integrations.models.weights import find, path_of

from dreamgym.dream.answer_form import SCHEMA, StepAnswer
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.dream.language_model import LanguageModel
from dreamgym.embedding import TrigramEncoder
from dreamgym.environment import EnvironmentSpec
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, PredictionError, UnknownName
from dreamgym.llm import Message
from dreamgym.replay.memory import MemoryBuffer
from dreamgym.types import JsonObject, Task, ToolCall

pytestmark = pytest.mark.anyio

SAYS: JsonObject = {"type": "object", "properties": {"said": {"type": "string"}}, "required": ["said"]}
END = 256
"""The token that ends a turn; the others are bytes."""


class FakeEngine:
    """The engine of a model that knows no mark of turns, so that each mark is a token per byte."""

    def __init__(self, says: list[int]) -> None:
        self._left = list(says)
        self.input_ids: list[int] = []
        self.n_tokens = 0
        self._ctx = self

    def token_eos(self) -> int:
        return END

    def tokenize(self, text: bytes, **_: bool) -> list[int]:
        return list(text)

    def detokenize(self, tokens: list[int]) -> bytes:
        return bytes(token for token in tokens if token != END)

    def eval(self, tokens: list[int]) -> None:
        self.n_tokens += len(tokens)

    def set_seed(self, seed: int) -> None: ...

    def n_ctx(self) -> int:
        return 10_000

    def n_vocab(self) -> int:
        return END + 1

    def get_logits(self) -> object:
        return (ctypes.c_float * self.n_vocab())()

    def sample(self, **_: float) -> int:
        return self._left.pop(0) if self._left else END

    def close(self) -> None: ...


@pytest.fixture
async def saying(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Callable[[bytes], LocalModel]]:
    """Makes a model that writes a text and then ends its turn."""
    engine, made = ModuleType("llama_cpp"), []
    engine.__spec__ = ModuleSpec("llama_cpp", None)
    monkeypatch.setitem(sys.modules, "llama_cpp", engine)
    (tmp_path / "x.gguf").touch()

    def model(says: bytes) -> LocalModel:
        engine.Llama = lambda *_, **__: FakeEngine(list(says))  # type: ignore[attr-defined]
        made.append(load(str(tmp_path / "x.gguf")))
        return made[-1]

    yield model
    for one in made:
        await one.close()


async def test_parts_of_an_end_mark_that_a_model_does_not_know_do_not_end_its_answer(
    saying: Callable[[bytes], LocalModel],
) -> None:
    text = "2 < 3 | im_end > end"
    assert (await saying(text.encode()).complete([Message(role="user", content="Go.")])).text == text
    lines = await saying(f" {text}\n".encode()).complete([Message(role="user", content="Go.")], schema=SAYS)
    assert json.loads(lines.text) == {"said": text}


@pytest.mark.parametrize("says", ["", " I think.\n"], ids=["at once", "after a line"])
async def test_a_step_fails_if_the_model_ends_its_turn_before_it_has_written_the_answer(
    saying: Callable[[bytes], LocalModel], says: str
) -> None:
    spec = EnvironmentSpec(name="house", tools_list=({"tools": [{"name": "look", "inputSchema": {"type": "object"}}]},))
    dream = DreamEnvironment(spec, LanguageModel(saying(says.encode())), MemoryBuffer(TrigramEncoder()))
    await dream.reset(Task(id="t", env="house", instruction="Find the coin.", initial_state="kitchen."), seed=0)
    with pytest.raises(PredictionError, match="no valid answer, not even when asked again"):
        await dream.step(ToolCall(name="look", arguments={}))
    assert dream.transitions == ()


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
