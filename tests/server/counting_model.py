"""A language model for servers in their own processes. It counts, has its process id in its name, and can wait.

`--model counting:` answers at once. `--model counting:HOST:PORT` first asks at that address and waits for a reply.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence

from dreamgym.llm import Completion, Message
from dreamgym.types import JsonObject


class CountingModel:
    """Adds `n` to the count that the state shows."""

    def __init__(self, gate: str) -> None:
        self._gate = gate
        self.name = f"counting-{os.getpid()}"

    async def complete(
        self, messages: Sequence[Message], *, schema: JsonObject | None = None, **options: object
    ) -> Completion:
        """Return the prediction of a step as JSON. As a judge, never accept a success."""
        question = messages[-1].content
        if "You check" in messages[0].content:
            return Completion(text=json.dumps({"reasoning": "", "accomplished": False}))
        state, action = (json.loads(_between(question, tag)) for tag in ("state", "action"))
        await self._pass(state)
        count = int(state.split()[-1]) + action["arguments"]["n"]
        answer = {
            "reasoning": "",
            "observation": f"count {count}",
            "state": None,
            "error": False,
            "terminated": False,
            "success": False,
        }
        return Completion(text=json.dumps(answer))

    async def _pass(self, state: str) -> None:
        if self._gate:
            host, _, port = self._gate.rpartition(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"{os.getpid()} {state}\n".encode())
            await reader.readline()
            writer.close()

    async def close(self) -> None:
        """Nothing to release."""


def _between(text: str, tag: str) -> str:
    found = re.search(rf"<{tag}>\n(.*)\n</{tag}>", text)
    assert found is not None, text
    return found[1]
