"""Importing the core is cheap and brings nothing heavy."""

import subprocess
import sys

HEAVY = ["mcp", "torch", "trl", "litellm", "langgraph", "langchain", "openai", "transformers", "psycopg"]


def test_importing_dreamgym_loads_none_of_the_heavy_packages() -> None:
    script = f"import dreamgym, sys; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


def test_importing_dreamgym_needs_pydantic_platformdirs_and_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import dreamgym; "
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(name for name in names - sys.stdlib_module_names - {'dreamgym'} if name[0] != '_'))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    of_pydantic = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"}
    assert set(loaded.split()) == {*of_pydantic, "platformdirs"}
