"""`office-word-mcp-server`: one Word document, a harbour report. Refusals come as ordinary text."""

from __future__ import annotations

import subprocess
from pathlib import Path

from public_server import Kind, Plan, Server, Session, call
from pydantic import JsonValue

from dreamgym.types import ToolCall

NAME = "word"
FILE = "report.docx"
"""The server works in the folder of its world."""
PARTS = (  # level of a heading, 0 for a paragraph; text
    (1, "Harbour report"),
    (0, "The harbour was open on 340 days."),
    (2, "Repairs"),
    (0, "The pier lamp is broken since March."),
    (0, "Two planks were replaced."),
    (2, "Outlook"),
    (0, "A new crane arrives in June."),
)
MAKE = """
import docx, sys
document = docx.Document()
document.core_properties.author = "Ada"
for level, text in PARTS:
    document.add_heading(text, level) if level else document.add_paragraph(text)
document.save(sys.argv[1])
"""


def prepare(place: Path, installed: Path) -> None:
    """Make the report with the package that the server itself uses."""
    python = str(installed / NAME / "bin/python")
    subprocess.run([python, "-c", f"PARTS = {PARTS!r}{MAKE}", str(place / FILE)], check=True)


def word(tool: str, **arguments: JsonValue) -> ToolCall:
    return call(tool, filename=FILE, **arguments)


def paragraph(index: int) -> ToolCall:
    return word("get_paragraph_text_from_document", paragraph_index=index)


def find(text: str) -> ToolCall:
    return word("find_text_in_document", text_to_find=text)


def replace(old: str, new: str) -> ToolCall:
    return word("search_and_replace", find_text=old, replace_text=new)


TEXT = word("get_document_text")
OUTLINE = word("get_document_outline")

PLANS = (
    Plan(
        "days-open",
        "On how many days was the harbour open? It is in report.docx.",
        (call("list_available_documents", directory="."), TEXT),
        r"on (\d+) days",
        "340",
    ),
    Plan(
        "which-report",
        "What arrives in June, by the harbour report?",
        (call("get_document_text", filename="harbour.docx"), TEXT),
        r"A new (\w+) arrives",
        "crane",
    ),
    Plan(
        "lamp-is-fixed",
        "The lamp is fixed: write repaired instead of broken.",
        (replace("brocken", "repaired"), replace("broken", "repaired"), paragraph(3)),
        r"lamp is (\w+) since",
        "repaired",
    ),
    Plan(
        "add-summary",
        "Add a closing paragraph: Thanks to the crew.",
        (word("add_paragraph", text="Thanks to the crew."), TEXT),
        r"(Thanks to the crew)",
        "Thanks to the crew",
    ),
    Plan("outline", "Which headings does the report have?", (OUTLINE,), r'"text": "(Outlook)"', "Outlook"),
    Plan(
        "new-chapter",
        "Add a chapter Costs, level 2, with one paragraph: Paint cost 300.",
        (
            word("add_heading", text="Costs", level=2),
            word("add_paragraph", text="Paint cost 300."),
            OUTLINE,
        ),
        r'"text": "(Costs)"',
        "Costs",
    ),
    Plan(
        "no-crane",
        "The crane is cancelled. Take out that paragraph.",
        (TEXT, word("delete_paragraph", paragraph_index=12), word("delete_paragraph", paragraph_index=6), TEXT),
        r"(Outlook)",
        "Outlook",
    ),
    Plan(
        "where-are-planks",
        "In which paragraph are the planks?",
        (find("planks"), paragraph(4)),
        r'"paragraph_index": (\d+)',
        "4",
    ),
    Plan(
        "table-of-ships",
        "Add a table of ships: name and tons, and the Tern with 12.",
        (word("add_table", rows=2, cols=2, data=[["name", "tons"], ["Tern", "12"]]), TEXT),
        r"(Tern)",
        "Tern",
    ),
    Plan(
        "author",
        "Who wrote the report?",
        (word("get_document_info"), call("get_document_info", file=FILE)),
        r'"author": "(\w+)"',
        "Ada",
    ),
)

