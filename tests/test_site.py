"""The documentation as a site, and its pages that are generated from the code."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def generator() -> ModuleType:
    described = spec_from_file_location("generate_reference", DOCS / "generate_reference.py")
    assert described is not None
    assert described.loader is not None
    module = module_from_spec(described)
    described.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["cli.md", "experiment.md", "python.md"])
def test_the_reference_is_what_the_code_gives(name: str) -> None:
    written = (DOCS / "reference" / name).read_text(encoding="utf-8")
    assert written == generator().PAGES[name](), "run: python docs/generate_reference.py"


def test_the_reference_of_python_says_what_is_awaited_and_what_is_opened() -> None:
    page = generator().PAGES["python.md"]()
    for call in ("await collect(", "async with open_worlds(", "check(", "- `await step(action)`", "- `resume(task"):
        assert f"\n{call}" in page


def test_the_site_is_built_without_a_broken_link_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded = [part for part in text.split("<") if part.startswith(("script", "img", "link"))]
        assert not [part for part in loaded if 'src="http' in part or ("stylesheet" in part and 'href="http' in part)]


def test_every_page_is_in_the_sidebar() -> None:
    pages = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")}
    named = set((DOCS / "contents.rst").read_text(encoding="utf-8").split())
    assert {page for page in pages if not page.startswith("results/")} <= named
