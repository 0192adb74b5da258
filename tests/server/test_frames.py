"""From the door to the model it is a short way."""

from __future__ import annotations

import sys
from pathlib import Path

import dreamgym_client
import dreamgym_server
import pytest
from mcp import Client
from server_stage import Stage

import dreamgym

pytestmark = pytest.mark.anyio

PACKAGES = [Path(package.__file__ or "").parent for package in (dreamgym, dreamgym_server, dreamgym_client)]


def our_frames() -> list[str]:
    """The functions of ours on the stack; a step is a task of its own, so it begins there."""
    names: list[str] = []
    frame = sys._getframe()
    while frame is not None:
        if any(Path(frame.f_code.co_filename).is_relative_to(package) for package in PACKAGES):
            names.append(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
async def test_at_most_eight_frames_of_ours_lie_between_the_door_and_the_model(stage: Stage, mode: str) -> None:
    seen: list[str] = []
    stage.model.before = lambda query: seen.extend(our_frames())
    async with stage.serve() as (_, http):
        made = (await http.post("/envs/counter/episodes", json={})).json()
        async with Client(made["mcp_url"], mode=mode) as client:
            await client.call_tool("add", {"n": 1})
    assert "step" in seen
    assert len(seen) <= 8, seen