SESSIONS = (
    Session(
        "add-a-storm",
        Kind.READ_AFTER_WRITE,
        (word("add_paragraph", text="A storm came in May."), TEXT, paragraph(7)),
    ),
    Session("june-is-july", Kind.READ_AFTER_WRITE, (replace("June", "July"), paragraph(6), TEXT)),
    Session(
        "chapter-visitors",
        Kind.READ_AFTER_WRITE,
        (word("add_heading", text="Visitors", level=2), OUTLINE, find("Visitors")),
    ),
    Session(
        "no-planks",
        Kind.READ_AFTER_WRITE,
        (word("delete_paragraph", paragraph_index=4), TEXT, paragraph(4)),
    ),
    Session(
        "three-planks",
        Kind.READ_AFTER_WRITE,
        (replace("Two planks", "Three planks"), find("Three"), paragraph(4)),
    ),
    Session(
        "new-document",
        Kind.READ_AFTER_WRITE,
        (
            call("create_document", filename="crew.docx", title="Crew", author="Dora"),
            call("add_paragraph", filename="crew.docx", text="Ada is the pilot."),
            call("get_document_text", filename="crew.docx"),
        ),
    ),
    Session(
        "copy",
        Kind.READ_AFTER_WRITE,
        (
            call("copy_document", source_filename=FILE, destination_filename="copy.docx"),
            call("get_document_text", filename="copy.docx"),
        ),
    ),
    Session(
        "table-of-lamps",
        Kind.READ_AFTER_WRITE,
        (word("add_table", rows=2, cols=2, data=[["lamp", "watts"], ["pier", "40"]]), TEXT),
    ),
    Session(
        "two-more-paragraphs",
        Kind.READ_AFTER_WRITE,
        (
            word("add_paragraph", text="The ferry runs hourly."),
            word("add_paragraph", text="It is never full."),
            paragraph(8),
            find("ferry"),
        ),
    ),
    Session("text-three-times", Kind.REPEATED_READS, (TEXT, TEXT, TEXT)),
    Session(
        "reads-around-writes",
        Kind.REPEATED_READS,
        (
            paragraph(1),
            word("add_paragraph", text="Signed at the pier."),
            paragraph(1),
            replace("crane", "winch"),
            paragraph(1),
        ),
    ),
    Session("outline-twice", Kind.REPEATED_READS, (OUTLINE, find("lamp"), OUTLINE, find("lamp"))),
    Session(
        "other-questions",
        Kind.NEW_ARGUMENTS,
        (paragraph(0), paragraph(5), find("March"), find("harbour"), find("whale")),
    ),
    Session(
        "other-writes",
        Kind.NEW_ARGUMENTS,
        (
            replace("340", "341"),
            word("add_heading", text="Ferries", level=3),
            word("delete_paragraph", paragraph_index=2),
            word("add_page_break"),
        ),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            call("get_document_text", filename="missing.docx"),
            word("delete_paragraph", paragraph_index=99),
            paragraph(50),
            replace("walrus", "seal"),
            call("add_paragraph", filename="missing.docx", text="Lost"),
            word("add_table", rows=1),
        ),
    ),
)

SERVER = Server(
    name=NAME,
    package="PyPI office-word-mcp-server 1.1.11",
    command=lambda there: (str(there / "word/bin/word_mcp_server"),),
    prepare=prepare,
    plans=PLANS,
    sessions=SESSIONS,
    reads=frozenset(
        {
            "get_document_text",
            "get_document_outline",
            "get_document_info",
            "get_paragraph_text_from_document",
            "find_text_in_document",
            "list_available_documents",
        }
    ),
    refuses=r'Document \S+ does not exist|Invalid paragraph index|No occurrences of|\{\s*"error"',
)
