"""What a run spends on language models: limited by its budget, and said when it ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dreamgym.budget import Ledger, open_ledger
from dreamgym.runs.console import say

FILE = "spent.jsonl"
"""What each command of a run folder has spent, a line each."""


@contextmanager
def spending(budget: str | None, folder: Path | None = None) -> Iterator[Ledger]:
    """The ledger of a run; at the end, however it ends, what was spent is said.

    Args:
        budget: `5.00` dollars, `200k tokens` or `300 calls`; None: nothing is limited.
        folder: of the run, where a line of `spent.jsonl` keeps it; None: it is not kept.

    Raises:
        InvalidInput: the budget means nothing.
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
