"""What a run spends on language models: limited by its budget, and said when it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dreamgym.budget import Ledger, open_ledger
from dreamgym.runs.console import say


@contextmanager
def spending(budget: str | None) -> Iterator[Ledger]:
    """The ledger of a run; at the end, however it ends, what was spent is said.

    Args:
        budget: `5.00` dollars, `200k tokens` or `300 calls`; None: nothing is limited.

    Raises:
        InvalidInput: the budget means nothing.
    """
    with open_ledger(budget) as ledger:
        try:
            yield ledger
        finally:
            if (spent := ledger.spent).calls and ledger.is_own:
                limit = ledger.limit
                say(f"spent: {spent}" + ("" if limit is None else f"; the budget was {limit}"))
