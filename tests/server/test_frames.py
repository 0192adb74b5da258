"""From the door to the language model it is a short way, counted on the real stack: cache included, over all tasks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
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
from dreamgym.dream.cache import CachedLLM
from dreamgym.dream.language_model import LanguageModel
from dreamgym.llm import Message, ScriptedLLM
from dreamgym.replay.predictions import MemoryPredictions

pytestmark = pytest.mark.anyio

PACKAGES = [Path(package.__file__ or "").parent for package in (dreamgym, dreamgym_server, dreamgym_client)]
FOREVER = {"_sweep_forever", "run"}
"""Of background tasks, which no call waits for."""
MOST = 19
"""Of which 15 are wanted."""


def is_ours(code: CodeType) -> bool:
    return any(Path(code.co_filename).is_relative_to(package) for package in PACKAGES)


def awaiting(coroutine: Any) -> Iterator[CodeType]:
    """What a task waits in, the outermost first."""
    while coroutine is not None:
        code = getattr(coroutine, "cr_code", None) or getattr(coroutine, "gi_code", None)
        if code is not None:
            yield code
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)


def our_frames() -> list[list[str]]:
    """The functions of ours that a call is in just now, one list for each task that waits for the next."""
    running: list[str] = []
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if is_ours(frame.f_code):
            running.append(frame.f_code.co_name)
        frame = frame.f_back
    waiting = [
        [code.co_name for code in awaiting(task.get_coro()) if is_ours(code)]
        for task in asyncio.all_tasks()
        if task is not asyncio.current_task()
    ]
    return [running, *(names for names in waiting if names and names[0] not in FOREVER)]


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_few_frames_of_ours_lie_between_the_door_and_the_language_model(stage: Stage, mode: str) -> None:
    seen: list[list[str]] = []

    def says(messages: Sequence[Message]) -> str:
        seen.extend(our_frames())
        return json.dumps(
            {
                "reasoning": "",
                "observation": "count 1",
                "state": None,
                "error": False,
                "terminated": False,
                "success": False,
            }
        )

    model = LanguageModel(CachedLLM(ScriptedLLM(says), MemoryPredictions()))
    async with stage.serve(DreamWorlds(counter_spec(), model, stage.buffer)) as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode=mode) as client:
            assert not (await client.call_tool("add", {"n": 1})).is_error
    every = [name for names in seen for name in names]
    for known in ("call", "_serve", "step", "predict", "complete"):
        assert known in every, f"{known} is on the way, so the count misses a task: {seen}"
    assert len(every) <= MOST, seen
