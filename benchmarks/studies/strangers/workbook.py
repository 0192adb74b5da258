"""`excel-mcp-server`: one workbook with a price list and a crew list."""

from __future__ import annotations

import subprocess
from pathlib import Path

from public_server import Kind, Plan, Server, Session, call, world
from pydantic import JsonValue

from dreamgym.types import ToolCall

NAME = "excel"
PATH = str(world(NAME) / "harbour.xlsx")
SHEETS = {
    "Prices": [["item", "price", "stock"], ["rope", 12, 40], ["buoy", 45, 3], ["lamp", 80, 0]],
    "Crew": [["name", "role"], ["Ada", "pilot"], ["Boris", "cook"]],
}
MAKE = """
import openpyxl, sys
book = openpyxl.Workbook()
book.remove(book.active)
for name, rows in SHEETS.items():
    sheet = book.create_sheet(name)
    for row in rows:
        sheet.append(row)
book.save(sys.argv[1])
"""


def prepare(place: Path, installed: Path) -> None:
    """Make the workbook with the package that the server itself uses."""
    python = str(installed / NAME / "bin/python")
    subprocess.run([python, "-c", f"SHEETS = {SHEETS!r}{MAKE}", str(place / "harbour.xlsx")], check=True)


def excel(tool: str, **arguments: JsonValue) -> ToolCall:
    return call(tool, path=PATH, **arguments)


def read(sheet: str, cells: str | None = None) -> ToolCall:
    return excel("read_range", sheet=sheet) if cells is None else excel("read_range", sheet=sheet, range=cells)


def write(sheet: str, at: str, *rows: list[JsonValue]) -> ToolCall:
    return excel("write_range", sheet=sheet, at=at, rows=list(rows))


BOOK = excel("describe_workbook")

PLANS = (
    Plan(
        "price-of-lamp",
        "What does a lamp cost? It is in the workbook.",
        (BOOK, read("Prices")),
        r'\["lamp",(\d+)',
        "80",
    ),
    Plan(
        "who-cooks",
        "Who is the cook?",
        (read("People"), BOOK, read("Crew")),
        r'\["(\w+)","cook"\]',
        "Boris",
    ),
    Plan(
        "raise-price-of-rope",
        "Rope costs 13.5 from today. Change it and read it back.",
        (read("Prices"), write("Prices", "B2", [13.5]), read("Prices", "A2:B2")),
        r'\["rope",([\d.]+)\]',
        "13.5",
    ),
    Plan(
        "new-crew-member",
        "Clara joins as sailmaker. Enter her.",
        (read("Crew"), write("Crew", "A4", ["Clara", "sailmaker"]), read("Crew")),
        r'\["(\w+)","sailmaker"\]',
        "Clara",
    ),
    Plan(
        "sheet-for-orders",
        "Make a sheet named Orders with the headings item and quantity.",
        (
            excel("create_sheet", new_name="Orders"),
            write("Orders", "A1", ["item", "quantity"]),
            read("Orders"),
            BOOK,
        ),
        r'"(quantity)"\]',
        "quantity",
    ),
    Plan(
        "find-buoy",
        "In which cell is the buoy?",
        (excel("find_cells", query="bouy"), excel("find_cells", query="buoy")),
        r'"(A\d+)":"buoy"',
        "A3",
    ),
    Plan(
        "value-of-stock",
        "What is all our rope worth? Let the sheet work it out in D2.",
        (read("Prices", "A1:C2"), write("Prices", "D2", ["=B2*C2"]), read("Prices", "D2")),
        r'"values":\[\[(\d+)\]\]',
        "480",
    ),
    Plan(
        "rename-sheet",
        "Rename the sheet Crew to People.",
        (
            excel("rename_sheet", sheet="crew list", new_name="People"),
            excel("rename_sheet", sheet="Crew", new_name="People"),
            BOOK,
        ),
        r'"name":"(People)"',
        "People",
    ),
    Plan(
        "no-more-lamps",
        "We sell no lamps any more. Empty that row.",
        (read("Prices"), excel("clear_range", sheet="Prices", range="A4:C4"), read("Prices")),
        r'"range":"(A1:C\d)"',
        "A1:C3",
    ),
    Plan(
        "rope-is-line",
        "Write line instead of rope wherever it stands.",
        (excel("replace_cells", query="rope", replacement="line"), excel("find_cells", query="line")),
        r'"(A\d+)":"line"',
        "A2",
    ),
)

