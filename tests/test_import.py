"""Importing the core is cheap and brings nothing heavy."""

import subprocess
import sys

HEAVY = ["mcp", "torch", "trl", "litellm", "langgraph", "langchain", "openai", "transformers", "psycopg"]


def test_importing_dreamgym_loads_none_of_the_heavy_packages() -> None:
    script = f"import dreamgym, sys; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"
