"""Importers for trajectories that people already have in other formats; one file per format.

    found = read_file(Path("chats.jsonl"))
    report = ImportReport()
    report.add(found, spec)

A new format is one file with an `Importer` and one entry in FORMATS.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from dreamgym.errors import UnknownName
from dreamgym.recordings.importers.agentgym import AGENTGYM
from dreamgym.recordings.importers.assembly import ImportReport
from dreamgym.recordings.importers.base import (
    AgentMessage,
    Command,
    Document,
    Found,
    ImportedEpisode,
    ImportedStep,
    Importer,
    Skipped,
    keys_of,
)
from dreamgym.recordings.importers.dreamgym_jsonl import DREAMGYM
from dreamgym.recordings.importers.files import read_documents
from dreamgym.recordings.importers.langchain import LANGCHAIN
from dreamgym.recordings.importers.langfuse import LANGFUSE
from dreamgym.recordings.importers.langsmith import LANGSMITH
from dreamgym.recordings.importers.openai_chat import OPENAI
from dreamgym.recordings.importers.openai_responses import OPENAI_RESPONSES
from dreamgym.recordings.importers.otel import OTEL
from dreamgym.recordings.importers.steps import STEPS
from dreamgym.recordings.importers.tau_bench import TAU_BENCH

FORMATS: dict[str, Importer] = {
    importer.name: importer
    for importer in (
        DREAMGYM,
        TAU_BENCH,
        OTEL,
        LANGSMITH,
        LANGFUSE,
        STEPS,
        OPENAI_RESPONSES,
        LANGCHAIN,
        AGENTGYM,
        OPENAI,
    )
}
"""Importers by name, in the order in which they are tried: the more specific ones first."""

__all__ = [
    "FORMATS",
    "AgentMessage",
    "Command",
    "Document",
    "Found",
    "ImportReport",
    "ImportedEpisode",
    "ImportedStep",
    "Importer",
    "Skipped",
    "importer_named",
    "read_file",
]


def importer_named(name: str) -> Importer:
    """The importer of a format. Raises UnknownName, which lists the formats."""
    if name not in FORMATS:
        raise UnknownName("format", name, FORMATS)
    return FORMATS[name]


def read_file(path: Path, importer: Importer | None = None) -> Iterator[tuple[str, Found]]:
    """Everything in a file, each item with the name of its format.

    Without `importer`, the format of each document is detected.

    Raises:
        InvalidInput: the file cannot be read at all.
    """
    documents: dict[str, list[Document]] = {}
    read = list(read_documents(path))
    if not read:
        yield "", Skipped(path.name, "contains no JSON value: it is empty, or all of it is blank")
    for item in read:
        chosen = importer or detect(item) if isinstance(item, Document) else None
        if chosen is None or isinstance(item, Skipped):
            yield "", _unknown(item)
        else:
            documents.setdefault(chosen.name, []).append(item)
    for name, items in documents.items():
        yield from ((name, found) for found in FORMATS[name].read(items))


def detect(document: Document) -> Importer | None:
    """The importer for a document's format; None if the format is unknown."""
    return next((importer for importer in FORMATS.values() if importer.matches(document.value)), None)


def _unknown(item: Document | Skipped) -> Skipped:
    if isinstance(item, Skipped):
        return item
    value = item.value
    seen = f"an object with {keys_of(value)}" if isinstance(value, dict) else type(value).__name__
    return Skipped(item.where, f"has an unknown format: {seen}; known formats: {', '.join(FORMATS)}")
