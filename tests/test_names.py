"""One name per concept: no public class name is defined twice."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("dreamgym", "server", "client", "integrations")


def defined() -> dict[str, list[str]]:
    """Modules by the public classes that they define."""
    found: dict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(str(file.relative_to(ROOT)))
    return found


def test_no_public_class_name_is_defined_twice() -> None:
    assert {name: modules for name, modules in defined().items() if len(modules) > 1} == {}
