"""Importing the core is cheap and brings nothing heavy."""

import subprocess
import sys

import pytest

HEAVY = ["mcp", "torch", "trl", "litellm", "langgraph", "langchain", "openai", "transformers", "psycopg"]


def test_importing_dreamgym_loads_none_of_the_heavy_packages() -> None:
    script = f"import dreamgym, sys; print([name for name in {HEAVY} if name in sys.modules])"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "[]"


@pytest.mark.parametrize(
    ("imported", "needed"),
    [
        ("import dreamgym", set()),
        (
            "from dreamgym import EnvironmentSpec, Trajectory",
            {
                *("annotated_types", "pydantic", "pydantic_core", "typing_extensions", "typing_inspection"),
                "platformdirs",
            },
        ),
    ],
)
def test_importing_dreamgym_needs_the_standard_library_and_its_types_need_pydantic(
    imported: str, needed: set[str]
) -> None:
    script = (
        f"import sys; before = set(sys.modules); {imported}; "
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "print(*sorted(name for name in names - sys.stdlib_module_names - {'dreamgym'} if name[0] != '_'))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert set(loaded.split()) == needed


def test_the_modules_of_types_and_errors_are_there_without_an_import_of_their_own() -> None:
    script = "import dreamgym; dreamgym.errors.InvalidInput, dreamgym.types.Task, dreamgym.environment.load_spec"
    subprocess.run([sys.executable, "-c", script], check=True)
