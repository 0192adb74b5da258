"""The server that the suite is run against."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from conformance_stage import Urls, serving


@pytest.fixture
async def urls() -> AsyncIterator[Urls]:
    """The URLs of the conformance environment."""
    async with serving() as where:
        yield where
