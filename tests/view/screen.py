"""Helpers that open, read and operate a page of `dreamgym view` in a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from dreamgym_server.app import build_view
from dreamgym_server.running import running
from dreamgym_server.view.answers import Answers
from dreamgym_server.view.folders import RunFolder
from dreamgym_server.view.hand import Hand
from dreamgym_server.view.library import Library

from dreamgym.types import Provenance, Source, StepResult, StopReason, Task, Tier, ToolCall, Trajectory, Transition

TOKEN = "the-token-of-this-page"
WITHIN_MS = 60_000
"""Limit of each wait. A browser starts slowly on a busy machine."""


class Screen:
    """One browser tab and the errors that occurred in it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._heard)
        page.set_default_timeout(WITHIN_MS)

    def _heard(self, message: Any) -> None:
        # in some tests, the server is meant to refuse requests or not to answer
        if message.type in {"error", "warning"} and "Failed to load resource" not in message.text:
            self.faults.append(message.text)

    async def open(self, address: str, hash_: str = "") -> None:
        """Open the page; then one of its views."""
        await self.page.goto(f"{address}#token={TOKEN}")
        await self.page.wait_for_selector("h1")
        if hash_:
            await self.go(hash_)

    async def go(self, hash_: str) -> None:
        await self.page.evaluate("hash => { location.hash = hash; }", hash_)

    async def sees(self, text: str) -> None:
        """Wait until a text is shown."""
        await self.page.get_by_text(text).first.wait_for()

    async def text(self) -> str:
        return str(await self.page.inner_text("main"))


@asynccontextmanager
async def served(library: Library, port: int = 0, hand: Hand | None = None) -> AsyncIterator[str]:
    """Serve a page over a library. Yields its address."""
    answers = Answers(library, hand)
    async with running(build_view(answers, TOKEN), port=port) as url:
        yield f"{url}/view/"


def run_folder(folder: Path, *episodes: Trajectory, name: str = "episodes.jsonl") -> Library:
    """Write these episodes into a run folder."""
    (folder / name).write_text("".join(one.model_dump_json() + "\n" for one in episodes), encoding="utf-8")
    return Library(folder=RunFolder(folder))


def episode(name: str, answers: list[str], *, dreamed: bool = False, instruction: str = "Find the coin.") -> Trajectory:
    """Return an episode that calls `go` and gets these answers. The last one ends it with a reward."""
    steps = tuple(
        Transition.of(
            answers[number - 1] if number else "start",
            ToolCall(name="go", arguments={"to": f"place {number + 1}"}),
            StepResult(
                observation=answer,
                reward=float(number == len(answers) - 1),
                terminated=number == len(answers) - 1,
            ),
            Provenance(tier=Tier.MODEL, model="m", confidence=0.5) if dreamed else None,
        )
        for number, answer in enumerate(answers)
    )
    return Trajectory(
        id=name,
        task=Task(id="t1", env="house", instruction=instruction, initial_state="start"),
        transitions=steps,
        source=Source.SYNTHETIC if dreamed else Source.REAL,
        stop_reason=StopReason.TERMINATED,
    )
