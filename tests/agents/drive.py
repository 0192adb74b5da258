"""Runs an example script as a stranger would, many episodes at once, in a process without our packages.

stdin: {"script", "episodes": [[task, mcp_url, policy_url], ...]}; stdout: the answers, and our modules in it.
"""

import asyncio
import json
import runpy
import sys

given = json.load(sys.stdin)
play = runpy.run_path(given["script"])["play"]


async def main() -> list[str]:
    """Play all episodes at once."""
    return list(await asyncio.gather(*(play(*episode) for episode in given["episodes"])))


answers = asyncio.run(main())
print(json.dumps({"answers": answers, "ours": [name for name in sys.modules if name.startswith("dreamgym")]}))
