"""A small MCP server to record: its tools read and write notes."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
notes = {"shopping": "milk, bread", "idea": "a boat of paper"}


@server.tool()
def read_note(name: str) -> str:
    """Read a note."""
    return notes.get(name, f"there is no note {name!r}")


@server.tool()
def write_note(name: str, text: str) -> str:
    """Write a note; what it said before is gone."""
    notes[name] = text
    return f"wrote {name}"


if __name__ == "__main__":
    server.run()
