"""Every figure in the README and the docs is on a page of docs/results, which names its commit."""

import re
from pathlib import Path

import pytest

from dreamgym.runs.experiment.table import Published, report

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = {page.name: page.read_text(encoding="utf-8") for page in RESULTS.glob("*.md")}
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FIGURE = re.compile(r"(?<![\w.])(?!95 %)[-+]?\d[\d,.]* ?(?:%|points|ms|times the|hours)|\[[-+]?[\d.]+, [-+]?[\d.]+\]")
"""A measured figure, but not `95 %`, which is the level of intervals."""


def lines_of(document: Path) -> list[str]:
    """The lines outside blocks of code, which contain commands and recorded episodes."""
    return re.sub(r"^```.*?^```$", "", document.read_text(encoding="utf-8"), flags=re.S | re.M).splitlines()


def pages_linked_from(document: Path) -> str:
    return "\n".join(PAGES[name] for name in re.findall(r"results/([\w-]+\.md)", "\n".join(lines_of(document))))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_row_of_a_table_with_a_figure_is_a_row_of_a_results_page(document: Path) -> None:
    rows = {line for line in lines_of(document) if line.startswith("|") and FIGURE.search(line)}
    assert rows <= {line for page in PAGES.values() for line in page.splitlines()}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_a_figure_in_a_sentence_stands_on_a_results_page_that_the_document_links(document: Path) -> None:
    told = re.sub(r"[*]", "", pages_linked_from(document))
    for line in lines_of(document):
        if not line.startswith("|"):
            for figure in FIGURE.findall(re.sub(r"[*]", "", line)):
                assert re.search(rf"(?<![\d.]){re.escape(figure.removesuffix(' points'))}", told), line


@pytest.mark.parametrize("name", sorted(PAGES))
def test_a_results_page_names_its_commit(name: str) -> None:
    assert re.search(r"(?i)\bat commit [0-9a-f]{7}", PAGES[name])


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.json")), ids=lambda file: file.stem)
def test_the_page_of_an_experiment_is_what_its_results_give(file: Path) -> None:
    published = Published.model_validate_json(file.read_text(encoding="utf-8"))
    assert PAGES[f"{file.stem}.md"] == report(published)
