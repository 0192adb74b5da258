"""A newcomer's own MCP server: the stock of a shop. It knows nothing of DreamGym."""

from mcp.server import MCPServer

STOCK = {"rope": 12, "anchor": 3, "lamp": 0}
server = MCPServer("stock")


@server.tool()
def count(item: str) -> str:
    """How many of an item are left."""
    return f"{STOCK[item]} left"


@server.tool()
def take(item: str, number: int) -> str:
    """Take some of an item out of the stock."""
    if STOCK[item] < number:
        return f"there are only {STOCK[item]}"
    STOCK[item] -= number
    return f"took {number}, {STOCK[item]} left"


if __name__ == "__main__":
    server.run()
