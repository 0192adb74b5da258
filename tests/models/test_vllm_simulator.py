"""The experience model on its own vLLM server, which runs on CPUs and is addressed like any endpoint."""

import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm_server import NEEDS_VLLM, counted, vllm_server

from dreamgym import EnvironmentSpec, Task, ToolCall
from dreamgym.dream.environment import DreamEnvironment
from dreamgym.replay.postgres import Store
from dreamgym.runs.opening import open_worlds
from dreamgym.types import JsonObject, Provenance, Tier

pytestmark = [NEEDS_VLLM, pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.anyio]

TOOL: JsonObject = {
    "name": "act",
    "description": "Does what the command says.",
    "inputSchema": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}
TASK = Task(id="hall-0", env="hall", instruction="Find the key.", initial_state="You are in the hall.")
SPEC = EnvironmentSpec(name="hall", tools_list=({"tools": [TOOL]},), description="A house.", max_steps=4, tasks=(TASK,))


def write_model(folder: Path) -> None:
    """Write a checkpoint that prefers a quotation mark, then the other marks of JSON, whatever it reads.

    Without a schema it writes only quotation marks. Under a JSON schema it writes the shortest answer.
    """
    import torch
    from dreamgym_integrations.trainers.experience.rows import Example
    from dreamgym_integrations.trainers.experience.tiny import create_tiny_model
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    spoken = Example(messages=(), answer=string.printable)
    create_tiny_model([spoken], folder, max_tokens=8192, seed=0)  # for its tokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=64,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.model.norm.weight.fill_(1.0)
        for likely, marks in enumerate([["t"], ["f"], [",", ":", "{", "}"], ['"']], start=1):
            for mark in marks:
                model.lm_head.weight[tokenizer.convert_tokens_to_ids(mark)] = likely / 64
    model.save_pretrained(folder)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    scratch = tmp_path_factory.mktemp("vllm")
    write_model(scratch / "model")
    with vllm_server(scratch / "model", scratch, "--enable-prompt-tokens-details") as address:
        yield address


async def test_an_experience_model_on_vllm_answers_under_the_schema_and_caches_what_episodes_share(
    url: str, store: Store
) -> None:
    hits = [counted(url, "prefix_cache_hits")]
    steps: list[Provenance] = []
    async with open_worlds(SPEC, model=f"{url}/v1 without cache", store=store) as worlds:
        for episode in ("one", "two"):
            environment = worlds.create(episode)
            assert isinstance(environment, DreamEnvironment)
            await environment.reset(TASK, seed=len(hits))
            for room in ("kitchen", "cellar"):
                result = await environment.step(ToolCall(name="act", arguments={"command": f"go to the {room}"}))
                assert (result.observation, result.is_error, result.terminated) == ("", False, False)
                assert environment.provenance is not None
                steps.append(environment.provenance)
            hits.append(counted(url, "prefix_cache_hits"))
    assert {step.tier for step in steps} == {Tier.MODEL}
    assert [step.tier for step in steps if step.prompt_tokens == 0] == []
    assert hits[0] < hits[1] < hits[2], "the second step shares the rules, the second episode the task too"
    assert steps[-1].cached_tokens > 0, "and the provenance says what was cached"
    assert counted(url, "prefix_cache_queries") > hits[-1]
