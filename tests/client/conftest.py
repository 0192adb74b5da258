"""The `stage` fixture of the client tests."""

from __future__ import annotations

import pytest
from server_stage import BreakableStore, Stage

from dreamgym.embedding import TrigramEncoder
from dreamgym.replay.memory import MemoryBuffer


@pytest.fixture
def stage() -> Stage:
    return Stage(MemoryBuffer(TrigramEncoder()), BreakableStore())
