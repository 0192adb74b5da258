"""Each docstring can be read alone: it is about its own subject and does not continue the line above."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import dreamgym

ROOT = Path(dreamgym.__file__).parents[1]
PACKAGES = ("dreamgym", "server/dreamgym_server", "client/dreamgym_client", "integrations/dreamgym_integrations")
LEANS = re.compile(r"(Of|The same|As in|Whether it)\b")


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each string that stands alone as a statement: docstrings, and strings below a field."""
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_docstring_begins_with_words_that_lean_on_another_line() -> None:
    files = [file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))]
    assert len(files) > 200
    leaning = [
        f"{file.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for file in files
        for line, text in docstrings(ast.parse(file.read_text(encoding="utf-8")))
        if LEANS.match(text.lstrip())
    ]
    assert leaning == [], "begin with the subject itself"
