"""The litellm backend, in a process of its own: what it imports when, and how a failure reads."""

import subprocess
import sys
from importlib.util import find_spec

import pytest

from dreamgym.dream.load import load_llm
from dreamgym.errors import MissingPackage

INSTALLED = find_spec("litellm") is not None

SCRIPT = """
import asyncio, os, sys
from dreamgym.llm import Message
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.dream.load import load_llm
os.environ["ANTHROPIC_API_KEY"] = "sk-very-secret"
model = load_llm("nobody/nothing")
assert model.name == "nobody/nothing"
assert "litellm" not in sys.modules
async def main():
    try:
        await model.complete([Message(role="user", content="hi")])
    except EnvironmentUnavailable as error:
        print(error)
asyncio.run(main())
assert os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] == "True"
"""


@pytest.mark.skipif(not INSTALLED, reason="litellm is not installed: pip install dreamgym[litellm]")
def test_an_unknown_provider_is_unavailable_and_litellm_is_imported_only_when_asked() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1].startswith("nobody/nothing failed: BadRequestError")


@pytest.mark.skipif(INSTALLED, reason="litellm is installed")
def test_without_litellm_its_models_name_the_extra_that_brings_it() -> None:
    with pytest.raises(MissingPackage, match=r"pip install -c constraints.txt '\.\[litellm\]'"):
        load_llm("anthropic/some-model")
