"""The call path from the agent's door to the language model is short.

Frames are counted on the real stack, with the cache and over all asyncio tasks.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import dreamgym_client
import dreamgym_server
import pytest
from dreamgym_server.sources import DreamWorlds
from mcp import Client
from server_stage import Stage, counter_spec

import dreamgym
from dreamgym.dream.language_model import LanguageModel
from dreamgym.dream.questions import CachedLLM, MemoryPredictions
from dreamgym.llm import Message, ScriptedLLM

pytestmark = pytest.mark.anyio

PACKAGES = [Path(package.__file__ or "").parent for package in (dreamgym, dreamgym_server, dreamgym_client)]
MOST_FRAMES = 15
MOST_TASKS = 4
"""The request, the step and the model call. For an older revision, the SDK handles the message in one more task."""
MOST_FILES = 37
"""Two of these files time and count the parts of a call."""


def is_ours(code: CodeType) -> bool:
    return any(Path(code.co_filename).is_relative_to(package) for package in PACKAGES)


def awaiting(coroutine: Any) -> Iterator[CodeType]:
    """Yield the code of the coroutines in which a task waits, the outermost first."""
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "gi_code", None)
        if code is not None:
            yield code
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def our_frames(background: set[asyncio.Task[Any]]) -> list[list[str]]:
    """Return the names of our functions that a call is in now, one list for each task of the call.

    Background tasks are left out: they began before the call, so no call waits for them.
    """
    running: list[str] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_ours(frame.f_code):
            running.append(frame.f_code.co_name)
        frame = frame.f_back
    waiting = [
        [code.co_name for code in awaiting(task.get_coro()) if is_ours(code)]
        for task in asyncio.all_tasks() - background
        if task is not asyncio.current_task()
    ]
    return [running, *(names for names in waiting if names)]


class Watched:
    """A served dream that has answered one call, and the frames of the next call."""

    def __init__(self) -> None:
        self.client: Client | None = None
        self.background: set[asyncio.Task[Any]] = set()
        self.frames: list[list[str]] = []
        """Our frames in the last call, at the moment when the language model was asked."""

    def says(self, messages: Sequence[Message]) -> str:
        """Note the frames and return the language model's answer."""
        self.frames = our_frames(self.background)
        answer = {"reasoning": "", "observation": f"count {len(messages)}", "state": None}
        return json.dumps({**answer, "error": False, "terminated": False, "success": False})

    async def call(self, n: int) -> None:
        assert self.client is not None
        self.background = asyncio.all_tasks()
        assert not (await self.client.call_tool("add", {"n": n})).is_error


@pytest.fixture(params=["legacy", "2026-07-28"])
async def watched(request: pytest.FixtureRequest, stage: Stage) -> AsyncIterator[Watched]:
    watched = Watched()
    model = LanguageModel(CachedLLM(ScriptedLLM(watched.says), MemoryPredictions()))
    async with stage.serve(DreamWorlds(counter_spec(), model, stage.buffer)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode=request.param) as watched.client:
            await watched.call(1)
            yield watched


async def test_few_frames_of_ours_lie_between_the_door_and_the_language_model(watched: Watched) -> None:
    await watched.call(2)
    every = [name for names in watched.frames for name in names]
    for known in ("call", "_serve", "step", "predict", "complete"):
        assert known in every, f"a call must run through {known}, so the count misses a task: {watched.frames}"
    assert len(every) <= MOST_FRAMES, watched.frames
    assert len(watched.frames) <= MOST_TASKS, watched.frames


async def test_a_call_runs_through_few_files_of_ours(watched: Watched) -> None:
    files = set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and is_ours(frame.f_code):
            files.add(frame.f_code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        await watched.call(2)
    finally:
        sys.setprofile(before)
    for known in ("doors/agent.py", "dream/environment.py", "llm.py"):
        assert any(file.endswith(known) for file in files), (
            f"a call must run through {known}, so the count misses files: {files}"
        )
    assert len(files) <= MOST_FILES, sorted(files)
