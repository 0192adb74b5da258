"""An agent for a training run in two processes: it ends the second one while the first one plays an episode."""

import asyncio
import os
from pathlib import Path
from typing import Never


async def agent(task: str, mcp_url: str, policy_url: str) -> Never:
    pipe = Path(os.environ["DREAMGYM_TEST_PIPE"])
    if os.environ["RANK"] == "0":
        with os.fdopen(os.open(pipe, os.O_RDWR), "w") as writes:
            writes.write(f"{mcp_url}\n")
            writes.flush()
            await asyncio.Event().wait()
    with pipe.open() as reads:
        pipe.with_suffix(".url").write_text(reads.readline().strip())
    os._exit(7)
