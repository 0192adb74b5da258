"""The litellm backend, in a process of its own: what it imports when, and how a failure reads."""

import subprocess
import sys

SCRIPT = """
import asyncio, os, sys
from dreamgym.llm import Message
from dreamgym.errors import EnvironmentUnavailable
from dreamgym.experience.select import load_llm
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


def test_an_unknown_provider_is_unavailable_and_litellm_is_imported_only_when_asked() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert done.stdout.strip().splitlines()[-1].startswith("nobody/nothing failed: BadRequestError")
