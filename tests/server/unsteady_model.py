"""A language model that never gives the same answer twice, not even in another process."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence

from dreamgym.llm import Completion, Message


class UnsteadyModel:
    """Answers with its process id and the number of its calls so far."""

    name = "unsteady"

    def __init__(self, given: str) -> None:
        self._asked = 0

    async def complete(self, messages: Sequence[Message], **options: object) -> Completion:
        """Return the prediction of a step as JSON."""
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
