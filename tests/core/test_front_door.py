"""Names and cost of `import dreamgym`."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import dreamgym
from dreamgym import runs
from dreamgym.errors import InvalidInput

NOWHERE = Path("nowhere")


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(dreamgym, name) is not None for name in dreamgym.__all__)
    assert dir(dreamgym) == sorted(dreamgym.__all__)
    assert runs.__doc__


@pytest.mark.parametrize(
    ("called", "reason"),
    [
        (lambda: asyncio.run(dreamgym.evaluate("coin", NOWHERE, episodes=0)), "episodes: expected 1 or more, got 0"),
        (lambda: asyncio.run(dreamgym.collect("coin", "expert", 0, out=NOWHERE)), "episodes: expected 1 or more"),
        (lambda: asyncio.run(dreamgym.collect("coin", "expert", 2, workers=0)), "workers: expected 1 or more, got 0"),
        (lambda: dreamgym.compare(NOWHERE, seeds=0), "seeds: expected 1 or more, got 0"),
        (lambda: dreamgym.compare(NOWHERE, parallel=0), "parallel: expected 1 or more, got 0"),
    ],
)
def test_a_number_of_which_there_must_be_one_is_refused_below_1(called: Callable[[], object], reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        called()


def test_importing_dreamgym_imports_no_heavy_package() -> None:
    heavy = {"torch", "trl", "transformers", "litellm", "langgraph", "mcp", "openai", "numpy", "psycopg", "starlette"}
    code = "import sys, dreamgym; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())
