"""Record an agent with a real MCP server, then serve a simulation of it: two commands.

    python examples/05_record_and_simulate.py FOLDER

The agent here is five lines. It speaks to the recorder, and later to the simulation, as it would to the real server.
On the command line, `dreamgym record FOLDER -- python examples/notes_server.py` becomes the command of the agent's
MCP server; later `dreamgym serve FOLDER --model nearest` serves the same tools.
"""

import asyncio
import sys
from pathlib import Path

from mcp import Client, StdioServerParameters

import dreamgym

REAL = [sys.executable, str(Path(__file__).with_name("notes_server.py"))]


async def work(client: Client) -> None:
    async with client as agent:
        print([tool.name for tool in (await agent.list_tools()).tools])
        for name, arguments in (
            ("read_note", {"name": "shopping"}),
            ("write_note", {"name": "shopping", "text": "milk"}),
            ("read_note", {"name": "idea"}),
        ):
            print(f"{name} {arguments}: {(await agent.call_tool(name, arguments)).content[0].text}")  # type: ignore[union-attr]


async def main(folder: Path) -> None:
    print("the real server, recorded")
    record = ["-m", "dreamgym", "record", "notes", "--out", str(folder), "--", *REAL]
    await work(Client(StdioServerParameters(command=sys.executable, args=record)))
    print("its simulation")
    async with dreamgym.serving([str(folder)], model="nearest", port=0) as (url,):
        await work(Client(url))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python 05_record_and_simulate.py FOLDER")
    asyncio.run(main(Path(sys.argv[1])))