SESSIONS = (
    Session(
        "price-of-buoy",
        Kind.READ_AFTER_WRITE,
        (write("Prices", "B3", [47.25]), read("Prices", "A3:B3"), read("Prices")),
    ),
    Session(
        "add-anchor",
        Kind.READ_AFTER_WRITE,
        (write("Prices", "A5", ["anchor", 150, 2]), read("Prices"), excel("find_cells", query="anchor")),
    ),
    Session(
        "add-two-people",
        Kind.READ_AFTER_WRITE,
        (write("Crew", "A4", ["Dora", "mate"], ["Emil", "boy"]), read("Crew"), read("Crew", "A5:B5")),
    ),
    Session(
        "sheet-for-tides",
        Kind.READ_AFTER_WRITE,
        (
            excel("create_sheet", new_name="Tides"),
            BOOK,
            write("Tides", "A1", ["day", "high"], ["Monday", 4.2]),
            read("Tides"),
        ),
    ),
    Session(
        "rename-prices",
        Kind.READ_AFTER_WRITE,
        (excel("rename_sheet", sheet="Prices", new_name="Price list"), BOOK, read("Price list", "A1:C2")),
    ),
    Session(
        "stock-of-lamp",
        Kind.READ_AFTER_WRITE,
        (write("Prices", "C4", [17]), read("Prices", "C4"), read("Prices", "A4:C4")),
    ),
    Session(
        "value-of-buoys",
        Kind.READ_AFTER_WRITE,
        (write("Prices", "E3", ["=B3*C3"]), read("Prices", "E3")),
    ),
    Session(
        "pilot-is-captain",
        Kind.READ_AFTER_WRITE,
        (
            excel("replace_cells", query="pilot", replacement="captain"),
            excel("find_cells", query="captain"),
            read("Crew"),
        ),
    ),
    Session(
        "boris-leaves",
        Kind.READ_AFTER_WRITE,
        (excel("clear_range", sheet="Crew", range="A3:B3"), read("Crew"), excel("find_cells", query="Boris")),
    ),
    Session("prices-three-times", Kind.REPEATED_READS, (read("Prices"), read("Prices"), read("Prices"))),
    Session(
        "reads-around-writes",
        Kind.REPEATED_READS,
        (
            read("Crew"),
            write("Prices", "B2", [14]),
            read("Crew"),
            excel("find_cells", query="lamp"),
            write("Crew", "A4", ["Goran", "guest"]),
            excel("find_cells", query="lamp"),
        ),
    ),
    Session("book-twice", Kind.REPEATED_READS, (BOOK, read("Prices", "A1:A4"), BOOK, read("Prices", "A1:A4"))),
    Session(
        "other-ranges",
        Kind.NEW_ARGUMENTS,
        (
            read("Prices", "B1:B4"),
            read("Crew", "A2"),
            excel("find_cells", query="Ada"),
            excel("describe_sheet", sheet="Crew"),
            read("Prices", "A2:C3"),
        ),
    ),
    Session(
        "other-writes",
        Kind.NEW_ARGUMENTS,
        (
            write("Crew", "C1", ["since"]),
            excel("create_sheet", new_name="Log"),
            excel("clear_range", sheet="Prices", range="C2:C4"),
            excel("rename_sheet", sheet="Log", new_name="Logbook"),
        ),
    ),
    Session(
        "refused",
        Kind.REFUSALS,
        (
            read("Boats"),
            read("Prices", "A1:"),
            excel("create_sheet", new_name="Crew"),
            excel("rename_sheet", sheet="Boats", new_name="Ships"),
            call("read_range", path="harbour.xlsx", sheet="Crew"),
            excel("write_range", sheet="Crew", at="A9"),
        ),
    ),
)

SERVER = Server(
    name=NAME,
    package="PyPI excel-mcp-server 2.2.2",
    command=lambda there: (str(there / "excel/bin/excel-mcp-server"), "stdio"),
    prepare=prepare,
    plans=PLANS,
    sessions=SESSIONS,
    reads=frozenset({"describe_workbook", "describe_sheet", "read_range", "find_cells"}),
)
