"""Count how large the code is and how it is divided, without running it.

    python benchmarks/house.py . ../older-checkout

Counts the four packages of each checkout: files, functions and their lengths, private helpers and how many of them are
used once in their file, comments, docstrings, and public class names that two modules define.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from pathlib import Path
from statistics import median, quantiles

PACKAGES = (
    "dreamgym",
    "server/dreamgym_server",
    "client/dreamgym_client",
    "integrations/dreamgym_integrations",
)
ROWS = (
    "files",
    "lines",
    "median / 90 % file",
    "functions",
    "median / 90 % / longest function",
    "functions per 1,000 lines",
    "private functions per 1,000 lines",
    "of these used once in their file",
    "comments",
    "docstrings",
    "public class names defined twice",
)


def counted(root: Path) -> list[str]:
    """The figures of one checkout, in the order of ROWS."""
    texts = [file.read_text(encoding="utf-8") for part in PACKAGES for file in sorted((root / part).rglob("*.py"))]
    lengths, private, once, comments, docstrings = list[int](), 0, 0, 0, 0
    classes: Counter[str] = Counter()
    for text in texts:
        names = Counter(
            token.string
            for token in tokenize.generate_tokens(io.StringIO(text).readline)
            if token.type == tokenize.NAME
        )
        comments += sum(
            token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline)
        )
        tree = ast.parse(text)
        classes.update(
            {node.name for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")}
        )
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private += 1
                    once += names[node.name] == 2  # its definition and one use
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                docstrings += (node.end_lineno or node.lineno) - node.lineno + 1
    files = [len(text.splitlines()) for text in texts]
    lines = sum(files)
    return [
        f"{len(files):,}",
        f"{lines:,}",
        f"{median(files):.0f} / {quantiles(files, n=10)[-1]:.0f}",
        f"{len(lengths):,}",
        f"{median(lengths):.0f} / {quantiles(lengths, n=10)[-1]:.0f} / {max(lengths)}",
        f"{1000 * len(lengths) / lines:.0f}",
        f"{1000 * private / lines:.0f}",
        f"{once / max(1, private):.0%}".replace("%", " %"),
        f"{comments / lines:.1%}".replace("%", " %"),
        f"{docstrings / lines:.0%}".replace("%", " %"),
        str(sum(count > 1 for count in classes.values())),
    ]


def main(roots: list[str]) -> None:
    """Print a table with one column per checkout."""
    columns = [counted(Path(root)) for root in roots]
    print(f"| | {' | '.join(roots)} |")
    print("|---" * (1 + len(roots)) + "|")
    for name, *cells in zip(ROWS, *columns, strict=True):
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(sys.argv[1:] or ["."])
