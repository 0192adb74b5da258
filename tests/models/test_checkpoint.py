"""The checkpoint backend with a tiny random Llama: batching changes no answer, and a fault reaches only its caller."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import torch
from dreamgym_integrations.models.checkpoint import CheckpointModel, load
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedTokenizerFast

from dreamgym.dream.fitted import FILE, Fitting, tokenizer_digest
from dreamgym.dream.load import load_model
from dreamgym.errors import EnvironmentUnavailable, InvalidInput, PredictionError
from dreamgym.llm import Completion, Message
from dreamgym.types import ToolCall

pytestmark = pytest.mark.anyio

WORDS = ["<pad>", "<end>", "<unk>", *(f"w{number}" for number in range(29))]
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}w0"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of fixed random weights, whose answers are arbitrary but always the same."""
    path = tmp_path_factory.mktemp("tiny")
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>", chat_template=TEMPLATE
    )
    tokenizer.save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        initializer_range=0.5,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


@pytest.fixture
async def model(folder: Path) -> AsyncIterator[CheckpointModel]:
    loaded = load(str(folder))
    yield loaded
    await loaded.close()


def said(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


QUESTIONS = ["w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10 w11", "w2 w2"]


def whole(answer: Completion) -> Completion:
    """Return the answer without its probabilities, whose rounding depends on the batch."""
    return answer.model_copy(update={"probabilities": {}})


async def test_questions_asked_together_are_answered_as_if_asked_alone(model: CheckpointModel) -> None:
    alone = [await model.complete(said(text), max_tokens=12) for text in QUESTIONS]
    together = await asyncio.gather(*(model.complete(said(text), max_tokens=12) for text in QUESTIONS))
    assert [whole(answer) for answer in together] == [whole(answer) for answer in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-3)
        assert 0 < one.probabilities["tokens"] <= 1
    assert len({answer.text for answer in alone}) > 1
    assert [answer.prompt_tokens for answer in alone] == [4, 2, 8, 3]


async def test_each_question_keeps_its_own_limit_in_a_batch(model: CheckpointModel) -> None:
    short, long = await asyncio.gather(
        model.complete(said("w1 w2 w3"), max_tokens=2), model.complete(said("w1 w2 w3"), max_tokens=12)
    )
    assert short.completion_tokens <= 2
    assert long.text.startswith(short.text)
    assert short.finish_reason == "length"


async def test_sampling_follows_its_seed_and_leaves_the_process_random_numbers_alone(model: CheckpointModel) -> None:
    async def sampled(seed: int) -> Completion:
        return await model.complete(said("w1"), max_tokens=12, temperature=1.5, seed=seed)

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    again, once, other = await asyncio.gather(sampled(1), sampled(1), sampled(2))
    assert torch.equal(torch.rand(3), expected)
    assert again == once
    assert again.text != other.text


async def test_an_answer_that_ends_at_once_reports_its_usage_too(
    model: CheckpointModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CheckpointModel, "_ends", set(range(1_000)))
    answer = await model.complete(said("w1 w2"), max_tokens=4)
    assert (answer.text, answer.is_told) == ("", True)


async def test_a_prompt_that_does_not_fit_fails_and_the_next_one_is_answered(model: CheckpointModel) -> None:
    with pytest.raises(EnvironmentUnavailable, match="does not fit into the model's context of 64 tokens"):
        await model.complete(said("w1 " * 70))
    assert (await model.complete(said("w1"), max_tokens=1)).completion_tokens <= 1


async def test_a_question_that_does_not_fit_fails_alone(model: CheckpointModel) -> None:
    alone = await model.complete(said("w4"), max_tokens=5)
    long, short = await asyncio.gather(
        model.complete(said("w1 " * 70), max_tokens=5), model.complete(said("w4"), max_tokens=5), return_exceptions=True
    )
    assert isinstance(long, EnvironmentUnavailable)
    assert short == alone


async def test_a_greedy_question_is_answered_the_same_beside_a_sampled_one(model: CheckpointModel) -> None:
    alone = await model.complete(said("w4"), max_tokens=12)
    beside, _ = await asyncio.gather(
        model.complete(said("w4"), max_tokens=12),
        model.complete(said("w5 w6 w7"), max_tokens=3, temperature=1.5, seed=1),
    )
    assert whole(beside) == whole(alone)
    assert beside.probabilities == pytest.approx(alone.probabilities, abs=1e-3)


async def test_a_model_that_keeps_no_keys_and_values_is_refused_with_its_name(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "mamba")
    MambaForCausalLM(
        MambaConfig(vocab_size=len(WORDS), hidden_size=32, num_hidden_layers=1, state_size=4, eos_token_id=1)
    ).save_pretrained(tmp_path / "mamba")
    mamba = load(str(tmp_path / "mamba"))
    with pytest.raises(EnvironmentUnavailable, match="MambaForCausalLM does not cache keys and values"):
        await mamba.complete(said("w1"), max_tokens=3)
    await mamba.close()


async def test_a_cancelled_question_does_not_harm_the_others(model: CheckpointModel) -> None:
    gone = asyncio.create_task(model.complete(said("w1"), max_tokens=5))
    stays = asyncio.create_task(model.complete(said("w2"), max_tokens=5))
    await asyncio.sleep(0)
    gone.cancel()
    assert (await stays).completion_tokens > 0


async def test_rubbish_of_an_untrained_checkpoint_raises_prediction_error(folder: Path) -> None:
    from dreamgym.dream.model import Query
    from dreamgym.environment import EnvironmentSpec
    from dreamgym.state import State
    from dreamgym.types import Task

    experience = load_model(str(folder))
    spec = EnvironmentSpec(name="e", tools_list=({"tools": [{"name": "act"}]},))
    asked = Query(
        spec=spec,
        task=Task(id="t", env="e", instruction="w1"),
        history=(),
        state=State.of("w1"),
        action=ToolCall(name="act"),
        demonstrations=(),
    )
    with pytest.raises(PredictionError):
        await experience.predict(asked)
    await experience.close()


def test_a_folder_without_a_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no config\.json"):
        load(str(tmp_path))


async def test_a_fitted_model_is_stopped_at_twice_the_length_of_the_longest_answer_that_it_learned(
    folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path / "fitted")
    fitting = Fitting(
        env="lamps",
        demonstrations=0,
        base="tiny",
        tokenizer=tokenizer_digest(folder),
        seed=0,
        rows=1,
        longest_answer=3,
        steps=1,
        learned=(),
        versions={},
    )
    (tmp_path / "fitted" / FILE).write_text(fitting.model_dump_json())
    loaded = load(str(tmp_path / "fitted"))
    answers = [await loaded.complete(said(text), max_tokens=40) for text in QUESTIONS]
    await loaded.close()
    assert max(answer.completion_tokens for answer in answers) == 6
    assert {answer.finish_reason for answer in answers if answer.completion_tokens == 6} == {"length"}
