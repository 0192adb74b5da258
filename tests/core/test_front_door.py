"""Names and cost of `import dreamgym`."""

import subprocess
import sys

import dreamgym
from dreamgym import runs


def test_every_public_name_can_be_imported() -> None:
    assert all(getattr(dreamgym, name) is not None for name in dreamgym.__all__)
    assert dir(dreamgym) == sorted(dreamgym.__all__)
    assert runs.__doc__


def test_importing_dreamgym_imports_no_heavy_package() -> None:
    heavy = {"torch", "trl", "transformers", "litellm", "langgraph", "mcp", "openai", "numpy", "psycopg", "starlette"}
    code = "import sys, dreamgym; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.isdisjoint(done.stdout.split())
