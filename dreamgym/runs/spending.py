"""Spending of a run on language models: it is limited by a budget and printed when the run ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dreamgym.budget import Ledger, open_ledger
from dreamgym.runs.console import say

FILE = "spent.jsonl"
"""File in a run folder with one line per command: its budget and what it spent."""


@contextmanager
def spending(budget: str | None, folder: Path | None = None) -> Iterator[Ledger]:
    """Open the ledger of a run. When the run ends, even with an error, print what was spent.

    Args:
        budget: `5.00` dollars, `200k tokens` or `300 calls`; None: nothing is limited.
        folder: run folder, in which a line of `spent.jsonl` keeps what was spent; None: it is not kept.

    Raises:
        InvalidInput: the budget is not an amount.
    """
    with open_ledger(budget) as ledger:
        try:
            yield ledger
        finally:
            if (spent := ledger.spent).calls and ledger.is_own:
                limit = ledger.limit
                if folder is not None:
                    kept = {"budget": None if limit is None else str(limit), **spent.model_dump()}
                    folder.mkdir(parents=True, exist_ok=True)
                    with (folder / FILE).open("a", encoding="utf-8") as file:
                        file.write(f"{json.dumps(kept)}\n")
                say(f"spent: {spent}" + ("" if limit is None else f"; the budget was {limit}"))
