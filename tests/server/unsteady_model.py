"""A language model that never answers the same twice, not even in another process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from dreamgym.llm import Completion, Message


class UnsteadyModel:
    """Says who it is and how often it was asked."""

    name = "unsteady"

    def __init__(self, given: str) -> None:
        self._asked = 0

    async def complete(self, messages: Sequence[Message], **options: object) -> Completion:
        """One step, in the form that is asked for."""
        self._asked += 1
        answer = {
            "reasoning": "",
            "observation": f"answer {self._asked} of {os.getpid()}",
            "state": None,
            "error": False,
            "terminated": False,
            "success": False,
        }
        return Completion(text=json.dumps(answer))

    async def close(self) -> None:
        """Nothing to release."""
